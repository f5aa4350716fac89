"""The pre-tokenizer families: their regular expressions, as data.

No dependencies. Imported by record_pretok.py; run alone it prints the reference page:

    python3 pretok_families.py > ../data/pretok_regex.md

Each family is a list of passes. A pass is one regular expression; it is applied to every piece that the pass
before it left, and cuts the piece into its matches and the gaps between them (nothing is dropped).
"""

# Building blocks ------------------------------------------------------------------------------------------------
C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
Z = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + Z
QWEN2 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + Z
QWEN35 = C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + Z
LEAD = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CASED = "{lead}[{u}]*[{l}]+{c}|{lead}[{u}]+[{l}]*{c}"
GPT4O = CASED.format(lead=LEAD, u=UPPER, l=LOWER, c=C + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + Z
TEKKEN = CASED.format(lead=LEAD, u=UPPER, l=LOWER, c="") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + Z
NOHAN = r"&&[^\p{Han}]"
KIMI = (r"[\p{Han}]+|" + CASED.format(lead=LEAD, u=UPPER + NOHAN, l=LOWER + NOHAN, c=C + "?")
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + Z)
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
           r"|\s*[\r\n]|\s+(?!\S)|\s+")
DS3_WORD = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*" + Z)

# The letters of deepseek-llm: an explicit list, not \p{L}. Inclusive code point ranges.
DEEPSEEK_LETTERS = """
0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376 0377 037B-037D
037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D
1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4
2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A
FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
""".split()


def char_class(ranges):
    """Writes code point ranges as the inside of a regex class."""
    out = ""
    for item in ranges:
        ends = [chr(int(x, 16)) for x in item.split("-")]
        out += "-".join(ends)
    return out


DS_PUNCT = "!-/:-~" + char_class("FF01-FF0F FF1A-FF5E 2018-201F 3000-3002".split())
DS_CJK = "[" + char_class("4E00-9FA5 0800-4E00 AC00-D7FF".split()) + "]+"
DS3_CJK = "[" + char_class("4E00-9FA5 3040-309F 30A0-30FF".split()) + "]+"

LLAMA_CPP = "ggml-org/llama.cpp src/llama-vocab.cpp"

