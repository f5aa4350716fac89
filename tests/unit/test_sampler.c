/* The sampler against naive implementations: which tokens can be drawn, how often, and what the penalties do. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"
#include "support.h"

#define N 40u

static const clb_sampler_params neutral = {.temperature = 1.0, .top_p = 1.0, .repeat_penalty = 1.0, .repeat_last_n = 64, .seed = 1};

static clb_sampler *make(const clb_sampler_params *params, uint32_t n_vocab)
{
    clb_error err;
    clb_sampler *s;
    assert_ok(clb_sampler_create(params, n_vocab, &s, &err), &err);
    return s;
}

static uint32_t draw(clb_sampler *s, const float *logits)
{
    clb_error err;
    uint32_t token = UINT32_MAX;
    assert_ok(clb_sampler_sample(s, logits, &token, &err), &err);
    return token;
}

static void random_logits(test_rand *rng, float *logits, uint32_t n, bool with_ties)
{
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = test_rand_f32(rng, -4.0f, 4.0f);
        if (with_ties) /* coarse steps: many equal values */
            logits[i] = floorf(logits[i] * 2.0f) / 2.0f;
    }
}

/* ---- greedy, and logits that are no numbers ---- */

static void greedy_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    clb_sampler_params p = neutral;
    p.temperature = 0.0;
    clb_sampler *s = make(&p, N);
    test_rand rng = {3};
    float logits[N];
    for (int round = 0; round < 500; round++) {
        random_logits(&rng, logits, N, true);
        uint32_t want = 0;
        for (uint32_t i = 1; i < N; i++)
            want = logits[i] > logits[want] ? i : want;
        assert_int_equal(draw(s, logits), want);
    }
    clb_sampler_destroy(s);
}

/* NaN and -inf are never drawn, at any temperature; +inf always is; nothing left is an error. */
static void odd_logits(void **state)
{
    (void)state;
    static const double temperatures[] = {0.0, 1.0, 100.0};
    for (size_t t = 0; t < 3; t++) {
        clb_error err;
        clb_sampler_params p = neutral;
        p.temperature = temperatures[t];
        clb_sampler *s = make(&p, N);
        float logits[N];
        uint32_t token;
        for (uint32_t i = 0; i < N; i++)
            logits[i] = i % 2 ? NAN : -INFINITY;
        assert_fails(clb_sampler_sample(s, logits, &token, &err), &err, COLIBRI_E_INTERNAL, "no logit is a number");
        logits[17] = -1e30f;
        for (int i = 0; i < 50; i++)
            assert_int_equal(draw(s, logits), 17);
        logits[3] = 5.0f; /* both finite, the other far below */
        logits[9] = INFINITY;
        logits[23] = INFINITY;
        for (int i = 0; i < 50; i++)
            assert_int_equal(draw(s, logits), 9);
        clb_sampler_destroy(s);
    }
}

/* ---- the cut: top-k, then top-p of what is left, then min-p ---- */

static const float *sort_key;

