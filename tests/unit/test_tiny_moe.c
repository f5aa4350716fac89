/* The embedded model: kernels, threads, slots and policies never change a logit; the F16 file against recorded vectors.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/perplexity.h"
#include "support/engine.h"

#define MODEL     TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N_GREEDY  64
#define N_LAYERS  5
#define TOP_K     4
#define N_EXPERTS 32

/* Greedy tokens and the bytes of every step's logits. */
struct trail {
    uint32_t tokens[N_GREEDY];
    float *logits; /* [N_GREEDY][n_vocab] */
    uint64_t misses;
};

static void follow(const struct test_ref_prompt *prompt, const char *const *settings, struct trail *out)
{
    clb_error err;
    test_engine e;
    clb_session *session;
    assert_ok(test_engine_open(&e, MODEL, settings, NULL, &err), &err);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    out->logits = malloc(N_GREEDY * n_vocab * sizeof *out->logits);
    assert_non_null(out->logits);
    assert_ok(clb_session_create(e.engine, &session, &err), &err);
    assert_ok(clb_session_feed(session, prompt->ids, prompt->n, NULL, &err), &err);
    for (uint32_t i = 0; i < N_GREEDY; i++) {
        memcpy(out->logits + i * n_vocab, clb_session_logits(session), n_vocab * sizeof(float));
        out->tokens[i] = test_argmax(clb_session_logits(session), n_vocab);
        assert_ok(clb_session_append(session, out->tokens[i], &err), &err);
    }
    clb_store_stats stats;
    clb_store_get_stats(e.engine->model->store, &stats);
    out->misses = stats.misses;
    clb_session_destroy(session);
    test_engine_close(&e);
}

/* Prints what the machine lacks instead of passing over it. */
static bool have_bits(const char *what, bool have)
{
    if (!have)
        print_message("SKIPPED: %s (the CPU lacks it)\n", what);
    return have;
}

static void placement_never_changes_logits(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        const char *settings[6];
        enum { ANY, AVX2, AVX512, VNNI } needs;
        bool must_miss;
    } variants[] = {
        {"scalar", {"mask=all", "threads=2", NULL}, ANY, false},
        {"AVX2", {"mask=avx512f", "threads=1", NULL}, AVX2, false},
        {"AVX-512 without VNNI", {"mask=avx512vnni", "threads=2", NULL}, AVX512, false},
        {"best, 1 thread", {"threads=1", NULL}, ANY, false},
        {"best, 3 threads", {"threads=3", NULL}, ANY, false},
        {"small batch", {"threads=2", "batch=5", NULL}, ANY, false},
        {"small pages", {"threads=2", "kv-block-size=16", NULL}, ANY, false},
        {"mapped", {"threads=2", "store.mode=mmap", NULL}, ANY, false},
        {"lru, 4 slots", {"threads=2", "expert-slots=4", "expert-policy=lru", NULL}, ANY, true},
        {"lru, 9 slots", {"threads=2", "expert-slots=9", "expert-policy=lru", NULL}, ANY, true},
        {"lru, 80 slots", {"threads=2", "expert-slots=80", "expert-policy=lru", NULL}, ANY, true},
        {"lru, 159 slots", {"threads=1", "expert-slots=159", "expert-policy=lru", NULL}, ANY, true},
        {"lfu, 4 slots", {"threads=2", "expert-slots=4", "expert-policy=lfu", NULL}, ANY, true},
        {"lfu, 60 slots", {"threads=2", "expert-slots=60", "expert-policy=lfu", NULL}, ANY, true},
        {"frequency-weighted, 4 slots",
         {"threads=2", "expert-slots=4", "expert-policy=frequency-weighted", NULL},
         ANY,
         true},
        {"frequency-weighted, 60 slots",
         {"threads=2", "expert-slots=60", "expert-policy=frequency-weighted", NULL},
         ANY,
         true},
    };
    test_ref ref;
    test_ref_open(&ref, TEST_DATA("tiny-moe/prompts.ref"));
    for (uint32_t p = 0; p < 2; p++) {
        static const char *const plain[] = {"threads=2", NULL};
        struct trail base;
        follow(&ref.prompt[p], plain, &base);
        assert_int_equal(base.misses, 0);
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
#if defined(__x86_64__)
            const bool have = variants[v].needs == AVX2     ? __builtin_cpu_supports("avx2")
                              : variants[v].needs == AVX512 ? __builtin_cpu_supports("avx512bw")
                                                            : true;
#else
            const bool have = variants[v].needs == ANY;
#endif
            if (!have_bits(variants[v].what, have))
                continue;
            struct trail t;
            follow(&ref.prompt[p], variants[v].settings, &t);
            if (variants[v].must_miss)
                assert_true(t.misses > 0);
            for (uint32_t i = 0; i < N_GREEDY; i++) {
                const size_t n_vocab = ref.prompt[p].n_vocab;
                if (memcmp(base.logits + i * n_vocab, t.logits + i * n_vocab, n_vocab * sizeof(float)) != 0)
                    fail_msg("prompt %u, %s: logits of step %u are not the same bytes", p, variants[v].what, i);
            }
            assert_memory_equal(base.tokens, t.tokens, sizeof base.tokens);
            free(t.logits);
        }
        free(base.logits);
    }
    test_ref_close(&ref);
}

