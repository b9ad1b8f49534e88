"""The suite of clusters: N prefill x M decode processes pinned to cores, and the model beside it."""
import os
import threading
import time

import pair_suites as pairs
import queueing

h = pairs.h


class Pinned:
    """What is started inside runs on one core; children inherit it."""

    def __init__(self, core):
        self.core = core

    def __enter__(self):
        self.before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})

    def __exit__(self, *_):
        os.sched_setaffinity(0, self.before)


def place(prefills, decodes, cores):
    """Prefill nodes from the first core on, decode nodes from the last one back."""
    return ([cores[i % len(cores)] for i in range(prefills)],
            [cores[-1 - j % len(cores)] for j in range(decodes)])


def measure(prefills, decodes, cores, tokens, load):
    daemons = []
    try:
        on_prefill, on_decode = place(prefills, decodes, cores)
        for core in on_prefill:
            with Pinned(core):
                daemons.append(h.prefill())
        for core in on_decode:
            with Pinned(core):
                daemons.append(h.decode())
        first = daemons[:prefills]
        door = h.decode("--max-sessions", 0, "--prefill",
                        ",".join(d.ready["control"] for d in first), "--decode",
                        ",".join(d.ready["control"] for d in daemons[prefills:]))
        daemons.append(door)
        h.wait_ready(door)
        pairs.Answer(door, tokens, 999, out=4)
        return closed_loop(door, tokens, load)
    finally:
        for daemon in reversed(daemons):
            daemon.close()


def closed_loop(door, tokens, load):
    answers, failures = [], []

    def client(number):
        try:
            for k in range(load.requests):
                answers.append(pairs.Answer(door, tokens, 1 + number * 100 + k, load.out))
        except Exception as error:  # a thread's own errors would be lost
            failures.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(load.clients)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    seconds = time.perf_counter() - begin
    count = len(answers)
    return {"ttft_s": sum(a.ttft_s for a in answers) / count,
            "itl_s": sum(a.itl_s for a in answers) / count,
            "requests_per_s": count / seconds}


def calibrate(options, report, tokens):
    """The costs of one core, in process: no request of the measured points enters the model."""
    with Pinned(sorted(os.sched_getaffinity(0))[0]):
        rows = report.json_lines("scaling, calibration", [
            pairs.BENCH / "engine_bench", "--model", options.model, "--threads", 1, "--rounds", 2,
            "--prefill-rounds", 2, tokens, f"{tokens}x4"])
    if not rows:
        return None
    steps = {r["sessions"]: r["median_ms"] / 1000 for r in rows if r["what"] == "decode"}
    prefill = next(r for r in rows if r["what"] == "prefill")
    slope = (steps[4] - steps[1]) / 3
    return queueing.Costs(prefill_s=(prefill["median_ms"] + prefill["logits_ms"]) / 1000,
                          step_base_s=max(0.0, steps[1] - slope), step_session_s=slope)


def emit(report, config, metric, value, other=None, **more):
    report.emit("scaling", config, metric, round(value, 5),
                "requests/s" if metric == "requests_per_s" else
                "sessions" if metric == "sessions" else "s",
                "model" if other is not None else None,
                round(other, 5) if other is not None else None,
                round(value / other, 3) if other else None, **more)


def scaling(options, report):
    """First token, time between tokens and rate against N prefill x M decode nodes, and a model."""
    tokens, out = (600, 16) if options.quick else (1000, 64)
    costs = calibrate(options, report, tokens)
    if costs is None:
        return
    cores = sorted(os.sched_getaffinity(0))
    load = queueing.Load(clients=4, requests=1 if options.quick else 3, out=out)
    for prefills, decodes in ((1, 1), (2, 1), (1, 2), (2, 2)):
        real = measure(prefills, decodes, cores, tokens, load)
        model = queueing.Cluster(*place(prefills, decodes, cores), costs, load).run()
        config = f"{prefills} x {decodes} on {len(cores)} cores, {load.clients} clients, measured"
        for metric, value in real.items():
            emit(report, config, metric, value, model[metric], prefills=prefills, decodes=decodes)
    for prefills in (1, 2, 4, 8):
        for decodes in (1, 2, 4, 8):
            big = queueing.Load(clients=4 * (prefills + decodes), requests=10, out=out)
            where = list(range(prefills)), list(range(prefills, prefills + decodes))
            model = queueing.Cluster(*where, costs, big).run()
            config = f"{prefills} x {decodes}, a core each, {big.clients} clients, model"
            for metric, value in model.items():
                emit(report, config, metric, value, prefills=prefills, decodes=decodes)
