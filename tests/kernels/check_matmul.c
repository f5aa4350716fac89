/* Matrix products against the checker's own decoder: random shapes, ranges, strides and contents. */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CANARY 0x7fc5a5a5u /* a NaN that no arithmetic makes */

struct shape {
    uint32_t rows, cols, n_x, n_act; /* n_act: activation rows that exist */
    uint32_t groups, group_begin, group_end;
    bool indexed;
    size_t x_stride, y_stride;
    uint32_t y_first, y_rows; /* rows of the matrix that y has room for */
};

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Sizes whose product stays below about `work` multiplications. */
static struct shape random_shape(struct rng *r, const struct fmt *f, uint64_t work)
{
    struct shape s;
    const uint32_t unit = f->block_cols, max_units = 4096 / unit;
    const uint32_t few = rng_below(r, 3) ? max_units : 4;
    s.cols = unit * rng_range(r, 1, few < max_units ? few : max_units);
    s.rows = rng_range(r, 1, 200);
    s.n_x = rng_below(r, 3) ? rng_range(r, 1, 16) : rng_range(r, 1, 70);
    /* More rows than kernels take at a time, on a matrix so small that this costs little. */
    const bool many = rng_below(r, 6) == 0;
    if (many) {
        s.n_x = rng_range(r, 65, 300);
        s.rows = rng_range(r, 1, 20);
        s.cols = unit;
    }
    while (!many && (uint64_t)s.rows * s.cols * s.n_x > work) {
        if (s.n_x > 13)
            s.n_x = max_u32(s.n_x / 2, 13);
        else if (s.cols > 16 * unit)
            s.cols = s.cols / unit / 2 * unit;
        else if (s.rows > 33)
            s.rows -= s.rows / 2;
        else
            break;
    }
    s.groups = (s.rows + 15) / 16;
    s.group_begin = 0;
    s.group_end = s.groups;
    if (rng_below(r, 2)) {
        s.group_begin = rng_below(r, s.groups + 1);
        s.group_end = rng_range(r, s.group_begin, s.groups);
    }
    s.indexed = rng_below(r, 2);
    s.n_act = s.indexed ? rng_range(r, 1, s.n_x + 4) : s.n_x;
    s.x_stride = fmt_act_bytes(f, s.cols) + 4 * (rng_below(r, 2) ? rng_below(r, 20) : 0);
    s.y_stride = s.rows + (rng_below(r, 2) ? rng_below(r, 40) : 0);
    s.y_first = 0;
    s.y_rows = s.rows;
    if (s.group_begin < s.group_end && rng_below(r, 3) == 0) { /* results of these groups alone, as in a tile */
        s.y_first = 16 * s.group_begin;
        s.y_rows = (s.rows < 16 * s.group_end ? s.rows : 16 * s.group_end) - s.y_first;
        s.y_stride = s.y_rows + (rng_below(r, 2) ? rng_below(r, 40) : 0);
    }
    return s;
}

static void fill_canary(float *y, size_t n)
{
    const uint32_t c = CANARY;
    for (size_t i = 0; i < n; i++)
        memcpy(&y[i], &c, 4);
}

/* Rows of the groups [begin, end) must equal; everything else must be untouched. */
static void compare_y(struct report *rep, const struct shape *s, uint32_t begin, uint32_t end, const float *got,
                      const float *want, size_t n, const char *when)
{
    for (size_t i = 0; i < n; i++) {
        const size_t row = s->y_first + i % s->y_stride, t = i / s->y_stride;
        const bool ours = row < s->rows && row / 16 >= begin && row / 16 < end;
        if (!ours && colibri_f32_bits(got[i]) != CANARY) {
            case_fail(rep, "y[%zu][%zu] lies outside the range and was written%s", t, row, when);
            return;
        }
        if (ours && colibri_f32_bits(got[i]) == CANARY) {
            case_fail(rep, "y[%zu][%zu] was not written%s", t, row, when);
            return;
        }
        if (ours && !same_f32(got[i], want[i])) {
            case_fail(rep, "y[%zu][%zu]%s is %a (%08x), reference %a (%08x)", t, row, when, (double)got[i],
                      colibri_f32_bits(got[i]), (double)want[i], colibri_f32_bits(want[i]));
            return;
        }
    }
}

