/* What colibri evaluate measures, computed another way from the logits themselves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv_reference.h"
#include "engine/kv_trial.h"
#include "support/engine.h"

#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N        160u
#define SCORED   80u
#define ROWS     (N - 1 - SCORED)

static uint32_t ids[N];

static void make_ids(void)
{
    test_rand rng = {11};
    for (uint32_t i = 0; i < N; i++)
        ids[i] = test_rand_below(&rng, 4000);
}

static clb_kv_choice choose(const test_engine *e, const char *spec)
{
    clb_error err;
    clb_kv_choice c;
    assert_ok(clb_kv_choice_parse(e->engine->registry, e->config, spec, &c, &err), &err);
    return c;
}

/* The scored rows' logits of a run, [ROWS][n_vocab]; free() them. */
static float *logits_of(clb_engine *e, const clb_kv_choice *choice, uint32_t budget)
{
    clb_error err;
    clb_kv_trial t;
    FILE *const file = tmpfile();
    const size_t n = (size_t)ROWS * e->model->hp.n_vocab;
    float *const out = malloc(n * sizeof *out);
    assert_true(file && out);
    const clb_kv_trial_input in = {.choice = choice,
                                   .budget = budget,
                                   .ids = ids,
                                   .n = N,
                                   .chunk = 16,
                                   .text = true,
                                   .scored = SCORED,
                                   .reference_out = file};
    assert_ok(clb_kv_trial_run(e, &in, &t, &err), &err);
    assert_int_equal(t.n_scored, ROWS);
    rewind(file);
    assert_int_equal(fread(out, sizeof *out, n, file), n);
    fclose(file);
    clb_kv_trial_free(&t);
    return out;
}

static double *softmax(const float *x, uint32_t n)
{
    double *const p = malloc(n * sizeof *p), sum = 0;
    assert_non_null(p);
    for (uint32_t i = 0; i < n; i++)
        sum += p[i] = exp((double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
    return p;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Divergences, changes of probability and best tokens from two files of logits, by their definitions. */
static void distances(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=256", "kv-block-size=16", NULL};
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, TINY_MOE, settings, NULL, &err), &err);
    const uint32_t v = e.engine->model->hp.n_vocab;
    clb_kv_choice full = choose(&e, "full"), window = choose(&e, "sliding-window");
    float *const a = logits_of(e.engine, &full, 0), *const b = logits_of(e.engine, &window, 48);
    double kl[ROWS], sum = 0, squares = 0, nll = 0;
    uint32_t same = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        double *const p = softmax(a + (size_t)r * v, v), *const q = softmax(b + (size_t)r * v, v);
        const uint32_t next = ids[SCORED + r + 1];
        kl[r] = 0;
        for (uint32_t i = 0; i < v; i++)
            kl[r] += p[i] * log(p[i] / q[i]);
        sum += q[next] - p[next];
        squares += (q[next] - p[next]) * (q[next] - p[next]);
        nll -= log(q[next]);
        same += test_argmax(a + (size_t)r * v, v) == test_argmax(b + (size_t)r * v, v);
        free(p);
        free(q);
    }
    qsort(kl, ROWS, sizeof kl[0], compare);

    FILE *const file = tmpfile();
    assert_non_null(file);
    assert_int_equal(fwrite(a, sizeof *a, (size_t)ROWS * v, file), (size_t)ROWS * v);
    rewind(file);
    clb_kv_trial t;
    const clb_kv_trial_input in = {.choice = &window,
                                   .budget = 48,
                                   .ids = ids,
                                   .n = N,
                                   .chunk = 16,
                                   .text = true,
                                   .scored = SCORED,
                                   .reference_in = file};
    assert_ok(clb_kv_trial_run(e.engine, &in, &t, &err), &err);
    assert_int_equal(t.n_compared, ROWS);
    assert_int_equal(t.n_same_top, same);
    assert_true(same < ROWS && kl[ROWS - 1] > 1e-3); /* or there is nothing to see */
    double own = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_true(fabs(t.kl[r] - kl[r]) < 1e-9 + 1e-7 * kl[r]);
        own += t.nll[r];
    }
    assert_true(fabs(own - nll) < 1e-7 * nll && fabs(t.nll_sum - nll) < 1e-7 * nll);
    assert_true(fabs(t.delta_p_sum - sum) < 1e-8 && fabs(t.delta_p_squares - squares) < 1e-8);
    clb_kv_trial_free(&t);
    fclose(file);
    free(a);
    free(b);
    clb_kv_choice_free(&full);
    clb_kv_choice_free(&window);
    test_engine_close(&e);
}

/* Beside an engine with quantized rows the reference gives the bits of an engine with F16 rows. */
static void reference_of(const char *type)
{
    static const char *const plain[] = {"threads=1", "ctx=256", "kv-block-size=16", NULL};
    char setting[32];
    const char *const settings[] = {"threads=1", "ctx=256", "kv-block-size=16", setting, NULL};
    clb_error err;
    test_engine f16, other;
    clb_kv_reference reference;
    snprintf(setting, sizeof setting, "kv-type=%s", type);
    assert_ok(test_engine_open(&f16, TINY_MOE, plain, NULL, &err), &err);
    assert_ok(test_engine_open(&other, TINY_MOE, settings, NULL, &err), &err);
    const size_t bytes = (size_t)ROWS * f16.engine->model->hp.n_vocab * sizeof(float);
    clb_kv_choice full = choose(&f16, "full");
    float *const want = logits_of(f16.engine, &full, 0), *const own = logits_of(other.engine, &full, 0);
    assert_ok(clb_kv_reference_open(other.engine, NULL, NULL, &reference, &err), &err);
    assert_true(reference.own);
    float *const got = logits_of(&reference.engine, &full, 0);
    assert_memory_equal(got, want, bytes);
    assert_true(memcmp(own, want, bytes) != 0);
    /* The engine itself is as it was. */
    float *const again = logits_of(other.engine, &full, 0);
    assert_memory_equal(again, own, bytes);
    clb_kv_reference_close(&reference);
    assert_ok(clb_kv_reference_open(f16.engine, NULL, NULL, &reference, &err), &err);
    assert_false(reference.own);
    clb_kv_reference_close(&reference);
    free(want);
    free(own);
    free(got);
    free(again);
    clb_kv_choice_free(&full);
    test_engine_close(&other);
    test_engine_close(&f16);
}

static void references(void **state)
{
    (void)state;
    reference_of("q8_0");
    reference_of("q4_0");
    reference_of("f32");
}

/* What the plan reserves is enough for a full F16 sequence and one of the engine's own. */
static void room(void **state)
{
    (void)state;
    static const uint32_t types[] = {COLIBRI_TYPE_F16, COLIBRI_TYPE_F32, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_Q4_0};
    for (size_t k = 0; k < 4; k++)
        for (size_t v = 0; v < 4; v++) {
            const uint64_t own = clb_kv_row_bytes(types[k], 64) + clb_kv_row_bytes(types[v], 64);
            const uint64_t full = 2 * clb_kv_row_bytes(COLIBRI_TYPE_F16, 64);
            const uint32_t n = clb_kv_reference_sequences(types[k], types[v]);
            if (k == 0 && v == 0)
                assert_int_equal(n, 1);
            else
                assert_true(n * own >= own + full && (n - 1) * own < own + full);
        }
}

int main(void)
{
    make_ids();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances),
        cmocka_unit_test(references),
        cmocka_unit_test(room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
