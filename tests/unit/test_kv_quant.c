/* Quantizers of KV rows and the Hadamard turn against their definitions, written out plainly. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "colibri/numerics.h"
#include "ops/hadamard.h"
#include "ops/kv_quant.h"

enum { N = 32, BLOCKS = 4000 };

/* About normal. */
static float normal(test_rand *rng)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)test_rand_below(rng, 1u << 20) / (1 << 20);
    return (float)(sum - 6);
}

static void fill(test_rand *rng, float *x, double scale)
{
    for (int i = 0; i < N; i++)
        x[i] = (float)(scale * (double)normal(rng));
}

static double nearest(double x, double low, double high)
{
    x = nearbyint(x); /* to even: the default rounding of the process */
    return x < low ? low : x > high ? high : x;
}

static float largest(const float *x)
{
    float m = 0;
    for (int i = 0; i < N; i++)
        m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
    return m;
}

static void q8_0_as_defined(void **state)
{
    (void)state;
    test_rand rng = {1};
    for (int b = 0; b < BLOCKS; b++) {
        float x[N], y[N];
        struct colibri_q8_0 q;
        fill(&rng, x, pow(10, b % 9 - 4));
        clb_kv_quant_q8_0(x, &q, N);
        clb_kv_widen_q8_0(&q, y, N);
        const float d = colibri_f16_f32(q.d);
        assert_int_equal(q.d, colibri_f32_f16(fabsf(largest(x)) / 127.0f));
        for (int i = 0; i < N; i++) {
            const double exact = (double)x[i] / (double)d;
            if (d != 0 &&
                fabs(exact - floor(exact) - 0.5) > 1e-4) /* the product with 1 / d may move what is at a tie */
                assert_int_equal(q.qs[i], (int)nearest(exact, -127, 127));
            assert_true(y[i] == d * (float)q.qs[i]);
        }
    }
}

static double q4_0_error(const float *x, colibri_f16 scale, int *codes)
{
    const float d = colibri_f16_f32(scale);
    double sum = 0;
    for (int i = 0; i < N; i++) {
        codes[i] = d != 0 ? (int)nearest((double)x[i] / (double)d, -8, 7) : 0;
        sum += ((double)x[i] - (double)d * codes[i]) * ((double)x[i] - (double)d * codes[i]);
    }
    return sum;
}

static void q4_0_as_defined(void **state)
{
    (void)state;
    test_rand rng = {2};
    double ours = 0, eight = 0, all = 0;
    int n_second = 0;
    for (int b = 0; b < BLOCKS; b++) {
        float x[N], y[N];
        int codes[2][N];
        struct colibri_q4_0 q;
        fill(&rng, x, pow(10, b % 5 - 2));
        clb_kv_quant_q4_0(x, &q, N);
        clb_kv_widen_q4_0(&q, y, N);
        const float m = largest(x);
        const colibri_f16 scale[2] = {colibri_f32_f16(m / -8.0f), colibri_f32_f16(m / -8.5f)};
        const double e[2] = {q4_0_error(x, scale[0], codes[0]), q4_0_error(x, scale[1], codes[1])};
        const int better = q.d == scale[1];
        assert_true(q.d == scale[0] || q.d == scale[1]);
        if (fabs(e[0] - e[1]) > 1e-4 * e[0]) /* close ones may round either way */
            assert_int_equal(better, e[1] < e[0]);
        n_second += better;
        double sum = 0, power = 0;
        for (int i = 0; i < N; i++) {
            const int code = (int)(i < 16 ? q.qs[i] & 15u : q.qs[i - 16] >> 4u) - 8;
            assert_in_range(code - codes[better][i] + 1, 0, 2); /* a tie at most */
            assert_true(y[i] == colibri_f16_f32(q.d) * (float)code);
            sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            power += (double)x[i] * (double)x[i];
        }
        ours += sum / power;
        eight += e[0] / power;
        all++;
    }
    print_message("q4_0: squared error %.5f of the square, %.5f with one scale; the second one in %.0f %% of blocks\n",
                  ours / all, eight / all, 100 * n_second / all);
    assert_true(ours < 0.96 * eight);
    assert_in_range(n_second, BLOCKS / 10, BLOCKS * 9 / 10);
}

