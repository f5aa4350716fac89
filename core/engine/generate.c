/* Generation: sampling, stop strings, whole UTF-8 characters. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/session.h"

const char *clb_finish_name(enum clb_finish finish)
{
    static const char *const names[] = {"stop", "length", "context", "cancelled"};
    return names[finish];
}

void clb_generation_free(clb_generation *g)
{
    clb_buf_free(&g->text);
    clb_tokens_free(&g->tokens);
}

/* Text that is not given out yet: it may end in half a character or in the start of a stop string. */
struct holdback {
    const clb_generate_options *options;
    clb_buf pending;
    clb_buf *out;
};

/* Position of the first stop string in the pending text, or its length if there is none. */
static size_t find_stop(const struct holdback *h, const char **stop)
{
    size_t best = h->pending.n;
    *stop = NULL;
    for (size_t i = 0; i < h->options->n_stops; i++) {
        const char *s = h->options->stops[i];
        if (!*s || !h->pending.n)
            continue;
        const char *at = memmem(h->pending.data, h->pending.n, s, strlen(s));
        if (at && (size_t)(at - h->pending.data) < best) {
            best = (size_t)(at - h->pending.data);
            *stop = s;
        }
    }
    return best;
}

/* How many of the first n pending bytes cannot become part of a stop string. */
static size_t safe_prefix(const struct holdback *h, size_t n)
{
    size_t safe = n;
    for (size_t i = 0; i < h->options->n_stops; i++) {
        const char *s = h->options->stops[i];
        const size_t len = strlen(s);
        for (size_t k = len < n ? len : n; k > 0; k--)
            if (memcmp(h->pending.data + n - k, s, k) == 0) {
                safe = n - k < safe ? n - k : safe;
                break;
            }
    }
    return safe;
}

static int give(struct holdback *h, size_t n, clb_error *err)
{
    if (n == 0)
        return COLIBRI_OK;
    CLB_TRY(clb_buf_append(h->out, h->pending.data, n, err));
    int rc = COLIBRI_OK;
    if (h->options->on_text)
        rc = h->options->on_text(h->options->ctx, h->pending.data, n, err);
    memmove(h->pending.data, h->pending.data + n, h->pending.n - n);
    h->pending.n -= n;
    return rc;
}

/* After a token's bytes were appended to pending: gives out what is safe; *stop is set if a stop string is complete. */
static int advance(struct holdback *h, const char **stop, clb_error *err)
{
    const size_t at = find_stop(h, stop);
    if (*stop)
        return give(h, at, err);
    return give(h, clb_utf8_complete(h->pending.data, safe_prefix(h, h->pending.n)), err);
}

static int sample_loop(clb_session *s, clb_engine *engine, clb_sampler *sampler, struct holdback *h,
                       const clb_generate_options *o, clb_generation *out, clb_error *err)
{
    out->finish = CLB_FINISH_LENGTH;
    while (o->max_tokens == 0 || out->tokens.n < o->max_tokens) {
        if (o->cancelled && o->cancelled(o->cancelled_ctx)) {
            out->finish = CLB_FINISH_CANCELLED;
            return COLIBRI_OK;
        }
        uint32_t token;
        CLB_TRY(clb_sampler_sample(sampler, clb_session_logits(s), &token, err));
        clb_sampler_accept(sampler, token);
        if (!o->ignore_eog && clb_vocab_is_eog(engine->vocab, token)) {
            out->finish = CLB_FINISH_STOP;
            return COLIBRI_OK;
        }
        CLB_TRY(clb_tokens_push(&out->tokens, token, err));
        if (token < clb_vocab_size(engine->vocab))
            CLB_TRY(clb_token_bytes(engine->vocab, token, o->special, &h->pending, err));
        CLB_TRY(advance(h, &out->stop, err));
        if (out->stop) {
            out->finish = CLB_FINISH_STOP;
            return COLIBRI_OK;
        }
        if (out->tokens.n == o->max_tokens)
            return COLIBRI_OK;
        int rc = COLIBRI_OK;
        if (clb_session_full(s)) {
            if (engine->context_shift)
                rc = clb_session_shift(s, err);
            if (!engine->context_shift || rc == COLIBRI_E_LIMIT) { /* nothing can be dropped */
                out->finish = CLB_FINISH_CONTEXT;
                return COLIBRI_OK;
            }
        }
        if (!rc)
            rc = clb_session_append(s, token, err);
        if (rc == COLIBRI_E_CANCELLED) {
            out->finish = CLB_FINISH_CANCELLED;
            return COLIBRI_OK;
        }
        CLB_TRY(rc);
    }
    return COLIBRI_OK;
}

int clb_session_generate(clb_session *s, const uint32_t *prompt, size_t n, const clb_generate_options *options,
                         clb_generation *out, clb_error *err)
{
    *out = (clb_generation){.n_prompt = (uint32_t)n};
    clb_engine *engine = clb_session_engine(s);
    clb_sampler *sampler = NULL;
    struct holdback h = {.options = options, .out = &out->text};
    int rc = COLIBRI_OK;
    CLB_GO(clb_sampler_create(&options->sampling, engine->model->hp.n_vocab, &sampler, err));
    const uint64_t t0 = clb_now_ns();
    size_t reused = 0;
    CLB_GO(clb_session_feed(s, prompt, n, &reused, err));
    out->n_reused = (uint32_t)reused;
    out->reuse = clb_session_reuse(s);
    for (size_t i = 0; i < n; i++)
        clb_sampler_accept(sampler, prompt[i]);
    const uint64_t t1 = clb_now_ns();
    out->prompt_ns = t1 - t0;
    rc = sample_loop(s, engine, sampler, &h, options, out, err);
    out->decode_ns = clb_now_ns() - t1;
    if (rc == COLIBRI_OK && !out->stop) /* half characters at the very end are given out as they are */
        rc = give(&h, h.pending.n, err);
done:
    clb_buf_free(&h.pending);
    clb_sampler_destroy(sampler);
    return rc;
}
