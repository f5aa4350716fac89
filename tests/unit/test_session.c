/* Sessions: reuse of prefixes, limits, cancellation, and text as it is given out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/engine.h"
#include "text/chat.h"

#define SMALL    TEST_DATA("arch/qwen3moe.gguf")
#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")

static clb_session *make(test_engine *e)
{
    clb_error err;
    clb_session *s;
    assert_ok(clb_session_create(e->engine, &s, &err), &err);
    return s;
}

static void open_engine(test_engine *e, const char *model, const char *const *settings, const test_engine_hooks *hooks)
{
    clb_error err;
    assert_ok(test_engine_open(e, model, settings, hooks, &err), &err);
}

static void random_ids(const test_engine *e, uint32_t *ids, uint32_t n, uint64_t seed)
{
    test_rand rng = {seed};
    for (uint32_t i = 0; i < n; i++)
        ids[i] = test_rand_below(&rng, e->engine->model->hp.n_vocab);
}

/* The session's logits are those of a fresh session that was fed ids[0..n). */
static void check_fresh(test_engine *e, const clb_session *s, const uint32_t *ids, size_t n)
{
    clb_error err;
    clb_session *fresh = make(e);
    assert_ok(clb_session_feed(fresh, ids, n, NULL, &err), &err);
    assert_int_equal(clb_session_n_tokens(s), n);
    assert_memory_equal(clb_session_logits(s), clb_session_logits(fresh), e->engine->model->hp.n_vocab * sizeof(float));
    clb_session_destroy(fresh);
}

static size_t feed(clb_session *s, const uint32_t *ids, size_t n)
{
    clb_error err;
    size_t reused = SIZE_MAX;
    assert_ok(clb_session_feed(s, ids, n, &reused, &err), &err);
    return reused;
}

/* ---- prefixes ---- */

static void prefixes_are_reused(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=200", "expert-slots=5", NULL};
    const test_engine_hooks hooks = {.n_sequences = 2};
    clb_error err;
    test_engine e;
    uint32_t ids[120], other[120];
    open_engine(&e, SMALL, settings, &hooks);
    random_ids(&e, ids, 120, 1);
    memcpy(other, ids, sizeof ids);
    for (uint32_t i = 70; i < 120; i++)
        other[i] = (ids[i] + 1) % e.engine->model->hp.n_vocab;
    clb_session *s = make(&e);
    assert_int_equal(feed(s, ids, 50), 0);
    check_fresh(&e, s, ids, 50);
    assert_int_equal(feed(s, ids, 100), 50); /* longer */
    check_fresh(&e, s, ids, 100);
    assert_int_equal(feed(s, other, 110), 70); /* another continuation */
    check_fresh(&e, s, other, 110);
    assert_int_equal(feed(s, ids, 30), 29); /* shorter: the last one again, for its logits */
    check_fresh(&e, s, ids, 30);
    assert_int_equal(feed(s, ids, 30), 29); /* the same */
    check_fresh(&e, s, ids, 30);
    for (uint32_t i = 30; i < 40; i++) /* appended tokens count as the session's own */
        assert_ok(clb_session_append(s, ids[i], &err), &err);
    check_fresh(&e, s, ids, 40);
    assert_int_equal(feed(s, ids, 60), 40);
    check_fresh(&e, s, ids, 60);
    assert_int_equal(feed(s, other + 1, 20), 0); /* nothing in common */
    check_fresh(&e, s, other + 1, 20);
    clb_session_reset(s);
    assert_int_equal(clb_session_n_tokens(s), 0);
    assert_int_equal(feed(s, ids, 100), 0);
    check_fresh(&e, s, ids, 100);
    assert_int_equal(feed(s, ids, 1), 0);
    check_fresh(&e, s, ids, 1);
    clb_session_destroy(s);
    assert_int_equal(clb_kv_cache_used_bytes(e.engine->kv), 0);
    test_engine_close(&e);
}

