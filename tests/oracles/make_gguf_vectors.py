"""GGUF files made by the `gguf` package, against which the reader and the writer are tested, and a reading of any file
by that package to compare with.

Needs: pip install gguf numpy
Run:   python3 make_gguf_vectors.py OUTDIR          writes all.gguf, odd.gguf and split-0000N-of-00003.gguf
       python3 make_gguf_vectors.py --read FILE     prints every key, value and tensor as the package reads them

all.gguf has every value type at its extremes, arrays of each, nested arrays, an alignment of 64 and tensors of one to
four dimensions; test_gguf.c reads it value by value and test_gguf_writer.c makes the same bytes. odd.gguf has what
`colibri inspect` must survive: terminal escapes, bytes that are not UTF-8, per-layer arrays, one tensor per expert, a
tensor type that does not exist.
"""
import hashlib
import pathlib
import sys

import gguf
import numpy as np

T = gguf.GGUFValueType

SCALARS = [
    ("u8", T.UINT8, [0, 255]),
    ("i8", T.INT8, [-128, 127]),
    ("u16", T.UINT16, [1, 65535]),
    ("i16", T.INT16, [-32768, 32767]),
    ("u32", T.UINT32, [2, 4294967295]),
    ("i32", T.INT32, [-2147483648, 2147483647]),
    ("f32", T.FLOAT32, [-0.5, 1e-5]),
    ("bool", T.BOOL, [False, True]),
    ("string", T.STRING, ["", "Gr\u00fc\u00dfe \u4f60\u597d\n"]),
    ("u64", T.UINT64, [3, 18446744073709551615]),
    ("i64", T.INT64, [-9223372036854775808, 9223372036854775807]),
    ("f64", T.FLOAT64, [1e300, -0.1]),
]


def write_all(path):
    w = gguf.GGUFWriter(path, "test")
    w.add_custom_alignment(64)
    for name, kind, values in SCALARS:
        for i, v in enumerate(values):
            w.add_key_value(f"scalar.{name}.{i}", v, kind)
        w.add_key_value(f"array.{name}", values, T.ARRAY, sub_type=kind)
    w.add_key_value("array.nested", [[1, 2, 3], [4]], T.ARRAY)
    w.add_key_value("array.nested_strings", [[["a", "bc"]], [[""], ["def"]]], T.ARRAY)

    n = lambda *shape: np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    w.add_tensor("one.weight", (n(5) / 4).astype(np.float32))
    w.add_tensor("two.weight", n(3, 4).astype(np.float16))
    w.add_tensor("three.ids", n(2, 3, 4).astype(np.int32))
    w.add_tensor("four.bytes", n(2, 1, 2, 3).astype(np.int8))
    w.add_tensor("q8.weight", (n(2, 68) % 251).astype(np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(w)


def write_odd(path):
    w = gguf.GGUFWriter(path, "odd")
    w.add_key_value("general.name", b"\x1b]0;title\x07\x1b[2J evil \xff", T.STRING)
    w.add_key_value("odd.caf\u00e9", b"\xc3\xa9\xc3", T.STRING)
    w.add_key_value("odd.nan", float("nan"), T.FLOAT64)
    w.add_key_value("odd.third", 1 / 3, T.FLOAT64)
    w.add_key_value("odd.max", 2**64 - 1, T.UINT64)
    w.add_string("odd.long", "\u00e4" * 150)
    w.add_array("odd.many", list(range(100)))
    w.add_uint32("odd.block_count", 2)
    w.add_array("odd.attention.head_count", [8, 4])
    w.add_uint32("odd.embedding_length", 32)
    w.add_uint32("odd.expert_count", 2)
    w.add_uint32("odd.expert_used_count", 1)
    w.add_uint32("odd.expert_shared_count", 1)
    zeros = lambda *shape: np.zeros(shape, dtype=np.float32)
    w.add_tensor("token_embd.weight", zeros(10, 32))
    w.add_tensor("output_norm.weight", zeros(32))
    for layer in range(2):
        b = f"blk.{layer}."
        w.add_tensor(b + "attn_q.weight", zeros(32, 32))
        w.add_tensor(b + "ffn_gate_inp.weight", zeros(2, 32))
        w.add_tensor(b + "ffn_up_shexp.weight", zeros(16, 32))
        for e in range(2):
            w.add_tensor(b + f"ffn_up.{e}.weight", zeros(16 << layer, 32))
    w.add_tensor("blk.1.ffn_up.weight", zeros(16, 32))
    w.add_tensor("mystery\x1b[31m", np.zeros(48, dtype=np.int8), raw_dtype=77)
    finish(w)


def write_split(folder):
    w = gguf.GGUFWriter(folder / "split.gguf", "test", split_max_tensors=2)
    w.add_name("split model")
    for i in range(5):
        w.add_tensor(f"blk.{i}.weight", np.full((2, 3), i, dtype=np.float32))
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def show(path):
    r = gguf.GGUFReader(path)
    for name, field in r.fields.items():
        if not name.startswith("GGUF."):
            print(name, "/".join(t.name for t in field.types), ascii(field.contents()))
    for t in r.tensors:
        print(t.name, t.tensor_type.name, [int(d) for d in t.shape], t.n_bytes, t.data_offset,
              hashlib.sha256(t.data.tobytes()).hexdigest()[:16])


if sys.argv[1] == "--read":
    show(sys.argv[2])
else:
    out = pathlib.Path(sys.argv[1])
    write_all(out / "all.gguf")
    write_odd(out / "odd.gguf")
    write_split(out)
