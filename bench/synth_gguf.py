#!/usr/bin/env python3
"""Writes a GGUF file with the geometry of a real model and random weights: for speed tests where no model is at hand.

    synth_gguf.py MODEL TYPE FILE [--layers N] [--pure] [--seed N] [--skew X]

MODEL  olmoe (OLMoE-1B-7B), olmoe-q3 (the same sizes as a model of architecture qwen3moe, for engines that do not know
       olmoe), qwen3moe (Qwen3-30B-A3B; 48 layers, so use --layers), qwen3-0.6b, tiny (for tests)
TYPE   the type of all matrices: q4_0 q4_1 q5_0 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f16 bf16 f32.
       As in files made by llama-quantize the output matrix (or the embedding, where that serves as output) is Q6_K for
       types smaller than that; --pure gives it the type of the rest. Norms and the router are F32.

Weights have mean zero and a standard deviation of 1/sqrt(columns), norm weights are one: activations, router logits and
output logits stay of order one, and nothing overflows. The router then picks experts nearly uniformly and anew for each
token, which a trained one does not. --skew X scales each of its rows by exp(X * normal), so that some experts are picked
more often, and makes the first layer's attention 1 + 100 X times as strong: what it adds is an average over the context,
so neighbouring tokens share some of what the routers see, and some experts. X = 0.4 comes near a trained model.

FILE.json tells what was written, and active_bytes: the bytes of weights that one token reads (of the experts the used
share, of the embedding one row). Equal arguments give equal files. Python 3.9 or later, nothing else.
"""
import argparse
import json
import math
import random
import struct
import sys
import time
from pathlib import Path
from statistics import NormalDist

MODELS = {
    "olmoe": dict(arch="olmoe", layers=16, width=2048, heads=16, kv_heads=16, head=128, experts=64, used=8, ffn=1024,
                  vocab=50304, ctx=4096, theta=1e4, eps=1e-5, tied=False, pre="olmo", qk_norm="width"),
    "olmoe-q3": dict(arch="qwen3moe", layers=16, width=2048, heads=16, kv_heads=16, head=128, experts=64, used=8,
                     ffn=1024, vocab=50304, ctx=4096, theta=1e4, eps=1e-5, tied=False, pre="olmo", qk_norm="head"),
    "qwen3moe": dict(arch="qwen3moe", layers=48, width=2048, heads=32, kv_heads=4, head=128, experts=128, used=8,
                     ffn=768, vocab=151936, ctx=40960, theta=1e6, eps=1e-6, tied=False, pre="qwen2", qk_norm="head"),
    "qwen3-0.6b": dict(arch="qwen3", layers=28, width=1024, heads=16, kv_heads=8, head=128, experts=0, used=0,
                       ffn=3072, vocab=151936, ctx=40960, theta=1e6, eps=1e-6, tied=True, pre="qwen2", qk_norm="head"),
    "tiny": dict(arch="qwen3moe", layers=2, width=256, heads=4, kv_heads=2, head=64, experts=8, used=2, ffn=256,
                 vocab=1024, ctx=2048, theta=1e6, eps=1e-6, tied=False, pre="qwen2", qk_norm="head"),
}

# name: number in GGUF, values per block, bytes per block, general.file_type
TYPES = {
    "f32": (0, 1, 4, 0), "f16": (1, 1, 2, 1), "bf16": (30, 1, 2, 32), "q4_0": (2, 32, 18, 2), "q4_1": (3, 32, 20, 3),
    "q5_0": (6, 32, 22, 8), "q8_0": (8, 32, 34, 7), "q2_k": (10, 256, 84, 10), "q3_k": (11, 256, 110, 12),
    "q4_k": (12, 256, 144, 14), "q5_k": (13, 256, 176, 16), "q6_k": (14, 256, 210, 18), "iq4_nl": (20, 32, 18, 25),
    "iq4_xs": (23, 256, 136, 30), "mxfp4": (39, 32, 17, 38),
}
ALIGNMENT = 32
CHUNK = 16 << 20


def size_of(kind, shape):
    """Bytes of a tensor; shape has the row length last."""
    _, values, size, _ = TYPES[kind]
    if shape[-1] % values:
        raise SystemExit(f"synth_gguf.py: rows of {shape[-1]} values cannot be {kind}: its blocks have {values}")
    return math.prod(shape) // values * size


