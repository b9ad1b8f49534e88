"""Suites of single processes: engines, kernels and codec, against llama.cpp."""
import os
import pathlib

from report import say

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "build/release/tests/bench"
LLAMA = "llama.cpp"


class Peer:
    """llama.cpp, each KV format measured once a run: {(what, depth, sessions): best row}."""

    def __init__(self, options, report):
        self.options, self.report = options, report
        self.extra = 1
        self.known = {}

    def measure(self, cases, kv="f16"):
        if kv in self.known:
            return self.known[kv]
        best = {}
        # A quantised V needs flash attention.
        for flash in ((0, 1) if kv == "f16" else (1,)):
            for row in self.run(cases, kv, flash):
                self.keep(best, row)
        if not self.options.quick and best and kv == "f16":  # a second sample of the better one
            deepest = max(key[1] for key in best)
            flash = best[("prefill", deepest, 1)]["flash"]
            for row in self.run([f"{deepest}"], kv, flash):
                self.keep(best, row)
        self.known[kv] = best
        return best

    @staticmethod
    def keep(best, row):
        key = (row["what"], row["depth"], row["sessions"])
        if key not in best or row["tokens_per_s_best"] > best[key]["tokens_per_s_best"]:
            best[key] = row

    def run(self, cases, kv, flash):
        command = [self.options.peers_python, ROOT / "tests/bench/llama_peer.py", "--model",
                   self.options.model, "--threads", os.cpu_count(), "--rounds",
                   1 if self.options.quick else 3, "--kv", kv, "--flash", flash, "--extra-buffers"]
        what = f"{LLAMA}, {kv} KV, flash attention {'on' if flash else 'off'}"
        failed = len(self.report.failures)
        rows = self.report.json_lines(what, command + [self.extra] + cases, timeout_s=900)
        if len(self.report.failures) > failed and self.extra:
            say("  once more without llama.cpp's repacked weights")
            self.extra = 0
            del self.report.failures[failed:]
            rows = self.report.json_lines(what, command + [0] + cases, timeout_s=900)
        return rows


def depth_cases(options):
    if options.quick:
        return ["128", "1000", "1000x4"]
    return ["128", "512", "1024", "2048", "4096", "8000", "8000x8"]


def best_of(runs):
    """Rows of several runs, the faster one of each configuration."""
    best = {}
    for row in runs:
        key = (row["what"], row["depth"], row.get("sessions", 1))
        if key not in best or row["tokens_per_s_best"] > best[key]["tokens_per_s_best"]:
            best[key] = row
    return best


def engine(options, report):
    """Prefill, compression and decode steps in process at each depth, against llama.cpp (--peers)."""
    cases = depth_cases(options)
    command = [BENCH / "engine_bench", "--model", options.model, "--rounds",
               2 if options.quick else 5, "--prefill-rounds", 1 if options.quick else 3]
    rows = report.json_lines("engine", command + cases)
    peers = {}
    if options.peers:
        peers["f16"] = options.peer.measure(cases)
        rows += report.json_lines("engine, once more", command + cases)
        for kv in sorted(set(options.peer_kv.split(",")) - {"f16"}):
            peers[kv] = options.peer.measure([cases[0]] + cases[-2:], kv)
    for (what, depth, sessions), row in best_of(rows).items():
        config = f"depth {depth}, {sessions} sessions, theta auto"
        speed = row["tokens_per_s_best"]
        more = {"median": row["tokens_per_s_median"], "depth": depth, "sessions": sessions}
        said = False
        for kv, best in peers.items():
            other = best.get((what, depth, sessions))
            if other is None:
                continue
            said = True
            report.emit(what, config, "tokens_per_s", speed, "tokens/s", f"{LLAMA} {kv} KV",
                        round(other["tokens_per_s_best"], 2),
                        round(speed / other["tokens_per_s_best"], 3), flash=other["flash"], **more)
        if not said:
            report.emit(what, config, "tokens_per_s", speed, "tokens/s", **more)
        if what == "prefill":
            emit_compression(report, config, depth, row)


