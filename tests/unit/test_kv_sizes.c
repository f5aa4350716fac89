/* What a sequence takes beside its pages is what the plan counts (kv/sizes.h), for every strategy that ships: measured
 * as what malloc has given away, at the worst moment of a prompt and of generating. */
#include <malloc.h>
#include <unistd.h>

#include "support/kv_views.h"

#include "kv/prefix.h"
#include "kv/sizes.h"
#include "support/kv_rows.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { LAYERS = 4, KV_HEADS = 2, GROUP = 3, HEADS = KV_HEADS * GROUP, DIM = 64, PAGE = 32, ROWS = 96, CTX = 1100 };
enum { PROMPT = 800, DECODE = 130 };

static float inv_freq[DIM / 2];

static clb_kv_layout layout_of(uint32_t type)
{
    for (uint32_t i = 0; i < DIM / 2; i++)
        inv_freq[i] = 1.0f / (float)(1 + i);
    return (clb_kv_layout){.n_layers = LAYERS,
                           .n_heads = HEADS,
                           .n_kv_heads = KV_HEADS,
                           .k_dim = DIM,
                           .v_dim = DIM,
                           .k_type = type,
                           .v_type = type,
                           .page_tokens = PAGE,
                           .recent = type == COLIBRI_TYPE_F16 ? 0 : 64,
                           .n_rot = DIM,
                           .rope_neox = true,
                           .inv_freq = inv_freq,
                           .attention_scale = 0.125f};
}

static uint64_t given(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- one strategy ---- */

struct chain {
    const struct colibri_kv_strategy *strategy;
    struct colibri_kv_child child[2];
    clb_kv_seq_options options;
};

static void chain_of(struct chain *c, const char *const names[3], uint32_t budget)
{
    *c = (struct chain){.strategy = kv_strategy(names[0])};
    for (int i = 1; i < 3 && names[i]; i++)
        c->child[i - 1] =
            (struct colibri_kv_child){.struct_size = sizeof c->child[0], .strategy = kv_strategy(names[i])};
    if (names[1] && names[2])
        c->child[0].child = &c->child[1];
    c->options = (clb_kv_seq_options){.strategy = c->strategy,
                                      .child = names[1] ? &c->child[0] : NULL,
                                      .ctx = CTX,
                                      .budget = budget,
                                      .max_rows = ROWS};
}

/* Attention that differs from head to head, and moves from one to the other: shared budgets follow it. */
static void pass(clb_kv_seq *seq, const clb_kv_layout *l, test_rand *rng, uint32_t n, bool prompt, bool last)
{
    static float q[HEADS * DIM], s[GROUP][CTX + ROWS];
    uint32_t position[CTX];
    clb_error err;
    assert_ok(clb_kv_begin(seq, n, &err), &err);
    kv_rows_write(seq, l, 1, n);
    const uint32_t favoured = clb_kv_seq_position(seq) / 300 % KV_HEADS;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (size_t i = 0; i < HEADS * DIM; i++)
            q[i] = test_rand_f32(rng, -0.01f, 0.02f);
        for (uint32_t row = 0; row < n; row++)
            clb_kv_observe_q(seq, layer, row, q);
        if (!prompt)
            clb_kv_pick(seq, layer, q);
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t before = clb_kv_seq_positions(seq, layer, head, position, CTX);
            for (uint32_t row = 0; row < n; row++) {
                float max_sum[GROUP][2];
                for (int g = 0; g < GROUP; g++) {
                    float total = 0;
                    for (uint32_t i = 0; i < before + row + 1; i++) {
                        s[g][i] = head == favoured ? test_rand_f32(rng, -1, 0) : -(float)(i % 16);
                        total += expf(s[g][i]);
                    }
                    max_sum[g][0] = 0;
                    max_sum[g][1] = head == favoured ? total / 50 : total;
                }
                clb_kv_observe(seq, layer, head, s[0], CTX + ROWS, max_sum[0], GROUP, before + row + 1);
            }
        }
    }
    clb_kv_end(seq, n, prompt ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, last);
}

