"""Writes the seeds of tests/fuzz/fuzz_tokenize.c: small texts, vocabularies and chat templates.

Needs: pip install gguf numpy
Run:   python3 make_tokenize_seeds.py ../fuzz/corpus/tokenize
"""
import pathlib
import sys
import tempfile

import gguf

from record_jinja import CASES

TEXTS = ["Hello, world! It's 3.14 o'clock.", "  tabs\tand\r\n\n\n  lines ", "日本語 한국어 नमस्ते 😀 e\u0301", "<|im_start|>user\nhi<|im_end|>",
         "\u00a0\u3000\u200b\ufeff", "a" * 60 + " " * 40 + "1" * 30]
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def vocabulary(model, pre, tokens, merges=None, extra=()):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "seed.gguf"
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model(model)
        if pre:
            w.add_tokenizer_pre(pre)
        w.add_token_list([t for t, _, _ in tokens])
        w.add_token_types([k for _, k, _ in tokens])
        w.add_token_scores([float(s) for _, _, s in tokens])
        if merges is not None:
            w.add_token_merges(merges)
        for add in extra:
            add(w)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()
        return path.read_bytes()


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for i, t in enumerate(TEXTS):
        (out / f"text{i}").write_bytes(b"tT"[i % 2:i % 2 + 1] + t.encode())
    (out / "bytes").write_bytes(b"t" + bytes(range(256)))
    cases = CASES.strip("\n").split("\n")
    for i in range(0, len(cases), 6):
        (out / f"jinja{i}").write_bytes(b"j" + "\n".join(cases[i:i + 6]).encode())
    letters = [(c, NORMAL, -9.0) for c in "abcdehlorwxĠĊ<|>_"]
    bpe = letters + [("he", NORMAL, 0), ("ll", NORMAL, 0), ("Ġw", NORMAL, 0), ("  ", USER, 0), ("<|im_start|>", CONTROL, 0),
                     ("<|im_end|>", CONTROL, 0), ("<unk>", UNKNOWN, 0)]
    ids = [lambda w: w.add_bos_token_id(21), lambda w: w.add_eos_token_id(22), lambda w: w.add_add_bos_token(True)]
    chat = ids + [lambda w: w.add_chat_template(TEMPLATE)]
    spm = [("<unk>", UNKNOWN, 0), ("<s>", CONTROL, 0), ("</s>", CONTROL, 0), ("<0x0A>", BYTE, 0), ("<0xFF>", BYTE, 0),
           ("▁", NORMAL, -9), ("a", NORMAL, -8), ("l", NORMAL, -8), ("o", NORMAL, -8), ("▁a", NORMAL, -1), ("lo", NORMAL, -2),
           ("▁▁", NORMAL, -3)]
    seeds = {
        "bpe": vocabulary("gpt2", "gpt-2", bpe, ["h e", "l l", "Ġ w"]),
        "bpe-chat": vocabulary("gpt2", "llama-bpe", bpe, ["h e", "l l", "e ll"], chat),
        "bpe-kimi": vocabulary("gpt2", "kimi-k2", bpe, []),
        "gemma4": vocabulary("gemma4", None, [("\n\n", NORMAL, 0)] + spm, ["\n \n", "▁ a", "l o"]),
        "spm": vocabulary("llama", None, spm, None, [lambda w: w.add_add_space_prefix(True)]),
        "wordpiece": vocabulary("bert", None, [("[UNK]", UNKNOWN, 0), ("[CLS]", CONTROL, 0), ("▁hello", NORMAL, 0),
                                               ("x", NORMAL, 0), ("▁", NORMAL, 0)], None,
                                [lambda w: w.add_unk_token_id(0), lambda w: w.add_bos_token_id(1)]),
    }
    for name, data in seeds.items():
        (out / f"vocab-{name}").write_bytes(b"v" + data)


if __name__ == "__main__":
    main()
