/* Long passes that are interrupted for others: newcomers come while one is being computed (here: from its routing), and
 * everybody's text is what a lone run gives. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "model/forward_internal.h"
#include "scheduler_bench.h"

#define LONG      300u
#define MANY_ROWS 128u /* passes of fewer rows are not interrupted inside of a layer */
#define STORM     60u

/* What happens at the routings of passes of many rows, by number. */
struct plot {
    struct served d;
    uint32_t n_routes, n_acts; /* the first n_acts of them */
    void (*act)(struct plot *p);
    uint32_t n, n_max;
    clb_request_options o[STORM];
    struct heard h[STORM];
    clb_request *r[STORM];
    uint32_t ids[STORM][LONG];
    test_rand rng;
    bool cancelled[STORM];
    /* Short requests, each after the one before, until the text of request 0 is through or there were MOST_LINKS. */
    clb_request_options link;
    uint32_t n_chains, n_links;
    uint32_t generated; /* by request 0, at some time */
};

static void on_route(void *ctx, const struct colibri_route *route)
{
    struct plot *const p = ctx;
    if (p->n_chains && route->n_rows == 1)
        usleep(5000); /* text is slow: passes with short prompts are over before it is due */
    if (route->n_rows < MANY_ROWS)
        return;
    if (++p->n_routes <= p->n_acts)
        p->act(p);
}

static struct plot *open_plot(void (*act)(struct plot *), uint32_t n_acts, const char *const *settings,
                              uint32_t n_sequences, uint64_t slice_ns, uint64_t seed)
{
    struct plot *const p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->act = act;
    p->n_acts = n_acts;
    p->rng = (test_rand){seed};
    const test_engine_hooks hooks = {.n_sequences = n_sequences, .interruptible = true, .on_route = on_route, .ctx = p};
    begin(&p->d, SMALL, settings, &hooks, n_sequences, slice_ns);
    assert_non_null(p->d.e.engine->aside);
    p->d.e.engine->forward->options.loop_macs = seed % 2; /* each expert by itself, or the default */
    return p;
}

/* One more request of n random tokens, the first `common` of which are those of request 0. */
static clb_request_options *add(struct plot *p, uint32_t n, uint32_t common, uint32_t max_tokens)
{
    const uint32_t i = p->n;
    random_ids(p->d.e.engine, p->ids[i], n, 1000 + i);
    memcpy(p->ids[i], p->ids[0], common * sizeof *p->ids[i]);
    p->o[i] = plain(p->ids[i], n, max_tokens, i, &p->h[i]);
    return &p->o[i];
}

static void send(struct plot *p)
{
    p->r[p->n] = submit(&p->d, &p->o[p->n]);
    p->n++;
}

/* Until all are over: nobody comes then any more. */
static void *wait_for_the_end(void *ctx)
{
    clb_scheduler *const s = ctx;
    clb_scheduler_stats stats;
    do {
        usleep(1000);
        clb_scheduler_get_stats(s, &stats);
    } while (stats.finished + stats.cancelled + stats.failed < stats.submitted);
    clb_scheduler_drain(s);
    return NULL;
}

static clb_scheduler_stats play(struct plot *p)
{
    clb_error err;
    clb_scheduler_stats stats;
    pthread_t watcher;
    assert_int_equal(pthread_create(&watcher, NULL, wait_for_the_end, p->d.s), 0);
    assert_ok(clb_scheduler_run(p->d.s, &err), &err);
    pthread_join(watcher, NULL);
    clb_scheduler_get_stats(p->d.s, &stats);
    for (uint32_t i = 0; i < p->n; i++)
        clb_request_release(p->r[i]);
    clb_scheduler_destroy(p->d.s);
    test_engine_close(&p->d.e);
    return stats;
}

static const char *const plenty[] = {"threads=2", "batch=512", "ctx=600", NULL};
static const char *const shared[] = {"threads=2", "batch=512", "ctx=600", "kv-share=yes", NULL};

