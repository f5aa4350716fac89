/* Bootstrap, paired comparison and correction against what is known about them. */
#include <math.h>
#include <string.h>

#include "replay/stats.h"
#include "support.h"

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.12g instead of %.12g", got, want);
}

static double normal(test_rand *rng)
{
    return clb_normal_quantile(test_rand_f64(rng) * (1 - 2e-9) + 1e-9);
}

static void quantiles(void **state)
{
    (void)state;
    near(clb_normal_quantile(0.975), 1.959963984540054, 1e-8);
    near(clb_normal_quantile(0.8), 0.841621233572914, 1e-8);
    near(clb_normal_quantile(0.5), 0, 1e-12);
    near(clb_normal_quantile(0.001), -3.090232306167813, 1e-8);
    near(clb_normal_quantile(0.999), 3.090232306167813, 1e-8);
    const double x[] = {1, 2, 4, 8};
    near(clb_quantile_sorted(x, 4, 0), 1, 0);
    near(clb_quantile_sorted(x, 4, 1), 8, 0);
    near(clb_quantile_sorted(x, 4, 0.5), 3, 1e-12);
    near(clb_quantile_sorted(x, 4, 0.9), 6.8, 1e-12); /* numpy.percentile([1, 2, 4, 8], 90) */
    assert_true(isnan(clb_quantile_sorted(x, 0, 0.5)));
    double y[] = {5, 1, 3};
    near(clb_median(y, 3), 3, 0);
}

/* The interval of a mean must cover the truth about as often as it says. */
static void coverage(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {7};
    const clb_bootstrap_options o = {.resamples = 1000};
    int covered = 0;
    double width = 0;
    for (int k = 0; k < 400; k++) {
        double x[40];
        clb_interval v;
        for (int i = 0; i < 40; i++)
            x[i] = 5 + 2 * normal(&rng);
        assert_ok(clb_bootstrap_mean(x, 40, &o, &v, &err), &err);
        covered += v.low <= 5 && 5 <= v.high;
        width += (v.high - v.low) / 400;
        near(v.se, 2 / sqrt(40), 0.15);
    }
    assert_in_range(covered, 360, 396);                 /* 95 % of 400 are 380 */
    near(width, 2 * 1.96 * 2 / sqrt(40), 0.06 * width); /* of the normal theory */
}

static void ratio_of_sums(void **state)
{
    (void)state;
    clb_error err;
    clb_interval v;
    /* The mean of the ratios would be 0.5; the ratio of the sums is 101 / 110. */
    const double hits[] = {1, 100}, lookups[] = {10, 100};
    assert_ok(clb_bootstrap_ratio(hits, lookups, 2, NULL, &v, &err), &err);
    near(v.value, 101.0 / 110, 1e-12);
    near(v.low, 0.1, 1e-12);
    near(v.high, 1, 1e-12);
    const double zeros[] = {0, 0};
    assert_ok(clb_bootstrap_ratio(zeros, zeros, 2, NULL, &v, &err), &err);
    assert_int_equal(v.dropped, CLB_BOOTSTRAP_RESAMPLES);
    assert_true(isnan(v.value));
}

static void seeds(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {3};
    double x[25];
    clb_interval a, b, c;
    for (int i = 0; i < 25; i++)
        x[i] = test_rand_f64(&rng);
    assert_ok(clb_bootstrap_mean(x, 25, &(clb_bootstrap_options){.seed = 1}, &a, &err), &err);
    assert_ok(clb_bootstrap_mean(x, 25, &(clb_bootstrap_options){.seed = 1}, &b, &err), &err);
    assert_ok(clb_bootstrap_mean(x, 25, &(clb_bootstrap_options){.seed = 2}, &c, &err), &err);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.low < c.low || a.low > c.low);
    near(a.low, c.low, 0.05);
}

static void paired(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {12};
    double a[30], b[30], same[30], worse[30];
    for (int i = 0; i < 30; i++) {
        a[i] = 100 * test_rand_f64(&rng); /* prompts differ a lot; the pairs do not */
        b[i] = a[i] + 1 + 0.5 * normal(&rng);
        same[i] = a[i] + 0.5 * normal(&rng);
        worse[i] = a[i] - 1 + 0.5 * normal(&rng);
    }
    clb_paired p;
    assert_ok(clb_bootstrap_paired(a, b, 30, NULL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_WIN);
    near(p.difference.value, 1, 0.3);
    assert_true(p.p <= 0.001);
    near(p.detectable, (1.959964 + 0.841621) * p.sd / sqrt(30), 1e-6);
    assert_ok(clb_bootstrap_paired(a, worse, 30, NULL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_LOSS);
    assert_ok(clb_bootstrap_paired(a, same, 30, NULL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE);
    assert_true(p.p > 0.05);
    assert_ok(clb_bootstrap_paired(a, a, 30, NULL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE);
    near(p.p, 1, 0);
    near(p.detectable, 0, 0);
    assert_ok(clb_bootstrap_paired(a, b, 1, NULL, &p, &err), &err);
    assert_int_equal(p.verdict, CLB_TIE); /* one pair shows nothing */
    assert_true(isinf(p.detectable));
    assert_string_equal(clb_verdict_name(CLB_WIN), "win");
}

/* What `detectable` promises: a true difference of that size is found in about 80 % of repetitions. */
static void power(void **state)
{
    (void)state;
    clb_error err;
    test_rand rng = {19};
    const double effect = (1.959964 + 0.841621) * 1.0 / sqrt(40);
    const clb_bootstrap_options o = {.resamples = 500};
    int found = 0;
    for (int k = 0; k < 300; k++) {
        double a[40], b[40];
        clb_paired p;
        for (int i = 0; i < 40; i++) {
            a[i] = 0;
            b[i] = effect + normal(&rng);
        }
        assert_ok(clb_bootstrap_paired(a, b, 40, &o, &p, &err), &err);
        found += p.verdict == CLB_WIN;
    }
    assert_in_range(found, 220, 268); /* 240 expected */
}

static void holm(void **state)
{
    (void)state;
    clb_error err;
    const double p[] = {0.01, 0.04, 0.03, 0.005}, want[] = {0.03, 0.06, 0.06, 0.02};
    double out[4];
    assert_ok(clb_holm(p, 4, out, &err), &err);
    for (int i = 0; i < 4; i++)
        near(out[i], want[i], 1e-12);
    const double large[] = {0.9, 0.8};
    assert_ok(clb_holm(large, 2, out, &err), &err);
    near(out[0], 1, 0);
    near(out[1], 1, 0);
}

static void refusals(void **state)
{
    (void)state;
    clb_error err;
    const double x[] = {1, 2};
    clb_interval v;
    assert_fails(clb_bootstrap_mean(x, 0, NULL, &v, &err), &err, COLIBRI_E_USAGE, "nothing to resample");
    assert_fails(clb_bootstrap_mean(x, 2, &(clb_bootstrap_options){.level = 1}, &v, &err), &err, COLIBRI_E_USAGE,
                 "level");
    assert_fails(clb_bootstrap_mean(x, 2, &(clb_bootstrap_options){.resamples = UINT32_MAX}, &v, &err), &err,
                 COLIBRI_E_USAGE, "at most");
    assert_ok(clb_bootstrap_mean(x, 1, NULL, &v, &err), &err);
    near(v.low, 1, 0);
    near(v.high, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles), cmocka_unit_test(coverage), cmocka_unit_test(ratio_of_sums),
        cmocka_unit_test(seeds),     cmocka_unit_test(paired),   cmocka_unit_test(power),
        cmocka_unit_test(holm),      cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
