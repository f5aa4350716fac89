/* The scheduler: many requests at once, each of which must be what a lone run gives. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "scheduler_requests.h"

#define MOST_CHOICES 4u

/* What a request's events said. */
struct heard {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, done;
    int status;
    char message[256];
    struct {
        char text[4096];
        size_t n;
        uint32_t tokens[512];
        float logprobs[512];
        uint32_t n_tokens;
        enum clb_finish finish;
        bool over;
    } choice[MOST_CHOICES];
    float embedding[512];
    size_t n_embedding;
    clb_token_info scored[600];
    size_t n_scored;
    uint32_t n_done, n_prompt, n_reused, n_generated;
    uint64_t first_ns; /* of the first text */
    uint64_t done_ns;
};

static void hear(void *ctx, const clb_request_event *e)
{
    struct heard *h = ctx;
    pthread_mutex_lock(&h->lock);
    assert_false(h->done);
    switch (e->kind) {
    case CLB_EVENT_STARTED:
        h->started = true;
        break;
    case CLB_EVENT_PROMPT:
        assert_true(e->n_done > h->n_done && e->n_done <= e->n_prompt);
        h->n_done = e->n_done;
        break;
    case CLB_EVENT_SCORED:
        h->n_scored = e->n_tokens;
        memcpy(h->scored, e->tokens, e->n_tokens * sizeof *e->tokens);
        break;
    case CLB_EVENT_EMBEDDED:
        h->n_embedding = e->n_embedding;
        memcpy(h->embedding, e->embedding, e->n_embedding * sizeof(float));
        break;
    case CLB_EVENT_TEXT:
        if (!h->first_ns)
            h->first_ns = clb_now_ns();
        assert_false(h->choice[e->choice].over);
        memcpy(h->choice[e->choice].text + h->choice[e->choice].n, e->text, e->n_text);
        for (size_t i = 0; i < e->n_tokens; i++) {
            const uint32_t at = h->choice[e->choice].n_tokens++;
            h->choice[e->choice].tokens[at] = e->tokens[i].token;
            h->choice[e->choice].logprobs[at] = e->tokens[i].self.logprob;
            assert_true(e->tokens[i].text_offset + e->tokens[i].n_bytes <= h->choice[e->choice].n + e->n_text);
        }
        h->choice[e->choice].n += e->n_text;
        break;
    case CLB_EVENT_CHOICE:
        h->choice[e->choice].finish = e->finish;
        h->choice[e->choice].over = true;
        break;
    case CLB_EVENT_DONE:
        h->done = true;
        h->done_ns = clb_now_ns();
        h->status = e->status;
        h->n_prompt = e->n_prompt;
        h->n_reused = e->n_reused;
        h->n_generated = e->n_generated;
        snprintf(h->message, sizeof h->message, "%s", e->message);
        break;
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static struct heard *listen_to(clb_request_options *o)
{
    struct heard *h = calloc(1, sizeof *h);
    assert_non_null(h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    o->on_event = hear;
    o->ctx = h;
    return h;
}

static void wait_for(struct heard *h, const bool *what)
{
    pthread_mutex_lock(&h->lock);
    while (!*what)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static void forget(struct heard *h)
{
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ---- a scheduler in its own thread ---- */

struct served {
    test_engine e;
    clb_scheduler *s;
    pthread_t thread;
    int rc;
    clb_error err;
};

static void *serve(void *ctx)
{
    struct served *d = ctx;
    d->rc = clb_scheduler_run(d->s, &d->err);
    return NULL;
}

static void begin(struct served *d, const char *model, const char *const *settings, uint32_t n_sequences,
                  uint32_t queue, uint64_t slice_ns)
{
    const test_engine_hooks hooks = {.n_sequences = n_sequences};
    clb_error err;
    assert_ok(test_engine_open(&d->e, model, settings, &hooks, &err), &err);
    const clb_scheduler_options o = {
        .engine = d->e.engine, .n_sequences = n_sequences, .queue = queue, .slice_ns = slice_ns};
    assert_ok(clb_scheduler_create(&o, &d->s, &err), &err);
}

static void go(struct served *d)
{
    assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
}

/* The engine is the caller's from here on. */
static void drain(struct served *d)
{
    clb_scheduler_drain(d->s);
    pthread_join(d->thread, NULL);
    assert_ok(d->rc, &d->err);
    clb_scheduler_destroy(d->s);
}

static void finish(struct served *d)
{
    drain(d);
    test_engine_close(&d->e);
}

static clb_request *submit(struct served *d, const clb_request_options *o)
{
    return submit_to(d->s, o);
}

/* Choice `i` of a request is what a session alone generates, on an engine of its own. */
static void check_lone(clb_engine *engine, const clb_request_options *o, const struct heard *h, uint32_t i)
{
    assert_int_equal(h->status, COLIBRI_OK);
    check_lone_text(engine, o, i, h->choice[i].finish, h->choice[i].text, h->choice[i].n);
}

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

/* ---- operations ---- */

static void refusals_name_their_reason(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=64", NULL};
    struct served d = {0};
    uint32_t ids[80];
    clb_error err;
    clb_request *r = NULL, *first, *beside, *second;
    begin(&d, SMALL, settings, 2, 0, 0);
    random_ids(d.e.engine, ids, 80, 1);
    clb_request_options o = request_of(ids, 0, 4, 1);
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_USAGE);
    o = request_of(ids, 65, 4, 1);
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_LIMIT);
    assert_non_null(strstr(err.msg, "65 tokens, the context holds 64"));
    o = request_of(ids, 5, 4, 1);
    o.n_choices = 3;
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_USAGE);
    o.n_choices = 1;
    o.n_logprobs = 21;
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_USAGE);
    o.n_logprobs = -1;
    const uint32_t outside = UINT32_MAX;
    clb_request_options bad = request_of(&outside, 1, 1, 1);
    assert_int_equal(clb_scheduler_submit(d.s, &bad, &r, &err), COLIBRI_E_USAGE);
    struct heard *h = listen_to(&o);
    first = submit(&d, &o);
    struct heard *h1 = listen_to(&o);
    beside = submit(&d, &o);
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_BUSY); /* two can start at once */
    assert_non_null(strstr(err.msg, "queue is full"));
    assert_null(r);
    clb_scheduler_set_limits(d.s, 1, 0);
    struct heard *h2 = listen_to(&o);
    second = submit(&d, &o);
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_BUSY);
    go(&d);
    wait_for(h, &h->done);
    wait_for(h1, &h1->done);
    wait_for(h2, &h2->done);
    assert_int_equal(h->status, COLIBRI_OK);
    clb_scheduler_drain(d.s);
    assert_int_equal(clb_scheduler_submit(d.s, &o, &r, &err), COLIBRI_E_CANCELLED);
    clb_scheduler_stats stats;
    clb_scheduler_get_stats(d.s, &stats);
    assert_int_equal(stats.submitted, 3);
    assert_int_equal(stats.refused, 3);
    finish(&d);
    clb_request_release(first);
    clb_request_release(beside);
    clb_request_release(second);
    forget(h);
    forget(h1);
    forget(h2);
}

