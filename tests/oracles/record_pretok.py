"""Records how each pre-tokenizer family cuts the tricky texts.

Needs: pip install tokenizers regex
Run:   python3 record_pretok.py ../data/pretok.json

The cutter is Hugging Face `tokenizers` (Oniguruma), a chain of isolated splits, as the models' own tokenizer.json files
use it; every result is checked against the `regex` package, another engine. The expressions are in
pretok_families.py.
"""
import json
import pathlib
import sys

import regex
from tokenizers import Regex, pre_tokenizers

from pretok_families import FAMILIES
from tricky_texts import TEXTS


def with_tokenizers(passes, text):
    chain = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in passes])
    return [piece for piece, _ in chain.pre_tokenize_str(text)]


def with_regex(passes, text):
    pieces = [text] if text else []
    for p in passes:
        expr, cut = regex.compile(p, regex.V1), []
        for piece in pieces:
            at = 0
            for m in expr.finditer(piece):
                if m.end() > m.start():
                    cut += [piece[at:m.start()], m.group()]
                    at = m.end()
            cut.append(piece[at:])
        pieces = [c for c in cut if c]
    return pieces


def main():
    result = {}
    for name, (_, passes, _, _) in FAMILIES.items():
        result[name] = []
        for text in TEXTS:
            pieces = with_tokenizers(passes, text)
            other = with_regex(passes, text)
            if pieces != other:
                print(f"{name}: engines differ on {text!r}:\n  {pieces}\n  {other}")
            assert "".join(pieces) == text
            result[name].append({"text": text, "pieces": pieces})
    rows = [f' {json.dumps(name)}: [\n' + ",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in cases) + "\n ]"
            for name, cases in result.items()]
    path = pathlib.Path(sys.argv[1])
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{len(result)} families, {len(TEXTS)} texts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
