/* The reply of the older completions: text_completion, whole or as events. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai_completions.h"

/* Offsets are counted in characters: where the count is. */
struct counted {
    size_t bytes;
    uint64_t chars;
};

static void count_to(struct counted *at, const char *text, size_t bytes)
{
    for (; at->bytes < bytes; at->bytes++)
        at->chars += ((unsigned char)text[at->bytes] & 0xc0) != 0x80;
}

int clb_completions_own_create(const clb_vocab *vocab, clb_openai_prompts *prompts, bool echo,
                               clb_completions_own **out, clb_refusal *r)
{
    clb_completions_own *const own = *out = calloc(1, sizeof *own);
    if (!own)
        return clb_refuse_nomem(r);
    if (!echo)
        return COLIBRI_OK;
    own->n = prompts->n;
    own->echo = calloc(prompts->n, sizeof *own->echo);
    int rc = own->echo ? COLIBRI_OK : COLIBRI_E_NOMEM;
    for (size_t i = 0; i < prompts->n && !rc; i++) {
        clb_buf *const text = &own->echo[i].text;
        struct counted at = {0};
        if (prompts->are_texts) {
            *text = prompts->texts[i];
            prompts->texts[i] = (clb_buf){0};
        } else {
            rc = clb_detokenize(vocab, prompts->tokens[i].ids, prompts->tokens[i].n, false, text, NULL);
        }
        count_to(&at, text->data, text->n);
        own->echo[i].chars = at.chars;
    }
    if (!rc)
        return COLIBRI_OK;
    clb_completions_own_free(own);
    *out = NULL;
    return clb_refuse_nomem(r);
}

void clb_completions_own_free(void *p)
{
    clb_completions_own *const own = p;
    for (size_t i = 0; i < own->n && own->echo; i++) {
        clb_buf_free(&own->echo[i].text);
        for (int k = 0; k < 4; k++)
            clb_jb_free(&own->echo[i].logprobs[k]);
    }
    free(own->echo);
    clb_jb_free(&own->head);
    free(own);
}

/* ---- log probabilities ---- */

static int put_logprobs(clb_completion *c, const char *text, struct counted *at, uint64_t before, size_t skip,
                        const clb_token_info *tokens, size_t n, bool first_is_null, clb_json_buf out[4], clb_error *err)
{
    uint64_t *const offsets = calloc(n + 1, sizeof *offsets);
    if (!offsets)
        return CLB_NOMEM(err, "the reply");
    for (size_t i = 0; i < n; i++) {
        count_to(at, text, tokens[i].text_offset);
        offsets[i] = before + (at->chars > skip ? at->chars - skip : 0);
    }
    clb_openai_legacy_logprobs(clb_completion_app(c)->engine->vocab, tokens, n, offsets, first_is_null, out);
    free(offsets);
    for (int k = 0; k < 4; k++)
        if (out[k].failed)
            return CLB_NOMEM(err, "the reply");
    return COLIBRI_OK;
}

static int scored(clb_completion *c, uint32_t prompt, const char *text, size_t n_text, const clb_token_info *tokens,
                  size_t n, clb_error *err)
{
    clb_echo *const e = &((clb_completions_own *)clb_completion_own(c))->echo[prompt];
    struct counted at = {0};
    /* Some vocabularies put a blank before the text, which is not part of what was given. */
    const size_t skip = n_text > e->text.n ? n_text - e->text.n : 0;
    return put_logprobs(c, text, &at, 0, skip, tokens, n, true, e->logprobs, err);
}

static void put_brackets(const clb_json_buf arrays[4], clb_json_buf *out)
{
    static const char *const names[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
                                        "],\"text_offset\":["};
    for (int k = 0; k < 4; k++) {
        clb_jb_raw(out, names[k]);
        clb_jb_bytes(out, arrays[k].buf.data, arrays[k].buf.n);
        out->failed = out->failed || arrays[k].failed;
    }
    clb_jb_raw(out, "]}");
}

/* ---- chunks ---- */

/* One chunk; takes along what there is of log probabilities. */
static void put_chunk(clb_completion *c, clb_choice *ch, const char *text, size_t n, const char *finish,
                      clb_json_buf *out)
{
    clb_completions_own *const own = clb_completion_own(c);
    if (!own->head.buf.n) {
        clb_jb_raw(&own->head, "data: ");
        clb_openai_head(c, "cmpl-", "text_completion", &own->head);
    }
    out->failed = out->failed || own->head.failed;
    clb_jb_bytes(out, own->head.buf.data, own->head.buf.n);
    clb_jb_raw(out, "\"choices\":[{\"text\":");
    clb_jb_string(out, text, n);
    clb_jb_raw(out, ",\"index\":");
    clb_jb_uint(out, ch->index);
    clb_jb_raw(out, ",\"logprobs\":");
    if (ch->logprobs[0].buf.n) {
        put_brackets(ch->logprobs, out);
        for (int k = 0; k < 4; k++)
            ch->logprobs[k].buf.n = 0;
    } else {
        clb_jb_raw(out, "null");
    }
    clb_openai_chunk_end(c, finish, out);
}

static void chunk(clb_completion *c, clb_choice *ch, const char *text, size_t n, const char *finish, clb_json_buf *out)
{
    put_chunk(c, ch, text, n, finish, out);
    clb_jb_raw(out, "}\n\n");
}

