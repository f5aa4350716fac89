"""Condenses what the tests need of the Tiny-MoE model into tests/data/tiny-moe and examples/tiny-moe.

Needs: pip install numpy tokenizers
Run:   python3 record_tiny_moe.py SHARED_DIR OUTDIR [EXAMPLE_DIR]

SHARED_DIR is the folder the model was published in (README.md, refs/, heldout/, tokenizer/, *.gguf). Nothing is
computed with the engine: the vectors come from PyTorch, the perplexities from PyTorch, llama.cpp and ik_llama.cpp,
and the token ids from the Hugging Face `tokenizers` library, built from the model's own tokenizer.json.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import clbref
from pretok_families import QWEN2

N_LAYER, N_EXPERT, TOP_K, VOCAB = 5, 32, 4, 4096
WINDOW, CHUNKS = 512, 16
MARGIN = 1000  # bytes kept after the last token that is needed
TOPICS = ["code", "man", "prose", "dict", "de", "zh", "chat", "recall"]
COLUMNS = ["pytorch_f16", "llama_cpp_f16", "llama_cpp_q8_0", "llama_cpp_q4_0", "llama_cpp_q4_k_m", "ik_llama_f16",
           "ik_llama_q4_k_m"]


def build_tokenizer(path):
    spec = json.loads(path.read_text())
    vocab = {t: i for i, t in enumerate(spec["tokens"])}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in spec["merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.add_special_tokens(sorted(spec["special"], key=spec["special"].get))
    for name, i in spec["special"].items():
        assert tok.token_to_id(name) == i
    return tok


def copy_refs(src, out):
    refs = json.loads((src / "refs.json").read_text())
    prompts, ties = [], []
    for p in refs["prompts"]:
        name, n = p["name"], p["n_tokens"]
        ids = np.fromfile(src / f"{name}.ids.i32", "<i4")
        logits = np.fromfile(src / f"{name}.logits.f32", "<f4").reshape(n, VOCAB)
        experts = np.fromfile(src / f"{name}.experts.i32", "<i4").reshape(N_LAYER, n, TOP_K)
        probs = np.fromfile(src / f"{name}.router_probs.f32", "<f4").reshape(N_LAYER, n, N_EXPERT)
        weights = np.fromfile(src / f"{name}.expert_weights.f32", "<f4").reshape(N_LAYER, n, TOP_K)
        assert ids.tolist() == p["ids"] and len(ids) == n
        # the recorded routing is the top-k of the recorded probabilities, best first, renormalised
        order = np.argsort(-probs, axis=2, kind="stable")[:, :, :TOP_K]
        assert (order == experts).all()
        picked = np.take_along_axis(probs, experts, axis=2)
        assert np.abs(picked / picked.sum(2, keepdims=True) - weights).max() < 1e-5
        ranked = -np.sort(-probs, axis=2)
        gap = ranked[:, :, TOP_K - 1] - ranked[:, :, TOP_K]
        for layer, pos in np.argwhere(gap < 1e-3):
            row = np.argsort(-probs[layer, pos], kind="stable")
            ties.append({"prompt": name, "layer": int(layer), "position": int(pos),
                         "in": int(row[TOP_K - 1]), "out": int(row[TOP_K]), "gap": float(gap[layer, pos])})
        prompts.append((ids, logits))
        for kind in ["experts.i32", "expert_weights.f32", "router_probs.f32"]:
            shutil.copyfile(src / f"{name}.{kind}", out / f"{name}.{kind}")
    clbref.write(out / "prompts.ref", prompts)
    keep = ["name", "prompt", "n_tokens", "greedy24_ids", "greedy24_text"]
    write_json(out / "prompts.json", [{k: p[k] for k in keep} for p in refs["prompts"]])
    write_json(out / "router_ties.json", sorted(ties, key=lambda t: t["gap"]))
    return refs, ties


def cut_texts(src, out, tok, special):
    need = WINDOW * CHUNKS
    info = {}
    for topic in TOPICS:
        raw = (src / f"{topic}.heldout.txt").read_bytes()
        text = raw.decode("utf-8")
        enc = tok.encode(text)
        assert len(enc.ids) > need, topic
        end = len(text[:enc.offsets[need - 1][1]].encode()) + MARGIN
        end = raw.find(b"\n", end) + 1 or len(raw)
        cut = raw[:end].decode("utf-8")
        ids = tok.encode(cut).ids
        assert len(ids) >= need and ids[:need] == enc.ids[:need], topic
        (out / f"{topic}.txt").write_bytes(cut.encode())
        fnv = 0xCBF29CE484222325  # FNV-1a over the ids, so that a test can compare without a copy of them
        for i in ids[:need]:
            for b in struct.pack("<I", i):
                fnv = (fnv ^ b) * 0x100000001B3 % 2**64
        info[topic] = {"bytes": len(cut.encode()), "tokens": len(ids), "first_ids": ids[:16],
                       "fnv1a_first_8192": f"{fnv:016x}",
                       "has_special_tokens": any(i in special for i in ids[:need])}
    return info


def read_table(readme):
    """The perplexity table of the model's README."""
    table = {}
    for line in readme.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if cells[0] in TOPICS and len(cells) == 9 and cells[0] not in table:  # the first such table
            table[cells[0]] = dict(zip(COLUMNS, map(float, cells[2:])))
    assert list(table) == TOPICS and all(max(t.values()) < 1.02 * min(t.values()) for t in table.values())
    return table


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


