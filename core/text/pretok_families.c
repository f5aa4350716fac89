/* The families and the values of tokenizer.ggml.pre that select them. Data only: the expressions and their sources
 * are in tests/data/pretok_regex.md, the recorded splits in tests/data/pretok.json. */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/pretok.h"

/* English contractions, ASCII letters of either case only (a caseless match would take U+017F for an s). */
#define CONTRACTION "(?:'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE]))"
#define SPACES      "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LEAD        "[^\\r\\n\\p{L}\\p{N}]?" /* one character that sticks to the word after it */
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CJK         "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define NOT_LATIN   "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define ASCII_PUNCT "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define SENTENCE    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{0964}\\x{06D4}\\x{060C})]+"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define DEEPSEEK3   ASCII_PUNCT "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES

#define CASED(upper, lower, end) LEAD upper "*" lower "+" end "|" LEAD upper "+" lower "*" end
#define QWEN(digits)             CONTRACTION "|" LEAD "\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define GPT4O(digits)            CASED(UPPER, LOWER, CONTRACTION "?") "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES

/* Letters without Han, written as what they are not: PCRE2 before 10.45 has no class intersection. */
#if PCRE2_MAJOR == 10 && PCRE2_MINOR < 40 /* there \p{Han} means Script, later Script_Extensions */
#define HAN "\\p{Han}"
#else
#define HAN "\\p{sc:Han}"
#endif
#define NO_HAN_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"
#define NO_HAN_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}" HAN "]"

#define FAMILY(id) static const clb_pretok_family id
#define M(regex)                                                                                                       \
    {                                                                                                                  \
        CLB_PASS_MATCH, regex                                                                                          \
    }

