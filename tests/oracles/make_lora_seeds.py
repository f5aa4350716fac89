"""Writes the seeds of tests/fuzz/fuzz_lora.c: adapters of a few kilobytes for the models of make_model_seeds.py.

Run: python3 tests/oracles/make_lora_seeds.py OUTDIR
"""
import pathlib
import struct
import sys

import make_model_seeds as m

Q, KV = m.HEADS * m.HEAD_DIM, m.KV_HEADS * m.HEAD_DIM
ATTENTION = [("attn_q", m.EMBD, Q), ("attn_k", m.EMBD, KV), ("attn_v", m.EMBD, KV), ("attn_output", Q, m.EMBD)]
DENSE = [("ffn_gate", m.EMBD, m.FF), ("ffn_up", m.EMBD, m.FF), ("ffn_down", m.FF, m.EMBD)]
ROUTER = [("ffn_gate_inp", m.EMBD, m.EXPERTS)]
EXPERTS = [(f"{name}_exps", n_in, n_out, m.EXPERTS) for name, n_in, n_out in DENSE]
SHARED = [(f"{name}_shexp", n_in, n_out) for name, n_in, n_out in DENSE]


def adapter(arch, weights, rank, kind_a=m.TYPE_F32, kind_b=m.TYPE_F32, alpha=4.0, more=()):
    keys = [("general.type", m.STRING, "adapter"), ("adapter.type", m.STRING, "lora"), ("general.architecture", m.STRING, arch)]
    keys += [("general.name", m.STRING, "seed")] + [(k, m.STRING, v) for k, v in more]
    if alpha is not None:
        keys += [("adapter.lora.alpha", m.F32, alpha)]
    body = b"".join(m.text(k.encode()) + struct.pack("<I", t) + m.value(t, v) for k, t, v in keys)
    tensors = []
    for name, n_in, n_out, *experts in weights:
        tensors += [(f"blk.0.{name}.weight.lora_a", kind_a, n_in, rank, *experts),
                    (f"blk.0.{name}.weight.lora_b", kind_b, rank, n_out, *experts)]
    infos, data = b"", b""
    for name, kind, *ne in tensors:
        infos += m.text(name.encode()) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        infos += struct.pack("<IQ", kind, len(data))
        rows = 1
        for n in ne[1:]:
            rows *= n
        data += b"".join(m.row(kind, ne[0]) for _ in range(rows))
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + body + infos
    return head + bytes(-len(head) % 32) + data


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    seeds = {
        "llama": adapter("llama", ATTENTION + DENSE, 2),
        "llama-f16": adapter("llama", ATTENTION[:1], 3, m.TYPE_F16, m.TYPE_F16, alpha=None),
        "llama-q8": adapter("llama", ATTENTION[:2], 32, m.TYPE_Q8_0, m.TYPE_Q4_0),
        "qwen3moe": adapter("qwen3moe", ATTENTION[:1] + ROUTER + EXPERTS, 2),
        "granitemoe": adapter("granitemoe", ROUTER + EXPERTS + SHARED, 1, m.TYPE_F16),
        "no-pair": adapter("llama", ATTENTION[:1], 2).replace(b"lora_b", b"lora_c"),
        "output": adapter("llama", [("output", m.EMBD, m.TOKENS)], 2),
        "activated": adapter("llama", ATTENTION[:1], 2, more=[("adapter.alora.invocation_tokens", "x")]),
    }
    for name, data in seeds.items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main()
