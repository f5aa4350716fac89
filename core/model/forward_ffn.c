/* Feed-forward of one layer: dense, and mixture of experts. */
#include <assert.h>
#include <string.h>

#include "model/forward_internal.h"
#include "ops/ops.h"

struct glu_ctx {
    const clb_forward *f;
    float *gate;
    const float *up;
    size_t n;
};

static void glu_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct glu_ctx *c = ctx;
    float *g = c->gate + row * c->n;
    c->f->compute.ops->swiglu(g, g, c->up + row * c->n, c->n);
}

/* out[row] = down(silu(gate(h)) * up(h)) */
int clb_forward_dense_ffn(clb_forward *f, const clb_layer *l, uint32_t n_ff, float *out, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_job in[] = {
        {&l->gate.m, l->gate.m.data, &f->acts_h, NULL, 0, f->n_rows, f->gate, n_ff},
        {&l->up.m, l->up.m.data, &f->acts_h, NULL, 0, f->n_rows, f->up, n_ff},
    };
    CLB_TRY(clb_compute_run(&f->compute, in, 2, err));
    struct glu_ctx glu = {f, f->gate, f->up, n_ff};
    clb_compute_rows(&f->compute, f->n_rows, 2, glu_row, &glu);
    clb_acts_set(&f->acts_ff, f->gate, n_ff, f->n_rows, n_ff);
    const clb_job down = {&l->down.m, l->down.m.data, &f->acts_ff, NULL, 0, f->n_rows, out, hp->n_embd};
    return clb_compute_run(&f->compute, &down, 1, err);
}

/* ---- mixture of experts ---- */

struct route_ctx {
    clb_forward *f;
    const clb_layer *l;
};

static void route_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct route_ctx *c = ctx;
    clb_forward *f = c->f;
    const clb_hparams *hp = f->hp;
    clb_route_row(hp, f->compute.ops, c->l->router_select_bias.v, f->router_probs + (size_t)row * hp->n_experts,
                  f->ids + (size_t)row * hp->top_k, f->gates + (size_t)row * hp->top_k);
}

/* Sorts the pairs by expert; inside an expert rows stay in order. Returns the size of the union. */
static uint32_t bucket(clb_forward *f)
{
    const clb_hparams *hp = f->hp;
    const uint32_t n_pairs = f->n_rows * hp->top_k;
    memset(f->expert_count, 0, hp->n_experts * sizeof *f->expert_count);
    for (uint32_t p = 0; p < n_pairs; p++)
        f->expert_count[f->ids[p]]++;
    uint32_t n_union = 0, first = 0;
    for (uint32_t e = 0; e < hp->n_experts; e++) {
        const uint32_t rows = f->expert_count[e];
        if (!rows)
            continue;
        f->union_ids[n_union] = e;
        f->union_rows[n_union] = rows;
        f->union_first[n_union] = first;
        f->union_gates[n_union] = 0.0f;
        f->expert_count[e] = first; /* from here on: where the next pair of this expert goes */
        first += rows;
        n_union++;
    }
    for (uint32_t p = 0; p < n_pairs; p++) {
        const uint32_t place = f->expert_count[f->ids[p]]++;
        f->pair_at[p] = place;
        f->place_row[place] = p / hp->top_k;
    }
    for (uint32_t u = 0; u < n_union; u++) /* gates of an expert: pairs in row order */
        f->expert_count[f->union_ids[u]] = u;
    for (uint32_t p = 0; p < n_pairs; p++)
        f->union_gates[f->expert_count[f->ids[p]]] += f->gates[p];
    return n_union;
}

struct wave_ctx {
    clb_forward *f;
    const struct colibri_format *down;
    int form; /* of acts_pairs, for the down projections */
};

/* Activation function of one place, and its row as the down projection wants it. */
static void wave_row(void *ctx, uint32_t i, uint32_t worker)
{
    (void)worker;
    const struct wave_ctx *c = ctx;
    clb_forward *f = c->f;
    const size_t ff = f->hp->n_ff_expert;
    const uint32_t place = f->wave_rows[i];
    float *gate = f->expert_gate + place * ff;
    f->compute.ops->swiglu(gate, gate, f->expert_up + place * ff, ff);
    clb_acts_quantize_row(&f->compute, &f->acts_pairs, c->down, c->form, place);
}