README = """# Tiny-MoE: recorded vectors

Made by `tests/oracles/record_tiny_moe.py` from the files published with the model. The model itself: the Q4_K_M file in
`examples/tiny-moe`; the F16 file (69 MB) is not in the repository: tests that need it take its path from the environment
variable `COLIBRI_TEST_TINY_MOE_F16` and are skipped, with a message, when it is unset.

All numbers are little-endian.

| file | content |
|---|---|
| `prompts.ref` | ids and logits of three prompts: magic `CLBREF1\\0`, u32 n_prompts, then per prompt u32 n_tokens, u32 n_vocab, i32 ids[n_tokens], f32 logits[n_tokens][n_vocab] |
| `prompts.json` | the prompts as text (special tokens parsed), and 24 greedy tokens after each |
| `promptN.experts.i32` | [layer 5][token][4], sorted by falling probability |
| `promptN.expert_weights.f32` | same shape, the four probabilities renormalised to sum 1 |
| `promptN.router_probs.f32` | [layer 5][token][32], softmax over all experts |
| `router_ties.json` | places where the 4th and 5th probability differ by less than 1e-3: an engine with other rounding may pick the other expert there, and the logits of that position and of later ones may then differ by up to 0.4 |
| `tokenizer_cases.json` | texts and their ids, special tokens parsed, no BOS |
| `<topic>.txt` | start of the held-out texts: just over 16 x 512 tokens each, the first 8192 ids equal to those of the full text |
| `perplexity.json` | per topic: size, the first ids, FNV-1a (64-bit) over the first 8192 ids as u32 bytes, and the perplexities of several programs |

Vectors are float32 math on the F16-rounded weights (PyTorch), so they belong to the F16 file; F16 engines agree to about
5e-3 outside ties.

Perplexity protocol (llama-perplexity's): 16 chunks of 512 tokens, each its own context; positions 256 to 510 of a chunk
are scored (each predicts the token after it); exp of the mean negative log-likelihood over all chunks. The model adds no
BOS, so no token is replaced. Special tokens in the text ({special}) {parsed}. Columns: {columns}.

Two versions of llama.cpp differ by up to 0.1 % in these numbers (Q4_K_M, by kernel and flash attention).

Licences of the texts: see `examples/tiny-moe/README.md`.
"""


def main():
    shared, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    tok = build_tokenizer(shared / "tokenizer" / "tokenizer.json")
    cases = json.loads((shared / "refs" / "tokenizer_cases.json").read_text())
    for case in cases:
        assert tok.encode(case["text"]).ids == case["ids"], case["text"]
    write_json(out / "tokenizer_cases.json", cases)

    refs, ties = copy_refs(shared / "refs", out)
    for p in refs["prompts"]:
        assert tok.encode(p["prompt"]).ids == p["ids"]

    spec = json.loads((shared / "tokenizer" / "tokenizer.json").read_text())
    info = cut_texts(shared / "heldout", out, tok, set(spec["special"].values()))
    table = read_table(shared / "README.md")
    exact = json.loads((shared / "reference.json").read_text())["perplexity"]
    topics = {t: {"file": f"{t}.txt", **info[t], "perplexity": {**table[t], "pytorch_f16": exact[t]["value"]}}
              for t in TOPICS}
    write_json(out / "perplexity.json", {
        "protocol": "context 512, first 16 chunks, positions 256..510 of each chunk scored, no BOS",
        "parse_special": True, "topics": topics})
    special = ", ".join(t for t in TOPICS if info[t]["has_special_tokens"]) or "none"
    (out / "README.md").write_text(README.format(
        columns=", ".join(f"`{c}`" for c in COLUMNS), special=special, parsed="are parsed as special tokens"))
    print(f"{len(ties)} near-ties; special tokens in: {special}")
    for t in TOPICS:
        print(t, info[t]["bytes"], info[t]["tokens"])
    if len(sys.argv) > 3:
        example = pathlib.Path(sys.argv[3])
        example.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shared / "tiny-moe-q4_k_m.gguf", example / "tiny-moe-q4_k_m.gguf")


if __name__ == "__main__":
    main()
