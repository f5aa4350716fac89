/* SentencePiece vocabularies (merges by score, U+2581 for spaces, byte fallback) and WordPiece. */
#include "support/vocab_image.h"

#define SP "\xE2\x96\x81"

static const small_token tokens[] = {{"<unk>", T_UNKNOWN, 0}, {"<s>", T_CONTROL, 0}, {"</s>", T_CONTROL, 0},
                                     {"<0x0A>", T_BYTE, 0},   {"<0xC3>", T_BYTE, 0}, {"<0xA9>", T_BYTE, 0},
                                     {"<0xFF>", T_BYTE, 0},   {SP, T_NORMAL, -9},    {"a", T_NORMAL, -8},
                                     {"b", T_NORMAL, -8},     {"c", T_NORMAL, -8},   {"ab", T_NORMAL, -1},
                                     {"bc", T_NORMAL, -0.5f}, {"abc", T_NORMAL, -7}, {SP "a", T_NORMAL, -2},
                                     {"<u>", T_USER, -1000},  {SP SP, T_NORMAL, -3}, {NULL, 0, 0}};

static small_vocab spm(void)
{
    return (small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false};
}

static void scores_and_prefix(void **state)
{
    (void)state;
    clb_vocab *v = small_vocab_load(&(small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false});
    assert_string_equal(clb_vocab_model(v), "llama");
    expect(v, "a", 0, SP "a");
    expect(v, "a", CLB_TOKENIZE_BOS, "<s>|" SP "a"); /* SPM adds BOS by default */
    expect(v, "", CLB_TOKENIZE_BOS, "<s>");
    expect(v, "", 0, "");
    expect(v, "abc", 0, SP "a|bc"); /* bc first (-0.5), then _a (-2): abc is out of reach */
    expect(v, "  a", 0, SP SP "|" SP "a");
    expect(v, "b a", 0, SP "|b|" SP "a");
    clb_vocab_free(v);
}

static void prefix_after_special(void **state)
{
    (void)state;
    clb_vocab *v = small_vocab_load(&(small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false});
    expect(v, "a</s>a", CLB_TOKENIZE_SPECIAL, SP "a|</s>|" SP "a");
    expect(v, "a<u>a", 0, SP "a|<u>|" SP "a");
    expect(v, "<u>", 0, "<u>");
    clb_vocab_free(v);

    static const char *const no_prefix[] = {"tokenizer.ggml.add_space_prefix=false", NULL};
    small_vocab small = spm();
    small.keys = no_prefix;
    v = small_vocab_load(&small);
    expect(v, "abc", 0, "abc");
    expect(v, "a</s>a", CLB_TOKENIZE_SPECIAL, "a|</s>|a");
    clb_vocab_free(v);
}

static void bytes_and_unknown(void **state)
{
    (void)state;
    clb_vocab *v = small_vocab_load(&(small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false});
    expect(v, "a\n", 0, SP "a|<0x0A>");
    expect(v, "\xC3\xA9", 0, SP "|<0xC3>|<0xA9>");
    expect(v,
           "\xFF"
           "a",
           0, SP "|<0xFF>|a"); /* a stray byte does not swallow its neighbour */
    expect(v,
           "\xC3"
           "a",
           0, SP "|<0xC3>|a");
    expect(v, "\xE4\xB8\xAD", 0, SP "|<unk>"); /* no token for these bytes: one UNK per character */
    clb_vocab_free(v);
}

static void back_to_text(void **state)
{
    (void)state;
    clb_vocab *v = small_vocab_load(&(small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false});
    const uint32_t plain[] = {14, 12, 3, 4, 5}, marked[] = {1, 14, 2, 14}, spaces[] = {16, 8};
    expect_text(v, plain, 5, false, "abc\n\xC3\xA9");
    expect_text(v, marked, 4, false, "aa");
    expect_text(v, marked, 4, true, "<s>a</s>a");
    expect_text(v, spaces, 2, false, " a"); /* only one space was put there */
    clb_error err;
    clb_buf out = {0};
    assert_ok(clb_token_bytes(v, 14, false, &out, &err), &err);
    assert_string_equal(out.data, " a"); /* a token alone keeps its space */
    clb_buf_free(&out);
    clb_vocab_free(v);
}

/* The work for one long word must not be its square. */
static void long_text(void **state)
{
    (void)state;
    clb_vocab *v = small_vocab_load(&(small_vocab){"llama", NULL, NULL, tokens, NULL, NULL, false, false});
    const size_t n = (size_t)1 << 20;
    char *text = malloc(n);
    clb_error err;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = "abc "[i % 4];
    clb_tokens ids = {0};
    clb_buf back = {0};
    assert_ok(clb_tokenize(v, text, n, 0, &ids, &err), &err);
    assert_ok(clb_detokenize(v, ids.ids, ids.n, false, &back, &err), &err);
    assert_int_equal(back.n, n);
    assert_memory_equal(back.data, text, n);
    clb_tokens_free(&ids);
    clb_buf_free(&back);
    free(text);
    clb_vocab_free(v);
}

static void word_pieces(void **state)
{
    (void)state;
    static const small_token bert[] = {{"[PAD]", T_CONTROL, 0},
                                       {"[UNK]", T_UNKNOWN, 0},
                                       {"[CLS]", T_CONTROL, 0},
                                       {"[SEP]", T_CONTROL, 0},
                                       {SP "cafe", T_NORMAL, 0},
                                       {SP "ca", T_NORMAL, 0},
                                       {"r", T_NORMAL, 0},
                                       {SP ",", T_NORMAL, 0},
                                       {SP "\xE4\xB8\xAD", T_NORMAL, 0},
                                       {SP "r", T_NORMAL, 0},
                                       {NULL, 0, 0}};
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id=2", "tokenizer.ggml.unknown_token_id=1",
                                       "tokenizer.ggml.seperator_token_id=3", NULL};
    static const char *const cased[] = {"tokenizer.ggml.bos_token_id=2", "tokenizer.ggml.unknown_token_id=1",
                                        "tokenizer.ggml.seperator_token_id=3",
                                        "tokenizer.ggml.normalizer.lowercase=false", NULL};
    small_vocab small = {"bert", "jina-v2-en", NULL, bert, NULL, keys, true, false};
    clb_vocab *v = small_vocab_load(&small);
    expect(v, "Caf\xC3\xA9, car", CLB_TOKENIZE_BOS, "[CLS]|" SP "cafe|" SP ",|" SP "ca|r|[SEP]");
    expect(v, "cafx r", 0, "[UNK]|" SP "r");
    expect(v,
           "r\xE4\xB8\xAD"
           "r",
           0, SP "r|" SP "\xE4\xB8\xAD|" SP "r");
    expect(v, " \t\xFF\x01 ", 0, "");
    expect(v, "car[SEP]car", CLB_TOKENIZE_SPECIAL, SP "ca|r|[SEP]|" SP "ca|r");
    const uint32_t ids[] = {2, 4, 7, 5, 6, 3};
    expect_text(v, ids, 6, false, "cafe , car");
    clb_vocab_free(v);
    small.keys = cased;
    v = small_vocab_load(&small);
    expect(v, "CAR car", 0, "[UNK]|" SP "ca|r");
    clb_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_and_prefix), cmocka_unit_test(prefix_after_special),
        cmocka_unit_test(bytes_and_unknown), cmocka_unit_test(back_to_text),
        cmocka_unit_test(long_text),         cmocka_unit_test(word_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
