/* slow: where experts lie, who guesses and how they are read never changes a logit: every policy and predictor, GGUF and
 * packed, io_uring and pread, direct and buffered, one and two threads, one sequence and a batch of four. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/pack.h"
#include "plugin/introspect.h"
#include "plugin/open.h"
#include "support/engine.h"

#define MODEL     TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N_STEPS   64u
#define N_SEQ     4u
#define TOP_K     4u
#define N_EXPERTS 160u

static char packed[64];
static test_ref ref;
static size_t n_vocab;
static float *want; /* [N_SEQ][N_STEPS][n_vocab]: every expert resident, each sequence alone */
static char *policies[64], *predictors[16];
static uint32_t n_policies, n_predictors;

/* ---- what to run ---- */

static char *keep(const char *name)
{
    char *copy = strdup(name);
    assert_non_null(copy);
    return copy;
}

/* Names of all components of a kind but oracles. */
static uint32_t find(clb_registry *registry, enum clb_iface iface, uint32_t kind, char **out, uint32_t most)
{
    uint32_t n = 0;
    for (size_t i = 0; i < clb_registry_n_plugins(registry); i++) {
        clb_plugin_view v;
        clb_registry_plugin(registry, i, &v);
        if (v.note && (v.note->kinds & kind) && v.state == CLB_PLUGIN_AVAILABLE)
            clb_registry_load(registry, i);
    }
    for (size_t i = 0; i < clb_registry_n_components(registry); i++) {
        clb_component_view c;
        clb_registry_component(registry, i, &c);
        if (c.iface != iface || c.unfit)
            continue;
        const uint32_t flags = iface == CLB_IFACE_EXPERT_POLICY ? ((const struct colibri_expert_policy *)c.table)->flags
                                                                : ((const struct colibri_predictor *)c.table)->flags;
        if (flags & COLIBRI_POLICY_ORACLE)
            continue;
        if (iface == CLB_IFACE_EXPERT_POLICY)
            assert_true(flags & COLIBRI_POLICY_LOSSLESS); /* none that ships may change tokens */
        bool seen = false; /* lru is also linked into the core */
        for (uint32_t k = 0; k < n; k++)
            seen = seen || strcmp(out[k], c.name) == 0;
        assert_true(n < most);
        if (!seen)
            out[n++] = keep(c.name);
    }
    return n;
}

static void find_components(void)
{
    clb_error err;
    clb_config *config;
    clb_registry *registry;
    assert_ok(clb_config_create(&config, &err), &err);
    assert_ok(clb_registry_from_config(config, COLIBRI_TEST_PLUGIN_DIR, NULL, &registry, &err), &err);
    n_policies = find(registry, CLB_IFACE_EXPERT_POLICY, COLIBRI_KIND_EXPERT_POLICY, policies, 64);
    predictors[0] = keep("none");
    n_predictors = 1 + find(registry, CLB_IFACE_PREDICTOR, COLIBRI_KIND_PREDICTOR, predictors + 1, 15);
    clb_registry_close(registry);
    clb_config_destroy(config);
    assert_true(n_policies > 15);
    assert_true(n_predictors > 3);
}

static const struct reading {
    const char *io, *direct;
} readings[] = {{"uring", "on"}, {"uring", "off"}, {"pread", "on"}, {"pread", "off"}};

static const struct colibri_format *format_of(void *registry, uint32_t type)
{
    return clb_registry_format(registry, type, NULL);
}

static void make_packed(void)
{
    clb_error err;
    clb_config *config;
    clb_registry *registry;
    clb_gguf *g;
    clb_pool *pool;
    clb_pack *pack;
    snprintf(packed, sizeof packed, "/tmp/colibri-placement-%ld.colibri", (long)getpid());
    assert_ok(clb_config_create(&config, &err), &err);
    assert_ok(clb_registry_from_config(config, COLIBRI_TEST_PLUGIN_DIR, NULL, &registry, &err), &err);
    assert_ok(clb_pool_create(2, &pool, &err), &err);
    assert_ok(clb_gguf_open(MODEL, NULL, NULL, &g, &err), &err);
    const clb_pack_options options = {.format = format_of, .format_ctx = registry, .pool = pool};
    assert_ok(clb_pack_create(g, &options, &pack, &err), &err);
    assert_ok(clb_pack_write(pack, packed, 0, &err), &err);
    clb_pack_free(pack);
    clb_gguf_close(g);
    clb_pool_destroy(pool);
    clb_registry_close(registry);
    clb_config_destroy(config);
}

/* ---- running it ---- */

static void greedy(clb_engine *e, uint32_t first, uint32_t n_seq, float *out)
{
    clb_error err;
    clb_span spans[N_SEQ];
    uint32_t next[N_SEQ];
    float *step = malloc(n_seq * n_vocab * sizeof *step);
    assert_non_null(step);
    for (uint32_t s = 0; s < n_seq; s++) {
        const struct test_ref_prompt *p = &ref.prompt[(first + s) % ref.n_prompts];
        const uint32_t skip = (first + s) / ref.n_prompts; /* the fourth is the first without its first token */
        spans[s] = (clb_span){.tokens = p->ids + skip, .n = p->n - skip, .n_logits = 1, .prefill_done = true};
        assert_ok(clb_engine_new_sequence(e, &spans[s].kv, &err), &err);
    }
    for (uint32_t i = 0; i < N_STEPS; i++) {
        assert_ok(clb_forward_run(e->forward, spans, n_seq, step, &err), &err);
        for (uint32_t s = 0; s < n_seq; s++) {
            memcpy(out + (s * N_STEPS + i) * n_vocab, step + s * n_vocab, n_vocab * sizeof *out);
            next[s] = test_argmax(step + s * n_vocab, n_vocab);
            spans[s] = (clb_span){.kv = spans[s].kv, .tokens = &next[s], .n = 1, .n_logits = 1, .phase = COLIBRI_PHASE_DECODE};
        }
    }
    for (uint32_t s = 0; s < n_seq; s++)
        clb_kv_seq_destroy(spans[s].kv);
    free(step);
}