/* Most bytes of the sequence and of what it makes the cache hold. */
static uint64_t measure(const struct chain *c, const clb_kv_layout *l, uint64_t pool, uint64_t *cache_bytes)
{
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    clb_error err;
    test_rand rng = {3};
    const uint64_t nothing = given();
    assert_ok(clb_kv_cache_create(l, pool, NULL, &cache, &err), &err);
    const uint64_t before = given();
    uint64_t most = before;
    *cache_bytes = before - nothing;
    assert_ok(clb_kv_seq_create(cache, &c->options, &seq, &err), &err);
    while (clb_kv_seq_position(seq) < PROMPT + DECODE) {
        const uint32_t at = clb_kv_seq_position(seq), left = at < PROMPT ? PROMPT - at : 1;
        const uint32_t n = left < ROWS ? left : ROWS;
        pass(seq, l, &rng, n, at < PROMPT, at < PROMPT && at + n == PROMPT);
        most = given() > most ? given() : most;
    }
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
    return most - before;
}

static void every_strategy(void **state)
{
    (void)state;
    static const char *const chains[][3] = {
        {"full"},
        {"streaming"},
        {"sliding_window"},
        {"important_tokens"},
        {"h2o"},
        {"tova"},
        {"snapkv"},
        {"expected_attention"},
        {"keydiff"},
        {"l2_norm"},
        {"lagkv"},
        {"random"},
        {"quest"},
        {"pyramid", "snapkv"},
        {"ada", "h2o"},
        {"ada", "expected_attention"},
        {"chunk", "tova"},
        {"block", "keydiff"},
        {"cam", "h2o"},
        {"ada", "pyramid", "snapkv"},
    };
    static const uint32_t types[] = {COLIBRI_TYPE_F16, COLIBRI_TYPE_Q8_0}, budgets[] = {224, 400};
    struct chain c;
    clb_error err;
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)
        for (size_t t = 0; t < 4; t++) {
            clb_kv_layout l = layout_of(types[t % 2]);
            clb_kv_demand d;
            chain_of(&c, chains[i], budgets[t / 2]);
            assert_ok(clb_kv_demand_make(&l, &c.options, &d, &err), &err);
            const uint64_t positions = clb_kv_most_positions(&l, &d.traits, CTX, c.options.budget, ROWS);
            const uint64_t pool = clb_kv_bytes(&l, positions);
            l.recent_bytes = clb_kv_recent_bytes(&l, positions, ROWS);
            uint64_t cache_bytes;
            const uint64_t took = measure(&c, &l, pool, &cache_bytes);
            /* rotations are the cache's, but only a sequence makes them */
            const uint64_t lists = clb_kv_common_bytes(&l, &(clb_kv_demand){.most = 1}, pool, l.recent_bytes, false);
            const uint64_t common = clb_kv_common_bytes(&l, &d, pool, l.recent_bytes, false);
            const uint64_t counted = clb_kv_strategy_bytes(&l, &d) + (common - lists);
            print_message("%-20s %-18s %-4s budget %u: %7llu of %7llu counted (%.0f %%)\n", chains[i][0],
                          chains[i][1] ? chains[i][1] : "", clb_kv_type_name(types[t % 2]), budgets[t / 2],
                          (unsigned long long)took, (unsigned long long)counted,
                          100.0 * (double)took / (double)counted);
            /* Heads that differ are counted at their worst. */
            const uint64_t spare = d.traits.own_budgets ? counted / 2 : counted / 20 + 4096;
            if (took > counted || counted > took + spare)
                fail_msg("%s/%s takes %llu bytes, %llu are counted", chains[i][0], chains[i][1] ? chains[i][1] : "",
                         (unsigned long long)took, (unsigned long long)counted);
            assert_in_range(cache_bytes, lists, lists + 1024);
        }
}

