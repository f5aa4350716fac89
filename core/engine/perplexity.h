/* Perplexity as llama-perplexity defines it: the text is cut into chunks of n_ctx tokens, each its own sequence; where
 * the vocabulary adds a BOS it replaces the chunk's first token; positions n_ctx/2 .. n_ctx-2 are scored, each on the
 * token after it. [engine-thread] */
#ifndef CLB_ENGINE_PERPLEXITY_H
#define CLB_ENGINE_PERPLEXITY_H

#include "engine/engine.h"

typedef struct clb_perplexity {
    uint32_t n_chunks;
    uint64_t n_scored;
    double nll_sum, nll_squares; /* of the scored tokens, in nats */
} clb_perplexity;

double clb_perplexity_value(const clb_perplexity *p);  /* exp(mean) */
double clb_perplexity_stderr(const clb_perplexity *p); /* of the value, by the delta method */

/* Runs at most max_chunks (0: all) whole chunks; on_chunk (may be NULL) sees the running result after each. */
int clb_perplexity_run(clb_engine *engine, const uint32_t *ids, size_t n, uint32_t n_ctx, uint32_t max_chunks,
                       void (*on_chunk)(void *ctx, const clb_perplexity *so_far, uint32_t n_total), void *ctx,
                       clb_perplexity *out, clb_error *err);

#endif
