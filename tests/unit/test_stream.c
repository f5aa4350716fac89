/* Streamed dense layers: the same logits as with every layer resident, whatever stays, however it is read; a pass that was
 * broken off or failed leaves nothing behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/engine.h"

#define N_IDS 24u

static uint32_t ids[N_IDS];

static float *logits_of(const char *model, const char *const *settings, clb_store_stats *stats)
{
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, model, settings, NULL, &err), &err);
    const uint32_t n_vocab = e.engine->model->hp.n_vocab;
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % n_vocab;
    float *out = test_engine_logits(e.engine, ids, N_IDS, 5);
    clb_store_get_stats(e.engine->model->store, stats);
    test_engine_close(&e);
    return out;
}

static uint32_t layers_of(const char *model, size_t *n_vocab)
{
    static const char *const none[] = {"threads=1", NULL};
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, model, none, NULL, &err), &err);
    const uint32_t n = e.engine->model->hp.n_layers;
    *n_vocab = e.engine->model->hp.n_vocab;
    test_engine_close(&e);
    return n;
}

static void check_model(const char *model)
{
    static const char *const resident[] = {"threads=2", NULL};
    static const char *const ways[][2] = {
        {"store.io=uring", "store.direct=on"}, {"store.io=pread", "store.direct=off"}, {"store.io=auto", "store.direct=auto"}};
    size_t n_vocab;
    clb_store_stats stats;
    const uint32_t n_layers = layers_of(model, &n_vocab);
    float *want = logits_of(model, resident, &stats);
    assert_int_equal(stats.streamed_layers, 0);
    for (uint32_t stay = 1; stay < n_layers; stay++)
        for (uint32_t way = 0; way < 3; way++) {
            char layers[32], depth[32];
            snprintf(layers, sizeof layers, "resident-layers=%u", stay);
            snprintf(depth, sizeof depth, "prefetch-depth=%u", 1 + way % 2);
            const char *settings[] = {layers, depth, ways[way][0], ways[way][1], "threads=2", NULL};
            float *got = logits_of(model, settings, &stats);
            if (memcmp(got, want, N_IDS * n_vocab * sizeof *got))
                fail_msg("%s, %s, %s, %s: other logits", model, layers, ways[way][0], ways[way][1]);
            const uint32_t n_slots = 2 + way % 2, streamed = n_layers - stay;
            const uint32_t passes = (N_IDS + 4) / 5;
            if (streamed > n_slots) /* each once per pass, and what was read ahead for a pass that did not come */
                assert_in_range(stats.streamed_layers, passes * streamed, passes * streamed + n_slots);
            else
                assert_int_equal(stats.streamed_layers, streamed);
            free(got);
        }
    free(want);
}

static void logits_stay_the_same(void **state)
{
    (void)state;
    check_model(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"));
    check_model(TEST_DATA("arch/llama.gguf"));
    check_model(TEST_DATA("arch/qwen3.gguf"));
    check_model(TEST_DATA("arch/granitemoe_shared.gguf"));
}

/* ---- passes that do not end ---- */

struct stopper {
    int after; /* polls until it says stop; < 0: never */
};

static bool stop(void *ctx)
{
    struct stopper *s = ctx;
    return s->after >= 0 && s->after-- == 0;
}

static int one_pass(clb_engine *e, const uint32_t *tokens, uint32_t n, float *out, clb_error *err)
{
    clb_kv_seq *kv;
    assert_ok(clb_engine_new_sequence(e, &kv, err), err);
    const clb_span span = {.kv = kv, .tokens = tokens, .n = n, .n_logits = 1};
    const int rc = clb_forward_run(e->forward, &span, 1, out, err);
    clb_kv_seq_destroy(kv);
    return rc;
}

static void passes_can_be_broken_off(void **state)
{
    (void)state;
    static const char *const settings[] = {"resident-layers=1", "prefetch-depth=1", "threads=2", NULL};
    const char *model = TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf");
    struct stopper s = {-1};
    const test_engine_hooks hooks = {.cancelled = stop, .ctx = &s};
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, model, settings, &hooks, &err), &err);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    float *want = malloc(n_vocab * sizeof *want), *got = malloc(n_vocab * sizeof *got);
    assert_true(want && got);
    assert_ok(one_pass(e.engine, ids, 7, want, &err), &err);
    for (int layer = 0; layer < (int)e.engine->model->hp.n_layers; layer++) {
        s.after = layer;
        assert_fails(one_pass(e.engine, ids, 7, got, &err), &err, COLIBRI_E_CANCELLED, "stopped");
        s.after = -1;
        assert_ok(one_pass(e.engine, ids, 7, got, &err), &err);
        assert_memory_equal(got, want, n_vocab * sizeof *got);
    }
    free(want);
    free(got);
    test_engine_close(&e);
}

