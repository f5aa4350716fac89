/* Requests in corners: choices whose contexts shift, strategies that cannot be copied, prompts that are scored beside
 * others, passes that fail or are given up. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_bench.h"

/* All choices of a request shift, again and again; prompts that fill the context to the last token, too. */
static void choices_shift_like_lone_runs(void **state)
{
    (void)state;
    static const char *const shifts[] = {"threads=2", "batch=32", "ctx=64", "context-shift=yes", "kv-share=yes", NULL};
    static const char *const ends[] = {"threads=2", "batch=32", "ctx=64", "kv-share=yes", NULL};
    static const uint32_t lengths[] = {20, 63, 64};
    for (int k = 0; k < 2; k++) {
        const char *const *const settings = k ? ends : shifts;
        const test_engine_hooks hooks = {.n_sequences = 6};
        struct served d;
        struct heard h[3] = {0};
        clb_request_options o[3];
        clb_request *r[3];
        uint32_t ids[64];
        begin(&d, SMALL, settings, &hooks, 6, 1000);
        random_ids(d.e.engine, ids, 64, 11);
        for (uint32_t i = 0; i < 3; i++) {
            o[i] = plain(ids, lengths[i], 100, 5 + i, &h[i]);
            o[i].n_choices = 3 - i;
            r[i] = submit(&d, &o[i]);
        }
        finish(&d, r, 3);
        check_all(SMALL, settings, o, h, 3);
    }
}

static void nothing(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    (void)n;
}

/* The engine's strategy, but one whose state cannot be copied. */
static struct colibri_kv_strategy without_fork(const clb_engine *e)
{
    struct colibri_kv_strategy s = *e->kv_choice.strategy;
    s.on_append = nothing;
    s.fork = NULL;
    return s;
}

/* Every choice reads the prompt itself, and the prompt's scores are given once, apart from the text. */
static void choices_that_cannot_be_copied(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2",    "batch=32", "ctx=300", "kv-strategy=streaming",
                                           "kv-budget=64", NULL};
    for (int scores = 0; scores < 2; scores++) {
        const test_engine_hooks hooks = {.n_sequences = 4};
        struct served d;
        struct heard h[2] = {0};
        clb_request_options o[2];
        clb_request *r[2];
        uint32_t ids[150];
        begin(&d, SMALL, settings, &hooks, 4, 1000);
        const struct colibri_kv_strategy alone = without_fork(d.e.engine);
        d.e.engine->kv_choice.strategy = &alone;
        random_ids(d.e.engine, ids, 150, 12);
        for (uint32_t i = 0; i < 2; i++) {
            o[i] = plain(ids + i, 140, 10, 5 + i, &h[i]);
            o[i].n_choices = 2;
            o[i].score_prompt = scores;
            o[i].n_logprobs = scores ? 1 : -1;
            r[i] = submit(&d, &o[i]);
        }
        finish(&d, r, 2);
        check_all(SMALL, settings, o, h, 2);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(h[i].n_scored, scores ? 140 : 0);
    }
}

/* Where the strategy makes no room when a pass begins, a request ends with its context, not with an error, and one whose prompt
 * does not fit is not taken. */
static void contexts_end_under_strategies_too(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=96", "kv-strategy=h2o", "kv-budget=80", NULL};
    const test_engine_hooks hooks = {.n_sequences = 4};
    struct served d;
    struct heard h[2] = {0};
    clb_request *r[2], *none;
    clb_error err;
    uint32_t ids[120];
    begin(&d, SMALL, settings, &hooks, 4, 1000);
    struct colibri_kv_strategy strategy = *d.e.engine->kv_choice.strategy;
    strategy.triggers = d.e.engine->kv_choice.traits.triggers = COLIBRI_KV_AT_PREFILL_END;
    d.e.engine->kv_choice.strategy = &strategy;
    random_ids(d.e.engine, ids, 120, 14);
    for (uint32_t i = 0; i < 2; i++) {
        clb_request_options o = plain(ids + i, 30 + 10 * i, 200, 5 + i, &h[i]);
        o.n_choices = 2;
        r[i] = submit(&d, &o);
    }
    const clb_request_options o = plain(ids, 97, 1, 5, &h[0]);
    assert_fails(clb_scheduler_submit(d.s, &o, &none, &err), &err, COLIBRI_E_LIMIT, "97 tokens, the context holds 96");
    finish(&d, r, 2);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            assert_int_equal(h[i].status, COLIBRI_OK);
            assert_int_equal(h[i].choice[k].finish, CLB_FINISH_CONTEXT);
            assert_int_equal(h[i].choice[k].n_tokens, 96 - 30 - 10 * i + 1);
        }
}

