#include "model/compute.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/compute_internal.h"

int clb_compute_init(clb_compute *c, clb_pool *pool, const struct colibri_vecops *ops, clb_error *err)
{
    const uint32_t n = clb_pool_workers(pool);
    *c = (clb_compute){.pool = pool, .ops = ops};
    c->scratch = calloc(n, sizeof *c->scratch);
    c->tiles = calloc(n, sizeof *c->tiles);
    c->work = aligned_alloc(64, n * sizeof *c->work);
    return c->scratch && c->tiles && c->work ? COLIBRI_OK : CLB_NOMEM(err, "compute buffers");
}

static void free_each(clb_compute *c, void **buffers)
{
    if (buffers)
        for (uint32_t i = 0; i < clb_pool_workers(c->pool); i++)
            free(buffers[i]);
}

void clb_compute_free(clb_compute *c)
{
    free_each(c, c->scratch);
    free_each(c, (void **)c->tiles);
    free(c->scratch);
    free(c->tiles);
    free(c->work);
    *c = (clb_compute){0};
}

/* One buffer of at least `bytes` per worker. */
static int reserve_each(clb_compute *c, void **buffers, size_t *have, size_t bytes, const char *what, clb_error *err)
{
    if (bytes <= *have)
        return COLIBRI_OK;
    *have = 0;
    bytes = (bytes + 63) & ~(size_t)63;
    for (uint32_t i = 0; i < clb_pool_workers(c->pool); i++) {
        free(buffers[i]);
        buffers[i] = aligned_alloc(64, bytes);
        if (!buffers[i])
            return CLB_NOMEM(err, what);
    }
    *have = bytes;
    return COLIBRI_OK;
}

int clb_compute_prepare(clb_compute *c, const clb_matrix *m, clb_error *err)
{
    return reserve_each(c, c->scratch, &c->scratch_bytes, m->scratch_bytes, "kernel scratch", err);
}

int clb_compute_reserve_tiles(clb_compute *c, size_t floats, clb_error *err)
{
    size_t bytes = c->tile_floats * sizeof(float);
    CLB_TRY(reserve_each(c, (void **)c->tiles, &bytes, floats * sizeof(float), "product tiles", err));
    c->tile_floats = bytes / sizeof(float);
    return COLIBRI_OK;
}

/* ---- profile --------------------------------------------------------------------------------------------- */

void clb_compute_phase(clb_compute *c, enum clb_phase phase)
{
    if (c->profile) {
        const uint64_t now = clb_now_ns();
        c->profile->wall_ns[c->phase] += now - c->phase_began;
        c->phase_began = now;
    }
    c->phase = phase;
}

void clb_compute_profile_begin(clb_compute *c, enum clb_phase first)
{
    c->phase = first;
    if (c->profile) {
        c->phase_began = clb_now_ns();
        c->profile->pass_ns -= c->phase_began; /* end adds its own time: unsigned arithmetic wraps back */
    }
}

void clb_compute_profile_end(clb_compute *c)
{
    clb_compute_phase(c, c->phase);
    if (c->profile) {
        c->profile->pass_ns += c->phase_began;
        c->profile->passes++;
    }
}

static uint64_t busy_begin(const clb_compute *c)
{
    return c->profile ? clb_now_ns() : 0;
}

static void busy_end(const clb_compute *c, uint64_t begun)
{
    if (c->profile)
        atomic_fetch_add_explicit(&c->profile->busy_ns[c->phase], clb_now_ns() - begun, memory_order_relaxed);
}

static void run_pool(clb_compute *c, clb_pool_fn fn, void *ctx)
{
    if (c->profile)
        c->profile->loops++;
    clb_pool_run(c->pool, fn, ctx);
}

/* ---- loops ----------------------------------------------------------------------------------------------- */

struct units {
    clb_compute *c;
    clb_unit_fn fn;
    void *ctx;
};

static void units_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    const struct units *u = ctx;
    const uint64_t begun = busy_begin(u->c);
    for (uint32_t i = 0; i < n_workers; i++) {
        struct clb_work *w = &u->c->work[(worker + i) % n_workers];
        for (;;) {
            if (i && atomic_load_explicit(&w->next, memory_order_relaxed) >= w->end)
                break; /* a look is cheaper than taking the line away from its owner */
            const uint32_t unit = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
            if (unit >= w->end)
                break;
            u->fn(u->ctx, unit, worker);
        }
    }
    busy_end(u->c, begun);
}

void clb_compute_units(clb_compute *c, uint32_t n_units, clb_unit_fn fn, void *ctx)
{
    const uint32_t n_workers = clb_pool_workers(c->pool);
    if (n_units == 1 || n_workers == 1) { /* nothing to share (a small router): waking the others would cost more */
        const uint64_t begun = busy_begin(c);
        for (uint32_t i = 0; i < n_units; i++)
            fn(ctx, i, 0);
        busy_end(c, begun);
        return;
    }
    for (uint32_t w = 0; w < n_workers; w++) {
        uint32_t begin;
        clb_split(n_units, w, n_workers, &begin, &c->work[w].end);
        atomic_store_explicit(&c->work[w].next, begin, memory_order_relaxed);
    }
    struct units u = {c, fn, ctx};
    run_pool(c, units_worker, &u);
}

struct rows {
    clb_row_fn fn;
    void *ctx;
    uint32_t n, chunk;
};

