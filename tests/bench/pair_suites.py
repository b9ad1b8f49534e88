"""Suites of whole daemons: requests, first tokens, memory, start, transfer, clusters."""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "build/release/tests/bench"
sys.path.insert(0, str(ROOT / "tests/integration"))
import harness as h  # noqa: E402


def ids(count, seed=0):
    return [(i * 7919 + seed * 104729) % 40000 + 300 for i in range(count)]


class Answer:
    """One streamed completion: seconds to the first token, to the end, between tokens."""

    def __init__(self, daemon, tokens, seed=0, out=8):
        begin = time.perf_counter()
        stream = h.Stream(daemon, "/v1/completions", h.completion(
            ids(tokens, seed), max_tokens=out, ignore_eos=True,
            stream_options={"include_usage": True}), timeout_s=600)
        times, last = [], None
        for chunk in stream:
            times.append(time.perf_counter())
            last = chunk
        self.ttft_s = times[0] - begin
        self.total_s = times[-1] - begin
        self.kv = last["kv"]
        tokens_out = last["usage"]["completion_tokens"]
        self.itl_s = (times[-1] - times[0]) / max(1, tokens_out - 1)


def request(options, report):
    """Whole requests through two daemons: first token, transfer, bytes."""
    tokens = 1000 if options.quick else 8000
    with h.Pair() as pair:
        Answer(pair.decode, 300)
        answers = [Answer(pair.decode, tokens, seed) for seed in range(2 if options.quick else 3)]
        sent = pair.prefill.log_events("state sent")[-len(answers):]
    best = min(answers, key=lambda a: a.ttft_s)
    config = f"{tokens} tokens, two processes"
    peer = None
    if options.peers:
        peer = options.peer.measure([str(tokens)]).get(("prefill", tokens, 1))
    report.emit("request", config, "ttft", round(best.ttft_s, 4), "s",
                "llama.cpp f16 KV, prefill alone" if peer else None,
                round(peer["total_ms"] / 1000, 4) if peer else None,
                round(peer["total_ms"] / 1000 / best.ttft_s, 3) if peer else None,
                median=round(statistics.median(a.ttft_s for a in answers), 4))
    report.emit("request", config, "prefill", round(best.kv["prefill_ms"] / 1000, 4), "s")
    report.emit("request", config, "compress", round(best.kv["compress_ms"] / 1000, 4), "s")
    report.emit("request", config, "transfer", round(best.kv["transfer_ms"] / 1000, 4), "s")
    report.emit("request", config, "state_bytes", best.kv["state_bytes"], "bytes", "dense bf16",
                best.kv["dense_bytes"], round(best.kv["ratio"], 4))
    late = [row["transfer_ms"] - row["transfer_hidden_ms"] for row in sent]
    report.emit("request", config, "last layer to state resident and checked",
                round(min(late) / 1000, 5), "s", median=round(statistics.median(late) / 1000, 5))


def ttft(options, report):
    """First token of two processes against --local, alternating pairs."""
    tokens, pairs = (600, 3) if options.quick else (2000, 11)
    local = h.decode("--local")
    try:
        h.wait_ready(local)
        with h.Pair() as pair:
            Answer(pair.decode, tokens, 99)
            Answer(local, tokens, 99)
            both = []
            for k in range(pairs):  # each side goes first in every other pair
                order = (pair.decode, local) if k % 2 == 0 else (local, pair.decode)
                taken = {d: Answer(d, tokens, k).ttft_s for d in order}
                both.append((taken[pair.decode], taken[local]))
    finally:
        local.close()
    two, one = (statistics.median(side) for side in zip(*both))
    report.emit("ttft", f"{tokens} tokens, median of {pairs} pairs", "ttft", round(two, 4), "s",
                "--local", round(one, 4), round(statistics.median(a / b for a, b in both), 4))


class Watch:
    """The peak of a process's memory without mapped files (the model's pages, libraries)."""

    def __init__(self, pid):
        self.path = pathlib.Path(f"/proc/{pid}/status")
        self.peak = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def now(self):
        text = self.path.read_text()
        return 1024 * sum(int(re.search(rf"{name}:\s+(\d+)", text)[1])
                          for name in ("RssAnon", "RssShmem"))

    def run(self):
        while not self.stopped.wait(0.003):
            self.peak = max(self.peak, self.now())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def memory(options, report):
    """Memory idle, at the peak of one long request, and over many requests; mapped files apart."""
    tokens, many = (600, 10) if options.quick else (1300, 100)
    with h.Pair() as pair:
        daemons = {"prefill": pair.prefill, "decode": pair.decode}
        idle = {name: Watch(d.process.pid).now() for name, d in daemons.items()}
        with Watch(pair.prefill.process.pid) as a, Watch(pair.decode.process.pid) as b:
            Answer(pair.decode, 1000 if options.quick else 8000)
        for name, watch in (("prefill", a), ("decode", b)):
            report.emit("memory", name, "idle", idle[name], "bytes")
            report.emit("memory", name, "peak of one long request over idle",
                        watch.peak - idle[name], "bytes")
        samples = []
        for k in range(many):
            Answer(pair.decode, tokens, k, out=4)
            if k % max(1, many // 10) == many // 20:
                samples.append([Watch(d.process.pid).now() for d in daemons.values()])
        h.assert_all_free(pair)
        for name, series in zip(daemons, zip(*samples)):
            report.emit("memory", f"{name}, {many} requests of {tokens} tokens", "growth",
                        series[-1] - series[1 if len(series) > 1 else 0], "bytes",
                        resident=series[-1])


def start(options, report):
    """From exec to the ready line."""
    for program, make in (("prefill_node", h.prefill), ("decode_node", h.decode)):
        times = []
        for _ in range(3 if options.quick else 7):
            begin = time.perf_counter()
            daemon = make()
            times.append(time.perf_counter() - begin)
            daemon.close()
        report.emit("start", program, "ready", round(min(times), 4), "s",
                    median=round(statistics.median(times), 4))


def transfer(options, report):
    """A 64 MiB state over UCX against the ucx_perftest of the same UCX."""
    for transports in ("tcp", "tcp,posix,sysv"):
        rows = report.json_lines(f"transfer over {transports}", [
            BENCH / "transfer_bench", "--rounds", 3 if options.quick else 15, "--transports",
            transports])
        for row in rows:
            config = f"64 MiB, UCX_TLS {transports}, checksums included"
            rate = row["best_mb_per_s"]
            report.emit("transfer", config, "rate", rate, "MB/s",
                        "ucx_perftest, messages as our records", row["perftest_best_mb_per_s"],
                        row["ratio_best"], median=row["median_mb_per_s"],
                        ratio_median=row["ratio_median"])
            whole = row["perftest_whole_best_mb_per_s"]
            if whole > 0 and row["perftest_plain_best_mb_per_s"] > 0:
                report.emit("transfer", config, "rate", rate, "MB/s",
                            "ucx_perftest, one message of 64 MiB", whole, round(rate / whole, 3),
                            median=row["median_mb_per_s"])
                plain = row["perftest_plain_best_mb_per_s"]
                report.emit("transfer", config, "rate", rate, "MB/s",
                            "ucx_perftest as it comes, one message of 64 MiB", plain,
                            round(rate / plain, 3), median=row["median_mb_per_s"])
            else:
                report.fail(f"ucx_perftest, 64 MiB over {transports}", "no figure")
