/* Exact products: `matmul` gives the bits of the float steps in docs/numerics.md, computed here from single elements of
 * the packed form; it equals `dot` for every shape, and both are close to the product in double precision. */
#include "test_format_util.h"

/* The contract's float steps for one row of a packed group. */
static float contract_dot(const struct colibri_format *f, const void *group, unsigned r, const void *act,
                          unsigned n_cols)
{
    float acc = 0.0f;
    for (unsigned c0 = 0; c0 < n_cols; c0 += f->block_elems) {
        long isum = 0, msum = 0, xsum = 0;
        struct elem e = {0};
        float dx = 0.0f;
        for (unsigned c = c0; c < c0 + f->block_elems; c++) {
            const struct colibri_act_q8x32 *x32 = (const struct colibri_act_q8x32 *)act + c / 32;
            const struct colibri_act_q8x256 *x256 = (const struct colibri_act_q8x256 *)act + c / 256;
            const int x = f->block_elems == 32 ? x32->q[c % 32] : x256->q[c % 256];
            dx = f->block_elems == 32 ? x32->d : x256->d;
            e = packed_elem(f->gguf_type, group, r, c);
            isum += (long)e.sc * e.q * x;
            msum += (long)e.min * x;
            xsum += x;
        }
        assert_in_range(isum + INT32_MAX, 0, 2L * INT32_MAX);
        acc = fmaf(e.d * dx, (float)(int32_t)isum, acc);
        if (has_minimum(f->gguf_type))
            acc = f->block_elems == 32 ? fmaf(e.m * dx, (float)(int32_t)xsum, acc)
                                       : fmaf(-(e.dmin * dx), (float)(int32_t)msum, acc);
    }
    return acc;
}

struct problem {
    const struct colibri_format *f;
    uint32_t n_rows, n_cols, n_x, n_act;
    size_t row_bytes, x_stride;
    unsigned char *rows, *w, *x;
    uint32_t *index;
};

static void make_problem(struct problem *p, const struct colibri_format *f, uint32_t n_rows, uint32_t n_cols,
                         uint32_t n_x, int tame, test_rand *rng)
{
    *p = (struct problem){.f = f, .n_rows = n_rows, .n_cols = n_cols, .n_x = n_x, .n_act = n_x + 3};
    p->row_bytes = row_bytes_of(f, n_cols);
    const size_t groups = (n_rows + 15) / 16, blocks = (size_t)n_rows * n_cols / f->block_elems;
    p->rows = test_alloc(p->row_bytes * n_rows);
    test_rand_bytes(rng, p->rows, p->row_bytes * n_rows);
    if (tame)
        tame_scales(f, p->rows, blocks, rng);
    if (f->layout == COLIBRI_LAYOUT_X16) {
        p->w = test_alloc(p->row_bytes * 16 * groups);
        for (size_t g = 0; g < groups; g++) {
            const uint32_t n = n_rows - 16 * (uint32_t)g < 16 ? n_rows - 16 * (uint32_t)g : 16;
            f->pack(p->rows + 16 * g * p->row_bytes, p->row_bytes, n, n_cols, p->w + 16 * g * p->row_bytes);
        }
    } else {
        p->w = malloc(p->row_bytes * n_rows); /* rows the matrix lacks do not exist: a sanitizer sees a read of them */
        assert_non_null(p->w);
        memcpy(p->w, p->rows, p->row_bytes * n_rows);
    }
    /* n_act activation rows, with a gap between rows */
    const size_t act_bytes = (size_t)n_cols / f->act_block_elems * f->act_block_bytes;
    p->x_stride = act_bytes + 4 * test_rand_below(rng, 3);
    p->x = malloc(p->x_stride * (p->n_act - 1) + act_bytes);
    float *x = malloc(n_cols * sizeof(float));
    assert_true(p->x && x);
    for (uint32_t t = 0; t < p->n_act; t++) {
        for (uint32_t c = 0; c < n_cols; c++)
            x[c] = test_rand_f32(rng, -3.0f, 3.0f) * test_rand_f32(rng, 0.0f, 1.0f);
        if (!tame && t == 1)
            x[n_cols / 2] = NAN;
        f->quantize_act(x, p->x + t * p->x_stride, n_cols);
    }
    free(x);
    p->index = malloc(n_x * sizeof(uint32_t));
    assert_non_null(p->index);
    for (uint32_t t = 0; t < n_x; t++)
        p->index[t] = test_rand_below(rng, p->n_act);
}

