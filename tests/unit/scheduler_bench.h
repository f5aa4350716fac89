/* For tests of the scheduler: requests that remember what they heard, and lone runs to compare with. The scheduler runs in
 * the test's own thread. */
#ifndef CLB_TESTS_SCHEDULER_BENCH_H
#define CLB_TESTS_SCHEDULER_BENCH_H

#include "scheduler_requests.h"

#define MOST_CHOICES 3u

struct heard {
    struct {
        char text[4096];
        size_t n;
        uint32_t n_tokens;
        enum clb_finish finish;
        bool over;
    } choice[MOST_CHOICES];
    uint32_t n_scored, n_reused, n_generated;
    uint32_t generated_at_score; /* by `watched`, when the prompt's scores came */
    const struct heard *watched;
    bool is_read, watched_read; /* the whole prompt; that of `watched` was, when this one was over */
    bool done;
    int status;
};

static inline void hear(void *ctx, const clb_request_event *e)
{
    struct heard *h = ctx;
    assert_false(h->done);
    if (e->kind == CLB_EVENT_TEXT) {
        assert_true(h->choice[e->choice].n + e->n_text <= sizeof h->choice[0].text);
        memcpy(h->choice[e->choice].text + h->choice[e->choice].n, e->text, e->n_text);
        h->choice[e->choice].n += e->n_text;
        h->choice[e->choice].n_tokens += (uint32_t)e->n_tokens;
    } else if (e->kind == CLB_EVENT_SCORED) {
        h->n_scored += (uint32_t)e->n_tokens;
        h->generated_at_score = h->watched ? h->watched->choice[0].n_tokens : 0;
    } else if (e->kind == CLB_EVENT_CHOICE) {
        assert_false(h->choice[e->choice].over);
        h->choice[e->choice].over = true;
        h->choice[e->choice].finish = e->finish;
    } else if (e->kind == CLB_EVENT_PROMPT) {
        h->is_read = e->n_done == e->n_prompt;
    } else if (e->kind == CLB_EVENT_DONE) {
        h->done = true;
        h->watched_read = h->watched && h->watched->is_read;
        h->status = e->status;
        h->n_reused = e->n_reused;
        h->n_generated = e->n_generated;
    }
}

struct served {
    test_engine e;
    clb_scheduler *s;
};

static inline void begin(struct served *d, const char *model, const char *const *settings, const test_engine_hooks *hooks,
                  uint32_t n_sequences, uint64_t slice_ns)
{
    clb_error err;
    assert_ok(test_engine_open(&d->e, model, settings, hooks, &err), &err);
    const clb_scheduler_options o = {
        .engine = d->e.engine, .n_sequences = n_sequences, .queue = 64, .slice_ns = slice_ns};
    assert_ok(clb_scheduler_create(&o, &d->s, &err), &err);
}

/* Runs what was submitted, and releases it. */
static inline void finish(struct served *d, clb_request **r, uint32_t n)
{
    clb_error err;
    clb_scheduler_drain(d->s);
    assert_ok(clb_scheduler_run(d->s, &err), &err);
    for (uint32_t i = 0; i < n; i++)
        clb_request_release(r[i]);
    clb_scheduler_destroy(d->s);
    test_engine_close(&d->e);
}

static inline clb_request_options plain(const uint32_t *ids, size_t n, uint32_t max_tokens, uint64_t seed, struct heard *h)
{
    clb_request_options o = request_of(ids, n, max_tokens, seed);
    o.ignore_eog = true;
    o.on_event = hear;
    o.ctx = h;
    return o;
}

static inline clb_request *submit(struct served *d, const clb_request_options *o)
{
    return submit_to(d->s, o);
}

/* Choice i is what a session alone generates. */
static inline void check_lone(clb_engine *engine, const clb_request_options *o, const struct heard *h, uint32_t i)
{
    assert_int_equal(h->status, COLIBRI_OK);
    assert_true(h->choice[i].over);
    assert_int_equal(h->choice[i].n_tokens,
                     check_lone_text(engine, o, i, h->choice[i].finish, h->choice[i].text, h->choice[i].n));
}

static inline void check_all(const char *model, const char *const *settings, const clb_request_options *o,
                      const struct heard *h, uint32_t n)
{
    clb_error err;
    test_engine lone;
    assert_ok(test_engine_open(&lone, model, settings, NULL, &err), &err);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < o[i].n_choices; c++)
            check_lone(lone.engine, &o[i], &h[i], c);
    test_engine_close(&lone);
}

#endif
