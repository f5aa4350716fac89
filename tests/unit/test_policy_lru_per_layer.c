/* Expert policy lru-per-layer: scripted victims, and shares counted from what is here. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *per_layer;

static long last_use(const policy_host *h, uint32_t expert)
{
    const uint32_t layer = expert / PH_EXPERTS;
    for (uint32_t r = h->routed_rows[layer]; r-- > 0;)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS)
                return (long)r * PH_LAYERS + (long)layer;
    return -1;
}

/* What a layer would hold above its share once the missing expert of layer `at` is here. */
static uint32_t excess(const policy_host *h, uint32_t at, uint32_t layer)
{
    const uint32_t slots = h->global ? h->slots : h->slots * PH_LAYERS;
    const uint32_t share = slots / PH_LAYERS + (layer < slots % PH_LAYERS);
    uint32_t n = layer == at;
    for (uint32_t e = 0; e < PH_EXPERTS; e++)
        n += h->resident[layer * PH_EXPERTS + e];
    return n > share ? n - share : 0;
}

static void check(const policy_host *h, uint32_t at, uint32_t victim, const bool *candidate)
{
    const uint32_t its = excess(h, at, victim / PH_EXPERTS);
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (candidate[i]) {
            assert_true(its >= excess(h, at, i / PH_EXPERTS));
            if (its == excess(h, at, i / PH_EXPERTS)) {
                assert_true(last_use(h, victim) <= last_use(h, i));
                assert_true(last_use(h, victim) < last_use(h, i) || victim <= i);
            }
        }
}

static void against_history(void **state)
{
    (void)state;
    ph_random_test(per_layer, NULL, check);
}

static void repeatable(void **state)
{
    (void)state;
    twin_reset(per_layer, NULL);
}

/* Eight slots for three layers: 3, 3, 2. */
static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, {{2, 3}, {0, 1}, {0, 1}}, /* full: layer 0 has 4, one too many */
        {{2, 3}, {0, 4}, {0, 1}}, /* layer 1 needs a third, which it may have: layer 0's oldest, 0, leaves */
        {{2, 3}, {5, 6}, {0, 1}}, /* layer 1 has its share: its own 1 (13), then 0 (12) */
        {{2, 4}, {5, 6}, {2, 3}}, /* layer 0's 1, though it is older than anything else; layer 2's 0 and 1 (24, 25) */
    };
    static const uint16_t expected[] = {0, 13, 12, 1, 24, 25};
    policy_host *h = ph_open(per_layer, NULL, 8, true);
    for (uint32_t i = 0; i < 5; i++)
        ph_pass(h, token + i, 1, NULL);
    twin_victims(h, expected, 6);
    char text[128] = "";
    per_layer->explain(h->self, 0, 3, text, sizeof text);
    assert_string_equal(text, "lru-per-layer: its layer holds 3 of a share of 3; last used 1 tokens ago");
    /* Fewer slots: two each; the layers that hold three give up one each, the routed one first. */
    per_layer->rebudget(h->self, 6, NULL);
    per_layer->explain(h->self, 1, 11, text, sizeof text);
    assert_string_equal(text, "lru-per-layer: its layer holds 3 of a share of 2; never used");
    static const uint8_t more[][PH_LAYERS][PH_TOP_K] = {{{2, 4}, {7, 6}, {2, 3}}};
    ph_pass(h, more, 1, NULL);
    assert_int_equal(h->n_victims, 7);
    assert_int_equal(h->victim[6], 12 + 4);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    per_layer = test_component("expert-policy-lru_per_layer", "colibri_expert_policy_lru_per_layer",
                               COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(against_history),
        cmocka_unit_test(repeatable),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
