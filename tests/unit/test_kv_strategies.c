/* Some KV strategies in detail in the cache that will run them: full, sliding-window, important-tokens. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/component.h"
#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, GROUP = 2, HEADS = KV_HEADS * GROUP, DIM = 8, PAGE = 16, MOST = 2000 };

static const clb_kv_layout layout = {LAYERS, HEADS, KV_HEADS, DIM, DIM, COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE, .ops = NULL};
static const struct colibri_kv_strategy *full, *window, *important;

static clb_kv_seq *open_seq(clb_kv_cache *cache, const struct colibri_kv_strategy *s, const double *params,
                            uint32_t budget)
{
    const clb_kv_seq_options o = {.strategy = s, .params = params, .ctx = MOST, .budget = budget};
    clb_kv_seq *seq;
    clb_error err;
    assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
    return seq;
}

static clb_kv_cache *open_cache(void)
{
    clb_kv_cache *cache;
    clb_error err;
    assert_ok(clb_kv_cache_create(&layout, 16 << 20, NULL, &cache, &err), &err);
    return cache;
}

/* Share of attention that `position` gets from a row at `from`, per head; need not be normalised. */
typedef double (*attention_fn)(uint32_t layer, uint32_t head, uint32_t from, uint32_t position);

static void pass(clb_kv_seq *seq, uint32_t n, enum colibri_phase phase, attention_fn attention)
{
    static float s[GROUP][MOST];
    static uint32_t position[MOST];
    const uint32_t first = clb_kv_seq_position(seq);
    clb_error err;
    assert_ok(clb_kv_begin(seq, n, &err), &err);
    kv_rows_write(seq, &layout, 1, n);
    for (uint32_t layer = 0; attention && layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t before = clb_kv_seq_positions(seq, layer, head, position, MOST);
            for (uint32_t i = 0; i < n; i++)
                position[before + i] = first + i;
            for (uint32_t row = 0; row < n; row++) {
                float max_sum[GROUP][2];
                double total = 0;
                for (uint32_t i = 0; i < before + row + 1; i++) {
                    const double a = attention(layer, head, first + row, position[i]);
                    s[0][i] = s[1][i] = (float)log(a);
                    total += a;
                }
                for (uint32_t g = 0; g < GROUP; g++) {
                    max_sum[g][0] = 0;
                    max_sum[g][1] = (float)total;
                }
                clb_kv_observe(seq, layer, head, s[0], MOST, max_sum[0], GROUP, before + row + 1);
            }
        }
    clb_kv_end(seq, n, phase, phase == COLIBRI_PHASE_PREFILL);
}

static uint32_t positions_of(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t position[MOST])
{
    const clb_kv_view v = clb_kv_view_of(seq, layer, head);
    const uint32_t n = clb_kv_seq_positions(seq, layer, head, position, MOST);
    clb_kv_stats st;
    clb_kv_seq_stats(seq, &st);
    assert_int_equal(st.bad_answers, 0);
    assert_int_equal(position[n - 1], clb_kv_seq_position(seq) - 1);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(i == 0 || position[i] > position[i - 1]);
        kv_rows_check(&v, &layout, 1, layer, head, i, position[i]);
    }
    return n;
}

static bool contains(const uint32_t *position, uint32_t n, uint32_t p)
{
    for (uint32_t i = 0; i < n; i++)
        if (position[i] == p)
            return true;
    return false;
}

static void full_keeps_all(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache();
    clb_kv_seq *seq = open_seq(cache, full, NULL, 40);
    uint32_t position[MOST];
    assert_true(full->flags & COLIBRI_KV_FLAG_KEEPS_ALL);
    pass(seq, 300, COLIBRI_PHASE_PREFILL, NULL);
    assert_int_equal(positions_of(seq, 1, 1, position), 300);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* Sinks, then one run up to the newest; its length between the window and a page more. */
static void check_window(clb_kv_seq *seq, uint32_t sinks, uint32_t w)
{
    uint32_t position[MOST];
    const uint32_t seen = clb_kv_seq_position(seq);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t n = positions_of(seq, layer, head, position);
            const uint32_t at_least = seen < sinks + w ? seen : sinks + w;
            assert_true(n >= at_least && n <= sinks + w + PAGE);
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(position[i], i < sinks ? i : seen - n + i);
        }
}

