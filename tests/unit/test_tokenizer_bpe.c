/* Byte-level BPE: the example model's recorded ids, random bytes, long words, ranks, special tokens, BOS. */
#include <jansson.h>

#include "base/clock.h"
#include "support/vocab_image.h"

static clb_vocab *tiny;

static int open_tiny(void **state)
{
    (void)state;
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_open(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), NULL, NULL, &g, &err), &err);
    assert_ok(clb_vocab_load(g, &tiny, &err), &err);
    clb_gguf_close(g);
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    clb_vocab_free(tiny);
    return 0;
}

static void compare(const json_t *item, const char *key, uint32_t flags)
{
    const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, key), *id;
    clb_error err;
    clb_tokens got = {0};
    size_t i;
    if (!ids)
        return;
    assert_ok(clb_tokenize(tiny, json_string_value(text), json_string_length(text), flags, &got, &err), &err);
    assert_int_equal(got.n, json_array_size(ids));
    json_array_foreach(ids, i, id) if (json_integer_value(id) != got.ids[i]) fail_msg(
        "\"%s\": token %zu is %u, not %d", json_string_value(text), i, got.ids[i], (int)json_integer_value(id));
    clb_tokens_free(&got);
}

static void recorded_ids(void **state)
{
    (void)state;
    json_t *cases = json_load_file(TEST_DATA("tiny-moe/tokenizer_cases.json"), 0, NULL), *item;
    json_t *all = json_load_file(TEST_DATA("tokenizers.json"), 0, NULL);
    size_t i;
    assert_non_null(cases);
    assert_non_null(all);
    json_array_foreach(cases, i, item) compare(item, "ids", CLB_TOKENIZE_SPECIAL);
    json_array_foreach(json_object_get(json_object_get(all, "tiny-moe"), "cases"), i, item)
    {
        compare(item, "ids", CLB_TOKENIZE_SPECIAL);
        compare(item, "unparsed", 0);
    }
    assert_true(i > 50);
    json_decref(cases);
    json_decref(all);
}

/* Texts of the model's own data: the first 8192 ids, by their hash. */
static void recorded_texts(void **state)
{
    (void)state;
    static const char *const file[] = {TEST_DATA("tiny-moe/code.txt"), TEST_DATA("tiny-moe/zh.txt"),
                                       TEST_DATA("tiny-moe/chat.txt"), TEST_DATA("tiny-moe/de.txt")};
    static const char *const topic[] = {"code", "zh", "chat", "de"};
    json_t *all = json_load_file(TEST_DATA("tiny-moe/perplexity.json"), 0, NULL);
    clb_error err;
    assert_non_null(all);
    for (size_t f = 0; f < 4; f++) {
        const json_t *of = json_object_get(json_object_get(all, "topics"), topic[f]);
        const char *want = json_string_value(json_object_get(of, "fnv1a_first_8192"));
        size_t n;
        char *text = test_read_file(file[f], &n), hash[24];
        clb_tokens got = {0};
        assert_non_null(want);
        assert_ok(clb_tokenize(tiny, text, n, CLB_TOKENIZE_SPECIAL, &got, &err), &err);
        assert_true(got.n >= 8192);
        uint64_t h = 0xCBF29CE484222325u;
        for (size_t i = 0; i < 8192 * 4; i++)
            h = (h ^ (got.ids[i / 4] >> (8 * (i % 4)) & 0xFF)) * 0x100000001B3u;
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
        assert_string_equal(hash, want);
        clb_tokens_free(&got);
        free(text);
    }
    json_decref(all);
}

static void random_bytes_come_back(void **state)
{
    (void)state;
    test_rand rng = {3};
    clb_error err;
    for (int round = 0; round < 300; round++) {
        char text[300];
        const size_t n = test_rand_below(&rng, sizeof text);
        test_rand_bytes(&rng, text, n);
        clb_tokens ids = {0};
        clb_buf back = {0};
        assert_ok(clb_tokenize(tiny, text, n, round % 2 ? CLB_TOKENIZE_SPECIAL : 0, &ids, &err), &err);
        assert_ok(clb_buf_append(&back, "", 0, &err), &err);
        assert_ok(clb_detokenize(tiny, ids.ids, ids.n, true, &back, &err), &err);
        assert_int_equal(back.n, n);
        assert_memory_equal(back.data, text, n);
        clb_tokens_free(&ids);
        clb_buf_free(&back);
    }
}

