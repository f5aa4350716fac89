/* Expert policy sieve: scripted victims, the figure of the paper, and the rule on a plain array. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *sieve;
static uint32_t order[PC_MOST_ALL], n_order; /* oldest first */
static uint32_t hand;                        /* index in order; n_order: begin at the oldest */
static bool visited[PC_MOST_ALL];

static void rule_reset(pc_run *run)
{
    (void)run;
    n_order = hand = 0;
}

static void rule_insert(pc_run *run, uint32_t e)
{
    (void)run;
    if (hand == n_order)
        hand++; /* past the newest is past the newest still: it begins anew at the oldest */
    order[n_order++] = e;
    visited[e] = false;
}

static void rule_hit(pc_run *run, uint32_t e)
{
    (void)run;
    visited[e] = true;
}

static void rule_evict(pc_run *run, uint32_t e)
{
    (void)run;
    for (uint32_t i = 0; i < n_order; i++)
        if (order[i] == e) {
            memmove(order + i, order + i + 1, (--n_order - i) * sizeof order[0]);
            if (hand > i)
                hand--;
            return;
        }
}

static uint32_t rule_victim(pc_run *run, const bool *candidate)
{
    (void)run;
    for (uint32_t i = 0; i < 3 * PC_MOST_ALL; i++) {
        if (hand >= n_order)
            hand = 0;
        const uint32_t e = order[hand++];
        if (candidate[e] && !visited[e])
            return e;
        if (candidate[e])
            visited[e] = false;
    }
    return UINT32_MAX;
}

static const pc_rule rule = {
    .reset = rule_reset, .hit = rule_hit, .insert = rule_insert, .evict = rule_evict, .victim = rule_victim};

static void against_array(void **state)
{
    (void)state;
    pc_random_test(sieve, &rule, NULL, 12);
}

static void scripted(void **state)
{
    (void)state;
    assert_string_equal(pc_script(sieve, 3, "ABCD"), "A");
    assert_string_equal(pc_script(sieve, 3, "ABCAD"), "B");
    /* The hand goes on towards the newest: after B, C; then D, which clock would keep and let A go. */
    assert_string_equal(pc_script(sieve, 3, "ABCADE"), "BC");
    assert_string_equal(pc_script(sieve, 3, "ABCADEF"), "BCD");
    /* The illustration of the paper (its figure 1): A to G, A, B and G visited, H comes in: the hand is at the oldest.
     */
    assert_string_equal(pc_script(sieve, 7, "ABCDEFGABGH"), "C");
    assert_string_equal(pc_script(sieve, 7, "ABCDEFGABGHADIBJ"), "CEF");
}

static int load(void **state)
{
    (void)state;
    sieve = test_component("expert-policy-sieve", "colibri_expert_policy_sieve", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(against_array)};
    return cmocka_run_group_tests(tests, load, NULL);
}
