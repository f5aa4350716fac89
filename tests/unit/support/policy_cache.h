/* An expert policy under the engine's own host (core/store/cache.h), beside a naive copy of its rule: what the rule
 * says must leave is what leaves, look-up by look-up. The test writes the rule in the plainest way it can. */
#ifndef TEST_POLICY_CACHE_H
#define TEST_POLICY_CACHE_H

#include "component.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "store/cache.h"

enum { PC_MOST_LAYERS = 4, PC_MOST_EXPERTS = 16, PC_MOST_ALL = PC_MOST_LAYERS * PC_MOST_EXPERTS, PC_MOST_ROWS = 8192 };

typedef struct pc_run pc_run;

/* Any may be NULL but victim. e: layer * n_experts + expert. */
typedef struct pc_rule {
    void (*reset)(pc_run *run);
    void (*visit)(pc_run *run);           /* the layer is routed: run->rows[first ... first + n) */
    void (*hit)(pc_run *run, uint32_t e); /* after the wave in which it was found */
    void (*insert)(pc_run *run, uint32_t e);
    void (*evict)(pc_run *run, uint32_t e);
    uint32_t (*victim)(pc_run *run, const bool *candidate);
} pc_rule;

struct pc_run {
    const struct colibri_expert_policy *policy;
    const pc_rule *rule;
    uint32_t n_layers, n_experts, top_k, n_slots;
    clb_cache *cache;
    uint8_t *rows; /* [n_rows][n_layers][top_k] */
    uint32_t n_rows;
    uint32_t first, n, layer; /* of the visit: rows, layer */
    uint64_t step, seed;
    bool resident[PC_MOST_ALL];
    uint64_t victims, misses, lookups;
    uint64_t digest; /* of all victims in order */
};

static inline const uint8_t *pc_row(const pc_run *run, uint32_t row, uint32_t layer)
{
    return run->rows + ((size_t)row * run->n_layers + layer) * run->top_k;
}

/* For rules and policies that know the future; one row per pass. */
static inline uint64_t pc_next_use(void *ctx, uint32_t layer, uint32_t expert)
{
    const pc_run *run = ctx;
    for (uint32_t r = run->first + (layer <= run->layer); r < run->n_rows; r++)
        for (uint32_t k = 0; k < run->top_k; k++)
            if (pc_row(run, r, layer)[k] == expert)
                return (uint64_t)(r - run->first) * run->n_layers + layer - run->layer;
    return UINT64_MAX;
}

static inline void pc_open(pc_run *run, const double *params)
{
    uint32_t pool_of[PC_MOST_LAYERS] = {0};
    uint64_t bytes[PC_MOST_LAYERS];
    clb_error err = {0};
    for (uint32_t l = 0; l < PC_MOST_LAYERS; l++)
        bytes[l] = 1000;
    const clb_cache_options options = {.n_layers = run->n_layers,
                                       .n_experts = run->n_experts,
                                       .top_k = run->top_k,
                                       .pool_of = pool_of,
                                       .n_pools = 1,
                                       .pool_slots = &run->n_slots,
                                       .expert_bytes = bytes,
                                       .policy = run->policy,
                                       .params = params,
                                       .seed = run->seed,
                                       .next_use = run->policy->flags & COLIBRI_POLICY_ORACLE ? pc_next_use : NULL,
                                       .next_use_ctx = run};
    assert_true(run->n_layers <= PC_MOST_LAYERS && run->n_experts <= PC_MOST_EXPERTS);
    if (clb_cache_open(&options, &run->cache, &err))
        fail_msg("%s", err.msg);
    if (run->rule && run->rule->reset)
        run->rule->reset(run);
}

static inline void pc_close(pc_run *run)
{
    assert_true(run->cache->stats.bad_answers == 0);
    clb_cache_close(run->cache);
    run->cache = NULL;
}

static inline void pc_reset(pc_run *run)
{
    clb_cache_reset(run->cache);
    clb_cache_reset_stats(run->cache);
    memset(run->resident, 0, sizeof run->resident);
    run->first = 0;
    run->step = 0;
    run->victims = run->misses = run->lookups = run->digest = 0;
    if (run->rule && run->rule->reset)
        run->rule->reset(run);
}

