"""Records tests/data/formats/<type>.bin: random row blocks and what the `gguf` package makes of them.

A file holds 8 row blocks (float types: 256 elements) of random bytes, then their elements as float32, both little-endian.
Every byte is random, except that the scales of blocks 0 and 1 have an ordinary size, and those of blocks 2 to 5 are NaN,
minus infinity, the smallest subnormal and minus zero (MXFP4: exponent bytes 0, 1, 254 and 255).

    pip install gguf numpy && python3 tests/oracles/record_formats.py tests/data/formats
"""

import sys
from pathlib import Path

import gguf
import gguf.quants
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "MXFP4"]
# Byte offsets of the f16 fields of a row block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    np.seterr(all="ignore")
    for seed, name in enumerate(TYPES):
        rng = np.random.default_rng(seed)
        qtype = gguf.GGMLQuantizationType[name]
        elems, size = gguf.GGML_QUANT_SIZES[qtype]
        blocks = rng.integers(0, 256, (8 if elems > 1 else 256, size), dtype=np.uint8)
        for offset in HALVES.get(name, []):
            blocks[2:6, offset:offset + 2] = np.array([[0x7e00], [0xfc00], [1], [0x8000]], np.uint16).view(np.uint8)
            blocks[:2, offset:offset + 2] = rng.normal(0, 0.02, (2, 1)).astype(np.float16).view(np.uint8)
        if name == "MXFP4":
            blocks[:6, 0] = [124, 127, 0, 1, 254, 255]
        values = gguf.quants.dequantize(blocks.reshape(-1), qtype).astype(np.float32)
        (folder / f"{name.lower()}.bin").write_bytes(blocks.tobytes() + values.tobytes())
        print(f"{name}: {blocks.shape[0]} blocks, {values.size} values, {np.isnan(values).sum()} NaN")


if __name__ == "__main__":
    main()