static void blocks_that_are_special(void **state)
{
    (void)state;
    float x[N] = {0}, y[N];
    struct colibri_q8_0 q8;
    struct colibri_q4_0 q4;
    const float specials[] = {0, -0.0f, 1e-30f, 3e-8f, 65504 * 127.0f, 3e38f, NAN, INFINITY, -INFINITY};
    for (size_t s = 0; s < sizeof specials / sizeof *specials; s++) {
        x[5] = specials[s];
        x[20] = s == 5 ? -1 : 0;
        const bool bad = !isfinite(specials[s]);
        clb_kv_quant_q8_0(x, &q8, N);
        clb_kv_widen_q8_0(&q8, y, N);
        for (int i = 0; i < N; i++)
            assert_true(bad ? isnan(y[i]) : isfinite(y[i]));
        if (!bad) /* what overflows a scale becomes the largest there is */
            assert_true(fabsf(y[5]) <= fabsf(x[5]) * 1.01f + 1e-5f);
        if (s == 4)
            assert_true(y[5] == x[5]);
        clb_kv_quant_q4_0(x, &q4, N);
        clb_kv_widen_q4_0(&q4, y, N);
        for (int i = 0; i < N; i++)
            assert_true(bad ? isnan(y[i]) : isfinite(y[i]));
    }
    /* ties go to the even code; the first of several largest decides the sign of q4_0's scale */
    memset(x, 0, sizeof x);
    x[0] = 127;
    x[1] = 2.5f;
    x[2] = 3.5f;
    x[3] = -2.5f;
    clb_kv_quant_q8_0(x, &q8, N);
    assert_int_equal(q8.qs[0], 127);
    assert_int_equal(q8.qs[1], 2);
    assert_int_equal(q8.qs[2], 4);
    assert_int_equal(q8.qs[3], -2);
    memset(x, 0, sizeof x);
    x[7] = -8;
    x[9] = 8;
    clb_kv_quant_q4_0(x, &q4, N);
    assert_true(colibri_f16_f32(q4.d) > 0);
    x[6] = 8;
    clb_kv_quant_q4_0(x, &q4, N);
    assert_true(colibri_f16_f32(q4.d) < 0);
}

/* Rows of several blocks are their blocks. */
static void rows_are_blocks(void **state)
{
    (void)state;
    test_rand rng = {3};
    float x[4 * N];
    struct colibri_q8_0 q8[4], one8;
    struct colibri_q4_0 q4[4], one4;
    for (int b = 0; b < 4; b++)
        fill(&rng, x + b * N, 1 + b);
    clb_kv_quant_q8_0(x, q8, 4 * N);
    clb_kv_quant_q4_0(x, q4, 4 * N);
    for (int b = 0; b < 4; b++) {
        clb_kv_quant_q8_0(x + b * N, &one8, N);
        clb_kv_quant_q4_0(x + b * N, &one4, N);
        assert_memory_equal(&one8, &q8[b], sizeof one8);
        assert_memory_equal(&one4, &q4[b], sizeof one4);
    }
}

static int parity(uint32_t x)
{
    return __builtin_popcount(x) & 1;
}

static void turn_as_defined(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 576, 1024, 2048};
    static float x[2048], y[2048], z[2048];
    test_rand rng = {4};
    for (size_t c = 0; c < sizeof dims / sizeof *dims; c++) {
        const uint32_t dim = dims[c], b = clb_hadamard_block(dim);
        assert_true(b && (b & (b - 1)) == 0 && dim % b == 0 && (b == 1024 || dim / b % 2 == 1));
        for (uint32_t i = 0; i < dim; i++)
            x[i] = y[i] = z[i] = normal(&rng);
        clb_hadamard(y, dim);
        for (uint32_t i = 0; i < dim; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < b; j++)
                sum += (parity(i % b & j) ? -1.0 : 1.0) * (double)x[i / b * b + j];
            if (fabs(sum / sqrt(b) - (double)y[i]) > 2e-6)
                fail_msg("dimension %u: element %u is %g, not %g", dim, i, (double)y[i], sum / sqrt(b));
        }
        clb_hadamard(y, dim);
        for (uint32_t i = 0; i < dim; i++)
            assert_true(fabsf(y[i] - x[i]) < 2e-6f);
    }
    assert_int_equal(clb_hadamard_block(4096), CLB_HADAMARD_MOST);
}

/* Powers of four divide exactly: small whole numbers come back as they were, and so do scores. */
static void turn_is_exact_where_it_can_be(void **state)
{
    (void)state;
    test_rand rng = {5};
    float a[64], b[64], ta[64], tb[64];
    float dot = 0, turned = 0;
    for (int i = 0; i < 64; i++) {
        ta[i] = a[i] = (float)test_rand_below(&rng, 201) - 100;
        tb[i] = b[i] = (float)test_rand_below(&rng, 201) - 100;
        dot += a[i] * b[i];
    }
    clb_hadamard(ta, 64);
    clb_hadamard(tb, 64);
    for (int i = 0; i < 64; i++)
        turned += ta[i] * tb[i];
    assert_true(turned == dot);
    clb_hadamard(ta, 64);
    assert_memory_equal(a, ta, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8_0_as_defined),         cmocka_unit_test(q4_0_as_defined),
        cmocka_unit_test(blocks_that_are_special), cmocka_unit_test(rows_are_blocks),
        cmocka_unit_test(turn_as_defined),         cmocka_unit_test(turn_is_exact_where_it_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
