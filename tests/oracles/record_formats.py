"""Records tests/data/formats: what other implementations make of the same blocks and the same weights.

<type>.bin: 8 row blocks (float types: 256 elements) of random bytes, then their elements as float32 by the `gguf`
package, both little-endian. Every byte is random, except that the scales of blocks 0 and 1 have an ordinary size, and
those of blocks 2 to 5 are NaN, minus infinity, the smallest subnormal and minus zero (MXFP4: exponents 0, 1, 254, 255).

rmse.tsv: one line per type for 65536 near-Gaussian weights: RMS error, relative to the RMS of the weights, of the
`gguf` package's quantizer, of ggml's, and of ggml's with importance weights (the error then weighted by them); "-"
where there is none. The weights are sums of integers, so that the C test can make the very same ones.

    pip install gguf numpy llama-cpp-python && python3 tests/oracles/record_formats.py tests/data/formats
"""

import ctypes
import importlib.util
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


COLS = 2048
MASK = (1 << 64) - 1


def splitmix64(state: int) -> tuple[int, int]:
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def weights(n: int) -> np.ndarray:
    """Sums of 12 uniform 16-bit integers, less their mean, in units of 2^-21: about normal, deviation 0.03."""
    state, out = 1, np.empty(n, np.float32)
    for i in range(n):
        total = 0
        for _ in range(3):
            state, z = splitmix64(state)
            total += (z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48)
        out[i] = np.float32(total - 6 * 65535) * np.float32(2.0**-21)
    return out


def importance() -> np.ndarray:
    """One weight per column, 1/16 to about 390, heavy-tailed."""
    k = (np.arange(COLS, dtype=np.int64) * 7919) % 97
    return ((k * k * k // 2304 + 1).astype(np.float32) / np.float32(16)).astype(np.float32)


def ggml():
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        return None
    lib = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml-base.so"))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_int64, ctypes.c_void_p]
    return lib


def rmse_line(name: str, x: np.ndarray, imp: np.ndarray, lib) -> str:
    qtype = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    tiled = np.tile(imp, x.size // COLS).astype(float)

    def error(blocks: np.ndarray, w) -> str:
        y = gguf.quants.dequantize(blocks.reshape(-1), qtype).reshape(-1).astype(float)
        return f"{np.sqrt((w * (y - x) ** 2).sum() / (w * x.astype(float) ** 2).sum()):.6f}"

    def by_ggml(w) -> np.ndarray:
        out = np.zeros(x.size // elems * size, np.uint8)
        lib.ggml_quantize_chunk(int(qtype), x.ctypes.data, out.ctypes.data, 0, x.size // COLS, COLS,
                                None if w is None else w.ctypes.data)
        return out

    try:
        by_gguf = error(gguf.quants.quantize(x, qtype), 1.0)
    except NotImplementedError:
        by_gguf = "-"
    return "\t".join([name, by_gguf, error(by_ggml(None), 1.0), error(by_ggml(imp), tiled)])


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

    lib = ggml()
    if lib is None:
        sys.exit("rmse.tsv needs llama-cpp-python")
    x, imp = weights(65536), importance()
    lines = [rmse_line(name, x, imp, lib) for name in TYPES if name not in ("F32", "F16", "BF16")]
    (folder / "rmse.tsv").write_text("type\tgguf\tggml\tggml-importance\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
