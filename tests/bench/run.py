"""Runs the suites of tests/bench/run.sh. Each figure is the best of several rounds, and where there
is a baseline both sides are measured in this run."""
import argparse
import os
import pathlib
import sys
import time
import traceback

import engine_suites
import pair_suites
import scaling
from report import Report, say

RATIOS = pathlib.Path(__file__).with_name("ratios.json")
SUITES = {f.__name__: f for f in (
    engine_suites.engine, pair_suites.request, engine_suites.stages, engine_suites.codec,
    engine_suites.sessions, pair_suites.ttft, pair_suites.transfer, pair_suites.start,
    pair_suites.memory, scaling.scaling)}


def parse():
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--peers-python", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="build/bench", help="folder of results and plots")
    parser.add_argument("--quick", action="store_true", help="short prompts, few rounds")
    parser.add_argument("--peers", action="store_true", help="llama.cpp in the same run")
    parser.add_argument("--peer-kv", default="f16,q8_0,q4_0", metavar="TYPES",
                        help="llama.cpp's KV formats; f16 is always one of them")
    parser.add_argument("--isa", choices=["best", "avx2"], default="best",
                        help="hold both sides to an instruction set")
    parser.add_argument("--check", action="store_true", help="compare with the stored ratios")
    parser.add_argument("--store", action="store_true", help="store this run's ratios")
    parser.add_argument("--list", action="store_true", help="name the suites")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    return parser.parse_args()


def run_suites(options, report):
    for name in options.suites or SUITES:
        say(f"suite {name}")
        begin = time.monotonic()
        try:
            SUITES[name](options, report)
        except Exception:  # the others still run; the status says it
            report.fail(f"suite {name}", traceback.format_exc())
        say(f"suite {name}: {time.monotonic() - begin:.0f} s")


def draw(report):
    try:
        import plots
    except ImportError as error:
        report.fail("plots", str(error))
        return
    for path in plots.draw(report):
        say(f"plot {path}")


def main():
    options = parse()
    if options.list:
        for name, suite in SUITES.items():
            print(f"{name:10} {suite.__doc__}")
        return 0
    unknown = [s for s in options.suites if s not in SUITES]
    if unknown:
        sys.exit(f"no suite {unknown[0]}; there are {', '.join(SUITES)}")
    if options.isa == "avx2":  # ours, oneDNN's; llama.cpp's is a build of its own
        os.environ.update(AKV_ISA="avx2", DNNL_MAX_CPU_ISA="AVX2", ONEDNN_MAX_CPU_ISA="AVX2")
    report = Report(options.out, options.isa + ("-quick" if options.quick else ""))
    options.peer = engine_suites.Peer(options, report)
    run_suites(options, report)
    draw(report)
    if options.check:
        report.check(RATIOS)
    if options.store:
        report.store(RATIOS)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
