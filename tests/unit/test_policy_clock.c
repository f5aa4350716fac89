/* Expert policy clock: scripted victims, and the same rule as a queue: who has a second chance goes to its end. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *second_chance;
static uint32_t queue[PC_MOST_ALL], n_queue; /* front: where the hand is */
static bool used[PC_MOST_ALL];

static void rule_reset(pc_run *run)
{
    (void)run;
    n_queue = 0;
}

static void take_out(uint32_t at)
{
    memmove(queue + at, queue + at + 1, (--n_queue - at) * sizeof queue[0]);
}

static void rule_insert(pc_run *run, uint32_t e)
{
    (void)run;
    queue[n_queue++] = e;
    used[e] = false;
}

static void rule_hit(pc_run *run, uint32_t e)
{
    (void)run;
    used[e] = true;
}

static void rule_evict(pc_run *run, uint32_t e)
{
    (void)run;
    for (uint32_t i = 0; i < n_queue; i++)
        if (queue[i] == e)
            take_out(i);
}

static uint32_t rule_victim(pc_run *run, const bool *candidate)
{
    (void)run;
    for (uint32_t i = 0; i < 3 * PC_MOST_ALL; i++) {
        const uint32_t e = queue[0];
        take_out(0);
        queue[n_queue++] = e;
        if (candidate[e] && !used[e])
            return e; /* gone at the next event */
        if (candidate[e])
            used[e] = false;
    }
    return UINT32_MAX;
}

static const pc_rule rule = {
    .reset = rule_reset, .hit = rule_hit, .insert = rule_insert, .evict = rule_evict, .victim = rule_victim};

static void against_queue(void **state)
{
    (void)state;
    pc_random_test(second_chance, &rule, NULL, 12);
}

static void scripted(void **state)
{
    (void)state;
    assert_string_equal(pc_script(second_chance, 3, "ABCD"), "A");
    assert_string_equal(pc_script(second_chance, 3, "ABCAD"), "B");   /* A has its second chance */
    assert_string_equal(pc_script(second_chance, 3, "ABCADE"), "BC"); /* and does not need another one yet */
    assert_string_equal(pc_script(second_chance, 3, "ABCADEF"), "BCA");
    assert_string_equal(pc_script(second_chance, 3, "ABCABCD"), "A"); /* all had one */
}

static int load(void **state)
{
    (void)state;
    second_chance = test_component("expert-policy-clock", "colibri_expert_policy_clock", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(against_queue)};
    return cmocka_run_group_tests(tests, load, NULL);
}