/* Whatever strategy it will be. */
static void any_strategy(void **state)
{
    (void)state;
    static const char *const chains[][3] = {{"h2o"},
                                            {"snapkv"},
                                            {"expected_attention"},
                                            {"ada", "pyramid", "snapkv"},
                                            {"cam", "h2o"},
                                            {"block", "keydiff"},
                                            {"quest"},
                                            {"streaming"}};
    const clb_kv_layout l = layout_of(COLIBRI_TYPE_F16);
    const clb_kv_demand any = clb_kv_demand_any(&l, CTX, ROWS);
    struct chain c;
    clb_error err;
    for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++)
        for (uint32_t part = 1; part <= 8; part *= 2) {
            clb_kv_demand d;
            chain_of(&c, chains[i], CTX / part);
            assert_ok(clb_kv_demand_make(&l, &c.options, &d, &err), &err);
            if (clb_kv_strategy_bytes(&l, &d) > clb_kv_strategy_bytes(&l, &any))
                fail_msg("%s at 1/%u: %llu of %llu", chains[i][0], part,
                         (unsigned long long)clb_kv_strategy_bytes(&l, &d),
                         (unsigned long long)clb_kv_strategy_bytes(&l, &any));
        }
}

/* The index of shared prefixes, with as many blocks as the pool can hold. */
static void prefixes(void **state)
{
    (void)state;
    enum { N = 20 };
    const char *const full[3] = {"full"};
    const clb_kv_layout l = layout_of(COLIBRI_TYPE_F16);
    struct chain c;
    clb_error err;
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    test_rand rng = {5};
    uint32_t tokens[N * PAGE];
    const uint64_t pool = clb_kv_bytes(&l, (uint64_t)N * PAGE);
    chain_of(&c, full, CTX);
    assert_ok(clb_kv_cache_create(&l, pool, NULL, &cache, &err), &err);
    const uint64_t before = given();
    assert_ok(clb_kv_share(cache, "x", 1, &err), &err);
    for (uint32_t round = 0; round < N / 4; round++) { /* of which each leaves four blocks */
        assert_ok(clb_kv_seq_create(cache, &c.options, &seq, &err), &err);
        for (uint32_t i = 0; i < 4 * PAGE; i++)
            tokens[i] = 1000 * round + i;
        for (uint32_t i = 0; i < 4; i++)
            pass(seq, &l, &rng, PAGE, true, i == 3);
        clb_kv_seq_give_prefix(seq, tokens, 4 * PAGE);
        clb_kv_seq_destroy(seq);
    }
    clb_kv_share_stats stats;
    clb_kv_cache_share_stats(cache, &stats);
    assert_int_equal(stats.blocks, N);
    const uint64_t took = given() - before;
    const clb_kv_demand none = {.most = 1};
    const uint64_t counted =
        clb_kv_common_bytes(&l, &none, pool, 0, true) - clb_kv_common_bytes(&l, &none, pool, 0, false);
    print_message("%u blocks: %llu of %llu counted\n", N, (unsigned long long)took, (unsigned long long)counted);
    assert_in_range(took, counted / 2, counted);
    clb_kv_cache_destroy(cache);
}

/* No overflow: sizes of settings that no machine has are large, never small. */
static void beyond_all_bounds(void **state)
{
    (void)state;
    clb_kv_layout l = layout_of(COLIBRI_TYPE_F32);
    l.n_layers = 60000;
    l.n_kv_heads = l.n_heads = 65535;
    l.k_dim = l.v_dim = 65536;
    const clb_kv_demand d = clb_kv_demand_any(&l, UINT32_MAX, UINT32_MAX);
    assert_true(clb_kv_strategy_bytes(&l, &d) == UINT64_MAX);
    assert_true(clb_kv_common_bytes(&l, &d, UINT64_MAX, UINT64_MAX, true) > UINT64_C(1) << 40);
}

int main(int argc, char **argv)
{
    static const char tunables[] = "glibc.malloc.tcache_count=0";
    (void)argc;
    if (SANITIZED)
        test_skip("sanitizers have an allocator of their own");
    /* mallinfo2 counts what lies in a thread's cache as given away. */
    const char *const set = getenv("GLIBC_TUNABLES");
    if (!set || strcmp(set, tunables) != 0) {
        setenv("GLIBC_TUNABLES", tunables, 1);
        execv("/proc/self/exe", argv);
    }
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* not the moving one */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy),
        cmocka_unit_test(any_strategy),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(beyond_all_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