/* Who generates does not stand still while a long prompt is scored, which has passes of its own. */
static void scoring_lets_others_generate(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=1024", NULL};
    const test_engine_hooks hooks = {.n_sequences = 3};
    struct served d;
    struct heard h[3] = {0};
    clb_request_options o[3];
    clb_request *r[3];
    static uint32_t ids[900];
    begin(&d, SMALL, settings, &hooks, 3, 1000);
    random_ids(d.e.engine, ids, 900, 13);
    o[0] = plain(ids, 10, 200, 1, &h[0]);
    o[1] = plain(ids + 5, 900 - 5, 4, 2, &h[1]);
    o[1].score_prompt = true;
    o[1].n_logprobs = 0;
    h[1].watched = &h[0];
    o[2] = plain(ids + 7, 50, 100, 3, &h[2]);
    for (uint32_t i = 0; i < 3; i++)
        r[i] = submit(&d, &o[i]);
    finish(&d, r, 3);
    check_all(SMALL, settings, o, h, 3);
    assert_int_equal(h[1].n_scored, 895);
    /* 56 passes score: about as many tokens were generated meanwhile */
    if (h[1].generated_at_score < 40)
        fail_msg("%u tokens were generated while 895 were scored", h[1].generated_at_score);
}

/* ---- passes that fail or are given up ---- */

/* The KV cache has room for one of three: what does not fit fails, the others are what they would be alone. */
static void a_full_cache_fails_those_that_do_not_fit(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=64", "ctx=256", NULL};
    const test_engine_hooks hooks = {.n_sequences = 1};
    struct served d;
    struct heard h[4] = {0};
    clb_request_options o[4];
    clb_request *r[4];
    uint32_t ids[256], n_ok = 0;
    clb_scheduler_stats stats;
    clb_error err;
    begin(&d, SMALL, settings, &hooks, 4, 1000);
    random_ids(d.e.engine, ids, 256, 14);
    for (uint32_t i = 0; i < 4; i++) {
        o[i] = plain(ids + i, 40 + 60 * i % 200, 60, 5 + i, &h[i]);
        r[i] = submit(&d, &o[i]);
    }
    clb_scheduler_drain(d.s);
    assert_ok(clb_scheduler_run(d.s, &err), &err);
    clb_scheduler_get_stats(d.s, &stats);
    uint32_t generated = 0;
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(h[i].done);
        assert_true(h[i].status == COLIBRI_OK || h[i].status == COLIBRI_E_NOMEM);
        n_ok += h[i].status == COLIBRI_OK;
        generated += h[i].n_generated;
    }
    assert_true(n_ok > 0 && n_ok < 4);
    assert_int_equal(stats.generated_tokens, generated);
    assert_int_equal(clb_kv_cache_used_bytes(d.e.engine->kv), 0);
    finish(&d, r, 4);
    for (uint32_t i = 0; i < 4; i++)
        if (!h[i].status)
            check_all(SMALL, settings, &o[i], &h[i], 1);
}

/* A third request comes while the first one's prompt is read and the second one waits for the start that both have:
 * the pass is given up, and the second one still takes what the first one computes. */
struct newcomer {
    struct served *d;
    clb_request_options *o;
    clb_request **r;
    uint32_t n_seen;
};

static void third_comes(void *ctx, const struct colibri_route *route)
{
    struct newcomer *n = ctx;
    if (route->layer || route->n_rows <= 32 || n->n_seen++)
        return;
    *n->r = submit(n->d, n->o);
    clb_scheduler_drain(n->d->s);
}

static void waiting_for_a_prefix_survives_a_newcomer(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=64", "ctx=512", "kv-share=yes", NULL};
    struct newcomer n = {.n_seen = 0};
    const test_engine_hooks hooks = {.n_sequences = 4, .on_route = third_comes, .ctx = &n};
    struct served d;
    struct heard h[3] = {0};
    clb_request_options o[3];
    clb_request *r[3];
    uint32_t ids[300];
    clb_error err;
    begin(&d, SMALL, settings, &hooks, 4, 1000000000);
    random_ids(d.e.engine, ids, 300, 15);
    o[0] = plain(ids, 250, 4, 1, &h[0]);
    o[1] = plain(ids, 260, 4, 2, &h[1]);
    o[2] = plain(ids + 280, 20, 4, 3, &h[2]);
    n.d = &d;
    n.o = &o[2];
    n.r = &r[2];
    for (uint32_t i = 0; i < 2; i++)
        r[i] = submit(&d, &o[i]);
    assert_ok(clb_scheduler_run(d.s, &err), &err); /* drained by the newcomer */
    finish(&d, r, 3);
    check_all(SMALL, settings, o, h, 3);
    assert_true(h[1].n_reused >= 192);
}

/* Two prompts do not fit together, so each is computed alone: nobody who comes then ends that. */
static void third_comes_to_one_alone(void *ctx, const struct colibri_route *route)
{
    struct newcomer *n = ctx;
    if (route->layer || route->n_rows != 36 || n->n_seen++)
        return;
    *n->r = submit(n->d, n->o);
    clb_scheduler_drain(n->d->s);
}

