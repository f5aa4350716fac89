#!/usr/bin/env python3
"""LoRA adapters in Colibri, in llama.cpp, and merged into the weights.

    compare_lora.py DUMP_LOGITS COLIBRI MODEL.gguf [SEED]

DUMP_LOGITS is build/release/tests/dump_logits, MODEL a dense llama model (SmolLM2). Needs numpy, gguf and
llama-cpp-python. Makes random adapters with convert_lora_to_gguf.py's keys and names (all weights of layers, or
attention alone; F32, F16 and Q8_0; with alpha and without), and prints for each root-mean-square differences of all
logits of a text (each row centred):
  change    what the adapter changes: float32 weights with it merged in, against the model
  float     Colibri with the adapter on the model's weights as F32, from the merged ones: the adapter's math alone
  ours      Colibri with the adapter on the model, from the merged ones: the rounding of activations, too
  llama     llama.cpp with the adapter on the model, from the same
and for how many bytes their greedy texts agree. Ends with 1 if `float` is more than a ten thousandth of the change, or
`ours` more than a quarter above `llama` (rounding differs by that much from text to text).
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from llama_cpp import Llama

TEXT = ("The lighthouse keeper counted the ships that passed in the night, and wrote down their names. In the morning he "
        "compared his list with the harbour's, and found that one of them had never been built.")
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
ALL = ATTENTION + ("ffn_gate", "ffn_up", "ffn_down")
T = gguf.GGMLQuantizationType
CASES = [  # name, parts, rank, alpha (None: no key), type, strength
    ("all weights, rank 8, alpha 16, f32", ALL, 8, 16.0, T.F32, 1.0),
    ("attention, rank 32, alpha 8, f16", ATTENTION, 32, 8.0, T.F16, 1.5),
    ("all weights, rank 32, alpha 32, q8_0", ALL, 32, 32.0, T.Q8_0, 0.5),
    ("all weights, rank 4, no alpha, f32", ALL, 4, None, T.F32, -0.75),
]


def write_gguf(path, arch, fields, tensors):
    writer = gguf.GGUFWriter(path, arch)
    for name, value, kind in fields:
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, kind)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def keys_of(reader):
    return [(f.name, f.contents(), f.types[0]) for f in reader.fields.values()
            if not f.name.startswith("GGUF.") and f.name != "general.architecture"]


def make(reader, work, case, rng):
    """The adapter's path, and that of the model with it merged in, as F32."""
    _, parts, rank, alpha, kind, strength = case
    adapter, merged, f32 = [], [], gguf.GGUFValueType.FLOAT32
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.name.startswith("blk.") and t.name.split(".")[2] in parts:
            n_out, n_in = w.shape
            factor = strength * (alpha / rank if alpha else 1.0)
            # about as large as a tenth of the weight
            size = 0.1 * float(w.std()) / (np.sqrt(rank) * abs(factor))
            a = rng.standard_normal((rank, n_in), dtype=np.float32)
            b = (rng.standard_normal((n_out, rank)) * size).astype(np.float32)
            b_kind = kind if rank % 32 == 0 else (kind if kind != T.Q8_0 else T.F16)
            qa, qb = gguf.quants.quantize(a, kind), gguf.quants.quantize(b, b_kind)
            adapter += [(t.name + ".lora_a", qa, kind), (t.name + ".lora_b", qb, b_kind)]
            a, b = gguf.quants.dequantize(qa, kind), gguf.quants.dequantize(qb, b_kind)
            w = (w.astype(np.float64) + factor * (b.astype(np.float64) @ a.astype(np.float64))).astype(np.float32)
        merged.append((t.name, w, T.F32))
    string = gguf.GGUFValueType.STRING
    fields = [("general.type", "adapter", string), ("adapter.type", "lora", string), ("general.name", "random", string)]
    if alpha:
        fields.append(("adapter.lora.alpha", alpha, f32))
    write_gguf(os.path.join(work, "adapter.gguf"), "llama", fields, adapter)
    write_gguf(os.path.join(work, "merged.gguf"), "llama", keys_of(reader), merged)
    return os.path.join(work, "adapter.gguf"), os.path.join(work, "merged.gguf")


def greedy_llama(llm, ids, n):
    llm.reset()
    llm.eval(ids)
    out = []
    for _ in range(n):
        out.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
        llm.eval(out[-1:])
    return out


def main():
    dump, colibri, model = sys.argv[1:4]
    rng = np.random.default_rng(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    reader = gguf.GGUFReader(model)
    plain = Llama(model, n_ctx=256, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1, flash_attn=False)
    ids = plain.tokenize(TEXT.encode(), add_bos=False)
    del plain
    failed = False
    with tempfile.TemporaryDirectory() as work:
        np.array(ids, dtype=np.uint32).tofile(os.path.join(work, "ids"))

        def ours(path, *settings):
            out = os.path.join(work, "out")
            subprocess.run([dump, path, os.path.join(work, "ids"), out, "ctx=256", "threads=1", *settings], check=True)
            return np.fromfile(out, dtype=np.float32).reshape(len(ids), -1).astype(np.float64)

        def rms(a, b):
            d = a - b
            return float(np.sqrt(((d - d.mean(axis=1, keepdims=True)) ** 2).mean()))

        base, plain = ours(model), os.path.join(work, "plain.gguf")
        write_gguf(plain, "llama", keys_of(reader), [
            (t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32), T.F32) for t in reader.tensors])
        for case in CASES:
            adapter, merged = make(reader, work, case, rng)
            exact = ours(merged, "kv-type=f32")
            got = ours(model, f"lora={adapter}={case[5]}")
            floats = ours(plain, f"lora={adapter}={case[5]}", "kv-type=f32")
            llm = Llama(model, n_ctx=256, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1,
                        flash_attn=False, lora_path=adapter, lora_scale=case[5])
            llm.eval(ids)
            theirs = np.array(llm.scores[:len(ids)], dtype=np.float64)
            n = 32
            want = llm.detokenize(greedy_llama(llm, ids, n))
            run = subprocess.run([colibri, "run", "-m", model, "--raw", "--temp", "0", "-n", str(n), "--ctx", "256", "--threads", "1",
                                  "--ignore-eos", "--lora", f"{adapter}={case[5]}", "--json", TEXT],
                                 check=True, capture_output=True)
            text = json.loads(run.stdout)["text"].encode()
            same = len(os.path.commonprefix([text, want]))
            change, off, off_llama = rms(exact, base), rms(got, exact), rms(theirs, exact)
            bad = off > 1.25 * off_llama or rms(floats, exact) > 1e-4 * change
            failed = failed or bad
            print(f"{case[0]}: change {change:.4f}, float {rms(floats, exact):.1e}, ours {off:.4f}, llama {off_llama:.4f}, ours to llama "
                  f"{rms(got, theirs):.4f}; greedy text: {same} of {len(want)} bytes the same{' BAD' if bad else ''}")
            del llm
    return failed


if __name__ == "__main__":
    sys.exit(main())
