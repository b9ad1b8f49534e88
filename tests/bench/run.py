"""The suites of tests/bench/run.sh. Each figure is the best of several rounds, and where there is a
baseline both sides are measured in this run, one after the other."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
import harness as h  # noqa: E402

BENCH = ROOT / "build/release/tests/bench"
LLAMA = "llama.cpp"


def say(text):
    print(text, file=sys.stderr, flush=True)


def emit(bench, config, metric, value, unit, baseline=None, baseline_value=None, ratio=None):
    print(json.dumps({"bench": bench, "config": config, "metric": metric, "value": value,
                      "unit": unit, "baseline": baseline, "baseline_value": baseline_value,
                      "ratio": ratio}), flush=True)


def json_lines(command):
    say("  " + " ".join(str(c) for c in command[:1] + command[-3:]))
    ran = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return rows if ran.returncode == 0 else None


class Peer:
    """llama.cpp in the best of its settings; None where it was not asked for."""

    def __init__(self, options):
        self.options = options
        self.extra = 1

    def measure(self, cases, kv="f16"):
        """{(what, depth, sessions): best row} over flash attention on and off."""
        best = {}
        for flash in (0, 1):
            rows = self.run(cases, kv, flash)
            for row in rows or []:
                key = (row["what"], row["depth"], row.get("sessions", 1))
                speed = row.get("tokens_per_s_best", row["tokens_per_s"]
                                if row["what"] == "prefill" else 0)
                if key not in best or speed > best[key]["speed"]:
                    best[key] = {**row, "speed": speed}
        return best

    def run(self, cases, kv, flash):
        command = [self.options.peers_python, ROOT / "tests/bench/llama_peer.py", "--model",
                   self.options.model, "--threads", os.cpu_count(), "--kv", kv, "--flash", flash,
                   "--rounds", 1 if self.options.quick else 3, "--extra-buffers"]
        rows = json_lines(command + [self.extra] + cases)
        if rows is None and self.extra:
            say("  llama.cpp ends with its repacked weights here; measured without them")
            self.extra = 0
            rows = json_lines(command + [0] + cases)
        return rows


def engine(options):
    """Prefill, compression and decode steps in process, against llama.cpp with --peers."""
    cases = ["128", "1000", "1000x4"] if options.quick else ["128", "2048", "8000", "8000x8"]
    rows = json_lines([BENCH / "engine_bench", "--model", options.model, "--rounds",
                       2 if options.quick else 5] + cases) or []
    peer = Peer(options).measure(cases) if options.peers else {}
    for row in rows:
        config = f"depth {row['depth']}, {row.get('sessions', 1)} sessions, theta auto"
        ours = row.get("tokens_per_s_best", row.get("tokens_per_s"))
        other = peer.get((row["what"], row["depth"], row.get("sessions", 1)))
        speed = other["speed"] if other else None
        emit(row["what"], config, "tokens_per_s", round(ours, 2), "tokens/s",
             f"{LLAMA} f16 KV" if other else None, round(speed, 2) if other else None,
             round(ours / speed, 3) if other else None)
        if row["what"] == "prefill":
            emit("compression", config, "share_of_prefill",
                 round(row["compress_ms"] / (row["total_ms"] - row["compress_ms"]), 4), "1")
    if options.peers and not options.quick:
        for kv in ("q8_0", "q4_0"):
            for key, row in Peer(options).measure(["8000"], kv).items():
                if key[0] == "decode":
                    emit("decode_peer", f"depth 8000, {kv} KV", "tokens_per_s",
                         round(row["speed"], 2), "tokens/s", LLAMA)


def ids(count, seed=0):
    return [(i * 7919 + seed * 104729) % 40000 + 300 for i in range(count)]


def ask(daemon, tokens, seed=0, out=8):
    stream = h.Stream(daemon, "/v1/completions", h.completion(
        ids(tokens, seed), max_tokens=out, ignore_eos=True,
        stream_options={"include_usage": True}), timeout_s=600)
    begin = time.perf_counter()
    first = None
    last = None
    for chunk in stream:
        first = first or time.perf_counter() - begin
        last = chunk
    return first, time.perf_counter() - begin, last["kv"]


def request(options):
    """Whole requests through two daemons: first token, transfer, bytes."""
    tokens = 1000 if options.quick else 8000
    with h.Pair() as pair:
        ask(pair.decode, 300)
        best = min((ask(pair.decode, tokens, seed) for seed in range(1 if options.quick else 3)),
                   key=lambda r: r[0])
        first, _, kv = best
        config = f"{tokens} tokens, two processes"
        emit("request", config, "ttft", round(first, 4), "s")
        emit("request", config, "prefill", round(kv["prefill_ms"] / 1000, 4), "s")
        emit("request", config, "compress", round(kv["compress_ms"] / 1000, 4), "s")
        emit("request", config, "transfer", round(kv["transfer_ms"] / 1000, 4), "s")
        emit("request", config, "state_bytes", kv["state_bytes"], "bytes", "dense bf16",
             kv["dense_bytes"], round(kv["ratio"], 4))
        sent = pair.prefill.log_events("state sent")[-1]
        emit("request", config, "transfer_hidden", round(sent["transfer_hidden_ms"] / 1000, 4), "s")


def ttft(options):
    """First token of two processes against --local, alternating."""
    tokens, pairs = (600, 3) if options.quick else (2000, 11)
    local = h.decode("--local")
    try:
        h.wait_ready(local)
        with h.Pair() as pair:
            ask(pair.decode, 300)
            ask(local, 300)
            both = [(ask(pair.decode, tokens, k)[0], ask(local, tokens, k)[0])
                    for k in range(pairs)]
    finally:
        local.close()
    two, one = (statistics.median(side) for side in zip(*both))
    emit("ttft", f"{tokens} tokens, median of {pairs} pairs", "ttft", round(two, 4), "s",
         "--local", round(one, 4), round(statistics.median(a / b for a, b in both), 4))


def memory(options):
    """Resident memory idle, at its peak and after; flatness over many requests."""
    tokens, many = (600, 10) if options.quick else (1300, 200)
    with h.Pair() as pair:
        def rss(daemon):
            return daemon.metrics()["akv_resident_memory_bytes"]

        def peak(daemon):
            status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024

        idle = {"prefill": rss(pair.prefill), "decode": rss(pair.decode)}
        ask(pair.decode, 1000 if options.quick else 8000)
        for name, daemon in (("prefill", pair.prefill), ("decode", pair.decode)):
            emit("memory", name, "idle", idle[name], "bytes")
            emit("memory", name, "peak of one long request", peak(daemon), "bytes", "idle",
                 idle[name], round(peak(daemon) / idle[name], 3))
        samples = []
        for k in range(many):
            ask(pair.decode, tokens, k, out=4)
            if k % max(1, many // 10) == many // 20:
                samples.append((rss(pair.prefill), rss(pair.decode)))
        h.assert_all_free(pair)
        for name, series in zip(("prefill", "decode"), zip(*samples)):
            emit("memory", f"{name}, {many} requests of {tokens} tokens", "growth",
                 series[-1] - series[1 if len(series) > 1 else 0], "bytes", "rss", series[-1])


def start(options):
    """From exec to the ready line."""
    for program, make in (("prefill_node", h.prefill), ("decode_node", h.decode)):
        times = []
        for _ in range(3 if options.quick else 7):
            begin = time.perf_counter()
            daemon = make()
            times.append(time.perf_counter() - begin)
            daemon.close()
        emit("start", program, "ready", round(min(times), 4), "s")


def transfer(options):
    """A 64 MiB state over UCX against the ucx_perftest of the same UCX."""
    for transports in ("tcp", "tcp,posix,sysv"):
        ran = subprocess.run([str(BENCH / "transfer_bench"), "--transports", transports, "--rounds",
                              "3" if options.quick else "15"], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
        best = dict(re.findall(r"^\s*(\w+)\s+best\s+([\d.]+)", ran.stdout, re.M))
        if "transport" in best:
            emit("transfer", f"64 MiB, UCX_TLS {transports}, checksums included", "rate",
                 float(best["transport"]), "MB/s", "ucx_perftest", float(best["ucx_perftest"]),
                 float(best["ratio"]))


SUITES = {f.__name__: f for f in (engine, request, ttft, memory, start, transfer)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--peers-python")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("suites", nargs="*")
    options = parser.parse_args()
    if options.list:
        for name, suite in SUITES.items():
            print(f"{name:10} {suite.__doc__}")
        return
    unknown = [s for s in options.suites if s not in SUITES]
    if unknown:
        sys.exit(f"no suite {unknown[0]}; there are {', '.join(SUITES)}")
    for name in options.suites or SUITES:
        say(f"suite {name}")
        SUITES[name](options)


if __name__ == "__main__":
    main()
