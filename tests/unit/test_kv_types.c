/* slow
 * Quantized keys and values in whole models: the same logits, byte for byte, for any chunks, block size, threads and
 * batch mates, with and without turning and a recent window; settings that do not fit; what is planned for them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv_settings.h"
#include "support/engine.h"

#define MODEL    TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N_TOKENS 260u

static const char *const layouts[][3] = {
    {"kv.kv-type=q8_0"},
    {"kv.kv-type-k=q8_0", "kv.kv-type-v=q4_0"},
    {"kv.kv-type=q4_0", "kv.kv-recent=16"},
    {"kv.kv-type=q4_0", "kv.kv-recent=0", "kv.kv-turn=off"},
    {"kv.kv-type-v=q8_0", "kv.kv-turn=on", "kv.kv-recent=96"},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static void open_with(test_engine *e, const char *const *layout, uint32_t page, uint32_t threads, uint32_t n_sequences)
{
    char text[2][40];
    const char *settings[8] = {text[0], text[1], "ctx=512", "batch=512"};
    size_t n = 4;
    snprintf(text[0], sizeof text[0], "kv.kv-block-size=%u", page);
    snprintf(text[1], sizeof text[1], "threads=%u", threads);
    for (size_t i = 0; layout && i < 3 && layout[i]; i++)
        settings[n++] = layout[i];
    const test_engine_hooks hooks = {.n_sequences = n_sequences};
    clb_error err;
    assert_ok(test_engine_open(e, MODEL, settings, &hooks, &err), &err);
}

static float *logits_of(const char *const *layout, uint32_t page, uint32_t threads, const uint32_t *ids, uint32_t chunk)
{
    test_engine e;
    open_with(&e, layout, page, threads, 1);
    float *logits = test_engine_logits(e.engine, ids, N_TOKENS, chunk);
    test_engine_close(&e);
    return logits;
}

static void same(const char *what, const float *a, const float *b, uint32_t n, size_t n_vocab)
{
    for (uint32_t t = 0; t < n; t++)
        if (memcmp(a + t * n_vocab, b + t * n_vocab, n_vocab * sizeof *a) != 0)
            fail_msg("%s: logits of position %u are not the same bytes", what, t);
}

/* The text in chunks of 7 beside two others that run at their own pace. */
static float *logits_in_company(const char *const *layout, const uint32_t *ids)
{
    test_engine e;
    clb_error err;
    clb_kv_seq *kv[3];
    open_with(&e, layout, 32, 2, 3);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    float *logits = malloc(N_TOKENS * n_vocab * sizeof *logits), *row = malloc(64 * n_vocab * sizeof *row);
    assert_true(logits && row);
    for (int s = 0; s < 3; s++)
        assert_ok(clb_engine_new_sequence(e.engine, &kv[s], &err), &err);
    for (uint32_t at = 0, n; at < N_TOKENS; at += n) {
        n = N_TOKENS - at < 7 ? N_TOKENS - at : 7;
        const clb_span spans[3] = {
            {.kv = kv[0], .tokens = ids + at / 2, .n = 3, .n_logits = 1, .phase = COLIBRI_PHASE_PREFILL},
            {.kv = kv[1], .tokens = ids + at, .n = n, .n_logits = n, .phase = COLIBRI_PHASE_PREFILL},
            {.kv = kv[2], .tokens = ids + at / 3, .n = 1, .n_logits = 1, .phase = COLIBRI_PHASE_DECODE}};
        assert_ok(clb_forward_run(e.engine->forward, spans, 3, row, &err), &err);
        memcpy(logits + at * n_vocab, row + n_vocab, n * n_vocab * sizeof *row);
    }
    for (int s = 0; s < 3; s++)
        clb_kv_seq_destroy(kv[s]);
    free(row);
    test_engine_close(&e);
    return logits;
}

