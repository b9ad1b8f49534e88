#!/usr/bin/env python3
"""Writes tests/golden/random_gguf: tiny random models of each architecture and their logits.

The models cover what the default model does not use: separate heads, Llama-3 frequency factors,
linear RoPE scaling, biases, query/key norms, an explicit head_dim, every tensor type. For each,
NAME.gguf and NAME.json with token ids and two sets of logits of the last position:
  llama_cpp  from llama.cpp, KV in f32. Its products round the activations to the weights' companion
             type (8 bits for the quantised types, 16 for F16 and BF16), so only F32 files are tight.
  exact      from the float64 forward below over gguf-py's dequantised weights.
The two are compared here before anything is written, so that neither is trusted alone.

Run once, by hand (the files are kept): needs numpy, gguf==0.19.0, llama-cpp-python==0.3.36.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

IDS = [(i * 37 + 11) % 256 for i in range(48)]


def byte_alphabet():
    """GPT-2's printable stand-ins of the 256 bytes, in byte order."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(other)) for b in range(256)]


def k_quant_rows(rng, rows, cols, kind, scale):
    """Random blocks of a K type: gguf-py expands these but does not make them."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    f16 = lambda x: np.full((raw.shape[0], 1), x, dtype=np.float16).view(np.uint8)
    if kind == T.Q6_K:  # d * sc * (q - 32), sc in int8
        raw[:, 208:210] = f16(scale / (64 * 18))
    else:  # d * sc * q - dmin * m: centred by the ratio of d to dmin
        levels = 7.5 if kind == T.Q4_K else 15.5
        d = scale / (32 * levels)
        raw[:, 0:2] = f16(d)
        raw[:, 2:4] = f16(d * levels)
    return raw.reshape(rows, -1)


class Random:
    """Adds random tensors to a GGUF and keeps what a reader would expand them to."""

    def __init__(self, path, arch, seed):
        self.writer = gguf.GGUFWriter(path, arch)
        self.rng = np.random.default_rng(seed)
        self.weights = {}

    def matrix(self, name, rows, cols, kind=T.F32, scale=None):
        scale = scale or 1.0 / np.sqrt(cols)
        if kind in (T.Q4_K, T.Q5_K, T.Q6_K):
            data = k_quant_rows(self.rng, rows, cols, kind, scale)
        else:
            values = (self.rng.standard_normal((rows, cols)) * scale).astype(np.float32)
            data = gguf.quants.quantize(values, kind)
        self.weights[name] = gguf.quants.dequantize(data, kind).astype(np.float64)
        self.writer.add_tensor(name, data, raw_dtype=kind)

    def vector(self, name, size, mean=1.0, spread=0.2):
        values = (mean + self.rng.standard_normal(size) * spread).astype(np.float32)
        self.weights[name] = values.astype(np.float64)
        self.writer.add_tensor(name, values)


def add_vocab(w):
    pieces = byte_alphabet() + ["\u0120t", "<|end|>", "<|turn|>"]
    pieces += [f"<|spare{i}|>" for i in range(264 - len(pieces))]
    types = [1] * 257 + [3] * (len(pieces) - 257)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(pieces)
    w.add_token_types(types)
    w.add_token_merges(["\u0120 t"])
    w.add_bos_token_id(257)
    w.add_eos_token_id(257)
    w.add_eot_token_id(258)
    w.add_add_bos_token(False)
    return len(pieces)


def rope(x, base, half_pairs, factors, scale):
    """x [n, heads, D] at positions 0..n-1."""
    n, _, dim = x.shape
    freq = base ** (-np.arange(0, dim, 2) / dim) / factors
    angle = np.arange(n)[:, None] * scale * freq[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    out = np.empty_like(x)
    a = slice(0, dim // 2) if half_pairs else slice(0, dim, 2)
    b = slice(dim // 2, dim) if half_pairs else slice(1, dim, 2)
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., a] * sin + x[..., b] * cos
    return out


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def forward(W, c):
    """Logits of the last of IDS, float64."""
    n, H, Hq, D = len(IDS), c["kv_heads"], c["heads"], c["head_dim"]
    factors = W.get("rope_freqs.weight", np.ones(D // 2))
    turn = lambda x: rope(x, c["base"], c["half_pairs"], factors, c.get("scale", 1.0))
    x = W["token_embd.weight"][IDS]
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for i in range(c["layers"]):
        w = lambda role: W[f"blk.{i}.{role}"]
        h = rms(x, w("attn_norm.weight"), c["eps"])
        q, k, v = (h @ w(f"attn_{r}.weight").T for r in "qkv")
        if f"blk.{i}.attn_q.bias" in W:
            q, k, v = (y + w(f"attn_{r}.bias") for y, r in zip((q, k, v), "qkv"))
        q, k, v = q.reshape(n, Hq, D), k.reshape(n, H, D), v.reshape(n, H, D)
        if f"blk.{i}.attn_q_norm.weight" in W:
            q = rms(q, w("attn_q_norm.weight"), c["eps"])
            k = rms(k, w("attn_k_norm.weight"), c["eps"])
        q, k = turn(q), turn(k)
        k, v = (np.repeat(y, Hq // H, axis=1) for y in (k, v))
        score = np.einsum("thd,shd->hts", q, k) / np.sqrt(D) + mask
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        x = x + np.einsum("hts,shd->thd", weight, v).reshape(n, -1) @ w("attn_output.weight").T
        h = rms(x, w("ffn_norm.weight"), c["eps"])
        gate = h @ w("ffn_gate.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T
    return W.get("output.weight", W["token_embd.weight"]) @ rms(x[-1], W["output_norm.weight"], c["eps"])


CASES = {
    # Llama 3.x: frequency factors, separate head, grouped queries.
    "llama_rope_freqs": dict(arch="llama", layers=2, d=64, ff=64, heads=4, kv_heads=2, head_dim=16,
                             base=500000.0, head=T.F32, embd=T.F32, rope_freqs=True, tol=2e-4),
    # Linear scaling, head_dim that is not d / heads, one query head per KV head, f16 products.
    "llama_linear_f16": dict(arch="llama", layers=2, d=64, ff=128, heads=2, kv_heads=2, head_dim=48,
                             base=10000.0, scale=0.25, embd=T.F16, matrix=T.F16, tol=2e-2),
    "qwen2": dict(arch="qwen2", layers=2, d=64, ff=96, heads=4, kv_heads=1, head_dim=16,
                  base=1000000.0, embd=T.F32, bias=True, tol=2e-4),
    "qwen2_bf16": dict(arch="qwen2", layers=2, d=64, ff=128, heads=4, kv_heads=2, head_dim=16,
                       base=1000000.0, embd=T.BF16, matrix=T.BF16, head=T.BF16, bias=True, tol=1e-1),
    "qwen3": dict(arch="qwen3", layers=2, d=64, ff=64, heads=4, kv_heads=2, head_dim=32,
                  base=1000000.0, embd=T.F32, qk_norm=True, tol=2e-4),
    # Every quantised type, one role each.
    "llama_mixed": dict(arch="llama", layers=1, d=256, ff=256, heads=4, kv_heads=2, head_dim=64,
                        base=10000.0, embd=T.Q8_0, tol=1.5e-1,
                        types=dict(attn_q=T.Q4_K, attn_k=T.Q5_K, attn_v=T.Q6_K, attn_output=T.Q4_0,
                                   ffn_gate=T.Q4_1, ffn_up=T.Q5_0, ffn_down=T.Q5_1)),
    # The same types in other roles, half pairs, head norms.
    "qwen3_mixed": dict(arch="qwen3", layers=1, d=256, ff=256, heads=4, kv_heads=1, head_dim=64,
                        base=1000000.0, embd=T.Q6_K, qk_norm=True, tol=1.5e-1,
                        types=dict(attn_q=T.Q5_1, attn_k=T.Q8_0, attn_v=T.Q4_0, attn_output=T.Q5_K,
                                   ffn_gate=T.Q6_K, ffn_up=T.Q4_K, ffn_down=T.Q4_1)),
}


def write_model(path, c, seed):
    r = Random(path, c["arch"], seed)
    w = r.writer
    w.add_name(path.stem)
    w.add_context_length(1024)
    w.add_block_count(c["layers"])
    w.add_embedding_length(c["d"])
    w.add_feed_forward_length(c["ff"])
    w.add_head_count(c["heads"])
    w.add_head_count_kv(c["kv_heads"])
    w.add_layer_norm_rms_eps(c["eps"])
    w.add_rope_freq_base(c["base"])
    w.add_rope_dimension_count(c["head_dim"])
    if c["head_dim"] * c["heads"] != c["d"]:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if "scale" in c:
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(1.0 / c["scale"])
    vocab = add_vocab(w)
    add_tensors(r, c, vocab)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return r.weights


def add_tensors(r, c, vocab):
    d, q_dim, kv_dim = c["d"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
    kind = lambda role: c.get("types", {}).get(role, c.get("matrix", T.F32))
    r.matrix("token_embd.weight", vocab, d, c["embd"], scale=1.0 if "types" not in c else None)
    r.vector("output_norm.weight", d)
    if "head" in c:
        r.matrix("output.weight", vocab, d, c["head"])
    if c.get("rope_freqs"):
        r.vector("rope_freqs.weight", c["head_dim"] // 2, mean=3.0, spread=0.8)
    for i in range(c["layers"]):
        blk = f"blk.{i}."
        r.vector(blk + "attn_norm.weight", d)
        r.vector(blk + "ffn_norm.weight", d)
        for role, rows, cols in (("attn_q", q_dim, d), ("attn_k", kv_dim, d), ("attn_v", kv_dim, d),
                                 ("attn_output", d, q_dim), ("ffn_gate", c["ff"], d),
                                 ("ffn_up", c["ff"], d), ("ffn_down", d, c["ff"])):
            r.matrix(f"{blk}{role}.weight", rows, cols, kind(role))
        if c.get("bias"):
            for role, size in (("q", q_dim), ("k", kv_dim), ("v", kv_dim)):
                r.vector(f"{blk}attn_{role}.bias", size, mean=0.0, spread=0.5)
        if c.get("qk_norm"):
            r.vector(blk + "attn_q_norm.weight", c["head_dim"])
            r.vector(blk + "attn_k_norm.weight", c["head_dim"])


def llama_cpp_logits(path):
    import llama_cpp
    from llama_cpp import llama_cpp as c_api
    # Repacked weight buffers crash on matrices as narrow as these.
    defaults = c_api.llama_model_default_params
    def plain_buffers():
        params = defaults()
        params.use_extra_bufts = False
        return params
    c_api.llama_model_default_params = plain_buffers
    llm = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, n_threads=1,
                          type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
                          flash_attn=False)
    c_api.llama_model_default_params = defaults
    llm.eval(IDS)
    return np.array(llm.scores[len(IDS) - 1], dtype=np.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "random_gguf")
    out = parser.parse_args().out
    for seed, (name, case) in enumerate(CASES.items()):
        case = dict(case, eps=1e-5, half_pairs=case["arch"] != "llama")
        path = out / f"{name}.gguf"
        weights = write_model(path, case, seed)
        exact = forward(weights, case)
        theirs = llama_cpp_logits(path)
        apart = np.abs(exact - theirs).max()
        print(f"{name}: {path.stat().st_size} bytes, |logits| {np.abs(exact).max():.2f}, "
              f"llama.cpp apart {apart:.2e}")
        assert apart < case["tol"], name
        digits = lambda x: [float(f"{v:.7g}") for v in x]
        (out / f"{name}.json").write_text(json.dumps(
            {"ids": IDS, "llama_cpp_tolerance": case["tol"], "llama_cpp": digits(theirs),
             "exact": digits(exact)}) + "\n")


if __name__ == "__main__":
    main()
