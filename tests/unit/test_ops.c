/* The scalar reference of core/ops against the C library and plain double formulas: it defines every kernel's bits, so
 * nothing else would notice if it computed the wrong thing. */
#include <math.h>
#include <string.h>

#include "colibri/numerics.h"
#include "ops/ops.h"
#include "ops/sincos.h"
#include "support.h"

/* Distance of `got` from `exact` in units of the last place of a float of that size. */
static double ulp(double exact, float got)
{
    const float f = fabsf((float)exact);
    return fabs(exact - (double)got) / (double)(nextafterf(f, INFINITY) - f);
}

static void test_sincos_rounds_correctly(void **state)
{
    (void)state;
    test_rand r = {1};
    double worst = 0.0;
    for (int i = 0; i < 300000; i++) {
        /* positions times speeds as ropes have them, and angles of any size in the domain */
        const double angle = i % 2 ? (double)test_rand_below(&r, 5000000) * exp(-0.0137 * (double)(i % 1000))
                                   : (2.0 * test_rand_f64(&r) - 1.0) * 9.99e6;
        float c, s;
        clb_sincos(angle, &c, &s);
        worst = fmax(worst, fmax(ulp(cos(angle), c), ulp(sin(angle), s)));
    }
    assert_true(worst < 0.50001);
    float c, s;
    clb_sincos(0.0, &c, &s);
    assert_true(c == 1.0f && s == 0.0f);
    clb_sincos(2e7, &c, &s);
    assert_true(isnan(c) && isnan(s));
    clb_sincos((double)NAN, &c, &s);
    assert_true(isnan(c) && isnan(s));
}

static void test_rope_speeds_round_correctly(void **state)
{
    (void)state;
    static const double bases[] = {10000.0, 500000.0, 1e6, 5e6, 1e7, 150000.0, 2.0, 1.0};
    double worst = 0.0;
    for (size_t b = 0; b < sizeof(bases) / sizeof(bases[0]); b++)
        for (size_t n = 1; n <= 128; n++) {
            float f[128];
            clb_rope_inv_freq(f, n, bases[b]);
            for (size_t i = 0; i < n; i++)
                worst = fmax(worst, ulp(pow(bases[b], -(double)i / (double)n), f[i]));
        }
    assert_true(worst < 0.50001);
    for (int e = -1000; e < 1000; e++)
        assert_true(clb_exp2(e) == ldexp(1.0, e));
    for (double x = 1e-300; x < 1e300; x *= 1.37)
        assert_true(fabs(clb_log2(x) - log2(x)) <= 1e-14 * fmax(fabs(log2(x)), 1e-2));
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (float x = -87.33f; x < 88.37f; x += 0.00037f)
        worst = fmax(worst, fabs((double)colibri_expf(x) / exp((double)x) - 1.0));
    assert_true(worst < 2e-7);
    assert_true(colibri_expf(0.0f) == 1.0f && colibri_expf(-0.0f) == 1.0f);
    assert_true(colibri_expf(-87.34f) == 0.0f && isinf(colibri_expf(88.38f)) && isnan(colibri_expf(NAN)));
}

static void fill(test_rand *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = test_rand_f32(r, -3.0f, 3.0f);
}

static void assert_near(double want, float got, double tolerance)
{
    if (!(fabs(want - (double)got) <= tolerance))
        fail_msg("%.9g instead of %.9g", (double)got, want);
}

static void test_norm_softmax_activations(void **state)
{
    (void)state;
    test_rand r = {2};
    for (size_t n = 1; n < 90; n += 7) {
        float x[90], y[90], w[90], p[90];
        fill(&r, x, n);
        fill(&r, w, n);
        double squares = 0.0, max = -INFINITY, sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            squares += (double)x[i] * (double)x[i];
            max = fmax(max, (double)x[i]);
        }
        for (size_t i = 0; i < n; i++)
            sum += exp((double)x[i] - max);
        clb_ref_rms_norm(y, x, w, n, 1e-5f);
        for (size_t i = 0; i < n; i++)
            assert_near((double)x[i] / sqrt(squares / (double)n + 1e-5) * (double)w[i], y[i], 2e-6);
        memcpy(p, x, n * sizeof(float));
        clb_ref_softmax(p, n);
        for (size_t i = 0; i < n; i++)
            assert_near(exp((double)x[i] - max) / sum, p[i], 5e-7);
        clb_ref_swiglu(y, x, w, n);
        for (size_t i = 0; i < n; i++)
            assert_near((double)x[i] / (1.0 + exp(-(double)x[i])) * (double)w[i], y[i], 2e-6);
        clb_geglu(y, x, w, n);
        for (size_t i = 0; i < n; i++) {
            const double g = (double)x[i], z = 0.7978845608028654 * (g + 0.044715 * g * g * g);
            assert_near(0.5 * g * (1.0 + tanh(z)) * (double)w[i], y[i], 3e-6);
        }
        clb_swiglu_clamped(y, x, w, n, 1.702f, 2.0f);
        for (size_t i = 0; i < n; i++) {
            const double g = fmin((double)x[i], 2.0), u = fmax(fmin((double)w[i], 2.0), -2.0);
            assert_near(g / (1.0 + exp(-1.702 * g)) * (u + 1.0), y[i], 3e-6);
        }
        assert_near(1.0 / (1.0 + exp(-(double)x[0])), clb_sigmoid(x[0]), 1e-6);
    }
    float bad[20] = {0.0f, 1.0f, NAN};
    clb_ref_softmax(bad, 20);
    for (size_t i = 0; i < 20; i++)
        assert_true(isnan(bad[i])); /* never a plausible number next to a broken one */
}

