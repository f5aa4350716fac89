/* The router of one row against a naive computation in double, in every variant that GGUF keys can ask for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward_internal.h"
#include "ops/ops.h"
#include "support.h"

#define MOST 64u

struct variant {
    enum clb_gating gating;
    bool norm, bias;
    float scale;
};

/* Router-rank order, gates; false if two candidates around the border or in the order are too close to tell. */
static bool naive(const struct variant *v, const float *logits, const float *bias, uint32_t n, uint32_t k, uint32_t *ids,
                  double *gates)
{
    double prob[MOST], select[MOST], max = -INFINITY, total = 0.0;
    bool taken[MOST] = {false};
    for (uint32_t e = 0; e < n; e++)
        max = (double)logits[e] > max ? (double)logits[e] : max;
    for (uint32_t e = 0; e < n; e++) {
        const double x = (double)logits[e];
        prob[e] = v->gating == CLB_GATING_SIGMOID ? 1.0 / (1.0 + exp(-x)) : v->gating == CLB_GATING_SOFTMAX ? exp(x - max) : x;
        total += prob[e];
    }
    for (uint32_t e = 0; e < n; e++) {
        if (v->gating == CLB_GATING_SOFTMAX)
            prob[e] /= total;
        select[e] = prob[e] + (v->bias ? (double)bias[e] : 0.0);
    }
    bool clear = true;
    for (uint32_t r = 0; r < k; r++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (best == UINT32_MAX || select[e] > select[best]))
                best = e;
        taken[best] = true;
        for (uint32_t e = 0; e < n; e++)
            clear = clear && (taken[e] || fabs(select[e] - select[best]) > 1e-6);
        ids[r] = best;
        gates[r] = prob[best];
    }
    if (v->gating == CLB_GATING_SOFTMAX_TOPK) {
        double top = -INFINITY, sum = 0.0;
        for (uint32_t r = 0; r < k; r++)
            top = gates[r] > top ? gates[r] : top;
        for (uint32_t r = 0; r < k; r++)
            sum += gates[r] = exp(gates[r] - top);
        for (uint32_t r = 0; r < k; r++)
            gates[r] /= sum;
    }
    if (v->norm) {
        double sum = 0.0;
        for (uint32_t r = 0; r < k; r++)
            sum += gates[r];
        for (uint32_t r = 0; r < k; r++)
            gates[r] /= sum;
    }
    for (uint32_t r = 0; r < k; r++)
        gates[r] *= (double)v->scale;
    return clear;
}

static clb_hparams hparams(const struct variant *v, uint32_t n, uint32_t k)
{
    return (clb_hparams){.n_experts = n, .top_k = k, .gating = v->gating, .norm_topk = v->norm, .expert_scale = v->scale};
}

static void route(const clb_hparams *hp, const float *bias, const float *logits, uint32_t *ids, float *gates)
{
    float probs[MOST];
    memcpy(probs, logits, hp->n_experts * sizeof *probs);
    clb_route_row(hp, clb_vecops_reference(), bias, probs, ids, gates);
}