static void cancels_end_their_own_request_only(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=4096", NULL};
    struct served d = {0};
    uint32_t ids[2000];
    begin(&d, SMALL, settings, 2, 8, 1000);
    random_ids(d.e.engine, ids, 2000, 8);
    clb_request_options o[4];
    struct heard *h[4];
    clb_request *r[4];
    for (int i = 0; i < 4; i++) {
        o[i] = request_of(ids + i, i == 1 ? 2000 - 4 : 20, i == 0 ? 100000 : 30, 4 + (uint64_t)i);
        o[i].ignore_eog = true;
        h[i] = listen_to(&o[i]);
    }
    o[0].max_tokens = 400;
    go(&d);
    for (int i = 0; i < 4; i++)
        r[i] = submit(&d, &o[i]);
    wait_for(h[1], &h[1]->started);
    clb_request_cancel(r[1]); /* while it reads */
    clb_request_cancel(r[3]); /* in the queue, or just started */
    for (int i = 0; i < 4; i++)
        wait_for(h[i], &h[i]->done);
    assert_int_equal(h[1]->status, COLIBRI_E_CANCELLED);
    assert_int_equal(h[3]->status, COLIBRI_E_CANCELLED);
    assert_int_equal(h[0]->n_generated, 400);
    finish(&d);
    test_engine lone;
    clb_error err;
    assert_ok(test_engine_open(&lone, SMALL, settings, NULL, &err), &err);
    check_lone(lone.engine, &o[0], h[0], 0);
    check_lone(lone.engine, &o[2], h[2], 0);
    test_engine_close(&lone);
    for (int i = 0; i < 4; i++) {
        clb_request_release(r[i]);
        forget(h[i]);
    }
}

