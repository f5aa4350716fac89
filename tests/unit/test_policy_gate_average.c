/* Expert policy gate-average: scripted victims, and the decayed sum of gate weights over the whole history. */
#include "support/component.h"
#include "support/policy_twin.h"

#include <math.h>

static const struct colibri_expert_policy *average;
static double half_life;

static double naive(const policy_host *h, uint32_t expert)
{
    const uint32_t layer = expert / PH_EXPERTS;
    double sum = 0;
    for (uint32_t r = 0; r < h->routed_rows[layer]; r++)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS)
                sum += (double)ph_gate(r, layer, k) * ph_decay(h->n_rows - r, half_life);
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
    const double lives[] = {32, 1, 500};
    for (int i = 0; i < 3; i++) {
        half_life = lives[i];
        ph_random_test(average, i ? &half_life : NULL, check);
    }
}

static void reset(void **state)
{
    (void)state;
    twin_reset(average, NULL);
}

static void route(void *self, uint32_t a, uint32_t b, float gate_a, float gate_b)
{
    const uint32_t ids[] = {a, b}, rows[] = {1, 1};
    const float gates[] = {gate_a, gate_b};
    const struct colibri_step step = {sizeof step, COLIBRI_PHASE_DECODE, 0, 1, 1};
    const struct colibri_route r = {.struct_size = sizeof r,
                                    .n_rows = 1,
                                    .top_k = 2,
                                    .ids = ids,
                                    .gates = gates,
                                    .n_union = 2,
                                    .union_ids = ids,
                                    .union_rows = rows};
    average->on_step(self, &step);
    average->on_route(self, &r);
}

/* A strong use weighs more than two weak ones; weights that are not numbers above 0 weigh nothing. */
static void scripted(void **state)
{
    (void)state;
    const double life = 1000000;
    policy_host *h = ph_open(average, &life, 4, false);
    route(h->self, 0, 1, 0.75F, 0.25F);
    route(h->self, 1, 2, 0.25F, 0.125F);
    assert_true(average->score(h->self, 0, 0) > average->score(h->self, 0, 1));
    assert_true(average->score(h->self, 0, 1) > average->score(h->self, 0, 2));
    route(h->self, 3, 4, NAN, -1.0F);
    route(h->self, 5, 6, INFINITY, 0.0F);
    for (uint32_t e = 3; e < 8; e++)
        assert_true(isinf(average->score(h->self, 0, e)) && average->score(h->self, 0, e) < 0);
    ph_close(h);
    /* One token of half-life: 0.5 * 0.75, and after another token half of it. */
    const double one = 1;
    char text[128] = "";
    h = ph_open(average, &one, 4, false);
    route(h->self, 0, 1, 0.75F, 0.25F);
    average->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "gate-average: 0.375 (half-life 1 tokens)");
    route(h->self, 1, 2, 0.75F, 0.25F);
    average->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "gate-average: 0.1875 (half-life 1 tokens)");
    average->explain(h->self, 0, 1, text, sizeof text);
    assert_string_equal(text, "gate-average: 0.4375 (half-life 1 tokens)");
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    average =
        test_component("expert-policy-gate_average", "colibri_expert_policy_gate_average", COLIBRI_IFACE_EXPERT_POLICY);
    half_life = average->params[0].value;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(against_history),
        cmocka_unit_test(reset),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
