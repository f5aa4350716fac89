/* Feed-forward of one layer: dense, and mixture of experts. */
#include <assert.h>
#include <string.h>

#include "model/forward_internal.h"
#include "ops/ops.h"

/* out[row] = down(silu(gate(h)) * up(h)) */
int clb_forward_dense_ffn(clb_forward *f, uint32_t il, uint32_t n_ff, float *out, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_layer *l = &f->model->layers[il];
    clb_compute_phase(&f->compute, CLB_PHASE_DENSE_IN);
    clb_acts_set(&f->acts_ff, f->gate, n_ff, f->n_rows, n_ff);
    clb_glu_job in = {
        .gate = &l->gate.m,
        .up = &l->up.m,
        .w_gate = l->gate.m.data,
        .w_up = l->up.m.data,
        .acts = &f->acts_h,
        .n_x = f->n_rows,
    };
    CLB_TRY(clb_forward_lora_glu(f, il, &in, err));
    const bool keep = clb_forward_lora_changes(f, il, CLB_LORA_DOWN);
    CLB_TRY(clb_compute_glu(&f->compute, &in, 1, &f->acts_ff, f->gate, &l->down.m, keep, err));
    CLB_TRY(clb_forward_wanted(f, err));
    clb_compute_phase(&f->compute, CLB_PHASE_DENSE_DOWN);
    const clb_job down = {&l->down.m, l->down.m.data, &f->acts_ff, NULL, 0, f->n_rows, out, hp->n_embd};
    CLB_TRY(clb_compute_run(&f->compute, &down, 1, err));
    return clb_forward_lora_add(f, il, CLB_LORA_DOWN, &f->acts_ff, out, hp->n_embd, err);
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

/* The down products of the leased experts, as jobs. */
static void down_jobs(clb_forward *f, const clb_expert_layer *x, const clb_lease *leases, const uint32_t *unions,
                      uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = f->union_first[unions[i]];
        f->jobs[i] = (clb_job){.m = &x->part[CLB_PART_DOWN],
                               .w = leases[i].part[CLB_PART_DOWN],
                               .acts = &f->acts_pairs,
                               .x_first = first,
                               .n_x = f->union_rows[unions[i]],
                               .y = f->expert_out + (size_t)first * f->hp->n_embd,
                               .y_stride = f->hp->n_embd};
    }
}

#define LOOP_MACS (UINT64_C(2) << 30) /* of each worker: some ten milliseconds, and many pieces of work */

/* Experts of one parallel loop: all of them, unless somebody may want the workers in between (clb_forward_wanted). */
static uint32_t experts_at_once(const clb_forward *f, const clb_matrix *m, uint32_t n_matrices, uint32_t n)
{
    if (!f->options.pause)
        return n;
    const uint64_t pairs = (uint64_t)f->n_rows * f->hp->top_k;
    const uint64_t macs = (uint64_t)m->n_rows * m->n_cols * n_matrices * ((pairs + n - 1) / n); /* of an expert */
    const uint64_t loop = f->options.loop_macs ? f->options.loop_macs : LOOP_MACS;
    const uint64_t most = loop * clb_pool_workers(f->options.pool) / (macs ? macs : 1);
    return most >= n ? n : most ? (uint32_t)most : 1;
}

/* Gate, up, activation and down of the leased experts: two parallel loops (one more per 256 experts). `out`: these are
 * all experts of the step, and their weighted sum goes there; NULL: products go to expert_out. */
static int compute_wave(clb_forward *f, uint32_t il, const clb_expert_layer *x, const clb_lease *leases,
                        const uint32_t *unions, uint32_t n, float *out, clb_error *err)
{
    const bool keep = clb_forward_lora_changes(f, il, CLB_LORA_EXPERT_DOWN);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t u = unions[i];
        f->glu_jobs[i] = (clb_glu_job){.gate = &x->part[CLB_PART_GATE],
                                       .up = &x->part[CLB_PART_UP],
                                       .w_gate = leases[i].part[CLB_PART_GATE],
                                       .w_up = leases[i].part[CLB_PART_UP],
                                       .acts = &f->acts_h,
                                       .x_index = f->place_row + f->union_first[u],
                                       .n_x = f->union_rows[u],
                                       .out_first = f->union_first[u]};
    }
    for (uint32_t i = 0; i < n && f->lora.n; i++)
        f->want_ids[i] = leases[i].expert; /* free until the next wave */
    clb_compute_phase(&f->compute, CLB_PHASE_EXPERT_IN);
    CLB_TRY(clb_forward_lora_experts(f, il, f->glu_jobs, f->want_ids, n, err));
    const uint32_t in = experts_at_once(f, &x->part[CLB_PART_GATE], 2, n);
    for (uint32_t i = 0; i < n; i += in) {
        CLB_TRY(clb_compute_glu(&f->compute, f->glu_jobs + i, n - i < in ? n - i : in, &f->acts_pairs, f->expert_act,
                                &x->part[CLB_PART_DOWN], keep, err));
        CLB_TRY(clb_forward_wanted(f, err));
    }
    clb_compute_phase(&f->compute, CLB_PHASE_EXPERT_DOWN);
    down_jobs(f, x, leases, unions, n);
    if (!out) {
        const uint32_t down = experts_at_once(f, &x->part[CLB_PART_DOWN], 1, n);
        for (uint32_t i = 0; i < n; i += down) {
            CLB_TRY(clb_compute_run(&f->compute, f->jobs + i, n - i < down ? n - i : down, err));
            CLB_TRY(clb_forward_wanted(f, err));
        }
        return clb_forward_lora_down(f, il, f->jobs, f->want_ids, n, err);
    }
    const clb_mix_job mix = {
        .jobs = f->jobs,
        .n_jobs = n,
        .n_rows = f->n_rows,
        .top_k = f->hp->top_k,
        .pair_at = f->pair_at,
        .gates = f->gates,
        .out = out,
        .out_stride = f->hp->n_embd,
    };
    return clb_compute_mix(&f->compute, &mix, err);
}