static void every_variant(void **state)
{
    (void)state;
    static const enum clb_gating gatings[] = {CLB_GATING_SOFTMAX, CLB_GATING_SIGMOID, CLB_GATING_SOFTMAX_TOPK};
    test_rand rng = {7};
    uint32_t compared = 0, moved = 0;
    for (uint32_t i = 0; i < 3 * 2 * 2 * 2 * 100; i++) {
        const struct variant v = {gatings[i % 3], i / 3 % 2, i / 6 % 2, i / 12 % 2 ? 2.5f : 1.0f};
        const uint32_t n = 1 + test_rand_below(&rng, MOST), k = 1 + test_rand_below(&rng, n);
        float logits[MOST], bias[MOST], gates[MOST];
        uint32_t ids[MOST], want_ids[MOST], plain_ids[MOST];
        double want[MOST];
        for (uint32_t e = 0; e < n; e++) {
            logits[e] = test_rand_f32(&rng, -6.0f, 6.0f);
            bias[e] = test_rand_f32(&rng, -0.5f, 0.5f);
        }
        if (!naive(&v, logits, bias, n, k, want_ids, want))
            continue;
        const clb_hparams hp = hparams(&v, n, k);
        route(&hp, v.bias ? bias : NULL, logits, ids, gates);
        assert_memory_equal(ids, want_ids, k * sizeof *ids);
        for (uint32_t r = 0; r < k; r++)
            if (!(fabs((double)gates[r] - want[r]) <= 2e-6 + 2e-6 * fabs(want[r])))
                fail_msg("gating %d, norm %d, rank %u: gate %.9g instead of %.9g", v.gating, v.norm, r, (double)gates[r], want[r]);
        compared++;
        if (v.bias) { /* the bias chooses; it is not in the weights (naive() says so too: see that it mattered) */
            const struct variant plain = {v.gating, v.norm, false, v.scale};
            double plain_gates[MOST];
            naive(&plain, logits, bias, n, k, plain_ids, plain_gates);
            moved += memcmp(plain_ids, ids, k * sizeof *ids) != 0;
        }
    }
    assert_true(compared > 1500 && moved > 300);
}

/* A bias that only reorders the same experts leaves their weights, bit for bit. */
static void bias_selects_only(void **state)
{
    (void)state;
    const float logits[] = {0.1f, 2.0f, -1.0f, 1.5f}, toward_0[] = {9.0f, 0.0f, 0.0f, 8.0f}, flat[] = {9.0f, 9.0f, 9.0f, 9.0f};
    static const enum clb_gating gatings[] = {CLB_GATING_SOFTMAX, CLB_GATING_SIGMOID};
    for (int i = 0; i < 2; i++) {
        const struct variant v = {gatings[i], false, true, 1.0f};
        const clb_hparams hp = hparams(&v, 4, 2), all = hparams(&v, 4, 4);
        uint32_t ids[4], every[4];
        float gates[4], unbiased[4];
        route(&all, NULL, logits, every, unbiased); /* 1 3 0 2 */
        assert_int_equal(every[2], 0);
        route(&hp, toward_0, logits, ids, gates);
        assert_int_equal(ids[0], 0);
        assert_int_equal(ids[1], 3);
        assert_true(gates[0] == unbiased[2] && gates[1] == unbiased[1]);
        route(&hp, flat, logits, ids, gates);
        assert_true(ids[0] == 1 && ids[1] == 3 && gates[0] == unbiased[0] && gates[1] == unbiased[1]);
    }
}

static void ties_go_to_the_lower_id(void **state)
{
    (void)state;
    static const enum clb_gating gatings[] = {CLB_GATING_SOFTMAX, CLB_GATING_SIGMOID, CLB_GATING_SOFTMAX_TOPK};
    for (int i = 0; i < 3; i++) {
        const struct variant v = {gatings[i], true, false, 1.0f};
        float logits[MOST], gates[MOST];
        uint32_t ids[MOST];
        for (uint32_t e = 0; e < MOST; e++)
            logits[e] = 1.0f;
        clb_hparams hp = hparams(&v, MOST, 5);
        route(&hp, NULL, logits, ids, gates);
        for (uint32_t r = 0; r < 5; r++) {
            assert_int_equal(ids[r], r);
            assert_true(fabsf(gates[r] - 0.2f) < 1e-6f);
        }
        logits[40] = logits[50] = 2.0f;
        logits[0] = 0.0f;
        route(&hp, NULL, logits, ids, gates);
        static const uint32_t want[] = {40, 50, 1, 2, 3};
        assert_memory_equal(ids, want, sizeof want);
    }
}

