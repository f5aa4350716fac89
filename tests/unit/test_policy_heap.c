/* Expert policies that promise SCORE_RISES: with a heap the cache finds the victims that it finds by asking for all
 * scores. */
#include "support/component.h"
#include "support/policy_host.h"

#include "store/cache.h"

enum { N_ROWS = 1500, MOST_VICTIMS = 60000 };

static const struct colibri_expert_policy *original;
static struct {
    uint32_t n;
    uint16_t victim[MOST_VICTIMS];
} record[2];
static int recording;

static void note_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    if (record[recording].n < MOST_VICTIMS)
        record[recording].victim[record[recording].n] = (uint16_t)(layer * PH_EXPERTS + expert);
    record[recording].n++;
    if (original->on_evict)
        original->on_evict(self, layer, expert, uses, unused);
}

static void visit(clb_cache *cache, const uint8_t (*rows)[PH_LAYERS][PH_TOP_K], uint32_t first, uint32_t n,
                  uint32_t layer)
{
    uint32_t ids[32 * PH_TOP_K], count[PH_EXPERTS] = {0}, union_ids[PH_EXPERTS], union_rows[PH_EXPERTS], n_union = 0;
    float gates[32 * PH_TOP_K];
    bool done[PH_EXPERTS] = {false};
    for (uint32_t i = 0; i < n * PH_TOP_K; i++) {
        count[ids[i] = rows[first + i / PH_TOP_K][layer][i % PH_TOP_K]]++;
        gates[i] = ph_gate(first + i / PH_TOP_K, layer, i % PH_TOP_K);
    }
    for (uint32_t e = 0; e < PH_EXPERTS; e++)
        if (count[e]) {
            union_ids[n_union] = e;
            union_rows[n_union++] = count[e];
        }
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = n,
                                        .top_k = PH_TOP_K,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = n_union,
                                        .union_ids = union_ids,
                                        .union_rows = union_rows};
    clb_cache_route(cache, &route);
    for (uint32_t left = n_union; left;) {
        struct colibri_access access[PH_EXPERTS];
        uint32_t slot[PH_EXPERTS], m = 0;
        for (uint32_t u = 0; u < n_union; u++) {
            const uint32_t s = clb_cache_find(cache, layer, union_ids[u]);
            if (done[u] || s == CLB_NO_SLOT)
                continue;
            access[m] = (struct colibri_access){
                .layer = layer, .expert = union_ids[u], .rows = union_rows[u], .result = clb_cache_take(cache, s)};
            slot[m++] = s;
            done[u] = true;
        }
        for (uint32_t u = 0; u < n_union; u++) {
            const uint32_t s =
                done[u] ? CLB_NO_SLOT : clb_cache_place(cache, layer, union_ids[u], COLIBRI_CAUSE_DEMAND);
            if (s == CLB_NO_SLOT)
                continue;
            access[m] = (struct colibri_access){
                .layer = layer, .expert = union_ids[u], .rows = union_rows[u], .result = COLIBRI_ACCESS_MISS};
            slot[m++] = s;
            done[u] = true;
        }
        assert_true(m);
        left -= m;
        clb_cache_access(cache, access, m);
        for (uint32_t i = 0; i < m; i++) {
            if (cache->slots[slot[i]].state == CLB_SLOT_LOADING)
                clb_cache_arrived(cache, slot[i]);
            clb_cache_unpin(cache, slot[i]);
        }
    }
}

