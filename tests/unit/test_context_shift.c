/* Full contexts that shift, protected starts, and texts beyond the context in constant memory. */
#include <stdlib.h>
#include <string.h>

#include "engine/kv_strategy_settings.h"
#include "support/engine.h"

#define SMALL TEST_DATA("arch/qwen3moe.gguf")

static void open_engine(test_engine *e, const char *const *settings)
{
    static const test_engine_hooks hooks = {.n_sequences = 2};
    clb_error err;
    assert_ok(test_engine_open(e, SMALL, settings, &hooks, &err), &err);
}

static clb_session *make(test_engine *e)
{
    clb_error err;
    clb_session *s;
    assert_ok(clb_session_create(e->engine, &s, &err), &err);
    return s;
}

static void some_ids(const test_engine *e, uint32_t *ids, uint32_t n)
{
    test_rand rng = {17};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = test_rand_below(&rng, e->engine->model->hp.n_vocab);
}

/* The session's logits after `next` are those of a fresh session over ids[0..n) and `next`, all at once. */
static void check_fresh(test_engine *e, clb_session *s, const uint32_t *ids, size_t n, uint32_t next)
{
    clb_error err;
    uint32_t all[256];
    memcpy(all, ids, n * sizeof *all);
    all[n] = next;
    clb_session *fresh = make(e);
    assert_ok(clb_session_append(s, next, &err), &err);
    assert_ok(clb_session_feed(fresh, all, n + 1, NULL, &err), &err);
    assert_int_equal(clb_session_n_tokens(s), n + 1);
    assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh), e->engine->model->hp.n_vocab * sizeof(float));
    clb_session_destroy(fresh);
}

static void a_shift_is_a_fresh_start(void **state)
{
    (void)state;
    /* Protected by the setting, by the session, by neither; with what is kept of 64 tokens. */
    static const struct {
        const char *protect;
        uint32_t system, first, kept;
    } cases[] = {{"kv-protect=0", 0, 0, 32}, {"kv-protect=10", 0, 10, 27}, {"kv-protect=10", 20, 20, 22},
                 {"kv-protect=9", 5, 9, 27}, {"kv-protect=61", 0, 61, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const settings[] = {"threads=2", "batch=16", "ctx=64", "context-shift=yes", cases[i].protect, NULL};
        const uint32_t first = cases[i].first, kept = cases[i].kept;
        clb_error err;
        test_engine e;
        uint32_t ids[64], left[64];
        open_engine(&e, settings);
        some_ids(&e, ids, 64);
        clb_session *s = make(&e);
        if (cases[i].system)
            assert_ok(clb_session_protect(s, cases[i].system, &err), &err);
        assert_ok(clb_session_feed(s, ids, 64, NULL, &err), &err);
        assert_true(clb_session_full(s));
        assert_ok(clb_session_shift(s, &err), &err);
        assert_false(clb_session_full(s));
        memcpy(left, ids, first * sizeof *ids);
        memcpy(left + first, ids + 64 - kept, kept * sizeof *ids);
        assert_int_equal(clb_session_n_tokens(s), first + kept);
        assert_int_equal(clb_session_shifts(s).n, 1);
        assert_int_equal(clb_session_shifts(s).dropped, 64 - first - kept);
        check_fresh(&e, s, left, first + kept, 3);
        clb_session_destroy(s);
        test_engine_close(&e);
    }
}

static void generation_goes_on(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=48", "context-shift=yes", "kv-protect=4", NULL};
    clb_error err;
    test_engine e;
    uint32_t ids[30];
    open_engine(&e, settings);
    some_ids(&e, ids, 30);
    const clb_generate_options options = {.max_tokens = 200, .ignore_eog = true, .sampling = {.top_p = 1, .repeat_penalty = 1}};
    clb_generation g;
    clb_session *s = make(&e);
    assert_ok(clb_session_generate(s, ids, 30, &options, &g, &err), &err);
    assert_int_equal(g.finish, CLB_FINISH_LENGTH);
    assert_int_equal(g.tokens.n, 200);
    assert_true(clb_session_shifts(s).n >= 7);
    assert_true(clb_session_n_tokens(s) <= 48);
    /* The last token is not fed any more. */
    assert_int_equal(clb_session_n_tokens(s) + clb_session_shifts(s).dropped, 30 + 199);
    /* From its tokens alone the same text comes: drop as it did, and compare the logits. */
    uint32_t text[229], held[48];
    memcpy(text, ids, sizeof ids);
    memcpy(text + 30, g.tokens.ids, 199 * sizeof *text);
    const size_t n = clb_session_n_tokens(s);
    memcpy(held, text, 4 * sizeof *held);
    memcpy(held + 4, text + 229 - (n - 4), (n - 4) * sizeof *held);
    clb_session *fresh = make(&e);
    assert_ok(clb_session_feed(fresh, held, n, NULL, &err), &err);
    assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh), e.engine->model->hp.n_vocab * sizeof(float));
    clb_session_destroy(fresh);
    clb_generation_free(&g);
    clb_session_destroy(s);
    test_engine_close(&e);
}