static void sliding_window(void **state)
{
    (void)state;
    const struct {
        double params[2];
        uint32_t budget, sinks, window;
    } cases[] = {
        {{4, 0}, 64, 4, 60}, {{0, 0}, 64, 0, 64},   {{16, 0}, 64, 16, 48}, {{4, 20}, 64, 4, 20},
        {{0, 1}, 64, 0, 1},  {{33, 31}, 64, 33, 31}, {{4, 0}, 300, 4, 296},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        test_rand rng = {c};
        clb_kv_cache *cache = open_cache();
        clb_kv_seq *seq = open_seq(cache, window, c ? cases[c].params : NULL, cases[c].budget);
        while (clb_kv_seq_position(seq) < 900) {
            if (test_rand_below(&rng, 10) == 0)
                pass(seq, 1 + test_rand_below(&rng, 50), COLIBRI_PHASE_PREFILL, NULL);
            else
                pass(seq, 1, COLIBRI_PHASE_DECODE, NULL);
            check_window(seq, cases[c].sinks, cases[c].window);
        }
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

/* Each head has hitters of its own, one in 23 positions, that draw nearly all attention. */
static double hitters(uint32_t layer, uint32_t head, uint32_t from, uint32_t position)
{
    (void)from;
    return position % 23 == 5 * layer + head ? 1.0 : 0.001;
}

static void important_tokens(void **state)
{
    (void)state;
    enum { BUDGET = 80, SINKS = 4 };
    const uint32_t chunks[] = {400, 100, 37};
    const double h2o[] = {SINKS, 0.5, 0, 0.5};
    for (size_t c = 0; c < 2 * sizeof chunks / sizeof chunks[0]; c++) {
        clb_kv_cache *cache = open_cache();
        clb_kv_seq *seq = open_seq(cache, important, c % 2 ? h2o : NULL, BUDGET);
        const uint32_t chunk = chunks[c / 2], n_recent = c % 2 ? 38 : 57, n_middle = BUDGET - SINKS - n_recent;
        static uint32_t position[LAYERS * KV_HEADS][MOST];
        for (uint32_t at = 0; at < 400; at += chunk)
            pass(seq, 400 - at < chunk ? 400 - at : chunk, COLIBRI_PHASE_PREFILL, hitters);
        for (uint32_t i = 0; i < LAYERS * KV_HEADS; i++) {
            const uint32_t layer = i / KV_HEADS, head = i % KV_HEADS;
            const uint32_t n = positions_of(seq, layer, head, position[i]);
            assert_int_equal(n, BUDGET);
            for (uint32_t p = 0; p < SINKS; p++)
                assert_int_equal(position[i][p], p);
            for (uint32_t k = 0; k < n_recent; k++)
                assert_int_equal(position[i][n - 1 - k], 399 - k);
            /* fewer hitters than room: every one stays, also through several selections */
            assert_true((400 - n_recent) / 23 + 1 <= n_middle);
            for (uint32_t p = 5 * layer + head; p < 400; p += 23)
                assert_true(contains(position[i], n, p));
        }
        assert_memory_not_equal(position[0], position[1], BUDGET * sizeof(uint32_t)); /* heads differ */
        for (int step = 0; step < 100; step++)
            pass(seq, 1, COLIBRI_PHASE_DECODE, hitters);
        for (uint32_t i = 0; i < LAYERS * KV_HEADS; i++) {
            const uint32_t n = positions_of(seq, i / KV_HEADS, i % KV_HEADS, position[i]);
            assert_true(n >= BUDGET && n <= BUDGET + PAGE);
            for (uint32_t p = 5 * (i / KV_HEADS) + i % KV_HEADS; p < 500; p += 23)
                assert_true(contains(position[i], n, p));
        }
        assert_true(clb_kv_cache_used_bytes(cache) <= clb_kv_bytes(&layout, BUDGET + PAGE));
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

/* Positions 10..19 draw a little from everyone, 200..209 a lot from the few rows that came after them. */
static double early_or_strong(uint32_t layer, uint32_t head, uint32_t from, uint32_t position)
{
    (void)layer;
    (void)head;
    (void)from;
    if (position >= 10 && position < 20)
        return 0.2;
    return position >= 200 && position < 210 ? 20 : 0.01;
}

static void sum_or_mean(void **state)
{
    (void)state;
    for (int mean = 0; mean < 2; mean++) {
        const double params[] = {0, 0.2, mean, 0.5}; /* budget 12: 2 recent, 10 by attention */
        clb_kv_cache *cache = open_cache();
        clb_kv_seq *seq = open_seq(cache, important, params, 12);
        uint32_t position[MOST];
        pass(seq, 240, COLIBRI_PHASE_PREFILL, early_or_strong);
        assert_int_equal(positions_of(seq, 0, 0, position), 12);
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(position[i], (mean ? 200 : 10) + i);
        assert_int_equal(position[10], 238);
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

/* `recent` from none to all, and attention that is not a number: never a bad answer, never more than the budget. */
static double broken(uint32_t layer, uint32_t head, uint32_t from, uint32_t position)
{
    (void)layer;
    (void)head;
    return position == 50 || from == 77 ? (double)NAN : 0.1;
}

static void extremes(void **state)
{
    (void)state;
    const double recent[] = {0, 0.01, 1};
    for (int i = 0; i < 3; i++) {
        const double params[] = {3, recent[i], 0, 0.5};
        clb_kv_cache *cache = open_cache();
        clb_kv_seq *seq = open_seq(cache, important, params, 20);
        uint32_t position[MOST];
        pass(seq, 100, COLIBRI_PHASE_PREFILL, broken);
        for (int step = 0; step < 40; step++)
            pass(seq, 1, COLIBRI_PHASE_DECODE, broken);
        assert_true(positions_of(seq, 1, 0, position) <= 20 + PAGE);
        assert_int_equal(position[2], 2);
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

static void budgets_too_small(void **state)
{
    (void)state;
    const struct {
        const struct colibri_kv_strategy **strategy;
        double params[4];
        uint32_t budget;
        bool fits;
    } cases[] = {
        {&window, {4, 0}, 4, false},      {&window, {4, 0}, 5, true},     {&window, {4, 60}, 63, false},
        {&window, {4, 60}, 64, true},     {&window, {65536, 0}, 8, false}, {&important, {4, 0.5, 0}, 4, false},
        {&important, {4, 0.5, 0}, 5, true},
    };
    clb_kv_cache *cache = open_cache();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const clb_kv_seq_options o = {.strategy = *cases[i].strategy, .params = cases[i].params, .ctx = MOST,
                                      .budget = cases[i].budget};
        clb_kv_seq *seq;
        clb_error err;
        if (!cases[i].fits) {
            assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_USAGE, "kv-budget");
            continue;
        }
        assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
        for (int step = 0; step < 50; step++) { /* the smallest budget that fits also works */
            uint32_t position[MOST];
            pass(seq, 3, COLIBRI_PHASE_DECODE, hitters);
            positions_of(seq, 0, 1, position);
        }
        clb_kv_seq_destroy(seq);
    }
    clb_kv_cache_destroy(cache);
}

static int load(void **state)
{
    (void)state;
    full = test_component("kv-strategy-full", "colibri_kv_strategy_full", COLIBRI_IFACE_KV_STRATEGY);
    window = test_component("kv-strategy-sliding_window", "colibri_kv_strategy_sliding_window",
                            COLIBRI_IFACE_KV_STRATEGY);
    important = test_component("kv-strategy-important_tokens", "colibri_kv_strategy_important_tokens",
                               COLIBRI_IFACE_KV_STRATEGY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_keeps_all),  cmocka_unit_test(sliding_window), cmocka_unit_test(important_tokens),
        cmocka_unit_test(sum_or_mean),     cmocka_unit_test(extremes),       cmocka_unit_test(budgets_too_small),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