/* Gate, up, activation and down of the leased experts: three parallel loops, whatever their number. */
static int compute_wave(clb_forward *f, const clb_expert_layer *x, const clb_lease *leases, const uint32_t *unions,
                        uint32_t n, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const size_t ff = hp->n_ff_expert;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = unions[i], first = f->union_first[u], rows = f->union_rows[u];
        const uint32_t *index = f->place_row + first;
        f->jobs[2 * i] = (clb_job){.m = &x->part[CLB_PART_GATE],
                                   .w = leases[i].part[CLB_PART_GATE],
                                   .acts = &f->acts_h,
                                   .x_index = index,
                                   .n_x = rows,
                                   .y = f->expert_gate + first * ff,
                                   .y_stride = ff};
        f->jobs[2 * i + 1] = (clb_job){.m = &x->part[CLB_PART_UP],
                                       .w = leases[i].part[CLB_PART_UP],
                                       .acts = &f->acts_h,
                                       .x_index = index,
                                       .n_x = rows,
                                       .y = f->expert_up + first * ff,
                                       .y_stride = ff};
        for (uint32_t r = 0; r < rows; r++)
            f->wave_rows[n_rows++] = first + r;
    }
    CLB_TRY(clb_compute_run(&f->compute, f->jobs, 2 * n, err));
    const clb_matrix *down = &x->part[CLB_PART_DOWN];
    struct wave_ctx wave = {.f = f, .down = down->format};
    CLB_TRY(clb_acts_promise(&f->acts_pairs, down->format, &wave.form, err));
    clb_compute_rows(&f->compute, n_rows, 2, wave_row, &wave);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = f->union_first[unions[i]];
        f->jobs[i] = (clb_job){.m = down,
                               .w = leases[i].part[CLB_PART_DOWN],
                               .acts = &f->acts_pairs,
                               .x_first = first,
                               .n_x = f->union_rows[unions[i]],
                               .y = f->expert_out + (size_t)first * hp->n_embd,
                               .y_stride = hp->n_embd};
    }
    return clb_compute_run(&f->compute, f->jobs, n, err);
}

struct combine_ctx {
    const clb_forward *f;
    float *out;
};

/* The weighted sum over a row's experts, in router-rank order whatever the order of arrival. */
static void combine_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct combine_ctx *c = ctx;
    const clb_forward *f = c->f;
    const size_t n_embd = f->hp->n_embd;
    float *out = c->out + row * n_embd;
    memset(out, 0, n_embd * sizeof *out);
    for (uint32_t r = 0; r < f->hp->top_k; r++) {
        const size_t pair = (size_t)row * f->hp->top_k + r;
        f->compute.ops->axpy(out, f->expert_out + f->pair_at[pair] * n_embd, f->gates[pair], n_embd);
    }
}

int clb_forward_moe(clb_forward *f, const clb_layer *l, float *out, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    clb_store *store = f->model->store;
    const uint32_t moe = (uint32_t)l->moe;
    const clb_expert_layer *x = &f->model->expert_layers[moe];
    const clb_job router = {&l->router.m, l->router.m.data, &f->acts_h,   NULL, 0,
                            f->n_rows,    f->router_probs,  hp->n_experts};
    CLB_TRY(clb_compute_run(&f->compute, &router, 1, err));
    struct route_ctx rc = {f, l};
    clb_compute_rows(&f->compute, f->n_rows, 4, route_row, &rc);
    if (f->options.adjust_route)
        f->options.adjust_route(f->options.adjust_route_ctx, moe, f->n_rows, f->router_probs, f->ids, f->gates);
    const uint32_t n_union = bucket(f);
    const struct colibri_route route = {
        .struct_size = sizeof route,
        .layer = moe,
        .n_rows = f->n_rows,
        .top_k = hp->top_k,
        .ids = f->ids,
        .gates = f->gates,
        .n_union = n_union,
        .union_ids = f->union_ids,
        .union_rows = f->union_rows,
    };
    if (f->options.on_route)
        f->options.on_route(f->options.on_route_ctx, &route);
    clb_store_route(store, &route);

    clb_acts_set(&f->acts_pairs, f->expert_gate, hp->n_ff_expert, f->n_rows * hp->top_k, hp->n_ff_expert);
    uint32_t n_pending = n_union;
    for (uint32_t u = 0; u < n_union; u++)
        f->pending[u] = u;
    while (n_pending) {
        for (uint32_t i = 0; i < n_pending; i++) {
            f->want_ids[i] = f->union_ids[f->pending[i]];
            f->want_rows[i] = f->union_rows[f->pending[i]];
            f->want_gates[i] = f->union_gates[f->pending[i]];
        }
        uint32_t got = 0;
        CLB_TRY(
            clb_store_acquire(store, moe, f->want_ids, f->want_rows, f->want_gates, n_pending, f->leases, &got, err));
        /* Leased ones to the front of `pending`, in lease order. */
        for (uint32_t i = 0; i < got; i++) {
            uint32_t j = i;
            while (f->union_ids[f->pending[j]] != f->leases[i].expert)
                j++;
            const uint32_t u = f->pending[j];
            f->pending[j] = f->pending[i];
            f->pending[i] = u;
        }
        const int rc2 = compute_wave(f, x, f->leases, f->pending, got, err);
        clb_store_release(store, moe, f->leases, got);
        CLB_TRY(rc2);
        n_pending -= got;
        memmove(f->pending, f->pending + got, n_pending * sizeof *f->pending);
    }
    struct combine_ctx cc = {f, out};
    clb_compute_rows(&f->compute, f->n_rows, 4, combine_row, &cc);
    return COLIBRI_OK;
}
