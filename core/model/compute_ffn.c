/* The two halves of a gated feed-forward as parallel loops. Both work on a strip of weights at a time and keep its
 * results in a buffer of the worker's own, so that what is summed or quantized at once never leaves the cache. */
#include <assert.h>
#include <string.h>

#include "model/compute_internal.h"

#define GLU_ROWS   128u /* activation rows per pass over a strip */
#define STRIP      16u  /* groups of a strip at most */
#define STRIP_COLS (STRIP * COLIBRI_GROUP_ROWS)

size_t clb_compute_tile_floats(uint32_t max_rows)
{
    const size_t glu = (size_t)2 * (max_rows < GLU_ROWS ? max_rows : GLU_ROWS) * STRIP_COLS;
    const size_t mix = (size_t)CLB_MIX_PAIRS * STRIP_COLS;
    return glu > mix ? glu : mix;
}

/* Kernels write y[t * stride + row] for absolute rows: the address of row 0, which is not written itself, when the
 * first row of the strip is to be tile[0]. */
static float *tile_base(float *tile, uint32_t begin)
{
    return (float *)((uintptr_t)tile - (uintptr_t)begin * COLIBRI_GROUP_ROWS * sizeof(float));
}

/* ---- gate, up, activation -------------------------------------------------------------------------------- */

#define MAX_JOBS 256u /* experts of a layer, in most models */

struct glu {
    clb_compute *c;
    const clb_glu_job *jobs;
    uint32_t n_jobs;
    int gate_form[MAX_JOBS], up_form[MAX_JOBS];
    uint32_t first[MAX_JOBS + 1];
    uint32_t unit_groups;
    clb_acts *out;
    int out_form;
    float *floats;
    bool keep_floats;
};

#define DELTA_RANKS 64u

void clb_delta_add(const struct colibri_vecops *ops, const clb_delta *deltas, uint32_t n_deltas, uint32_t t, uint32_t x_row,
                   uint32_t col, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n_deltas; i++) {
        const clb_delta *d = &deltas[i];
        const float scale = d->row_scale[x_row] * d->strength, *const v = d->t + (size_t)t * d->t_stride;
        const size_t group = (size_t)16 * d->rank;
        for (uint32_t k = 0; k < d->rank && scale != 0.0f; k += DELTA_RANKS) {
            float s[DELTA_RANKS];
            const uint32_t n_s = d->rank - k < DELTA_RANKS ? d->rank - k : DELTA_RANKS;
            for (uint32_t i_s = 0; i_s < n_s; i_s++)
                s[i_s] = scale * v[k + i_s];
            ops->axpy_x16(y, d->b + col / 16 * group + (size_t)16 * k, group, s, n_s, n);
        }
    }
}

static void glu_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct glu *g = ctx;
    const uint32_t i = clb_job_of(g->first, g->n_jobs, unit);
    const clb_glu_job *j = &g->jobs[i];
    const uint32_t begin = (unit - g->first[i]) * g->unit_groups, left = clb_groups(j->gate) - begin;
    const uint32_t end = begin + (left < g->unit_groups ? left : g->unit_groups);
    const uint32_t col = begin * COLIBRI_GROUP_ROWS;
    const uint32_t n_cols =
        (end * COLIBRI_GROUP_ROWS < j->gate->n_rows ? end * COLIBRI_GROUP_ROWS : j->gate->n_rows) - col;
    const uint32_t parts = (j->n_x + GLU_ROWS - 1) / GLU_ROWS;
    float *const gate = g->c->tiles[worker], *const up = gate + g->c->tile_floats / 2;
    for (uint32_t p = 0; p < parts; p++) {
        uint32_t t0, t1;
        clb_split(j->n_x, p, parts, &t0, &t1);
        const uint32_t *index = j->x_index ? j->x_index + t0 : NULL;
        clb_compute_product(g->c, j->gate, j->w_gate, j->acts, g->gate_form[i], index, j->x_first + t0, t1 - t0, begin,
                            end, tile_base(gate, begin), STRIP_COLS, worker);
        clb_compute_product(g->c, j->up, j->w_up, j->acts, g->up_form[i], index, j->x_first + t0, t1 - t0, begin, end,
                            tile_base(up, begin), STRIP_COLS, worker);
        for (uint32_t t = t0; t < t1; t++) {
            float *const a = gate + (size_t)(t - t0) * STRIP_COLS, *const b = up + (size_t)(t - t0) * STRIP_COLS;
            const uint32_t row = j->out_first + t, x_row = j->x_index ? j->x_index[t] : j->x_first + t;
            clb_delta_add(g->c->ops, j->gate_deltas, j->n_gate_deltas, t, x_row, col, n_cols, a);
            clb_delta_add(g->c->ops, j->up_deltas, j->n_up_deltas, t, x_row, col, n_cols, b);
            g->c->ops->swiglu(g->out_form < 0 ? g->floats + row * g->out->stride + col : a, a, b, n_cols);
            if (g->out_form >= 0)
                clb_acts_quantize(g->out, g->out_form, g->c->ops, row, col, n_cols, a);
            if (g->out_form >= 0 && g->keep_floats)
                memcpy(g->floats + row * g->out->stride + col, a, n_cols * sizeof *a);
        }
    }
}