static void free_problem(struct problem *p)
{
    free(p->rows);
    free(p->w);
    free(p->x);
    free(p->index);
}

#define POISON 0x7fabcdefu

static void check_problem(const struct problem *p, int use_index, uint32_t g0, uint32_t g1, int elementwise)
{
    const size_t y_stride = p->n_rows + (use_index ? 5 : 0);
    const size_t n_y = y_stride * p->n_x + 16; /* beyond the last row: a group that is written whole shows */
    uint32_t *poison = malloc(n_y * sizeof(float));
    assert_non_null(poison);
    for (size_t i = 0; i < n_y; i++)
        poison[i] = POISON;
    float *y = (float *)(void *)poison;
    const struct colibri_matmul_args a = {.struct_size = sizeof a,
                                          .n_rows = p->n_rows,
                                          .n_cols = p->n_cols,
                                          .n_x = p->n_x,
                                          .group_begin = g0,
                                          .group_end = g1,
                                          .w = p->w,
                                          .group_stride = 16 * p->row_bytes,
                                          .x = p->x,
                                          .x_stride = p->x_stride,
                                          .x_index = use_index ? p->index : NULL,
                                          .y = y,
                                          .y_stride = y_stride};
    p->f->matmul(&a);
    for (size_t i = 0; i < n_y; i++) {
        const size_t row = i % y_stride, t = i / y_stride;
        if (t >= p->n_x || row >= p->n_rows || row < 16u * g0 || row >= 16u * g1) {
            assert_int_equal(colibri_f32_bits(y[i]), POISON);
            continue;
        }
        const void *x = p->x + (use_index ? p->index[t] : t) * p->x_stride;
        const float want = p->f->dot(p->rows + row * p->row_bytes, x, p->n_cols);
        if (!same_float(y[i], want))
            fail_msg("%s: row %zu of %u, x %zu of %u: matmul %a, dot %a", p->f->name, row, p->n_rows, t, p->n_x,
                     (double)y[i], (double)want);
        if (elementwise && p->f->layout == COLIBRI_LAYOUT_X16) {
            const float by_contract =
                contract_dot(p->f, p->w + row / 16 * 16 * p->row_bytes, (unsigned)row % 16, x, p->n_cols);
            if (!same_float(y[i], by_contract))
                fail_msg("%s: row %zu: matmul %a, contract %a", p->f->name, row, (double)y[i], (double)by_contract);
        }
    }
    free(poison);
}

static void each_format(void (*check)(const struct colibri_format *f, test_rand *rng))
{
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        test_rand rng = {100 + i};
        check(formats[i], &rng);
    }
}

static void check_shapes(const struct colibri_format *f, test_rand *rng)
{
    static const uint32_t rows[] = {1, 15, 16, 17, 40, 64}, xs[] = {1, 2, 7, 8, 9, 19};
    for (int tame = 0; tame < 2; tame++)
        for (size_t i = 0; i < 6; i++) {
            struct problem p;
            const uint32_t blocks = 1 + test_rand_below(rng, 3);
            const uint32_t n_cols = f->block_elems == 1 ? 1 + test_rand_below(rng, 70) : blocks * f->block_elems;
            make_problem(&p, f, rows[i], n_cols, xs[test_rand_below(rng, 6)], tame, rng);
            const uint32_t groups = (rows[i] + 15) / 16, g0 = test_rand_below(rng, groups);
            check_problem(&p, 0, 0, groups, 1);
            check_problem(&p, 1, 0, groups, 0);
            check_problem(&p, 1, g0, g0 + 1, 1);
            check_problem(&p, 0, g0, g0, 0); /* an empty range writes nothing */
            free_problem(&p);
        }
}

static void test_shapes(void **state)
{
    (void)state;
    each_format(check_shapes);
}

