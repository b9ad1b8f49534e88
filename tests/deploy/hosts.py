"""The work of hosts.sh, in a network and mount namespace of its own."""
import argparse
import json
import signal
import sys
import threading
import time

import namespaces as ns
from load import Load
from namespaces import h, sh


class Answer:
    """A streamed completion in a thread of its own, so that its tokens can be watched."""

    def __init__(self, door, body):
        self.tokens, self.text, self.kv, self.error = [], "", None, None
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self.run, args=(door, body))
        self.thread.start()

    def run(self, door, body):
        try:
            stream = h.Stream(door, "/v1/completions",
                              {**body, "stream_options": {"include_usage": True}}, timeout_s=600)
            for chunk in stream:
                if "error" in chunk:
                    raise RuntimeError(chunk["error"])
                if chunk["choices"]:
                    self.tokens.append(time.monotonic() - self.begin)
                    self.text += chunk["choices"][0]["text"]
                self.kv = chunk.get("kv") or self.kv
            assert stream.done, "the stream broke off"
        except Exception as error:
            self.error = error

    def done(self):
        return not self.thread.is_alive()

    def result(self):
        """(text, seconds to the first and to the second token, kv)."""
        self.thread.join(600)
        if self.error:
            raise self.error
        return self.text, self.tokens[0], self.tokens[1], self.kv


def links(options, names):
    """The link table, also as JSON lines."""
    print(f"{'Gbit/s':>7} {'delay ms':>9} {'codec':>9} {'state MB':>9} {'prefill s':>10} "
          f"{'transfer s':>11} {'TTFT s':>7} {'2nd - 1st s':>12}")
    ports = set()
    for delay in options.delay_ms:
        cluster = ns.Cluster(names, prefill_flags=("--state-delay-ms", delay))
        try:
            for gbit in options.gbit:
                ns.shape(gbit)
                for codec in ("none", "anchorkv"):
                    link(options, cluster, gbit, delay, codec)
                    ports |= listened()
        finally:
            cluster.close()
    print("ports listened on:", sorted(ports))
    assert all(port in (7100, 7200) or 7300 <= port <= 7399 for port in ports), ports
    return 0


def link(options, cluster, gbit, delay, codec):
    body = h.completion(h.long_prompt(options.tokens, 1), max_tokens=4, ignore_eos=True)
    _, first, second, kv = Answer(cluster.door, {**body, "kv": {"codec": codec}}).result()
    print(f"{gbit:7} {delay:9} {codec:>9} {kv['state_bytes'] / 1e6:9.2f} "
          f"{kv['prefill_ms'] / 1e3:10.2f} {kv['transfer_ms'] / 1e3:11.3f} "
          f"{first:7.2f} {second - first:12.3f}", flush=True)
    print(json.dumps({"bench": "links", "gbit_per_s": gbit, "delay_ms": delay, "codec": codec,
                      "prompt_tokens": kv["prompt_tokens"], "ttft_s": first,
                      "second_token_s": second - first,
                      **{key: kv[key] for key in ("state_bytes", "prefill_ms", "transfer_ms")}}),
          flush=True)


def listened():
    """Of each connection of the hosts the lower port: that of the side that listens."""
    ports = set()
    for host in ("p1", "p2", "d1", "d2"):
        for line in sh(f"ip netns exec {host} ss -Htn").splitlines():
            if ns.OPERATOR not in line:
                ports.add(min(int(word.rsplit(":", 1)[1]) for word in line.split()[3:5]))
    return ports


def faults(options, names):
    """A decode host's link is cut in the middle of its answer; the name server goes away."""
    cluster = ns.Cluster(names, door_flags=("--min-compress-tokens", "0", "--theta", "0.3"))
    good = True
    try:
        body = h.completion(h.long_prompt(options.tokens, 2), max_tokens=300, ignore_eos=True)
        wanted = Answer(cluster.door, body).result()[0]
        if names is not None:
            good = without_names(cluster, body, wanted)
        for title, seconds in (("cut for 2 s", 2), ("cut for good", None)):
            good = cut(cluster, body, wanted, title, seconds) and good
    finally:
        cluster.close()
    return 0 if good else 1