static void rows_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct rows *r = ctx;
    const uint32_t begin = unit * r->chunk, end = r->n - begin < r->chunk ? r->n : begin + r->chunk;
    for (uint32_t i = begin; i < end; i++)
        r->fn(r->ctx, i, worker);
}

void clb_compute_rows(clb_compute *c, uint32_t n, uint32_t min_per_worker, clb_row_fn fn, void *ctx)
{
    const uint32_t n_workers = clb_pool_workers(c->pool);
    /* Rows may cost unequally (attention of late positions): small chunks, taken from others by who comes free. Each
     * worker begins with its own, the same ones in every loop, whose rows are in its cache. */
    const uint32_t chunk = n_workers == 1 || n < 2 * min_per_worker ? n : n / (n_workers * 8);
    struct rows r = {.fn = fn, .ctx = ctx, .n = n, .chunk = chunk ? chunk : 1};
    clb_compute_units(c, (n + r.chunk - 1) / r.chunk, rows_unit, &r);
}

/* ---- products -------------------------------------------------------------------------------------------- */

struct quantize_job {
    const clb_compute *c;
    const clb_acts *acts;
    int form;
};

static void quantize_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct quantize_job *j = ctx;
    clb_acts_quantize(j->acts, j->form, j->c->ops, row, 0, j->acts->n_cols, j->acts->x + row * j->acts->stride);
}

int clb_compute_form(clb_compute *c, clb_acts *acts, const clb_matrix *m, int *form, clb_error *err)
{
    bool missing;
    CLB_TRY(clb_acts_reserve(acts, m->format, form, &missing, err));
    if (!missing)
        return COLIBRI_OK;
    struct quantize_job job = {c, acts, *form};
    clb_compute_rows(c, acts->n_rows, 4, quantize_row, &job);
    acts->form[*form].ready = true;
    return COLIBRI_OK;
}

#define UNIT_GROUPS_MAX 16u
#define UNIT_MACS       (UINT64_C(64) << 20) /* about 0.4 ms of a fast core */

uint32_t clb_compute_unit_groups(const clb_compute *c, uint64_t total_groups, uint32_t n_cols, uint32_t n_x)
{
    uint64_t n = total_groups / ((uint64_t)clb_pool_workers(c->pool) * 16);
    const uint64_t most = UNIT_MACS / ((uint64_t)COLIBRI_GROUP_ROWS * n_cols * n_x);
    n = n > most ? most : n;
    return n < 1 ? 1 : n > UNIT_GROUPS_MAX ? UNIT_GROUPS_MAX : (uint32_t)n;
}

void clb_compute_product(const clb_compute *c, const clb_matrix *m, const void *w, const clb_acts *acts, int form,
                         const uint32_t *x_index, uint32_t x_first, uint32_t n_x, uint32_t begin, uint32_t end,
                         float *y, size_t y_stride, uint32_t worker)
{
    size_t x_stride;
    const void *const x = clb_acts_rows(acts, form, &x_stride);
    const struct colibri_matmul_args args = {
        .struct_size = sizeof args,
        .n_rows = m->n_rows,
        .n_cols = m->n_cols,
        .n_x = n_x,
        .group_begin = begin,
        .group_end = end,
        .w = w,
        .group_stride = (size_t)m->group_stride,
        .x = (const uint8_t *)x + (x_index ? 0 : x_first * x_stride),
        .x_stride = x_stride,
        .x_index = x_index,
        .y = y,
        .y_stride = y_stride,
        .scratch = c->scratch[worker],
    };
    m->run[clb_x_class(n_x)](&args);
}

#define MAX_JOBS 64u

struct run {
    clb_compute *c;
    const clb_job *jobs;
    int form[MAX_JOBS];
    uint32_t first[MAX_JOBS + 1], unit_groups[MAX_JOBS], n_jobs;
};

static void run_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct run *r = ctx;
    const uint32_t i = clb_job_of(r->first, r->n_jobs, unit);
    const clb_job *j = &r->jobs[i];
    const uint32_t begin = (unit - r->first[i]) * r->unit_groups[i], left = clb_groups(j->m) - begin;
    const uint32_t end = begin + (left < r->unit_groups[i] ? left : r->unit_groups[i]);
    clb_compute_product(r->c, j->m, j->w, j->acts, r->form[i], j->x_index, j->x_first, j->n_x, begin, end, j->y,
                        j->y_stride, worker);
}

int clb_compute_run(clb_compute *c, const clb_job *jobs, uint32_t n_jobs, clb_error *err)
{
    for (; n_jobs > MAX_JOBS; jobs += MAX_JOBS, n_jobs -= MAX_JOBS)
        CLB_TRY(clb_compute_run(c, jobs, MAX_JOBS, err));
    struct run r = {.c = c, .jobs = jobs, .n_jobs = n_jobs};
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        CLB_TRY(clb_compute_form(c, jobs[i].acts, jobs[i].m, &r.form[i], err));
        total += clb_groups(jobs[i].m);
    }
    for (uint32_t i = 0; i < n_jobs; i++) {
        r.unit_groups[i] = clb_compute_unit_groups(c, total, jobs[i].m->n_cols, jobs[i].n_x);
        r.first[i + 1] = r.first[i] + (clb_groups(jobs[i].m) + r.unit_groups[i] - 1) / r.unit_groups[i];
    }
    clb_compute_units(c, r.first[n_jobs], run_unit, &r);
    return COLIBRI_OK;
}