static inline void pc_place(pc_run *run, uint32_t expert, bool (*needed)[PC_MOST_EXPERTS], const bool *pinned,
                            uint32_t *slot)
{
    const uint32_t all = run->n_layers * run->n_experts, e = run->layer * run->n_experts + expert;
    bool candidate[PC_MOST_ALL] = {false};
    uint32_t n_resident = 0, n_candidates = 0, expected = UINT32_MAX;
    for (uint32_t i = 0; i < all; i++) {
        n_resident += run->resident[i];
        candidate[i] =
            run->resident[i] && !pinned[i] && !(i / run->n_experts == run->layer && (*needed)[i % run->n_experts]);
        n_candidates += candidate[i];
    }
    const uint64_t evictions = run->cache->stats.evictions;
    if (run->rule && n_resident == run->n_slots && n_candidates)
        expected = run->rule->victim(run, candidate);
    *slot = clb_cache_place(run->cache, run->layer, expert, COLIBRI_CAUSE_DEMAND);
    if (*slot == CLB_NO_SLOT)
        return;
    clb_cache_arrived(run->cache, *slot);
    if (run->cache->stats.evictions > evictions) {
        uint32_t left = UINT32_MAX;
        for (uint32_t i = 0; i < all; i++)
            if (run->resident[i] && clb_cache_find(run->cache, i / run->n_experts, i % run->n_experts) == CLB_NO_SLOT)
                left = i;
        assert_true(left != UINT32_MAX && candidate[left]);
        if (run->rule && left != expected)
            fail_msg("row %u, layer %u: %u left instead of %u", run->first, run->layer, left, expected);
        run->resident[left] = false;
        run->victims++;
        run->digest = run->digest * 31 + left;
        if (run->rule && run->rule->evict)
            run->rule->evict(run, left);
    }
    run->misses++;
    if (run->cache->slots[*slot].transit)
        return;
    run->resident[e] = true;
    if (run->rule && run->rule->insert)
        run->rule->insert(run, e);
}

static inline void pc_visit(pc_run *run)
{
    uint32_t ids[64 * 4], rows[PC_MOST_EXPERTS] = {0}, union_ids[PC_MOST_EXPERTS], union_rows[PC_MOST_EXPERTS],
                          n_union = 0;
    float gates[64 * 4] = {0};
    bool needed[PC_MOST_EXPERTS] = {false}, done[PC_MOST_EXPERTS] = {false};
    assert_true(run->n * run->top_k <= 64 * 4);
    for (uint32_t i = 0; i < run->n * run->top_k; i++)
        rows[ids[i] = pc_row(run, run->first + i / run->top_k, run->layer)[i % run->top_k]]++;
    for (uint32_t x = 0; x < run->n_experts; x++)
        if (rows[x]) {
            union_ids[n_union] = x;
            union_rows[n_union++] = rows[x];
            needed[x] = true;
        }
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = run->layer,
                                        .n_rows = run->n,
                                        .top_k = run->top_k,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = n_union,
                                        .union_ids = union_ids,
                                        .union_rows = union_rows};
    clb_cache_route(run->cache, &route);
    if (run->rule && run->rule->visit)
        run->rule->visit(run);
    for (uint32_t left = n_union; left;) {
        bool pinned[PC_MOST_ALL] = {false}, hit[PC_MOST_EXPERTS] = {false};
        uint32_t slots[PC_MOST_EXPERTS], n = 0;
        struct colibri_access access[PC_MOST_EXPERTS];
        for (int miss = 0; miss < 2; miss++)
            for (uint32_t i = 0; i < n_union; i++) {
                const uint32_t x = union_ids[i];
                if (done[x])
                    continue;
                uint32_t slot = clb_cache_find(run->cache, run->layer, x);
                hit[x] = slot != CLB_NO_SLOT;
                if (!miss && !hit[x])
                    continue;
                if (hit[x])
                    assert_int_equal(clb_cache_take(run->cache, slot), COLIBRI_ACCESS_HIT);
                else
                    pc_place(run, x, &needed, pinned, &slot);
                if (slot == CLB_NO_SLOT)
                    continue;
                needed[x] = false;
                done[x] = true;
                left--;
                pinned[run->layer * run->n_experts + x] = true;
                access[n] = (struct colibri_access){.layer = run->layer,
                                                    .expert = x,
                                                    .result = hit[x] ? COLIBRI_ACCESS_HIT : COLIBRI_ACCESS_MISS,
                                                    .rows = rows[x]};
                slots[n++] = slot;
                run->lookups++;
            }
        assert_true(n > 0);
        clb_cache_access(run->cache, access, n);
        for (uint32_t i = 0; i < n; i++) {
            if (run->rule && run->rule->hit && access[i].result == COLIBRI_ACCESS_HIT)
                run->rule->hit(run, run->layer * run->n_experts + access[i].expert);
            clb_cache_unpin(run->cache, slots[i]);
        }
    }
}

