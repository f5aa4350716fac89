/* Comparisons of KV strategies: what is concluded from values whose truth is known. */
#include "engine/compare_kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

#define MOST_SETTINGS 8u
#define MOST_ITEMS    80u

struct data {
    clb_kvc_item items[MOST_ITEMS];
    double values[MOST_SETTINGS * MOST_ITEMS * CLB_KVC_METRIC_COUNT];
    clb_kvc_grid grid;
};

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.12g instead of %.12g", got, want);
}

static struct data *make(uint32_t n_settings, uint32_t n_items)
{
    assert_true(n_settings <= MOST_SETTINGS && n_items <= MOST_ITEMS);
    struct data *const d = calloc(1, sizeof *d);
    assert_non_null(d);
    for (size_t i = 0; i < sizeof d->values / sizeof *d->values; i++)
        d->values[i] = NAN;
    d->grid =
        (clb_kvc_grid){.n_settings = n_settings, .n_items = n_items, .items = d->items, .values = d->values, .seed = 3};
    return d;
}

static double *at(struct data *d, uint32_t setting, uint32_t item, enum clb_kvc_metric metric)
{
    return &d->values[((size_t)setting * d->grid.n_items + item) * CLB_KVC_METRIC_COUNT + metric];
}

static double normal(test_rand *rng)
{
    return clb_normal_quantile(test_rand_f64(rng) * (1 - 2e-9) + 1e-9);
}

/* Means over the items of the task and group that have a value; logarithms give geometric means. */
static void means(void **state)
{
    (void)state;
    clb_error err;
    clb_interval v;
    struct data *const d = make(2, 10);
    for (uint32_t i = 0; i < 10; i++) {
        d->items[i] = (clb_kvc_item){.task = i >= 6, .group = i % 2};
        *at(d, 1, i, CLB_KVC_EXACT) = i < 6 ? 100.0 * (i % 3 == 0) : 50;
        *at(d, 1, i, CLB_KVC_PERPLEXITY) = log(i < 3 ? 2 : 8);
    }
    *at(d, 1, 4, CLB_KVC_EXACT) = NAN;
    assert_ok(clb_kvc_mean(&d->grid, 1, 0, CLB_KVC_ALL, CLB_KVC_EXACT, &v, &err), &err);
    assert_int_equal(v.n, 5); /* items 0 1 2 3 5: 100 0 0 100 0 */
    near(v.value, 40, 1e-12);
    assert_true(v.low < 40 && v.high > 40 && v.low >= 0 && v.high <= 100);
    assert_ok(clb_kvc_mean(&d->grid, 1, 0, 0, CLB_KVC_EXACT, &v, &err), &err);
    assert_int_equal(v.n, 2); /* items 0 2 */
    near(v.value, 50, 1e-12);
    assert_ok(clb_kvc_mean(&d->grid, 1, 1, CLB_KVC_ALL, CLB_KVC_EXACT, &v, &err), &err);
    assert_int_equal(v.n, 4);
    near(v.value, 50, 1e-12);
    near(v.high - v.low, 0, 0);
    assert_ok(clb_kvc_mean(&d->grid, 1, 0, CLB_KVC_ALL, CLB_KVC_PERPLEXITY, &v, &err), &err);
    near(v.value, 4, 1e-12); /* three twos and three eights */
    assert_true(v.low >= 2 && v.low < 4 && v.high > 4 && v.high <= 8);
    assert_ok(clb_kvc_mean(&d->grid, 0, 0, CLB_KVC_ALL, CLB_KVC_EXACT, &v, &err), &err);
    assert_int_equal(v.n, 0);
    assert_true(isnan(v.value) && isnan(v.low) && isnan(v.high));
    free(d);
}

