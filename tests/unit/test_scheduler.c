/* The scheduler: many requests at once, each of which must be what a lone run gives. */
#include <math.h>

#include "scheduler_served.h"

/* Many at once, of all lengths, some with the same beginnings. */
static void compare_with_lone_runs(const char *model, const char *const *settings, uint32_t n_sequences,
                                   uint32_t n_requests, uint32_t longest, uint64_t slice_ns, uint64_t seed)
{
    struct served d = {0};
    begin(&d, model, settings, n_sequences, n_requests, slice_ns);
    test_rand rng = {seed};
    uint32_t *common = calloc(longest, sizeof *common);
    random_ids(d.e.engine, common, longest, seed);
    struct heard **heard = calloc(n_requests, sizeof *heard);
    clb_request **requests = calloc(n_requests, sizeof *requests);
    clb_request_options *options = calloc(n_requests, sizeof *options);
    for (uint32_t i = 0; i < n_requests; i++) {
        const size_t n = 1 + test_rand_below(&rng, longest);
        uint32_t *ids = calloc(n, sizeof *ids);
        random_ids(d.e.engine, ids, n, seed + i);
        if (i % 3 == 0)
            memcpy(ids, common, (n - n / 4) * sizeof *ids);
        options[i] = request_of(ids, n, 1 + test_rand_below(&rng, 12), seed * 7 + i);
        options[i].n_choices = i % 5 == 4 && n_sequences > 1 ? 2 : 1;
        options[i].ignore_eog = i % 2;
        heard[i] = listen_to(&options[i]);
        requests[i] = submit(&d, &options[i]);
        if (i == n_requests / 2)
            go(&d);
    }
    for (uint32_t i = 0; i < n_requests; i++)
        wait_for(heard[i], &heard[i]->done);
    finish(&d);
    test_engine lone;
    clb_error err;
    assert_ok(test_engine_open(&lone, model, settings, NULL, &err), &err);
    for (uint32_t i = 0; i < n_requests; i++) {
        for (uint32_t c = 0; c < options[i].n_choices; c++)
            check_lone(lone.engine, &options[i], heard[i], c);
        clb_request_release(requests[i]);
        free((void *)options[i].prompt);
        forget(heard[i]);
    }
    test_engine_close(&lone);
    free(common);
    free(heard);
    free(requests);
    free(options);
}

static void each_is_like_a_lone_run(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=32", "ctx=200", "expert-slots=7", "kv-share=yes", NULL};
    compare_with_lone_runs(SMALL, settings, 4, 24, 150, 1000, 1);
    compare_with_lone_runs(SMALL, settings, 3, 12, 150, 0, 2);
}

static void evicting_strategies_too(void **state)
{
    (void)state;
    static const char *const streaming[] = {"threads=2",    "batch=32", "ctx=400", "kv-strategy=streaming",
                                            "kv-budget=64", NULL};
    static const char *const h2o[] = {"threads=2", "batch=32", "ctx=400", "kv-strategy=h2o", "kv-budget=64", NULL};
    compare_with_lone_runs(SMALL, streaming, 4, 12, 180, 1000, 3);
    compare_with_lone_runs(SMALL, h2o, 3, 10, 180, 1000, 4);
}

static void full_contexts_shift_or_end(void **state)
{
    (void)state;
    static const char *const shifts[] = {"threads=2", "batch=32", "ctx=64", "context-shift=yes", NULL};
    static const char *const ends[] = {"threads=2", "batch=32", "ctx=64", NULL};
    for (int k = 0; k < 2; k++) {
        struct served d = {0};
        uint32_t ids[50];
        begin(&d, SMALL, k ? ends : shifts, 2, 4, 1000);
        random_ids(d.e.engine, ids, 50, 9);
        struct heard *h[2];
        clb_request *r[2];
        clb_request_options o[2];
        for (int i = 0; i < 2; i++) {
            o[i] = request_of(ids, 40u + 10u * (unsigned)i, 80, 5);
            o[i].ignore_eog = true;
            o[i].n_protected = 3;
            h[i] = listen_to(&o[i]);
            r[i] = submit(&d, &o[i]);
        }
        go(&d);
        for (int i = 0; i < 2; i++)
            wait_for(h[i], &h[i]->done);
        finish(&d);
        test_engine lone;
        clb_error err;
        assert_ok(test_engine_open(&lone, SMALL, k ? ends : shifts, NULL, &err), &err);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(h[i]->choice[0].finish, k ? CLB_FINISH_CONTEXT : CLB_FINISH_LENGTH);
            check_lone(lone.engine, &o[i], h[i], 0);
            clb_request_release(r[i]);
            forget(h[i]);
        }
        test_engine_close(&lone);
    }
}

