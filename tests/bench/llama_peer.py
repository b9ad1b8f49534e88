"""llama.cpp (PyPI llama-cpp-python) on the same model, threads and depths: JSON lines like those of
engine_bench. Run by run.sh --peers with the interpreter that has it."""
import argparse
import ctypes
import json
import time

import llama_cpp as lc


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--kv", default="f16", choices=["f16", "q8_0", "q4_0"])
    parser.add_argument("--flash", type=int, default=0)
    # Repacked weights: faster where they work, and llama.cpp's choice; they crash on some CPUs.
    parser.add_argument("--extra-buffers", type=int, default=1)
    parser.add_argument("cases", nargs="+", help="DEPTH[xSESSIONS]")
    return parser.parse_args()


TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


class Peer:
    """The low-level API: one model, one context for up to `sessions` sequences."""

    def __init__(self, arguments, cells, sessions):
        lc.llama_backend_init()
        how = lc.llama_model_default_params()
        how.use_extra_bufts = bool(arguments.extra_buffers)
        self.model = lc.llama_model_load_from_file(arguments.model.encode(), how)
        params = lc.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = sessions
        params.n_threads = params.n_threads_batch = arguments.threads
        params.type_k = params.type_v = TYPES[arguments.kv]
        params.flash_attn_type = arguments.flash
        if hasattr(params, "kv_unified"):
            params.kv_unified = False
        self.context = lc.llama_init_from_model(self.model, params)
        self.batch = lc.llama_batch_init(512, 0, sessions)

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
        assert status == 0, f"llama_decode: {status}"
        lc.llama_synchronize(self.context)

    def prefill(self, depth):
        ids = [i * 7919 % 40000 + 300 for i in range(depth)]
        for begin in range(0, depth, 512):
            part = ids[begin:begin + 512]
            self.decode([(t, begin + i, 0, begin + i == depth - 1) for i, t in enumerate(part)])

    def copy_to(self, sequence):
        """The state of sequence 0, saved and loaded as another's."""
        size = lc.llama_state_seq_get_size(self.context, 0)
        data = (ctypes.c_uint8 * size)()
        assert lc.llama_state_seq_get_data(self.context, data, size, 0) == size
        assert lc.llama_state_seq_set_data(self.context, data, size, sequence) > 0

    def forget_from(self, depth, sessions):
        memory = lc.llama_get_memory(self.context)
        for sequence in range(sessions):
            lc.llama_memory_seq_rm(memory, sequence, depth, -1)


def main():
    arguments = parse()
    for case in arguments.cases:
        depth, _, sessions = case.partition("x")
        depth, sessions = int(depth), int(sessions or 1)
        peer = Peer(arguments, (depth + arguments.steps + 64) * sessions, sessions)
        begin = time.perf_counter()
        peer.prefill(depth)
        seconds = time.perf_counter() - begin
        common = {"depth": depth, "kv": arguments.kv, "flash": arguments.flash}
        print(json.dumps({"what": "prefill", **common, "total_ms": seconds * 1000,
                          "tokens_per_s": depth / seconds}), flush=True)
        for sequence in range(1, sessions):
            peer.copy_to(sequence)
        times = []
        for _ in range(arguments.rounds):
            for step in range(arguments.steps + 1):
                begin = time.perf_counter()
                peer.decode([(1000 + step * 31 + s, depth + step, s, True)
                             for s in range(sessions)])
                if step:
                    times.append(time.perf_counter() - begin)
            peer.forget_from(depth, sessions)
        times.sort()
        best, median = times[0], times[len(times) // 2]
        print(json.dumps({"what": "decode", **common, "sessions": sessions,
                          "best_ms": best * 1000, "median_ms": median * 1000,
                          "tokens_per_s_best": sessions / best,
                          "tokens_per_s_median": sessions / median}), flush=True)
        lc.llama_free(peer.context)
        lc.llama_model_free(peer.model)


if __name__ == "__main__":
    main()
