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

/* The ids of n / 2 rows, all different. */
static void visit(clb_cache *cache, uint32_t layer, uint32_t n, const uint32_t *ids)
{
    static const uint32_t rows[4] = {1, 1, 1, 1};
    static const float gates[4] = {0.5F, 0.5F, 0.5F, 0.5F};
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = n / 2,
                                        .top_k = 2,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = n,
                                        .union_ids = ids,
                                        .union_rows = rows};
    clb_cache_route(cache, &route);
    uint32_t slot[4];
    for (uint32_t i = 0; i < n; i++) {
        slot[i] = clb_cache_find(cache, layer, ids[i]);
        if (slot[i] != CLB_NO_SLOT)
            clb_cache_take(cache, slot[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (slot[i] == CLB_NO_SLOT) {
            slot[i] = clb_cache_place(cache, layer, ids[i], COLIBRI_CAUSE_DEMAND);
            assert_int_not_equal(slot[i], CLB_NO_SLOT);
            clb_cache_arrived(cache, slot[i]);
        }
    for (uint32_t i = 0; i < n; i++)
        clb_cache_unpin(cache, slot[i]);
}

static void visit_two(clb_cache *cache, uint32_t layer, uint32_t a, uint32_t b)
{
    const uint32_t ids[2] = {a, b};
    visit(cache, layer, 2, ids);
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
        visit_two(cache, 0, 5, 6);
        fetch_ahead(cache, 1, 0);
        fetch_ahead(cache, 1, 1); /* full; by score the guesses would leave first */
        visit_two(cache, 0, 7, 8);
        assert_true(here(cache, 1, 0) && here(cache, 1, 1));
        assert_true(here(cache, 0, 7) && here(cache, 0, 8) && !here(cache, 0, 5) && !here(cache, 0, 6));
        /* Its turn: 0 is used, 1 is not; 9 takes the slot of 1, which is no longer spared. */
        visit_two(cache, 1, 0, 9);
        assert_true(here(cache, 1, 0) && here(cache, 1, 9) && !here(cache, 1, 1));
        assert_int_equal(cache->stats.prefetch_useful, 1);
        assert_int_equal(cache->stats.prefetch_wasted, 1);
        visit_two(cache, 0, 10, 11); /* nothing is spared: 0 and 7 leave */
        assert_true(!here(cache, 1, 0) && !here(cache, 0, 7) && here(cache, 0, 8) && here(cache, 1, 9));
        assert_int_equal(cache->stats.bad_answers, 0);
        clb_cache_close(cache);
    }
}

/* Demand takes the slots of guesses if nothing else is left. */
static void last_resort(void **state)
{
    (void)state;
    static const uint32_t four[] = {1, 2, 5, 6};
    for (int heap = 0; heap < 2; heap++) {
        struct colibri_expert_policy policy;
        clb_cache *cache = open_cache(&policy, 4, heap);
        fetch_ahead(cache, 1, 3);
        fetch_ahead(cache, 1, 4);
        visit(cache, 0, 4, four);
        for (int i = 0; i < 4; i++)
            assert_true(here(cache, 0, four[i]));
        assert_int_equal(cache->stats.prefetch_wasted, 2);
        assert_int_equal(cache->stats.bad_answers, 0);
        clb_cache_close(cache);
    }
}

/* A guess that its layer did not want may make room for another one; after a reset as well. */
static void makes_room(void **state)
{
    (void)state;
    for (int heap = 0; heap < 2; heap++) {
        struct colibri_expert_policy policy;
        clb_cache *cache = open_cache(&policy, 4, heap);
        for (int again = 0; again < 2; again++) {
            fetch_ahead(cache, 1, 3);
            fetch_ahead(cache, 1, 4);
            visit_two(cache, 1, 4, 5);
            fetch_ahead(cache, 0, 1); /* the fourth slot */
            fetch_ahead(cache, 0, 2); /* 1 has the lower score, but waits */
            assert_true(here(cache, 0, 1) && here(cache, 0, 2) && here(cache, 1, 4) && here(cache, 1, 5));
            assert_true(!here(cache, 1, 3));
            clb_cache_reset(cache);
        }
        assert_int_equal(cache->stats.bad_answers, 0);
        clb_cache_close(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(waits_for_its_turn), cmocka_unit_test(last_resort),
                                       cmocka_unit_test(makes_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
