/* Sampling: logits to one token.
 *
 * Order: penalties, then top-k, top-p, min-p on the sorted candidates, then temperature and the draw. Temperature 0 is
 * the argmax of the penalised logits. Ties go to the lower id. Everything is computed in a fixed order with the
 * contract's own exp, and the generator is our own: the same seed gives the same tokens everywhere.
 * One sampler serves one sequence. [engine-thread] */
#ifndef CLB_ENGINE_SAMPLER_H
#define CLB_ENGINE_SAMPLER_H

#include <stdint.h>

#include "base/error.h"

typedef struct clb_sampler_params {
    double temperature;
    uint32_t top_k;        /* 0: all */
    double top_p, min_p;   /* 1 and 0: off */
    double repeat_penalty; /* 1: off */
    double presence_penalty, frequency_penalty;
    uint32_t repeat_last_n; /* tokens the penalties see */
    uint64_t seed;
} clb_sampler_params;

typedef struct clb_sampler clb_sampler;

int clb_sampler_create(const clb_sampler_params *params, uint32_t n_vocab, clb_sampler **out, clb_error *err);
void clb_sampler_destroy(clb_sampler *s);
/* A token (of the prompt or sampled) enters the window of the penalties. */
void clb_sampler_accept(clb_sampler *s, uint32_t token);
/* One more addition to the logit of a token, for the sampler's life; -INFINITY: never that token. Tokens outside the vocabulary are
 * ignored. */
int clb_sampler_add_bias(clb_sampler *s, uint32_t token, float bias, clb_error *err);
/* logits: [n_vocab], not changed. INTERNAL if no logit is a number, LIMIT if the biases forbid every token. */
int clb_sampler_sample(clb_sampler *s, const float *logits, uint32_t *token, clb_error *err);
/* Only tokens whose bit is set may be chosen: bit id % 64 of allowed[id / 64] (grammar.h); NULL: all. LIMIT if none is left. */
int clb_sampler_sample_masked(clb_sampler *s, const float *logits, const uint64_t *allowed, uint32_t *token, clb_error *err);

#endif
