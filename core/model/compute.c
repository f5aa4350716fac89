#include "model/compute.h"

#include <stdlib.h>
#include <string.h>

int clb_compute_init(clb_compute *c, clb_pool *pool, const struct colibri_vecops *ops, clb_error *err)
{
    *c = (clb_compute){.pool = pool, .ops = ops};
    c->scratch = calloc(clb_pool_workers(pool), sizeof *c->scratch);
    return c->scratch ? COLIBRI_OK : CLB_NOMEM(err, "compute buffers");
}

void clb_compute_free(clb_compute *c)
{
    if (c->scratch)
        for (uint32_t i = 0; i < clb_pool_workers(c->pool); i++)
            free(c->scratch[i]);
    free(c->scratch);
    *c = (clb_compute){0};
}

int clb_compute_prepare(clb_compute *c, const clb_matrix *m, clb_error *err)
{
    if (m->scratch_bytes <= c->scratch_bytes)
        return COLIBRI_OK;
    const size_t bytes = (m->scratch_bytes + 63) & ~(size_t)63;
    for (uint32_t i = 0; i < clb_pool_workers(c->pool); i++) {
        free(c->scratch[i]);
        c->scratch[i] = aligned_alloc(64, bytes);
        if (!c->scratch[i])
            return CLB_NOMEM(err, "kernel scratch");
    }
    c->scratch_bytes = bytes;
    return COLIBRI_OK;
}

void clb_acts_set(clb_acts *acts, const float *x, size_t stride, uint32_t n_rows, uint32_t n_cols)
{
    acts->x = x;
    acts->stride = stride;
    acts->n_rows = n_rows;
    acts->n_cols = n_cols;
    for (uint32_t i = 0; i < acts->n_forms; i++)
        acts->form[i].ready = false;
}

void clb_acts_free(clb_acts *acts)
{
    for (uint32_t i = 0; i < acts->n_forms; i++)
        free(acts->form[i].data);
    *acts = (clb_acts){0};
}

enum act_kind { ACT_Q8X32, ACT_Q8X256, ACT_OTHER };

struct quantize_job {
    const clb_acts *acts;
    const struct colibri_format *format;
    const struct colibri_vecops *ops;
    enum act_kind kind;
    uint8_t *data;
    size_t row_bytes;
};

static enum act_kind kind_of(const struct colibri_format *format)
{
    return strcmp(format->act, COLIBRI_ACT_Q8X32) == 0    ? ACT_Q8X32
           : strcmp(format->act, COLIBRI_ACT_Q8X256) == 0 ? ACT_Q8X256
                                                          : ACT_OTHER;
}

static void quantize(const struct quantize_job *j, uint32_t row)
{
    const float *x = j->acts->x + row * j->acts->stride;
    uint8_t *to = j->data + row * j->row_bytes;
    if (j->kind == ACT_Q8X32)
        j->ops->act_q8x32(x, (struct colibri_act_q8x32 *)(void *)to, j->acts->n_cols);
    else if (j->kind == ACT_Q8X256)
        j->ops->act_q8x256(x, (struct colibri_act_q8x256 *)(void *)to, j->acts->n_cols);
    else
        j->format->quantize_act(x, to, j->acts->n_cols);
}

static void quantize_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    quantize(ctx, row);
}

/* Index of the wanted form of acts with its buffer, -1 for float rows as they are. *missing: it is not quantized yet.
 */
static int reserve_form(clb_acts *acts, const struct colibri_format *format, int *out, bool *missing, clb_error *err)
{
    *out = -1;
    *missing = false;
    if (strcmp(format->act, COLIBRI_ACT_F32) == 0)
        return COLIBRI_OK;
    uint32_t f = 0;
    while (f < acts->n_forms && strcmp(acts->form[f].act, format->act) != 0)
        f++;
    *out = (int)f;
    if (f < acts->n_forms && acts->form[f].ready)
        return COLIBRI_OK;
    if (f == CLB_MAX_ACT_FORMS)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %d activation formats in one model", CLB_MAX_ACT_FORMS);
    const size_t row_bytes = (size_t)(acts->n_cols / format->act_block_elems) * format->act_block_bytes;
    const size_t need = row_bytes * acts->n_rows;
    if (f == acts->n_forms)
        acts->n_forms++;
    if (acts->form[f].cap < need) {
        free(acts->form[f].data);
        const size_t cap = (need + 4095) & ~(size_t)4095;
        acts->form[f].data = aligned_alloc(64, cap);
        acts->form[f].cap = acts->form[f].data ? cap : 0;
    }
    acts->form[f].act = format->act;
    acts->form[f].row_bytes = row_bytes;
    if (!acts->form[f].data)
        return CLB_NOMEM(err, "activation buffers");
    *missing = true;
    return COLIBRI_OK;
}

static int ensure_form(clb_compute *c, clb_acts *acts, const struct colibri_format *format, int *out, clb_error *err)
{
    bool missing;
    CLB_TRY(reserve_form(acts, format, out, &missing, err));
    if (!missing)
        return COLIBRI_OK;
    struct quantize_job job = {
        acts, format, c->ops, kind_of(format), acts->form[*out].data, acts->form[*out].row_bytes};
    clb_compute_rows(c, acts->n_rows, 4, quantize_row, &job);
    acts->form[*out].ready = true;
    return COLIBRI_OK;
}

int clb_acts_promise(clb_acts *acts, const struct colibri_format *format, int *form, clb_error *err)
{
    bool missing;
    CLB_TRY(reserve_form(acts, format, form, &missing, err));
    if (missing)
        acts->form[*form].ready = true;
    return COLIBRI_OK;
}