static void run(const struct colibri_expert_policy *policy, uint64_t seed, bool shared, uint32_t slots)
{
    static uint8_t rows[N_ROWS][PH_LAYERS][PH_TOP_K];
    const uint8_t(*in)[PH_LAYERS][PH_TOP_K] = (const uint8_t(*)[PH_LAYERS][PH_TOP_K])rows;
    const uint32_t pool_of[PH_LAYERS] = {0, shared ? 0 : 1, shared ? 0 : 2},
                   pool_slots[PH_LAYERS] = {slots, slots, slots};
    const uint64_t bytes[PH_LAYERS] = {5000, 1000, 3000};
    const clb_cache_options options = {.n_layers = PH_LAYERS,
                                       .n_experts = PH_EXPERTS,
                                       .top_k = PH_TOP_K,
                                       .pool_of = pool_of,
                                       .n_pools = shared ? 1 : PH_LAYERS,
                                       .pool_slots = pool_slots,
                                       .expert_bytes = bytes,
                                       .policy = policy};
    clb_cache *cache = NULL;
    clb_error err = {0};
    test_rand rng = {seed};
    ph_random_rows(&rng, rows, N_ROWS);
    assert_ok(clb_cache_open(&options, &cache, &err), &err);
    for (uint32_t at = 0; at < N_ROWS;) {
        uint32_t n = test_rand_below(&rng, 8) ? 1 : 1 + test_rand_below(&rng, 30);
        n = n < N_ROWS - at ? n : N_ROWS - at;
        const struct colibri_step step = {.struct_size = sizeof step, .n_rows = n, .n_sequences = 1};
        clb_cache_step(cache, &step);
        for (uint32_t layer = 0; layer < PH_LAYERS; layer++) {
            visit(cache, in, at, n, layer);
            const uint32_t ahead = (layer + 1 + test_rand_below(&rng, 2)) % PH_LAYERS,
                           e = test_rand_below(&rng, PH_EXPERTS);
            if (test_rand_below(&rng, 3) == 0 && clb_cache_find(cache, ahead, e) == CLB_NO_SLOT) {
                const uint32_t s = clb_cache_place(cache, ahead, e, COLIBRI_CAUSE_PREFETCH);
                if (s != CLB_NO_SLOT && test_rand_below(&rng, 2))
                    clb_cache_arrived(cache, s);
            }
        }
        for (uint32_t s = 0; s < cache->n_slots; s++)
            if (cache->slots[s].state == CLB_SLOT_LOADING)
                clb_cache_arrived(cache, s);
        at += n;
    }
    assert_int_equal(cache->stats.bad_answers, 0);
    clb_cache_close(cache);
}

static void compare(const char *stem, const char *ident)
{
    static const char iface[] = COLIBRI_IFACE_EXPERT_POLICY;
    char file[64], symbol[96];
    snprintf(file, sizeof file, "expert-policy-%s", stem);
    snprintf(symbol, sizeof symbol, "colibri_expert_policy_%s", ident);
    original = test_component(file, symbol, iface);
    assert_true(original->flags & COLIBRI_POLICY_SCORE_RISES);
    for (uint64_t seed = 0; seed < 10; seed++) {
        record[0].n = record[1].n = 0;
        for (recording = 0; recording < 2; recording++) {
            struct colibri_expert_policy policy = *original;
            policy.on_evict = note_evict;
            if (recording)
                policy.flags &= ~COLIBRI_POLICY_SCORE_RISES;
            run(&policy, seed, seed % 2, seed % 2 ? 5 + 2 * (uint32_t)seed : 3 + (uint32_t)seed / 2);
        }
        assert_true(record[0].n > 400 && record[0].n < MOST_VICTIMS);
        assert_int_equal(record[0].n, record[1].n);
        assert_memory_equal(record[0].victim, record[1].victim, record[0].n * sizeof record[0].victim[0]);
    }
}

static void lfu(void **state)
{
    (void)state;
    compare("lfu", "lfu");
}

static void frequency_weighted(void **state)
{
    (void)state;
    compare("frequency_weighted", "frequency_weighted");
}

static void lru_k(void **state)
{
    (void)state;
    compare("lru_k", "lru_k");
}

static void gate_average(void **state)
{
    (void)state;
    compare("gate_average", "gate_average");
}

static void gdsf(void **state)
{
    (void)state;
    compare("gdsf", "gdsf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lfu),   cmocka_unit_test(frequency_weighted),
        cmocka_unit_test(lru_k), cmocka_unit_test(gate_average),
        cmocka_unit_test(gdsf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