static clb_store_stats check(const char *model, uint32_t slots, const char *policy, const char *predictor,
                             const struct reading *how, uint32_t threads, uint32_t n_seq)
{
    char text[7][64];
    clb_error err;
    test_engine e;
    const test_engine_hooks hooks = {.n_sequences = N_SEQ};
    snprintf(text[0], sizeof text[0], "expert-slots=%u", slots);
    snprintf(text[1], sizeof text[1], "expert-policy=%s", policy);
    snprintf(text[2], sizeof text[2], "predictor=%s", predictor);
    snprintf(text[3], sizeof text[3], "store.io=%s", how->io);
    snprintf(text[4], sizeof text[4], "store.direct=%s", how->direct);
    snprintf(text[5], sizeof text[5], "threads=%u", threads);
    snprintf(text[6], sizeof text[6], "expert-pool=%s", slots >= 20 && slots % 5 == 0 && threads == 2 ? "layer" : "global");
    const char *settings[] = {text[0], text[1], text[2], text[3], text[4], text[5], text[6], "expert-profile=none", NULL};
    float *got = malloc(n_seq * N_STEPS * n_vocab * sizeof *got);
    assert_non_null(got);
    assert_ok(test_engine_open(&e, model, settings, &hooks, &err), &err);
    greedy(e.engine, 0, n_seq, got);
    for (uint32_t s = 0; s < n_seq; s++)
        for (uint32_t i = 0; i < N_STEPS; i++)
            if (memcmp(got + (s * N_STEPS + i) * n_vocab, want + (s * N_STEPS + i) * n_vocab, n_vocab * sizeof *got))
                fail_msg("%s, %u slots, %s, %s, %s, direct %s, %u threads, %s, sequence %u of %u: step %u has other logits",
                         model, slots, policy, predictor, how->io, how->direct, threads, text[6], s, n_seq, i);
    clb_store_stats stats;
    clb_store_get_stats(e.engine->model->store, &stats);
    test_engine_close(&e);
    free(got);
    return stats;
}

static int setup(void **state)
{
    (void)state;
    static const char *const resident[] = {"threads=2", NULL};
    const test_engine_hooks hooks = {.n_sequences = N_SEQ};
    clb_error err;
    test_engine e;
    test_ref_open(&ref, TEST_DATA("tiny-moe/prompts.ref"));
    n_vocab = ref.prompt[0].n_vocab;
    find_components();
    make_packed();
    want = malloc(N_SEQ * N_STEPS * n_vocab * sizeof *want);
    assert_non_null(want);
    assert_ok(test_engine_open(&e, MODEL, resident, &hooks, &err), &err);
    for (uint32_t s = 0; s < N_SEQ; s++)
        greedy(e.engine, s, 1, want + s * N_STEPS * n_vocab);
    test_engine_close(&e);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(packed);
    free(want);
    for (uint32_t i = 0; i < n_policies; i++)
        free(policies[i]);
    for (uint32_t i = 0; i < n_predictors; i++)
        free(predictors[i]);
    test_ref_close(&ref);
    return 0;
}

static const uint32_t slot_counts[] = {TOP_K, N_EXPERTS / 4, N_EXPERTS / 2, N_EXPERTS};

/* Every policy at every number of slots; the rest goes round so that each value meets each policy. */
static void policies_never_matter(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t p = 0; p < n_policies; p++)
        for (uint32_t i = 0; i < 4; i++, n++) {
            const clb_store_stats s = check(n / 2 % 2 ? packed : MODEL, slot_counts[i], policies[p],
                                            predictors[(p + i) % n_predictors], &readings[n / 2 % 2 ? n % 4 : n % 2 * 2 + 1],
                                            1 + (p + i / 2) % 2, (p + i) % 2 ? 1 : N_SEQ);
            assert_int_equal(s.bad_answers, 0);
            assert_true((s.misses > 0) == (slot_counts[i] < N_EXPERTS));
        }
}

/* Every way of reading with every predictor. */
static void reading_never_matters(void **state)
{
    (void)state;
    uint64_t guesses = 0;
    for (uint32_t p = 0; p < n_predictors; p++)
        for (uint32_t i = 0; i < 3; i++)
            for (uint32_t r = 0; r < 4; r++)
                for (uint32_t f = 0; f < 2; f++) {
                    const bool direct = strcmp(readings[r].direct, "on") == 0;
                    if (direct && f == 0)
                        continue; /* the experts of this GGUF are too small for direct reads */
                    const clb_store_stats s = check(f ? packed : MODEL, slot_counts[i], "lru", predictors[p], &readings[r],
                                                    1 + (i + r) % 2, i % 2 ? N_SEQ : 1);
                    assert_true(s.reads_ahead);
                    assert_int_equal(s.io.direct, direct);
                    guesses += s.guesses;
                }
    assert_true(guesses > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(policies_never_matter), cmocka_unit_test(reading_never_matters)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