static void test_rope_rotates(void **state)
{
    (void)state;
    test_rand r = {3};
    for (int neox = 0; neox < 2; neox++) {
        float x[24], y[24], cs[24];
        double angle[12];
        fill(&r, x, 24);
        memcpy(y, x, sizeof(x));
        for (size_t i = 0; i < 12; i++) {
            angle[i] = 0.7 * (double)i;
            clb_sincos(angle[i], &cs[2 * i], &cs[2 * i + 1]);
        }
        clb_ref_rope(y, cs, 24, neox);
        for (size_t i = 0; i < 12; i++) {
            const size_t a = neox ? i : 2 * i, b = neox ? i + 12 : 2 * i + 1;
            const double xa = (double)x[a], xb = (double)x[b];
            assert_near(xa * cos(angle[i]) - xb * sin(angle[i]), y[a], 1e-6);
            assert_near(xa * sin(angle[i]) + xb * cos(angle[i]), y[b], 1e-6);
        }
    }
}

enum { HEADS = 2, DIM = 20, N_KV = 1100, PAGE = 48, N_PAGES = (N_KV + PAGE - 1) / PAGE };
enum { N_SEGMENTS = (N_KV + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT };

/* Plain attention in double. */
static void naive_attention(const float *q, const float *k, const float *v, const float *sinks, double *out, double *p)
{
    for (size_t h = 0; h < HEADS; h++) {
        double max = sinks ? (double)sinks[h] : -INFINITY, sum = 0.0;
        for (size_t i = 0; i < N_KV; i++) {
            p[h * N_KV + i] = 0.0;
            for (size_t d = 0; d < DIM; d++)
                p[h * N_KV + i] += (double)q[h * DIM + d] * (double)k[i * DIM + d] * 0.25;
            max = fmax(max, p[h * N_KV + i]);
        }
        for (size_t i = 0; i < N_KV; i++)
            sum += p[h * N_KV + i] = exp(p[h * N_KV + i] - max);
        sum += sinks ? exp((double)sinks[h] - max) : 0.0;
        for (size_t d = 0; d < DIM; d++) {
            out[h * DIM + d] = 0.0;
            for (size_t i = 0; i < N_KV; i++)
                out[h * DIM + d] += p[h * N_KV + i] / sum * (double)v[i * DIM + d];
        }
        for (size_t i = 0; i < N_KV; i++)
            p[h * N_KV + i] /= sum;
    }
}

static void test_attention(void **state)
{
    (void)state;
    static float k[N_PAGES * PAGE * DIM], v[N_PAGES * PAGE * DIM], scores[HEADS * 1104];
    static float weights[HEADS * COLIBRI_ATTN_SEGMENT], parts[HEADS * N_SEGMENTS * (DIM + 32)];
    static double p[HEADS * N_KV];
    test_rand r = {4};
    float q[HEADS * DIM], out[HEADS * DIM], max_sum[2 * HEADS];
    const float sinks[HEADS] = {3.0f, -1.0f};
    const void *k_pages[N_PAGES], *v_pages[N_PAGES];
    double want[HEADS * DIM];
    fill(&r, k, sizeof(k) / sizeof(k[0]));
    fill(&r, v, sizeof(v) / sizeof(v[0]));
    fill(&r, q, HEADS * DIM);
    for (size_t i = 0; i < N_PAGES; i++) {
        k_pages[i] = k + i * PAGE * DIM;
        v_pages[i] = v + i * PAGE * DIM;
    }
    for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
        const struct colibri_attention_args a = {
            .struct_size = sizeof(a),
            .n_heads = HEADS,
            .k_dim = DIM,
            .v_dim = DIM,
            .n_kv = N_KV,
            .page_tokens = PAGE,
            .k_type = COLIBRI_TYPE_F32,
            .v_type = COLIBRI_TYPE_F32,
            .k_pages = k_pages,
            .v_pages = v_pages,
            .q = q,
            .q_stride = DIM,
            .scale = 0.25f,
            .sinks = with_sinks ? sinks : NULL,
            .scores = scores,
            .score_stride = 1104,
            .out = out,
            .out_stride = DIM,
            .max_sum = max_sum,
            .n_rows = 1,
            .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
            .segment_end = N_SEGMENTS,
            .weights = weights,
            .parts = parts,
        };
        assert_true(colibri_attn_part_floats(DIM) <= DIM + 32);
        clb_ref_attention(&a);
        naive_attention(q, k, v, a.sinks, want, p);
        for (size_t i = 0; i < HEADS * DIM; i++)
            assert_near(want[i], out[i], 2e-5);
        for (size_t h = 0; h < HEADS; h++) /* what a KV strategy recomputes: p = exp(s - M) / L */
            for (size_t i = 0; i < N_KV; i++)
                assert_near(p[h * N_KV + i], colibri_expf(scores[h * 1104 + i] - max_sum[2 * h]) / max_sum[2 * h + 1],
                            1e-5);
    }
}

