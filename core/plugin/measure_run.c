/* The stopwatch: times candidates on one matrix shape, as the engine would run them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pool.h"
#include "colibri/format.h"
#include "plugin/measure.h"

#define SAMPLE_BYTES ((uint64_t)4 << 20)  /* weights of one sample: many times what waking the pool costs */
#define SAMPLE_MACS  ((uint64_t)64 << 20) /* with several rows of activations the work limits a sample */
#define CLASS_NS     UINT64_C(8000000)    /* for each candidate */
#define MIN_ROUNDS   5u
#define MAX_ROUNDS   120u
#define UNIT_GROUPS  16u /* at most, as core/model splits products */
#define HOPELESS     2u /* times the best time so far, after so many rounds: no more of them for this one */
#define FAIR_ROUNDS  3u

const uint32_t clb_measure_n_x[CLB_X_CLASSES] = {1, 4, 16, 64};

/* What one sample of a class consists of: `copies` matrices one after the other. */
typedef struct plan {
    uint32_t n_rows, groups; /* of one copy */
    uint32_t copies;
    uint32_t step; /* groups from copy to copy: keeps the start of each 64-byte aligned */
    uint32_t unit_groups, units_per_copy;
    uint64_t slots; /* samples that lie one after the other in the buffer */
} plan;

typedef struct bench {
    const clb_measure_job *job;
    clb_pool *pool;
    size_t row_bytes, group_stride, x_stride;
    uint64_t ring_groups;
    uint8_t *ring; /* ring_groups packed groups */
    uint8_t *x;    /* as many rows as the largest class has */
    float *y;
    uint8_t *scratch; /* one piece per worker */
    size_t scratch_bytes;
    uint64_t n_samples; /* so far: says which part of the ring is next */
} bench;

/* ---- sizes ------------------------------------------------------------------------------------------------ */

