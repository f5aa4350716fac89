/* Generation: sampling, stop strings, whole UTF-8 characters. */
#include <stdlib.h>

#include "base/clock.h"
#include "engine/session.h"
#include "engine/text_stream.h"

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

/* Text that is not given out yet. */
struct holdback {
    const clb_generate_options *options;
    clb_text_stream stream;
    clb_buf *out;
};

static int give(struct holdback *h, size_t n, clb_error *err)
{
    if (n == 0)
        return COLIBRI_OK;
    CLB_TRY(clb_buf_append(h->out, h->stream.pending.data, n, err));
    int rc = COLIBRI_OK;
    if (h->options->on_text)
        rc = h->options->on_text(h->options->ctx, h->stream.pending.data, n, err);
    clb_text_stream_take(&h->stream, n);
    return rc;
}

/* After a token's bytes were appended to pending: gives out what is safe; *stop is set if a stop string is complete. */
static int advance(struct holdback *h, const char **stop, clb_error *err)
{
    return give(h, clb_text_stream_ready(&h->stream, stop), err);
}

/* mask: room for the matcher's, or NULL. */
static int sample(clb_session *s, clb_sampler *sampler, const clb_generate_options *o, uint64_t *mask, uint32_t *token,
                  clb_error *err)
{
    if (o->matcher)
        CLB_TRY(clb_matcher_mask(o->matcher, mask, err));
    CLB_TRY(clb_sampler_sample_masked(sampler, clb_session_logits(s), o->matcher ? mask : NULL, token, err));
    return o->matcher ? clb_matcher_accept(o->matcher, *token, err) : COLIBRI_OK;
}

static int sample_loop(clb_session *s, clb_engine *engine, clb_sampler *sampler, uint64_t *mask, struct holdback *h,
                       const clb_generate_options *o, clb_generation *out, clb_error *err)
{
    out->finish = CLB_FINISH_LENGTH;
    while (o->max_tokens == 0 || out->tokens.n < o->max_tokens) {
        if (o->cancelled && o->cancelled(o->cancelled_ctx)) {
            out->finish = CLB_FINISH_CANCELLED;
            return COLIBRI_OK;
        }
        uint32_t token;
        CLB_TRY(sample(s, sampler, o, mask, &token, err));
        clb_sampler_accept(sampler, token);
        if (!o->ignore_eog && clb_vocab_is_eog(engine->vocab, token)) {
            out->finish = CLB_FINISH_STOP;
            return COLIBRI_OK;
        }
        CLB_TRY(clb_tokens_push(&out->tokens, token, err));
        if (token < clb_vocab_size(engine->vocab))
            CLB_TRY(clb_token_bytes(engine->vocab, token, o->special, &h->stream.pending, err));
        CLB_TRY(advance(h, &out->stop, err));
        if (out->stop || (o->matcher && clb_matcher_must_end(o->matcher))) {
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
    struct holdback h = {.options = options, .stream = {options->stops, options->n_stops, {0}}, .out = &out->text};
    int rc = COLIBRI_OK;
    uint64_t *mask = options->matcher ? calloc(engine->model->hp.n_vocab / 64 + 1, sizeof *mask) : NULL;
    if (options->matcher && !mask)
        return CLB_NOMEM(err, "a mask of tokens");
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
    rc = sample_loop(s, engine, sampler, mask, &h, options, out, err);
    out->decode_ns = clb_now_ns() - t1;
    if (rc == COLIBRI_OK && !out->stop) /* half characters at the very end are given out as they are */
        rc = give(&h, h.stream.pending.n, err);
done:
    clb_text_stream_free(&h.stream);
    clb_sampler_destroy(sampler);
    free(mask);
    return rc;
}