/* Where row 0 would be if results begin with row y_first. */
static float *y_base(void *results, const struct shape *s)
{
    return (float *)((uintptr_t)results - s->y_first * sizeof(float));
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

struct buffers {
    struct guarded w, x, y, index, scratch;
    float *want;
    size_t y_len;
};

static void buffers_make(struct buffers *b, struct rng *r, const struct colibri_matmul *m, const struct fmt *f,
                         const struct shape *s, size_t group_bytes)
{
    const bool x16 = f->layout == COLIBRI_LAYOUT_X16;
    const size_t w_bytes = x16 ? s->groups * group_bytes : s->rows * (group_bytes / 16);
    const size_t x_bytes = (s->n_act - 1) * s->x_stride + fmt_act_bytes(f, s->cols);
    const bool front = rng_below(r, 4) == 0;
    b->y_len = (s->n_x - 1) * s->y_stride + s->y_rows;
    b->w = guarded_alloc(w_bytes, x16 ? 64 : f->block_bytes, front);
    b->x = guarded_alloc(x_bytes, 8, front);
    b->y = guarded_alloc(b->y_len * sizeof(float), 4, front);
    b->index = guarded_alloc(s->n_x * sizeof(uint32_t), 4, front);
    b->scratch = guarded_alloc(m->scratch_bytes, 64, front);
    guarded_name(&b->w, "w");
    guarded_name(&b->x, "x");
    guarded_name(&b->y, "y");
    guarded_name(&b->index, "x_index");
    guarded_name(&b->scratch, "scratch");
    b->want = malloc(b->y_len * sizeof(float));
    if (!b->want)
        abort();
}

static void buffers_free(struct buffers *b)
{
    free(b->want);
    guarded_free(&b->w);
    guarded_free(&b->x);
    guarded_free(&b->y);
    guarded_free(&b->index);
    guarded_free(&b->scratch);
}

/* New contents at the same addresses, and what the product must be now. */
static void buffers_fill(struct buffers *b, struct rng *r, const struct fmt *f, const struct shape *s,
                         struct colibri_matmul_args a)
{
    guarded_read_only(&b->w, false);
    guarded_read_only(&b->x, false);
    guarded_read_only(&b->index, false);
    fill_weights(r, f, b->w.p, b->w.n);
    rng_bytes(r, b->x.p, b->x.n); /* between the rows */
    fill_activations(r, f, b->x.p, s->x_stride, s->n_act, s->cols);
    for (uint32_t t = 0; t < s->n_x; t++)
        ((uint32_t *)b->index.p)[t] = rng_below(r, s->n_act);
    guarded_read_only(&b->w, true);
    guarded_read_only(&b->x, true);
    guarded_read_only(&b->index, true);
    a.y = y_base(b->want, s);
    fill_canary(b->want, b->y_len);
    fmt_matmul(f, &a);
}

static void call_and_compare(struct report *rep, struct rng *r, const struct colibri_matmul *m, const struct shape *s,
                             struct buffers *b, const struct colibri_matmul_args *a, const char *when)
{
    struct call_verdict v;
    fill_canary(b->y.p, b->y_len);
    rng_bytes(r, b->scratch.p, b->scratch.n); /* whatever was computed before */
    CHECKED_CALL(&v, m->run, a);
    call_report(rep, &v, when);
    compare_y(rep, s, a->group_begin, a->group_end, b->y.p, b->want, b->y_len, when);
    guarded_check(rep, &b->scratch);
    guarded_check(rep, &b->y);
}

/* ---- two threads at once ------------------------------------------------------------------------------------------
 */

struct half {
    const struct colibri_matmul *m;
    struct colibri_matmul_args a;
    struct call_verdict v;
    pthread_barrier_t *start;
};

static void *run_half(void *arg)
{
    struct half *const h = arg;
    pthread_barrier_wait(h->start);
    CHECKED_CALL(&h->v, h->m->run, &h->a);
    return NULL;
}

/* The host's split: neighbouring group ranges of one product, each with scratch of its own. */
static void two_threads(struct report *rep, struct rng *r, const struct colibri_matmul *m, const struct shape *s,
                        struct buffers *b, const struct colibri_matmul_args *a)
{
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, 2))
        abort();
    struct guarded scratch = guarded_alloc(m->scratch_bytes, 64, false);
    guarded_name(&scratch, "scratch");
    rng_bytes(r, b->scratch.p, b->scratch.n);
    rng_bytes(r, scratch.p, scratch.n);
    fill_canary(b->y.p, b->y_len);
    const uint32_t cut = rng_range(r, a->group_begin, a->group_end);
    struct half lower = {.m = m, .a = *a, .start = &start}, upper = lower;
    lower.a.group_end = upper.a.group_begin = cut;
    upper.a.scratch = m->scratch_bytes ? scratch.p : NULL;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_half, &upper)) {
        perror("colibri-kernelcheck: pthread_create");
        exit(1);
    }
    run_half(&lower);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&start);
    call_report(rep, &lower.v, ", with two threads");
    call_report(rep, &upper.v, ", with two threads");
    compare_y(rep, s, a->group_begin, a->group_end, b->y.p, b->want, b->y_len, ", with two threads,");
    guarded_check(rep, &b->scratch);
    guarded_free(&scratch);
}