/* Rows of other sequences in the batch change nothing. */
static void batch_mates_never_matter(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", NULL};
    const test_engine_hooks hooks = {.n_sequences = 3};
    clb_error err;
    test_engine e;
    test_ref ref;
    test_ref_open(&ref, TEST_DATA("tiny-moe/prompts.ref"));
    assert_ok(test_engine_open(&e, MODEL, settings, &hooks, &err), &err);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    float *alone[3], *together = malloc(200 * n_vocab * sizeof *together);
    assert_non_null(together);
    clb_span spans[3];
    uint32_t total = 0;
    for (uint32_t p = 0; p < 3; p++) {
        alone[p] = test_engine_logits(e.engine, ref.prompt[p].ids, ref.prompt[p].n, 0);
        spans[p] = (clb_span){.tokens = ref.prompt[p].ids, .n = ref.prompt[p].n, .n_logits = ref.prompt[p].n};
        assert_ok(clb_engine_new_sequence(e.engine, &spans[p].kv, &err), &err);
        total += ref.prompt[p].n;
    }
    assert_in_range(total, 3, 200);
    assert_ok(clb_forward_run(e.engine->forward, spans, 3, together, &err), &err);
    const float *at = together;
    for (uint32_t p = 0; p < 3; p++) {
        assert_memory_equal(alone[p], at, ref.prompt[p].n * n_vocab * sizeof(float));
        at += ref.prompt[p].n * n_vocab;
        clb_kv_seq_destroy(spans[p].kv);
        free(alone[p]);
    }
    free(together);
    test_engine_close(&e);
    test_ref_close(&ref);
}

/* ---- the F16 file ---- */

static const char *f16_path(void)
{
    const char *path = getenv("COLIBRI_TEST_TINY_MOE_F16");
    if (!path || !*path) {
        print_message("SKIPPED: COLIBRI_TEST_TINY_MOE_F16 is not set to the path of tiny-moe-f16.gguf\n");
        skip();
    }
    return path;
}

/* Recorded decisions of one prompt, and the near-ties that this engine decided otherwise. */
struct recorded {
    uint32_t prompt, n;  /* number, rows */
    const uint32_t *ids; /* [N_LAYERS][n][TOP_K] */
    const float *probs;  /* [N_LAYERS][n][N_EXPERTS] */
    uint32_t n_forced;
};

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static bool same_experts(const uint32_t *a, const uint32_t *b)
{
    uint32_t x[TOP_K], y[TOP_K];
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    qsort(x, TOP_K, sizeof *x, by_number);
    qsort(y, TOP_K, sizeof *y, by_number);
    return memcmp(x, y, sizeof x) == 0;
}

