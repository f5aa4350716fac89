/* What a plan will be like to use: tokens per second, with the arithmetic.
 *
 * Decoding: every token multiplies the weights it touches once, at the rate that the kernels stream them, and reads its
 * keys and values; experts that are not in memory come from the drive, as do streamed layers. An expert's read runs while
 * the other experts of its layer are multiplied, a streamed layer's while other layers are. Prompts: chunks of `batch`
 * rows, which need nearly every expert once each. Prediction is a range: routing with equal chances is its low end, routing
 * as skewed as published traces its high end; with a trace both are that trace's. */
#ifndef CLB_PLAN_PREDICT_H
#define CLB_PLAN_PREDICT_H

#include "plan/hit_curve.h"
#include "plan/plan.h"
#include "plan/rates.h"

typedef struct clb_predict_input {
    const clb_model *model;
    const clb_plan_input *plan_input;
    const clb_plan *plan;
    const clb_rates *rates;
    const clb_hit_curve *curve; /* of this model; NULL: assumed skew */
    uint32_t n_kv;              /* tokens in the cache while decoding */
} clb_predict_input;

/* One case: how often experts are there, and what follows. */
typedef struct clb_predict_case {
    double hit;                   /* share of expert uses */
    double drive_bytes, drive_ns; /* per token (decode) or chunk (prefill) */
    double pack_ns;               /* of what was read */
    double ns;
    double tokens_per_second;
} clb_predict_case;

typedef struct clb_prediction {
    /* decode, per token */
    double dense_bytes, expert_bytes, kv_bytes; /* read from memory */
    double dense_ns, expert_ns, kv_ns, loop_ns; /* computing */
    double expert_uses;
    double bytes_per_use; /* of an expert, in the file */
    double stream_bytes;  /* of layers, from the drive */
    clb_predict_case decode_low, decode_high;
    /* prefill, per chunk */
    uint32_t chunk_rows;
    double chunk_experts;                   /* that a chunk needs */
    double chunk_dense_ns, chunk_expert_ns, chunk_other_ns; /* products; attention and the rest */
    clb_predict_case prefill_low, prefill_high;
    bool needs_drive; /* while running */
} clb_prediction;

void clb_predict(const clb_predict_input *in, clb_prediction *out);

#endif