/* Experts that were all there from the start have slots without room for direct reads; a reader for streamed layers must not
 * be used to bring them back. */
static void emptied_experts_beside_streamed_layers(void **state)
{
    (void)state;
    static const char *const direct[] = {"on", "off"};
    for (size_t d = 0; d < 2; d++) {
        char io[32];
        snprintf(io, sizeof io, "store.direct=%s", direct[d]);
        const char *const settings[] = {"resident-layers=1", io, "threads=2", NULL};
        clb_error err;
        clb_store_stats stats;
        test_engine e;
        assert_ok(test_engine_open(&e, TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), settings, NULL, &err), &err);
        clb_store *store = e.engine->model->store;
        const size_t n_vocab = e.engine->model->hp.n_vocab;
        float *want = malloc(n_vocab * sizeof *want), *got = malloc(n_vocab * sizeof *got);
        assert_true(want && got);
        assert_ok(one_pass(e.engine, ids, N_IDS, want, &err), &err);
        clb_store_get_stats(store, &stats);
        assert_true(stats.n_slots == stats.n_experts && stats.misses == 0 && stats.streamed_layers);
        clb_store_reset_experts(store);
        for (int again = 0; again < 3; again++) {
            assert_ok(one_pass(e.engine, ids, N_IDS, got, &err), &err);
            assert_memory_equal(got, want, n_vocab * sizeof *got);
        }
        clb_store_get_stats(store, &stats);
        assert_true(stats.misses);
        free(want);
        free(got);
        test_engine_close(&e);
    }
}

static void copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* A file that shrinks under a running engine: one clear error for each pass, and none once it is whole again. */
static void files_that_shrink(void **state)
{
    (void)state;
    static const char *const variants[][5] = {
        {"resident-layers=1", "store.io=uring", "store.direct=off", "threads=2", NULL},
        {"resident-layers=1", "store.io=pread", "store.direct=off", "threads=2", NULL},
        {"expert-slots=20", "store.io=uring", "store.direct=off", "threads=2", NULL},
        {"expert-slots=20", "store.io=pread", "store.direct=off", "threads=1", NULL},
    };
    const char *model = TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf");
    char path[64], whole[80];
    clb_error err;
    snprintf(path, sizeof path, "/tmp/colibri-stream-%ld.gguf", (long)getpid());
    snprintf(whole, sizeof whole, "%s.whole", path);
    copy_file(model, whole);
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        test_engine e;
        copy_file(model, path);
        assert_ok(test_engine_open(&e, path, variants[v], NULL, &err), &err);
        const size_t n_vocab = e.engine->model->hp.n_vocab;
        float *want = malloc(n_vocab * sizeof *want), *got = malloc(n_vocab * sizeof *got);
        assert_true(want && got);
        assert_ok(one_pass(e.engine, ids, 9, want, &err), &err);
        assert_int_equal(truncate(path, 1 << 20), 0);
        for (int again = 0; again < 3; again++) {
            const int rc = one_pass(e.engine, ids, 9, got, &err);
            if (rc != COLIBRI_E_IO)
                fail_msg("variant %zu, try %d: %s", v, again, err.msg);
            assert_true(test_contains(err.msg, "layer"));
            assert_true(test_contains(err.msg, "shrank"));
        }
        copy_file(whole, path); /* the same inode: what the engine has open */
        for (int again = 0; again < 2; again++) {
            assert_ok(one_pass(e.engine, ids, 9, got, &err), &err);
            assert_memory_equal(got, want, n_vocab * sizeof *got);
        }
        free(want);
        free(got);
        test_engine_close(&e);
    }
    unlink(path);
    unlink(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_stay_the_same), cmocka_unit_test(passes_can_be_broken_off),
                                       cmocka_unit_test(emptied_experts_beside_streamed_layers),
                                       cmocka_unit_test(files_that_shrink)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