/* The largest integer sums: extreme scale and weight bytes against activations of one sign and of -128 (which
 * colibri_act_* never writes, but a packed file's scales may be anything). */
static void check_extremes(const struct colibri_format *f, test_rand *rng)
{
    if (f->layout != COLIBRI_LAYOUT_X16)
        return;
    static const uint8_t fill[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0};
    struct problem p;
    make_problem(&p, f, 16, 2 * f->block_elems, 2, 1, rng);
    for (uint32_t t = 0; t < p.n_act; t++) {
        const int8_t v = t % 2 ? 127 : -128;
        for (unsigned b = 0; b < 2; b++) {
            if (f->block_elems == 32) {
                struct colibri_act_q8x32 *x = (struct colibri_act_q8x32 *)(void *)(p.x + t * p.x_stride) + b;
                memset(x->q, v, 32);
                x->sum = 32 * v;
            } else {
                struct colibri_act_q8x256 *x = (struct colibri_act_q8x256 *)(void *)(p.x + t * p.x_stride) + b;
                memset(x->q, v, 256);
                for (int s = 0; s < 16; s++)
                    x->bsum[s] = (int16_t)(16 * v);
            }
        }
    }
    for (unsigned r = 0; r < 16; r++)
        memset(p.rows + r * p.row_bytes, fill[r % 6], p.row_bytes);
    tame_scales(f, p.rows, 32, rng);
    f->pack(p.rows, p.row_bytes, 16, p.n_cols, p.w);
    check_problem(&p, 0, 0, 1, 1);
    free_problem(&p);
}

static void test_extremes(void **state)
{
    (void)state;
    each_format(check_extremes);
}

static double act_value(const struct colibri_format *f, const void *act, unsigned c)
{
    if (f->block_elems == 1)
        return (double)((const float *)act)[c];
    if (f->block_elems == 32) {
        const struct colibri_act_q8x32 *x = (const struct colibri_act_q8x32 *)act + c / 32;
        return (double)x->d * x->q[c % 32];
    }
    const struct colibri_act_q8x256 *x = (const struct colibri_act_q8x256 *)act + c / 256;
    return (double)x->d * x->q[c % 256];
}

/* Each block makes at most 3 rounded products and 2 rounded fmas of each term, each sum is rounded once per block
 * (16 columns for floats), and a dequantized weight is 3 roundings away from exact. */
static void check_double(const struct colibri_format *f, test_rand *rng)
{
    const uint32_t n_cols = 2048;
    struct problem p;
    make_problem(&p, f, 16, n_cols, 4, 1, rng);
    const double steps = 2.0 * n_cols / (f->block_elems == 1 ? 16 : f->block_elems) + 8;
    float *w = malloc(n_cols * sizeof(float));
    assert_non_null(w);
    for (uint32_t r = 0; r < 16; r++)
        for (uint32_t t = 0; t < 4; t++) {
            const void *x = p.x + t * p.x_stride;
            double sum = 0, size = 0;
            f->dequantize(p.rows + r * p.row_bytes, w, n_cols);
            for (uint32_t c = 0; c < n_cols; c++) {
                double parts = fabs((double)w[c]);
                if (f->layout == COLIBRI_LAYOUT_X16) { /* both parts of d * q - m count, even if they cancel */
                    const struct elem e = packed_elem(f->gguf_type, p.w, r, c);
                    parts = fabs((double)e.d * e.sc * e.q) + fabs((double)e.m) + fabs((double)e.dmin * e.min);
                }
                sum += (double)w[c] * act_value(f, x, c);
                size += parts * fabs(act_value(f, x, c));
            }
            const double got = (double)f->dot(p.rows + r * p.row_bytes, x, n_cols);
            assert_true(size > 0);
            if (!(fabs(got - sum) <= 0x1p-24 * steps * size))
                fail_msg("%s: row %u: %.9g, double %.9g, bound %.3g", f->name, r, got, sum, 0x1p-24 * steps * size);
        }
    free(w);
    free_problem(&p);
}

static void test_double(void **state)
{
    (void)state;
    each_format(check_double);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_extremes),
                                       cmocka_unit_test(test_double)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
