/* Expert policy mru: scripted victims, and the last use of every expert. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *mru;
static long last[PC_MOST_ALL]; /* -1: never */

static void rule_reset(pc_run *run)
{
    (void)run;
    for (uint32_t i = 0; i < PC_MOST_ALL; i++)
        last[i] = -1;
}

static void rule_visit(pc_run *run)
{
    for (uint32_t r = run->first; r < run->first + run->n; r++)
        for (uint32_t k = 0; k < run->top_k; k++)
            last[run->layer * run->n_experts + pc_row(run, r, run->layer)[k]] = (long)(r * run->n_layers + run->layer);
}

static uint32_t rule_victim(pc_run *run, const bool *candidate)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < run->n_layers * run->n_experts; i++)
        if (candidate[i] && (best == UINT32_MAX || last[i] > last[best]))
            best = i;
    return best;
}

static const pc_rule rule = {.reset = rule_reset, .visit = rule_visit, .victim = rule_victim};

static void against_history(void **state)
{
    (void)state;
    pc_random_test(mru, &rule, NULL, 12);
}

static void scripted(void **state)
{
    (void)state;
    assert_string_equal(pc_script(mru, 3, "ABCDABE"), "CB");
    /* Round and round a set of four: three slots miss only every third time. */
    assert_int_equal(strlen(pc_script(mru, 3, "ABCDABCDABCDABCD")), 5);
}

static int load(void **state)
{
    (void)state;
    mru = test_component("expert-policy-mru", "colibri_expert_policy_mru", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(against_history)};
    return cmocka_run_group_tests(tests, load, NULL);
}
