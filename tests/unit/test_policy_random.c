/* Expert policy random: even odds, distinct victims, the same ones for the same seed. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *rnd;

static void *open_seed(uint64_t seed)
{
    char why[64];
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = 1, .n_experts = 16, .top_k = 1, .n_slots = 4, .seed = seed};
    void *self = rnd->create(&config, why, sizeof why);
    assert_non_null(self);
    return self;
}

static void even(void **state)
{
    (void)state;
    enum { N = 7, DRAWS = 70000 };
    struct colibri_expert_ref candidates[N] = {{0, 0}};
    uint32_t count[N] = {0}, pick[3];
    void *self = open_seed(1);
    for (uint32_t i = 0; i < DRAWS; i++) {
        assert_int_equal(rnd->pick_victims(self, candidates, N, 3, pick), COLIBRI_OK);
        assert_true(pick[0] < N && pick[1] < N && pick[2] < N);
        assert_true(pick[0] != pick[1] && pick[0] != pick[2] && pick[1] != pick[2]);
        for (uint32_t j = 0; j < 3; j++)
            count[pick[j]]++;
    }
    for (uint32_t i = 0; i < N; i++) /* 30000 expected, deviation 131 */
        assert_true(count[i] > 29300 && count[i] < 30700);
    assert_int_equal(rnd->pick_victims(self, candidates, N, N, count), COLIBRI_OK); /* all of them */
    uint32_t sum = 0;
    for (uint32_t i = 0; i < N; i++)
        sum |= 1u << count[i];
    assert_int_equal(sum, (1u << N) - 1);
    assert_true(rnd->pick_victims(self, candidates, 2, 3, pick) != COLIBRI_OK);
    rnd->destroy(self);
}

static void seeded(void **state)
{
    (void)state;
    const struct colibri_expert_ref candidates[100] = {{0, 0}};
    void *a = open_seed(5), *b = open_seed(5), *c = open_seed(6);
    uint32_t x, y, z, differ = 0, first = 0;
    for (uint32_t i = 0; i < 100; i++) {
        rnd->pick_victims(a, candidates, 100, 1, &x);
        rnd->pick_victims(b, candidates, 100, 1, &y);
        rnd->pick_victims(c, candidates, 100, 1, &z);
        assert_int_equal(x, y);
        differ += x != z;
        if (i == 0)
            first = x;
    }
    assert_true(differ > 80);
    rnd->reset(a);
    rnd->pick_victims(a, candidates, 100, 1, &x);
    assert_int_equal(x, first);
    rnd->destroy(a);
    rnd->destroy(b);
    rnd->destroy(c);
}

static void in_the_cache(void **state)
{
    (void)state;
    pc_random_test(rnd, NULL, NULL, 12); /* no rule: victims are candidates, and the same after a reset */
}

static int load(void **state)
{
    (void)state;
    rnd = test_component("expert-policy-random", "colibri_expert_policy_random", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(even), cmocka_unit_test(seeded),
                                       cmocka_unit_test(in_the_cache)};
    return cmocka_run_group_tests(tests, load, NULL);
}