def said(title, begin, text, wanted):
    print(f"{title}: answer complete {time.monotonic() - begin:.1f} s later, "
          f"{'as without' if text == wanted else 'WRONG'}", flush=True)
    return text == wanted


def without_names(cluster, body, wanted):
    """Peers that the name server gave stay when it is silent."""
    cluster.names.silent = True
    h.wait_until(lambda: cluster.door.log_events("peers not read"), 60, "a failed look-up")
    begin = time.monotonic()
    text = Answer(cluster.door, body).result()[0]
    cluster.names.silent = False
    return said("name server silent", begin, text, wanted)


def cut(cluster, body, wanted, title, seconds):
    answer = Answer(cluster.door, body)
    h.wait_until(lambda: answer.done() or len(answer.tokens) >= 8, 300, "tokens")
    # The one that decodes holds a state that has landed.
    (host,) = [host for host in ("d1", "d2")
               if cluster.daemons[host].metrics()["akv_state_resident_bytes"] > 0]
    sh(f"ip link set {host} down")
    begin = time.monotonic()
    assert not answer.done(), "the answer was complete before the cut"
    if seconds:
        time.sleep(seconds)
        sh(f"ip link set {host} up")
    good = said(f"link of {host} {title}", begin, answer.result()[0], wanted)
    if seconds:
        cluster.wait_peers(prefill=2, decode=2)
    return good


def roll(options, names):
    """Every daemon drained and started again in turn under load; then a decode host more."""
    flags = ("--max-queue-tokens", options.queue_tokens) if options.queue_tokens else ()
    cluster = ns.Cluster(names, door_flags=flags, front_doors=2)
    load = None
    try:
        load = Load([cluster.daemons[name].ready["http"] for name in cluster.doors], options)
        begin = time.monotonic()
        for name in ("d1", "d2", "p1", "p2", "fd0", "fd1"):
            before = time.monotonic()
            cluster.restart(name)
            print(f"{name}: drained and at work again in {time.monotonic() - before:.1f} s; "
                  f"{load.progress()}", flush=True)
        before = time.monotonic()
        cluster.start_decode("d3")
        cluster.list("decode", ["d1", "d2", "d3"])
        cluster.wait_peers(decode=3)
        seconds = time.monotonic() - before
        h.wait_until(lambda: cluster.daemons["d3"].metrics()["akv_batch_size_count"] > 0, 120,
                     "an answer of the third decode host")
        print(f"third decode host: up {seconds:.1f} s after its start, answers since "
              f"{time.monotonic() - before:.1f} s", flush=True)
        time.sleep(max(0, options.seconds - (time.monotonic() - begin)))
        good, load = load.end(), None
        return 0 if good else 1
    finally:
        if load is not None:
            load.end()
        cluster.close()


def numbers(text):
    return [float(word) if "." in word else int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(prog="hosts.sh")
    parser.add_argument("part", nargs="?", choices=["links", "faults", "roll"])
    parser.add_argument("--peers", choices=["dns", "file"], default="dns")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--gbit", type=numbers, default=[0.1, 1, 10])
    parser.add_argument("--delay-ms", type=numbers, default=[0])
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--queue-tokens", type=int, default=0)
    parser.add_argument("--patience", type=float, default=300)
    options = parser.parse_args()
    ns.make_network()
    names = ns.NameServer() if options.peers == "dns" else None
    status = 0
    for part, run, tokens in (("links", links, 1300), ("faults", faults, 300), ("roll", roll, 600)):
        if options.part in (None, part):
            print(f"== {part}", flush=True)
            own = argparse.Namespace(**{**vars(options), "tokens": options.tokens or tokens})
            status = run(own, names) or status
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