static int by_logit(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_key[x] != sort_key[y])
        return sort_key[x] > sort_key[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Marks what may be drawn, by the definitions, in double. False if a decision is too close for float arithmetic. */
static bool naive_cut(const float *logits, const clb_sampler_params *p, bool *kept)
{
    uint32_t order[N];
    double prob[N], total = 0.0;
    for (uint32_t i = 0; i < N; i++)
        order[i] = i;
    sort_key = logits;
    qsort(order, N, sizeof *order, by_logit);
    uint32_t n = p->top_k && p->top_k < N ? p->top_k : N;
    for (uint32_t i = 0; i < n; i++)
        total += prob[i] = exp((double)logits[order[i]] - (double)logits[order[0]]);
    uint32_t last = n;
    double mass = 0.0;
    bool clear = true;
    for (uint32_t i = 0; i < n && last == n && p->top_p < 1.0; i++) {
        mass += prob[i] / total;
        clear = clear && fabs(mass - p->top_p) > 1e-5;
        if (mass >= p->top_p)
            last = i + 1;
    }
    memset(kept, 0, N * sizeof *kept);
    for (uint32_t i = 0; i < last; i++) {
        const double share = prob[i] / prob[0];
        clear = clear && (i == 0 || p->min_p == 0.0 || fabs(share - p->min_p) > 1e-5);
        kept[order[i]] = i == 0 || share >= p->min_p;
    }
    return clear;
}

static void cuts_match_their_definition(void **state)
{
    (void)state;
    test_rand rng = {11};
    float logits[N];
    uint32_t compared = 0, narrowed = 0;
    for (int round = 0; round < 300; round++) {
        clb_sampler_params p = neutral;
        p.temperature = 100.0; /* nearly uniform: what may be drawn is drawn soon */
        p.top_k = round % 4 == 0 ? 0 : 1 + test_rand_below(&rng, N + 5);
        p.top_p = round % 3 == 0 ? 1.0 : test_rand_f64(&rng);
        p.min_p = round % 5 == 0 ? 0.0 : test_rand_f64(&rng) * 0.6;
        p.seed = (uint64_t)round + 1;
        random_logits(&rng, logits, N, round % 2);
        bool kept[N], seen[N] = {false};
        if (!naive_cut(logits, &p, kept))
            continue;
        uint32_t n_kept = 0;
        for (uint32_t i = 0; i < N; i++)
            n_kept += kept[i];
        clb_sampler *s = make(&p, N);
        for (uint32_t i = 0; i < 40 * n_kept + 40; i++)
            seen[draw(s, logits)] = true;
        clb_sampler_destroy(s);
        for (uint32_t i = 0; i < N; i++)
            if (seen[i] != kept[i])
                fail_msg("round %d: token %u is %s (top_k %u, top_p %g, min_p %g)", round, i,
                         seen[i] ? "drawn but cut" : "kept but never drawn", p.top_k, p.top_p, p.min_p);
        compared++;
        narrowed += n_kept < N && n_kept > 1;
    }
    assert_true(compared > 250 && narrowed > 150);
}

/* The extremes: one candidate is always left. */
static void narrowest_cuts(void **state)
{
    (void)state;
    test_rand rng = {17};
    float logits[N];
    random_logits(&rng, logits, N, false);
    uint32_t best = 0;
    for (uint32_t i = 1; i < N; i++)
        best = logits[i] > logits[best] ? i : best;
    for (int which = 0; which < 4; which++) {
        clb_sampler_params p = neutral;
        if (which == 0)
            p.top_k = 1;
        else if (which == 1)
            p.top_p = 0.0;
        else if (which == 2)
            p.min_p = 1.0;
        else
            p.temperature = 1e-30;
        clb_sampler *s = make(&p, N);
        for (int i = 0; i < 100; i++)
            assert_int_equal(draw(s, logits), best);
        clb_sampler_destroy(s);
    }
}

/* ---- penalties ---- */

/* Greedy on logits in which the penalties decide, against the formula over the last n tokens kept in a plain list. */
static void penalties_match_the_formula(void **state)
{
    (void)state;
    test_rand rng = {23};
    uint32_t changed = 0;
    for (int round = 0; round < 60; round++) {
        clb_sampler_params p = neutral;
        p.temperature = 0.0;
        p.repeat_last_n = (uint32_t)(round % 7) * 5;
        p.repeat_penalty = round % 2 ? 1.0 + test_rand_f64(&rng) : 1.0;
        p.presence_penalty = round % 3 ? test_rand_f64(&rng) * 2.0 - 1.0 : 0.0;
        p.frequency_penalty = round % 5 ? test_rand_f64(&rng) - 0.3 : 0.0;
        clb_sampler *s = make(&p, N);
        uint32_t history[200];
        for (uint32_t n = 0; n < 200; n++) {
            float logits[N], want[N];
            random_logits(&rng, logits, N, false);
            for (uint32_t id = 0; id < N; id++) {
                uint32_t count = 0;
                for (uint32_t i = n > p.repeat_last_n ? n - p.repeat_last_n : 0; i < n; i++)
                    count += history[i] == id;
                want[id] = logits[id];
                if (count) {
                    want[id] = want[id] > 0.0f ? want[id] / (float)p.repeat_penalty : want[id] * (float)p.repeat_penalty;
                    want[id] = want[id] - (float)count * (float)p.frequency_penalty - (float)p.presence_penalty;
                }
            }
            uint32_t plain = 0, best = 0;
            for (uint32_t id = 1; id < N; id++) {
                plain = logits[id] > logits[plain] ? id : plain;
                best = want[id] > want[best] ? id : best;
            }
            const float copy = logits[best];
            assert_int_equal(draw(s, logits), best);
            assert_true(logits[best] == copy); /* the caller's logits stay */
            changed += best != plain;
            history[n] = test_rand_below(&rng, N / 3);
            clb_sampler_accept(s, history[n]);
        }
        clb_sampler_accept(s, N); /* outside the vocabulary: no place to count it */
        clb_sampler_destroy(s);
    }
    assert_true(changed > 500);
}

/* The token that leaves the window is forgotten, exactly then. */
static void window_evicts(void **state)
{
    (void)state;
    clb_sampler_params p = neutral;
    p.temperature = 0.0;
    p.presence_penalty = 5.0;
    p.repeat_last_n = 3;
    clb_sampler *s = make(&p, 4);
    const float logits[] = {1.0f, 0.5f, 0.4f, 0.3f};
    assert_int_equal(draw(s, logits), 0);
    clb_sampler_accept(s, 0);
    assert_int_equal(draw(s, logits), 1);
    clb_sampler_accept(s, 1);
    clb_sampler_accept(s, 1);
    assert_int_equal(draw(s, logits), 2); /* 0 and 1 in the window */
    clb_sampler_accept(s, 2);             /* 0 leaves */
    assert_int_equal(draw(s, logits), 0);
    clb_sampler_accept(s, 3); /* one of the two 1 leaves, one stays */
    clb_sampler_accept(s, 0);
    assert_int_equal(draw(s, logits), 1); /* window 2 3 0 */
    clb_sampler_destroy(s);
}

/* ---- the draw ---- */

static void seeds_repeat(void **state)
{
    (void)state;
    float logits[N];
    test_rand rng = {31};
    random_logits(&rng, logits, N, false);
    clb_sampler_params p = neutral;
    uint32_t first[3][200];
    for (int run = 0; run < 3; run++) {
        p.seed = run == 2 ? 8 : 7;
        clb_sampler *s = make(&p, N);
        for (int i = 0; i < 200; i++)
            first[run][i] = draw(s, logits);
        clb_sampler_destroy(s);
    }
    assert_memory_equal(first[0], first[1], sizeof first[0]);
    assert_memory_not_equal(first[0], first[2], sizeof first[0]);
}

/* Frequencies of many draws against softmax(logits / T) over the kept set: Pearson's chi-square, one fixed seed. The bound is
 * the 99.9 % quantile by Wilson and Hilferty. */
static void check_frequencies(const clb_sampler_params *p, const float *logits, const bool *kept)
{
    const uint32_t n_draws = 200000;
    uint32_t count[N] = {0}, n_kept = 0;
    double want[N], total = 0.0, chi = 0.0;
    clb_sampler *s = make(p, N);
    for (uint32_t i = 0; i < n_draws; i++)
        count[draw(s, logits)]++;
    clb_sampler_destroy(s);
    for (uint32_t i = 0; i < N; i++)
        total += want[i] = kept[i] ? exp((double)logits[i] / p->temperature) : 0.0;
    for (uint32_t i = 0; i < N; i++) {
        if (!kept[i]) {
            assert_int_equal(count[i], 0);
            continue;
        }
        const double expected = want[i] / total * n_draws;
        assert_true(expected > 5.0); /* else the statistic means little */
        chi += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
        n_kept++;
    }
    const double df = (double)n_kept - 1.0, h = 2.0 / (9.0 * df);
    const double bound = df * pow(1.0 - h + 3.09 * sqrt(h), 3.0);
    if (!(chi < bound))
        fail_msg("chi-square %g at %g degrees of freedom, bound %g", chi, df, bound);
}

static void frequencies_are_softmax(void **state)
{
    (void)state;
    static const struct {
        double temperature, top_p, min_p;
        uint32_t top_k;
    } cases[] = {{1.0, 1.0, 0.0, 0}, {0.8, 1.0, 0.0, 0}, {2.0, 1.0, 0.0, 10}, {1.0, 0.9, 0.0, 0}, {1.5, 1.0, 0.1, 0}};
    test_rand rng = {41};
    float logits[N];
    random_logits(&rng, logits, N, false);
    for (uint32_t i = 0; i < N; i++)
        logits[i] *= 0.75f;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        clb_sampler_params p = neutral;
        bool kept[N];
        p.temperature = cases[c].temperature;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        p.top_k = cases[c].top_k;
        p.seed = 1234;
        assert_true(naive_cut(logits, &p, kept));
        check_frequencies(&p, logits, kept);
    }
}