/* Rows of one call are the same as calls for each row, and so are segments computed on their own in any order: the rows
 * reach over the end of a segment, so that the first of them do not see the last one. */
static void test_attention_rows_and_parts(void **state)
{
    (void)state;
    enum { ROWS = 5, FIRST = 2 * COLIBRI_ATTN_SEGMENT - 2, QUERIES = ROWS * HEADS };
    static float k[N_PAGES * PAGE * DIM], v[N_PAGES * PAGE * DIM], weights[QUERIES * COLIBRI_ATTN_SEGMENT];
    static float parts[QUERIES * N_SEGMENTS * (DIM + 32)];
    const float sinks[HEADS] = {3.0f, -1.0f};
    test_rand r = {5};
    float q[QUERIES * DIM], want[QUERIES * DIM], got[QUERIES * DIM], want_sum[2 * QUERIES], got_sum[2 * QUERIES];
    const void *k_pages[N_PAGES], *v_pages[N_PAGES];
    fill(&r, k, sizeof(k) / sizeof(k[0]));
    fill(&r, v, sizeof(v) / sizeof(v[0]));
    fill(&r, q, QUERIES * DIM);
    for (size_t i = 0; i < N_PAGES; i++) {
        k_pages[i] = k + i * PAGE * DIM;
        v_pages[i] = v + i * PAGE * DIM;
    }
    struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = HEADS,
        .k_dim = DIM,
        .v_dim = DIM,
        .page_tokens = PAGE,
        .k_type = COLIBRI_TYPE_F32,
        .v_type = COLIBRI_TYPE_F32,
        .k_pages = k_pages,
        .v_pages = v_pages,
        .q_stride = DIM,
        .scale = 0.25f,
        .sinks = sinks,
        .out_stride = DIM,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = N_SEGMENTS,
        .q_row_stride = HEADS * DIM,
        .out_row_stride = HEADS * DIM,
        .weights = weights,
        .parts = parts,
    };
    a.n_rows = 1;
    for (uint32_t row = 0; row < ROWS; row++) {
        a.n_kv = FIRST + row;
        a.q = q + row * HEADS * DIM;
        a.out = want + row * HEADS * DIM;
        a.max_sum = want_sum + row * HEADS * 2;
        clb_ref_attention(&a);
    }
    a.n_kv = FIRST;
    a.n_rows = ROWS;
    a.q = q;
    a.out = got;
    a.max_sum = got_sum;
    clb_ref_attention(&a);
    assert_memory_equal(got, want, sizeof(want));
    assert_memory_equal(got_sum, want_sum, sizeof(want_sum));

    memset(got, 0, sizeof(got));
    memset(parts, 0xff, sizeof(parts));
    a.stages = COLIBRI_ATTN_SEGMENTS;
    for (uint32_t g = N_SEGMENTS; g-- > 0;) {
        a.segment_begin = g;
        a.segment_end = g + 1;
        clb_ref_attention(&a);
    }
    a.stages = COLIBRI_ATTN_COMBINE;
    clb_ref_attention(&a);
    assert_memory_equal(got, want, sizeof(want));
}

static void test_table_is_complete(void **state)
{
    (void)state;
    const struct colibri_vecops *const v = clb_vecops_reference();
    assert_int_equal(v->struct_size, sizeof(*v));
    assert_int_equal(v->max_ulp, COLIBRI_EXACT);
    assert_true(v->rms_norm && v->rope && v->softmax && v->swiglu && v->add && v->axpy && v->scale && v->act_q8x32 &&
                v->act_q8x256 && v->f32_to_f16 && v->attention && v->axpy_x16 && v->f16_to_f32);
    float y[3] = {1.0f, 2.0f, 3.0f};
    const float x[3] = {10.0f, 20.0f, 30.0f};
    v->add(y, x, 3);
    v->axpy(y, x, 0.5f, 3);
    v->scale(y, 2.0f, 3);
    assert_true(y[0] == 32.0f && y[1] == 64.0f && y[2] == 96.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sincos_rounds_correctly),
        cmocka_unit_test(test_rope_speeds_round_correctly),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_norm_softmax_activations),
        cmocka_unit_test(test_rope_rotates),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_rows_and_parts),
        cmocka_unit_test(test_table_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
