/* Quantizers: at least as close as the reference implementations (tests/oracles/record_formats.py), deterministic to
 * the byte, and sane for every input. */
#include "test_format_util.h"

#include <stdio.h>

#define N    65536u
#define COLS 2048u

/* The weights of record_formats.py: sums of 12 uniform integers. */
static float *gaussian(void)
{
    float *x = test_alloc(N * sizeof(float));
    test_rand rng = {1};
    for (size_t i = 0; i < N; i++) {
        int32_t total = 0;
        for (int k = 0; k < 3; k++) {
            const uint64_t z = test_rand_u64(&rng);
            total += (int32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
        }
        x[i] = (float)(total - 6 * 65535) * 0x1p-21f;
    }
    return x;
}

static float *column_importance(void)
{
    float *w = test_alloc(N * sizeof(float));
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t k = i % COLS * 7919u % 97u;
        w[i] = (float)(k * k * k / 2304u + 1u) / 16.0f;
    }
    return w;
}

static void *quantized(const struct colibri_format *f, const float *x, size_t n, const float *importance)
{
    void *blocks = test_alloc(row_bytes_of(f, n));
    const int rc = f->quantize(x, blocks, n, importance);
    if (rc != COLIBRI_OK)
        fail_msg("%s: quantize returns %d", f->name, rc);
    return blocks;
}

/* Weighted error relative to the weights' own size. */
static double error_of(const struct colibri_format *f, const void *blocks, const float *x, const float *w)
{
    float *y = test_alloc(N * sizeof(float));
    double err = 0, size = 0;
    f->dequantize(blocks, y, N);
    for (size_t i = 0; i < N; i++) {
        const double e = (double)y[i] - (double)x[i], wi = w ? (double)w[i] : 1.0;
        err += wi * e * e;
        size += wi * (double)x[i] * (double)x[i];
    }
    free(y);
    return sqrt(err / size);
}

static const struct colibri_format *by_name(const char *name)
{
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++)
        if (!strcmp(formats[i]->name, name))
            return formats[i];
    fail_msg("no format %s", name);
    return NULL;
}

static void test_quality(void **state)
{
    (void)state;
    float *x = gaussian(), *importance = column_importance();
    char *file = test_read_file(TEST_DATA("formats/rmse.tsv"), NULL), *save = NULL;
    size_t lines = 0;
    strtok_r(file, "\n", &save); /* head */
    printf("%-7s %9s %9s %9s | %9s %9s  (relative RMS error; with importance)\n", "type", "ours", "gguf", "ggml",
           "ours", "ggml");
    for (char *line = strtok_r(NULL, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[16], gguf[16];
        double ggml, ggml_importance;
        assert_int_equal(sscanf(line, "%15s %15s %lf %lf", name, gguf, &ggml, &ggml_importance), 4);
        const struct colibri_format *f = by_name(name);
        void *plain = quantized(f, x, N, NULL), *weighted = quantized(f, x, N, importance);
        const double e = error_of(f, plain, x, NULL), we = error_of(f, weighted, x, importance);
        printf("%-7s %9.6f %9s %9.6f | %9.6f %9.6f\n", name, e, gguf, ggml, we, ggml_importance);
        assert_true(e <= ggml && e > 0);
        assert_true(strcmp(gguf, "-") == 0 || e <= strtod(gguf, NULL));
        assert_true(we <= ggml_importance && we > 0);
        /* importance counts: each of the two is best by its own measure */
        assert_true(we < error_of(f, plain, x, importance));
        assert_true(e < error_of(f, weighted, x, NULL));
        free(plain);
        free(weighted);
        lines++;
    }
    assert_int_equal(lines, 13);
    free(file);
    free(x);
    free(importance);
}

static uint64_t fnv1a(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* The same bytes from every compiler and machine. A change of a quantizer changes these, on purpose. */
static void test_deterministic(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t plain, weighted;
    } known[N_FORMATS] = {
        {"F32", 0x7931a899c7eeb3fdu, 0x7931a899c7eeb3fdu},    {"F16", 0x050fa25815b26ec5u, 0x050fa25815b26ec5u},
        {"BF16", 0xfc2cc44e17418a5eu, 0xfc2cc44e17418a5eu},   {"Q4_0", 0x640234cfdfcc9bc4u, 0x7c7d2aff6b51c83fu},
        {"Q4_1", 0xc83adddf8e2c5b09u, 0x6fc36c33734d55c5u},   {"Q5_0", 0xcc6f33c527a832b3u, 0xb4814ff0984b7a5du},
        {"Q5_1", 0xeb2625107783151fu, 0x368f13b432b32ad9u},   {"Q8_0", 0xb76466608a0ac1eeu, 0xeaef218430cfbbdfu},
        {"Q2_K", 0x2aeb2f2ae45418d0u, 0x54bf844736504c54u},   {"Q3_K", 0xe61dbe4252892fc8u, 0xb84b7c071584f4fdu},
        {"Q4_K", 0x821bc4a41f99d212u, 0x16d1eecc3a00ad44u},   {"Q5_K", 0x3535b20629639a80u, 0xb34c073489afd797u},
        {"Q6_K", 0x7cbb9cfc038a872bu, 0xddb2dd8ab0c85f88u},   {"IQ4_NL", 0xff44bf7b2269d6c5u, 0x73db8404b642a55du},
        {"IQ4_XS", 0x975b01251237d8abu, 0x358dc94bba69cb0eu}, {"MXFP4", 0xaae5888e86b0ee9fu, 0xe57f73c5c4679d20u},
    };
    float *x = gaussian(), *importance = column_importance();
    int bad = 0;
    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct colibri_format *f = by_name(known[i].name);
        void *plain = quantized(f, x, N, NULL), *weighted = quantized(f, x, N, importance);
        const uint64_t a = fnv1a(plain, row_bytes_of(f, N)), b = fnv1a(weighted, row_bytes_of(f, N));
        if (a != known[i].plain || b != known[i].weighted) {
            printf("        {\"%s\", 0x%016llxu, 0x%016llxu},\n", f->name, (unsigned long long)a,
                   (unsigned long long)b);
            bad = 1;
        }
        free(plain);
        free(weighted);
    }
    assert_false(bad);
    free(x);
    free(importance);
}

