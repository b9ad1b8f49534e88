"""llama.cpp (PyPI llama-cpp-python) on the same model, threads and depths: JSON lines like those of
engine_bench. Run by run.sh --peers with the interpreter that has it.

The KV is filled once: prefill is timed at each depth as it passes, decode steps are timed there and
forgotten again. Several streams are the state of the first, saved and loaded as distinct sequences;
each has a stream of cells of its own, so that single steps read the first one's alone."""
import argparse
import ctypes
import json
import sys
import time

import llama_cpp as lc

TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
BATCH = 512


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--kv", default="f16", choices=list(TYPES))
    parser.add_argument("--flash", type=int, default=0)
    # Repacked weights: faster where they work, and llama.cpp's choice; they crash on some CPUs.
    parser.add_argument("--extra-buffers", type=int, default=1)
    parser.add_argument("cases", nargs="+", help="DEPTH[xSESSIONS]")
    return parser.parse_args()


def emit(row):
    print(json.dumps(row), flush=True)


class Context:
    """The low-level API: one context for up to `sessions` sequences of `cells` positions each."""

    def __init__(self, model, arguments, cells, sessions):
        params = lc.llama_context_default_params()
        params.n_ctx = cells * sessions
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = sessions
        params.n_threads = params.n_threads_batch = arguments.threads
        params.type_k = params.type_v = TYPES[arguments.kv]
        params.flash_attn_type = arguments.flash
        if hasattr(params, "kv_unified"):
            params.kv_unified = False
        self.context = lc.llama_init_from_model(model, params)
        if not self.context:
            sys.exit(f"llama.cpp makes no context of {sessions} x {cells} cells with {arguments.kv} "
                     f"KV and flash attention {'on' if arguments.flash else 'off'}")
        self.batch = lc.llama_batch_init(BATCH, 0, sessions)

    def decode(self, rows):
        """rows: (token, position, sequence, wants logits)."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = logits
        status = lc.llama_decode(self.context, self.batch)
        if status != 0:
            sys.exit(f"llama_decode ends with {status}")
        lc.llama_synchronize(self.context)

    def prefill(self, begin, end):
        """Positions begin to end of the made-up prompt of engine_bench; seconds."""
        start = time.perf_counter()
        for first in range(begin, end, BATCH):
            last = min(end, first + BATCH)
            self.decode([(i * 7919 % 40000 + 300, i, 0, i == end - 1) for i in range(first, last)])
        return time.perf_counter() - start

    def copy_to(self, sequence):
        """The state of sequence 0, saved and loaded as another's."""
        size = lc.llama_state_seq_get_size(self.context, 0)
        data = (ctypes.c_uint8 * size)()
        if lc.llama_state_seq_get_data(self.context, data, size, 0) != size:
            sys.exit("llama.cpp does not save its state")
        if lc.llama_state_seq_set_data(self.context, data, size, sequence) == 0:
            sys.exit("llama.cpp does not load its own state")

    def forget_from(self, depth, sequences):
        memory = lc.llama_get_memory(self.context)
        for sequence in sequences:
            lc.llama_memory_seq_rm(memory, sequence, depth, -1)

    def close(self):
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.context)


def time_decode(context, arguments, depth, sessions, common):
    times = []
    for _ in range(arguments.rounds):
        for step in range(arguments.steps + 1):
            begin = time.perf_counter()
            context.decode([(1000 + step * 31 + s, depth + step, s, True)
                            for s in range(sessions)])
            if step:
                times.append(time.perf_counter() - begin)
        context.forget_from(depth, range(sessions))
    times.sort()
    best, median = times[0], times[len(times) // 2]
    emit({"what": "decode", **common, "depth": depth, "sessions": sessions,
          "best_ms": best * 1000, "median_ms": median * 1000,
          "tokens_per_s_best": sessions / best, "tokens_per_s_median": sessions / median})


def main():
    arguments = parse()
    cases = [(int(d), int(s or 1)) for d, _, s in (c.partition("x") for c in arguments.cases)]
    cells = max(depth for depth, _ in cases) + arguments.steps + 64
    lc.llama_backend_init()
    how = lc.llama_model_default_params()
    if hasattr(how, "use_extra_bufts"):
        how.use_extra_bufts = bool(arguments.extra_buffers)
    model = lc.llama_model_load_from_file(arguments.model.encode(), how)
    if not model:
        sys.exit(f"llama.cpp does not load {arguments.model}")
    common = {"kv": arguments.kv, "flash": arguments.flash}
    context = Context(model, arguments, cells, max(sessions for _, sessions in cases))
    seconds, filled = 0.0, 0
    for depth in sorted({depth for depth, _ in cases}):
        seconds += context.prefill(filled, depth)
        filled = depth
        emit({"what": "prefill", **common, "depth": depth, "sessions": 1,
              "total_ms": seconds * 1000, "tokens_per_s_best": depth / seconds})
        for sessions in sorted(s for d, s in cases if d == depth):
            for sequence in range(1, sessions):
                context.copy_to(sequence)
            time_decode(context, arguments, depth, sessions, common)
            for sequence in range(1, sessions):
                context.forget_from(0, range(sequence, sequence + 1))
    context.close()
    lc.llama_model_free(model)


if __name__ == "__main__":
    main()