static int by_probability(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Probability gap between the last chosen and the first refused expert. */
static double tie_gap(const float *probs)
{
    float sorted[N_EXPERTS];
    memcpy(sorted, probs, sizeof sorted);
    qsort(sorted, N_EXPERTS, sizeof *sorted, by_probability);
    return (double)sorted[TOP_K - 1] - (double)sorted[TOP_K];
}

/* Experts must be the recorded ones. Where a near-tie went the other way the recorded choice is put in its place, so
 * that everything after it can be held to the full accuracy. */
static void check_route(void *ctx, uint32_t layer, uint32_t n_rows, const float *probs, uint32_t *ids, float *gates)
{
    struct recorded *r = ctx;
    assert_int_equal(n_rows, r->n);
    for (uint32_t t = 0; t < n_rows; t++) {
        const uint32_t *want = r->ids + (layer * r->n + t) * TOP_K;
        if (same_experts(want, ids + t * TOP_K))
            continue;
        const double gap = tie_gap(r->probs + (layer * r->n + t) * N_EXPERTS);
        print_message("prompt %u, position %u, layer %u: router near-tie decided otherwise, gap %.2e\n", r->prompt, t,
                      layer, gap);
        if (gap > 1e-3)
            fail_msg("prompt %u, position %u, layer %u: other experts than recorded, gap %g", r->prompt, t, layer, gap);
        float sum = 0.0f;
        for (uint32_t k = 0; k < TOP_K; k++)
            sum += probs[t * N_EXPERTS + want[k]];
        for (uint32_t k = 0; k < TOP_K; k++) {
            ids[t * TOP_K + k] = want[k];
            gates[t * TOP_K + k] = probs[t * N_EXPERTS + want[k]] / sum;
        }
        r->n_forced++;
    }
}

/* Logits within 5e-3 of the recorded ones and the same argmax at every position. */
static void f16_matches_reference(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", NULL};
    const char *path = f16_path();
    clb_error err;
    test_engine e;
    test_ref ref;
    struct recorded recorded = {0};
    const test_engine_hooks hooks = {.adjust_route = check_route, .ctx = &recorded};
    test_ref_open(&ref, TEST_DATA("tiny-moe/prompts.ref"));
    assert_ok(test_engine_open(&e, path, settings, &hooks, &err), &err);
    for (uint32_t p = 0; p < ref.n_prompts; p++) {
        const struct test_ref_prompt *prompt = &ref.prompt[p];
        char name[512];
        snprintf(name, sizeof name, "%s/tiny-moe/prompt%u.experts.i32", COLIBRI_TEST_DATA, p + 1);
        char *experts = test_read_file(name, NULL);
        snprintf(name, sizeof name, "%s/tiny-moe/prompt%u.router_probs.f32", COLIBRI_TEST_DATA, p + 1);
        char *probs = test_read_file(name, NULL);
        recorded = (struct recorded){.prompt = p + 1,
                                     .n = prompt->n,
                                     .ids = (const uint32_t *)(const void *)experts,
                                     .probs = (const float *)(const void *)probs};
        float *logits = test_engine_logits(e.engine, prompt->ids, prompt->n, 0);
        double worst = 0.0;
        for (uint32_t t = 0; t < prompt->n; t++) {
            const float *mine = logits + (size_t)t * prompt->n_vocab,
                        *theirs = prompt->logits + (size_t)t * prompt->n_vocab;
            assert_int_equal(test_argmax(mine, prompt->n_vocab), test_argmax(theirs, prompt->n_vocab));
            const double d = test_max_abs_diff(mine, theirs, prompt->n_vocab);
            worst = d > worst ? d : worst;
            if (!(d <= 5e-3))
                fail_msg("prompt %u, position %u: logits differ by %g", p + 1, t, d);
        }
        assert_true(recorded.n_forced <= 2); /* near-ties are rare: more would mean another router */
        print_message("prompt %u: max |difference| %.2e, near-ties forced: %u\n", p + 1, worst, recorded.n_forced);
        free(logits);
        free(experts);
        free(probs);
    }
    test_engine_close(&e);
    test_ref_close(&ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_never_changes_logits),
        cmocka_unit_test(batch_mates_never_matter),
        cmocka_unit_test(f16_matches_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