static void same_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t chunk, page, threads;
    } ways[] = {{1, 32, 2}, {5, 16, 1}, {17, 64, 3}, {512, 16, 3}, {512, 128, 1}, {64, 32, 2}, {1, 16, 3}};
    test_engine e;
    open_with(&e, NULL, 32, 2, 1);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    uint32_t ids[N_TOKENS];
    test_rand rng = {20261130};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        ids[i] = test_rand_below(&rng, (uint32_t)n_vocab);
    float *plain = test_engine_logits(e.engine, ids, N_TOKENS, 0), *base[N_LAYOUTS];
    test_engine_close(&e);
    for (size_t l = 0; l < N_LAYOUTS; l++) {
        base[l] = logits_of(layouts[l], 32, 2, ids, 0);
        assert_true(isfinite(test_max_abs_diff(plain, base[l], N_TOKENS * n_vocab)));
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            char what[80];
            snprintf(what, sizeof what, "layout %zu, chunks of %u, pages of %u, %u threads", l, ways[w].chunk,
                     ways[w].page, ways[w].threads);
            float *logits = logits_of(layouts[l], ways[w].page, ways[w].threads, ids, ways[w].chunk);
            same(what, base[l], logits, N_TOKENS, n_vocab);
            free(logits);
        }
        float *logits = logits_in_company(layouts[l], ids);
        same("other sequences in the batch", base[l], logits, N_TOKENS, n_vocab);
        free(logits);
        /* and every layout is another one */
        for (size_t other = 0; other < l; other++)
            assert_true(memcmp(base[l], base[other], N_TOKENS * n_vocab * sizeof *plain) != 0);
        assert_true(memcmp(base[l], plain, N_TOKENS * n_vocab * sizeof *plain) != 0);
    }
    for (size_t l = 0; l < N_LAYOUTS; l++)
        free(base[l]);
    free(plain);
}

/* Strategies that evict, and watch attention row by row, from quantized pages and a window: any threads, the same
 * bytes; and the planned memory suffices. */
static void with_strategies(void **state)
{
    (void)state;
    static const char *const strategies[] = {"streaming", "h2o", "keydiff", "ada/keydiff", "cam/h2o", "snapkv", "ada/snapkv", "quest", "expected-attention"};
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++) {
        char name[64];
        snprintf(name, sizeof name, "kv.kv-strategy=%s", strategies[s]);
        float *logits[2];
        size_t n = 0;
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            char text[32];
            snprintf(text, sizeof text, "threads=%u", threads);
            const char *const settings[] = {
                name, text, "kv.kv-budget=80", "kv.kv-type=q4_0", "kv.kv-recent=32", "ctx=512", "batch=48", NULL};
            test_engine e;
            clb_error err;
            assert_ok(test_engine_open(&e, MODEL, settings, NULL, &err), &err);
            const size_t n_vocab = e.engine->model->hp.n_vocab;
            uint32_t ids[N_TOKENS];
            test_rand rng = {5};
            for (uint32_t i = 0; i < N_TOKENS; i++)
                ids[i] = test_rand_below(&rng, (uint32_t)n_vocab);
            n = N_TOKENS * n_vocab;
            logits[threads / 2] = test_engine_logits(e.engine, ids, N_TOKENS, 13);
            assert_true(clb_kv_cache_peak_bytes(e.engine->kv) <= e.engine->plan.kv_bytes);
            test_engine_close(&e);
        }
        assert_true(isfinite(test_max_abs_diff(logits[0], logits[1], n)));
        if (memcmp(logits[0], logits[1], n * sizeof *logits[0]) != 0)
            fail_msg("%s: logits depend on the threads", strategies[s]);
        free(logits[0]);
        free(logits[1]);
    }
}

/* As long as the window holds the whole text, an F16 cache gives the same bytes. */
static void window_over_all(void **state)
{
    (void)state;
    static const char *const wide[3] = {"kv.kv-type=q4_0", "kv.kv-recent=512", "kv.kv-turn=off"};
    test_engine e;
    open_with(&e, NULL, 32, 2, 1);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    uint32_t ids[N_TOKENS];
    test_rand rng = {7};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        ids[i] = test_rand_below(&rng, (uint32_t)n_vocab);
    float *plain = test_engine_logits(e.engine, ids, N_TOKENS, 0);
    test_engine_close(&e);
    float *logits = logits_of(wide, 32, 2, ids, 11);
    same("window of 512", plain, logits, N_TOKENS, n_vocab);
    free(logits);
    free(plain);
}

