/* Expert policy lru: scripted victims, and the whole history read backwards. */
#include "support/component.h"
#include "support/policy_host.h"

static const struct colibri_expert_policy *lru;

/* Time of the last use, tokens first, then layers; -1: never. */
static long last_use(const policy_host *h, uint32_t expert)
{
    const uint32_t layer = expert / PH_EXPERTS;
    for (uint32_t r = h->routed_rows[layer]; r-- > 0;)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS)
                return (long)r * PH_LAYERS + (long)layer;
    return -1;
}

static void check(const policy_host *h, uint32_t layer, uint32_t victim, const bool *candidate)
{
    (void)layer;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (candidate[i]) {
            assert_true(last_use(h, victim) <= last_use(h, i));
            if (last_use(h, victim) == last_use(h, i))
                assert_true(victim <= i);
        }
}

static void against_history(void **state)
{
    (void)state;
    ph_random_test(lru, NULL, check);
}

static void repeatable(void **state)
{
    (void)state;
    ph_repeatable(lru, NULL, 0);
    ph_prefetch_survives(lru, NULL);
}

static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, {{2, 3}, {0, 1}, {0, 1}}, /* four slots: layer 0 is full */
        {{1, 4}, {0, 1}, {0, 1}},                           /* 0 leaves, the only one older than 2 and 3 */
        {{5, 6}, {0, 1}, {0, 1}},                           /* 2 and 3 */
        {{7, 1}, {0, 1}, {0, 1}},                           /* 4 */
    };
    static const uint16_t expected[] = {0, 2, 3, 4};
    policy_host *h = ph_open(lru, NULL, 4, false);
    for (uint32_t i = 0; i < 5; i++)
        ph_pass(h, token + i, 1, NULL);
    assert_int_equal(h->n_victims, 4);
    assert_memory_equal(h->victim, expected, sizeof expected);
    char text[128] = "";
    lru->explain(h->self, 0, 3, text, sizeof text);
    assert_string_equal(text, "lru: last used 3 tokens ago");
    lru->explain(h->self, 0, 11, text, sizeof text);
    assert_string_equal(text, "lru: never used");

    /* A prompt in one pass: the order is that of its rows, not of expert numbers. */
    static const uint8_t prompt[][PH_LAYERS][PH_TOP_K] = {
        {{3, 2}, {0, 1}, {0, 1}}, {{1, 0}, {0, 1}, {0, 1}}, {{3, 0}, {0, 1}, {0, 1}}};
    static const uint8_t after[][PH_LAYERS][PH_TOP_K] = {{{8, 9}, {0, 1}, {0, 1}}};
    static const uint16_t then[] = {2, 1};
    ph_reset(h);
    ph_pass(h, prompt, 3, NULL);
    ph_pass(h, after, 1, NULL);
    assert_int_equal(h->n_victims, 2);
    assert_memory_equal(h->victim, then, sizeof then);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    lru = test_component("expert-policy-lru", "colibri_expert_policy_lru", COLIBRI_IFACE_EXPERT_POLICY);
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