static void nothing_to_drop_ends_the_text(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "batch=16", "ctx=32", "context-shift=yes", "kv-protect=31", NULL};
    clb_error err;
    test_engine e;
    uint32_t ids[33];
    open_engine(&e, settings);
    some_ids(&e, ids, 33);
    const clb_generate_options options = {.max_tokens = 0, .ignore_eog = true, .sampling = {.top_p = 1, .repeat_penalty = 1}};
    clb_generation g;
    clb_session *s = make(&e);
    assert_ok(clb_session_generate(s, ids, 20, &options, &g, &err), &err);
    assert_int_equal(g.finish, CLB_FINISH_CONTEXT);
    assert_int_equal(g.tokens.n, 32 - 20 + 1);
    assert_int_equal(clb_session_shifts(s).n, 0);
    clb_generation_free(&g);
    /* A prompt is never cut. */
    assert_int_equal(clb_session_feed(s, ids, 33, NULL, &err), COLIBRI_E_LIMIT);
    assert_non_null(strstr(err.msg, "33 tokens, the context holds 32"));
    clb_session_destroy(s);
    test_engine_close(&e);
}

/* Four contexts of text under strategies that evict: what the pool holds at most, it holds after the first context. */
static void evicting_runs_in_constant_memory(void **state)
{
    (void)state;
    static const char *const strategies[] = {"kv-strategy=sliding-window", "kv-strategy=h2o", "kv-strategy=streaming"};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        const char *const settings[] = {"threads=2",    "batch=16",         "ctx=128", strategies[i],
                                        "kv-budget=64", "kv-block-size=16", NULL};
        clb_error err;
        test_engine e;
        uint32_t ids[512];
        open_engine(&e, settings);
        some_ids(&e, ids, 512);
        clb_session *s = make(&e);
        assert_ok(clb_session_protect(s, 8, &err), &err);
        assert_ok(clb_session_feed(s, ids, 100, NULL, &err), &err);
        for (uint32_t t = 100; t < 128; t++)
            assert_ok(clb_session_append(s, ids[t], &err), &err);
        const uint64_t peak = clb_kv_cache_peak_bytes(e.engine->kv);
        assert_true(peak <= clb_kv_bytes(&e.engine->kv_layout, 64 + 16));
        for (uint32_t t = 128; t < 512; t++)
            assert_ok(clb_session_append(s, ids[t], &err), &err);
        assert_int_equal(clb_kv_cache_peak_bytes(e.engine->kv), peak);
        assert_int_equal(clb_session_n_tokens(s), 512);
        uint32_t kept[128];
        assert_true(clb_kv_seq_positions(clb_session_kv(s), 0, 0, kept, 128) <= 80);
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(kept[k], k); /* protected */
        clb_session_destroy(s);
        test_engine_close(&e);
    }
}

/* A strategy that makes no room when a pass begins keeps what comes up to the context: then the text ends there, as it does
 * without a strategy, and with what was written. A prompt that it must hold whole is refused before anything is computed. */
static void texts_end_where_nothing_makes_room(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=96", "kv-strategy=h2o", "kv-budget=80", NULL};
    static const uint32_t triggers[] = {COLIBRI_KV_AT_PREFILL_END, COLIBRI_KV_AT_CHUNK};
    for (size_t i = 0; i < sizeof triggers / sizeof *triggers; i++) {
        const bool at_end = triggers[i] == COLIBRI_KV_AT_PREFILL_END;
        clb_error err;
        test_engine e;
        uint32_t ids[120];
        open_engine(&e, settings);
        some_ids(&e, ids, 120);
        struct colibri_kv_strategy strategy = *e.engine->kv_choice.strategy;
        strategy.triggers = triggers[i];
        e.engine->kv_choice.strategy = &strategy;
        e.engine->kv_choice.traits.triggers = triggers[i];
        const clb_generate_options options = {.ignore_eog = true, .sampling = {.top_p = 1, .repeat_penalty = 1}};
        clb_generation g;
        clb_session *s = make(&e);
        assert_ok(clb_session_generate(s, ids, 20, &options, &g, &err), &err);
        assert_int_equal(g.finish, CLB_FINISH_CONTEXT);
        assert_int_equal(g.tokens.n, 96 - 20 + 1);
        assert_true(clb_session_full(s));
        clb_generation_free(&g);
        clb_session_reset(s);
        assert_int_equal(clb_session_feed(s, ids, 120, NULL, &err), at_end ? COLIBRI_E_LIMIT : COLIBRI_OK);
        if (at_end)
            assert_non_null(strstr(err.msg, "120 tokens, the context holds 96"));
        assert_int_equal(clb_session_n_tokens(s), at_end ? 0 : 120);
        clb_session_destroy(s);
        test_engine_close(&e);
    }
}

static void a_protected_start_must_leave_room(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "batch=16", "ctx=128", "kv-strategy=streaming", "kv-budget=48", NULL};
    clb_error err;
    test_engine e;
    open_engine(&e, settings);
    clb_session *s = make(&e);
    assert_int_equal(clb_session_protect(s, 48, &err), COLIBRI_E_LIMIT);
    assert_non_null(strstr(err.msg, "48"));
    assert_ok(clb_session_protect(s, 47, &err), &err);
    clb_session_destroy(s);
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shift_is_a_fresh_start),         cmocka_unit_test(generation_goes_on),
        cmocka_unit_test(nothing_to_drop_ends_the_text),    cmocka_unit_test(evicting_runs_in_constant_memory),
        cmocka_unit_test(texts_end_where_nothing_makes_room), cmocka_unit_test(a_protected_start_must_leave_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