/* A NaN ranks below everything: ids stay distinct and inside, whatever the logits. */
static void nan_is_last(void **state)
{
    (void)state;
    test_rand rng = {9};
    for (uint32_t i = 0; i < 600; i++) {
        static const enum clb_gating gatings[] = {CLB_GATING_SOFTMAX, CLB_GATING_SIGMOID, CLB_GATING_SOFTMAX_TOPK};
        static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0.0f};
        const struct variant v = {gatings[i % 3], i % 2, i % 5 == 0, 1.0f};
        const uint32_t n = 1 + test_rand_below(&rng, MOST), k = 1 + test_rand_below(&rng, n);
        float logits[MOST], bias[MOST], gates[MOST];
        uint32_t ids[MOST], numbers = 0;
        bool seen[MOST] = {false};
        for (uint32_t e = 0; e < n; e++) {
            const bool strange = test_rand_below(&rng, 3) == 0;
            logits[e] = strange ? odd[test_rand_below(&rng, 7)] : test_rand_f32(&rng, -2.0f, 2.0f);
            bias[e] = test_rand_below(&rng, 8) ? 0.0f : NAN;
            numbers += logits[e] == logits[e];
        }
        const clb_hparams hp = hparams(&v, n, k);
        route(&hp, v.bias ? bias : NULL, logits, ids, gates);
        for (uint32_t r = 0; r < k; r++) {
            assert_in_range(ids[r], 0, n - 1);
            assert_false(seen[ids[r]]);
            seen[ids[r]] = true;
            /* element-wise gatings: numbers come first (-inf of raw logits ties with NaN, by id) */
            if (v.gating == CLB_GATING_SIGMOID && !v.bias && r < numbers)
                assert_true(logits[ids[r]] == logits[ids[r]]);
        }
    }
}

/* Many experts with few distinct values: the choice is that of repeatedly taking the first largest. */
static void chooses_as_a_plain_search_does(void **state)
{
    (void)state;
    enum { MANY = 300 };
    test_rand rng = {11};
    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t n = 1 + test_rand_below(&rng, MANY), k = 1 + test_rand_below(&rng, n < 20 ? n : 20);
        const uint32_t levels = 1 + test_rand_below(&rng, 40);
        const clb_hparams hp = {
            .n_experts = n, .top_k = k, .gating = CLB_GATING_SOFTMAX_TOPK, .expert_scale = 1.0f};
        float logits[MANY], probs[MANY], gates[20];
        uint32_t ids[20];
        bool taken[MANY] = {false};
        for (uint32_t e = 0; e < n; e++) /* zeros of both signs are equal */
            probs[e] = logits[e] = (float)((int)test_rand_below(&rng, levels) - (int)levels / 2) * (e % 2 ? -0.5f : 0.5f);
        clb_route_row(&hp, clb_vecops_reference(), NULL, probs, ids, gates);
        for (uint32_t r = 0; r < k; r++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t e = 0; e < n; e++)
                if (!taken[e] && (best == UINT32_MAX || logits[e] > logits[best]))
                    best = e;
            taken[best] = true;
            assert_int_equal(ids[r], best);
        }
    }
}

/* Weights that are all (nearly) zero are not blown up by the renormalisation. */
static void tiny_sums_are_bounded(void **state)
{
    (void)state;
    const struct variant v = {CLB_GATING_SIGMOID, true, false, 1.0f};
    const clb_hparams hp = hparams(&v, 4, 2);
    const float logits[] = {-40.0f, -50.0f, -60.0f, -200.0f};
    uint32_t ids[4];
    float gates[4];
    route(&hp, NULL, logits, ids, gates);
    assert_true(ids[0] == 0 && ids[1] == 1);
    assert_true(gates[0] >= 0.0f && gates[0] < 1e-10f && gates[1] >= 0.0f && gates[1] <= gates[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),           cmocka_unit_test(bias_selects_only),
        cmocka_unit_test(ties_go_to_the_lower_id), cmocka_unit_test(nan_is_last),
        cmocka_unit_test(tiny_sums_are_bounded),   cmocka_unit_test(chooses_as_a_plain_search_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
