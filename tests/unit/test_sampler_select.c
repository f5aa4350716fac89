/* What top-p and min-p leave of a vocabulary: the same candidates in the same order as a full sort and the cut give. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler_select.h"
#include "support.h"

#define N 20000u

static struct clb_candidate given[N], want[N], got[N];
static double weights[N], naive[N];

static double normal(test_rand *rng)
{
    return sqrt(-2.0 * log(test_rand_f64(rng) + 1e-300)) * cos(6.283185307179586 * test_rand_f64(rng));
}

enum { SPREAD, SPIKES, TIES, TWO_VALUES, HUGE_RANGE, ZEROS, INFINITE, ALL_SAME, KINDS };

static void make(test_rand *rng, unsigned kind, size_t n)
{
    static const double spreads[] = {0.01, 1.0, 2.5, 6.0, 30.0};
    const double spread = spreads[test_rand_below(rng, 5)];
    uint32_t id = 0;
    for (size_t i = 0; i < n; i++) {
        double x = spread * normal(rng);
        if (kind == SPIKES && test_rand_below(rng, (uint32_t)n / 8 + 1) == 0)
            x = 5.0 * spread + normal(rng);
        if (kind == TIES)
            x = floor(x * 4.0) / 4.0;
        if (kind == TWO_VALUES)
            x = x > spread ? 3.0 : -1.0;
        if (kind == HUGE_RANGE)
            x = test_rand_below(rng, 3) ? x * 1e37 : x * 1e-42;
        if (kind == ZEROS)
            x = test_rand_below(rng, 2) ? 0.0 : -0.0;
        if (kind == INFINITE && test_rand_below(rng, 1000) == 0)
            x = (double)INFINITY;
        if (kind == ALL_SAME)
            x = -7.25;
        x = x > 3e38 && kind != INFINITE ? 3e38 : x < -3e38 ? -3e38 : x;
        given[i] = (struct clb_candidate){(float)x, id};
        id += 1 + test_rand_below(rng, 3); /* a mask leaves gaps */
    }
}

static size_t check(size_t n, double top_p, double min_p, const char *what)
{
    size_t best = 0;
    memcpy(want, given, n * sizeof *want);
    memcpy(got, given, n * sizeof *got);
    for (size_t i = 1; i < n; i++)
        best = given[i].logit > given[best].logit ? i : best;
    qsort(want, n, sizeof *want, clb_by_logit);
    const size_t n_want = clb_candidates_cut(want, n, top_p, min_p, naive),
                 n_got = clb_candidates_select(got, n, best, top_p, min_p, weights);
    if (n_want != n_got)
        fail_msg("%s, %zu candidates, top_p %.17g, min_p %.17g: %zu are left, not %zu", what, n, top_p, min_p, n_got,
                 n_want);
    for (size_t i = 0; i < n_want; i++) /* logits as they were: -0 is not 0 */
        if (memcmp(&want[i], &got[i], sizeof *want) != 0)
            fail_msg("%s, %zu candidates, top_p %.17g, min_p %.17g: another one at %zu of %zu", what, n, top_p, min_p,
                     i, n_want);
    return n_want;
}

static void same_as_a_full_sort(void **state)
{
    (void)state;
    static const char *const names[KINDS] = {"spread",     "spikes", "ties",     "two values",
                                             "huge range", "zeros",  "infinite", "all the same"};
    static const double top_p[] = {1.0, 0.95, 0.9, 0.5, 0.99, 0.999999, 0.0, 1e-9};
    static const double min_p[] = {0.0, 0.05, 0.0, 0.001, 1.0, 1e-30, 0.5, 2.0};
    static const size_t sizes[] = {1, 2, 255, 256, 257, 1000, 3000, N};
    test_rand rng = {101};
    size_t n_inner = 0;
    for (unsigned round = 0; round < 1600; round++) {
        const unsigned kind = round % KINDS;
        const size_t n = sizes[round / KINDS % (round % 5 ? 7 : 8)];
        make(&rng, kind, n);
        const size_t left = check(n, top_p[test_rand_below(&rng, 8)], min_p[test_rand_below(&rng, 8)], names[kind]);
        n_inner += left > 1 && left < n;
    }
    assert_true(n_inner > 400);
}

/* Where the mass is top-p's to the bit, and at its neighbours: rounding decides, and decides in the same way. */
static void cuts_on_the_edge(void **state)
{
    (void)state;
    test_rand rng = {103};
    size_t n_steps = 0;
    for (unsigned round = 0; round < 60; round++) {
        const size_t n = 300 + test_rand_below(&rng, 3000);
        make(&rng, round % 4, n);
        qsort(memcpy(want, given, n * sizeof *want), n, sizeof *want, clb_by_logit);
        double total = 0.0, mass = 0.0;
        (void)clb_candidates_cut(want, n, 0.5, 0.0, naive); /* for its weights */
        for (size_t i = 0; i < n; i++)
            total += naive[i];
        const size_t at = test_rand_below(&rng, 40);
        for (size_t i = 0; i <= at; i++)
            mass += naive[i] / total;
        const double edges[] = {mass, nextafter(mass, 0.0), nextafter(mass, 2.0)};
        const double edge_of_min_p = naive[at];
        size_t left[3];
        for (int k = 0; k < 3; k++) {
            left[k] = check(n, edges[k], 0.0, "edge of top_p");
            (void)check(n, 0.999, k ? nextafter(edge_of_min_p, k * 2.0 - 2.0) : edge_of_min_p, "edge of min_p");
            (void)check(n, 1.0, k ? nextafter(edge_of_min_p, k * 2.0 - 2.0) : edge_of_min_p, "edge of min_p alone");
        }
        n_steps += left[0] == left[1] && left[2] > left[0];
    }
    assert_true(n_steps > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_a_full_sort),
        cmocka_unit_test(cuts_on_the_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
