/* Attention of one layer: projections, norms, rope, KV append, attention over the pages, output projection. */
#include <string.h>

#include "model/forward_internal.h"
#include "ops/hadamard.h"
#include "ops/ops.h"

#define FEW_ROWS 2u

struct layer_ctx {
    clb_forward *f;
    const clb_layer *l;
    uint32_t il;
};

static void add_bias(const clb_forward *f, float *x, const clb_vector *bias, size_t n)
{
    if (bias->v)
        f->compute.ops->add(x, bias->v, n);
}

static void norm_heads(const clb_forward *f, float *x, const clb_vector *w, uint32_t n_heads)
{
    const clb_hparams *hp = f->hp;
    if (hp->qk_norm == CLB_QK_NORM_FULL)
        f->compute.ops->rms_norm(x, x, w->v, (size_t)n_heads * hp->k_dim, hp->rms_eps);
    else if (hp->qk_norm == CLB_QK_NORM_HEAD)
        for (uint32_t h = 0; h < n_heads; h++)
            f->compute.ops->rms_norm(x + h * hp->k_dim, x + h * hp->k_dim, w->v, hp->k_dim, hp->rms_eps);
}

static void rotate_heads(const clb_forward *f, float *x, uint32_t n_heads, const float *cs)
{
    if (f->hp->rope)
        for (uint32_t h = 0; h < n_heads; h++)
            f->compute.ops->rope(x + h * f->hp->k_dim, cs, f->hp->n_rot, f->hp->rope_neox);
}

/* Keys are turned as the cache stores them; with compacted positions attention reads them turned back. */
static void turn_queries(const clb_forward *f, float *q, const clb_kv_seq *kv)
{
    if (f->options.kv_layout.turn_k && !clb_kv_seq_compact(kv))
        for (uint32_t h = 0; h < f->hp->n_heads; h++)
            clb_hadamard(q + h * f->hp->k_dim, f->hp->k_dim);
}

/* Kept positions are renumbered: each KV head has its own place for the row, and its keys are stored as they are. */
static void rotate_by_rank(const clb_forward *f, float *q, const clb_kv_seq *kv, uint32_t il, uint32_t index)
{
    const uint32_t group = f->hp->n_heads / f->hp->n_kv_heads;
    for (uint32_t h = 0; f->hp->rope && h < f->hp->n_kv_heads; h++)
        rotate_heads(f, q + (size_t)h * group * f->hp->k_dim, group, clb_kv_row_cs(kv, il, h, index));
}

static void finish_qkv_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct layer_ctx *c = ctx;
    const clb_forward *f = c->f;
    const clb_hparams *hp = f->hp;
    const clb_layer *l = c->l;
    const size_t nq = (size_t)hp->n_heads * hp->k_dim, nk = (size_t)hp->n_kv_heads * hp->k_dim;
    const size_t nv = (size_t)hp->n_kv_heads * hp->v_dim;
    float *q = f->q + row * nq, *k = f->k + row * nk, *v = f->v + row * nv;
    const float *cs = f->cs + (size_t)row * hp->n_rot;
    add_bias(f, q, &l->q_bias, nq);
    add_bias(f, k, &l->k_bias, nk);
    add_bias(f, v, &l->v_bias, nv);
    norm_heads(f, q, &l->q_norm, hp->n_heads);
    norm_heads(f, k, &l->k_norm, hp->n_kv_heads);
    const struct row *r = &f->rows[row];
    const clb_span *span = &f->spans[r->span];
    clb_kv_observe_q(span->kv, c->il, r->index, q);
    if (clb_kv_seq_compact(span->kv)) {
        rotate_by_rank(f, q, span->kv, c->il, r->index);
    } else {
        rotate_heads(f, q, hp->n_heads, cs);
        rotate_heads(f, k, hp->n_kv_heads, cs);
    }
    clb_kv_write(span->kv, c->il, r->index, k, v);
    if (span->phase == COLIBRI_PHASE_DECODE && span->n == 1)
        clb_kv_pick(span->kv, c->il, q);
    turn_queries(f, q, span->kv);
}

int clb_forward_attention(clb_forward *f, uint32_t il, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_layer *l = &f->model->layers[il];
    const size_t nq = (size_t)hp->n_heads * hp->k_dim, nk = (size_t)hp->n_kv_heads * hp->k_dim;
    const size_t nv = (size_t)hp->n_kv_heads * hp->v_dim, no = (size_t)hp->n_heads * hp->v_dim;
    clb_compute_phase(&f->compute, CLB_PHASE_QKV);
    if (f->n_rows <= FEW_ROWS) /* their places come into the cache while the products run */
        for (uint32_t r = 0; r < f->n_rows; r++)
            clb_kv_write_soon(f->spans[f->rows[r].span].kv, il, f->rows[r].index);
    const clb_job qkv[] = {
        {&l->q.m, l->q.m.data, &f->acts_h, NULL, 0, f->n_rows, f->q, nq},
        {&l->k.m, l->k.m.data, &f->acts_h, NULL, 0, f->n_rows, f->k, nk},
        {&l->v.m, l->v.m.data, &f->acts_h, NULL, 0, f->n_rows, f->v, nv},
    };
    CLB_TRY(clb_compute_run(&f->compute, qkv, 3, err));
    CLB_TRY(clb_forward_wanted(f, err));
    CLB_TRY(clb_forward_lora_add(f, il, CLB_LORA_Q, &f->acts_h, f->q, nq, err));
    CLB_TRY(clb_forward_lora_add(f, il, CLB_LORA_K, &f->acts_h, f->k, nk, err));
    CLB_TRY(clb_forward_lora_add(f, il, CLB_LORA_V, &f->acts_h, f->v, nv, err));
    struct layer_ctx ctx = {f, l, il};
    clb_compute_phase(&f->compute, CLB_PHASE_ROPE);
    clb_compute_rows(&f->compute, f->n_rows, 4, finish_qkv_row, &ctx);
    clb_compute_phase(&f->compute, CLB_PHASE_ATTENTION);
    clb_attention_run(f, il);
    CLB_TRY(clb_forward_wanted(f, err));
    clb_compute_phase(&f->compute, CLB_PHASE_ATTN_OUT);
    clb_acts_set(&f->acts_att, f->att, no, f->n_rows, (uint32_t)no);
    const clb_job out = {&l->o.m, l->o.m.data, &f->acts_att, NULL, 0, f->n_rows, f->branch, hp->n_embd};
    CLB_TRY(clb_compute_run(&f->compute, &out, 1, err));
    return clb_forward_lora_add(f, il, CLB_LORA_O, &f->acts_att, f->branch, hp->n_embd, err);
}