/* What a strategy has evicted cannot come back: another continuation starts over, the same one goes on. */
static void evicting_strategies_start_over(void **state)
{
    (void)state;
    static const char *const settings[][7] = {
        {"threads=2", "batch=16", "ctx=200", "kv-strategy=sliding-window", "kv-budget=32", "kv-block-size=16", NULL},
        {"threads=2", "batch=16", "ctx=200", "kv-strategy=important-tokens", "kv-budget=64", "kv-block-size=16", NULL},
    };
    const test_engine_hooks hooks = {.n_sequences = 2};
    for (size_t i = 0; i < 2; i++) {
        clb_error err;
        test_engine e;
        uint32_t ids[300], other[300];
        open_engine(&e, SMALL, settings[i], &hooks);
        random_ids(&e, ids, 300, 2);
        memcpy(other, ids, sizeof ids);
        other[150] = (ids[150] + 1) % e.engine->model->hp.n_vocab;
        clb_session *s = make(&e);
        assert_int_equal(feed(s, ids, 160), 0);
        clb_kv_stats stats;
        clb_kv_seq_stats(clb_session_kv(s), &stats);
        assert_true(stats.evicted_sum > 0);
        assert_int_equal(feed(s, other, 160), 0);
        check_fresh(&e, s, other, 160);
        for (uint32_t t = 160; t < 260; t++) /* beyond the context length: it evicts, and goes on */
            assert_ok(clb_session_append(s, ids[t], &err), &err);
        assert_int_equal(clb_session_n_tokens(s), 260);
        memcpy(other + 160, ids + 160, 100 * sizeof *ids);
        assert_int_equal(feed(s, other, 300), 260);
        assert_int_equal(clb_session_n_tokens(s), 300);
        clb_session_destroy(s);
        test_engine_close(&e);
    }
}

/* ---- limits ---- */

struct counted {
    uint64_t layers;
    uint64_t stop_at; /* 0: never */
};

static bool count_layers(void *ctx)
{
    struct counted *c = ctx;
    return ++c->layers == c->stop_at;
}

static void limits_come_first(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "batch=16", "ctx=64", NULL};
    struct counted counted = {0};
    const test_engine_hooks hooks = {.n_sequences = 2, .cancelled = count_layers, .ctx = &counted};
    clb_error err;
    test_engine e;
    uint32_t ids[80];
    open_engine(&e, SMALL, settings, &hooks);
    counted.layers = 0; /* loading asks, too */
    random_ids(&e, ids, 80, 3);
    clb_session *s = make(&e);
    assert_fails(clb_session_feed(s, ids, 65, NULL, &err), &err, COLIBRI_E_LIMIT, "65 tokens, the context holds 64");
    assert_fails(clb_session_feed(s, ids, 0, NULL, &err), &err, COLIBRI_E_USAGE, "no tokens");
    assert_int_equal(counted.layers, 0); /* nothing was computed */
    assert_int_equal(feed(s, ids, 40), 0);
    const uint64_t before = counted.layers;
    assert_int_equal(clb_session_feed(s, ids, 65, NULL, NULL), COLIBRI_E_LIMIT);
    assert_int_equal(counted.layers, before);
    check_fresh(&e, s, ids, 40); /* and nothing forgotten */
    assert_int_equal(feed(s, ids, 64), 40);
    check_fresh(&e, s, ids, 64);
    assert_fails(clb_session_append(s, ids[64], &err), &err, COLIBRI_E_LIMIT, "64");
    check_fresh(&e, s, ids, 64);
    const uint32_t alien = e.engine->model->hp.n_vocab;
    assert_fails(clb_session_feed(s, &alien, 1, NULL, &err), &err, COLIBRI_E_USAGE, "outside the vocabulary");
    assert_int_equal(clb_session_n_tokens(s), 0);
    assert_int_equal(feed(s, ids, 10), 0);
    check_fresh(&e, s, ids, 10);
    clb_session_destroy(s);
    test_engine_close(&e);
}

/* Stopped anywhere in a prompt in chunks, the session goes on from the last whole chunk. With all experts in memory the
 * request is looked at once for each layer; with few slots also while experts are waited for. */
static void check_cancelled(const char *const *settings, bool once_per_layer)
{
    struct counted counted = {0};
    const test_engine_hooks hooks = {.n_sequences = 2, .cancelled = count_layers, .ctx = &counted};
    clb_error err;
    test_engine e;
    uint32_t ids[60];
    open_engine(&e, SMALL, settings, &hooks);
    random_ids(&e, ids, 60, 4);
    const uint32_t n_layers = e.engine->model->hp.n_layers;
    for (uint64_t stop = 1; stop <= 4 * n_layers; stop++) { /* 60 tokens: four chunks */
        clb_session *s = make(&e);
        counted = (struct counted){.stop_at = stop};
        assert_fails(clb_session_feed(s, ids, 60, NULL, &err), &err, COLIBRI_E_CANCELLED, "stopped");
        const size_t kept = clb_session_n_tokens(s);
        if (once_per_layer)
            assert_int_equal(kept, (size_t)((stop - 1) / n_layers) * 16);
        assert_true(kept % 16 == 0 && kept <= (size_t)((stop - 1) / n_layers) * 16);
        assert_int_equal(clb_kv_seq_position(clb_session_kv(s)), kept);
        counted = (struct counted){0};
        assert_int_equal(feed(s, ids, 60), kept);
        check_fresh(&e, s, ids, 60);
        clb_session_destroy(s);
    }
    test_engine_close(&e);
}

