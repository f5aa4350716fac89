/* The forward pass over rows of several sequences.
 *
 * One call processes spans: consecutive new tokens of one sequence each. The logits of a row depend on its own
 * sequence alone, bit for bit: not on the other spans, on how a prompt is cut into spans, on threads or placement. */
#ifndef CLB_MODEL_FORWARD_H
#define CLB_MODEL_FORWARD_H

#include "kv/kv.h"
#include "model/compute.h"
#include "model/model.h"

typedef struct clb_span {
    clb_kv_seq *kv;
    const uint32_t *tokens; /* [n] */
    uint32_t n;
    uint32_t n_logits;      /* logits wanted for the last n_logits rows */
    enum colibri_phase phase;
    bool prefill_done;      /* the span holds the last token of the prompt */
} clb_span;

typedef struct clb_forward clb_forward;

typedef struct clb_forward_options {
    clb_model *model;
    clb_pool *pool;
    clb_kv_layout kv_layout; /* of every span's sequence */
    uint32_t max_rows; /* rows of one call, all spans together */
    /* Sees every routing decision before the experts are looked up (traces, tests); NULL: none. */
    void (*on_route)(void *ctx, const struct colibri_route *route);
    void *on_route_ctx;
    /* May change the decisions of one MoE layer: probs [n_rows][n_experts], ids and gates [n_rows][top_k]. For tests and
     * experiments (changed routing is lossy); NULL: none. */
    void (*adjust_route)(void *ctx, uint32_t layer, uint32_t n_rows, const float *probs, uint32_t *ids, float *gates);
    void *adjust_route_ctx;
    /* Polled between layers; true stops the pass with CANCELLED and leaves the sequences as before. NULL: never. */
    bool (*cancelled)(void *ctx);
    void *cancelled_ctx;
} clb_forward_options;

/* Bytes of the buffers for max_rows rows and n_kv visible positions, for the planner. */
uint64_t clb_forward_bytes(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv, uint32_t n_workers);

int clb_forward_create(const clb_forward_options *options, clb_forward **out, clb_error *err);
void clb_forward_destroy(clb_forward *f);

/* logits: [sum of n_logits][n_vocab], spans in order. On failure every sequence is as it was. [engine-thread] */
int clb_forward_run(clb_forward *f, const clb_span *spans, uint32_t n_spans, float *logits, clb_error *err);

#endif
