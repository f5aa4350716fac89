/* Expert cache: what was fetched ahead stays until its layer's turn has come, whatever the policy thinks of it, with a
 * heap and without. */
#include "support.h"

#include <stdlib.h>

#include "store/cache.h"

enum { LAYERS = 2, EXPERTS = 16 };

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    static int self;
    (void)config;
    (void)why;
    (void)why_size;
    return &self;
}

static void nothing(void *self)
{
    (void)self;
}

/* Low numbers leave first. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    (void)layer;
    return expert;
}

static clb_cache *open_cache(struct colibri_expert_policy *policy, uint32_t slots, bool heap)
{
    static const uint32_t pool_of[LAYERS] = {0};
    static const uint64_t bytes[LAYERS] = {4096, 4096};
    *policy = (struct colibri_expert_policy){.struct_size = sizeof *policy,
                                             .flags = heap ? COLIBRI_POLICY_SCORE_RISES : 0,
                                             .name = "test",
                                             .create = create,
                                             .destroy = nothing,
                                             .reset = nothing,
                                             .score = score};
    const clb_cache_options options = {.n_layers = LAYERS,
                                       .n_experts = EXPERTS,
                                       .top_k = 2,
                                       .pool_of = pool_of,
                                       .n_pools = 1,
                                       .pool_slots = &slots,
                                       .expert_bytes = bytes,
                                       .policy = policy};
    clb_cache *cache = NULL;
    clb_error err = {0};
    assert_ok(clb_cache_open(&options, &cache, &err), &err);
    return cache;
}

static void visit(clb_cache *cache, uint32_t layer, uint32_t a, uint32_t b)
{
    const uint32_t ids[2] = {a, b}, rows[2] = {1, 1};
    const float gates[2] = {0.5F, 0.5F};
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = 1,
                                        .top_k = 2,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = 2,
                                        .union_ids = ids,
                                        .union_rows = rows};
    clb_cache_route(cache, &route);
    uint32_t slot[2];
    for (int i = 0; i < 2; i++) {
        slot[i] = clb_cache_find(cache, layer, ids[i]);
        if (slot[i] != CLB_NO_SLOT)
            clb_cache_take(cache, slot[i]);
    }
    for (int i = 0; i < 2; i++)
        if (slot[i] == CLB_NO_SLOT) {
            slot[i] = clb_cache_place(cache, layer, ids[i], COLIBRI_CAUSE_DEMAND);
            assert_int_not_equal(slot[i], CLB_NO_SLOT);
            clb_cache_arrived(cache, slot[i]);
        }
    for (int i = 0; i < 2; i++)
        clb_cache_unpin(cache, slot[i]);
}

static void fetch_ahead(clb_cache *cache, uint32_t layer, uint32_t expert)
{
    const uint32_t slot = clb_cache_place(cache, layer, expert, COLIBRI_CAUSE_PREFETCH);
    assert_int_not_equal(slot, CLB_NO_SLOT);
    clb_cache_arrived(cache, slot);
}

static bool here(const clb_cache *cache, uint32_t layer, uint32_t expert)
{
    return clb_cache_find(cache, layer, expert) != CLB_NO_SLOT;
}

static void waits_for_its_turn(void **state)
{
    (void)state;
    for (int heap = 0; heap < 2; heap++) {
        struct colibri_expert_policy policy;
        clb_cache *cache = open_cache(&policy, 4, heap);
        visit(cache, 0, 5, 6);
        fetch_ahead(cache, 1, 0);
        fetch_ahead(cache, 1, 1); /* full; by score the guesses would leave first */
        visit(cache, 0, 7, 8);
        assert_true(here(cache, 1, 0) && here(cache, 1, 1));
        assert_true(here(cache, 0, 7) && here(cache, 0, 8) && !here(cache, 0, 5) && !here(cache, 0, 6));
        /* Its turn: 0 is used, 1 is not; 9 takes the slot of 1, which is no longer spared. */
        visit(cache, 1, 0, 9);
        assert_true(here(cache, 1, 0) && here(cache, 1, 9) && !here(cache, 1, 1));
        assert_int_equal(cache->stats.prefetch_useful, 1);
        assert_int_equal(cache->stats.prefetch_wasted, 1);
        visit(cache, 0, 10, 11); /* nothing is spared: 0 and 7 leave */
        assert_true(!here(cache, 1, 0) && !here(cache, 0, 7) && here(cache, 0, 8) && here(cache, 1, 9));
        assert_int_equal(cache->stats.bad_answers, 0);
        clb_cache_close(cache);
    }
}

/* Demand takes the slot of a guess if nothing else is left; another guess does not. */
static void last_resort(void **state)
{
    (void)state;
    for (int heap = 0; heap < 2; heap++) {
        struct colibri_expert_policy policy;
        clb_cache *cache = open_cache(&policy, 2, heap);
        fetch_ahead(cache, 1, 3);
        fetch_ahead(cache, 1, 4);
        assert_int_equal(clb_cache_place(cache, 1, 5, COLIBRI_CAUSE_PREFETCH), CLB_NO_SLOT);
        visit(cache, 0, 1, 2);
        assert_true(here(cache, 0, 1) && here(cache, 0, 2));
        clb_cache_close(cache);
        /* A guess that its layer did not want may make room for another one; after a reset as well. */
        cache = open_cache(&policy, 3, heap);
        for (int again = 0; again < 2; again++) {
            for (uint32_t e = 3; e < 6; e++)
                fetch_ahead(cache, 1, e);
            assert_int_equal(clb_cache_place(cache, 0, 9, COLIBRI_CAUSE_PREFETCH), CLB_NO_SLOT);
            visit(cache, 1, 4, 5);
            fetch_ahead(cache, 0, 9);
            assert_true(!here(cache, 1, 3) && here(cache, 1, 4) && here(cache, 1, 5));
            clb_cache_reset(cache);
        }
        assert_int_equal(cache->stats.bad_answers, 0);
        clb_cache_close(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(waits_for_its_turn), cmocka_unit_test(last_resort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