int clb_compute_glu(clb_compute *c, const clb_glu_job *jobs, uint32_t n_jobs, clb_acts *out, float *floats,
                    const clb_matrix *down, bool keep_floats, clb_error *err)
{
    for (; n_jobs > MAX_JOBS; jobs += MAX_JOBS, n_jobs -= MAX_JOBS)
        CLB_TRY(clb_compute_glu(c, jobs, MAX_JOBS, out, floats, down, keep_floats, err));
    struct glu g = {.c = c, .jobs = jobs, .n_jobs = n_jobs, .out = out, .floats = floats, .keep_floats = keep_floats};
    uint64_t total = 0, rows = 0;
    CLB_TRY(clb_acts_promise(out, down->format, &g.out_form, err));
    for (uint32_t i = 0; i < n_jobs; i++) {
        CLB_TRY(clb_compute_form(c, jobs[i].acts, jobs[i].gate, &g.gate_form[i], err));
        CLB_TRY(clb_compute_form(c, jobs[i].acts, jobs[i].up, &g.up_form[i], err));
        total += 2ull * clb_groups(jobs[i].gate);
        rows += jobs[i].n_x;
    }
    /* A strip holds whole blocks of the result's quantization. */
    uint32_t block = 1;
    while (g.out_form >= 0 && block <= STRIP && block * COLIBRI_GROUP_ROWS % down->format->act_block_elems)
        block++;
    if (block > STRIP)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "format %s: activation blocks of %u elements do not divide the %u columns of a strip",
                        down->format->name, down->format->act_block_elems, STRIP_COLS);
    uint32_t groups =
        clb_compute_unit_groups(c, total, jobs[0].gate->n_cols, (uint32_t)((2 * rows + n_jobs - 1) / n_jobs));
    groups = groups / block * block;
    g.unit_groups = groups ? groups : block;
    for (uint32_t i = 0; i < n_jobs; i++)
        g.first[i + 1] = g.first[i] + (clb_groups(jobs[i].gate) + g.unit_groups - 1) / g.unit_groups;
    clb_compute_units(c, g.first[n_jobs], glu_unit, &g);
    return COLIBRI_OK;
}

/* ---- down, weighted sum ---------------------------------------------------------------------------------- */

struct mix {
    clb_compute *c;
    const clb_mix_job *job;
    int form;
    uint32_t n_units, tile_stride;
};

static void mix_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct mix *x = ctx;
    const clb_mix_job *job = x->job;
    const clb_matrix *m = job->jobs[0].m;
    uint32_t begin, end;
    clb_split(clb_groups(m), unit, x->n_units, &begin, &end);
    const uint32_t col = begin * COLIBRI_GROUP_ROWS;
    const uint32_t n_cols = (end * COLIBRI_GROUP_ROWS < m->n_rows ? end * COLIBRI_GROUP_ROWS : m->n_rows) - col;
    float *const tile = x->c->tiles[worker];
    for (uint32_t i = 0; i < job->n_jobs; i++) {
        const clb_job *j = &job->jobs[i];
        clb_compute_product(x->c, m, j->w, j->acts, x->form, j->x_index, j->x_first, j->n_x, begin, end,
                            tile_base(tile + (size_t)j->x_first * x->tile_stride, begin), x->tile_stride, worker);
    }
    for (uint32_t r = 0; r < job->n_rows; r++) {
        float *const out = job->out + r * job->out_stride + col;
        memset(out, 0, n_cols * sizeof *out);
        for (uint32_t k = 0; k < job->top_k; k++) {
            const size_t pair = (size_t)r * job->top_k + k;
            x->c->ops->axpy(out, tile + (size_t)job->pair_at[pair] * x->tile_stride, job->gates[pair], n_cols);
        }
    }
}

int clb_compute_mix(clb_compute *c, const clb_mix_job *job, clb_error *err)
{
    const uint32_t groups = clb_groups(job->jobs[0].m), n_workers = clb_pool_workers(c->pool);
    struct mix x = {.c = c, .job = job};
    CLB_TRY(clb_compute_form(c, job->jobs[0].acts, job->jobs[0].m, &x.form, err));
    assert((uint64_t)job->n_rows * job->top_k <= CLB_MIX_PAIRS);
    /* Equal strips, and every worker the same number of them: each reads a stretch of every expert. */
    uint32_t units = (groups + STRIP - 1) / STRIP;
    units = units < 4 * n_workers ? 4 * n_workers : (units + n_workers - 1) / n_workers * n_workers;
    x.n_units = units < groups ? units : groups;
    x.tile_stride = (groups + x.n_units - 1) / x.n_units * COLIBRI_GROUP_ROWS;
    clb_compute_units(c, x.n_units, mix_unit, &x);
    return COLIBRI_OK;
}