def emit_compression(report, config, depth, row):
    # As the paper counts: over the time of the forward pass without compression.
    report.emit("compression", config, "share of prefill", row["compress_share_best"], "1",
                median=row["compress_share_median"], depth=depth)
    report.emit("bytes", config, "state", row["state_bytes"], "bytes", "dense bf16",
                row["dense_bytes"], round(row["ratio"], 3), depth=depth)


def stages(options, report):
    """What binds a decode step: GB/s and multiply-adds/s of each stage against this run's roofs."""
    def run(cases, *flags):
        command = [BENCH / "stages_bench", "--model", options.model, *flags, "--rounds"]
        return report.json_lines("stages " + " ".join(cases), command + [
            5 if options.quick else 30] + cases)

    rows = run(["128", "1000"] if options.quick else ["128", "8000", "8000x8"])
    for row in rows:
        if row["what"] == "roofs":
            report.emit("roof", "copy of 128 MiB, all cores, read and written", "rate",
                        row["copy_gb_per_s"], "GB/s")
            report.emit("roof", "reading 128 MiB, all cores", "rate", row["read_gb_per_s"], "GB/s")
            report.emit("roof", "prefill GEMM, 512 rows", "rate", row["gemm_gmadd_per_s"],
                        "G multiply-adds/s")
            copy = row["copy_gb_per_s"]
            continue
        config = f"{row['stage']} at depth {row['depth']}, {row['sessions']} sessions"
        report.emit("stage", config, "read", row["gb_per_s"], "GB/s", "copy in this run", copy,
                    row["of_copy"], ms=row["ms"], bytes=row["bytes"],
                    gmadd_per_s=row["gmadd_per_s"], of_gemm=row["of_gemm"], binds=row["binds"])
    deep = ["4000"] if options.quick else ["8000", "32000", "64000", "128000"]
    for row in run(deep, "--synthetic"):
        if row.get("stage") == "step":
            report.emit("decode_synthetic", f"depth {row['depth']}, made-up state, one stream",
                        "ns a token and step", round(row["ms"] * 1e6 / row["depth"], 1), "ns",
                        depth=row["depth"], ms=row["ms"], tokens_per_s=round(1000 / row["ms"], 2))


def codec(options, report):
    """Compression and verification of a whole state, at depths beyond the model's too."""
    for depth in ([2000] if options.quick else [8000, 32000, 128000]):
        for threads in (1, os.cpu_count()):
            rows = report.json_lines(f"codec {depth} x {threads}", [
                BENCH / "codec_bench", "--threads", threads, "--rounds",
                1 if options.quick or depth > 8000 else 5, "--tokens", depth])
            for row in rows:
                config = f"{depth} tokens, 30 layers, {threads} threads"
                for name in ("compress_ms", "compress_cpu_ms", "verify_ms"):
                    report.emit("codec", config, name, row[name], "ms", depth=depth)
                report.emit("codec", config, "compression, ns a token and layer",
                            round(row["compress_ms"] * 1e6 / depth / row["layers"], 1), "ns",
                            depth=depth)


def sessions(options, report):
    """Sessions that one GiB of state memory holds, all alive and 32 tokens further."""
    depth = 1000 if options.quick else 8000
    for share in (0.125, 0.07):
        rows = report.json_lines(f"sessions, page share {share}", [
            BENCH / "engine_bench", "--model", options.model, "--state-mib",
            128 if options.quick else 1024, "--page-share", share, "--steps", 32, depth])
        for row in (r for r in rows if r["what"] == "sessions"):
            report.emit("sessions", f"{row['state_mib']} MiB, {depth} tokens and 32 generated each, "
                        f"page share {share}", "live", row["sessions"], "sessions", "dense bf16",
                        row["dense_sessions"], round(row["sessions"] / row["dense_sessions"], 2),
                        pool_bytes=row["pool_bytes"], step_median_ms=row["step_median_ms"])
