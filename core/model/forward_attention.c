/* Attention of one layer: projections, norms, rope, KV append, attention over the pages, output projection. */
#include <string.h>

#include "model/forward_internal.h"
#include "ops/ops.h"

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
    rotate_heads(f, q, hp->n_heads, cs);
    rotate_heads(f, k, hp->n_kv_heads, cs);
    const struct row *r = &f->rows[row];
    clb_kv_write(f->spans[r->span].kv, c->il, r->index, k, v);
}

/* One (row, KV head). */
static void attend(const struct layer_ctx *c, uint32_t row, uint32_t kv_head, uint32_t worker, bool observe)
{
    const clb_forward *f = c->f;
    const clb_hparams *hp = f->hp;
    const struct row *r = &f->rows[row];
    clb_kv_seq *kv = f->spans[r->span].kv;
    const clb_kv_view view = clb_kv_view_of(kv, c->il, kv_head);
    const uint32_t group = hp->n_heads / hp->n_kv_heads;
    const uint32_t n_kv = view.n_before + r->index + 1;
    const size_t stride = ((size_t)n_kv + 15) & ~(size_t)15;
    float *max_sum = f->scores[worker] + f->scores_cap - 2 * group;
    struct colibri_attention_args args = {
        .struct_size = sizeof args,
        .n_heads = group,
        .k_dim = hp->k_dim,
        .v_dim = hp->v_dim,
        .n_kv = n_kv,
        .page_tokens = f->options.kv_layout.page_tokens,
        .k_type = f->options.kv_layout.type,
        .v_type = f->options.kv_layout.type,
        .k_pages = view.k_pages,
        .v_pages = view.v_pages,
        .q = f->q + ((size_t)row * hp->n_heads + (size_t)kv_head * group) * hp->k_dim,
        .q_stride = hp->k_dim,
        .scale = hp->attention_scale,
        .scores = f->scores[worker],
        .score_stride = stride,
        .out = f->att + ((size_t)row * hp->n_heads + (size_t)kv_head * group) * hp->v_dim,
        .out_stride = hp->v_dim,
        .max_sum = observe ? max_sum : NULL,
    };
    f->compute.ops->attention(&args);
    if (observe)
        clb_kv_observe(kv, c->il, kv_head, args.scores, stride, max_sum, group, n_kv);
}

static void attend_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct layer_ctx *c = ctx;
    const uint32_t n_kv_heads = c->f->hp->n_kv_heads;
    const uint32_t row = task / n_kv_heads, kv_head = task % n_kv_heads;
    const clb_span *span = &c->f->spans[c->f->rows[row].span];
    if (!clb_kv_seq_needs(span->kv))
        attend(c, row, kv_head, worker, false);
    else if (c->f->rows[row].index == 0) /* probabilities add up in row order: one task takes the whole span */
        for (uint32_t i = 0; i < span->n; i++)
            attend(c, row + i, kv_head, worker, true);
}

int clb_forward_attention(clb_forward *f, uint32_t il, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_layer *l = &f->model->layers[il];
    const size_t nq = (size_t)hp->n_heads * hp->k_dim, nk = (size_t)hp->n_kv_heads * hp->k_dim;
    const size_t nv = (size_t)hp->n_kv_heads * hp->v_dim, no = (size_t)hp->n_heads * hp->v_dim;
    clb_compute_phase(&f->compute, CLB_PHASE_QKV);
    const clb_job qkv[] = {
        {&l->q.m, l->q.m.data, &f->acts_h, NULL, 0, f->n_rows, f->q, nq},
        {&l->k.m, l->k.m.data, &f->acts_h, NULL, 0, f->n_rows, f->k, nk},
        {&l->v.m, l->v.m.data, &f->acts_h, NULL, 0, f->n_rows, f->v, nv},
    };
    CLB_TRY(clb_compute_run(&f->compute, qkv, 3, err));
    struct layer_ctx ctx = {f, l, il};
    clb_compute_phase(&f->compute, CLB_PHASE_ROPE);
    clb_compute_rows(&f->compute, f->n_rows, 4, finish_qkv_row, &ctx);
    clb_compute_phase(&f->compute, CLB_PHASE_ATTENTION);
    clb_compute_rows(&f->compute, f->n_rows * hp->n_kv_heads, 1, attend_task, &ctx);
    clb_compute_phase(&f->compute, CLB_PHASE_ATTN_OUT);
    clb_acts_set(&f->acts_att, f->att, no, f->n_rows, (uint32_t)no);
    const clb_job out = {&l->o.m, l->o.m.data, &f->acts_att, NULL, 0, f->n_rows, f->branch, hp->n_embd};
    return clb_compute_run(&f->compute, &out, 1, err);
}