static uint32_t groups_of(uint32_t n_rows)
{
    return (n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

/* Groups that a copy's length must be a multiple of for the next one to be aligned. */
static uint32_t alignment_groups(size_t group_stride)
{
    uint32_t n = 1;
    while (n < 64 && n * group_stride % 64)
        n *= 2;
    return n;
}

static plan make_plan(const bench *b, unsigned x_class, uint64_t sample_bytes)
{
    const uint32_t n_x = clb_measure_n_x[x_class];
    uint64_t target = sample_bytes / b->group_stride;
    if (n_x > 1) {
        const uint64_t most = SAMPLE_MACS / n_x / COLIBRI_GROUP_ROWS / b->job->n_cols;
        target = most < target ? most : target;
    }
    const uint64_t results =
        b->job->max_bytes / 4 / sizeof(float) / n_x / COLIBRI_GROUP_ROWS; /* many, if columns are few */
    target = results < target ? results : target;
    if (target < b->job->n_threads)
        target = b->job->n_threads; /* else some would only watch */
    plan p = {.n_rows = b->job->n_rows, .groups = groups_of(b->job->n_rows), .copies = 1};
    if (p.groups > target) {
        p.groups = (uint32_t)target;
        p.n_rows = p.groups * COLIBRI_GROUP_ROWS;
    } else {
        p.copies = (uint32_t)(target / p.groups);
    }
    p.step = (uint32_t)round_up(p.groups, alignment_groups(b->group_stride));
    const uint64_t share = (uint64_t)p.groups * p.copies / ((uint64_t)b->job->n_threads * 4);
    p.unit_groups = share < 1 ? 1 : share > UNIT_GROUPS ? UNIT_GROUPS : (uint32_t)share;
    p.units_per_copy = (p.groups + p.unit_groups - 1) / p.unit_groups;
    p.slots = b->ring_groups / ((uint64_t)p.step * p.copies);
    return p;
}

/* ---- data ------------------------------------------------------------------------------------------------- */

/* Small floats of both signs from a fixed sequence: quantized, they use the whole range of a block. */
static void fill_floats(float *x, size_t n, uint32_t seed)
{
    uint32_t s = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 17;
        s ^= s << 5;
        x[i] = (float)((int32_t)(s >> 8) - (1 << 23)) * 0x1p-23f;
    }
}

/* One group of 16 rows in the layout that is multiplied. The rows are one quantized row, turned by some blocks each:
 * quantizing is slow, and no kernel's time depends on the values. */
static int make_group(const bench *b, uint8_t *group, clb_error *err)
{
    const struct colibri_format *const f = b->job->format;
    const uint32_t n_cols = b->job->n_cols;
    float *const floats = malloc((size_t)n_cols * sizeof *floats);
    uint8_t *const rows = aligned_alloc(64, round_up(b->row_bytes * (COLIBRI_GROUP_ROWS + 1), 64));
    int rc = COLIBRI_OK;
    if (!floats || !rows)
        CLB_GO(CLB_NOMEM(err, "weights for measuring"));
    fill_floats(floats, n_cols, 1);
    uint8_t *const first = rows + b->row_bytes * COLIBRI_GROUP_ROWS;
    if (f->quantize(floats, first, n_cols, NULL))
        CLB_GO(clb_fail(err, COLIBRI_E_UNSUPPORTED, "format %s does not quantize", f->name));
    for (uint32_t r = 0; r < COLIBRI_GROUP_ROWS; r++) {
        const size_t turn = (size_t)r * f->block_bytes % b->row_bytes;
        memcpy(rows + r * b->row_bytes, first + turn, b->row_bytes - turn);
        memcpy(rows + r * b->row_bytes + (b->row_bytes - turn), first, turn);
    }
    if (f->layout == COLIBRI_LAYOUT_ROWS)
        memcpy(group, rows, b->group_stride);
    else
        f->pack(rows, b->row_bytes, COLIBRI_GROUP_ROWS, n_cols, group);
done:
    free(floats);
    free(rows);
    return rc;
}

static int make_acts(const bench *b, uint32_t n_x, clb_error *err)
{
    float *const floats = malloc((size_t)b->job->n_cols * sizeof *floats);
    if (!floats)
        return CLB_NOMEM(err, "activations for measuring");
    for (uint32_t t = 0; t < n_x; t++) {
        fill_floats(floats, b->job->n_cols, t + 2);
        b->job->format->quantize_act(floats, b->x + t * b->x_stride, b->job->n_cols);
    }
    free(floats);
    return COLIBRI_OK;
}

static void fill_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    const bench *const b = ctx;
    const uint64_t end = b->ring_groups * (worker + 1) / n_workers;
    for (uint64_t g = b->ring_groups * worker / n_workers; g < end; g++)
        if (g)
            memcpy(b->ring + g * b->group_stride, b->ring, b->group_stride);
}

/* ---- one sample ------------------------------------------------------------------------------------------- */

typedef struct sample {
    const bench *b;
    const plan *p;
    const struct colibri_matmul *m;
    const uint8_t *w;
    uint32_t n_x;
    atomic_uint next;
    atomic_uint_least64_t ns; /* of all workers together */
    atomic_bool stopped;      /* some worker's clock did not advance */
} sample;

/* False: the others left nothing to do. */
static bool run_units(sample *s, uint32_t worker)
{
    const bench *const b = s->b;
    const plan *const p = s->p;
    const uint32_t n_units = p->units_per_copy * p->copies;
    for (bool any = false;; any = true) {
        const uint32_t unit = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (unit >= n_units)
            return any;
        const uint32_t copy = unit / p->units_per_copy, begin = unit % p->units_per_copy * p->unit_groups;
        const struct colibri_matmul_args args = {
            .struct_size = sizeof args,
            .n_rows = p->n_rows,
            .n_cols = b->job->n_cols,
            .n_x = s->n_x,
            .group_begin = begin,
            .group_end = p->groups - begin < p->unit_groups ? p->groups : begin + p->unit_groups,
            .w = s->w + (uint64_t)copy * p->step * b->group_stride,
            .group_stride = b->group_stride,
            .x = b->x,
            .x_stride = b->x_stride,
            .y = b->y + (size_t)copy * p->n_rows * s->n_x,
            .y_stride = p->n_rows,
            .scratch = b->scratch_bytes ? b->scratch + worker * b->scratch_bytes : NULL,
        };
        s->m->run(&args);
    }
}

