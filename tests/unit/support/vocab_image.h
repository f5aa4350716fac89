/* Vocabularies of a few tokens as GGUF bytes. */
#ifndef CLB_TESTS_VOCAB_IMAGE_H
#define CLB_TESTS_VOCAB_IMAGE_H

#include <stdio.h>

#include "gguf_image.h"
#include "text/vocab.h"

/* token_type of the format */
enum { T_NORMAL = 1, T_UNKNOWN, T_CONTROL, T_USER, T_UNUSED, T_BYTE };

typedef struct small_token {
    const char *text;
    int type;
    float score;
} small_token;

typedef struct small_vocab {
    const char *model, *pre, *name; /* NULL: no such key */
    const small_token *tokens;      /* ends with text == NULL */
    const char *const *merges;      /* ends with NULL; NULL: no such key */
    const char *const *keys;        /* "tokenizer.ggml.bos_token_id=3", "...add_bos_token=true"; ends with NULL */
    bool no_scores, no_types;
} small_vocab;

static inline void put_setting(image *im, const char *setting)
{
    char key[128];
    const char *value = strchr(setting, '=') + 1;
    snprintf(key, sizeof key, "%.*s", (int)(value - 1 - setting), setting);
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0) {
        put_key(im, key, CLB_GGUF_BOOL);
        put_int(im, strcmp(value, "true") == 0, 1);
    } else {
        put_key_u32(im, key, (uint32_t)strtoul(value, NULL, 10));
    }
}

static inline void small_vocab_image(const small_vocab *v, image *im)
{
    size_t n = 0, n_merges = 0, n_keys = 0;
    while (v->tokens[n].text)
        n++;
    while (v->merges && v->merges[n_merges])
        n_merges++;
    while (v->keys && v->keys[n_keys])
        n_keys++;
    put_head(im, 3, 0, n_keys + 1 + !!v->model + !!v->pre + !!v->name + !v->no_scores + !v->no_types + !!v->merges);
    if (v->name)
        put_key_text(im, "general.name", v->name);
    if (v->model)
        put_key_text(im, "tokenizer.ggml.model", v->model);
    if (v->pre)
        put_key_text(im, "tokenizer.ggml.pre", v->pre);
    put_key(im, "tokenizer.ggml.tokens", CLB_GGUF_ARRAY);
    put_array_head(im, CLB_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_text(im, v->tokens[i].text);
    if (!v->no_types) {
        put_key(im, "tokenizer.ggml.token_type", CLB_GGUF_ARRAY);
        put_array_head(im, CLB_GGUF_I32, n);
        for (size_t i = 0; i < n; i++)
            put_int(im, (uint32_t)v->tokens[i].type, 4);
    }
    if (!v->no_scores) {
        put_key(im, "tokenizer.ggml.scores", CLB_GGUF_ARRAY);
        put_array_head(im, CLB_GGUF_F32, n);
        for (size_t i = 0; i < n; i++)
            put_bytes(im, &v->tokens[i].score, 4);
    }
    if (v->merges) {
        put_key(im, "tokenizer.ggml.merges", CLB_GGUF_ARRAY);
        put_array_head(im, CLB_GGUF_STRING, n_merges);
        for (size_t i = 0; i < n_merges; i++)
            put_text(im, v->merges[i]);
    }
    for (size_t i = 0; i < n_keys; i++)
        put_setting(im, v->keys[i]);
}

/* Status of loading the image; *out only on success. The vocabulary must not need the GGUF any more. */
static inline int load_image(const image *im, clb_vocab **out, clb_error *err)
{
    clb_gguf *g;
    assert_ok(clb_gguf_open_memory(im->b, im->n, "test.gguf", NULL, NULL, &g, err), err);
    const int rc = clb_vocab_load(g, out, err);
    clb_gguf_close(g);
    return rc;
}

static inline clb_vocab *small_vocab_load(const small_vocab *v)
{
    static image im;
    clb_error err;
    clb_vocab *out;
    small_vocab_image(v, &im);
    assert_ok(load_image(&im, &out, &err), &err);
    return out;
}

/* Texts of the tokens, joined by '|'. */
static inline void expect_tokens(const clb_vocab *v, const char *text, size_t n, uint32_t flags, const char *want)
{
    clb_error err;
    clb_tokens got = {0};
    clb_buf joined = {0};
    assert_ok(clb_tokenize(v, text, n, flags, &got, &err), &err);
    assert_ok(clb_buf_append(&joined, "", 0, &err), &err);
    for (size_t i = 0; i < got.n; i++) {
        const clb_str s = clb_token_text(v, got.ids[i]);
        assert_ok(clb_buf_append(&joined, i ? "|" : "", i ? 1 : 0, &err), &err);
        assert_ok(clb_buf_append(&joined, s.p, s.n, &err), &err);
    }
    if (strcmp(joined.data, want) != 0)
        fail_msg("\"%s\" gives %s, not %s", text, joined.data, want);
    clb_buf_free(&joined);
    clb_tokens_free(&got);
}

#define expect(v, text, flags, want) expect_tokens(v, text, sizeof(text) - 1, flags, want)

/* ids -> bytes -> the same text? */
static inline void expect_text(const clb_vocab *v, const uint32_t *ids, size_t n, bool special, const char *want)
{
    clb_error err;
    clb_buf out = {0};
    assert_ok(clb_buf_append(&out, "", 0, &err), &err);
    assert_ok(clb_detokenize(v, ids, n, special, &out, &err), &err);
    assert_string_equal(out.data, want);
    clb_buf_free(&out);
}

#endif