static void run_case(struct report *rep, const struct colibri_matmul *m, const struct fmt *f, uint32_t number)
{
    struct rng r = rng_case(rep->o, m->name, number);
    const struct shape s = random_shape(&r, f, rep->o->work);
    case_begin(rep, m->name, number, "%u x %u, groups %u..%u, %u of %u activations%s, strides %zu %zu", s.rows, s.cols,
               s.group_begin, s.group_end, s.n_x, s.n_act, s.indexed ? " by index" : "", s.x_stride, s.y_stride);
    const size_t group_bytes = 16 * fmt_row_bytes(f, s.cols);
    struct buffers b;
    buffers_make(&b, &r, m, f, &s, group_bytes);
    const struct colibri_matmul_args a = {
        .struct_size = sizeof(a),
        .n_rows = s.rows,
        .n_cols = s.cols,
        .n_x = s.n_x,
        .group_begin = s.group_begin,
        .group_end = s.group_end,
        .w = b.w.p,
        .group_stride = group_bytes,
        .x = b.x.p,
        .x_stride = s.x_stride,
        .x_index = s.indexed ? b.index.p : NULL,
        .y = y_base(b.y.p, &s),
        .y_stride = s.y_stride,
        .scratch = m->scratch_bytes ? b.scratch.p : NULL,
    };
    buffers_fill(&b, &r, f, &s, a);
    call_and_compare(rep, &r, m, &s, &b, &a, "");
    if (!case_failed())
        call_and_compare(rep, &r, m, &s, &b, &a, ", called again,");
    if (!case_failed() && rng_below(&r, 2))
        two_threads(rep, &r, m, &s, &b, &a);
    if (!case_failed() && rng_below(&r, 4) == 0) {
        buffers_fill(&b, &r, f, &s, a);
        call_and_compare(rep, &r, m, &s, &b, &a, ", with other contents at the same addresses,");
    }
    buffers_free(&b);
}

void check_matmul(struct report *rep, const struct colibri_matmul *m)
{
    if (!check_matmul_table(rep, m))
        return;
    struct state *const state = state_watch((void (*)(void))m->run);
    for (uint32_t c = 0; c < rep->o->cases; c++)
        if (rep->o->only_case < 0 || rep->o->only_case == c)
            run_case(rep, m, fmt_find(m->gguf_type), c);
    state_compare(rep, state, m->name);
}