/* top-k of a real vocabulary's size: the selection by heap agrees with a full sort. */
static void large_vocabulary(void **state)
{
    (void)state;
    const uint32_t n = 50000, k = 40;
    float *logits = calloc(n, sizeof *logits);
    uint32_t *order = calloc(n, sizeof *order);
    bool *kept = calloc(n, sizeof *kept);
    assert_true(logits && order && kept);
    test_rand rng = {43};
    for (int ties = 0; ties < 2; ties++) {
        memset(kept, 0, n * sizeof *kept);
        random_logits(&rng, logits, n, ties);
        for (uint32_t i = 0; i < n; i++)
            order[i] = i;
        sort_key = logits;
        qsort(order, n, sizeof *order, by_logit);
        for (uint32_t i = 0; i < k; i++)
            kept[order[i]] = true;
        clb_sampler_params p = neutral;
        p.top_k = k;
        p.temperature = 100.0;
        clb_sampler *s = make(&p, n);
        uint32_t distinct = 0;
        bool *seen = calloc(n, sizeof *seen);
        assert_non_null(seen);
        for (uint32_t i = 0; i < 1000; i++) {
            const uint32_t token = draw(s, logits);
            assert_true(kept[token]);
            distinct += !seen[token];
            seen[token] = true;
        }
        assert_int_equal(distinct, k);
        free(seen);
        clb_sampler_destroy(s);
    }
    free(logits);
    free(order);
    free(kept);
}