FAMILY(f_gpt2) = {"gpt-2", {M(GPT2)}};
FAMILY(f_smollm) = {"smollm", {M("\\p{N}"), M(GPT2)}};
FAMILY(f_llama3) = {"llama-bpe", {M(QWEN("\\p{N}{1,3}"))}};
FAMILY(f_qwen2) = {"qwen2", {M(QWEN("\\p{N}"))}};
FAMILY(f_qwen35) = {"qwen35",
                    {M(CONTRACTION "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES)}};
FAMILY(f_gpt4o) = {"gpt-4o", {M(GPT4O("\\p{N}{1,3}"))}};
FAMILY(f_tekken) = {"tekken", {M(CASED(UPPER, LOWER, "") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES)}};
FAMILY(f_deepseek3) = {"deepseek-v3", {M("\\p{N}{1,3}"), M(CJK), M(DEEPSEEK3)}};
FAMILY(f_deepseek_llm) = {
    "deepseek-llm",
    {M("[\\r\\n]"),
     M("\\s?[A-Za-z\\x{00B5}\\x{00C0}-\\x{00D6}\\x{00D8}-\\x{00F6}\\x{00F8}-\\x{01BA}\\x{01BC}-\\x{01BF}"
       "\\x{01C4}-\\x{0293}\\x{0295}-\\x{02AF}\\x{0370}-\\x{0373}\\x{0376}\\x{0377}\\x{037B}-\\x{037D}"
       "\\x{037F}\\x{0386}\\x{0388}-\\x{038A}\\x{038C}\\x{038E}-\\x{03A1}\\x{03A3}-\\x{03F5}\\x{03F7}-"
       "\\x{0481}\\x{048A}-\\x{052F}\\x{0531}-\\x{0556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-"
       "\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-"
       "\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-"
       "\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"
       "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-"
       "\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"
       "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"
       "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-"
       "\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-"
       "\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-"
       "\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"
       "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-"
       "\\x{1E943}]+"),
     M("\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"), M("\\s+$"),
     M(NOT_LATIN), M("\\p{N}+")}};
FAMILY(f_deepseek_coder) = {"deepseek-coder",
                            {M("[\\r\\n]"), M("\\s?\\p{L}+"), M("\\s?\\p{P}+"), M(NOT_LATIN), M("\\p{N}")}};
FAMILY(f_bailing) = {
    "bailingmoe",
    {M(CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]"
                   "|\\s+(?!\\S)|\\s+")}};
FAMILY(f_kimi) = {
    "kimi-k2",
    {M("[" HAN "]+|" CASED(NO_HAN_UPPER, NO_HAN_LOWER, CONTRACTION "?") "|\\p{N}{1,3}"
                                                                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES)}};
FAMILY(f_falcon) = {"falcon", {M("[\\p{P}\\$\\+<=>\\^~\\|`]+"), M(GPT2), M("[0-9][0-9][0-9]")}};
FAMILY(f_default) = {"default", {M("[\\p{P}\\$\\+<=>\\^~\\|]+"), M(GPT2), M("\\p{N}+"), M("[0-9][0-9][0-9]")}};
FAMILY(f_seed_coder) = {"seed-coder", {M(CONTRACTION "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES)}};
/* Possessive groups: nothing follows them in their alternative, and the matcher's stack stays flat. */
FAMILY(f_exaone_moe) = {
    "exaone-moe",
    {M(CONTRACTION "|" LEAD "(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?"
                   "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+")}};
FAMILY(f_bloom) = {"bloom", {M(SENTENCE)}};
FAMILY(f_viking) = {"viking", {M(SENTENCE), M("\\p{N}")}};
FAMILY(f_youtu) = {
    "youtu",
    {M("[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}"
       "\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" CJK),
     M(GPT4O("\\p{N}"))}};
FAMILY(f_minicpm5) = {"minicpm5", {M("\\p{N}{1,3}"), M(QWEN("\\p{N}+"))}};
FAMILY(f_ufakzeka) = {"ufakzeka", {M(LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES)}};
FAMILY(f_laguna) = {"laguna", {M("[^\\n]+|\\n+"), M(QWEN("\\p{N}"))}};
/* \d{1,3}(?=(?:\d{3})*\b): digits in threes from the right, unless a word character follows. As written it looks at
 * the rest of the run again for every three digits. */
FAMILY(f_tiny_aya) = {"tiny-aya",
                      {{CLB_PASS_RIGHT3, "(?<!\\d)\\d++(?![\\p{L}\\p{M}\\p{N}\\p{Pc}])"}, M(GPT4O("\\p{N}{1,3}"))}};
/* The lookbehind saves looking for a line end again at each piece of a long run of spaces: had there been one, the
 * first piece would have taken it. */
FAMILY(f_jais2) = {
    "jais-2",
    {M(CONTRACTION "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                   "|(?<!(?![\\r\\n])\\s)\\s*[\\r\\n]+|\\s{512}(?!\\S)"
                   "|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)"
                   "|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s")}};
FAMILY(f_superbpe) = {"superbpe", {M("\\p{N}+"), {CLB_PASS_RIGHT3, "\\d++"}}};
FAMILY(f_gemma4) = {"gemma4", {M("[^\\n]+|\\n+")}};

#define MERGED CLB_PRE_IGNORE_MERGES
#define BOS    CLB_PRE_ADD_BOS
#define SEP    CLB_PRE_ADD_SEP
#define RAW    CLB_PRE_RAW

const clb_pretok_name clb_pretok_names[] = {
    {"gpt-2", &f_gpt2, 0},
    {"mpt", &f_gpt2, 0},
    {"olmo", &f_gpt2, 0},
    {"jais", &f_gpt2, 0},
    {"phi-2", &f_gpt2, 0},
    {"gigachat", &f_gpt2, 0},
    {"trillion", &f_gpt2, 0},
    {"granite-docling", &f_gpt2, 0},
    {"exaone4", &f_gpt2, 0},
    {"modern-bert", &f_gpt2, 0},
    {"jina-es", &f_gpt2, 0},
    {"jina-de", &f_gpt2, 0},
    {"jina-v2-es", &f_gpt2, 0},
    {"jina-v2-de", &f_gpt2, 0},
    {"a.x-4.0", &f_gpt2, 0},
    {"mellum", &f_gpt2, 0},
    {"jina-v1-en", &f_gpt2, SEP},
    {"jina-v2-code", &f_gpt2, SEP},
    {"roberta-bpe", &f_gpt2, SEP},
    {"smollm", &f_smollm, 0},
    {"starcoder", &f_smollm, 0},
    {"refact", &f_smollm, 0},
    {"command-r", &f_smollm, 0},
    {"codeshell", &f_smollm, 0},
    {"exaone", &f_smollm, 0},
    {"minerva-7b", &f_smollm, 0},
    {"mellum2", &f_smollm, 0},
    {"llama-bpe", &f_llama3, MERGED | BOS},
    {"llama3", &f_llama3, MERGED | BOS},
    {"llama-v3", &f_llama3, MERGED | BOS},
    {"falcon3", &f_llama3, MERGED | BOS},
    {"falcon-h1", &f_llama3, MERGED | BOS},
    {"pixtral", &f_llama3, MERGED | BOS},
    {"midm-2.0", &f_llama3, MERGED | BOS},
    {"lfm2", &f_llama3, MERGED | BOS},
    {"jina-v5-nano", &f_llama3, MERGED | BOS},
    {"dbrx", &f_llama3, 0},
    {"smaug-bpe", &f_llama3, 0},
    {"glm4", &f_llama3, MERGED},
    {"glm5", &f_llama3, MERGED},
    {"chatglm-bpe", &f_llama3, 0},
    {"qwen2", &f_qwen2, 0},
    {"stablelm2", &f_qwen2, 0},
    {"hunyuan", &f_qwen2, 0},
    {"solar-open", &f_qwen2, 0},
    {"deepseek-r1-qwen", &f_qwen2, 0},
    {"megrez", &f_qwen2, 0},
    {"grok-2", &f_qwen2, 0},
    {"kormo", &f_qwen2, 0},
    {"f2llmv2", &f_qwen2, 0},
    {"qwen35", &f_qwen35, 0},
    {"gpt-4o", &f_gpt4o, 0},
    {"llama4", &f_gpt4o, 0},
    {"kanana2", &f_gpt4o, 0},
    {"talkie", &f_gpt4o, 0},
    {"minimax-m2", &f_gpt4o, 0},
    {"tekken", &f_tekken, MERGED | BOS},
    {"deepseek-v3", &f_deepseek3, 0},
    {"hunyuan-dense", &f_deepseek3, 0},
    {"joyai-llm", &f_deepseek3, 0},
    {"hy_v4", &f_deepseek3, 0},
    {"deepseek-llm", &f_deepseek_llm, 0},
    {"deepseek-coder", &f_deepseek_coder, 0},
    {"bailingmoe", &f_bailing, 0},
    {"bailingmoe2", &f_bailing, 0},
    {"llada-moe", &f_bailing, 0},
    {"kimi-k2", &f_kimi, 0},
    {"falcon", &f_falcon, 0},
    {"default", &f_default, 0},
    {"seed-coder", &f_seed_coder, 0},
    {"exaone-moe", &f_exaone_moe, 0},
    {"bloom", &f_bloom, 0},
    {"poro-chat", &f_bloom, 0},
    {"gpt3-finnish", &f_bloom, 0},
    {"viking", &f_viking, 0},
    {"youtu", &f_youtu, MERGED},
    {"minicpm5", &f_minicpm5, MERGED},
    {"ufakzeka", &f_ufakzeka, 0},
    {"laguna", &f_laguna, 0},
    {"tiny_aya", &f_tiny_aya, 0},
    {"cohere2moe", &f_tiny_aya, 0},
    {"jais-2", &f_jais2, 0},
    {"superbpe", &f_superbpe, 0},
    {"gemma4", &f_gemma4, RAW | BOS},
    {NULL, NULL, 0},
};

const clb_pretok_name *clb_pretok_find(const char *pre)
{
    for (const clb_pretok_name *p = clb_pretok_names; p->name; p++)
        if (strcmp(p->name, pre) == 0)
            return p;
    return NULL;
}
