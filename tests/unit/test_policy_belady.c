/* Expert policies belady and belady-bypass: against the rule, and against the fewest misses that any order of decisions
 * can have, found by trying all of them. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *belady, *bypass;

static uint32_t farthest(pc_run *run, const bool *candidate)
{
    uint32_t best = UINT32_MAX;
    uint64_t best_next = 0;
    for (uint32_t i = 0; i < run->n_layers * run->n_experts; i++) {
        const uint64_t next = candidate[i] ? pc_next_use(run, i / run->n_experts, i % run->n_experts) : 0;
        if (candidate[i] && (best == UINT32_MAX || next > best_next)) {
            best = i;
            best_next = next;
        }
    }
    return best;
}

static const pc_rule rule = {.victim = farthest};

static void against_future(void **state)
{
    (void)state;
    pc_random_test(belady, &rule, NULL, 1);
}

/* Fewest misses from row r on with this set of residents; -1: not yet known. One layer, one expert per row. */
typedef struct search {
    const pc_run *run;
    uint32_t n_slots;
    bool may_bypass;
    int known[32][1 << 6];
} search;

static int fewest(search *s, uint32_t r, uint32_t residents)
{
    if (r == s->run->n_rows)
        return 0;
    int *best = &s->known[r][residents];
    const uint32_t e = s->run->rows[r];
    if (*best >= 0)
        return *best;
    if (residents & (1u << e))
        return *best = fewest(s, r + 1, residents);
    int least = 1000;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 6; i++)
        n += residents >> i & 1;
    if (n < s->n_slots)
        least = fewest(s, r + 1, residents | 1u << e);
    for (uint32_t i = 0; i < 6; i++)
        if (residents >> i & 1) {
            const int with = fewest(s, r + 1, (residents & ~(1u << i)) | 1u << e);
            least = with < least ? with : least;
        }
    if (s->may_bypass) {
        const int without = fewest(s, r + 1, residents);
        least = without < least ? without : least;
    }
    return *best = 1 + least;
}

static void optimal(void **state)
{
    (void)state;
    uint32_t bypass_helped = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        test_rand rng = {seed};
        pc_run run = {.policy = belady, .n_layers = 1, .n_experts = 6, .top_k = 1, .n_slots = 3};
        pc_random_rows(&run, &rng, 30);
        search *s = malloc(sizeof *s);
        assert_non_null(s);
        *s = (search){.run = &run, .n_slots = 3};
        memset(s->known, -1, sizeof s->known);
        const int without = fewest(s, 0, 0);
        pc_open(&run, NULL);
        pc_passes(&run, &rng, 1);
        assert_int_equal(run.misses, without);
        pc_close(&run);

        /* Three slots that keep and one that does not. */
        run = (pc_run){.policy = bypass,
                       .n_layers = 1,
                       .n_experts = 6,
                       .top_k = 1,
                       .n_slots = 4,
                       .rows = run.rows,
                       .n_rows = run.n_rows};
        assert_int_equal(clb_cache_transit_slots(bypass, 4, 1), 1);
        s->may_bypass = true;
        memset(s->known, -1, sizeof s->known);
        const int with = fewest(s, 0, 0);
        pc_open(&run, NULL);
        pc_passes(&run, &rng, 1);
        assert_int_equal(run.misses, with);
        assert_true(with <= without);
        bypass_helped += with < without;
        pc_close(&run);
        free(s);
        free(run.rows);
    }
    assert_true(bypass_helped > 20);
}

/* Several layers and two experts at a time: who stays and who passes through, by a look at everything. */
static void bypassed(void **state)
{
    (void)state;
    for (uint32_t slots = 5; slots < 30; slots += 4) {
        test_rand rng = {slots};
        pc_run run = {.policy = bypass, .n_layers = 3, .n_experts = 12, .top_k = 2, .n_slots = slots};
        pc_random_rows(&run, &rng, 600);
        pc_open(&run, NULL);
        pc_passes(&run, &rng, 1);
        assert_true(run.cache->stats.bypassed > 10);
        const uint64_t digest = run.digest, misses = run.misses;
        pc_reset(&run);
        pc_passes(&run, &rng, 1);
        assert_true(run.digest == digest && run.misses == misses);
        pc_close(&run);
        free(run.rows);
    }
}

static void no_future(void **state)
{
    (void)state;
    char why[128] = "";
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = 1, .n_experts = 4, .top_k = 1, .n_slots = 2};
    assert_null(belady->create(&config, why, sizeof why));
    assert_non_null(strstr(why, "replay"));
    assert_null(bypass->create(&config, why, sizeof why));
    assert_true(belady->flags & bypass->flags & COLIBRI_POLICY_ORACLE);
}

static int load(void **state)
{
    (void)state;
    belady = test_component("expert-policy-belady", "colibri_expert_policy_belady", COLIBRI_IFACE_EXPERT_POLICY);
    bypass = test_component("expert-policy-belady_bypass", "colibri_expert_policy_belady_bypass",
                            COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_future), cmocka_unit_test(optimal),
                                       cmocka_unit_test(bypassed), cmocka_unit_test(no_future)};
    return cmocka_run_group_tests(tests, load, NULL);
}