static void text_stops_at_strings(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=200", NULL};
    struct served d = {0};
    clb_error err;
    clb_tokens ids = {0};
    begin(&d, TINY_MOE, settings, 2, 4, 0);
    assert_ok(clb_tokenize(d.e.engine->vocab, "Once upon a time", 16, 0, &ids, &err), &err);
    static const char *const stops[] = {"e", "zzz"};
    clb_request_options o = request_of(ids.ids, ids.n, 60, 3);
    o.stops = stops;
    o.n_stops = 2;
    o.n_logprobs = 2;
    struct heard *h = listen_to(&o);
    clb_request *r = submit(&d, &o);
    go(&d);
    wait_for(h, &h->done);
    drain(&d);
    check_lone(d.e.engine, &o, h, 0);
    assert_int_equal(h->choice[0].finish, CLB_FINISH_STOP);
    assert_null(memchr(h->choice[0].text, 'e', h->choice[0].n));
    clb_request_release(r);
    forget(h);
    clb_tokens_free(&ids);
    test_engine_close(&d.e);
}

static void grammars_bound_the_text(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=200", NULL};
    static const char gbnf[] = "root ::= \"[\" item (\", \" item)* \"]\"\nitem ::= \"\\\"\" [a-c]{2,3} \"\\\"\"";
    struct served d = {0};
    clb_error err;
    clb_tokens ids = {0};
    clb_grammar *grammar;
    clb_token_tree *tree;
    begin(&d, TINY_MOE, settings, 3, 8, 0);
    assert_ok(clb_tokenize(d.e.engine->vocab, "Once upon a time", 16, 0, &ids, &err), &err);
    assert_ok(clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &grammar, &err), &err);
    assert_ok(clb_token_tree_create(d.e.engine->vocab, &tree, &err), &err);
    struct heard *h[3];
    clb_request *r[3];
    clb_request_options o[3];
    go(&d);
    for (int i = 0; i < 3; i++) {
        o[i] = request_of(ids.ids, ids.n, 80, 3 + (uint64_t)i);
        o[i].special = false;
        o[i].grammar = i < 2 ? grammar : NULL;
        o[i].tree = tree;
        h[i] = listen_to(&o[i]);
        r[i] = submit(&d, &o[i]);
    }
    clb_grammar_release(grammar); /* the requests hold it */
    for (int i = 0; i < 3; i++)
        wait_for(h[i], &h[i]->done);
    for (int i = 0; i < 2; i++) {
        const char *const text = h[i]->choice[0].text;
        assert_int_equal(h[i]->status, COLIBRI_OK);
        assert_memory_equal(text, "[\"", 2);
        assert_int_equal(strspn(text, "[]abc\", "), h[i]->choice[0].n);
        if (h[i]->choice[0].finish == CLB_FINISH_STOP)
            assert_int_equal(text[h[i]->choice[0].n - 1], ']');
    }
    drain(&d);
    check_lone(d.e.engine, &o[2], h[2], 0);
    test_engine_close(&d.e);
    for (int i = 0; i < 3; i++) {
        clb_request_release(r[i]);
        forget(h[i]);
    }
    clb_token_tree_destroy(tree);
    clb_tokens_free(&ids);
}

/* ---- scores and embeddings ---- */

