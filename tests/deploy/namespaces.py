"""Hosts on one machine for hosts.py: network namespaces on a bridge, links of a given rate, a name
server, daemons. This process sits on the bridge (10.77.0.254) as the client and the operator."""
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import support

sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

OPERATOR = "10.77.0.254"
ADDRESS = {"fd": "10.77.0.1", "p1": "10.77.0.11", "p2": "10.77.0.12", "d1": "10.77.0.21",
           "d2": "10.77.0.22", "d3": "10.77.0.23"}
DOMAIN = "akv.test"


def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


def make_network():
    sh("mount -t tmpfs none /run && mkdir -p /run/netns && ip link set lo up")
    sh(f"ip link add br0 type bridge && ip addr add {OPERATOR}/24 dev br0 && ip link set br0 up")
    for host, address in ADDRESS.items():
        sh(f"ip netns add {host}")
        sh(f"ip link add {host} type veth peer name eth0 netns {host}")
        sh(f"ip link set {host} master br0 up")
        sh(f"ip -n {host} addr add {address}/24 dev eth0")
        sh(f"ip -n {host} link set eth0 up && ip -n {host} link set lo up")


def shape(gbit):
    """Both directions of every prefill and decode host's link."""
    burst = max(32_000, int(gbit * 1e9 / 8 * 0.002))
    tbf = f"root tbf rate {int(gbit * 1000)}mbit burst {burst} latency 100ms"
    for host in ADDRESS:
        if host != "fd":
            sh(f"tc qdisc replace dev {host} {tbf}")
            sh(f"ip netns exec {host} tc qdisc replace dev eth0 {tbf}")


class NameServer:
    """Answers A questions for NAME.akv.test over UDP, as the DNS of a cluster does for a headless
    Service. The resolver of every host asks it: this mount namespace's resolv.conf names it."""

    def __init__(self):
        self.names = {}
        self.silent = False  # as when the name server is away
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((OPERATOR, 53))
        configuration = pathlib.Path("/run/resolv.conf")
        configuration.write_text(f"nameserver {OPERATOR}\noptions timeout:1 attempts:1\n")
        sh(f"mount --bind {configuration} /etc/resolv.conf")
        threading.Thread(target=self._serve, daemon=True).start()

    def set(self, name, hosts):
        self.names[f"{name}.{DOMAIN}"] = [ADDRESS[host] for host in hosts]

    def _serve(self):
        while True:
            question, client = self.socket.recvfrom(512)
            if not self.silent:
                self.socket.sendto(self.answer(question), client)

    def answer(self, message):
        labels, at = [], 12
        while message[at]:
            labels.append(message[at + 1:at + 1 + message[at]].decode().lower())
            at += 1 + message[at]
        kind = struct.unpack("!H", message[at + 1:at + 3])[0]
        addresses = self.names.get(".".join(labels))
        found = addresses if addresses and kind == 1 else []
        flags = 0x8580 if addresses is not None else 0x8583  # authoritative; 3: no such name
        records = b"".join(struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address)
                           for address in found)
        return (message[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0) +
                message[12:at + 5] + records)


class HostDaemon(h.Daemon):
    """A daemon on one of the hosts; `ip netns exec` becomes the daemon, so signals reach it."""

    def __init__(self, host, program, *flags):
        self.program, self.host, self.flags = program, host, flags
        self.log = tempfile.NamedTemporaryFile("w+b", suffix=f".{host}.log", delete=False)
        command = ["ip", "netns", "exec", host, str(support.binary(program)), "--model",
                   str(h.MODEL), "--node-name", host, "--ucx-tls", "tcp", *map(str, flags)]
        # The ports of the Kubernetes manifests, so that ss can hold them to the policies.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env={
            **os.environ, "UCX_TCP_PORT_RANGE": "7300-7399"})
        self.ready = self._wait_ready()

    def restart(self):
        """Drains, ends, starts again at the same addresses."""
        status = self.stop(200)
        assert status == 0, f"{self.host} ended with {status}:\n{self.logs()[-2000:]}"
        self.close()
        return HostDaemon(self.host, self.program, *self.flags)


class Cluster:
    """Two prefill and two decode hosts, and front doors, all up."""

    def __init__(self, names, prefill_flags=(), door_flags=(), front_doors=1):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="akv-hosts."))
        done = support.run(support.DEPLOY / "make-keys.sh", self.folder)
        assert done.returncode == 0, done.stderr
        self.key = self.folder / "curve.key"
        self.names = names
        self.prefill_flags = prefill_flags
        self.daemons = {}
        self.list("prefill", ["p1", "p2"])
        self.list("decode", ["d1", "d2"])
        for host in ("p1", "p2"):
            self.start_prefill(host)
        for host in ("d1", "d2"):
            self.start_decode(host)
        self.doors = [f"fd{number}" for number in range(front_doors)]
        for number, name in enumerate(self.doors):
            self.daemons[name] = HostDaemon(
                "fd", "decode_node", "--control", f"{ADDRESS['fd']}:{7110 + number}", "--metrics",
                f"{ADDRESS['fd']}:{9110 + number}", "--http", f"{ADDRESS['fd']}:{8000 + number}",
                "--curve-key", self.key, "--max-sessions", "0", *self.peer_flags("prefill"),
                *self.peer_flags("decode"), *door_flags)
        self.wait_peers(prefill=2, decode=2)

    @property
    def door(self):
        return self.daemons["fd0"]

    def addresses(self, host, state_port):
        address = ADDRESS[host]
        return ("--control", f"{address}:7100", "--state", f"{address}:{state_port}", "--metrics",
                f"{address}:9100", "--curve-key", self.key)

    def start_prefill(self, host):
        self.daemons[host] = HostDaemon(host, "prefill_node", *self.addresses(host, 0),
                                        *self.prefill_flags)

    def start_decode(self, host):
        self.daemons[host] = HostDaemon(host, "decode_node", *self.addresses(host, 7200), "--http",
                                        f"{ADDRESS[host]}:8000")

    def peer_flags(self, role):
        if self.names is not None:
            return (f"--{role}-dns", f"{role}.{DOMAIN}:7100")
        return (f"--{role}-file", self.folder / role)

    def list(self, role, hosts):
        """Names the hosts of a role: in the DNS, or in a file that is replaced at once."""
        if self.names is not None:
            return self.names.set(role, hosts)
        fresh = self.folder / f"{role}.new"
        fresh.write_text("".join(f"{ADDRESS[host]}:7100  # {host}\n" for host in hosts))
        return fresh.rename(self.folder / role)

    def wait_peers(self, **counts):
        """Until every front door sees so many peers of each role up, and no other."""
        for name in self.doors:
            for role, count in counts.items():
                def all_up():
                    states = {state: self.daemons[name].metrics().get(
                        f'akv_peers{{role="{role}",state="{state}"}}', 0)
                        for state in ("up", "draining", "down", "connecting", "refused")}
                    return states["up"] == count == sum(states.values())
                h.wait_until(all_up, 120, f"{count} {role} peers up at {name}")

    def restart(self, name):
        """Drains the daemon and starts it again; until the others work with the new one."""
        self.daemons[name] = fresh = self.daemons[name].restart()
        if name in self.doors:
            h.wait_ready(fresh, 60)
        else:
            h.wait_until(lambda: len(fresh.log_events("peer greeted")) >= len(self.doors), 60,
                         f"hellos at {name}")
        self.wait_peers(prefill=2, decode=2)

    def close(self):
        for daemon in self.daemons.values():
            daemon.close()
        shutil.rmtree(self.folder)