static void each_format(void (*check)(const struct colibri_format *f, test_rand *rng))
{
    const struct colibri_format *formats[N_FORMATS];
    all_formats(formats);
    for (size_t i = 0; i < N_FORMATS; i++) {
        test_rand rng = {500 + i};
        check(formats[i], &rng);
    }
}

static void check_refusals(const struct colibri_format *f, test_rand *rng)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[512], w[512];
    unsigned char out[512 * 4];
    for (int k = 0; k < 512; k++) {
        x[k] = test_rand_f32(rng, -1, 1);
        w[k] = 1.0f;
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t at = 0; at < 512; at += 73) {
            const float keep = x[at];
            x[at] = bad[k];
            assert_int_equal(f->quantize(x, out, 512, NULL), COLIBRI_E_FORMAT);
            assert_int_equal(f->quantize(x, out, 512, w), COLIBRI_E_FORMAT);
            x[at] = keep;
        }
    if (f->block_elems == 1)
        return; /* nothing to choose: importance is not looked at */
    static const float bad_w[] = {NAN, -1.0f, INFINITY, -INFINITY};
    for (int k = 0; k < 4; k++)
        for (uint32_t at = 0; at < 512; at += 73) {
            w[at] = bad_w[k];
            assert_int_equal(f->quantize(x, out, 512, w), COLIBRI_E_FORMAT);
            w[at] = 1.0f;
        }
}

static void test_refusals(void **state)
{
    (void)state;
    each_format(check_refusals);
}

/* Importance is relative: a common factor, or none at all, changes nothing. */
static void check_importance_scale(const struct colibri_format *f, test_rand *rng)
{
    float x[2048], w[2048], w2[2048];
    unsigned char a[2048 * 4], b[2048 * 4];
    const size_t bytes = row_bytes_of(f, 2048);
    for (int k = 0; k < 2048; k++)
        x[k] = test_rand_f32(rng, -1, 1);
    static const float same[] = {0.0f, 0x1p-140f, 1.0f, 0x1p120f};
    for (int s = 0; s < 4; s++) {
        for (int k = 0; k < 2048; k++)
            w[k] = same[s];
        assert_int_equal(f->quantize(x, a, 2048, NULL), COLIBRI_OK);
        assert_int_equal(f->quantize(x, b, 2048, w), COLIBRI_OK);
        assert_memory_equal(a, b, bytes);
    }
    for (int k = 0; k < 2048; k++) {
        w[k] = test_rand_f32(rng, 0, 1);
        w2[k] = w[k] * 0x1p100f;
    }
    assert_int_equal(f->quantize(x, a, 2048, w), COLIBRI_OK);
    assert_int_equal(f->quantize(x, b, 2048, w2), COLIBRI_OK);
    assert_memory_equal(a, b, bytes);
}