/* The next n rows as one pass. */
static inline void pc_pass(pc_run *run, uint32_t n)
{
    const struct colibri_step step = {sizeof step, n > 1 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, run->step++, n,
                                      1};
    run->n = n;
    clb_cache_step(run->cache, &step);
    for (run->layer = 0; run->layer < run->n_layers; run->layer++)
        pc_visit(run);
    run->first += n;
}

/* Rows with favourites that drift. */
static inline void pc_random_rows(pc_run *run, test_rand *rng, uint32_t n_rows)
{
    uint32_t favourite = 0;
    free(run->rows);
    run->n_rows = n_rows;
    run->rows = malloc((size_t)n_rows * run->n_layers * run->top_k);
    assert_non_null(run->rows);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t l = 0; l < run->n_layers; l++) {
            uint8_t *row = run->rows + ((size_t)r * run->n_layers + l) * run->top_k;
            if (test_rand_below(rng, 40) == 0)
                favourite = test_rand_below(rng, run->n_experts);
            for (uint32_t k = 0; k < run->top_k; k++) {
                uint32_t e = test_rand_below(rng, 3) ? favourite + test_rand_below(rng, 4)
                                                     : test_rand_below(rng, run->n_experts);
                for (uint32_t j = 0; j < k; j++) /* distinct: the next free one */
                    for (uint32_t i = 0; i < k; i++)
                        e += row[i] == e % run->n_experts;
                row[k] = (uint8_t)(e % run->n_experts);
            }
        }
}

static inline void pc_passes(pc_run *run, test_rand *rng, uint32_t longest)
{
    while (run->first < run->n_rows) {
        uint32_t n = longest < 2 || test_rand_below(rng, 10) ? 1 : 1 + test_rand_below(rng, longest);
        n = n < run->n_rows - run->first ? n : run->n_rows - run->first;
        pc_pass(run, n);
    }
}

/* Random rows in passes of random length, pools from smaller than one layer's demand to most of the experts; then the
 * same after a reset: same victims. */
static inline void pc_random_test(const struct colibri_expert_policy *policy, const pc_rule *rule, const double *params,
                                  uint32_t longest)
{
    static const uint32_t slots[] = {1, 2, 3, 6, 7, 9, 14, 20, 30};
    for (uint32_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        test_rand rng = {i}, again;
        pc_run run = {.policy = policy, .rule = rule, .n_layers = 1 + i % 3, .n_experts = 12, .top_k = 2, .seed = i};
        run.n_slots = slots[i] < run.n_layers * 12 ? slots[i] : run.n_layers * 12 - 2;
        pc_random_rows(&run, &rng, 1500);
        pc_open(&run, params);
        again = rng;
        pc_passes(&run, &rng, longest);
        assert_true(run.victims > 50);
        const uint64_t digest = run.digest, misses = run.misses;
        pc_reset(&run);
        rng = again;
        pc_passes(&run, &rng, longest);
        assert_true(run.digest == digest && run.misses == misses);
        pc_close(&run);
        free(run.rows);
    }
}

/* Decode rows of one layer, top 1: "ABCAB" as experts 0, 1, 2, 0, 1. Returns who left, in order, in a static buffer. */
static inline const char *pc_script(const struct colibri_expert_policy *policy, uint32_t n_slots, const char *uses)
{
    static char left[256];
    uint32_t n = 0;
    pc_run run = {.policy = policy, .n_layers = 1, .n_experts = 16, .top_k = 1, .n_slots = n_slots};
    run.n_rows = (uint32_t)strlen(uses);
    run.rows = malloc(run.n_rows);
    assert_true(run.rows && run.n_rows < sizeof left);
    for (uint32_t i = 0; i < run.n_rows; i++)
        run.rows[i] = (uint8_t)(uses[i] - 'A');
    pc_open(&run, NULL);
    while (run.first < run.n_rows) {
        bool was[PC_MOST_ALL];
        memcpy(was, run.resident, sizeof was);
        pc_pass(&run, 1);
        for (uint32_t e = 0; e < 16; e++)
            if (was[e] && !run.resident[e])
                left[n++] = (char)('A' + e);
    }
    left[n] = '\0';
    pc_close(&run);
    free(run.rows);
    return left;
}

#endif