static void settings_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *says;
    } cases[] = {{"kv.kv-recent=40", "--kv-recent 40: must be a multiple of 16"},
                 {"kv.kv-block-size=40", "--kv-block-size 40: must be a multiple of 16"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        test_engine e;
        clb_error err;
        const char *const settings[] = {"kv.kv-type=q8_0", cases[c].setting, NULL};
        assert_fails(test_engine_open(&e, MODEL, settings, NULL, &err), &err, COLIBRI_E_USAGE, cases[c].says);
        test_engine_close(&e);
    }
    clb_config *config;
    clb_error err;
    assert_ok(clb_config_create(&config, &err), &err);
    assert_ok(clb_config_set(config, "kv.kv-type=q8_0", "test", &err), &err);
    assert_ok(clb_config_set(config, "kv.kv-type-v=q4_0", "test", &err), &err);
    clb_kv_layout l = {.k_dim = 64, .v_dim = 128};
    char text[CLB_KV_LAYOUT_TEXT];
    assert_ok(clb_kv_settings_read(config, &l, &err), &err);
    assert_true(!l.turn_k && l.turn_v && l.recent == 64 && clb_kv_layout_lossy(&l));
    assert_string_equal(clb_kv_layout_text(&l, text), "k q8_0, v q4_0 turned, last 64 f16");
    assert_int_equal(clb_kv_layout_takes(&l),
                     COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT);
    l.k_dim = 80;
    assert_fails(clb_kv_settings_read(config, &l, &err), &err, COLIBRI_E_USAGE, "--kv-type q8_0 does not apply");
    l.k_dim = 64;
    l.v_dim = 80;
    assert_fails(clb_kv_settings_read(config, &l, &err), &err, COLIBRI_E_USAGE, "--kv-type-v q4_0 does not apply");
    assert_ok(clb_config_set(config, "kv.kv-type=f16", "test", &err), &err);
    assert_ok(clb_config_set(config, "kv.kv-type-v=same", "test", &err), &err);
    assert_ok(clb_config_set(config, "kv.kv-turn=on", "test", &err), &err);
    assert_ok(clb_kv_settings_read(config, &l, &err), &err); /* nothing to turn, no window */
    assert_true(!l.turn_k && !l.turn_v && l.recent == 0 && !clb_kv_layout_lossy(&l) && clb_kv_layout_takes(&l) == 0);
    assert_string_equal(clb_kv_layout_text(&l, text), "f16");
    clb_config_destroy(config);
}

/* What is planned is what the cache can take, and a text that fills the context fits into it. */
static void planned_bytes(void **state)
{
    (void)state;
    for (size_t l = 0; l < N_LAYOUTS; l++) {
        test_engine e;
        open_with(&e, layouts[l], 32, 2, 2);
        const clb_engine *const g = e.engine;
        assert_int_equal(g->plan.kv_bytes,
                         2 * clb_kv_sequence_bytes(&g->kv_layout, g->plan_input.kv_positions, g->batch));
        uint32_t ids[512];
        for (uint32_t i = 0; i < 512; i++)
            ids[i] = i % g->model->hp.n_vocab;
        for (int s = 0; s < 2; s++)
            free(test_engine_logits(e.engine, ids, 512, s ? 1 : 512));
        assert_true(clb_kv_cache_peak_bytes(g->kv) <= g->plan.kv_bytes);
        assert_int_equal(clb_kv_cache_used_bytes(g->kv), 0);
        test_engine_close(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),       cmocka_unit_test(with_strategies),
        cmocka_unit_test(window_over_all), cmocka_unit_test(settings_that_do_not_fit),
        cmocka_unit_test(planned_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