# id: (values of tokenizer.ggml.pre, passes, source, notes)
FAMILIES = {
    "gpt-2": (["gpt-2", "mpt", "olmo", "jais", "phi-2", "gigachat", "trillion", "granite-docling", "exaone4",
               "modern-bert", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum"],
              [GPT2], LLAMA_CPP,
              "The published pattern ends with `|\\s+`; as gaps are pieces, leaving it out changes nothing: a gap is "
              "always one whitespace character other than U+0020. Contractions match in lower case only."),
    "smollm": (["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
               [r"\p{N}", GPT2], LLAMA_CPP,
               "Digits first, so `\\s+(?!\\S)` sees the end of the piece before a digit: `a  1` is `a`, two "
               "spaces, `1`, and a single space before a digit is a piece of its own."),
    "llama-bpe": (["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                   "jina-v5-nano", "dbrx", "smaug-bpe", "glm4", "glm5",
                   "chatglm-bpe"],
                  [LLAMA3], LLAMA_CPP + "; tokenizer.json of Llama 3",
                  "`ignore_merges` for all but dbrx, smaug-bpe and chatglm-bpe; add_bos = true for all but those and "
                  "glm4, glm5."),
    "qwen2": (["qwen2", "stablelm2", "hunyuan", "solar-open", "deepseek-r1-qwen", "megrez", "grok-2", "kormo",
               "f2llmv2"],
              [QWEN2], LLAMA_CPP + "; tokenizer.json of Qwen3",
              "Qwen's own tokenizer first normalises the text to NFC; llama.cpp does not, and a GGUF says nothing "
              "about it."),
    "qwen35": (["qwen35"], [QWEN35], LLAMA_CPP, "As qwen2 with combining marks counted as letters."),
    "gpt-4o": (["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], [GPT4O],
               LLAMA_CPP + " (comment `original regex`); tokenizer.json of gpt-oss",
               "llama.cpp approximates the letter classes: it reads `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]` as "
               "`\\p{L}` without a-z and `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]` as `\\p{L}` without A-Z, so it differs "
               "from the original for non-ASCII upper case (`ÉCOLE` before `École`) and for combining marks."),
    "tekken": (["tekken"], [TEKKEN], LLAMA_CPP + " (comment `original regex`); tekken.json of mistral-common",
               "As gpt-4o without contractions and with single digits. `ignore_merges` and add_bos = true. Same "
               "approximation in llama.cpp as for gpt-4o."),
    "deepseek-v3": (["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], [r"\p{N}{1,3}", DS3_CJK, DS3_WORD],
                    LLAMA_CPP + "; tokenizer.json of DeepSeek-V3",
                    "The third pass does not match every character: control characters, unassigned ones and "
                    "private-use ones that no letter follows stay in gaps, and neighbours in a gap stay one piece."),
    "deepseek-llm": (["deepseek-llm"],
                     [r"[\r\n]", r"\s?[" + char_class(DEEPSEEK_LETTERS) + "]+", r"\s?[" + DS_PUNCT + "]+",
                      r"\s+$", DS_CJK, r"\p{N}+"], LLAMA_CPP,
                     "`$` is the end of the piece. `!-/:-~` in the third pass contains the letters A-Z and a-z, and the pass "
                     "is applied to the words that the second one made: `Straße` becomes `Stra`, `ß`, `e`. The "
                     "fifth pass contains U+0800-U+4E00, most of the scripts east of Arabic."),
    "deepseek-coder": (["deepseek-coder"], [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DS_CJK, r"\p{N}"], LLAMA_CPP,
                       "Symbols (`\\p{S}`) and whitespace stay in gaps."),
    "bailingmoe": (["bailingmoe", "bailingmoe2", "llada-moe"], [BAILING],
                   LLAMA_CPP + " (comment `original regex`)",
                   "Equal to qwen2 in what it matches: the possessive marks change nothing here, and "
                   "`\\s*[\\r\\n]` takes as much as `\\s*[\\r\\n]+`, because `\\s` covers line ends."),
    "kimi-k2": (["kimi-k2"], [KIMI], "ggml-org/llama.cpp src/unicode.cpp (comment quoting tokenization_kimi.py)",
                "`&&` is class intersection. llama.cpp codes it by hand and lets a word run over changes of case "
                "and stop at combining marks (it tests \\p{L} only), so it differs from the original there, e.g. "
                "for `fooBar`."),
    "falcon": (["falcon"], [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"], LLAMA_CPP, ""),
    "default": (["default"], [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], LLAMA_CPP,
                "What llama.cpp takes when the key says `default` or is missing. An engine should rather refuse a "
                "missing key."),
    "seed-coder": (["seed-coder"],
                   [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + Z], LLAMA_CPP, ""),
    "exaone-moe": (["exaone-moe"],
                   [C + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
                    r"|\s*[\r\n]|\s+(?!\S)|\s+"], LLAMA_CPP,
                   "A piece may hold several words: letters joined by single spaces."),
    "bloom": (["bloom", "poro-chat", "gpt3-finnish"], [" ?[^(\\s|.,!?…。，、।۔،)]+"], LLAMA_CPP,
              "The class excludes the characters `(`, `|`, `)` and the punctuation listed, and whitespace."),
    "viking": (["viking"], [" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}"], LLAMA_CPP, ""),
    "youtu": (["youtu"],
              ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
               CASED.format(lead=LEAD, u=UPPER, l=LOWER, c=C + "?")
               + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + Z], LLAMA_CPP, "`ignore_merges`."),
    "minicpm5": (["minicpm5"],
                 [r"\p{N}{1,3}", C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*" + Z], LLAMA_CPP,
                 "`ignore_merges`."),
    "ufakzeka": (["ufakzeka"], [QWEN2.replace(C + "|", "")], LLAMA_CPP, "qwen2 without contractions."),
    "laguna": (["laguna"], [r"[^\n]+|[\n]+", QWEN2], LLAMA_CPP, ""),
    "tiny-aya": (["tiny_aya", "cohere2moe"], [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O], LLAMA_CPP,
                 "Digits in threes counted from the right; `\\d` is `\\p{Nd}` in the original."),
    "jais-2": (["jais-2"],
               [C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)"
                r"|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
                r"|\s{1,2}(?!\S)|\s{1}"], LLAMA_CPP, ""),
}

INTRO = """# Pre-tokenizer families

Generated by `tests/oracles/pretok_families.py`; do not edit. What each value of `tokenizer.ggml.pre` means, found in
the sources named (read as reference; the expressions are facts about the models). `pretok.json` beside this file
holds recorded splits for each family.

## How to read it

- A family is a list of passes. Each pass is applied to every piece that the pass before it left, matches and gaps
  alike, and to each piece on its own: matches and the gaps between them become pieces, in order, and **lookahead and `$` do not see past the end of the piece**.
- Alternatives are tried from left to right at each position (leftmost, first alternative that matches; greedy
  repeats backtrack). `\\s*[\\r\\n]+` therefore runs to the *last* line end of a whitespace run.
- `\\s` is Unicode White_Space: U+0009-000D 0020 0085 00A0 1680 2000-200A 2028 2029 202F 205F 3000. Not U+001C-001F,
  not U+200B, not U+180E, not U+FEFF.
- `\\p{L}` ... are general categories; unassigned, control, format, surrogate and private-use characters belong to
  none of L, M, N, P, S. `\\p{Han}` is the script.
- `(?i:...)` is meant for ASCII letters only, which is how llama.cpp reads it; full case folding would also let U+017F
  (long s) stand for `s`. The recordings do not contain that case.
- After splitting, each piece is written in the GPT-2 byte alphabet and merged (byte-level BPE). `ignore_merges`: a
  piece that is a token as a whole becomes that token, without looking at the merges.
- Unknown values are refused by llama.cpp ("unknown pre-tokenizer type"), and should be here.

Two values take no regex of this kind: `gemma4` (BPE over raw UTF-8 with U+2581 for spaces, cut only as
`[^\\n]+|[\\n]+`) and `tokenizer.ggml.model` = `llama` (SentencePiece).

Names used below: `C` = `{C}`, `Z` = `{Z}`.

## Families
"""


def escape(text):
    return "".join(c if 32 <= ord(c) < 127 else "\\u{%04X}" % ord(c) for c in text)


def page():
    out = [INTRO.replace("{C}", C).replace("{Z}", Z)]
    for name, (pres, passes, source, notes) in FAMILIES.items():
        out.append(f"### {name}\n")
        out.append("- `tokenizer.ggml.pre`: " + ", ".join(f"`{p}`" for p in pres))
        out.append(f"- source: {source}")
        if notes:
            out.append(f"- {notes}")
        out.append("\nPasses (non-ASCII characters as `\\u{HEX}`):\n\n```")
        out += [escape(p) for p in passes]
        out.append("```\n")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