/* Items differ a hundred times more than the settings do: only pairing can see the difference. */
static void pairing(void **state)
{
    (void)state;
    clb_error err;
    clb_kvc_pair p;
    test_rand rng = {11};
    struct data *const d = make(3, 60);
    for (uint32_t i = 0; i < 60; i++) {
        const double item = 4 * normal(&rng);
        *at(d, 0, i, CLB_KVC_PERPLEXITY) = item;
        *at(d, 1, i, CLB_KVC_PERPLEXITY) = item + log(1.05) + 0.01 * normal(&rng);
        *at(d, 2, i, CLB_KVC_PERPLEXITY) = item + 0.01 * normal(&rng);
    }
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_PERPLEXITY, &p, &err), &err);
    assert_int_equal(p.n, 60);
    near(p.change, 1.05, 0.005);
    assert_true(p.low < p.change && p.change < p.high && p.low > 1.04 && p.high < 1.06);
    assert_int_equal(p.verdict, CLB_LOSS); /* a higher perplexity is worse */
    near(p.detectable, (1.959964 + 0.841621) * 0.01 / sqrt(60), 0.0012);
    near(p.change, p.mean_b / p.mean_a, 1e-9);
    assert_ok(clb_kvc_compare(&d->grid, 1, 0, 0, CLB_KVC_ALL, CLB_KVC_PERPLEXITY, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_WIN);
    near(p.change, 1 / 1.05, 0.005);
    assert_ok(clb_kvc_compare(&d->grid, 0, 2, 0, CLB_KVC_ALL, CLB_KVC_PERPLEXITY, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE);
    free(d);
}

/* However far apart two settings are: few items claim nothing. */
static void few_items(void **state)
{
    (void)state;
    clb_error err;
    clb_kvc_pair p;
    test_rand rng = {5};
    for (uint32_t n = 2; n <= 12; n++) {
        struct data *const d = make(2, n);
        for (uint32_t i = 0; i < n; i++) {
            *at(d, 0, i, CLB_KVC_PERPLEXITY) = 0.01 * normal(&rng);
            *at(d, 1, i, CLB_KVC_PERPLEXITY) = 1 + 0.01 * normal(&rng);
        }
        assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_PERPLEXITY, &p, &err), &err);
        assert_int_equal(p.verdict, CLB_LOSS);
        assert_true(p.p >= pow(0.5, n - 1) && p.p <= 1 && p.p_holm == p.p);
        assert_int_equal(clb_kvc_claims(&p), n >= 6); /* 1/32 is below 0.05, 1/16 is not */
        free(d);
    }
}

/* Only items that both have count, or a setting would profit from hard items that it has not run yet. */
static void missing_items(void **state)
{
    (void)state;
    clb_error err;
    clb_kvc_pair p;
    struct data *const d = make(2, 20);
    for (uint32_t i = 0; i < 20; i++) {
        *at(d, 0, i, CLB_KVC_EXACT) = i < 10 ? 100 : 0; /* the second half is hard for both */
        if (i < 10)
            *at(d, 1, i, CLB_KVC_EXACT) = i < 9 ? 100 : 0;
    }
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_EXACT, &p, &err), &err);
    assert_int_equal(p.n, 10);
    near(p.mean_a, 100, 1e-12);
    near(p.mean_b, 90, 1e-12);
    near(p.change, -10, 1e-12);
    *at(d, 0, 9, CLB_KVC_EXACT) = INFINITY; /* e.g. a speed of nothing */
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_EXACT, &p, &err), &err);
    assert_int_equal(p.n, 9);
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 1, CLB_KVC_ALL, CLB_KVC_EXACT, &p, &err), &err);
    assert_int_equal(p.n, 0);
    assert_true(isnan(p.change) && p.verdict == CLB_TIE && !clb_kvc_claims(&p));
    free(d);
}

/* One item, items that all agree, metrics that are neither good nor bad. */
static void little_to_say(void **state)
{
    (void)state;
    clb_error err;
    clb_kvc_pair p;
    struct data *const d = make(2, 12);
    for (uint32_t i = 0; i < 12; i++) {
        d->items[i].task = i == 0 ? 1 : 0;
        for (uint32_t s = 0; s < 2; s++) {
            *at(d, s, i, CLB_KVC_EXACT) = s ? 0 : 100;
            *at(d, s, i, CLB_KVC_KL) = 0;
            *at(d, s, i, CLB_KVC_RETAINED) = s ? 25 + 0.1 * i : 100;
        }
    }
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 1, CLB_KVC_ALL, CLB_KVC_EXACT, &p, &err), &err);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.verdict, CLB_TIE); /* one item says nothing about others */
    assert_true(isnan(p.detectable) && !clb_kvc_claims(&p));
    near(p.change, -100, 0);
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_EXACT, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_LOSS);
    assert_true(isnan(p.detectable)); /* they all differ by the same */
    near(p.p, pow(0.5, 10), 1e-12); /* eleven of them: no more than their signs can say */
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_KL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE);
    near(p.p, 1, 0);
    assert_ok(clb_kvc_compare(&d->grid, 0, 1, 0, CLB_KVC_ALL, CLB_KVC_RETAINED, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE); /* keeping less is neither better nor worse */
    assert_true(p.high < -70);
    free(d);
}