static void test_importance_scale(void **state)
{
    (void)state;
    each_format(check_importance_scale);
}

/* Quantizes one superblock's worth, expects OK, and returns the squared error; every value must be finite. */
static double checked_error(const struct colibri_format *f, const float x[256], const float *w, const char *what)
{
    unsigned char blocks[256 * 4];
    float y[256];
    double err = 0;
    const int rc = f->quantize(x, blocks, 256, w);
    if (rc)
        fail_msg("%s: %s: status %d", f->name, what, rc);
    f->dequantize(blocks, y, 256);
    for (int i = 0; i < 256; i++) {
        if (!(fabsf(y[i]) < INFINITY))
            fail_msg("%s: %s: element %d is %g", f->name, what, i, (double)y[i]);
        err += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
    }
    return err;
}

static double squared(const float x[256])
{
    double s = 0;
    for (int i = 0; i < 256; i++)
        s += (double)x[i] * (double)x[i];
    return s;
}

static void check_special(const struct colibri_format *f, test_rand *rng)
{
    float x[256] = {0};
    unsigned char zero[256 * 4];
    float y[256];
    assert_int_equal(f->quantize(x, zero, 256, NULL), COLIBRI_OK);
    f->dequantize(zero, y, 256);
    for (int i = 0; i < 256; i++)
        assert_true(y[i] == 0.0f);
    /* zero, whatever its sign and importance */
    for (int i = 0; i < 256; i++)
        x[i] = -0.0f;
    assert_true(checked_error(f, x, NULL, "minus zero") == 0.0);
    float w[256] = {0};
    w[5] = 1.0f;
    assert_true(checked_error(f, x, w, "minus zero, one weight") == 0.0);

    /* One value is hit exactly but for the rounding of f16 scales. MXFP4's scales are powers of two; the codebook of
     * IQ4_NL and IQ4_XS has no zero, so that 31 zeros beside one weight are off by 1/127 of it. */
    const int iq4 = f->gguf_type == COLIBRI_TYPE_IQ4_NL || f->gguf_type == COLIBRI_TYPE_IQ4_XS;
    const double small = f->gguf_type == COLIBRI_TYPE_MXFP4 ? 0.1 : iq4 ? 3e-3 : 1e-4;
    static const float sizes[] = {1e-45f, 1e-40f, 1e-30f, 1e-10f, 6e-8f, 1e-6f, 1e-3f, 1.0f, 100.0f, 6e4f};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        char what[64];
        /* never worse than storing nothing; far better than that where the format can be (f16 scales end at 6e-8) */
        for (int i = 0; i < 256; i++)
            x[i] = sizes[s] * test_rand_f32(rng, -1, 1);
        snprintf(what, sizeof what, "uniform, size %g", (double)sizes[s]);
        double err = checked_error(f, x, NULL, what);
        if (err > squared(x))
            fail_msg("%s: %s: error %g of %g", f->name, what, err, squared(x));
        if (sizes[s] >= 1e-3f)
            assert_true(err < 0.07 * squared(x));
        for (int sign = -1; sign <= 1; sign += 2) {
            for (int i = 0; i < 256; i++)
                x[i] = (float)sign * sizes[s];
            snprintf(what, sizeof what, "constant %g", (double)x[0]);
            err = checked_error(f, x, NULL, what);
            if (err > squared(x) || (sizes[s] >= 1e-3f && err > small * squared(x)))
                fail_msg("%s: %s: error %g of %g", f->name, what, err, squared(x));
            for (int i = 0; i < 256; i++)
                x[i] = i == 77 ? (float)sign * sizes[s] : 0.0f;
            snprintf(what, sizeof what, "single %g", (double)x[77]);
            err = checked_error(f, x, NULL, what);
            if (err > squared(x) || (sizes[s] >= 1e-3f && err > small * squared(x)))
                fail_msg("%s: %s: error %g of %g", f->name, what, err, squared(x));
        }
    }
    /* One run of weights without importance, another with almost all of it. */
    for (int i = 0; i < 256; i++) {
        x[i] = test_rand_f32(rng, -1, 1) * (i < 32 ? 1e-3f : 1.0f);
        w[i] = i < 32 ? 0.0f : 1e30f;
    }
    assert_true(checked_error(f, x, w, "unimportant run") < 0.07 * squared(x));
}

static void test_special(void **state)
{
    (void)state;
    each_format(check_special);
}

