/* Expert policy frequency-weighted: scripted victims, and the decayed sum over the whole history. */
#include "support/component.h"
#include "support/policy_host.h"

#include <math.h>

static const struct colibri_expert_policy *fw;
static double half_life;

static double naive(const policy_host *h, uint32_t expert)
{
    const uint32_t layer = expert / PH_EXPERTS;
    double sum = 0;
    for (uint32_t r = 0; r < h->routed_rows[layer]; r++)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS)
                sum += ph_decay(h->n_rows - r, half_life);
    return sum;
}

static void check(const policy_host *h, uint32_t layer, uint32_t victim, const bool *candidate)
{
    const double v = naive(h, victim);
    (void)layer;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (candidate[i])
            assert_true(v <= naive(h, i) * (1 + 1e-9));
}

static void against_history(void **state)
{
    (void)state;
    const double lives[] = {32, 1, 3, 500}; /* of 1500 rows */
    for (int i = 0; i < 4; i++) {
        half_life = lives[i];
        ph_random_test(fw, i ? &half_life : NULL, check);
    }
}

static void repeatable(void **state)
{
    (void)state;
    const double life = 10;
    ph_repeatable(fw, NULL, 1e-9);
    ph_repeatable(fw, &life, 1e-9);
}

static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {0, 1}, {0, 1}}, {{2, 3}, {0, 1}, {0, 1}},
        {{2, 4}, {0, 1}, {0, 1}}, /* slot for 4: 3 has 1, 0 and 1 about 3 */
        {{4, 5}, {0, 1}, {0, 1}},
    };
    /* A long half-life counts: 3 was used once; then 2 twice, 0 and 1 three times. */
    const double longer = 1000, shorter = 1;
    policy_host *h = ph_open(fw, &longer, 4, false);
    for (uint32_t i = 0; i < 6; i++)
        ph_pass(h, token + i, 1, NULL);
    assert_int_equal(h->n_victims, 2);
    assert_int_equal(h->victim[0], 3);
    assert_int_equal(h->victim[1], 2);
    ph_close(h);
    /* A short one forgets: 0 and 1, three times but before, are worth less than 3, then less than 2. */
    h = ph_open(fw, &shorter, 4, false);
    for (uint32_t i = 0; i < 6; i++)
        ph_pass(h, token + i, 1, NULL);
    assert_int_equal(h->n_victims, 2);
    assert_int_equal(h->victim[0], 0);
    assert_int_equal(h->victim[1], 1);
    char text[128] = "";
    fw->explain(h->self, 0, 5, text, sizeof text);
    assert_string_equal(text, "frequency-weighted: worth 1 uses now (half-life 1 tokens)");
    ph_close(h);
}

/* Far beyond the range of 2^t if sums were not logarithms: one long prompt, then many tokens, at the shortest half-life. */
static void stays_in_range(void **state)
{
    (void)state;
    enum { N = 18000, PROMPT = 6000 };
    uint8_t(*rows)[PH_LAYERS][PH_TOP_K] = malloc(N * sizeof *rows);
    test_rand rng = {5};
    assert_non_null(rows);
    half_life = 1;
    ph_random_rows(&rng, rows, N);
    policy_host *h = ph_open(fw, &half_life, 5, false);
    const uint8_t(*in)[PH_LAYERS][PH_TOP_K] = (const uint8_t(*)[PH_LAYERS][PH_TOP_K])rows;
    ph_pass(h, in, PROMPT, NULL);
    for (uint32_t r = PROMPT; r < N; r++)
        ph_pass(h, in + r, 1, r > N - 200 ? check : NULL);
    for (uint32_t i = 0; i < PH_ALL; i++) {
        const double s = fw->score(h->self, i / PH_EXPERTS, i % PH_EXPERTS);
        assert_true(!isnan(s) && s < N);
    }
    ph_close(h);
    free(rows);
}

static int load(void **state)
{
    (void)state;
    fw = test_component("expert-policy-frequency_weighted", "colibri_expert_policy_frequency_weighted",
                        COLIBRI_IFACE_EXPERT_POLICY);
    half_life = fw->params[0].value;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(against_history),
        cmocka_unit_test(repeatable),
        cmocka_unit_test(stays_in_range),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
