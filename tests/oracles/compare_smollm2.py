#!/usr/bin/env python3
"""How far Colibri and llama.cpp are from float32 math, and from each other, on a quantized model.

    compare_smollm2.py DUMP_LOGITS MODEL.gguf SMOLLM2.json

DUMP_LOGITS is build/release/tests/dump_logits. Needs numpy, gguf and llama-cpp-python. For some of the recorded prompts with their
continuations it computes all logits in five ways and prints root-mean-square differences (each row of logits centred):
  ours      Colibri on the file
  exact     Colibri on the same weights as F32 with an f32 KV cache: no rounding of activations (the recorded logits of
            transformers on these weights agree with it)
  llama     llama.cpp, all tokens in one batch
  llama1    llama.cpp, one token at a time
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from llama_cpp import Llama


def to_f32(source, target):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for t in reader.tensors:
        writer.add_tensor(t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    dump, model, recorded = sys.argv[1:4]
    prompts = json.load(open(recorded))["prompts"]
    llama = Llama(model, n_ctx=512, logits_all=True, verbose=False, n_threads=2, flash_attn=False)
    with tempfile.TemporaryDirectory() as work:
        f32 = os.path.join(work, "f32.gguf")
        to_f32(model, f32)
        for k in (1, 4, 9):
            ids = np.array(prompts[k]["prompt_ids"] + prompts[k]["ids"], dtype=np.uint32)
            ids.tofile(os.path.join(work, "ids"))
            logits = {}
            for name, path, setting in (("ours", model, "ctx=512"), ("exact", f32, "kv-type=f32")):
                out = os.path.join(work, "out")
                subprocess.run([dump, path, os.path.join(work, "ids"), out, setting], check=True)
                logits[name] = np.fromfile(out, dtype=np.float32).reshape(len(ids), -1)
            llama.reset()
            llama.eval([int(i) for i in ids])
            logits["llama"] = np.array(llama.scores[:len(ids)]).copy()
            llama.reset()
            for i in ids:
                llama.eval([int(i)])
            logits["llama1"] = np.array(llama.scores[:len(ids)]).copy()

            def rms(a, b):
                d = logits[a] - logits[b]
                return float(np.sqrt(((d - d.mean(1, keepdims=True)) ** 2).mean()))

            pairs = [("ours", "exact"), ("llama", "exact"), ("llama1", "exact"), ("ours", "llama"), ("llama", "llama1")]
            print(f"prompt {k + 1}:", ", ".join(f"{a}-{b} {rms(a, b):.3f}" for a, b in pairs), flush=True)


main()
