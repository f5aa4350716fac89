#include "serve/openai_prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void clb_openai_prompts_free(clb_openai_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->tokens)
            clb_tokens_free(&p->tokens[i]);
        if (p->texts)
            clb_buf_free(&p->texts[i]);
    }
    free(p->tokens);
    free(p->texts);
    *p = (clb_openai_prompts){0};
}

bool clb_fim_tokens(const clb_vocab *vocab, uint32_t ids[3])
{
    static const char *const names[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen2.5-Coder, CodeGemma */
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, Granite */
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},       /* SantaCoder */
        {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}, /* DeepSeek */
        {"▁<PRE>", "▁<SUF>", "▁<MID>"},                         /* Code Llama */
    };
    uint32_t found[sizeof names / sizeof *names][3];
    memset(found, 0xff, sizeof found);
    for (uint32_t id = 0; id < clb_vocab_size(vocab); id++) {
        const clb_str t = clb_token_text(vocab, id);
        for (size_t f = 0; f < sizeof names / sizeof *names; f++)
            for (size_t k = 0; k < 3; k++)
                if (t.n == strlen(names[f][k]) && memcmp(t.p, names[f][k], t.n) == 0)
                    found[f][k] = id;
    }
    for (size_t f = 0; f < sizeof names / sizeof *names; f++)
        if (found[f][0] != UINT32_MAX && found[f][1] != UINT32_MAX && found[f][2] != UINT32_MAX) {
            memcpy(ids, found[f], sizeof found[f]);
            return true;
        }
    return false;
}

/* {BOS} {prefix} text {suffix} suffix {middle} */
static int fill_in(const clb_vocab *vocab, const clb_buf *text, const char *suffix, clb_tokens *out, clb_error *err)
{
    uint32_t ids[3];
    if (!clb_fim_tokens(vocab, ids))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "this model's vocabulary has no tokens for filling in");
    if (clb_vocab_add_bos(vocab) && clb_vocab_bos(vocab) != CLB_TOKEN_NONE)
        CLB_TRY(clb_tokens_push(out, clb_vocab_bos(vocab), err));
    CLB_TRY(clb_tokens_push(out, ids[0], err));
    CLB_TRY(clb_tokenize(vocab, text->data, text->n, 0, out, err));
    CLB_TRY(clb_tokens_push(out, ids[1], err));
    CLB_TRY(clb_tokenize(vocab, suffix, strlen(suffix), 0, out, err));
    return clb_tokens_push(out, ids[2], err);
}

static int add_text(const clb_vocab *vocab, const json_t *v, const char *param, const char *suffix, uint32_t flags,
                    clb_openai_prompts *out, clb_refusal *r)
{
    clb_error err = {0};
    const size_t i = out->n++;
    if (clb_buf_append(&out->texts[i], json_string_value(v), json_string_length(v), &err))
        return clb_refuse_nomem(r);
    const int rc = suffix ? fill_in(vocab, &out->texts[i], suffix, &out->tokens[i], &err)
                          : clb_tokenize(vocab, out->texts[i].data, out->texts[i].n, flags, &out->tokens[i], &err);
    if (rc == COLIBRI_E_UNSUPPORTED)
        return clb_refuse(r, "unsupported_parameter", "suffix", "Unsupported parameter: 'suffix': %s.", err.msg);
    if (rc)
        return clb_refuse_status(r, rc, err.msg);
    if (!out->tokens[i].n)
        return clb_refuse(r, "empty_string", param,
                          "Invalid '%s': empty string, and the model has no token to begin a text with.", param);
    return COLIBRI_OK;
}

static int add_ids(const clb_vocab *vocab, const json_t *v, const char *param, clb_openai_prompts *out, clb_refusal *r)
{
    const size_t i = out->n++;
    size_t k;
    json_t *id;
    if (!json_array_size(v))
        return clb_refuse(r, "empty_array", param, "Invalid '%s': empty array. Expected at least one token.", param);
    json_array_foreach((json_t *)v, k, id)
    {
        char where[128];
        snprintf(where, sizeof where, "%s[%zu]", param, k);
        if (!json_is_integer(id))
            return clb_refuse_type(r, where, "an integer", id);
        if (json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)clb_vocab_size(vocab))
            return clb_refuse(r, "invalid_value", where, "Invalid '%s': token %lld. Expected an id from 0 to %u.",
                              where, (long long)json_integer_value(id), clb_vocab_size(vocab) - 1);
        if (clb_tokens_push(&out->tokens[i], (uint32_t)json_integer_value(id), NULL))
            return clb_refuse_nomem(r);
    }
    return COLIBRI_OK;
}

int clb_openai_prompts_read(const clb_vocab *vocab, const json_t *body, const char *name, const char *suffix,
                            uint32_t flags, clb_openai_prompts *out, clb_refusal *r)
{
    const json_t *v = json_object_get(body, name);
    *out = (clb_openai_prompts){0};
    if (!v || json_is_null(v))
        return clb_refuse_missing(r, name);
    if (!json_is_string(v) && !json_is_array(v))
        return clb_refuse_type(r, name, "a string or an array", v);
    const json_t *first = json_array_get(v, 0);
    const bool several = json_is_string(first) || json_is_array(first);
    if (json_is_array(v) && !first)
        return clb_refuse(r, "empty_array", name, "Invalid '%s': empty array. Expected at least one string or token.",
                          name);
    const size_t n = several ? json_array_size(v) : 1;
    if (n > CLB_PROMPTS_MOST)
        return clb_refuse(r, "array_above_max_length", name,
                          "Invalid '%s': array too long. Expected at most %d items, but got %zu.", name,
                          CLB_PROMPTS_MOST, n);
    out->are_texts = json_is_string(v) || json_is_string(first);
    if (suffix && !out->are_texts)
        return clb_refuse(r, "invalid_value", "suffix", "'suffix' needs a '%s' of text.", name);
    out->tokens = calloc(n, sizeof *out->tokens);
    out->texts = calloc(n, sizeof *out->texts);
    if (!out->tokens || !out->texts)
        return clb_refuse_nomem(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = several ? json_array_get(v, i) : v;
        char param[64];
        snprintf(param, sizeof param, several ? "%s[%zu]" : "%s", name, i);
        if (out->are_texts && !json_is_string(item))
            return clb_refuse_type(r, param, "a string", item);
        if (!out->are_texts && !json_is_array(item))
            return clb_refuse_type(r, param, "an array of tokens", item);
        CLB_TRY(out->are_texts ? add_text(vocab, item, param, suffix, flags, out, r)
                               : add_ids(vocab, item, param, out, r));
    }
    return COLIBRI_OK;
}
