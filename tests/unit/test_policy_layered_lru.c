/* Expert policy layered-lru: scripted victims, and ages from the whole history. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *layered;

/* Rows that the expert's layer routed since its last use, or all of them; and how many layers from now it comes. */
static void look(const policy_host *h, uint32_t at, uint32_t expert, uint32_t *age, uint32_t *distance)
{
    const uint32_t layer = expert / PH_EXPERTS;
    *distance = 0;
    for (uint32_t l = (at + 1) % PH_LAYERS; l != layer; l = (l + 1) % PH_LAYERS)
        ++*distance;
    for (*age = 0; *age < h->routed_rows[layer]; ++*age)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[h->routed_rows[layer] - 1 - *age][layer][k] == expert % PH_EXPERTS)
                return;
}

static void check(const policy_host *h, uint32_t at, uint32_t victim, const bool *candidate)
{
    uint32_t age, distance, its_age, its_distance;
    look(h, at, victim, &age, &distance);
    for (uint32_t i = 0; i < PH_ALL; i++) {
        if (!candidate[i])
            continue;
        look(h, at, i, &its_age, &its_distance);
        assert_true(age >= its_age);
        if (age == its_age)
            assert_true(distance > its_distance || (distance == its_distance && victim <= i));
    }
}

static void against_history(void **state)
{
    (void)state;
    ph_random_test(layered, NULL, check);
}

static void repeatable(void **state)
{
    (void)state;
    twin_reset(layered, NULL);
    ph_prefetch_survives(layered, NULL);
}

/* Six slots for the six experts of a token, of which one changes: LRU would evict what comes next, layer after layer.
 */
static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, {{0, 2}, {0, 1}, {0, 1}}, /* layer 0's 1 is the only one that its layer left out */
        {{0, 2}, {0, 3}, {0, 1}},                           /* layer 1's 1 (13) */
        {{4, 5}, {0, 3}, {0, 1}},                           /* layer 0's 0 and 2 */
        {{4, 6}, {0, 3}, {0, 7}},                           /* layer 0's 5, then layer 2's 1 (25) */
        {{7, 8}, {0, 3}, {0, 7}}, /* layer 0's 4 and 6: 4 and 6 were both used in the last token, as were those of
                                   * layers 1 and 2, but layer 0 has had its turn since */
    };
    static const uint16_t expected[] = {1, 13, 0, 2, 5, 25, 4, 6};
    policy_host *h = ph_open(layered, NULL, 6, true);
    for (uint32_t i = 0; i < 6; i++)
        ph_pass(h, token + i, 1, NULL);
    twin_victims(h, expected, 8);
    char text[128] = "";
    layered->explain(h->self, 0, 4, text, sizeof text);
    assert_string_equal(text, "layered-lru: unused for 1 turns of its layer, which comes 1 layers from now");
    ph_close(h);

    /* All used by the layer's last turn: what was just visited comes again last. */
    static const uint8_t wide[][PH_LAYERS][PH_TOP_K] = {{{0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {2, 3}, {0, 1}}};
    h = ph_open(layered, NULL, 6, true);
    ph_pass(h, wide, 1, NULL);
    ph_pass(h, wide + 1, 1, NULL);
    static const uint16_t then[] = {12, 13};
    twin_victims(h, then, 2);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    layered =
        test_component("expert-policy-layered_lru", "colibri_expert_policy_layered_lru", COLIBRI_IFACE_EXPERT_POLICY);
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
