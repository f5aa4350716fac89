/* The scheduler: refusals, ends of one request that leave the others alone, timeouts, stopping, calls between passes.
 */
#include <unistd.h>

#include "scheduler_served.h"

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
        cmocka_unit_test(refusals_name_their_reason), cmocka_unit_test(cancels_end_their_own_request_only),
        cmocka_unit_test(late_requests_end),          cmocka_unit_test(newcomers_are_not_late),
        cmocka_unit_test(stop_ends_everything),       cmocka_unit_test(calls_run_between_passes),
        cmocka_unit_test(no_queue_is_no_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