void clb_forward_mix_row(const clb_forward *f, uint32_t row, float *out)
{
    const size_t n_embd = f->hp->n_embd;
    memset(out, 0, n_embd * sizeof *out);
    for (uint32_t r = 0; r < f->hp->top_k; r++) {
        const size_t pair = (size_t)row * f->hp->top_k + r;
        f->compute.ops->axpy(out, f->expert_out + f->pair_at[pair] * n_embd, f->gates[pair], n_embd);
    }
}

int clb_forward_moe(clb_forward *f, uint32_t il, float *out, bool *mix, clb_error *err)
{
    const clb_layer *l = &f->model->layers[il];
    const clb_hparams *hp = f->hp;
    clb_store *store = f->model->store;
    const uint32_t moe = (uint32_t)l->moe;
    const clb_expert_layer *x = &f->model->expert_layers[moe];
    const clb_job router = {&l->router.m, l->router.m.data, &f->acts_h,   NULL, 0,
                            f->n_rows,    f->router_probs,  hp->n_experts};
    clb_compute_phase(&f->compute, CLB_PHASE_ROUTER);
    CLB_TRY(clb_compute_run(&f->compute, &router, 1, err));
    CLB_TRY(clb_forward_lora_add(f, il, CLB_LORA_ROUTER, &f->acts_h, f->router_probs, hp->n_experts, err));
    struct route_ctx rc = {f, l};
    clb_compute_rows(&f->compute, f->n_rows, 4, route_row, &rc);
    if (f->options.adjust_route)
        f->options.adjust_route(f->options.adjust_route_ctx, moe, f->n_rows, f->router_probs, f->ids, f->gates);
    const uint32_t n_union = bucket(f);
    struct colibri_route route = {
        .struct_size = sizeof route,
        .layer = moe,
        .n_rows = f->n_rows,
        .top_k = hp->top_k,
        .ids = f->ids,
        .gates = f->gates,
        .n_union = n_union,
        .union_ids = f->union_ids,
        .union_rows = f->union_rows,
        .row_sequence = f->row_sequence,
    };
    const float *ahead[2];
    CLB_TRY(clb_forward_ahead(f, &route, ahead, err));
    if (f->options.on_route)
        f->options.on_route(f->options.on_route_ctx, &route);
    clb_compute_phase(&f->compute, CLB_PHASE_STORE);
    clb_store_route(store, &route);

    clb_acts_set(&f->acts_pairs, f->expert_act, hp->n_ff_expert, f->n_rows * hp->top_k, hp->n_ff_expert);
    uint32_t n_pending = n_union;
    for (uint32_t u = 0; u < n_union; u++)
        f->pending[u] = u;
    const bool few =
        (uint64_t)f->n_rows * hp->top_k <= CLB_MIX_PAIRS && !clb_forward_lora_changes(f, il, CLB_LORA_EXPERT_DOWN);
    *mix = true;
    while (n_pending) {
        clb_compute_phase(&f->compute, CLB_PHASE_STORE);
        for (uint32_t i = 0; i < n_pending; i++) {
            f->want_ids[i] = f->union_ids[f->pending[i]];
            f->want_rows[i] = f->union_rows[f->pending[i]];
            f->want_gates[i] = f->union_gates[f->pending[i]];
        }
        uint32_t got = 0;
        CLB_TRY(
            clb_store_acquire(store, moe, f->want_ids, f->want_rows, f->want_gates, n_pending, f->leases, &got, err));
        /* Leased ones to the front of `pending`, in lease order. The others stay in union order: the next wave's
         * decisions must not depend on which reads came first. */
        for (uint32_t i = 0; i < got; i++) {
            uint32_t j = i;
            while (f->union_ids[f->pending[j]] != f->leases[i].expert)
                j++;
            const uint32_t u = f->pending[j];
            memmove(f->pending + i + 1, f->pending + i, (j - i) * sizeof *f->pending);
            f->pending[i] = u;
        }
        *mix = !few || got != n_union;
        const int rc2 = compute_wave(f, il, x, f->leases, f->pending, got, *mix ? NULL : out, err);
        clb_store_release(store, moe, f->leases, got);
        CLB_TRY(rc2);
        n_pending -= got;
        memmove(f->pending, f->pending + got, n_pending * sizeof *f->pending);
    }
    return COLIBRI_OK;
}
