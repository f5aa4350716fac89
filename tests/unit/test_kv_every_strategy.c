/* Every KV strategy that ships, and chains of them, in the real cache: whatever the budget, the protected positions and
 * the passes, no answer is bad, what must stay stays, memory is what a plan reserves, and the same text gives the same
 * result. */
#include "support/kv_views.h"

#include "support/kv_rows.h"

enum { LAYERS = 3, KV_HEADS = 2, GROUP = 2, HEADS = KV_HEADS * GROUP, DIM = 16, PAGE = 16, ROWS = 40, MOST = 300 };

static const float inv_freq[DIM / 2] = {1, 0.5f, 0.2f, 0.1f, 0.05f, 0.02f, 0.01f, 0.001f};
static const clb_kv_layout layout = {
    .n_layers = LAYERS,
    .n_heads = HEADS,
    .n_kv_heads = KV_HEADS,
    .k_dim = DIM,
    .v_dim = DIM,
    .k_type = COLIBRI_TYPE_F16,
    .v_type = COLIBRI_TYPE_F16,
    .page_tokens = PAGE,
    .n_rot = DIM,
    .rope_neox = true,
    .inv_freq = inv_freq,
    .attention_scale = 0.25f,
};

static const char *const chains[][3] = {
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
    {"full"},
    {"pyramid", "h2o"},
    {"pyramid", "snapkv"},
    {"pyramid", "streaming"},
    {"ada", "h2o"},
    {"ada", "snapkv"},
    {"ada", "expected_attention"},
    {"ada", "lagkv"},
    {"chunk", "snapkv"},
    {"chunk", "tova"},
    {"block", "keydiff"},
    {"block", "h2o"},
    {"block", "streaming"},
    {"cam", "h2o"},
    {"cam", "tova"},
    {"ada", "pyramid", "snapkv"},
    {"ada", "chunk", "h2o"},
    {"pyramid", "chunk", "l2_norm"},
    {"pyramid", "block", "keydiff"},
    {"cam", "chunk", "h2o"},
};

struct run {
    const struct colibri_kv_strategy *strategy;
    struct colibri_kv_child child[2];
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    uint32_t budget, n_protected;
    bool merges;
};

static void misbehaved(void *ctx, const char *strategy, const char *what)
{
    const struct run *r = ctx;
    fail_msg("%s, budget %u, %u protected: %s", strategy, r->budget, r->n_protected, what);
}

static void open_run(struct run *r, const char *const chain[3], uint32_t budget, uint32_t n_protected)
{
    clb_error err;
    memset(r, 0, sizeof *r);
    r->strategy = kv_strategy(chain[0]);
    r->budget = budget;
    r->n_protected = n_protected;
    r->merges = COLIBRI_HAS(r->strategy, merge) && r->strategy->merge;
    for (int i = 1; i < 3 && chain[i]; i++)
        r->child[i - 1] =
            (struct colibri_kv_child){.struct_size = sizeof r->child[0], .strategy = kv_strategy(chain[i])};
    if (chain[1] && chain[2])
        r->child[0].child = &r->child[1];
    const clb_kv_seq_options o = {
        .strategy = r->strategy,
        .child = chain[1] ? &r->child[0] : NULL,
        .ctx = MOST + 10,
        .budget = budget,
        .n_protected = n_protected,
        .max_rows = ROWS,
        .misbehaved = misbehaved,
        .misbehaved_ctx = r,
    };
    const clb_kv_traits traits = clb_kv_traits_of(o.strategy, o.child, o.positions);
    const uint64_t bytes = clb_kv_bytes(&layout, clb_kv_most_positions(&layout, &traits, o.ctx, budget, ROWS));
    assert_ok(clb_kv_cache_create(&layout, bytes, NULL, &r->cache, &err), &err);
    assert_ok(clb_kv_seq_create(r->cache, &o, &r->seq, &err), &err);
}

static void close_run(struct run *r)
{
    clb_kv_seq_destroy(r->seq);
    clb_kv_cache_destroy(r->cache);
}

/* Made-up queries and attention; some of it is not a number. */
static void pass(struct run *r, test_rand *rng, uint32_t n, enum colibri_phase phase)
{
    static float q[HEADS * DIM], s[GROUP][MOST + ROWS];
    uint32_t position[MOST + ROWS];
    clb_error err;
    if (clb_kv_begin(r->seq, n, &err))
        fail_msg("%s, budget %u: %s", r->strategy->name, r->budget, err.msg);
    kv_rows_write(r->seq, &layout, 1, n);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t row = 0; row < n; row++) {
            for (size_t i = 0; i < HEADS * DIM; i++)
                q[i] = test_rand_f32(rng, -0.01f, 0.02f);
            clb_kv_observe_q(r->seq, layer, row, q);
        }
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t before = clb_kv_seq_positions(r->seq, layer, head, position, MOST);
            for (uint32_t row = 0; row < n; row++) {
                float max_sum[GROUP][2];
                for (int g = 0; g < GROUP; g++) {
                    float total = 0;
                    for (uint32_t i = 0; i < before + row + 1; i++) {
                        s[g][i] = test_rand_f32(rng, -8, 0);
                        total += expf(s[g][i]);
                    }
                    max_sum[g][0] = 0;
                    max_sum[g][1] = total;
                }
                if (test_rand_below(rng, 200) == 0)
                    s[0][test_rand_below(rng, before + row + 1)] = NAN;
                clb_kv_observe(r->seq, layer, head, s[0], MOST + ROWS, max_sum[0], GROUP, before + row + 1);
            }
        }
    }
    clb_kv_end(r->seq, n, phase, phase == COLIBRI_PHASE_PREFILL);
}

