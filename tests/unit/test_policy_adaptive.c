/* Expert policy adaptive: its estimates against a plain rewrite of the model, and what it must be good at. */
#include "support/policy_cache.h"
#include "support/policy_host.h"

#include <math.h>

static const struct colibri_expert_policy *adaptive, *lru;

/* ---- the model once more, in doubles, expert by expert; one sequence, one row per pass ---- */

enum { L = PH_LAYERS, E = PH_EXPERTS, K = PH_TOP_K, F = 4 };

static struct {
    double w[7], gradient[7], squares[7];
    double count[L][E][3], same[L][E][E], cross[L][E][E], value[L][E];
    uint32_t uses[L][E], last[L][K];
    uint32_t order[L][E]; /* most recently used first */
    bool routed[L];
    uint32_t lessons;
    double discount;
} m;

static double line_log2(double x)
{
    const double whole = floor(log2(x));
    return whole + x / exp2(whole) - 1;
}

static double near_exp2(double x)
{
    x = fmin(fmax(x, -30), 30);
    const double part = x - floor(x);
    return exp2(floor(x)) * (1 + part * (0.6565 + 0.3435 * part));
}

static double chance(double z)
{
    return 1 / (1 + near_exp2(-z));
}

static void features(uint32_t l, uint32_t e, double f[F])
{
    uint32_t place = 0;
    while (m.order[l][place] != e)
        place++;
    for (uint32_t c = 0; c < 3; c++)
        f[c] = m.count[l][e][c];
    f[3] = line_log2(place < K - 1 ? 1 : (double)place - (K - 1) + 1);
}

static double sum_of(double matrix[E][E], const uint32_t *from, uint32_t e)
{
    double s = 0;
    for (uint32_t k = 0; k < K; k++)
        s += matrix[from[k]][e];
    return s;
}

static double base_of(uint32_t l, uint32_t e)
{
    double f[F];
    features(l, e, f);
    return m.w[0] * f[0] + m.w[1] * f[1] + m.w[2] * f[2] + m.w[3] * f[3] + m.w[4];
}

static void model_reset(double discount)
{
    static const double start[] = {0.10, 0.0, 0.75, -0.05, -2.0, 1.0, 1.0};
    memset(&m, 0, sizeof m);
    memcpy(m.w, start, sizeof start);
    m.discount = discount;
    for (uint32_t l = 0; l < L; l++)
        for (uint32_t e = 0; e < E; e++) {
            m.order[l][e] = e;
            for (uint32_t c = 0; c < 3; c++)
                m.count[l][e][c] = -6;
        }
}

static void model_step(void)
{
    for (uint32_t i = 0; i < 7; i++) {
        const double g = m.lessons ? m.gradient[i] / m.lessons : 0;
        m.gradient[i] = 0;
        if (g == 0)
            continue;
        m.squares[i] += g * g;
        m.w[i] -= (i < 5 ? 0.15 : 0.02) * g / sqrt(m.squares[i]);
        if (i >= 5)
            m.w[i] = fmax(m.w[i], 0);
    }
    m.lessons = 0;
}

static double rate_of(uint32_t uses)
{
    return 0.6 / K / sqrt(1 + uses / 100.0);
}