static void cancelled_prompts_can_go_on(void **state)
{
    (void)state;
    static const char *const resident[] = {"threads=2", "batch=16", "ctx=100", NULL};
    static const char *const few_slots[] = {"threads=2", "batch=16", "ctx=100", "expert-slots=4", NULL};
    check_cancelled(resident, true);
    check_cancelled(few_slots, false);
}

/* ---- text ---- */

struct heard {
    clb_buf text;
    uint32_t n_calls, stop_after; /* stop_after 0: never */
    uint32_t split;               /* calls that would cut a character */
};

static int hear(void *ctx, const char *text, size_t n, clb_error *err)
{
    struct heard *h = ctx;
    assert_true(n > 0);
    h->split += clb_utf8_complete(text, n) != n;
    CLB_TRY(clb_buf_append(&h->text, text, n, err));
    if (++h->n_calls == h->stop_after)
        return clb_fail(err, COLIBRI_E_CANCELLED, "heard enough");
    return COLIBRI_OK;
}

static const clb_sampler_params greedy = {.top_p = 1.0, .repeat_penalty = 1.0};

/* Generates; what was heard is what is in *out. Frees nothing. */
static int generate(clb_session *s, const clb_tokens *prompt, clb_generate_options *o, struct heard *heard,
                    clb_generation *out, clb_error *err)
{
    *heard = (struct heard){.stop_after = heard->stop_after};
    o->sampling = greedy;
    o->on_text = hear;
    o->ctx = heard;
    const int rc = clb_session_generate(s, prompt->ids, prompt->n, o, out, err);
    assert_int_equal(heard->text.n, out->text.n);
    if (out->text.n)
        assert_memory_equal(heard->text.data, out->text.data, out->text.n);
    clb_buf_free(&heard->text);
    return rc;
}

static void chat_prompt(const test_engine *e, const char *text, clb_tokens *out)
{
    clb_error err;
    const clb_chat_format *format;
    const clb_message message = {"user", text};
    assert_ok(clb_chat_detect(e->engine->gguf, &format, &err), &err);
    assert_ok(clb_chat_tokenize(format, e->engine->vocab, &message, 1, 1, out, &err), &err);
    clb_chat_free(format);
}

static void stop_strings_cross_tokens(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=256", NULL};
    clb_error err;
    test_engine e;
    clb_tokens prompt = {0};
    clb_generation whole, cut;
    struct heard heard = {0};
    open_engine(&e, TINY_MOE, settings, NULL);
    chat_prompt(&e, "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?", &prompt);
    clb_session *s = make(&e);
    clb_generate_options o = {.max_tokens = 60};
    assert_ok(generate(s, &prompt, &o, &heard, &whole, &err), &err);
    assert_int_equal(whole.finish, CLB_FINISH_STOP);
    assert_null(whole.stop);
    assert_true(whole.text.n > 20 && whole.tokens.n > 5);
    const char *text = whole.text.data;
    uint32_t n_inside = 0;
    for (size_t from = 0; from < whole.text.n; from += 2)
        for (size_t len = 1; len <= 12 && from + len <= whole.text.n; len += from % 3 + 3) {
            char stop[16] = {0}, near_miss[16] = {0};
            memcpy(stop, text + from, len);
            memcpy(near_miss, text + from, len);
            near_miss[len] = '\x01'; /* begins like the text and never comes */
            const char *const stops[] = {near_miss, "", stop};
            o = (clb_generate_options){.max_tokens = 60, .stops = stops, .n_stops = 3};
            assert_ok(generate(s, &prompt, &o, &heard, &cut, &err), &err);
            const size_t want = (size_t)(strstr(text, stop) - text);
            if (cut.text.n != want || memcmp(cut.text.data ? cut.text.data : "", text, want) != 0)
                fail_msg("stop \"%s\": %zu bytes instead of %zu", stop, cut.text.n, want);
            assert_ptr_equal(cut.stop, stop);
            assert_int_equal(cut.finish, CLB_FINISH_STOP);
            assert_int_equal(cut.n_prompt, prompt.n);
            n_inside += len > 4;
            clb_generation_free(&cut);
        }
    assert_true(n_inside > 10);
    /* a near miss alone holds text back, but gives it out in the end */
    const char *const never[] = {"7316.\x01", "The secret\x01"};
    o = (clb_generate_options){.max_tokens = 60, .stops = never, .n_stops = 2};
    assert_ok(generate(s, &prompt, &o, &heard, &cut, &err), &err);
    assert_null(cut.stop);
    assert_string_equal(cut.text.data, text);
    clb_generation_free(&cut);
    clb_generation_free(&whole);
    clb_tokens_free(&prompt);
    clb_session_destroy(s);
    test_engine_close(&e);
}