static void check(const struct run *r, enum colibri_phase phase)
{
    clb_kv_stats st;
    uint32_t position[MOST + ROWS];
    const uint32_t seen = clb_kv_seq_position(r->seq);
    const uint32_t fixed = r->n_protected < seen ? r->n_protected : seen;
    clb_kv_seq_stats(r->seq, &st);
    assert_int_equal(st.bad_answers, 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const clb_kv_view v = clb_kv_view_of(r->seq, layer, head);
            const uint32_t n = clb_kv_seq_positions(r->seq, layer, head, position, MOST);
            assert_int_equal(position[n - 1], seen - 1);
            for (uint32_t i = 0; i < n; i++) {
                assert_true(i == 0 || position[i] > position[i - 1]);
                assert_true(i >= fixed || position[i] == i);
                if (!r->merges)
                    kv_rows_check(&v, &layout, 1, layer, head, i, position[i]);
            }
        }
    if (!(r->strategy->flags & COLIBRI_KV_FLAG_KEEPS_ALL) && phase == COLIBRI_PHASE_DECODE)
        assert_true(st.kept_sum <= (uint64_t)LAYERS * KV_HEADS * (r->budget + PAGE));
}

static void drive(struct run *r, uint64_t seed)
{
    test_rand rng = {seed};
    bool prefill = true;
    while (clb_kv_seq_position(r->seq) < MOST - ROWS) {
        prefill = test_rand_below(&rng, 30) == 0 ? !prefill : prefill;
        const enum colibri_phase phase = prefill ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE;
        pass(r, &rng, prefill ? 1 + test_rand_below(&rng, ROWS) : 1, phase);
        check(r, phase);
    }
}

static void same_positions(const struct run *a, const struct run *b)
{
    uint32_t p[MOST], q[MOST];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const uint32_t n = clb_kv_seq_positions(a->seq, layer, head, p, MOST);
            assert_int_equal(clb_kv_seq_positions(b->seq, layer, head, q, MOST), n);
            assert_memory_equal(p, q, n * sizeof p[0]);
        }
}

static void every_chain(void **state)
{
    (void)state;
    const struct {
        uint32_t budget, n_protected;
    } cases[] = {{5, 0}, {6, 5}, {40, 0}, {64, 30}, {200, 7}};
    for (size_t c = 0; c < sizeof chains / sizeof chains[0]; c++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct run first, second;
            open_run(&first, chains[c], cases[i].budget, cases[i].n_protected);
            drive(&first, c * 10 + i);
            open_run(&second, chains[c], cases[i].budget, cases[i].n_protected);
            drive(&second, c * 10 + i);
            same_positions(&first, &second);
            if (i == 2) { /* nothing is remembered from before */
                clb_kv_seq_reset(first.seq);
                drive(&first, c * 10 + i);
                same_positions(&first, &second);
            }
            close_run(&first);
            close_run(&second);
        }
}

/* Where they can, heads differ in what they keep, and layers in how much. */
static void budgets_differ(void **state)
{
    (void)state;
    struct run r;
    uint32_t position[MOST], n[LAYERS][KV_HEADS];
    for (size_t c = 0; c < sizeof chains / sizeof chains[0]; c++) {
        const bool by_layer = !strcmp(chains[c][0], "pyramid") || (chains[c][1] && !strcmp(chains[c][1], "pyramid"));
        const bool by_head =
            !strcmp(chains[c][0], "ada") && strcmp(chains[c][1], "lagkv") != 0; /* same shares everywhere */
        if (!by_layer && !by_head)
            continue;
        bool differ = false;
        for (uint64_t seed = 0; seed < 8 && !(seed && differ); seed++) { /* equal by chance, now and then */
            open_run(&r, chains[c], 60, 0);
            drive(&r, seed);
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                for (uint32_t head = 0; head < KV_HEADS; head++) {
                    n[layer][head] = clb_kv_seq_positions(r.seq, layer, head, position, MOST);
                    differ = differ || n[layer][head] != n[layer][0];
                }
            if (by_layer)
                assert_true(n[0][0] + n[0][1] > n[2][0] + n[2][1] + PAGE);
            close_run(&r);
        }
        if (by_head && !differ)
            fail_msg("%s/%s: heads do not differ", chains[c][0], chains[c][1]);
    }
}

static void oracle_needs_a_future(void **state)
{
    (void)state;
    clb_kv_cache *cache;
    clb_kv_seq *seq;
    clb_error err;
    const clb_kv_seq_options o = {.strategy = kv_strategy("oracle"), .ctx = MOST, .budget = 40};
    assert_ok(clb_kv_cache_create(&layout, 1 << 20, NULL, &cache, &err), &err);
    assert_fails(clb_kv_seq_create(cache, &o, &seq, &err), &err, COLIBRI_E_UNSUPPORTED, "future");
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chain),
        cmocka_unit_test(budgets_differ),
        cmocka_unit_test(oracle_needs_a_future),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