static void late_requests_end(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "batch=16", "ctx=100000", NULL};
    struct served d = {0};
    uint32_t ids[20];
    begin(&d, SMALL, settings, 1, 8, 0);
    random_ids(d.e.engine, ids, 20, 8);
    clb_request_options running = request_of(ids, 20, 0, 1), waiting = request_of(ids, 20, 5, 1);
    running.ignore_eog = waiting.ignore_eog = true;
    running.timeout_ns = 300000000;
    waiting.timeout_ns = 100000000;
    running.special = false;
    struct heard *a = listen_to(&running), *b = listen_to(&waiting);
    running.on_event = NULL; /* its text is longer than what is kept here */
    clb_request *ra = submit(&d, &running);
    go(&d);
    clb_request *rb = submit(&d, &waiting);
    wait_for(b, &b->done);
    assert_int_equal(b->status, COLIBRI_E_LIMIT);
    assert_non_null(strstr(b->message, "took longer than"));
    assert_false(b->started);
    finish(&d); /* drains: the running one ends by its own timeout */
    clb_request_release(ra);
    clb_request_release(rb);
    forget(a);
    forget(b);
}

struct follow_up {
    clb_scheduler *s;
    clb_request_options o;
    clb_request *r;
};

static void submit_another(void *ctx, const clb_request_event *e)
{
    struct follow_up *f = ctx;
    clb_error err;
    if (e->kind != CLB_EVENT_STARTED)
        return;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_ok(clb_scheduler_submit(f->s, &f->o, &f->r, &err), &err);
}

/* Without a queue: those that can start at once are taken, the next one is refused. */
static void no_queue_is_no_refusal(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "ctx=200", NULL};
    struct served d = {0};
    clb_error err;
    uint32_t ids[8];
    begin(&d, SMALL, settings, 2, 0, 0);
    random_ids(d.e.engine, ids, 8, 3);
    for (int round = 0; round < 2; round++) { /* before the engine's thread runs, and after some have ended */
        clb_request_options o[3];
        struct heard *h[3];
        clb_request *r[3];
        for (int i = 0; i < 3; i++) {
            o[i] = request_of(ids, 8, 150, 1);
            o[i].ignore_eog = true;
            h[i] = listen_to(&o[i]);
            if (i < 2)
                r[i] = submit(&d, &o[i]);
        }
        if (round)
            for (int i = 0; i < 2; i++)
                wait_for(h[i], &h[i]->started);
        assert_fails(clb_scheduler_submit(d.s, &o[2], &r[2], &err), &err, COLIBRI_E_BUSY, "queue is full");
        if (!round)
            go(&d);
        for (int i = 0; i < 2; i++) {
            wait_for(h[i], &h[i]->done);
            clb_request_release(r[i]);
        }
        for (clb_scheduler_stats stats = {.running = 1}; stats.running;) { /* the places are free a moment later */
            usleep(1000);
            clb_scheduler_get_stats(d.s, &stats);
        }
        for (int i = 0; i < 3; i++)
            forget(h[i]);
    }
    finish(&d);
}