static void scores_are_those_of_the_logits(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=32", "ctx=200", NULL};
    struct served d = {0};
    uint32_t ids[90];
    begin(&d, SMALL, settings, 3, 8, 1000);
    random_ids(d.e.engine, ids, 90, 21);
    clb_request_options o = request_of(ids, 90, 4, 5), mate = request_of(ids, 60, 20, 6);
    o.n_logprobs = 3;
    o.score_prompt = o.ignore_eog = true;
    struct heard *h = listen_to(&o), *m = listen_to(&mate);
    clb_request *b = submit(&d, &mate), *a = submit(&d, &o);
    go(&d);
    wait_for(h, &h->done);
    wait_for(m, &m->done);
    const uint32_t n_vocab = d.e.engine->model->hp.n_vocab;
    finish(&d);
    test_engine lone;
    clb_error err;
    assert_ok(test_engine_open(&lone, SMALL, settings, NULL, &err), &err);
    check_lone(lone.engine, &o, h, 0);
    check_lone(lone.engine, &mate, m, 0);
    float *logits = test_engine_logits(lone.engine, ids, 90, 30);
    assert_int_equal(h->n_scored, 90);
    assert_true(isnan(h->scored[0].self.logprob));
    for (uint32_t i = 1; i < 90; i++) {
        const float *row = logits + (size_t)(i - 1) * n_vocab;
        double sum = 0.0;
        for (uint32_t k = 0; k < n_vocab; k++)
            sum += exp((double)row[k]);
        assert_true(fabs((double)h->scored[i].self.logprob - ((double)row[ids[i]] - log(sum))) < 1e-4);
        assert_int_equal(h->scored[i].token, ids[i]);
        assert_int_equal(h->scored[i].top[0].token, test_argmax(row, n_vocab));
        assert_true(h->scored[i].top[0].logprob >= h->scored[i].top[1].logprob);
        assert_int_equal(h->scored[i].n_top, 3);
    }
    assert_int_equal(h->choice[0].n_tokens, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(h->choice[0].logprobs[i] < 0.0f);
    free(logits);
    test_engine_close(&lone);
    clb_request_release(a);
    clb_request_release(b);
    forget(h);
    forget(m);
}

static void embeddings_do_not_depend_on_mates(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=32", "ctx=200", "kv-share=yes", NULL};
    float alone[512];
    uint32_t ids[90];
    for (int with = 0; with < 2; with++) {
        struct served d = {0};
        begin(&d, SMALL, settings, 3, 8, 1000);
        random_ids(d.e.engine, ids, 90, 33);
        clb_request_options o = request_of(ids, 70, 0, 5), mate = request_of(ids, 90, 20, 6);
        o.embed = true;
        mate.ignore_eog = true;
        struct heard *h = listen_to(&o), *m = listen_to(&mate);
        clb_request *b = with ? submit(&d, &mate) : NULL, *a = submit(&d, &o);
        go(&d);
        wait_for(h, &h->done);
        if (with)
            wait_for(m, &m->done);
        assert_int_equal(h->status, COLIBRI_OK);
        assert_int_equal(h->n_embedding, d.e.engine->model->hp.n_embd);
        assert_int_equal(h->n_generated, 0);
        double norm = 0.0;
        for (size_t i = 0; i < h->n_embedding; i++)
            norm += (double)h->embedding[i] * (double)h->embedding[i];
        assert_true(fabs(norm - 1.0) < 1e-5);
        if (with)
            assert_memory_equal(alone, h->embedding, h->n_embedding * sizeof(float));
        memcpy(alone, h->embedding, sizeof alone);
        finish(&d);
        clb_request_release(a);
        clb_request_release(b);
        forget(h);
        forget(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_like_a_lone_run),           cmocka_unit_test(evicting_strategies_too),
        cmocka_unit_test(full_contexts_shift_or_end),        cmocka_unit_test(text_stops_at_strings),
        cmocka_unit_test(grammars_bound_the_text),           cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(embeddings_do_not_depend_on_mates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
