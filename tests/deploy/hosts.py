"""The work of hosts.sh, in a network and mount namespace of its own: this process sits on the bridge
(10.77.0.254) as the client and the operator."""
import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import support

sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

ADDRESS = {"fd": "10.77.0.1", "p1": "10.77.0.11", "p2": "10.77.0.12", "d1": "10.77.0.21",
           "d2": "10.77.0.22", "d3": "10.77.0.23"}


def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


def make_network():
    sh("mount -t tmpfs none /run && mkdir -p /run/netns && ip link set lo up")
    sh("ip link add br0 type bridge && ip addr add 10.77.0.254/24 dev br0 && ip link set br0 up")
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
        return HostDaemon(self.host, self.program, *self.flags)


class Cluster:
    def __init__(self, *decode_flags, front_doors=1):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="akv-hosts."))
        done = support.run(support.DEPLOY / "make-keys.sh", self.folder)
        assert done.returncode == 0, done.stderr
        self.key = self.folder / "curve.key"
        self.daemons = {}
        self.list("prefill", ["p1", "p2"])
        self.list("decode", ["d1", "d2"])
        for host in ("p1", "p2"):
            self.daemons[host] = HostDaemon(host, "prefill_node", *self.addresses(host, 0))
        for host in ("d1", "d2"):
            self.start_decode(host)
        for number in range(front_doors):
            address = ADDRESS["fd"]
            self.daemons[f"fd{number}"] = HostDaemon(
                "fd", "decode_node", "--control", f"{address}:{7110 + number}", "--metrics",
                f"{address}:{9110 + number}", "--http", f"{address}:{8000 + number}",
                "--curve-key", self.key, "--max-sessions", "0", "--prefill-file",
                self.folder / "prefill", "--decode-file", self.folder / "decode", *decode_flags)
        for number in range(front_doors):
            door = self.daemons[f"fd{number}"]
            h.wait_until(lambda: door.metrics().get('akv_peers{role="decode",state="up"}') == 2 and
                         door.metrics().get('akv_peers{role="prefill",state="up"}') == 2, 60,
                         "four peers up")

    @property
    def door(self):
        return self.daemons["fd0"]

    def addresses(self, host, state_port):
        address = ADDRESS[host]
        return ("--control", f"{address}:7100", "--state", f"{address}:{state_port}", "--metrics",
                f"{address}:9100", "--curve-key", self.key)

    def start_decode(self, host):
        self.daemons[host] = HostDaemon(host, "decode_node", *self.addresses(host, 7200), "--http",
                                        f"{ADDRESS[host]}:8000")

    def list(self, role, hosts):
        """The peer file, replaced at once: a reader sees the old or the new one."""
        fresh = self.folder / f"{role}.new"
        fresh.write_text("".join(f"{ADDRESS[host]}:7100  # {host}\n" for host in hosts))
        fresh.rename(self.folder / role)

    def close(self):
        for daemon in self.daemons.values():
            daemon.close()
        shutil.rmtree(self.folder)


def timed_answer(door, body):
    """(text, seconds to the first and to the second token, kv)."""
    begin = time.monotonic()
    times, text, kv = [], "", None
    stream = h.Stream(door, "/v1/completions",
                      {**body, "stream_options": {"include_usage": True}}, timeout_s=600)
    for chunk in stream:
        if "error" in chunk:
            raise RuntimeError(chunk["error"])
        if chunk["choices"]:
            times.append(time.monotonic() - begin)
            text += chunk["choices"][0]["text"]
        kv = chunk.get("kv") or kv
    assert stream.done, "the stream broke off"
    return text, times[0], times[1], kv


def links(options):
    """The link table, also as JSON lines."""
    cluster = Cluster()
    ports = set()
    print(f"{'Gbit/s':>7} {'codec':>9} {'state MB':>9} {'prefill s':>10} {'transfer s':>11} "
          f"{'TTFT s':>7} {'2nd - 1st s':>12}")
    try:
        body = h.completion(h.long_prompt(options.tokens, 1), max_tokens=4, ignore_eos=True)
        for gbit in options.gbit:
            shape(gbit)
            for codec in ("none", "anchorkv"):
                _, first, second, kv = timed_answer(cluster.door, {**body, "kv": {"codec": codec}})
                print(f"{gbit:7} {codec:>9} {kv['state_bytes'] / 1e6:9.2f} "
                      f"{kv['prefill_ms'] / 1e3:10.2f} {kv['transfer_ms'] / 1e3:11.3f} "
                      f"{first:7.2f} {second - first:12.3f}", flush=True)
                print(json.dumps({"bench": "links", "gbit_per_s": gbit, "codec": codec,
                                  "prompt_tokens": kv["prompt_tokens"], "ttft_s": first,
                                  "second_token_s": second - first, **{
                                      key: kv[key] for key in ("state_bytes", "prefill_ms",
                                                               "transfer_ms")}}), flush=True)
                for host in ("p1", "p2", "d1", "d2"):
                    lines = sh(f"ip netns exec {host} ss -Htn").splitlines()
                    ports |= {min(int(word.rsplit(':', 1)[1]) for word in line.split()[3:5])
                              for line in lines if "10.77.0.254" not in line}
        # Of each connection the lower port is that of the side that listens.
        print("ports listened on:", sorted(ports))
        assert all(port in (7100, 7200) or 7300 <= port <= 7399 for port in ports), ports
    finally:
        cluster.close()