static void sample_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    sample *const s = ctx;
    const clb_measure_job *const job = s->b->job;
    const uint64_t t0 = job->thread_now(job->now_ctx);
    if (!run_units(s, worker))
        return;
    const uint64_t t1 = job->thread_now(job->now_ctx);
    if (t1 > t0)
        atomic_fetch_add(&s->ns, t1 - t0);
    else
        atomic_store(&s->stopped, true);
}

/* Nanoseconds, the mean of the workers; 0 if a clock did not advance. */
static uint64_t time_sample(bench *b, const plan *p, const struct colibri_matmul *m, uint32_t n_x)
{
    const uint64_t slot = b->n_samples++ % p->slots;
    sample s = {.b = b, .p = p, .m = m, .w = b->ring + slot * p->step * p->copies * b->group_stride, .n_x = n_x};
    clb_pool_run(b->pool, sample_worker, &s);
    return atomic_load(&s.stopped) ? 0 : atomic_load(&s.ns) / b->job->n_threads;
}

/* ---- a class ---------------------------------------------------------------------------------------------- */

/* Times of one candidate, in ascending order. */
typedef struct times {
    uint64_t ns[MAX_ROUNDS];
    uint32_t n;
} times;

static void add_time(times *t, uint64_t ns)
{
    uint32_t at = t->n++;
    for (; at && t->ns[at - 1] > ns; at--)
        t->ns[at] = t->ns[at - 1];
    t->ns[at] = ns;
}

/* The lower quartile. The smallest may be one that found its weights in a cache; the median of a busy machine, whose
 * other programs use that cache, is not what decode will see either. 0: no times. */
static uint64_t typical(const times *t)
{
    return t->n ? t->ns[t->n / 4] : 0;
}

/* False: out of time before the times mean anything. */
static bool time_class(bench *b, const plan *p, unsigned x_class, times all[CLB_MEASURE_RIVALS])
{
    const clb_measure_job *const job = b->job;
    const uint32_t n = job->n_rivals[x_class], n_x = clb_measure_n_x[x_class];
    const uint64_t start = job->now(job->now_ctx);
    uint64_t fastest = 0;
    for (uint32_t round = 0; round < MAX_ROUNDS; round++) {
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t k = (i + round) % n; /* nobody is always the first after somebody else */
            if (round > FAIR_ROUNDS && typical(&all[k]) / HOPELESS > fastest)
                continue;
            const uint64_t ns = time_sample(b, p, job->rival[x_class][k], n_x);
            if (round && ns) { /* the first round only warms up */
                add_time(&all[k], ns);
                fastest = !fastest || typical(&all[k]) < fastest ? typical(&all[k]) : fastest;
            }
            if (job->now(job->now_ctx) > job->deadline && round < MIN_ROUNDS)
                return false;
        }
        if (round >= MIN_ROUNDS && job->now(job->now_ctx) - start > n * CLASS_NS)
            break;
    }
    return true;
}

