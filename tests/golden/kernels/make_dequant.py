#!/usr/bin/env python3
"""Writes dequant_<type>.bin: random blocks of each GGUF weight format and what the `gguf` package
expands them to. Layout, little-endian: u32 rows, u32 cols, the stored bytes, rows*cols f32."""

import pathlib
import struct

import gguf
import numpy as np

ROWS = 3
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Offsets of half-precision scales in a block: random bytes there would be NaN or infinite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def stored(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    cols = {1: 96, 32: 96, 256: 512}[block]
    if block == 1:
        values = rng.standard_normal((ROWS, cols)).astype(np.float32)
        return cols, gguf.quants.quantize(values, kind).view(np.uint8)
    data = rng.integers(0, 256, (ROWS * cols // block, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = (rng.standard_normal(len(data)) * 0.1).astype(np.float16)
        data[:, at:at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return cols, data.reshape(ROWS, -1)


def main():
    rng = np.random.default_rng(4)
    here = pathlib.Path(__file__).parent
    for name in TYPES:
        cols, data = stored(name, rng)
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
        assert values.shape == (ROWS, cols), (name, values.shape)
        with open(here / f"dequant_{name.lower()}.bin", "wb") as out:
            out.write(struct.pack("<II", ROWS, cols))
            out.write(np.ascontiguousarray(data).tobytes())
            out.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


if __name__ == "__main__":
    main()