/* ---- one newcomer ---- */

static void one_comes(struct plot *p)
{
    add(p, 8, 0, 1);
    send(p);
}

static void a_newcomer_is_served_inside_of_the_pass(void **state)
{
    (void)state;
    struct plot *const p = open_plot(one_comes, 1, plenty, 2, 10000000000u, 1);
    add(p, LONG, 0, 4);
    send(p);
    p->h[1].watched = &p->h[0];
    const clb_scheduler_stats s = play(p);
    assert_int_equal(s.interruptions, 1);
    assert_int_equal(s.given_up, 0);
    assert_true(p->h[1].done && !p->h[1].watched_read); /* the long prompt was not read when it was over */
    assert_int_equal(p->n_routes, 2);                   /* two layers: nothing was computed twice */
    check_all(SMALL, plenty, p->o, p->h, p->n);
    free(p);
}

/* ---- prefixes ---- */

static void relatives_come(struct plot *p)
{
    add(p, 280, 270, 1); /* most of it is being computed: it waits */
    send(p);
    add(p, 40, 33, 1);
    send(p);
    add(p, 200, 40, 1); /* little of it is: it does not */
    send(p);
}

static void who_waits_from_the_beginning_is_left_alone_meanwhile(void **state)
{
    (void)state;
    struct plot *const p = open_plot(one_comes, 1, shared, 4, 10000000000u, 2);
    add(p, LONG, 0, 1);
    send(p);
    add(p, 280, 270, 1);
    send(p);
    const clb_scheduler_stats s = play(p);
    assert_true(s.interruptions >= 1);
    assert_true(p->h[0].n_reused + p->h[1].n_reused >= 256);
    check_all(SMALL, plenty, p->o, p->h, p->n);
    free(p);
}

static void relatives_come_and_the_first_goes(struct plot *p)
{
    if (p->n_routes == 2) {
        clb_request_cancel(p->r[0]);
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        add(p, 280, 270, 1);
        send(p);
    }
}

static void who_waited_for_a_pass_that_was_ended_waits_again(void **state)
{
    (void)state;
    struct plot *const p = open_plot(relatives_come_and_the_first_goes, 2, shared, 4, 10000000000u, 2);
    add(p, LONG, 0, 1);
    send(p);
    play(p);
    assert_int_equal(p->h[0].status, COLIBRI_E_CANCELLED);
    assert_true(p->h[1].n_reused + p->h[2].n_reused >= 256); /* one computes it, the other takes it */
    check_all(SMALL, plenty, p->o + 1, p->h + 1, 2);
    free(p);
}

static void prompts_wait_for_what_is_being_computed(void **state)
{
    (void)state;
    struct plot *const p = open_plot(relatives_come, 1, shared, 4, 10000000000u, 2);
    add(p, LONG, 0, 1);
    send(p);
    for (uint32_t i = 1; i < 4; i++)
        p->h[i].watched = &p->h[0];
    const clb_scheduler_stats s = play(p);
    assert_true(s.interruptions >= 1);
    assert_true(p->h[1].watched_read && p->h[1].n_reused >= 256);
    assert_true(p->h[2].watched_read && p->h[2].n_reused >= 32);
    assert_int_equal(p->h[3].n_reused, 0);
    check_all(SMALL, plenty, p->o, p->h, p->n);
    free(p);
}

/* ---- many, of all kinds ---- */

static void many_come(struct plot *p)
{
    for (uint32_t k = 0; k < 2 && p->n < STORM && test_rand_below(&p->rng, 3); k++) {
        const uint32_t kind = test_rand_below(&p->rng, 8), n = 1 + test_rand_below(&p->rng, kind == 7 ? LONG : 60);
        clb_request_options *const o = add(p, n, n < 40 ? n / 2 : 0, 1 + test_rand_below(&p->rng, 9));
        o->n_choices = kind == 1 ? 2 : 1;
        o->score_prompt = kind == 2;
        o->n_logprobs = kind == 2 ? 0 : -1;
        o->embed = kind == 3;
        send(p);
    }
    if (p->n > 3 && test_rand_below(&p->rng, 6) == 0) {
        const uint32_t i = test_rand_below(&p->rng, p->n);
        if (!p->h[i].done) {
            p->cancelled[i] = true;
            clb_request_cancel(p->r[i]);
        }
    }
}