/* Holm by hand; pairs without items are no hypotheses. */
static void correction(void **state)
{
    (void)state;
    clb_error err;
    clb_kvc_pair p[5] = {
        {.n = 9, .p = 0.01, .verdict = CLB_WIN},
        {.n = 9, .p = 0.04, .verdict = CLB_LOSS},
        {.n = 0, .p = 1, .p_holm = 1},
        {.n = 9, .p = 0.012, .verdict = CLB_WIN},
        {.n = 9, .p = 0.5},
    };
    assert_ok(clb_kvc_correct(p, 5, &err), &err);
    near(p[0].p_holm, 0.04, 1e-12);
    near(p[3].p_holm, 0.04, 1e-12); /* 0.036, but no smaller than the one before */
    near(p[1].p_holm, 0.08, 1e-12);
    near(p[4].p_holm, 0.5, 1e-12);
    near(p[2].p_holm, 1, 0);
    assert_true(clb_kvc_claims(&p[0]) && clb_kvc_claims(&p[3]));
    assert_false(clb_kvc_claims(&p[1]) || clb_kvc_claims(&p[2]) || clb_kvc_claims(&p[4]));
    assert_ok(clb_kvc_correct(p, 0, &err), &err);
}

/* Seven settings that are all the same but for luck: uncorrected, one of them often "differs" from the first;
 * corrected, that must happen in about one grid of twenty. */
static void false_claims(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {5};
    int uncorrected = 0, claimed = 0;
    struct data *const d = make(7, 40);
    d->grid.resamples = 1000;
    for (int k = 0; k < 100; k++) {
        clb_kvc_pair p[6];
        for (uint32_t i = 0; i < 40; i++)
            for (uint32_t s = 0; s < 7; s++)
                *at(d, s, i, CLB_KVC_KL) = 1 + 0.1 * normal(&rng);
        bool any = false, any_claim = false;
        d->grid.seed = (uint64_t)k;
        for (uint32_t s = 1; s < 7; s++)
            assert_ok(clb_kvc_compare(&d->grid, 0, s, 0, CLB_KVC_ALL, CLB_KVC_KL, &p[s - 1], &err), &err);
        assert_ok(clb_kvc_correct(p, 6, &err), &err);
        for (int s = 0; s < 6; s++) {
            any |= p[s].verdict != CLB_TIE;
            any_claim |= clb_kvc_claims(&p[s]);
        }
        uncorrected += any;
        claimed += any_claim;
    }
    if (uncorrected < 12 || claimed > 12)
        fail_msg("%d of 100 grids differ by luck, %d claim it", uncorrected, claimed);
    free(d);
}

/* The same data, seed and settings give the same figures, wherever a setting stands in the grid. */
static void repeatable(void **state)
{
    (void)state;
    clb_error err;
    clb_interval v[3];
    test_rand rng = {9};
    struct data *const d = make(3, 30);
    for (uint32_t i = 0; i < 30; i++) {
        const double x = normal(&rng);
        for (uint32_t s = 0; s < 3; s++)
            *at(d, s, i, CLB_KVC_KL) = s < 2 ? x : x + normal(&rng);
    }
    for (uint32_t s = 0; s < 3; s++)
        assert_ok(clb_kvc_mean(&d->grid, s, 0, CLB_KVC_ALL, CLB_KVC_KL, &v[s], &err), &err);
    assert_memory_equal(&v[0], &v[1], sizeof v[0]);
    assert_true(fabs(v[2].low - v[0].low) > 1e-6);
    const clb_interval before = v[0];
    d->grid.seed++;
    assert_ok(clb_kvc_mean(&d->grid, 0, 0, CLB_KVC_ALL, CLB_KVC_KL, &v[0], &err), &err);
    assert_true(before.low < v[0].low || before.low > v[0].low);
    near(before.low, v[0].low, 0.05);
    free(d);
}

static void metric_table(void **state)
{
    (void)state;
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++) {
        const clb_kvc_metric_info i = clb_kvc_metric_get((enum clb_kvc_metric)m);
        assert_true(i.json_name && *i.json_name && i.text && *i.text && i.unit);
        assert_true(!i.judged || i.better != CLB_KVC_NEITHER);
        for (int k = 0; k < m; k++)
            assert_string_not_equal(i.json_name, clb_kvc_metric_get((enum clb_kvc_metric)k).json_name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means),         cmocka_unit_test(pairing),
        cmocka_unit_test(few_items),     cmocka_unit_test(missing_items),
        cmocka_unit_test(little_to_say), cmocka_unit_test(correction),   cmocka_unit_test(false_claims),
        cmocka_unit_test(repeatable),    cmocka_unit_test(metric_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
