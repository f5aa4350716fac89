/* Expert policy lfu: scripted victims, and a count over the whole history. */
#include "support/component.h"
#include "support/policy_host.h"

static const struct colibri_expert_policy *lfu;

static void count(const policy_host *h, uint32_t expert, uint32_t *uses, uint32_t *last)
{
    const uint32_t layer = expert / PH_EXPERTS;
    *uses = *last = 0;
    for (uint32_t r = 0; r < h->routed_rows[layer]; r++)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS) {
                ++*uses;
                *last = r + 1;
            }
}

static void check(const policy_host *h, uint32_t layer, uint32_t victim, const bool *candidate)
{
    uint32_t uses, last, its_uses, its_last;
    (void)layer;
    count(h, victim, &uses, &last);
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (candidate[i]) {
            count(h, i, &its_uses, &its_last);
            assert_true(uses <= its_uses);
            if (uses == its_uses)
                assert_true(last < its_last || (last == its_last && victim <= i));
        }
}

static void against_history(void **state)
{
    (void)state;
    ph_random_test(lfu, NULL, check);
}

static void repeatable(void **state)
{
    (void)state;
    ph_repeatable(lfu, NULL, 0);
}

static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {0, 1}, {0, 1}}, {{0, 2}, {0, 1}, {0, 1}}, {{0, 3}, {0, 1}, {0, 1}},
        {{0, 4}, {0, 1}, {0, 1}}, /* 2: used once like 3, but longer ago */
        {{2, 5}, {0, 1}, {0, 1}}, /* 2 was used before it left: that still counts. 3 and 4 go */
        {{6, 0}, {0, 1}, {0, 1}}, /* 5 has one use, 2 has two */
    };
    static const uint16_t expected[] = {2, 3, 4, 5};
    policy_host *h = ph_open(lfu, NULL, 4, false);
    for (uint32_t i = 0; i < 7; i++)
        ph_pass(h, token + i, 1, NULL);
    assert_int_equal(h->n_victims, 4);
    assert_memory_equal(h->victim, expected, sizeof expected);
    char text[128] = "";
    lfu->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "lfu: used by 6 tokens");

    /* Rows of one pass count one by one. */
    static const uint8_t prompt[][PH_LAYERS][PH_TOP_K] = {
        {{3, 2}, {0, 1}, {0, 1}}, {{2, 1}, {0, 1}, {0, 1}}, {{2, 0}, {0, 1}, {0, 1}}, {{3, 0}, {0, 1}, {0, 1}}};
    static const uint8_t after[][PH_LAYERS][PH_TOP_K] = {{{8, 9}, {0, 1}, {0, 1}}};
    static const uint16_t then[] = {1, 0}; /* 1 use; then 0 and 3 with two each, in the same row: the lower number */
    ph_reset(h);
    ph_pass(h, prompt, 4, NULL);
    ph_pass(h, after, 1, NULL);
    assert_int_equal(h->n_victims, 2);
    assert_memory_equal(h->victim, then, sizeof then);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    lfu = test_component("expert-policy-lfu", "colibri_expert_policy_lfu", COLIBRI_IFACE_EXPERT_POLICY);
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
