"""Writes the seeds of tests/fuzz/fuzz_model.c: whole models of a few kilobytes, one layer each. Needs only Python.

Run: python3 tests/oracles/make_model_seeds.py OUTDIR
"""
import pathlib
import struct
import sys

EMBD, HEADS, KV_HEADS, HEAD_DIM, FF, EXPERTS, USED, TOKENS = 32, 2, 1, 16, 32, 4, 2, 20
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0 = 0, 1, 2, 8
BLOCKS = {TYPE_F32: (1, 4), TYPE_F16: (1, 2), TYPE_Q4_0: (32, 18), TYPE_Q8_0: (32, 34)}

state = 1


def random():
    """A float in [-0.5, 0.5), the same on every machine."""
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 40) / 2**24 - 0.5


def half(x):
    return struct.pack("<e", x)


def row(kind, n):
    if kind == TYPE_F32:
        return b"".join(struct.pack("<f", random()) for _ in range(n))
    if kind == TYPE_F16:
        return b"".join(half(random()) for _ in range(n))
    out = b""
    for _ in range(n // 32):
        quants = bytes(int((random() + 0.5) * 256) for _ in range(16 if kind == TYPE_Q4_0 else 32))
        out += half(0.05 if kind == TYPE_Q4_0 else 0.004) + quants
    return out


def text(s):
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STRING:
        return text(v.encode())
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], v)


def array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(value(kind, v) for v in items)


def model(arch, moe, kind, *, bias=False, qk=None, stacked=True, fused=False, shared=False, tied=False, more=()):
    keys = [("general.architecture", STRING, arch)]
    numbers = dict(block_count=1, context_length=64, embedding_length=EMBD, feed_forward_length=FF)
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.dimension_count": HEAD_DIM}
    if moe:
        numbers |= dict(expert_count=EXPERTS, expert_used_count=USED, expert_feed_forward_length=FF)
    if shared:
        numbers |= dict(expert_shared_feed_forward_length=FF)
    keys += [(f"{arch}.{k}", U32, v) for k, v in numbers.items()]
    keys += [(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5), (f"{arch}.rope.freq_base", F32, 10000.0)]
    keys += [(f"{arch}.{k}", t, v) for k, t, v in more]
    tokens = [chr(97 + i) for i in range(TOKENS - 2)] + ["<s>", "</s>"]
    body = b"".join(text(k.encode()) + struct.pack("<I", t) + value(t, v) for k, t, v in keys)
    vocabulary = [("tokenizer.ggml.model", STRING, value(STRING, "gpt2")),
                  ("tokenizer.ggml.pre", STRING, value(STRING, "gpt-2")),
                  ("tokenizer.ggml.tokens", ARRAY, array(STRING, tokens)),
                  ("tokenizer.ggml.token_type", ARRAY, array(U32, [1] * (TOKENS - 2) + [3, 3])),
                  ("tokenizer.ggml.merges", ARRAY, array(STRING, [])),
                  ("tokenizer.ggml.bos_token_id", U32, value(U32, TOKENS - 2)),
                  ("tokenizer.ggml.eos_token_id", U32, value(U32, TOKENS - 1))]
    body += b"".join(text(k.encode()) + struct.pack("<I", t) + v for k, t, v in vocabulary)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = [("token_embd", kind, EMBD, TOKENS), ("output_norm", TYPE_F32, EMBD)]
    if not tied:
        tensors += [("output", kind, EMBD, TOKENS)]
    layer = [("attn_norm", TYPE_F32, EMBD), ("ffn_norm", TYPE_F32, EMBD), ("attn_output", kind, q, EMBD)]
    if fused:
        layer += [("attn_qkv", kind, EMBD, q + 2 * kv)]
    else:
        layer += [("attn_q", kind, EMBD, q), ("attn_k", kind, EMBD, kv), ("attn_v", kind, EMBD, kv)]
    if qk:
        layer += [("attn_q_norm", TYPE_F32, q if qk == "full" else HEAD_DIM),
                  ("attn_k_norm", TYPE_F32, kv if qk == "full" else HEAD_DIM)]
    if not moe:
        layer += [("ffn_gate", kind, EMBD, FF), ("ffn_up", kind, EMBD, FF), ("ffn_down", kind, FF, EMBD)]
    else:
        layer += [("ffn_gate_inp", TYPE_F32, EMBD, EXPERTS)]
        if fused:
            layer += [("ffn_gate_up_exps", kind, EMBD, 2 * FF, EXPERTS), ("ffn_down_exps", kind, FF, EMBD, EXPERTS)]
        elif stacked:
            layer += [(f"ffn_{p}_exps", kind, EMBD, FF, EXPERTS) for p in ("gate", "up", "down")]
        else:
            layer += [(f"ffn_{p}.{e}", kind, EMBD, FF) for p in ("gate", "up", "down") for e in range(EXPERTS)]
        if shared:
            layer += [(f"ffn_{p}_shexp", kind, EMBD, FF) for p in ("gate", "up", "down")]
    tensors += [("blk.0." + name, *rest) for name, *rest in layer]
    tensors = [(name + ".weight", *rest) for name, *rest in tensors]
    if bias:
        tensors += [(f"blk.0.attn_{p}.bias", TYPE_F32, n) for p, n in (("q", q), ("k", kv), ("v", kv))]
    infos, data = b"", b""
    for name, t, *ne in tensors:
        infos += text(name.encode()) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        infos += struct.pack("<IQ", t, len(data))
        rows = 1
        for n in ne[1:]:
            rows *= n
        data += b"".join(row(t, ne[0]) for _ in range(rows))
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys) + len(vocabulary)) + body + infos
    return head + bytes(-len(head) % 32) + data


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    granite = [("embedding_scale", F32, 2.0), ("residual_scale", F32, 0.5), ("attention.scale", F32, 0.3),
               ("logit_scale", F32, 4.0)]
    gating = [("expert_gating_func", U32, 2), ("expert_weights_norm", BOOL, True), ("expert_weights_scale", F32, 1.5)]
    models = {
        "llama": model("llama", False, TYPE_Q4_0),
        "llama-f32": model("llama", False, TYPE_F32, tied=True, more=[("rope.scaling.type", STRING, "linear"),
                                                                      ("rope.scaling.factor", F32, 4.0)]),
        "mixtral-single": model("llama", True, TYPE_Q4_0, stacked=False),
        "qwen2": model("qwen2", False, TYPE_Q8_0, bias=True),
        "qwen3": model("qwen3", False, TYPE_F16, qk="head", tied=True),
        "qwen3moe": model("qwen3moe", True, TYPE_Q4_0, qk="head", more=gating),
        "olmoe": model("olmoe", True, TYPE_Q8_0, qk="full", more=[("expert_gating_func", U32, 3)]),
        "granitemoe": model("granitemoe", True, TYPE_Q4_0, fused=True, shared=True, tied=True, more=granite),
    }
    for name, data in models.items():
        (out / name).write_bytes(data)


if __name__ == "__main__":
    main()