void clb_acts_quantize_row(const clb_compute *c, clb_acts *acts, const struct colibri_format *format, int form,
                           uint32_t row)
{
    if (form < 0)
        return;
    const struct quantize_job job = {
        acts, format, c->ops, kind_of(format), acts->form[form].data, acts->form[form].row_bytes};
    quantize(&job, row);
}

/* ---- parallel products ---- */

#define UNIT_GROUPS_MAX   8u
#define MAX_JOBS_ON_STACK 64u

struct run {
    const clb_compute *c;
    const clb_job *jobs;
    const int *forms;
    const uint32_t *unit_begin; /* [n_jobs + 1]: first unit of each job */
    const uint32_t *unit_groups;
    uint32_t n_jobs;
    atomic_uint next;
};

static void run_unit(const struct run *r, uint32_t unit, uint32_t worker)
{
    uint32_t lo = 0, hi = r->n_jobs;
    while (hi - lo > 1) { /* the job with unit_begin[j] <= unit < unit_begin[j + 1] */
        const uint32_t mid = (lo + hi) / 2;
        if (r->unit_begin[mid] <= unit)
            lo = mid;
        else
            hi = mid;
    }
    const clb_job *j = &r->jobs[lo];
    const clb_acts *acts = j->acts;
    const int form = r->forms[lo];
    const uint32_t n_groups = (j->m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
    const uint32_t begin = (unit - r->unit_begin[lo]) * r->unit_groups[lo];
    const uint32_t end = n_groups - begin < r->unit_groups[lo] ? n_groups : begin + r->unit_groups[lo];
    const size_t x_stride = form < 0 ? acts->stride * sizeof(float) : acts->form[form].row_bytes;
    const size_t first = j->x_index ? 0 : j->x_first * x_stride;
    const struct colibri_matmul_args args = {
        .struct_size = sizeof args,
        .n_rows = j->m->n_rows,
        .n_cols = j->m->n_cols,
        .n_x = j->n_x,
        .group_begin = begin,
        .group_end = end,
        .w = j->w,
        .group_stride = (size_t)j->m->group_stride,
        .x = (const uint8_t *)(form < 0 ? (const void *)acts->x : acts->form[form].data) + first,
        .x_stride = x_stride,
        .x_index = j->x_index,
        .y = j->y,
        .y_stride = j->y_stride,
        .scratch = r->c->scratch[worker],
    };
    (j->n_x == 1 ? j->m->run_one : j->m->run_many)(&args);
}

static void run_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct run *r = ctx;
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (unit >= r->unit_begin[r->n_jobs])
            return;
        run_unit(r, unit, worker);
    }
}

int clb_compute_run(clb_compute *c, const clb_job *jobs, uint32_t n_jobs, clb_error *err)
{
    while (n_jobs > MAX_JOBS_ON_STACK) {
        CLB_TRY(clb_compute_run(c, jobs, MAX_JOBS_ON_STACK, err));
        jobs += MAX_JOBS_ON_STACK;
        n_jobs -= MAX_JOBS_ON_STACK;
    }
    int forms[MAX_JOBS_ON_STACK];
    uint32_t unit_begin[MAX_JOBS_ON_STACK + 1], unit_groups[MAX_JOBS_ON_STACK];
    const uint32_t n_workers = clb_pool_workers(c->pool);
    uint32_t total_groups = 0, units = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        CLB_TRY(ensure_form(c, jobs[i].acts, jobs[i].m->format, &forms[i], err));
        total_groups += (jobs[i].m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
    }
    uint32_t per_unit = total_groups / (n_workers * 4);
    per_unit = per_unit < 1 ? 1 : per_unit > UNIT_GROUPS_MAX ? UNIT_GROUPS_MAX : per_unit;
    for (uint32_t i = 0; i < n_jobs; i++) {
        const uint32_t groups = (jobs[i].m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
        unit_begin[i] = units;
        unit_groups[i] = per_unit;
        units += (groups + per_unit - 1) / per_unit;
    }
    unit_begin[n_jobs] = units;
    struct run r = {
        .c = c, .jobs = jobs, .forms = forms, .unit_begin = unit_begin, .unit_groups = unit_groups, .n_jobs = n_jobs};
    if (units == 1) /* nothing to share (a small router): waking the others would cost more */
        run_unit(&r, 0, 0);
    else
        clb_pool_run(c->pool, run_worker, &r);
    return COLIBRI_OK;
}

/* ---- rows ---- */

struct rows_job {
    clb_row_fn fn;
    void *ctx;
    uint32_t n, chunk;
    atomic_uint next;
};

static void rows_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct rows_job *j = ctx;
    for (;;) {
        const uint32_t begin = atomic_fetch_add_explicit(&j->next, j->chunk, memory_order_relaxed);
        if (begin >= j->n)
            return;
        const uint32_t end = j->n - begin < j->chunk ? j->n : begin + j->chunk;
        for (uint32_t i = begin; i < end; i++)
            j->fn(j->ctx, i, worker);
    }
}

void clb_compute_rows(clb_compute *c, uint32_t n, uint32_t min_per_worker, clb_row_fn fn, void *ctx)
{
    const uint32_t n_workers = clb_pool_workers(c->pool);
    if (n < 2 * min_per_worker || n_workers == 1) {
        for (uint32_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
    /* Rows may cost unequally (attention of late positions): small chunks, taken as workers come free. */
    const uint32_t chunk = n / (n_workers * 8);
    struct rows_job job = {.fn = fn, .ctx = ctx, .n = n, .chunk = chunk ? chunk : 1};
    clb_pool_run(c->pool, rows_worker, &job);
}
