/* Matrix products against the checker's own decoder: random shapes, ranges, strides and contents. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

#define CANARY 0x7fc5a5a5u /* a NaN that no arithmetic makes */

struct shape {
    uint32_t rows, cols, n_x, n_act; /* n_act: activation rows that exist */
    uint32_t groups, group_begin, group_end;
    bool indexed;
    size_t x_stride, y_stride;
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
    while ((uint64_t)s.rows * s.cols * s.n_x > work) {
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
    return s;
}

static void fill_canary(float *y, size_t n)
{
    const uint32_t c = CANARY;
    for (size_t i = 0; i < n; i++)
        memcpy(&y[i], &c, 4);
}

/* Rows of the group range must equal; everything else must be untouched. */
static void compare_y(struct report *rep, const struct shape *s, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t row = i % s->y_stride, t = i / s->y_stride;
        const bool ours = row < s->rows && row / 16 >= s->group_begin && row / 16 < s->group_end;
        if (!ours && colibri_f32_bits(got[i]) != CANARY) {
            case_fail(rep, "y[%zu][%zu] lies outside the range and was written", t, row);
            return;
        }
        if (ours && colibri_f32_bits(got[i]) == CANARY) {
            case_fail(rep, "y[%zu][%zu] was not written", t, row);
            return;
        }
        if (ours && !same_f32(got[i], want[i])) {
            case_fail(rep, "y[%zu][%zu] is %a (%08x), reference %a (%08x)", t, row, (double)got[i],
                      colibri_f32_bits(got[i]), (double)want[i], colibri_f32_bits(want[i]));
            return;
        }
    }
}

static void run_case(struct report *rep, const struct colibri_matmul *m, const struct fmt *f, uint32_t number)
{
    struct rng r = rng_case(rep->o, m->name, number);
    const struct shape s = random_shape(&r, f, rep->o->work);
    case_begin(rep, m->name, number, "%u x %u, groups %u..%u, %u of %u activations%s, strides %zu %zu", s.rows, s.cols,
               s.group_begin, s.group_end, s.n_x, s.n_act, s.indexed ? " by index" : "", s.x_stride, s.y_stride);

    const size_t group_bytes = 16 * fmt_row_bytes(f, s.cols);
    const size_t w_bytes = f->layout == COLIBRI_LAYOUT_X16 ? s.groups * group_bytes : s.rows * (group_bytes / 16);
    const size_t x_bytes = (s.n_act - 1) * s.x_stride + fmt_act_bytes(f, s.cols);
    const size_t y_len = (s.n_x - 1) * s.y_stride + s.rows;
    const bool front = rng_below(&r, 4) == 0;
    struct guarded w = guarded_alloc(w_bytes, f->layout == COLIBRI_LAYOUT_X16 ? 64 : f->block_bytes, front);
    struct guarded x = guarded_alloc(x_bytes, 8, front);
    struct guarded y = guarded_alloc(y_len * sizeof(float), 4, front);
    struct guarded index = guarded_alloc(s.n_x * sizeof(uint32_t), 4, front);
    struct guarded scratch = guarded_alloc(m->scratch_bytes, 64, front);
    float *const want = malloc(y_len * sizeof(float));
    if (!want)
        abort();
    fill_weights(&r, f, w.p, w_bytes);
    rng_bytes(&r, x.p, x_bytes); /* between the rows */
    fill_activations(&r, f, x.p, s.x_stride, s.n_act, s.cols);
    for (uint32_t t = 0; t < s.n_x; t++)
        ((uint32_t *)index.p)[t] = rng_below(&r, s.n_act);

    struct colibri_matmul_args a = {
        .struct_size = sizeof(a),
        .n_rows = s.rows,
        .n_cols = s.cols,
        .n_x = s.n_x,
        .group_begin = s.group_begin,
        .group_end = s.group_end,
        .w = w.p,
        .group_stride = group_bytes,
        .x = x.p,
        .x_stride = s.x_stride,
        .x_index = s.indexed ? index.p : NULL,
        .y = want,
        .y_stride = s.y_stride,
        .scratch = m->scratch_bytes ? scratch.p : NULL,
    };
    fill_canary(want, y_len);
    fmt_matmul(f, &a);
    a.y = y.p;
    fill_canary(y.p, y_len);
    const uint64_t control = fp_control();
    m->run(&a);
    if (fp_control() != control)
        case_fail(rep, "the floating-point control register was changed");
    compare_y(rep, &s, y.p, want, y_len);

    free(want);
    guarded_free(&w);
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&index);
    guarded_free(&scratch);
}

void check_matmul(struct report *rep, const struct colibri_matmul *m)
{
    const struct fmt *const f = fmt_find(m->gguf_type);
    if (!f) {
        case_begin(rep, m->name, 0, "table");
        case_fail(rep, "GGUF type %u is unknown to this program", m->gguf_type);
        return;
    }
    if (m->struct_size < sizeof(*m) || m->max_ulp != COLIBRI_EXACT || m->layout != f->layout || m->min_x < 1 ||
        strcmp(m->act, f->act) != 0 || !m->run) {
        case_begin(rep, m->name, 0, "table");
        case_fail(rep, "struct_size, max_ulp, layout, min_x, act or run is not what format %s needs", f->name);
        return;
    }
    for (uint32_t c = 0; c < rep->o->cases; c++)
        if (rep->o->only_case < 0 || rep->o->only_case == c)
            run_case(rep, m, f, c);
}
