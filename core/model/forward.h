/* The forward pass over rows of several sequences.
 *
 * One call processes spans: consecutive new tokens of one sequence each. The logits of a row depend on its own
 * sequence alone, bit for bit: not on the other spans, on how a prompt is cut into spans, on threads or placement. */
#ifndef CLB_MODEL_FORWARD_H
#define CLB_MODEL_FORWARD_H

#include "kv/kv.h"
#include "model/compute.h"
#include "model/lora.h"
#include "model/model.h"

typedef struct clb_span {
    clb_kv_seq *kv;
    const uint32_t *tokens; /* [n] */
    uint32_t n;
    uint32_t n_logits; /* logits wanted for the last n_logits rows */
    enum colibri_phase phase;
    bool prefill_done; /* the span holds the last token of the prompt */
    const clb_lora_set *lora; /* adapters of the sequence; NULL: the default ones */
    bool hidden;       /* the final norm's output of all its rows goes to the sink; n_logits is 0 then */
} clb_span;

typedef struct clb_forward clb_forward;

typedef struct clb_forward_options {
    clb_model *model;
    clb_pool *pool;
    clb_kv_layout kv_layout; /* of every span's sequence */
    uint32_t max_rows;       /* rows of one call, all spans together */
    /* Sees every routing decision before the experts are looked up (traces, tests); NULL: none. */
    void (*on_route)(void *ctx, const struct colibri_route *route);
    void *on_route_ctx;
    uint32_t ahead; /* routers of so many later layers are asked ahead for on_route, 0 to 2; more if a predictor wants it */
    /* May change the decisions of one MoE layer: probs [n_rows][n_experts], ids (different ones in each
     * row) and gates [n_rows][top_k]. For tests and experiments (changed routing is lossy); NULL: none. */
    void (*adjust_route)(void *ctx, uint32_t layer, uint32_t n_rows, const float *probs, uint32_t *ids, float *gates);
    void *adjust_route_ctx;
    /* Polled between layers, and inside of them if there are many rows; true stops the pass with CANCELLED and leaves
     * the sequences as before. NULL: never. */
    bool (*cancelled)(void *ctx);
    void *cancelled_ctx;
    /* Called wherever `cancelled` is polled, and may run passes of other sequences by another clb_forward on the same
     * model, if all weights are in memory (clb_store_set_aside). NULL: never. */
    void (*pause)(void *ctx);
    void *pause_ctx;
    uint64_t loop_macs; /* with `pause`: multiply-adds of a worker in a parallel loop of experts, about; 0: the default */
} clb_forward_options;

/* Bytes of the buffers for max_rows rows and n_kv visible positions, for the planner. Scratch memory that depends on
 * kernels and formats is in clb_model_sizes. */
uint64_t clb_forward_bytes(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv, uint32_t n_workers);

int clb_forward_create(const clb_forward_options *options, clb_forward **out, clb_error *err);
void clb_forward_destroy(clb_forward *f);
/* Adds the times of every pass from now on to *profile; NULL: no more. */
void clb_forward_profile(clb_forward *f, clb_profile *profile);

/* Adapters of spans that name none, borrowed; NULL: none. */
void clb_forward_set_lora(clb_forward *f, const clb_lora_set *set);
/* Asks this instead of the options' `cancelled` from now on; NULL: never. */
void clb_forward_cancel_by(clb_forward *f, bool (*cancelled)(void *ctx), void *ctx);
void clb_forward_pause_by(clb_forward *f, void (*pause)(void *ctx), void *ctx);

/* Logits row by row: at most `rows` at a time in `buffer`, then handed to take(ctx, first, n, logits), `first` counting
 * the wanted rows of all spans in order. For callers that want many rows: all of them at once may be more memory than
 * the model. */
typedef struct clb_logits_sink {
    float *buffer; /* [rows][n_vocab] */
    uint32_t rows;
    void (*take)(void *ctx, uint32_t first, uint32_t n, const float *logits); /* NULL: the buffer holds all rows */
    /* Row i of a span with `hidden`, after the final norm: [n_embd]. After all logits, once for a pass that is well. */
    void (*hidden)(void *ctx, uint32_t span, uint32_t i, const float *row);
    void *ctx;
} clb_logits_sink;
int clb_forward_run_to(clb_forward *f, const clb_span *spans, uint32_t n_spans, const clb_logits_sink *sink,
                       clb_error *err);
/* logits: [sum of n_logits][n_vocab], spans in order. On failure no sequence has grown and the
 * pass can be repeated with the same result; what a KV strategy evicted for it stays evicted. [engine-thread] */
int clb_forward_run(clb_forward *f, const clb_span *spans, uint32_t n_spans, float *logits, clb_error *err);

#endif