/* One that comes while the queue is being looked at is younger than that look. */
static void newcomers_are_not_late(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "batch=16", "ctx=64", NULL};
    struct served d = {0};
    uint32_t ids[5];
    begin(&d, SMALL, settings, 1, 8, 0);
    random_ids(d.e.engine, ids, 5, 8);
    struct follow_up f = {.s = d.s, .o = request_of(ids, 5, 2, 1)};
    f.o.timeout_ns = UINT64_C(3600000000000);
    struct heard *h = listen_to(&f.o);
    clb_request_options first = request_of(ids, 5, 2, 1);
    first.on_event = submit_another;
    first.ctx = &f;
    clb_request *r = submit(&d, &first);
    go(&d);
    wait_for(h, &h->done);
    assert_int_equal(h->status, COLIBRI_OK);
    finish(&d);
    clb_request_release(r);
    clb_request_release(f.r);
    forget(h);
}

static void stop_ends_everything(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=2", "batch=16", "ctx=100000", NULL};
    struct served d = {0};
    uint32_t ids[20];
    begin(&d, SMALL, settings, 2, 8, 0);
    random_ids(d.e.engine, ids, 20, 8);
    clb_request_options o[3];
    struct heard *h[3];
    clb_request *r[3];
    for (int i = 0; i < 3; i++) {
        o[i] = request_of(ids, 20, 0, 1);
        h[i] = listen_to(&o[i]);
        o[i].stops = NULL;
        o[i].ignore_eog = true;
        o[i].max_tokens = 500;
        r[i] = submit(&d, &o[i]);
    }
    go(&d);
    clb_scheduler_stop(d.s);
    for (int i = 0; i < 3; i++) {
        wait_for(h[i], &h[i]->done);
        assert_true(h[i]->status == COLIBRI_E_CANCELLED || h[i]->n_generated == 500);
    }
    finish(&d);
    for (int i = 0; i < 3; i++) {
        clb_request_release(r[i]);
        forget(h[i]);
    }
}

static int what_it_knows(void *ctx, clb_engine *engine, clb_error *err)
{
    (void)err;
    *(uint32_t *)ctx = engine->ctx;
    return COLIBRI_OK;
}

static void calls_run_between_passes(void **state)
{
    (void)state;
    static const char *const settings[] = {"threads=1", "ctx=77", NULL};
    struct served d = {0};
    clb_error err;
    uint32_t ctx = 0;
    begin(&d, SMALL, settings, 1, 8, 0);
    go(&d);
    assert_ok(clb_scheduler_call(d.s, what_it_knows, &ctx, &err), &err);
    assert_int_equal(ctx, 77);
    uint8_t there[4096];
    uint32_t n_layers, n_experts;
    assert_ok(clb_scheduler_residency(d.s, there, sizeof there, &n_layers, &n_experts, &err), &err);
    assert_true(n_layers > 0 && n_experts > 0);
    finish(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_like_a_lone_run),
        cmocka_unit_test(evicting_strategies_too),
        cmocka_unit_test(full_contexts_shift_or_end),
        cmocka_unit_test(text_stops_at_strings),
        cmocka_unit_test(grammars_bound_the_text),
        cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(embeddings_do_not_depend_on_mates),
        cmocka_unit_test(refusals_name_their_reason),
        cmocka_unit_test(cancels_end_their_own_request_only),
        cmocka_unit_test(late_requests_end),
        cmocka_unit_test(newcomers_are_not_late),
        cmocka_unit_test(stop_ends_everything),
        cmocka_unit_test(calls_run_between_passes),
        cmocka_unit_test(no_queue_is_no_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