static void long_words(void **state)
{
    (void)state;
    static const char letter[] = "a =\n1";
    const size_t n = (size_t)1 << 20;
    char *text = malloc(n);
    clb_error err;
    assert_non_null(text);
    for (size_t k = 0; k < sizeof letter - 1; k++) {
        memset(text, letter[k], n);
        clb_tokens ids = {0};
        clb_buf back = {0};
        const uint64_t start = clb_now_ns();
        assert_ok(clb_tokenize(tiny, text, n, 0, &ids, &err), &err);
        if (clb_now_ns() - start > UINT64_C(10000000000))
            fail_msg("1 MiB of '%c' took more than 10 s", letter[k]);
        assert_ok(clb_detokenize(tiny, ids.ids, ids.n, false, &back, &err), &err);
        assert_int_equal(back.n, n);
        assert_memory_equal(back.data, text, n);
        clb_tokens_free(&ids);
        clb_buf_free(&back);
    }
    free(text);
}

/* Byte-pair encoding as its definition says: of all neighbours the pair of least rank, the leftmost of equals. */
static size_t by_definition(const small_token *tokens, const char *const *merges, const char *text, size_t n,
                            uint32_t *ids)
{
    char part[64][16];
    for (size_t i = 0; i < n; i++)
        snprintf(part[i], sizeof part[i], "%c", text[i]);
    for (size_t rank = 0; merges[rank];) {
        size_t at = n;
        for (size_t i = n; i-- > 1;) {
            char both[40];
            snprintf(both, sizeof both, "%s %s", part[i - 1], part[i]);
            if (strcmp(both, merges[rank]) == 0)
                at = i;
        }
        if (at == n) {
            rank++;
            continue;
        }
        memcpy(part[at - 1] + strlen(part[at - 1]), part[at], strlen(part[at]) + 1);
        memmove(part[at], part[at + 1], (n - at - 1) * sizeof *part);
        n--;
        rank = 0; /* the new symbol may take part in a better one */
    }
    for (size_t i = 0; i < n; i++)
        for (ids[i] = 0; strcmp(tokens[ids[i]].text, part[i]) != 0;)
            ids[i]++;
    return n;
}

/* Long words go through a heap, short ones through a scan. */
static void every_length_follows_the_definition(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},   {"b", T_NORMAL, 0},    {"ab", T_NORMAL, 0},
                                         {"ba", T_NORMAL, 0},  {"aba", T_NORMAL, 0},  {"abab", T_NORMAL, 0},
                                         {"bab", T_NORMAL, 0}, {"baba", T_NORMAL, 0}, {"aa", T_NORMAL, 0},
                                         {"aaa", T_NORMAL, 0}, {"aaab", T_NORMAL, 0}, {NULL, 0, 0}};
    static const char *const merges[] = {"ba ba", "b a", "a b",   "a aa", "aa a", "a ba",
                                         "ab ab", "a a", "aaa b", "b ab", NULL};
    clb_vocab *v = small_vocab_load(&(small_vocab){"gpt2", "gpt-2", NULL, tokens, merges, NULL, false, false});
    test_rand rng = {11};
    for (size_t round = 0; round < 2000; round++) {
        char text[64];
        uint32_t want[64];
        const size_t n = 1 + round % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = "aab"[test_rand_below(&rng, 3)];
        clb_error err;
        clb_tokens ids = {0};
        assert_ok(clb_tokenize(v, text, n, 0, &ids, &err), &err);
        const size_t n_want = by_definition(tokens, merges, text, n, want);
        assert_int_equal(ids.n, n_want);
        assert_memory_equal(ids.ids, want, n_want * sizeof *want);
        clb_tokens_free(&ids);
    }
    clb_vocab_free(v);
}

static void halves_that_are_no_tokens(void **state)
{
    (void)state;
    /* "ab" is made on the way to "abc", but is no token itself; "d" has no token at all. */
    static const small_token tokens[] = {{"a", T_NORMAL, 0},   {"b", T_NORMAL, 0},      {"c", T_NORMAL, 0},
                                         {"abc", T_NORMAL, 0}, {"<unk>", T_UNKNOWN, 0}, {NULL, 0, 0}};
    static const char *const merges[] = {"a b", "ab c", NULL};
    static const char *const unk[] = {"tokenizer.ggml.unknown_token_id=4", NULL};
    small_vocab small = {"gpt2", "gpt-2", NULL, tokens, merges, NULL, false, false};
    clb_vocab *v = small_vocab_load(&small);
    expect(v, "abc", 0, "abc");
    expect(v, "abb", 0, "a|b|b");
    expect(v, "adc", 0, "a|c"); /* nothing can say it */
    clb_vocab_free(v);
    small.keys = unk;
    v = small_vocab_load(&small);
    expect(v, "adc", 0, "a|<unk>|c");
    clb_vocab_free(v);
}

