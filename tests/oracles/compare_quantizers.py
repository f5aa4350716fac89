"""Compares Colibri's quantizers with ggml's on a real model, without any engine of ours: RMS error of the weights, and
what the error does to the model's predictions.

Every F16 matrix of MODEL is quantized, dequantized and written back as F16; llama.cpp then evaluates the result.
Reported are the relative RMS error of the weights, the mean Kullback-Leibler divergence of the next-token
distributions from those of the original (second half of each of 8 512-token chunks), and the mean negative
log-likelihood of the text.

    pip install gguf numpy llama-cpp-python
    python3 compare_quantizers.py PLUGIN_DIR MODEL.gguf TEXT.txt TYPE...

PLUGIN_DIR holds Colibri's format-*.so files.
"""

import ctypes as C
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import gguf.quants
import llamacpp
import numpy as np

CHUNK, CHUNKS = 512, 8
QUANTIZE = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p)


class Format(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("gguf_type", C.c_uint32), ("name", C.c_char_p),
                ("block_elems", C.c_uint32), ("block_bytes", C.c_uint32), ("layout", C.c_uint32),
                ("act_elems", C.c_uint32), ("act_bytes", C.c_uint32), ("act", C.c_char_p), ("dequantize", C.c_void_p),
                ("quantize", QUANTIZE)]


class Plugin(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("note", C.c_void_p), ("init", C.c_void_p),
                ("get", C.CFUNCTYPE(C.c_void_p, C.c_char_p, C.c_uint32))]


def colibri_formats(folder: Path) -> dict:
    found = {}
    for path in folder.glob("format-*.so"):
        stem = path.stem.removeprefix("format-")
        plugin = Plugin.in_dll(C.CDLL(str(path)), f"colibri_plugin_colibri_format_{stem}")
        index = 0
        while address := plugin.get(b"colibri.format/1", index):
            found[Format.from_address(address).name.decode()] = Format.from_address(address)
            index += 1
    return found


def ggml_library():
    spec = importlib.util.find_spec("llama_cpp")
    lib = C.CDLL(str(Path(spec.origin).parent / "lib" / "libggml-base.so"))
    lib.ggml_quantize_chunk.restype = C.c_size_t
    lib.ggml_quantize_chunk.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_int64, C.c_void_p]
    return lib


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    top = rows.max(axis=1, keepdims=True)
    return rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))


def evaluate(path: Path, chunks: list) -> list:
    llm = llamacpp.load(str(path))
    return [log_softmax(llamacpp.logits(llm, c)[CHUNK // 2:CHUNK - 1]) for c in chunks]


def main() -> None:
    folder, model, text, types = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    formats, lib = colibri_formats(folder), ggml_library()
    tensors = [t for t in gguf.GGUFReader(str(model)).tensors
               if t.tensor_type == gguf.GGMLQuantizationType.F16 and len(t.shape) > 1 and t.shape[0] % 256 == 0]
    llm = llamacpp.load(str(model))
    ids = llm.tokenize(text.read_bytes(), add_bos=False)
    chunks = [ids[k * CHUNK:(k + 1) * CHUNK] for k in range(CHUNKS)]
    assert len(chunks[-1]) == CHUNK
    del llm
    reference = evaluate(model, chunks)

    def likelihood(predicted: list) -> float:
        return float(np.mean([-p[np.arange(len(p)), c[CHUNK // 2 + 1:]].mean() for p, c in zip(predicted, chunks)]))

    def by_colibri(f: Format, x: np.ndarray, cols: int, out: np.ndarray) -> None:
        assert f.quantize(x.ctypes.data, out.ctypes.data, x.size, None) == 0

    def by_ggml(f: Format, x: np.ndarray, cols: int, out: np.ndarray) -> None:
        lib.ggml_quantize_chunk(f.gguf_type, x.ctypes.data, out.ctypes.data, 0, x.size // cols, cols, None)

    print(f"{len(tensors)} matrices, {len(chunks)} chunks, original: nll {likelihood(reference):.4f}")
    with tempfile.TemporaryDirectory() as scratch:
        for name in types:
            for label, quantize in (("colibri", by_colibri), ("ggml", by_ggml)):
                f, copy, error, size = formats[name], Path(scratch) / "copy.gguf", 0.0, 0.0
                shutil.copy(model, copy)
                data = np.memmap(copy, np.uint8, "r+")
                for t in tensors:
                    x = np.ascontiguousarray(t.data.astype(np.float32)).reshape(-1)
                    out = np.zeros(x.size // f.block_elems * f.block_bytes, np.uint8)
                    quantize(f, x, int(t.shape[0]), out)
                    y = gguf.quants.dequantize(out, gguf.GGMLQuantizationType[name]).reshape(-1)
                    error += float(((y.astype(np.float64) - x) ** 2).sum())
                    size += float((x.astype(np.float64) ** 2).sum())
                    data[t.data_offset:t.data_offset + 2 * x.size] = y.astype(np.float16).view(np.uint8)
                data.flush()
                del data
                predicted = evaluate(copy, chunks)
                kl = np.mean([(np.exp(a) * (a - b)).sum(axis=1).mean() for a, b in zip(reference, predicted)])
                print(f"{name:7} {label:8} weights {np.sqrt(error / size):.5f}  KL {kl:.5f}  "
                      f"nll {likelihood(predicted):.4f}", flush=True)


if __name__ == "__main__":
    main()