static void ends_of_generation(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=128", NULL};
    clb_error err;
    test_engine e;
    clb_tokens prompt = {0};
    clb_generation plain, g;
    struct heard heard = {0};
    open_engine(&e, TINY_MOE, settings, NULL);
    chat_prompt(&e, "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?", &prompt);
    clb_session *s = make(&e);
    clb_generate_options o = {.max_tokens = 60};
    assert_ok(generate(s, &prompt, &o, &heard, &plain, &err), &err);
    assert_int_equal(plain.finish, CLB_FINISH_STOP);
    assert_true(plain.tokens.n < 60);
    for (size_t i = 0; i < plain.tokens.n; i++)
        assert_false(clb_vocab_is_eog(e.engine->vocab, plain.tokens.ids[i]));
    /* exactly max_tokens, and the same beginning */
    for (uint32_t n = 1; n <= 5; n++) {
        o = (clb_generate_options){.max_tokens = n};
        assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
        assert_int_equal(g.finish, CLB_FINISH_LENGTH);
        assert_int_equal(g.tokens.n, n);
        assert_int_equal(g.n_reused, prompt.n - 1);
        assert_memory_equal(g.tokens.ids, plain.tokens.ids, n * sizeof *g.tokens.ids);
        clb_generation_free(&g);
    }
    /* 0 tokens: until the context is full, and past the end-of-generation token if that is ignored */
    o = (clb_generate_options){.max_tokens = 0};
    assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
    assert_int_equal(g.finish, CLB_FINISH_STOP);
    assert_int_equal(g.tokens.n, plain.tokens.n);
    clb_generation_free(&g);
    o = (clb_generate_options){.max_tokens = 0, .ignore_eog = true};
    assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
    assert_int_equal(g.finish, CLB_FINISH_CONTEXT);
    assert_int_equal(clb_session_n_tokens(s), 128);
    assert_int_equal(g.tokens.n, 128 - prompt.n + 1); /* the last one needs no room */
    assert_true(clb_vocab_is_eog(e.engine->vocab, g.tokens.ids[plain.tokens.n]));
    assert_memory_equal(g.tokens.ids, plain.tokens.ids, plain.tokens.n * sizeof *g.tokens.ids);
    clb_generation_free(&g);
    /* the listener ends it: its status, the text so far, and a session that goes on */
    heard.stop_after = 2;
    o = (clb_generate_options){.max_tokens = 60};
    assert_fails(generate(s, &prompt, &o, &heard, &g, &err), &err, COLIBRI_E_CANCELLED, "heard enough");
    assert_true(g.text.n && g.text.n < plain.text.n);
    assert_memory_equal(g.text.data, plain.text.data, g.text.n);
    clb_generation_free(&g);
    heard.stop_after = 0;
    assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
    assert_string_equal(g.text.data, plain.text.data);
    clb_generation_free(&g);
    /* a prompt that is too long: nothing generated */
    clb_tokens longer = {0};
    for (uint32_t i = 0; i < 129; i++)
        assert_ok(clb_tokens_push(&longer, prompt.ids[i % prompt.n], &err), &err);
    assert_fails(generate(s, &longer, &o, &heard, &g, &err), &err, COLIBRI_E_LIMIT, "129 tokens");
    assert_int_equal(g.text.n + g.tokens.n, 0);
    clb_generation_free(&g);
    clb_tokens_free(&longer);
    clb_generation_free(&plain);
    clb_tokens_free(&prompt);
    clb_session_destroy(s);
    test_engine_close(&e);
}

static bool always(void *ctx)
{
    (void)ctx;
    return true;
}

