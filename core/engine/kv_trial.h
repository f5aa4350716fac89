/* One item under one KV strategy: what it answers, how far its logits are from those of the full cache, what it keeps
 * and costs.
 *
 * A trial runs in an own sequence from empty. A prompt is read in pieces, so that a strategy has to choose before it
 * sees what will be asked; or its context is a prompt of its own, and what is asked follows when the strategy has
 * chosen. [engine-thread] */
#ifndef CLB_ENGINE_KV_TRIAL_H
#define CLB_ENGINE_KV_TRIAL_H

#include <stdio.h>

#include "engine/engine.h"
#include "kv/future.h"

typedef struct clb_kv_trial_base clb_kv_trial_base;

typedef struct clb_kv_trial_input {
    const clb_kv_choice *choice;
    uint32_t budget; /* positions per (layer, head); 0: all */
    const uint32_t *ids;
    uint32_t n;            /* prompt tokens; of a text: all */
    uint32_t chunk;        /* tokens of a pass, at most the engine's batch */
    /* The prompt ends here for the strategy, 1 .. n - 1: what comes behind it, the question, is read in pieces as well,
     * but no end of a prompt is told again. Texts: what comes behind is fed token by token, as generated ones are; then
     * it is at most `scored`. 0: there is nothing behind. */
    uint32_t n_context;
    const clb_kv_trial_base *base; /* continues from it; NULL: reads everything */
    clb_kv_future *record; /* notes attention after each pass over the prompt and finishes; NULL: not. The choice is
                            * then clb_kv_trial_recorder() */

    /* Prompts with an answer: greedy, and right if every token of it is the most probable one. */
    const uint32_t *answer;
    uint32_t n_answer;
    /* Prompts whose answer is looked for in what is generated: so many tokens, into `generated`. */
    uint32_t n_generate;

    /* Texts: rows from `scored` on are scored on the token after them; their logits are written to `reference_out`, or
     * compared with what an earlier trial over the same text has written, read from `reference_in`. Both at their
     * start. */
    bool text;
    uint32_t scored;
    FILE *reference_out, *reference_in;

    /* After each pass; may be NULL. A status other than OK ends the trial. */
    int (*look)(void *ctx, const clb_kv_seq *kv, uint32_t n_seen, clb_error *err);
    void *ctx;
} clb_kv_trial_input;

typedef struct clb_kv_trial {
    uint32_t n_right;     /* tokens of the answer */
    clb_tokens generated; /* of n_generate */
    /* Of a text. */
    uint32_t n_scored;
    double nll_sum; /* nats */
    double *nll;    /* [n_scored], in the order of the text */
    /* Against the reference: n_compared rows. kl: sorted. */
    uint32_t n_compared, n_same_top;
    double *kl;
    double delta_p_sum, delta_p_squares; /* of the probability of the token that follows */
    /* What it kept and cost. */
    double retained; /* share of the positions seen, over all layers and heads, at the end */
    uint64_t bytes, peak_bytes;
    uint64_t prefill_ns, decode_ns; /* the former of a text that is not fed by tokens: with the scoring of its logits */
    uint32_t n_prefill, n_decode;   /* tokens */
    uint64_t attention_ns;          /* while generating; of items that generate nothing: all of it */
    uint32_t attention_tokens;      /* in that time */
    uint64_t bad_answers;           /* of the strategy, replaced by the host */
} clb_kv_trial;

/* The context (all of the prompt without n_context) of an item, read in one pass under its choice: trials of the same
 * prompt whose budget or choice is another go on from there, with the results, memory and times that each would have
 * alone (times of reading are those of the base). *out is NULL where that cannot be: several passes, a strategy with
 * state, or one that has dropped something although it had room. in->budget, record, look and base are not used. */
int clb_kv_trial_base_create(clb_engine *engine, const clb_kv_trial_input *in, clb_kv_trial_base **out, clb_error *err);
/* Whether trials under this choice can go on from it. */
bool clb_kv_trial_base_fits(const clb_kv_trial_base *base, const clb_kv_choice *choice);
void clb_kv_trial_base_destroy(clb_kv_trial_base *base); /* NULL: nothing */

/* The choice under which attention is recorded; needs no freeing. */
clb_kv_choice clb_kv_trial_recorder(void);

/* Free with clb_kv_trial_free, also after an error. LIMIT if the item does not fit the context. */
int clb_kv_trial_run(clb_engine *engine, const clb_kv_trial_input *in, clb_kv_trial *out, clb_error *err);
void clb_kv_trial_free(clb_kv_trial *t);

#endif
