#include "engine/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double clb_perplexity_value(const clb_perplexity *p)
{
    return p->n_scored ? exp(p->nll_sum / (double)p->n_scored) : NAN;
}

double clb_perplexity_stderr(const clb_perplexity *p)
{
    if (p->n_scored < 2)
        return NAN;
    const double n = (double)p->n_scored, mean = p->nll_sum / n;
    const double variance = p->nll_squares / n - mean * mean;
    return clb_perplexity_value(p) * sqrt((variance > 0 ? variance : 0) / (n - 1));
}

static double negative_log_likelihood(const float *logits, uint32_t n_vocab, uint32_t token)
{
    float max = logits[0];
    for (uint32_t i = 1; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0.0;
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - (double)max);
    return log(sum) + (double)max - (double)logits[token];
}

/* Logits are scored in slices of about this much: those of a whole batch could outweigh the model. */
#define SLICE_BYTES (8u << 20)

static uint32_t slice_rows(const clb_engine *e)
{
    const size_t rows = SLICE_BYTES / (e->model->hp.n_vocab * sizeof(float));
    return rows < 8 ? 8 : rows > 64 ? 64 : (uint32_t)rows;
}

struct scoring {
    const uint32_t *ids; /* of the chunk */
    uint32_t n_ctx, n_vocab;
    uint32_t position; /* of the first wanted row */
    clb_perplexity *p;
};

static void score_rows(void *ctx, uint32_t first, uint32_t n, const float *logits)
{
    const struct scoring *s = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = s->position + first + i;
        if (position + 1 >= s->n_ctx)
            return;
        const double nll = negative_log_likelihood(logits + (size_t)i * s->n_vocab, s->n_vocab, s->ids[position + 1]);
        s->p->nll_sum += nll;
        s->p->nll_squares += nll * nll;
        s->p->n_scored++;
    }
}

static int run_chunk(clb_engine *e, clb_kv_seq *kv, const uint32_t *ids, uint32_t n_ctx, float *logits,
                     clb_perplexity *p, clb_error *err)
{
    const uint32_t first = n_ctx / 2;
    struct scoring scoring = {.ids = ids, .n_ctx = n_ctx, .n_vocab = e->model->hp.n_vocab, .p = p};
    const clb_logits_sink sink = {.buffer = logits, .rows = slice_rows(e), .take = score_rows, .ctx = &scoring};
    clb_kv_seq_reset(kv);
    for (uint32_t at = 0; at < n_ctx;) {
        const uint32_t n = n_ctx - at < e->batch ? n_ctx - at : e->batch;
        /* logits of the rows from `first` on */
        const uint32_t wanted = at + n <= first ? 0 : at >= first ? n : at + n - first;
        const clb_span span = {.kv = kv,
                               .tokens = ids + at,
                               .n = n,
                               .n_logits = wanted,
                               .phase = COLIBRI_PHASE_PREFILL,
                               .prefill_done = at + n == n_ctx};
        scoring.position = at + n - wanted;
        CLB_TRY(clb_forward_run_to(e->forward, &span, 1, &sink, err));
        at += n;
    }
    p->n_chunks++;
    return COLIBRI_OK;
}

int clb_perplexity_run(clb_engine *e, const uint32_t *ids, size_t n, uint32_t n_ctx, uint32_t max_chunks,
                       void (*on_chunk)(void *ctx, const clb_perplexity *so_far, uint32_t n_total), void *ctx,
                       clb_perplexity *out, clb_error *err)
{
    *out = (clb_perplexity){0};
    if (n_ctx < 4 || n_ctx > e->ctx)
        return clb_fail(err, COLIBRI_E_USAGE, "chunks of %u tokens: must be between 4 and the context of %u", n_ctx,
                        e->ctx);
    const size_t whole = n / n_ctx;
    if (whole == 0)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "the text has %zu tokens, one chunk needs %u: give a longer text or a smaller --ctx", n, n_ctx);
    const uint32_t chunks =
        max_chunks && max_chunks < whole ? max_chunks : (uint32_t)(whole < UINT32_MAX ? whole : UINT32_MAX);
    const bool bos = clb_vocab_add_bos(e->vocab) && clb_vocab_bos(e->vocab) != CLB_TOKEN_NONE;
    uint32_t *chunk = malloc(n_ctx * sizeof *chunk);
    float *logits = malloc((size_t)slice_rows(e) * e->model->hp.n_vocab * sizeof *logits);
    clb_kv_seq *kv = NULL;
    int rc = chunk && logits ? COLIBRI_OK : CLB_NOMEM(err, "perplexity");
    if (!rc)
        rc = clb_engine_new_sequence(e, &kv, err);
    for (uint32_t c = 0; c < chunks && !rc; c++) {
        memcpy(chunk, ids + (size_t)c * n_ctx, n_ctx * sizeof *chunk);
        if (bos)
            chunk[0] = clb_vocab_bos(e->vocab);
        rc = run_chunk(e, kv, chunk, n_ctx, logits, out, err);
        if (!rc && on_chunk)
            on_chunk(ctx, out, chunks);
    }
    if (kv)
        clb_kv_seq_destroy(kv);
    free(chunk);
    free(logits);
    return rc;
}
