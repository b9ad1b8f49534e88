"""A cluster under load while its nodes are killed, stopped and restarted: every answer is the one
that an undisturbed pair gives, or a clear error, and nothing is left behind at the end.

usage: tests/integration/soak.py [--minutes 20] [--clients 4] [--fault-every-s 15] [--seed 1]

Not part of tests/run.sh: it takes as long as it is told. One JSON object on stdout; status 1 where
an answer was wrong, a request hung, a daemon died by itself or something was not freed.
"""
import argparse
import collections
import http.client
import json
import random
import re
import signal
import sys
import threading
import time

import harness as h

PROMPTS = [(60, 24), (200, 40), (600, 60), (1300, 100), (2500, 30), (4000, 12)]  # tokens, out
HEARTBEAT = ("--heartbeat-ms", "200")
ANSWER_LIMIT_S = 240


def body(case):
    tokens, out = PROMPTS[case % len(PROMPTS)]
    return h.completion(h.long_prompt(tokens, case), max_tokens=out, ignore_eos=True)


def expected_answers(cases):
    with h.Pair() as pair:
        return {case: h.post(pair.decode, "/v1/completions", body(case))[1]["choices"][0]["text"]
                for case in cases}


class Node:
    """A daemon that comes back at the same control address after it was killed."""

    def __init__(self, make):
        self.make = make
        self.daemon = make("127.0.0.1:0")
        self.address = self.daemon.ready["control"]
        self.killed = 0

    def restart(self):
        self.daemon.close()
        self.daemon = self.make(self.address)

    def kill(self, rng):
        self.daemon.kill()
        self.killed += 1
        time.sleep(rng.uniform(0, 3))
        self.restart()

    def freeze(self, rng):
        self.daemon.signal(signal.SIGSTOP)
        time.sleep(rng.choice([0.1, 0.5, 3]))
        self.daemon.signal(signal.SIGCONT)

    def drain(self, _):
        assert self.daemon.stop(120) == 0, "a drained node ends with status 0"
        self.restart()


class Soak:
    def __init__(self, options, expected):
        self.options, self.expected = options, expected
        self.counts = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.prefills = [Node(lambda at: h.prefill("--control", at, *HEARTBEAT)) for _ in range(2)]
        self.decodes = [Node(lambda at: h.decode("--control", at, *HEARTBEAT)) for _ in range(2)]
        self.front = h.decode("--max-sessions", "0", *HEARTBEAT,
                              "--prefill", ",".join(n.address for n in self.prefills),
                              "--decode", ",".join(n.address for n in self.decodes))
        h.wait_ready(self.front)

    def count(self, what, detail=None):
        with self.lock:
            self.counts[what] += 1
            if detail:
                self.wrong.append(detail)
                print(f"{what}: {detail}", file=sys.stderr, flush=True)

    def ask(self, rng):
        case = rng.choice(list(self.expected))
        want = self.expected[case]
        if rng.random() < 0.5:
            status, reply = h.post(self.front, "/v1/completions", body(case),
                                   timeout_s=ANSWER_LIMIT_S)
            self.judge_whole(case, status, reply, want)
            return
        stream = h.Stream(self.front, "/v1/completions", body(case), timeout_s=ANSWER_LIMIT_S)
        leave_after = rng.randrange(1, 20) if rng.random() < 0.2 else None
        self.judge_stream(case, stream, leave_after, want)

    def judge_whole(self, case, status, reply, want):
        if status == 200:
            got = reply["choices"][0]["text"]
            self.count("right") if got == want else self.count("WRONG", f"case {case}: {got!r}")
        elif status in (429, 503, 504) and reply["error"]["message"]:
            reason = re.sub(r"[0-9.:]*[0-9]", "#", reply["error"]["message"])
            self.count(f"refused {status}: {reason[:120]}")
        else:
            self.count("BAD STATUS", f"case {case}: {status} {reply}")

    def judge_stream(self, case, stream, leave_after, want):
        text = ""
        try:
            for count, chunk in enumerate(stream):
                if "error" in chunk:
                    self.count("error in the stream")
                    return
                text += chunk["choices"][0]["text"]
                if not want.startswith(text):
                    self.count("WRONG", f"case {case}, streamed: {text!r}")
                    return
                if count == leave_after:
                    stream.abandon()
                    self.count("left by the client")
                    return
        except AssertionError as refusal:  # a status other than 200, before any token
            self.judge_whole(case, stream.status, json.loads(refusal.args[0]), want)
            return
        if not stream.done or text != want:
            self.count("WRONG", f"case {case}, ended early: {text!r}")
        else:
            self.count("right, streamed")

    def client(self, number):
        rng = random.Random(self.options.seed * 1000 + number)
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                self.ask(rng)
            except (OSError, http.client.HTTPException) as error:
                self.count("NO ANSWER", f"{type(error).__name__} {error}, "
                                        f"{time.monotonic() - begin:.0f} s")
            except Exception as error:  # what is no answer of this API, whatever it is
                self.count("BAD ANSWER", repr(error))

    def faults(self, until):
        rng = random.Random(self.options.seed)
        while time.monotonic() < until:
            node = rng.choice(self.prefills + self.decodes)
            what = rng.choice(["kill", "kill", "freeze", "drain"])
            print(f"{what} {node.daemon.program} {node.address}", file=sys.stderr, flush=True)
            getattr(node, what)(rng)
            self.count(f"faults: {what}")
            time.sleep(rng.expovariate(1 / self.options.fault_every_s))

    def check_alive(self):
        for daemon in [self.front] + [n.daemon for n in self.prefills + self.decodes]:
            if daemon.process.poll() is not None:
                self.count("DIED", f"{daemon.program}: {daemon.logs()[-2000:]}")

    def check_free(self):
        def free():
            decodes = [n.daemon.metrics() for n in self.decodes] + [self.front.metrics()]
            prefills = [n.daemon.metrics() for n in self.prefills]
            levels = ["akv_sessions", "akv_state_reserved_bytes", "akv_state_resident_bytes",
                      "akv_suffix_bytes"]
            return (all(d.get(name, 0) == 0 for d in decodes for name in levels)
                    and all(p["akv_outbox_bytes"] == 0 and p["akv_queue_tokens"] == 0
                            and p["akv_prefill_dense_kv_bytes"] == 0 for p in prefills))
        try:
            h.wait_until(free, 60, "everything free")
        except AssertionError as error:
            self.count("LEAK", str(error))

    def run(self):
        until = time.monotonic() + 60 * self.options.minutes
        clients = [threading.Thread(target=self.client, args=(k,))
                   for k in range(self.options.clients)]
        for client in clients:
            client.start()
        try:
            self.faults(until)
        finally:
            self.over.set()
            for client in clients:
                client.join()
        self.check_alive()
        self.check_free()

    def close(self):
        for daemon in [self.front] + [n.daemon for n in self.prefills + self.decodes]:
            daemon.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--fault-every-s", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soak = Soak(options, expected_answers(range(2 * len(PROMPTS))))
    try:
        soak.run()
    finally:
        soak.close()
    print(json.dumps({"minutes": options.minutes, "counts": dict(sorted(soak.counts.items())),
                      "faulty": len(soak.wrong)}))
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