static void model_row(uint32_t l, const uint32_t *ids)
{
    static const double fade[] = {1, 1.0 / 8, 1.0 / 64};
    const uint32_t previous = (l + L - 1) % L, next = (l + 1) % L;
    double f[E][F], base[E], same[E], cross[E], target[E];
    for (uint32_t e = 0; e < E; e++) {
        features(l, e, f[e]);
        base[e] = base_of(l, e);
        same[e] = m.routed[l] ? sum_of(m.same[l], m.last[l], e) : 0;
    }
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t c = 0; c < 3; c++) {
            double *count = &m.count[l][e][c];
            if (e == ids[0] || e == ids[1])
                *count = line_log2(1 + near_exp2(*count - fade[c]));
            else
                *count = fmax(*count - fade[c], -6);
        }
    for (uint32_t k = K; k-- > 0;) {
        uint32_t at = 0;
        while (m.order[l][at] != ids[k])
            at++;
        memmove(&m.order[l][1], &m.order[l][0], at * sizeof m.order[l][0]);
        m.order[l][0] = ids[k];
        m.uses[l][ids[k]]++;
    }
    if (m.routed[l]) {
        m.lessons++;
        const bool beside = m.routed[previous];
        for (uint32_t e = 0; e < E; e++) {
            target[e] = e == ids[0] || e == ids[1]
                            ? 1
                            : m.discount * chance(base_of(l, e) + m.w[5] * sum_of(m.same[l], ids, e));
            const double error = chance(base[e] + m.w[5] * same[e]) - target[e];
            for (uint32_t i = 0; i < F; i++)
                m.gradient[i] += error * f[e][i];
            m.gradient[4] += error;
            m.gradient[5] += error * same[e];
            cross[e] = beside ? sum_of(m.cross[l], m.last[previous], e) : 0;
        }
        for (uint32_t e = 0; e < E; e++) {
            for (uint32_t k = 0; k < K; k++)
                m.same[l][m.last[l][k]][e] -=
                    rate_of(m.uses[l][m.last[l][k]]) * (chance(base[e] + same[e]) - target[e]);
            if (!beside)
                continue;
            const double with = base[e] + m.w[5] * same[e];
            m.gradient[6] += (chance(with + m.w[6] * cross[e]) - target[e]) * cross[e];
            for (uint32_t k = 0; k < K; k++)
                m.cross[l][m.last[previous][k]][e] -=
                    rate_of(m.uses[previous][m.last[previous][k]]) * (chance(with + cross[e]) - target[e]);
        }
    }
    memcpy(m.last[l], ids, sizeof m.last[l]);
    m.routed[l] = true;
    for (uint32_t e = 0; e < E; e++) {
        m.value[l][e] = chance(base_of(l, e) + m.w[5] * sum_of(m.same[l], ids, e));
        if (m.routed[next])
            m.value[next][e] = chance(base_of(next, e) + m.w[5] * sum_of(m.same[next], m.last[next], e) +
                                      m.w[6] * sum_of(m.cross[next], ids, e));
    }
}

static void against_model(void **state)
{
    (void)state;
    enum { N = 400 };
    static uint8_t rows[N][PH_LAYERS][PH_TOP_K];
    test_rand rng = {9};
    ph_random_rows(&rng, rows, N);
    policy_host *h = ph_open(adaptive, NULL, 24, true); /* four times what a row needs */
    model_reset(1 - 0.3 / sqrt(24 / 6.0));
    uint32_t compared = 0;
    for (uint32_t r = 0; r < N; r++) {
        ph_begin(h, (const uint8_t(*)[PH_LAYERS][PH_TOP_K])(rows + r), 1);
        model_step();
        for (uint32_t l = 0; l < L; l++) {
            const uint32_t ids[] = {rows[r][l][0], rows[r][l][1]};
            model_row(l, ids);
            ph_layer(h, l, 1, NULL);
            for (uint32_t i = 0; i < PH_ALL; i++) {
                const uint32_t to = i / E, away = to > l ? to - l : to + L - l;
                const double score = adaptive->score(h->self, to, i % E),
                             expected = m.value[to][i % E] * near_exp2(-(double)away / L);
                if (fabs(score - expected) > 2e-3)
                    fail_msg("row %u, layer %u: expert %u of layer %u is worth %.5f, not %.5f", r, l, i % E, to, score,
                             expected);
                compared += expected > 0.2;
            }
        }
    }
    assert_true(compared > 1000);
    ph_close(h);
}

/* ---- what it must be good at ---- */

static double misses(const struct colibri_expert_policy *policy, pc_run *rows)
{
    pc_run run = *rows;
    run.policy = policy;
    pc_open(&run, NULL);
    while (run.first < run.n_rows)
        pc_pass(&run, 1);
    pc_close(&run);
    return (double)run.misses;
}

static pc_run make_rows(uint32_t n_layers, uint32_t n_slots, uint32_t n_rows)
{
    pc_run run = {.n_layers = n_layers, .n_experts = 12, .top_k = 2, .n_slots = n_slots, .n_rows = n_rows};
    run.rows = malloc((size_t)n_rows * n_layers * 2);
    assert_non_null(run.rows);
    return run;
}

/* Round and round: lru misses always, the best possible rule hits 4 of 10 (5 of 11 others can wait). */
static void circle(void **state)
{
    (void)state;
    pc_run run = make_rows(1, 6, 2000);
    for (uint32_t i = 0; i < 4000; i++)
        run.rows[i] = (uint8_t)(i % 12);
    assert_true(misses(lru, &run) >= 4000);
    assert_true(misses(adaptive, &run) < 4000 * 0.65);
    free(run.rows);
}

