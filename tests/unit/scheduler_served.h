/* For tests of the scheduler that run it in a thread of its own: what a request's events said, and the thread. */
#ifndef CLB_TESTS_SCHEDULER_SERVED_H
#define CLB_TESTS_SCHEDULER_SERVED_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline void hear(void *ctx, const clb_request_event *e)
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

static inline struct heard *listen_to(clb_request_options *o)
{
    struct heard *h = calloc(1, sizeof *h);
    assert_non_null(h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    o->on_event = hear;
    o->ctx = h;
    return h;
}

static inline void wait_for(struct heard *h, const bool *what)
{
    pthread_mutex_lock(&h->lock);
    while (!*what)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static inline void forget(struct heard *h)
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

static inline void *serve(void *ctx)
{
    struct served *d = ctx;
    d->rc = clb_scheduler_run(d->s, &d->err);
    return NULL;
}

static inline void begin(struct served *d, const char *model, const char *const *settings, uint32_t n_sequences,
                         uint32_t queue, uint64_t slice_ns)
{
    const test_engine_hooks hooks = {.n_sequences = n_sequences};
    clb_error err;
    assert_ok(test_engine_open(&d->e, model, settings, &hooks, &err), &err);
    const clb_scheduler_options o = {
        .engine = d->e.engine, .n_sequences = n_sequences, .queue = queue, .slice_ns = slice_ns};
    assert_ok(clb_scheduler_create(&o, &d->s, &err), &err);
}

static inline void go(struct served *d)
{
    assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
}

/* The engine is the caller's from here on. */
static inline void drain(struct served *d)
{
    clb_scheduler_drain(d->s);
    pthread_join(d->thread, NULL);
    assert_ok(d->rc, &d->err);
    clb_scheduler_destroy(d->s);
}

static inline void finish(struct served *d)
{
    drain(d);
    test_engine_close(&d->e);
}

static inline clb_request *submit(struct served *d, const clb_request_options *o)
{
    return submit_to(d->s, o);
}

/* Choice `i` of a request is what a session alone generates, on an engine of its own. */
static inline void check_lone(clb_engine *engine, const clb_request_options *o, const struct heard *h, uint32_t i)
{
    assert_int_equal(h->status, COLIBRI_OK);
    check_lone_text(engine, o, i, h->choice[i].finish, h->choice[i].text, h->choice[i].n);
}

#endif