static uint64_t storm(const char *const *settings, uint32_t n_sequences, uint64_t slice_ns, uint64_t seed)
{
    struct plot *const p = open_plot(many_come, 10, settings, n_sequences, slice_ns, seed);
    for (uint32_t i = 0; i < 6; i++) { /* long ones one after the other keep it going */
        add(p, LONG - 15 * i, 0, 3);
        send(p);
    }
    const clb_scheduler_stats s = play(p);
    assert_int_equal(s.given_up, 0);
    assert_int_equal(s.finished + s.cancelled, p->n);
    clb_error err;
    test_engine lone;
    assert_ok(test_engine_open(&lone, SMALL, plenty, NULL, &err), &err);
    for (uint32_t i = 0; i < p->n; i++) {
        assert_true(p->h[i].done);
        if (p->cancelled[i] && p->h[i].status == COLIBRI_E_CANCELLED)
            continue;
        for (uint32_t c = 0; c < p->o[i].n_choices && !p->o[i].embed; c++)
            check_lone(lone.engine, &p->o[i], &p->h[i], c);
    }
    test_engine_close(&lone);
    free(p);
    return s.interruptions;
}

static void everybody_gets_the_text_of_a_lone_run(void **state)
{
    (void)state;
    uint64_t whole = 0, sliced = 0;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        whole += storm(plenty, 3, 10000000000u, seed) + storm(shared, 12, 10000000000u, seed);
        sliced += storm(shared, 5, 1000, seed) + storm(plenty, 9, 1, seed);
    }
    assert_true(whole > 15);
    assert_true(sliced > 4);
}

/* ---- text beside what comes without end ---- */

#define MOST_LINKS 3000u

static void next_link(void *ctx, const clb_request_event *e)
{
    struct plot *const p = ctx;
    if (e->kind != CLB_EVENT_DONE || p->h[0].done || p->n_links == MOST_LINKS)
        return;
    p->n_links++;
    clb_request_release(submit(&p->d, &p->link));
}

static void hear_and_begin(void *ctx, const clb_request_event *e)
{
    struct plot *const p = ctx;
    hear(&p->h[0], e);
    if (e->kind == CLB_EVENT_TEXT && p->h[0].choice[0].n_tokens == 2)
        for (uint32_t i = 0; i < p->n_chains; i++)
            clb_request_release(submit(&p->d, &p->link));
}

static void nothing(struct plot *p)
{
    (void)p;
}

static void text_beside(uint32_t n_chains, bool score, uint32_t n_prompt)
{
    struct plot *const p = open_plot(nothing, 0, plenty, 4, 10000000000u, 1);
    add(p, 8, 0, 5);
    p->o[0].on_event = hear_and_begin;
    p->o[0].ctx = p;
    send(p);
    random_ids(p->d.e.engine, p->ids[1], n_prompt, 7);
    p->link = plain(p->ids[1], n_prompt, 0, 1, NULL);
    p->link.embed = !score;
    p->link.score_prompt = p->link.no_text = score;
    p->link.n_logprobs = score ? 0 : -1;
    p->link.on_event = next_link;
    p->link.ctx = p;
    p->n_chains = n_chains;
    play(p);
    assert_int_equal(p->h[0].status, COLIBRI_OK);
    assert_true(p->n_links < MOST_LINKS);
    check_all(SMALL, plenty, p->o, p->h, 1);
    free(p);
}

static void text_goes_on_beside_short_prompts_without_end(void **state)
{
    (void)state;
    text_beside(1, false, 40); /* passes that could be interrupted, but are over before that */
    text_beside(2, true, 20);  /* passes of few rows, which are not */
}