/* Layer 1 follows from layer 0, whose choice is anybody's guess: with room for a third of the experts, what layer 1
 * will need is known in time, and kept if it is there. */
static void follows(void **state)
{
    (void)state;
    pc_run run = make_rows(2, 12, 4000);
    test_rand rng = {5};
    for (uint32_t r = 0; r < run.n_rows; r++) {
        uint8_t *row = run.rows + r * 4;
        row[0] = (uint8_t)test_rand_below(&rng, 12);
        row[1] = (uint8_t)((row[0] + 1 + test_rand_below(&rng, 11)) % 12);
        row[2] = (uint8_t)(row[0] * 5 % 12);
        row[3] = (uint8_t)(row[1] * 5 % 12);
    }
    run.policy = adaptive;
    pc_open(&run, NULL);
    while (run.first < run.n_rows)
        pc_pass(&run, 1);
    const double by_lru = misses(
        lru,
        &(pc_run){.n_layers = 2, .n_experts = 12, .top_k = 2, .n_slots = 12, .rows = run.rows, .n_rows = run.n_rows});
    assert_true((double)run.misses < by_lru * 0.96);
    pc_close(&run);
    free(run.rows);
}

/* Favourites that never change, then others: counting must win over recency, and not for ever. */
static void favourites(void **state)
{
    (void)state;
    pc_run run = make_rows(1, 5, 4000);
    test_rand rng = {6};
    for (uint32_t r = 0; r < run.n_rows; r++) {
        const uint32_t shift = r < 2000 ? 0 : 6;
        for (uint32_t k = 0; k < 2; k++)
            do
                run.rows[2 * r + k] = (uint8_t)((shift + (test_rand_below(&rng, 4) ? test_rand_below(&rng, 4)
                                                                                   : test_rand_below(&rng, 12))) %
                                                12);
            while (k && run.rows[2 * r] == run.rows[2 * r + 1]);
    }
    assert_true(misses(adaptive, &run) < misses(lru, &run) * 0.9);
    free(run.rows);
}

/* Where the last use is all that counts, lru is the best rule there is: adaptive gives way to it. */
static void recency(void **state)
{
    (void)state;
    pc_run run = make_rows(1, 9, 8000);
    test_rand rng = {7};
    uint8_t stack[12];
    for (uint8_t i = 0; i < 12; i++)
        stack[i] = i;
    for (uint32_t i = 0; i < 2 * run.n_rows; i++) {
        uint32_t place = 0;
        do
            for (place = 0; place < 11 && test_rand_below(&rng, 10) >= 3;)
                place++;
        while (i % 2 && stack[place] == run.rows[i - 1]);
        const uint8_t e = stack[place];
        memmove(stack + 1, stack, place);
        run.rows[i] = stack[0] = e;
    }
    const double by_lru = misses(lru, &run), own = misses(adaptive, &run);
    assert_true(own < by_lru + 2 * run.n_rows * 0.006); /* 0.6 points of hit rate */
    char text[160];
    run.policy = adaptive;
    pc_open(&run, NULL);
    while (run.first < run.n_rows)
        pc_pass(&run, 1);
    clb_cache_explain(run.cache, 0, run.rows[2 * run.n_rows - 1], text, sizeof text);
    assert_non_null(strstr(text, "lru decides"));
    assert_non_null(strstr(text, "last used 0 tokens ago"));
    pc_reset(&run);
    clb_cache_explain(run.cache, 0, 3, text, sizeof text);
    assert_non_null(strstr(text, "never"));
    assert_non_null(strstr(text, "worth decides"));
    pc_close(&run);
    free(run.rows);
}

/* ---- and what it must survive ---- */

static void any_pool(void **state)
{
    (void)state;
    pc_random_test(adaptive, NULL, NULL, 12); /* victims are candidates, and the same after a reset */
    ph_prefetch_survives(adaptive, NULL);
}

