/* Loading vocabularies: what a hostile or odd file may say, and which tokens end a generation. */
#include "support/vocab_image.h"

static const small_token abc[] = {{"a", T_NORMAL, 0}, {"b", T_NORMAL, 0}, {"ab", T_NORMAL, 0}, {NULL, 0, 0}};
static const char *const no_merges[] = {NULL};

static void refuses(const small_vocab *v, int status, const char *part)
{
    static image im;
    clb_error err;
    clb_vocab *out = NULL;
    small_vocab_image(v, &im);
    assert_fails(load_image(&im, &out, &err), &err, status, part);
    assert_null(out);
}

static small_vocab bpe(void)
{
    return (small_vocab){"gpt2", "gpt-2", NULL, abc, no_merges, NULL, false, false};
}

static void unknown_kinds(void **state)
{
    (void)state;
    small_vocab v = bpe();
    v.pre = "qwen3";
    refuses(&v, COLIBRI_E_UNSUPPORTED, "did you mean \"qwen2\"?; known families: gpt-2, smollm, ");
    v.pre = "zzzzzzzzzz";
    refuses(&v, COLIBRI_E_UNSUPPORTED, "unknown pre-tokenizer \"zzzzzzzzzz\"");
    v.pre = NULL;
    refuses(&v, COLIBRI_E_UNSUPPORTED, "tokenizer.ggml.pre is missing");
    v.model = "gpt3";
    refuses(&v, COLIBRI_E_UNSUPPORTED, "unknown tokenizer \"gpt3\"");
    v.model = "t5";
    refuses(&v, COLIBRI_E_UNSUPPORTED, "unknown tokenizer \"t5\"");
    v.model = NULL;
    refuses(&v, COLIBRI_E_NOT_FOUND, "tokenizer.ggml.model");
}

static void bad_ids(void **state)
{
    (void)state;
    static const char *const setting[] = {"tokenizer.ggml.bos_token_id=3", "tokenizer.ggml.eos_token_id=3",
                                          "tokenizer.ggml.eot_token_id=77",
                                          "tokenizer.ggml.unknown_token_id=4000000000"};
    for (size_t i = 0; i < 4; i++) {
        const char *const keys[] = {setting[i], NULL};
        small_vocab v = bpe();
        v.keys = keys;
        refuses(&v, COLIBRI_E_FORMAT, "outside the vocabulary of 3");
    }
}

static void bad_merges(void **state)
{
    (void)state;
    static const char *const broken[] = {"ab", "", "a", "a ", " ab", "  "};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const char *const merges[] = {"a b", broken[i], NULL};
        small_vocab v = bpe();
        v.merges = merges;
        refuses(&v, COLIBRI_E_FORMAT, "merges[1] is not a pair");
    }
    small_vocab v = bpe();
    v.merges = NULL;
    refuses(&v, COLIBRI_E_NOT_FOUND, "merges is missing");
    /* halves outside the byte alphabet cannot occur in any word: not an error, no effect */
    static const char *const odd[] = {"\xE2\x96\x81 a", "a b", "a b", NULL};
    v.merges = odd;
    clb_vocab *ok = small_vocab_load(&v);
    expect(ok, "ab", 0, "ab");
    clb_vocab_free(ok);
}

/* Keys of the wrong type or length, laid down by hand. */
static void bad_arrays(void **state)
{
    (void)state;
    static image im;
    clb_error err;
    clb_vocab *out = NULL;
    for (int kind = 0; kind < 7; kind++) {
        put_head(&im, 3, 0, 4);
        put_key_text(&im, "tokenizer.ggml.model", "llama");
        put_key(&im, "tokenizer.ggml.tokens", CLB_GGUF_ARRAY);
        if (kind == 0) {
            put_array_head(&im, CLB_GGUF_U8, 0);
        } else if (kind == 1) {
            put_array_head(&im, CLB_GGUF_U8, 2);
            put_int(&im, 0, 2);
        } else {
            put_array_head(&im, CLB_GGUF_STRING, 2);
            put_text(&im, "a");
            put_text(&im, "b");
        }
        put_key(&im, "tokenizer.ggml.scores", CLB_GGUF_ARRAY);
        put_array_head(&im, CLB_GGUF_F32, kind == 2 ? 1 : 2);
        put_int(&im, kind == 3 ? 0x7FC00000u : 0, 4);
        if (kind != 2)
            put_int(&im, 0, 4);
        if (kind == 5) {
            put_key_u32(&im, "tokenizer.ggml.token_type", 3);
        } else {
            put_key(&im, "tokenizer.ggml.token_type", CLB_GGUF_ARRAY);
            put_array_head(&im, CLB_GGUF_I32, kind == 4 ? 3 : 2);
            put_int(&im, 0xFFFFFFFFu, 4);
            put_int(&im, 99, 4);
            if (kind == 4)
                put_int(&im, 1, 4);
        }
        static const char *const part[] = {
            "0 tokens", "tokens", "scores has 1 entries", "not a number", "token_type has 3 entries", "not an array"};
        if (kind < 6)
            assert_fails(load_image(&im, &out, &err), &err, COLIBRI_E_FORMAT, part[kind]);
        else /* unknown types are taken as undefined, ids 1 and 2 of the defaults where they exist */
            assert_ok(load_image(&im, &out, &err), &err);
    }
    assert_int_equal(clb_vocab_bos(out), 1);
    assert_int_equal(clb_vocab_eos(out), CLB_TOKEN_NONE);
    clb_vocab_free(out);
}