static void cancelled_generations(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=256", NULL};
    struct counted counted = {0};
    const test_engine_hooks hooks = {.n_sequences = 2, .cancelled = count_layers, .ctx = &counted};
    clb_error err;
    test_engine e;
    clb_tokens prompt = {0};
    clb_generation plain, g;
    struct heard heard = {0};
    open_engine(&e, SMALL, settings, &hooks);
    assert_ok(clb_tokenize(e.engine->vocab, "a prompt of letters", 19, 0, &prompt, &err), &err);
    clb_session *s = make(&e);
    clb_generate_options o = {.max_tokens = 12, .ignore_eog = true};
    assert_ok(generate(s, &prompt, &o, &heard, &plain, &err), &err);
    const uint32_t n_layers = e.engine->model->hp.n_layers;
    clb_session_reset(s);
    for (uint64_t stop = 1; stop <= 6 * n_layers; stop++) {
        counted = (struct counted){.stop_at = stop};
        o = (clb_generate_options){.max_tokens = 12, .ignore_eog = true};
        const int rc = generate(s, &prompt, &o, &heard, &g, &err);
        const uint64_t pass = (stop - 1) / n_layers; /* 0: the prompt */
        assert_int_equal(rc, pass ? COLIBRI_OK : COLIBRI_E_CANCELLED);
        if (pass)
            assert_int_equal(g.finish, CLB_FINISH_CANCELLED);
        assert_int_equal(g.tokens.n, pass);
        if (pass)
            assert_memory_equal(g.tokens.ids, plain.tokens.ids, pass * sizeof *g.tokens.ids);
        clb_generation_free(&g);
        counted = (struct counted){0};
        clb_session_reset(s);
    }
    o = (clb_generate_options){.max_tokens = 12, .ignore_eog = true, .cancelled = always};
    assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
    assert_int_equal(g.finish, CLB_FINISH_CANCELLED);
    assert_int_equal(g.tokens.n, 0);
    clb_generation_free(&g);
    o = (clb_generate_options){.max_tokens = 12, .ignore_eog = true};
    assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
    assert_memory_equal(g.tokens.ids, plain.tokens.ids, 12 * sizeof *g.tokens.ids);
    clb_generation_free(&g);
    clb_generation_free(&plain);
    clb_tokens_free(&prompt);
    clb_session_destroy(s);
    test_engine_close(&e);
}

/* Characters of several bytes come out whole, although their bytes come from several tokens. */
static void characters_stay_whole(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=700", NULL};
    clb_error err;
    test_engine e;
    open_engine(&e, TINY_MOE, settings, NULL);
    size_t size;
    char *zh = test_read_file(TEST_DATA("tiny-moe/zh.txt"), &size);
    uint32_t halves = 0, wide = 0;
    for (size_t part = 0; part < 4; part++) {
        clb_tokens prompt = {0};
        clb_generation g;
        struct heard heard = {0};
        size_t begin = part * 2000;
        while (((unsigned char)zh[begin] & 0xc0) == 0x80)
            begin++;
        assert_ok(clb_tokenize(e.engine->vocab, zh + begin, clb_utf8_complete(zh + begin, 600), 0, &prompt, &err), &err);
        clb_session *s = make(&e);
        clb_generate_options o = {.max_tokens = 80, .ignore_eog = true};
        assert_ok(generate(s, &prompt, &o, &heard, &g, &err), &err);
        assert_true(heard.split <= (clb_utf8_complete(g.text.data, g.text.n) != g.text.n)); /* only the very end may be half */
        clb_buf bytes = {0};
        for (size_t i = 0; i < g.tokens.n; i++) {
            const size_t before = bytes.n;
            assert_ok(clb_token_bytes(e.engine->vocab, g.tokens.ids[i], false, &bytes, &err), &err);
            halves += clb_utf8_complete(bytes.data + before, bytes.n - before) != bytes.n - before;
        }
        for (size_t i = 0; i < g.text.n; i++)
            wide += (unsigned char)g.text.data[i] >= 0xe0;
        assert_int_equal(bytes.n, g.text.n); /* nothing lost, nothing added */
        assert_memory_equal(bytes.data, g.text.data, g.text.n);
        clb_buf_free(&bytes);
        clb_generation_free(&g);
        clb_tokens_free(&prompt);
        clb_session_destroy(s);
    }
    assert_true(halves > 10 && wide > 50); /* or the model did not write what this is about */
    free(zh);
    test_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_reused),         cmocka_unit_test(evicting_strategies_start_over),
        cmocka_unit_test(limits_come_first),           cmocka_unit_test(cancelled_prompts_can_go_on),
        cmocka_unit_test(stop_strings_cross_tokens),   cmocka_unit_test(ends_of_generation),
        cmocka_unit_test(cancelled_generations),       cmocka_unit_test(characters_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