# ---- weights ---------------------------------------------------------------------------------------------------------
# A chunk is filled with random bytes; then the fields that may not be random are overwritten. One random byte per block
# picks its scale out of 256, by bytes.translate, which runs at memory speed without any library.

def half(value):
    return struct.pack("<e", value)


def bfloat(value):
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


NORMAL = [NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
# 256 block scales between 0.7 and 1.3 with both signs
SCALES = [(0.7 + 0.6 * (i // 2) / 127) * (1 - i % 2 * 2) for i in range(256)]


def put(buffer, start, stride, choice, packed):
    """Writes packed[choice[b]] at buffer[start + b * stride] for every block b."""
    for byte in range(len(packed[0])):
        buffer[start + byte::stride] = choice.translate(bytes(item[byte] for item in packed))


def fill_floats(rng, count, std, kind):
    pack = {"f32": lambda v: struct.pack("<f", v), "f16": half, "bf16": bfloat}[kind]
    width = TYPES[kind][2]
    buffer = bytearray(count * width)
    put(buffer, 0, width, rng.randbytes(count), [pack(v * std) for v in NORMAL])
    return buffer


# type: rms of an integer value (times that of the sub-block scale), offset of d, of the minimum and minimum / d
LAYOUT = {
    "q4_0": (4.64, 0, None, 0), "q4_1": (4.61, 0, 2, -7.5), "q5_0": (9.25, 0, None, 0), "q8_0": (73.3, 0, None, 0),
    "q2_k": (1.118 * 11.7, 80, 82, 1.5), "q3_k": (2.35 * 18.5, 108, None, 0), "q4_k": (4.61 * 48.4, 0, 2, 7.5),
    "q5_k": (9.23 * 48.4, 0, 2, 15.5), "q6_k": (18.5 * 90.5, 208, None, 0), "iq4_nl": (67.4, 0, None, 0),
    "iq4_xs": (67.4 * 18.5, 0, None, 0), "mxfp4": (5.85, None, None, 0),
}
NOT_MINUS_128 = bytes(0x81 if b == 0x80 else b for b in range(256))
SIX_BITS = bytes(b | 0xA0 for b in range(256))              # low six bits 32..63, the two above them 2 or 3
TWO_NIBBLES = bytes(b & 15 | (b & 15) << 4 for b in range(256))
BIG_NIBBLES = bytes((b & 7 | 8) * 17 for b in range(256))   # scale = minimum = 8..15
SIGNED = bytes((48 + b % 80) * (1 if b & 1 else -1) & 0xFF for b in range(256))


def fill_blocks(rng, count, std, kind):
    _, _, size, _ = TYPES[kind]
    rms, scale_at, min_at, ratio = LAYOUT[kind]
    buffer = bytearray(rng.randbytes(count * size))
    if kind == "mxfp4":  # its scale is a power of two: the deviation is right within a factor of 1.5
        exponent = round(math.log2(2 * std / rms)) + 127
        buffer[0::size] = bytes([exponent]) * count
        return buffer
    choice = rng.randbytes(count)
    put(buffer, scale_at, size, choice, [half(s * std / rms) for s in SCALES])
    if min_at is not None:  # scale and minimum are tied, so that the mean is zero
        put(buffer, min_at, size, choice, [half(s * std / rms * ratio) for s in SCALES])
    if kind == "q8_0":
        for at in range(2, size):
            buffer[at::size] = buffer[at::size].translate(NOT_MINUS_128)
    elif kind in ("q4_k", "q5_k"):
        for at in range(4, 8):
            six = rng.randbytes(count).translate(SIX_BITS)
            buffer[at::size] = six
            buffer[at + 4::size] = six
            buffer[at + 8::size] = rng.randbytes(count).translate(TWO_NIBBLES)
    elif kind == "q2_k":
        for at in range(16):
            buffer[at::size] = buffer[at::size].translate(BIG_NIBBLES)
    elif kind == "q6_k":
        for at in range(192, 208):
            buffer[at::size] = buffer[at::size].translate(SIGNED)
    return buffer


CONTEXT = 100  # see --skew above


def write_weights(file, rng, tensor):
    count = math.prod(tensor["shape"]) // TYPES[tensor["kind"]][1]
    fill = fill_floats if tensor["kind"] in ("f32", "f16", "bf16") else fill_blocks
    step = max(1, CHUNK // TYPES[tensor["kind"]][2])
    for done in range(0, count, step):
        file.write(fill(rng, min(step, count - done), tensor["std"], tensor["kind"]))


def write_router(file, rng, tensor, skew):
    for _ in range(tensor["shape"][0]):
        file.write(fill_floats(rng, tensor["shape"][1], tensor["std"] * math.exp(skew * rng.gauss(0, 1)), "f32"))


# ---- the model -------------------------------------------------------------------------------------------------------

def tensors_of(model, kind, pure):
    """The tensors in file order: name, shape (row length last), kind, std (None: all ones), read (bytes per token)."""
    width, heads, kv_heads, head = (model[k] for k in ("width", "heads", "kv_heads", "head"))
    small = TYPES[kind][2] / TYPES[kind][1] < TYPES["q6_k"][2] / TYPES["q6_k"][1]
    top = "q6_k" if small and not pure else kind
    out = []

    def add(name, shape, kind, gain=1.0, share=1.0):
        out.append(dict(name=name + ".weight", shape=shape, kind=kind, std=gain / math.sqrt(shape[-1]),
                        read=int(size_of(kind, shape) * share)))

    def ones(name, count):
        out.append(dict(name=name + ".weight", shape=(count,), kind="f32", std=None, read=4 * count))

    shape = (model["vocab"], width)
    if model["tied"]:
        add("token_embd", shape, top)
    else:
        add("token_embd", shape, kind, 0.5 * math.sqrt(width), 1 / model["vocab"])
    ones("output_norm", width)
    if not model["tied"]:
        add("output", shape, top)
    branch = 1 / math.sqrt(2 * model["layers"])  # what each block adds to the residual stream
    for layer in range(model["layers"]):
        at = f"blk.{layer}."
        ones(at + "attn_norm", width)
        add(at + "attn_q", (heads * head, width), kind)
        add(at + "attn_k", (kv_heads * head, width), kind)
        add(at + "attn_v", (kv_heads * head, width), kind)
        add(at + "attn_output", (width, heads * head), kind, branch)
        ones(at + "attn_q_norm", heads * head if model["qk_norm"] == "width" else head)
        ones(at + "attn_k_norm", kv_heads * head if model["qk_norm"] == "width" else head)
        ones(at + "ffn_norm", width)
        ffn = model["ffn"]
        if model["experts"]:
            experts, share = model["experts"], model["used"] / model["experts"]
            add(at + "ffn_gate_inp", (experts, width), "f32")
            add(at + "ffn_gate_exps", (experts, ffn, width), kind, 1, share)
            add(at + "ffn_up_exps", (experts, ffn, width), kind, 1, share)
            add(at + "ffn_down_exps", (experts, width, ffn), kind, 2 * branch, share)
        else:
            add(at + "ffn_gate", (ffn, width), kind)
            add(at + "ffn_up", (ffn, width), kind)
            add(at + "ffn_down", (width, ffn), kind, 2 * branch)
    return out


def vocabulary(count):
    """Tokens, their types and merges of a byte-level BPE: the 256 bytes, short letter groups, then filler words."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    tokens = [chr(b if b in printable else next(others)) for b in range(256)]
    known, merges = set(tokens), []

    def merge(left, right):
        if left + right not in known and len(tokens) < count - 3:
            merges.append(f"{left} {right}")
            known.add(left + right)
            tokens.append(left + right)

    space, letters = "\u0120", "etaoinsrhldcum"
    for first in space + letters:
        for second in letters:
            merge(first, second)
    for first in letters:
        for second in letters:
            merge(space + first, second)
    for first in letters[:8]:
        for second in letters[:8]:
            for third in letters[:8]:
                merge(space + first + second, third)
    filler = 0
    while len(tokens) < count - 3:
        tokens.append(f"{space}x{filler}")
        filler += 1
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return tokens, [1] * (count - 3) + [3] * 3, merges


# ---- the container ---------------------------------------------------------------------------------------------------

def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def number(value):
    return struct.pack("<II", 4, value)


def real(value):
    return struct.pack("<If", 6, value)


def string(value):
    return struct.pack("<I", 8) + text(value)


def strings(values):
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def numbers(values):
    return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)


def metadata(name, model, kind):
    arch = model["arch"]
    tokens, kinds, merges = vocabulary(model["vocab"])
    pairs = {
        "general.architecture": string(arch),
        "general.name": string(f"random {name} {kind}"),
        "general.description": string("random weights for speed tests"),
        "general.file_type": number(TYPES[kind][3]),
        "general.quantization_version": number(2),
        arch + ".context_length": number(model["ctx"]),
        arch + ".embedding_length": number(model["width"]),
        arch + ".block_count": number(model["layers"]),
        arch + ".feed_forward_length": number(model["ffn"]),
        arch + ".attention.head_count": number(model["heads"]),
        arch + ".attention.head_count_kv": number(model["kv_heads"]),
        arch + ".attention.layer_norm_rms_epsilon": real(model["eps"]),
        arch + ".rope.freq_base": real(model["theta"]),
        arch + ".vocab_size": number(model["vocab"]),
    }
    if arch != "olmoe":
        pairs[arch + ".attention.key_length"] = number(model["head"])
        pairs[arch + ".attention.value_length"] = number(model["head"])
    if model["experts"]:
        pairs[arch + ".expert_count"] = number(model["experts"])
        pairs[arch + ".expert_used_count"] = number(model["used"])
        if arch != "olmoe":
            pairs[arch + ".expert_feed_forward_length"] = number(model["ffn"])
    pairs.update({
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string(model["pre"]),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": numbers(kinds),
        "tokenizer.ggml.merges": strings(merges),
        "tokenizer.ggml.bos_token_id": number(model["vocab"] - 3),
        "tokenizer.ggml.eos_token_id": number(model["vocab"] - 1),
        "tokenizer.ggml.padding_token_id": number(model["vocab"] - 3),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", 7, False),
    })
    return pairs


def pad(file):
    file.write(bytes(-file.tell() % ALIGNMENT))


def header(pairs, tensors):
    out = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs))]
    out += [text(key) + value for key, value in pairs.items()]
    offset = 0
    for tensor in tensors:
        dims = tensor["shape"][::-1]
        out.append(text(tensor["name"]) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[tensor["kind"]][0],
                                                      offset))
        size = size_of(tensor["kind"], tensor["shape"])
        offset += size + -size % ALIGNMENT
    return b"".join(out)


def write(path, name, kind, layers=None, pure=False, seed=1, skew=0.0):
    """Writes path and path.json; returns what the latter says."""
    model = dict(MODELS[name])
    if layers:
        model["layers"] = layers
    tensors = tensors_of(model, kind, pure)
    for tensor in tensors:
        if skew and model["experts"] and tensor["name"] == "blk.0.attn_output.weight":
            tensor["std"] *= 1 + CONTEXT * skew
    path = Path(path)
    # Under another name until complete: half a file never looks like a model.
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(header(metadata(name, model, kind), tensors))
        pad(file)
        for tensor in tensors:
            rng = random.Random(f"{seed} {tensor['name']}")
            if tensor["std"] is None:
                file.write(struct.pack("<f", 1.0) * tensor["shape"][0])
            elif skew and tensor["name"].endswith("ffn_gate_inp.weight"):
                write_router(file, rng, tensor, skew)
            else:
                write_weights(file, rng, tensor)
            pad(file)
        size = file.tell()
    info = dict(model=name, type=kind, layers=model["layers"], pure=pure, seed=seed, skew=skew,
                params=sum(math.prod(t["shape"]) for t in tensors), file_bytes=size,
                tensor_bytes=sum(size_of(t["kind"], t["shape"]) for t in tensors),
                active_bytes=sum(t["read"] for t in tensors),
                kv_bytes_per_token_f16=4 * model["layers"] * model["kv_heads"] * model["head"])
    path.with_name(path.name + ".json").write_text(json.dumps(info) + "\n")
    part.rename(path)
    return info


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, help="number of layers instead of the model's own")
    parser.add_argument("--pure", action="store_true", help="one type for all matrices but the router")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skew", type=float, default=0.0, help="how uneven and how steady routing is (0.4: like a trained model)")
    args = parser.parse_args()
    if args.layers is not None and args.layers < 1:
        parser.error("--layers must be at least 1")
    start = time.monotonic()
    info = write(args.file, args.model, args.type, args.layers, args.pure, args.seed, args.skew)
    print(json.dumps(info))
    print(f"{args.file}: {info['file_bytes'] / 1e9:.2f} GB in {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