/* Long passes, many sequences, hosts that talk nonsense. */
static void rough(void **state)
{
    (void)state;
    enum { ROWS = 300 };
    static uint32_t ids[ROWS * K], sequence[ROWS];
    static float gates[ROWS * K];
    const uint64_t bytes[L] = {1, 1, 1};
    char why[128];
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = L, .n_experts = E, .top_k = K, .n_slots = 10, .expert_bytes = bytes};
    void *self = adaptive->create(&config, why, sizeof why);
    test_rand rng = {8};
    assert_non_null(self);
    for (uint32_t t = 0; t < 300; t++) {
        const uint32_t n = test_rand_below(&rng, 4) ? test_rand_below(&rng, 12) : test_rand_below(&rng, ROWS);
        const struct colibri_step step = {sizeof step, COLIBRI_PHASE_DECODE, t, n, 1};
        adaptive->on_step(self, &step);
        for (uint32_t l = 0; l < L; l++) {
            uint32_t union_ids[E], n_union = 0;
            bool in[E + 1] = {false};
            const bool bad = test_rand_below(&rng, 20) == 0;
            for (uint32_t r = 0; r < n; r++) {
                ids[2 * r] = test_rand_below(&rng, E);
                ids[2 * r + 1] = (ids[2 * r] + 1 + test_rand_below(&rng, E - 1)) % E;
                in[ids[2 * r]] = in[ids[2 * r + 1]] = true;
                sequence[r] = test_rand_below(&rng, 3) ? r : UINT32_MAX - test_rand_below(&rng, 20);
            }
            for (uint32_t e = 0; e < E; e++)
                if (in[e])
                    union_ids[n_union++] = e;
            if (bad)
                ids[0] = E;
            const struct colibri_route route = {.struct_size = sizeof route,
                                                .layer = bad ? L : l,
                                                .n_rows = n,
                                                .top_k = K,
                                                .ids = ids,
                                                .gates = gates,
                                                .n_union = n_union,
                                                .union_ids = union_ids,
                                                .union_rows = union_ids,
                                                .row_sequence = t % 3 ? sequence : NULL};
            adaptive->on_route(self, &route);
            for (uint32_t i = 0; i < PH_ALL; i++) {
                const double s = adaptive->score(self, i / E, i % E);
                assert_true(s >= 0 && isfinite(s));
            }
        }
        if (t == 200)
            adaptive->rebudget(self, 4, NULL);
        if (t == 250)
            adaptive->rebudget(self, 30, NULL);
    }
    adaptive->destroy(self);
    struct colibri_policy_config huge = config;
    huge.n_experts = 1 << 20;
    assert_null(adaptive->create(&huge, why, sizeof why));
}

/* Two sequences in one batch: each one's past speaks for its own future. */
static void sequences(void **state)
{
    (void)state;
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = 1, .n_experts = E, .top_k = 1, .n_slots = 4};
    static const uint32_t sequence[] = {4, 7}, union_rows[] = {1, 1};
    static const float gates[2] = {1, 1};
    char why[128];
    void *self = adaptive->create(&config, why, sizeof why);
    assert_non_null(self);
    for (uint32_t t = 0; t < 600; t++) { /* one goes round 0 ... 4, the other 5 ... 11 */
        const uint32_t ids[] = {t % 5, 5 + t % 7};
        const struct colibri_step step = {sizeof step, COLIBRI_PHASE_DECODE, t, 2, 2};
        const struct colibri_route route = {.struct_size = sizeof route,
                                            .n_rows = 2,
                                            .top_k = 1,
                                            .ids = ids,
                                            .gates = gates,
                                            .n_union = 2,
                                            .union_ids = ids,
                                            .union_rows = union_rows,
                                            .row_sequence = sequence};
        adaptive->on_step(self, &step);
        adaptive->on_route(self, &route);
        for (uint32_t e = 0; t > 500 && e < E; e++)
            if (e != (t + 1) % 5 && e != 5 + (t + 1) % 7) {
                assert_true(adaptive->score(self, 0, e) < adaptive->score(self, 0, (t + 1) % 5));
                assert_true(adaptive->score(self, 0, e) < adaptive->score(self, 0, 5 + (t + 1) % 7));
            }
    }
    adaptive->destroy(self);
}

static int load(void **state)
{
    (void)state;
    adaptive = test_component("expert-policy-adaptive", "colibri_expert_policy_adaptive", COLIBRI_IFACE_EXPERT_POLICY);
    lru = test_component("expert-policy-lru", "colibri_expert_policy_lru", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_model), cmocka_unit_test(circle),
                                       cmocka_unit_test(follows),       cmocka_unit_test(favourites),
                                       cmocka_unit_test(recency),       cmocka_unit_test(any_pool),
                                       cmocka_unit_test(rough),         cmocka_unit_test(sequences)};
    return cmocka_run_group_tests(tests, load, NULL);
}