static void ignore_merges(void **state)
{
    (void)state;
    /* "abc" is a token that the merges never reach. */
    static const small_token tokens[] = {{"a", T_NORMAL, 0},  {"b", T_NORMAL, 0},   {"c", T_NORMAL, 0},
                                         {"bc", T_NORMAL, 0}, {"abc", T_NORMAL, 0}, {"<s>", T_CONTROL, 0},
                                         {NULL, 0, 0}};
    static const char *const merges[] = {"b c", NULL}, *const bos[] = {"tokenizer.ggml.bos_token_id=5", NULL};
    small_vocab small = {"gpt2", "gpt-2", NULL, tokens, merges, bos, false, false};
    clb_vocab *v = small_vocab_load(&small);
    expect(v, "abc", CLB_TOKENIZE_BOS, "a|bc");
    clb_vocab_free(v);
    small.pre = "llama-bpe"; /* adds BOS too */
    v = small_vocab_load(&small);
    expect(v, "abc", CLB_TOKENIZE_BOS, "<s>|abc");
    expect(v, "abc", 0, "abc");
    clb_vocab_free(v);
}

static void special_tokens(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},
                                         {"b", T_NORMAL, 0},
                                         {"\xC4\xA0", T_NORMAL, 0},
                                         {"<|x|>", T_CONTROL, 0},
                                         {"<|x|>y", T_CONTROL, 0},
                                         {"ab", T_USER, 0},
                                         {"<", T_NORMAL, 0},
                                         {"|", T_NORMAL, 0},
                                         {"x", T_NORMAL, 0},
                                         {">", T_NORMAL, 0},
                                         {"y", T_NORMAL, 0},
                                         {"<unk>", T_UNKNOWN, 0},
                                         {"  ", T_USER, 0},
                                         {"u", T_NORMAL, 0},
                                         {"n", T_NORMAL, 0},
                                         {"k", T_NORMAL, 0},
                                         {NULL, 0, 0}};
    static const char *const merges[] = {"a a", NULL};
    small_vocab small = {"gpt2", "gpt-2", NULL, tokens, merges, NULL, false, false};
    clb_vocab *v = small_vocab_load(&small);
    expect(v, "a<|x|>b", CLB_TOKENIZE_SPECIAL, "a|<|x|>|b");
    expect(v, "<|x|>y<|x|>", CLB_TOKENIZE_SPECIAL, "<|x|>y|<|x|>"); /* the longest */
    expect(v, "a<|x|>", 0, "a|<|||x|||>");                          /* control: only when asked */
    expect(v, "<unk>", CLB_TOKENIZE_SPECIAL, "<unk>");
    expect(v, "<unk>", 0, "<|u|n|k|>");
    expect(v, "bab   a", 0, "b|ab|  |\xC4\xA0|a"); /* user-defined: always */
    expect(v, "<|x|", CLB_TOKENIZE_SPECIAL, "<|||x||");
    expect(v, "", CLB_TOKENIZE_SPECIAL, "");
    clb_vocab_free(v);
}

static void strip_flags_by_name(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},    {"\xC4\xA0", T_NORMAL, 0}, {"<|e|>", T_CONTROL, 0},
                                         {"<s>", T_CONTROL, 0}, {"\xC4\x8A", T_NORMAL, 0}, {NULL, 0, 0}};
    static const char *const merges[] = {"a a", NULL};
    small_vocab small = {"gpt2", "gpt-2", "My PHI-3 tune", tokens, merges, NULL, false, false};
    clb_vocab *v = small_vocab_load(&small);
    expect(v, "a <|e|> \n a<s> a", CLB_TOKENIZE_SPECIAL, "a|\xC4\xA0|<|e|>|a|<s>|\xC4\xA0|a");
    clb_vocab_free(v);
    small.name = "other";
    v = small_vocab_load(&small);
    expect(v, "a <|e|> a", CLB_TOKENIZE_SPECIAL, "a|\xC4\xA0|<|e|>|\xC4\xA0|a");
    clb_vocab_free(v);
}