static void newcomers_do_not_fail_those_that_are_computed_alone(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=128", "ctx=128", NULL};
    struct newcomer n = {.n_seen = 0};
    const test_engine_hooks hooks = {.n_sequences = 1, .on_route = third_comes_to_one_alone, .ctx = &n};
    struct served d;
    struct heard h[3] = {0};
    clb_request_options o[3];
    clb_request *r[3];
    uint32_t ids[220];
    clb_error err;
    begin(&d, SMALL, settings, &hooks, 4, 1000000000);
    random_ids(d.e.engine, ids, 220, 16);
    o[0] = plain(ids, 100, 1, 1, &h[0]); /* 64 rows, then 36 and as many of the other one */
    o[1] = plain(ids + 100, 100, 1, 2, &h[1]);
    o[2] = plain(ids + 200, 8, 4, 3, &h[2]);
    n.d = &d;
    n.o = &o[2];
    n.r = &r[2];
    for (uint32_t i = 0; i < 2; i++)
        r[i] = submit(&d, &o[i]);
    assert_ok(clb_scheduler_run(d.s, &err), &err); /* drained by the newcomer */
    finish(&d, r, 3);
    assert_int_equal(h[0].status, COLIBRI_OK);
    assert_int_equal(h[1].status, COLIBRI_E_NOMEM);
    check_all(SMALL, settings, &o[0], &h[0], 1);
    check_all(SMALL, settings, &o[2], &h[2], 1);
}

/* ... nor is a pass given up that nobody waits for the end of. */
static void first_goes(void *ctx, const struct colibri_route *route)
{
    const struct newcomer *n = ctx;
    (void)route;
    clb_request_cancel(*n->r);
}

static void cancelled_passes_are_not_given_up(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=128", "ctx=128", NULL};
    clb_request *r = NULL;
    struct newcomer n = {.r = &r};
    const test_engine_hooks hooks = {.n_sequences = 2, .on_route = first_goes, .ctx = &n};
    struct served d;
    struct heard h = {0};
    clb_scheduler_stats stats;
    uint32_t ids[100];
    clb_error err;
    begin(&d, SMALL, settings, &hooks, 2, 1000000000);
    random_ids(d.e.engine, ids, 100, 17);
    const clb_request_options o = plain(ids, 100, 1, 1, &h);
    r = submit(&d, &o);
    clb_scheduler_drain(d.s);
    assert_ok(clb_scheduler_run(d.s, &err), &err);
    clb_scheduler_get_stats(d.s, &stats);
    finish(&d, &r, 1);
    assert_int_equal(h.status, COLIBRI_E_CANCELLED);
    assert_int_equal(stats.given_up, 0);
}

/* ---- ends ---- */

static void grammars_end_texts_that_ignore_the_end(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=200", NULL};
    static const char gbnf[] = "root ::= [a-c] [a-c]? [a-c]?";
    const test_engine_hooks hooks = {.n_sequences = 2};
    struct served d;
    struct heard h[2] = {0};
    clb_request_options o[2];
    clb_request *r[2];
    clb_error err;
    clb_tokens ids = {0};
    clb_grammar *grammar;
    clb_token_tree *tree;
    begin(&d, TINY_MOE, settings, &hooks, 2, 0);
    assert_ok(clb_tokenize(d.e.engine->vocab, "Once upon a time", 16, 0, &ids, &err), &err);
    assert_ok(clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &grammar, &err), &err);
    assert_ok(clb_token_tree_create(d.e.engine->vocab, &tree, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        o[i] = plain(ids.ids, ids.n, 50, 3, &h[i]);
        o[i].grammar = grammar;
        o[i].tree = tree;
        o[i].ignore_eog = i;
        r[i] = submit(&d, &o[i]);
    }
    clb_grammar_release(grammar);
    clb_scheduler_drain(d.s);
    assert_ok(clb_scheduler_run(d.s, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(h[i].status, COLIBRI_OK);
        assert_int_equal(h[i].choice[0].finish, CLB_FINISH_STOP);
        assert_true(h[i].choice[0].n >= 1 && h[i].choice[0].n <= 3);
        assert_int_equal(strspn(h[i].choice[0].text, "abc"), h[i].choice[0].n);
    }
    finish(&d, r, 2);
    clb_token_tree_destroy(tree);
    clb_tokens_free(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_shift_like_lone_runs),
        cmocka_unit_test(choices_that_cannot_be_copied),
        cmocka_unit_test(contexts_end_under_strategies_too),
        cmocka_unit_test(scoring_lets_others_generate),
        cmocka_unit_test(a_full_cache_fails_those_that_do_not_fit),
        cmocka_unit_test(waiting_for_a_prefix_survives_a_newcomer),
        cmocka_unit_test(newcomers_do_not_fail_those_that_are_computed_alone),
        cmocka_unit_test(cancelled_passes_are_not_given_up),
        cmocka_unit_test(grammars_end_texts_that_ignore_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