static void long_token(void **state)
{
    (void)state;
    static char text[5000];
    memset(text, 'x', sizeof text - 1);
    const small_token tokens[] = {{"a", T_NORMAL, 0}, {text, T_USER, 0}, {NULL, 0, 0}};
    small_vocab v = bpe();
    v.tokens = tokens;
    refuses(&v, COLIBRI_E_LIMIT, "token 1 is 4999 bytes");
}

static void equal_tokens(void **state)
{
    (void)state;
    const small_token tokens[] = {
        {"a", T_NORMAL, 0}, {"b", T_NORMAL, 0}, {"a", T_NORMAL, 0}, {"", T_NORMAL, 0}, {NULL, 0, 0}};
    small_vocab small = bpe();
    small.tokens = tokens;
    clb_vocab *v = small_vocab_load(&small);
    clb_error err;
    clb_tokens ids = {0};
    assert_ok(clb_tokenize(v, "ab", 2, 0, &ids, &err), &err);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 0); /* the first of equals */
    const uint32_t all[] = {0, 1, 2, 3};
    expect_text(v, all, 4, true, "aba");
    clb_tokens_free(&ids);
    clb_vocab_free(v);
}

static uint32_t id_of(const clb_vocab *v, const char *text)
{
    for (uint32_t i = 0; i < clb_vocab_size(v); i++) {
        const clb_str s = clb_token_text(v, i);
        if (s.n == strlen(text) && memcmp(s.p, text, s.n) == 0)
            return i;
    }
    fail_msg("no token %s", text);
    return 0;
}

static void ends_of_generation(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},
                                         {"<|im_end|>", T_NORMAL, 0},
                                         {"<|endoftext|>", T_CONTROL, 0},
                                         {"</s>", T_NORMAL, 0},
                                         {"<|end|>", T_CONTROL, 0},
                                         {"<odd>", T_CONTROL, 0},
                                         {"<|im_start|>", T_CONTROL, 0},
                                         {"<EOT>", T_USER, 0},
                                         {"<|fim_suffix|>", T_USER, 0},
                                         {NULL, 0, 0}};
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id=5", NULL};
    small_vocab small = bpe();
    small.tokens = tokens;
    small.keys = keys;
    clb_vocab *v = small_vocab_load(&small);
    assert_true(clb_vocab_is_eog(v, id_of(v, "<|im_end|>")));
    assert_true(clb_vocab_is_control(v, id_of(v, "<|im_end|>"))); /* whatever type the file gives it */
    assert_true(clb_vocab_is_eog(v, id_of(v, "<|endoftext|>")));
    assert_true(clb_vocab_is_eog(v, id_of(v, "<|end|>")));
    assert_true(clb_vocab_is_eog(v, id_of(v, "<odd>"))); /* by id */
    assert_true(clb_vocab_is_eog(v, id_of(v, "<EOT>")));
    assert_false(clb_vocab_is_eog(v, id_of(v, "</s>"))); /* an ordinary token, HTML */
    assert_false(clb_vocab_is_control(v, id_of(v, "</s>")));
    assert_false(clb_vocab_is_eog(v, id_of(v, "<|im_start|>")));
    assert_true(clb_vocab_is_control(v, id_of(v, "<|fim_suffix|>")));
    clb_vocab_free(v);
}

static void gpt_oss_marks(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},
                                         {"<|return|>", T_CONTROL, 0},
                                         {"<|call|>", T_CONTROL, 0},
                                         {"<|end|>", T_CONTROL, 0},
                                         {"<|channel|>", T_CONTROL, 0},
                                         {"<|message|>", T_CONTROL, 0},
                                         {"<|start|>", T_CONTROL, 0},
                                         {"<", T_NORMAL, 0},
                                         {"|", T_NORMAL, 0},
                                         {NULL, 0, 0}};
    small_vocab small = bpe();
    small.tokens = tokens;
    clb_vocab *v = small_vocab_load(&small);
    assert_true(clb_vocab_is_eog(v, 1) && clb_vocab_is_eog(v, 2));
    assert_false(clb_vocab_is_eog(v, 3)); /* closes a message only */
    const uint32_t ids[] = {6, 4, 0, 5, 0, 3, 1};
    expect_text(v, ids, 7, false, "<|start|><|channel|>a<|message|>a<|end|>");
    expect(v, "a<|channel|>", CLB_TOKENIZE_SPECIAL, "a|<|channel|>");
    expect(v, "a<|", 0, "a|<||"); /* and user text cannot forge one */
    clb_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_kinds),      cmocka_unit_test(bad_ids),       cmocka_unit_test(bad_merges),
        cmocka_unit_test(bad_arrays),         cmocka_unit_test(long_token),    cmocka_unit_test(equal_tokens),
        cmocka_unit_test(ends_of_generation), cmocka_unit_test(gpt_oss_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