static void bos_and_eos(void **state)
{
    (void)state;
    static const small_token tokens[] = {
        {"a", T_NORMAL, 0}, {"<s>", T_CONTROL, 0}, {"<e>", T_CONTROL, 0}, {NULL, 0, 0}};
    static const char *const merges[] = {"a a", NULL};
    static const char *const both[] = {"tokenizer.ggml.bos_token_id=1", "tokenizer.ggml.eos_token_id=2",
                                       "tokenizer.ggml.add_bos_token=true", "tokenizer.ggml.add_eos_token=true", NULL};
    clb_error err;
    clb_tokens ids = {0};
    clb_vocab *v = small_vocab_load(&(small_vocab){"gpt2", "qwen2", NULL, tokens, merges, both, false, false});
    assert_int_equal(clb_vocab_bos(v), 1);
    assert_int_equal(clb_vocab_eos(v), 2);
    assert_true(clb_vocab_add_bos(v) && clb_vocab_add_eos(v));
    assert_true(clb_vocab_is_eog(v, 2) && !clb_vocab_is_eog(v, 1) && !clb_vocab_is_eog(v, 99));
    assert_true(clb_vocab_is_control(v, 1) && !clb_vocab_is_control(v, 0) && !clb_vocab_is_control(v, 99));
    expect(v, "a", CLB_TOKENIZE_BOS, "<s>|a|<e>");
    expect(v, "a", 0, "a");
    assert_ok(clb_tokenize(v, "<s>a", 4, CLB_TOKENIZE_SPECIAL | CLB_TOKENIZE_BOS, &ids, &err), &err);
    assert_true(clb_tokens_double_bos(v, &ids));
    ids.n = 0;
    assert_ok(clb_tokenize(v, "a", 1, CLB_TOKENIZE_SPECIAL | CLB_TOKENIZE_BOS, &ids, &err), &err);
    assert_false(clb_tokens_double_bos(v, &ids));
    clb_tokens_free(&ids);
    const uint32_t some[] = {1, 0, 2};
    expect_text(v, some, 3, false, "a");
    expect_text(v, some, 3, true, "<s>a<e>");
    assert_fails(clb_token_bytes(v, 3, true, NULL, &err), &err, COLIBRI_E_USAGE, "token 3");
    clb_vocab_free(v);

    v = small_vocab_load(&(small_vocab){"gpt2", "qwen2", NULL, tokens, merges, NULL, false, false});
    assert_int_equal(clb_vocab_bos(v), CLB_TOKEN_NONE);
    assert_int_equal(clb_vocab_eos(v), CLB_TOKEN_NONE);
    expect(v, "a", CLB_TOKENIZE_BOS, "a");
    clb_vocab_free(v);
}

static void utf8_complete(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n, complete;
    } c[] = {{"", 0, 0},
             {"ab", 2, 2},
             {"a\xC3", 2, 1},
             {"a\xC3\xA9", 3, 3},
             {"\xE4\xB8", 2, 0},
             {"\xE4\xB8\xAD", 3, 3},
             {"\xF0\x9F\x98", 3, 0},
             {"\xF0\x9F\x98\x80", 4, 4},
             {"\x80\x80", 2, 2},     /* never a beginning */
             {"a\xE0\x80", 3, 3},    /* overlong: cannot be completed */
             {"\xED\xA0", 2, 2},     /* surrogate */
             {"\xF4\x90\x80", 3, 3}, /* above U+10FFFF */
             {"\xFF", 1, 1},
             {"\xF0\x9F\x98\x80\xC3", 5, 4}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        if (clb_utf8_complete(c[i].text, c[i].n) != c[i].complete)
            fail_msg("case %zu: %zu", i, clb_utf8_complete(c[i].text, c[i].n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_ids),
        cmocka_unit_test(recorded_texts),
        cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(long_words),
        cmocka_unit_test(every_length_follows_the_definition),
        cmocka_unit_test(halves_that_are_no_tokens),
        cmocka_unit_test(ignore_merges),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(strip_flags_by_name),
        cmocka_unit_test(bos_and_eos),
        cmocka_unit_test(utf8_complete),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
