/* Inside the forward pass: buffers and the steps of a layer. */
#ifndef CLB_MODEL_FORWARD_INTERNAL_H
#define CLB_MODEL_FORWARD_INTERNAL_H

#include "model/forward.h"
#include "model/forward_lora.h"

struct clb_forward {
    clb_forward_options options;
    const clb_model *model;
    const clb_hparams *hp;
    clb_compute compute;
    uint32_t max_rows;
    float *inv_freq; /* [n_rot / 2] */

    /* [max_rows] each */
    float *x;      /* [n_embd] residual stream */
    float *h;      /* [n_embd] normed input of a branch */
    float *branch; /* [n_embd] a branch's result */
    float *shared; /* [n_embd] the shared expert's result, if there is one */
    float *q, *k, *v;
    float *att;         /* [n_heads * v_dim] */
    float *cs;          /* [n_rot] cos, sin */
    float *gate;        /* [max(n_ff, n_ff_shared)] input of the down product, if that takes floats */
    float *row_scratch; /* [n_workers]: one unpacked group of the embedding each */
    size_t row_scratch_floats;

    /* MoE: a pair is (row, rank); pair = row * top_k + rank */
    uint32_t *row_sequence;                         /* [max_rows]: number of its sequence */
    float *router_probs;                            /* [max_rows][n_experts] */
    uint32_t *ids;                                  /* [max_rows][top_k] */
    float *gates;                                   /* [max_rows][top_k] */
    uint32_t *pair_at;                              /* [pair] -> place in expert order */
    uint32_t *place_row;                            /* [place] -> row */
    float *expert_act; /* [place][n_ff_expert] inputs of the down products, if these take floats */
    float *expert_out; /* [place][n_embd], with many rows or experts that come in several waves */
    uint32_t *union_ids, *union_rows, *union_first; /* [n_experts] */
    float *union_gates;
    uint32_t *expert_count;         /* [n_experts] */
    uint32_t *pending;              /* [n_experts]: indexes into the union not computed yet */
    uint32_t *want_ids, *want_rows; /* [n_experts]: the same, as acquire wants them */
    float *want_gates;
    clb_lease *leases;   /* [n_experts] */
    clb_glu_job *glu_jobs; /* [n_experts] */
    clb_job *jobs;         /* [n_experts] */
    clb_acts acts_pairs; /* inputs of the down projections, row = place */

    clb_acts acts_h, acts_att, acts_ff;

    /* For predictors: the routers of later layers asked ahead (ahead.c). */
    uint32_t n_ahead; /* 0: nobody wants that */
    float *ahead_h;   /* [CLB_AHEAD_ROWS][n_embd] */
    float *ahead_logits; /* [n_ahead][CLB_AHEAD_ROWS][n_experts] */
    clb_acts acts_ahead;
    uint32_t *moe_layers; /* [n_moe_layers]: the layer's number in the model */

    struct clb_attention *attention;
    const clb_lora_set *default_lora; /* of spans that name none; NULL: none */
    clb_forward_lora lora;

    /* this pass */
    const clb_span *spans;
    uint32_t n_spans, n_rows;
    struct row {
        uint32_t span, index, position; /* index: within the span */
    } * rows;
};

int clb_forward_attention(clb_forward *f, uint32_t il, clb_error *err);

/* Attention over the pages, from f->q to f->att, and its scratch memory (attention.c). */
int clb_attention_create(clb_forward *f);
void clb_attention_destroy(clb_forward *f);
/* Floats of one worker for passes of max_rows rows, the last of which sees n_kv positions. */
uint64_t clb_attention_floats(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv);
/* Once per pass, before clb_attention_run for its layers. */
int clb_attention_reserve(clb_forward *f, uint32_t n_kv, clb_error *err);
void clb_attention_run(clb_forward *f, uint32_t il);

/* Inside a layer of many rows, which takes its time: whether the pass is still wanted. CANCELLED: no. */
int clb_forward_wanted(const clb_forward *f, clb_error *err);

int clb_forward_dense_ffn(clb_forward *f, uint32_t il, uint32_t n_ff, float *out, clb_error *err);
/* *mix: `out` was not written; the caller takes each row from clb_forward_mix_row. */
int clb_forward_moe(clb_forward *f, uint32_t il, float *out, bool *mix, clb_error *err);
/* The routers of the next layers, applied to the present state of the rows: what those layers will probably choose. Sets
 * route->n_ahead and ahead_logits (`where`: [2]); nothing if there are more than CLB_AHEAD_ROWS rows. */
#define CLB_AHEAD_ROWS 16u
int clb_forward_ahead_create(clb_forward *f, clb_error *err);
int clb_forward_ahead(clb_forward *f, struct colibri_route *route, const float **where, clb_error *err);
/* The weighted sum over a row's experts, in router-rank order whatever the order of arrival. */
void clb_forward_mix_row(const clb_forward *f, uint32_t row, float *out);

/* Router of one row: probabilities (in place of logits), chosen ids and their weights. See hparams for the variants.
 * Ties go to the lower id; a NaN ranks below everything. */
void clb_route_row(const clb_hparams *hp, const struct colibri_vecops *ops, const float *select_bias, float *probs,
                   uint32_t *ids, float *gates);

#endif
