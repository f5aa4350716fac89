/* Expert policy fifo: scripted victims, and a plain list of arrivals. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *fifo;
static uint32_t order[PC_MOST_ALL], n_order; /* oldest first */

static void rule_reset(pc_run *run)
{
    (void)run;
    n_order = 0;
}

static void rule_insert(pc_run *run, uint32_t e)
{
    (void)run;
    order[n_order++] = e;
}

static void rule_evict(pc_run *run, uint32_t e)
{
    uint32_t at = 0;
    (void)run;
    while (order[at] != e)
        at++;
    memmove(order + at, order + at + 1, (--n_order - at) * sizeof order[0]);
}

static uint32_t rule_victim(pc_run *run, const bool *candidate)
{
    (void)run;
    for (uint32_t i = 0; i < n_order; i++)
        if (candidate[order[i]])
            return order[i];
    return UINT32_MAX;
}

static const pc_rule rule = {.reset = rule_reset, .insert = rule_insert, .evict = rule_evict, .victim = rule_victim};

static void against_list(void **state)
{
    (void)state;
    pc_random_test(fifo, &rule, NULL, 12);
}

static void scripted(void **state)
{
    (void)state;
    assert_string_equal(pc_script(fifo, 3, "ABCADAE"), "ABC"); /* A was used last, and leaves */
    assert_string_equal(pc_script(fifo, 3, "ABCBBBDE"), "AB");
    assert_true(fifo->flags & COLIBRI_POLICY_SCORE_RISES);
}

static int load(void **state)
{
    (void)state;
    fifo = test_component("expert-policy-fifo", "colibri_expert_policy_fifo", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(against_list)};
    return cmocka_run_group_tests(tests, load, NULL);
}