static void measure_class(bench *b, const plan *p, clb_measure_job *job, unsigned x_class)
{
    times all[CLB_MEASURE_RIVALS];
    memset(all, 0, sizeof all);
    if (!time_class(b, p, x_class, all))
        return;
    const double share = (double)job->n_rows / ((double)p->n_rows * p->copies); /* of the matrix in a sample */
    for (uint32_t k = 0; k < job->n_rivals[x_class]; k++)
        job->ps[x_class][k] = (uint64_t)((double)typical(&all[k]) * 1000.0 * share + 0.5);
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

static void *map(uint64_t bytes)
{
    void *const p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* like the store's arenas; without them it only takes longer */
#endif
    return p;
}

int clb_measure_run(clb_measure_job *job, clb_error *err)
{
    const struct colibri_format *const f = job->format;
    memset(job->ps, 0, sizeof job->ps);
    bench b = {.job = job,
               .row_bytes = (size_t)job->n_cols / f->block_elems * f->block_bytes,
               .x_stride = (size_t)job->n_cols / f->act_block_elems * f->act_block_bytes};
    b.group_stride = b.row_bytes * COLIBRI_GROUP_ROWS;
    uint32_t most_x = 0;
    for (unsigned c = 0; c < CLB_X_CLASSES; c++)
        for (uint32_t k = 0; k < job->n_rivals[c]; k++) {
            const size_t scratch = round_up(job->rival[c][k]->scratch_bytes, 64);
            b.scratch_bytes = scratch > b.scratch_bytes ? scratch : b.scratch_bytes;
            most_x = clb_measure_n_x[c];
        }
    /* An eighth of the room for a sample, what the rest needs, and all that is left for weights. */
    const uint64_t sample_bytes = job->max_bytes / 8 < SAMPLE_BYTES ? job->max_bytes / 8 : SAMPLE_BYTES;
    uint64_t y_floats = 0;
    plan plans[CLB_X_CLASSES];
    for (unsigned c = 0; c < CLB_X_CLASSES; c++) {
        plans[c] = make_plan(&b, c, sample_bytes);
        const uint64_t floats = (uint64_t)plans[c].n_rows * plans[c].copies * clb_measure_n_x[c];
        if (job->n_rivals[c] && floats > y_floats)
            y_floats = floats;
    }
    const uint64_t x_bytes = round_up((uint64_t)most_x * b.x_stride, 64);
    const uint64_t y_bytes = round_up(y_floats * sizeof(float), 64);
    const uint64_t scratch_bytes = (uint64_t)b.scratch_bytes * job->n_threads;
    if (job->max_bytes < CLB_MEASURE_MIN_BYTES || x_bytes + y_bytes + scratch_bytes > job->max_bytes / 2)
        return clb_fail(err, COLIBRI_E_LIMIT, "its buffers do not fit %llu bytes", (unsigned long long)job->max_bytes);
    b.ring_groups = (job->max_bytes - x_bytes - y_bytes - scratch_bytes) / b.group_stride;
    for (unsigned c = 0; c < CLB_X_CLASSES; c++) {
        plans[c] = make_plan(&b, c, sample_bytes); /* now with its slots */
        if (job->n_rivals[c] && !plans[c].slots)
            return clb_fail(err, COLIBRI_E_LIMIT, "its weights do not fit %llu bytes",
                            (unsigned long long)job->max_bytes);
    }
    const uint64_t bytes = round_up(b.ring_groups * b.group_stride, 64) + x_bytes + y_bytes + scratch_bytes;
    b.ring = map(bytes);
    if (!b.ring)
        return CLB_NOMEM(err, "buffers for measuring");
    b.x = b.ring + round_up(b.ring_groups * b.group_stride, 64);
    b.y = (float *)(void *)(b.x + x_bytes);
    b.scratch = b.x + x_bytes + y_bytes;
    int rc = COLIBRI_OK;
    CLB_GO(clb_pool_create(job->n_threads, &b.pool, err));
    CLB_GO(make_group(&b, b.ring, err));
    CLB_GO(make_acts(&b, most_x, err));
    clb_pool_run(b.pool, fill_worker, &b);
    for (unsigned c = 0; c < CLB_X_CLASSES; c++)
        if (job->n_rivals[c] && job->now(job->now_ctx) <= job->deadline)
            measure_class(&b, &plans[c], job, c);
done:
    clb_pool_destroy(b.pool);
    munmap(b.ring, bytes);
    return rc;
}