def holder(cluster, hosts):
    """The decode host that decodes: it holds a state that has landed."""
    for host in hosts:
        if cluster.daemons[host].metrics()["akv_state_resident_bytes"] > 0:
            return host
    return None


def faults(options):
    """A link of the decode host that answers is cut in the middle of the answer."""
    cluster = Cluster("--min-compress-tokens", "0", "--theta", "0.3")
    try:
        body = h.completion(h.long_prompt(options.tokens, 2), max_tokens=120, ignore_eos=True)
        wanted = timed_answer(cluster.door, body)[0]
        for title, seconds in (("cut for 2 s", 2), ("cut for good", None)):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(timed_answer, cluster.door, body)
                host = h.wait_until(lambda: holder(cluster, ("d1", "d2")), 120, "a decode host")
                sh(f"ip link set {host} down")
                assert not answer.done(), "the answer was complete before the cut"
                begin = time.monotonic()
                if seconds:
                    time.sleep(seconds)
                    sh(f"ip link set {host} up")
                text = answer.result(300)[0]
            print(f"link of {host} {title}: answer complete {time.monotonic() - begin:.1f} s after "
                  f"the cut, {'as without' if text == wanted else 'WRONG'}", flush=True)
            assert text == wanted
    finally:
        cluster.close()


class Load:
    """Requests at a rate over the front doors; a client goes to the next door where one is away or
    says that it drains, as a Service would have it."""

    def __init__(self, doors, tokens, rate):
        self.doors, self.rate = doors, rate
        self.bodies = [h.completion(h.long_prompt(tokens, seed), max_tokens=8, ignore_eos=True)
                       for seed in range(4)]
        self.turn = itertools.count()
        self.wanted = [self.ask(body) for body in self.bodies]
        self.results = []
        self.stop = threading.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def ask(self, body):
        deadline = time.monotonic() + 300
        while True:
            address = self.doors[next(self.turn) % len(self.doors)]
            try:
                connection = http.client.HTTPConnection(address, timeout=300)
                connection.request("POST", "/v1/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                answer = connection.getresponse()
                reply = json.loads(answer.read())
                connection.close()
            except ConnectionRefusedError:
                reply, answer = {"error": "refused"}, None
            if answer is not None and answer.status == 200:
                return reply["choices"][0]["text"]
            if answer is not None and answer.status not in (429, 503):
                return f"status {answer.status}: {reply}"
            if time.monotonic() > deadline:
                return f"no answer: {reply}"
            time.sleep(0.2)

    def one(self, which):
        try:
            self.results.append(self.ask(self.bodies[which]) == self.wanted[which])
        except Exception as error:  # a lost request, whatever broke it
            print(f"lost: {error!r}", flush=True)
            self.results.append(None)

    def run(self):
        for number in itertools.count():
            if self.stop.wait(1 / self.rate):
                return
            self.pool.submit(self.one, number % len(self.bodies))

    def end(self):
        self.stop.set()
        self.thread.join()
        self.pool.shutdown()
        lost = self.results.count(None)
        wrong = self.results.count(False)
        print(f"{len(self.results)} requests: {lost} lost, {wrong} wrong", flush=True)
        return lost == 0 and wrong == 0


def roll(options):
    cluster = Cluster(front_doors=2)
    load = None
    try:
        doors = [cluster.daemons[name].ready["http"] for name in ("fd0", "fd1")]
        load = Load(doors, options.tokens, options.rate)
        begin = time.monotonic()
        for name in ("d1", "d2", "p1", "p2", "fd0", "fd1"):
            before = time.monotonic()
            cluster.daemons[name] = cluster.daemons[name].restart()
            print(f"{name}: drained and ready again in {time.monotonic() - before:.1f} s, "
                  f"{len(load.results)} requests so far", flush=True)
            time.sleep(4)  # heartbeats and peer files find it again
        cluster.start_decode("d3")
        cluster.list("decode", ["d1", "d2", "d3"])
        h.wait_until(lambda: cluster.door.metrics().get(
            'akv_peers{role="decode",state="up"}') == 3, 30, "a third decode host")
        print("third decode host is up", flush=True)
        time.sleep(max(0, options.seconds - (time.monotonic() - begin)))
        good, load = load.end(), None
        return 0 if good else 1
    finally:
        if load is not None:
            load.end()
        cluster.close()


def main():
    parser = argparse.ArgumentParser(prog="hosts.sh")
    parser.add_argument("part", nargs="?", choices=["links", "faults", "roll"])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--gbit", type=lambda text: [float(word) for word in text.split(",")],
                        default=[0.1, 1, 10])
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    make_network()
    status = 0
    for part, run, tokens in (("links", links, 1300), ("faults", faults, 300), ("roll", roll, 600)):
        if options.part in (None, part):
            print(f"== {part}", flush=True)
            own = argparse.Namespace(**{**vars(options), "tokens": options.tokens or tokens})
            status = run(own) or status
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