/* What is found by the best of blocks is what a look at every logit finds: a bias of nothing asks for the latter. */
static void quick_search_finds_the_same(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 15, 255, 256, 257, 4096, 5000};
    static float logits[5000];
    test_rand rng = {47};
    for (uint32_t i = 0; i < 600; i++) {
        const uint32_t n = sizes[i % 7], kind = i / 7 % 6;
        random_logits(&rng, logits, n, kind & 1);
        for (uint32_t k = 0; k < n && kind > 1; k++) /* few numbers, or hardly any */
            if (test_rand_below(&rng, kind > 3 ? 200 : 3))
                logits[k] = k & 1 ? NAN : -INFINITY;
        logits[test_rand_below(&rng, n)] = 1.0f;
        clb_sampler_params p = neutral;
        p.seed = i;
        p.top_k = 1 + test_rand_below(&rng, 60);
        p.temperature = i % 5 ? 3.0 : 0.0;
        clb_sampler *const quick = make(&p, n), *const slow = make(&p, n);
        clb_error err;
        assert_ok(clb_sampler_add_bias(slow, 0, 0.0f, &err), &err);
        for (uint32_t k = 0; k < 20; k++)
            assert_int_equal(draw(quick, logits), draw(slow, logits));
        clb_sampler_destroy(quick);
        clb_sampler_destroy(slow);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_ties_go_to_the_lower_id), cmocka_unit_test(odd_logits),
        cmocka_unit_test(cuts_match_their_definition),    cmocka_unit_test(narrowest_cuts),
        cmocka_unit_test(penalties_match_the_formula),    cmocka_unit_test(window_evicts),
        cmocka_unit_test(seeds_repeat),                   cmocka_unit_test(frequencies_are_softmax),
        cmocka_unit_test(large_vocabulary),               cmocka_unit_test(quick_search_finds_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