/* The prompt comes first where it is echoed. */
static int open_choice(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    const clb_completions_own *own = clb_completion_own(c);
    if (ch->opened)
        return COLIBRI_OK;
    ch->opened = true;
    ch->own = calloc(1, sizeof(struct counted));
    if (!ch->own)
        return CLB_NOMEM(err, "the reply");
    if (!own->echo)
        return COLIBRI_OK;
    const clb_echo *e = &own->echo[ch->prompt];
    for (int k = 0; k < 4; k++)
        clb_jb_bytes(&ch->logprobs[k], e->logprobs[k].buf.data, e->logprobs[k].buf.n);
    if (clb_completion_options(c)->stream && (e->text.n || ch->logprobs[0].buf.n))
        chunk(c, ch, e->text.data, e->text.n, NULL, out);
    return COLIBRI_OK;
}

static void progress(clb_completion *c, clb_choice *first, const clb_progress_info *p, clb_json_buf *out)
{
    put_chunk(c, first, "", 0, NULL, out);
    clb_jb_raw(out, ",");
    clb_openai_progress(p, out);
    clb_jb_raw(out, "}\n\n");
}

static int text(clb_completion *c, clb_choice *ch, const char *t, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err)
{
    const clb_text_options *o = clb_completion_options(c);
    const clb_completions_own *own = clb_completion_own(c);
    CLB_TRY(open_choice(c, ch, out, err));
    if (!o->stream || o->n_logprobs >= 0) /* offsets are counted in it */
        clb_jb_bytes(&ch->text, t, n);
    if (ch->text.failed)
        return CLB_NOMEM(err, "the reply");
    if (o->n_logprobs >= 0)
        CLB_TRY(put_logprobs(c, ch->text.buf.data, ch->own, own->echo ? own->echo[ch->prompt].chars : 0, 0, tokens,
                             n_tokens, false, ch->logprobs, err));
    if (o->stream && (n || ch->logprobs[0].buf.n))
        chunk(c, ch, t, n, NULL, out);
    return COLIBRI_OK;
}

static int choice_end(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    CLB_TRY(open_choice(c, ch, out, err));
    if (clb_completion_options(c)->stream)
        chunk(c, ch, "", 0, clb_openai_finish(ch->finish), out);
    return COLIBRI_OK;
}

/* ---- the end ---- */

static void stream_end(clb_completion *c, clb_json_buf *out)
{
    const clb_completions_own *own = clb_completion_own(c);
    if (clb_completion_options(c)->include_usage) {
        clb_jb_bytes(out, own->head.buf.data, own->head.buf.n);
        clb_jb_raw(out, "\"choices\":[],");
        clb_openai_usage(c, out);
        clb_jb_raw(out, ",");
        clb_openai_timings(c, out);
        clb_jb_raw(out, "}\n\n");
    }
    clb_jb_raw(out, "data: [DONE]\n\n");
}

static int put_choice(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    const clb_completions_own *own = clb_completion_own(c);
    clb_buf all = {0};
    int rc = COLIBRI_OK;
    if (own->echo)
        rc = clb_buf_append(&all, own->echo[ch->prompt].text.data, own->echo[ch->prompt].text.n, err);
    if (!rc)
        rc = clb_buf_append(&all, ch->text.buf.data, ch->text.buf.n, err);
    if (!rc) {
        clb_jb_raw(out, "{\"text\":");
        clb_jb_string(out, all.n ? all.data : "", all.n);
        clb_jb_raw(out, ",\"index\":");
        clb_jb_uint(out, ch->index);
        clb_jb_raw(out, ",\"logprobs\":");
        if (clb_completion_options(c)->n_logprobs >= 0)
            put_brackets(ch->logprobs, out);
        else
            clb_jb_raw(out, "null");
        clb_jb_raw(out, ",\"finish_reason\":");
        clb_jb_text(out, clb_openai_finish(ch->finish));
        clb_jb_raw(out, "}");
    }
    clb_buf_free(&all);
    return rc;
}

static int end(clb_completion *c, clb_json_buf *out, clb_error *err)
{
    if (clb_completion_options(c)->stream) {
        stream_end(c, out);
        return COLIBRI_OK;
    }
    clb_openai_head(c, "cmpl-", "text_completion", out);
    clb_jb_raw(out, "\"choices\":[");
    for (size_t i = 0; i < clb_completion_n_choices(c); i++) {
        if (i)
            clb_jb_raw(out, ",");
        CLB_TRY(put_choice(c, clb_completion_choice(c, i), out, err));
    }
    clb_jb_raw(out, "],");
    clb_openai_usage(c, out);
    clb_jb_raw(out, ",");
    clb_openai_timings(c, out);
    clb_jb_raw(out, "}");
    return COLIBRI_OK;
}

static void free_choice(clb_choice *ch)
{
    free(ch->own);
}

const clb_completion_shape clb_openai_completions_shape = {
    .prompt_param = "prompt",
    .refuse = clb_openai_refuse,
    .error = clb_openai_stream_error,
    .progress = progress,
    .scored = scored,
    .text = text,
    .choice_end = choice_end,
    .end = end,
    .free_choice = free_choice,
    .free_own = clb_completions_own_free,
};