/* Growing weights: fine up to what the scale can hold, E_LIMIT beyond it, never a non-finite value. */
static void check_limits(const struct colibri_format *f, test_rand *rng)
{
    float x[256], unit[256];
    unsigned char blocks[256 * 4];
    int refused = 0;
    for (int i = 0; i < 256; i++)
        unit[i] = test_rand_f32(rng, -1, 1);
    for (int e = -149; e <= 127; e++) {
        for (int i = 0; i < 256; i++)
            x[i] = ldexpf(unit[i], e);
        const int rc = f->quantize(x, blocks, 256, NULL);
        if (rc == COLIBRI_OK) {
            assert_false(refused);
            checked_error(f, x, NULL, "sweep");
        } else {
            assert_int_equal(rc, COLIBRI_E_LIMIT);
            refused = 1;
            /* every f16 scale reaches 4 * 65504; F16 itself and the minimum of Q4_1 and Q5_1 only 65504 */
            const int plain = f->gguf_type == COLIBRI_TYPE_F16 || f->gguf_type == COLIBRI_TYPE_Q4_1 ||
                              f->gguf_type == COLIBRI_TYPE_Q5_1;
            if (e <= (plain ? 15 : 17))
                fail_msg("%s: weights below 2^%d refused", f->name, e);
        }
    }
    const int unlimited =
        f->gguf_type == COLIBRI_TYPE_F32 || f->gguf_type == COLIBRI_TYPE_BF16 || f->gguf_type == COLIBRI_TYPE_MXFP4;
    assert_int_equal(refused, !unlimited);
}

static void test_limits(void **state)
{
    (void)state;
    each_format(check_limits);
}

/* Any finite bits: OK or E_LIMIT, and finite values. */
static void check_random_bits(const struct colibri_format *f, test_rand *rng)
{
    float x[256], w[256];
    unsigned char blocks[256 * 4];
    for (int round = 0; round < 300; round++) {
        const uint32_t keep = test_rand_below(rng, 2) ? 0xffffffffu : 0xbfffffffu; /* all, or below 2 */
        for (int i = 0; i < 256; i++) {
            do
                x[i] = colibri_bits_f32((uint32_t)test_rand_u64(rng) & keep);
            while (!(fabsf(x[i]) < INFINITY));
            do
                w[i] = colibri_bits_f32((uint32_t)test_rand_u64(rng) & 0x7fffffffu);
            while (!(w[i] < INFINITY));
        }
        const float *importance = round % 2 ? w : NULL;
        const int rc = f->quantize(x, blocks, 256, importance);
        if (rc != COLIBRI_E_LIMIT)
            checked_error(f, x, importance, "random bits");
    }
}

static void test_random_bits(void **state)
{
    (void)state;
    each_format(check_random_bits);
}

/* F16 and BF16 round to nearest even and give back every value they hold. */
static void test_halves(void **state)
{
    (void)state;
    const struct colibri_format *f16 = by_name("F16"), *bf16 = by_name("BF16");
    for (uint32_t h = 0; h < 0x10000; h++) {
        const struct colibri_format *const both[] = {f16, bf16};
        for (int k = 0; k < 2; k++) {
            const uint16_t in = (uint16_t)h, next = (uint16_t)(h + 1);
            uint16_t out;
            float x, y;
            both[k]->dequantize(&in, &x, 1);
            if (!(fabsf(x) < INFINITY))
                continue;
            assert_int_equal(both[k]->quantize(&x, &out, 1, NULL), COLIBRI_OK);
            assert_int_equal(out, in);
            both[k]->dequantize(&next, &y, 1);
            if (!(fabsf(y) < INFINITY))
                continue;
            const float middle = (float)(0.5 * ((double)x + (double)y)); /* exact: one more bit */
            assert_int_equal(both[k]->quantize(&middle, &out, 1, NULL), COLIBRI_OK);
            assert_int_equal(out, h & 1 ? next : in);
        }
    }
    float x = 65520.0f; /* halfway to 65536: even is infinity */
    uint16_t out;
    assert_int_equal(f16->quantize(&x, &out, 1, NULL), COLIBRI_E_LIMIT);
    x = nextafterf(65520.0f, 0.0f);
    assert_int_equal(f16->quantize(&x, &out, 1, NULL), COLIBRI_OK);
    x = -3.4028234e38f;
    assert_int_equal(bf16->quantize(&x, &out, 1, NULL), COLIBRI_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quality),     cmocka_unit_test(test_deterministic),
                                       cmocka_unit_test(test_refusals),    cmocka_unit_test(test_special),
                                       cmocka_unit_test(test_limits),      cmocka_unit_test(test_importance_scale),
                                       cmocka_unit_test(test_random_bits), cmocka_unit_test(test_halves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