static void a_prompt_to_score_comes(struct plot *p)
{
    p->generated = p->h[0].choice[0].n_tokens;
    clb_request_options *const o = add(p, LONG, 0, 1);
    o->score_prompt = o->no_text = true;
    o->n_logprobs = 0;
    p->h[p->n].watched = &p->h[0];
    send(p);
}

static void scoring_inside_of_a_pass_takes_turns_with_text(void **state)
{
    (void)state;
    struct plot *const p = open_plot(a_prompt_to_score_comes, 1, plenty, 3, 10000000000u, 1);
    add(p, 8, 0, 30);
    send(p);
    add(p, LONG, 0, 1);
    send(p);
    play(p);
    assert_int_equal(p->h[2].n_scored, LONG);
    assert_true(p->h[2].generated_at_score >= p->generated + 2);
    check_all(SMALL, plenty, p->o, p->h, 2);
    free(p);
}

/* ---- who is not wanted any more ---- */

static void the_only_one_is_cancelled(struct plot *p)
{
    clb_request_cancel(p->r[0]);
}

static void a_pass_that_nobody_wants_ends_at_once(void **state)
{
    (void)state;
    struct plot *const p = open_plot(the_only_one_is_cancelled, 1, plenty, 2, 10000000000u, 1);
    add(p, LONG, 0, 4);
    send(p);
    play(p);
    assert_int_equal(p->h[0].status, COLIBRI_E_CANCELLED);
    assert_int_equal(p->n_routes, 1);
    free(p);
}

static void one_of_two_is_cancelled(struct plot *p)
{
    clb_request_cancel(p->r[0]);
    add(p, 8, 0, 1);
    send(p);
}

static void who_is_cancelled_in_flight_stays_until_the_end(void **state)
{
    (void)state;
    struct plot *const p = open_plot(one_of_two_is_cancelled, 1, plenty, 3, 10000000000u, 1);
    add(p, 160, 0, 4);
    send(p);
    add(p, 200, 0, 4);
    send(p);
    const clb_scheduler_stats s = play(p);
    assert_int_equal(s.interruptions, 1);
    assert_int_equal(p->h[0].status, COLIBRI_E_CANCELLED);
    check_all(SMALL, plenty, p->o + 1, p->h + 1, p->n - 1);
    free(p);
}

/* ---- where it does not apply ---- */

static void without_room_for_all_weights_there_is_none(void **state)
{
    (void)state;
    static const char *const few[] = {"threads=2", "batch=512", "ctx=600", "expert-slots=7", NULL};
    static const char *const small[] = {"threads=2", "batch=64", "ctx=600", NULL};
    const char *const *const all[] = {few, small};
    for (int i = 0; i < 2; i++) {
        clb_error err;
        test_engine e;
        struct plot p = {.act = nothing};
        const test_engine_hooks hooks = {.n_sequences = 2, .interruptible = true, .on_route = on_route, .ctx = &p};
        assert_ok(test_engine_open(&e, SMALL, all[i], &hooks, &err), &err);
        assert_null(e.engine->aside);
        assert_int_equal(e.engine->plan.aside_rows, 0);
        test_engine_close(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_is_served_inside_of_the_pass),
        cmocka_unit_test(prompts_wait_for_what_is_being_computed),
        cmocka_unit_test(who_waits_from_the_beginning_is_left_alone_meanwhile),
        cmocka_unit_test(who_waited_for_a_pass_that_was_ended_waits_again),
        cmocka_unit_test(everybody_gets_the_text_of_a_lone_run),
        cmocka_unit_test(text_goes_on_beside_short_prompts_without_end),
        cmocka_unit_test(scoring_inside_of_a_pass_takes_turns_with_text),
        cmocka_unit_test(a_pass_that_nobody_wants_ends_at_once),
        cmocka_unit_test(who_is_cancelled_in_flight_stays_until_the_end),
        cmocka_unit_test(without_room_for_all_weights_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
