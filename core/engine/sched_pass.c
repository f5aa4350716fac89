/* One pass: which lanes take part (sched_choose.c), and what becomes of them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched_internal.h"
#include "kv/prefix.h"

bool clb_sched_cancelled(void *scheduler)
{
    clb_scheduler *s = scheduler;
    if (atomic_load_explicit(&s->stop, memory_order_relaxed))
        return true;
    if (s->n_in_pass == 1 && atomic_load_explicit(&s->in_pass[0]->request->cancelled, memory_order_relaxed))
        return true; /* nobody else wants it */
    return atomic_load_explicit(&s->may_break, memory_order_relaxed) &&
           atomic_load_explicit(&s->newcomers, memory_order_relaxed) > 0;
}

static void take_logits(void *ctx, uint32_t first, uint32_t n, const float *logits)
{
    clb_scheduler *s = ctx;
    clb_lane *const lane = s->in_pass[0];
    if (!clb_lane_scores(lane)) /* the buffer holds all rows */
        return;
    for (uint32_t i = 0; i < n && !lane->rc; i++)
        clb_lane_score(s, lane, first + i, logits + (size_t)i * s->n_vocab);
    lane->logits = logits + (size_t)(n - 1) * s->n_vocab;
}

static void take_hidden(void *ctx, uint32_t span, uint32_t i, const float *row)
{
    clb_scheduler *s = ctx;
    (void)i;
    double *const sum = s->in_pass[span]->sum;
    for (uint32_t k = 0; k < s->o.engine->model->hp.n_embd; k++)
        sum[k] += (double)row[k];
}

static int run_spans(clb_scheduler *s, clb_error *err)
{
    const clb_logits_sink sink = {
        .buffer = s->logits, .rows = s->o.n_sequences, .take = take_logits, .hidden = take_hidden, .ctx = s};
    clb_lane *const first = s->in_pass[0];
    const size_t n_infos = first->n_infos;
    clb_forward *const forward = s->aside ? s->o.engine->aside : s->o.engine->forward;
    const int rc = clb_forward_run_to(forward, s->spans, s->n_in_pass, &sink, err);
    if (rc && clb_lane_scores(first))
        first->n_infos = n_infos;
    return rc;
}

/* The rows are in the KV cache: the lanes know it. */
static void settle(clb_scheduler *s)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_in_pass; i++) {
        clb_lane *const lane = s->in_pass[i];
        const clb_span *span = &s->spans[i];
        const bool scored = clb_lane_scores(lane);
        row += span->n_logits;
        if (lane->state == CLB_LANE_OVER) /* its request has failed meanwhile */
            continue;
        if (span->n_logits && !scored)
            lane->logits = s->logits + (size_t)(row - 1) * s->n_vocab;
        int rc = lane->rc;
        for (uint32_t k = 0; k < span->n && !rc; k++)
            rc = clb_tokens_push(&lane->held, span->tokens[k], &lane->err);
        lane->rc = rc;
        if (rc)
            continue;
        if (!lane->apart)
            clb_kv_seq_give_prefix(lane->kv, lane->held.ids, (uint32_t)lane->held.n);
        if (lane->state == CLB_LANE_GENERATES) {
            lane->state = CLB_LANE_SAMPLES;
            continue;
        }
        if (lane->first_read && !lane->choice) {
            const clb_request_event e = {.kind = CLB_EVENT_PROMPT,
                                         .n_prompt = (uint32_t)lane->goal.n,
                                         .n_done = (uint32_t)lane->held.n,
                                         .n_reused = lane->n_reused};
            clb_request_event_out(lane->request, &e);
        }
        if (!clb_lane_left(lane))
            lane->rc = clb_lane_read(s, lane, &lane->err);
    }
}

struct sampling {
    clb_scheduler *s;
    clb_lane **lanes;
    uint32_t n;
};

static void sample_some(void *ctx, uint32_t worker, uint32_t n_workers)
{
    const struct sampling *j = ctx;
    for (uint32_t i = worker; i < j->n; i += n_workers)
        clb_lane_sample(j->s, j->lanes[i]);
}

/* Samples for every lane that has logits; then text goes out, lane by lane. Returns the tokens. */
static uint32_t sample_all(clb_scheduler *s)
{
    struct sampling j = {s, s->in_pass, 0}; /* the pass is over: its list is free */
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_SAMPLES && !s->lanes[i]->rc)
            j.lanes[j.n++] = s->lanes[i];
    if (j.n == 1)
        clb_lane_sample(s, j.lanes[0]);
    else if (j.n)
        clb_pool_run(s->o.engine->pool, sample_some, &j);
    const uint32_t n = j.n;
    for (uint32_t i = 0; i < j.n; i++)
        if (!j.lanes[i]->rc)
            j.lanes[i]->rc = clb_lane_advance(s, j.lanes[i], &j.lanes[i]->err);
    return n;
}

/* Lanes whose own work failed end their requests. */
void clb_sched_fail_lanes(clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        clb_lane *const lane = s->lanes[i];
        if (lane->rc && lane->state != CLB_LANE_OVER)
            clb_request_fail(s, lane->request, lane->rc, lane->err.msg);
    }
}

/* A pass of several lanes failed: each on its own, so that only those fail that must. */
static void run_apart(clb_scheduler *s)
{
    const uint64_t t0 = clb_now_ns();
    uint32_t prompt_rows = 0, generated = 0;
    clb_span *const spans = s->spans;
    clb_lane **const in_pass = s->in_pass;
    const uint32_t n = s->n_in_pass;
    for (uint32_t i = 0; i < n; i++) {
        s->spans = spans + i;
        s->in_pass = in_pass + i;
        s->n_in_pass = 1;
        const clb_lane *lane = in_pass[i];
        const bool reads = lane->state == CLB_LANE_READS;
        if (lane->state == CLB_LANE_OVER) /* with another lane of its request */
            continue;
        /* Each one's logits are used before the next pass overwrites them. */
        clb_error err;
        const int rc = run_spans(s, &err);
        if (!rc)
            settle(s);
        else
            clb_request_fail(s, lane->request, rc, err.msg);
        prompt_rows += !rc && reads ? spans[i].n : 0;
        for (uint32_t k = 0; k < s->n_lanes; k++)
            if (!rc && s->lanes[k]->state == CLB_LANE_SAMPLES && !s->lanes[k]->rc) {
                clb_lane_sample(s, s->lanes[k]);
                generated += !s->lanes[k]->rc;
                if (!s->lanes[k]->rc)
                    s->lanes[k]->rc = clb_lane_advance(s, s->lanes[k], &s->lanes[k]->err);
            }
    }
    s->spans = spans;
    s->in_pass = in_pass;
    clb_sched_fail_lanes(s);
    clb_sched_count_pass(s, prompt_rows, generated, clb_now_ns() - t0);
}

static void learn(clb_scheduler *s, uint32_t prompt_rows, uint32_t generated, uint64_t ns)
{
    const double t = (double)ns;
    double *const value = prompt_rows ? &s->row_ns : &s->decode_ns;
    double now = t;
    if (prompt_rows) {
        const double others = generated ? s->decode_ns : 0.0;
        now = (t > others ? t - others : t) / prompt_rows;
    }
    *value = *value > 0.0 ? *value * 0.8 + now * 0.2 : now;
}

/* A pass was given up: what lanes wait for is still to come. */
static void wait_again(clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state == CLB_LANE_READS)
            s->lanes[i]->waited = s->lanes[i]->waits = false;
}

/* What the pass has cost, and whether the next one may be given up: such losses are at most a third of what gets on. */
static void account(clb_scheduler *s, uint32_t prompt_rows, uint32_t n_generating, uint64_t ns)
{
    if (prompt_rows)
        s->credit_ns += (int64_t)(ns / 3);
    if (s->credit_ns > 0)
        s->credit_ns = 0;
    learn(s, prompt_rows, n_generating, ns);
}

/* Lanes of a pass that may be interrupted stay as they are until it is over. */
static void set_in_flight(clb_scheduler *s, bool in_flight)
{
    for (uint32_t i = 0; i < s->n_in_pass; i++)
        s->in_pass[i]->in_flight = in_flight ? (uint32_t)s->in_pass[i]->held.n + s->spans[i].n : 0;
}

void clb_sched_run_chosen(clb_scheduler *s, uint32_t prompt_rows, clb_error *err)
{
    uint32_t n_generating = 0;
    for (uint32_t i = 0; i < s->n_in_pass; i++)
        n_generating += s->in_pass[i]->state == CLB_LANE_GENERATES;
    set_in_flight(s, true);
    const uint64_t t0 = clb_now_ns(), aside = s->aside_ns;
    const int rc = run_spans(s, err);
    const uint64_t ns = clb_now_ns() - t0 - (s->aside_ns - aside);
    const bool may_break = atomic_exchange(&s->may_break, false); /* what follows may not be given up */
    set_in_flight(s, false);
    if (!s->aside)
        s->may_pause = false;
    if (n_generating)
        s->text_ns = clb_now_ns();
    if (rc == COLIBRI_E_CANCELLED) { /* stopped, not wanted any more, or given up for a newcomer */
        if (may_break && atomic_load(&s->newcomers)) {
            s->credit_ns -= (int64_t)ns;
            pthread_mutex_lock(&s->lock);
            s->stats.given_up++;
            pthread_mutex_unlock(&s->lock);
        }
        wait_again(s);
        return;
    }
    if (rc && s->n_in_pass > 1) {
        run_apart(s);
        return;
    }
    if (rc) {
        clb_request_fail(s, s->in_pass[0]->request, rc, err->msg);
        return;
    }
    account(s, prompt_rows, n_generating, ns);
    settle(s);
    clb_sched_fail_lanes(s);
    const uint32_t generated = sample_all(s);
    clb_sched_fail_lanes(s);
    clb_sched_count_pass(s, prompt_rows, generated, ns);
}

/* Prompts in passes that can be interrupted: a few rows, which are not, go with the text, many without it. */
static uint32_t choose_whole(clb_scheduler *s, uint32_t n_reading)
{
    const uint32_t batch = s->o.engine->batch;
    uint64_t left = 0;
    for (uint32_t i = 0; i < n_reading; i++)
        left += clb_lane_left(s->reading[i]);
    const bool together = left <= CLB_SCHED_FEWEST_ROWS;
    const bool scored = s->scored;
    const uint32_t rows = clb_sched_choose(s, n_reading, batch, together);
    if (together || rows > CLB_SCHED_FEWEST_ROWS || (s->n_in_pass && !clb_sched_text_waits(s)))
        return rows;
    s->scored = scored;
    return clb_sched_choose(s, n_reading, rows ? rows : batch, true);
}

int clb_sched_pass(clb_scheduler *s, bool *ran, clb_error *err)
{
    const uint32_t n_reading = clb_sched_sort_reading(s);
    const bool pauses = clb_sched_pauses(s), may_break = s->credit_ns >= 0;
    const uint32_t rows = pauses ? choose_whole(s, n_reading)
                                 : clb_sched_choose(s, n_reading, clb_sched_prompt_rows(s, n_reading, may_break), true);
    *ran = s->n_in_pass > 0;
    if (!*ran)
        return COLIBRI_OK;
    const bool many = rows > CLB_SCHED_FEWEST_ROWS;
    atomic_store(&s->may_break, many && s->n_free && may_break && !pauses && clb_sched_keeps_all(s));
    s->may_pause = many && pauses && (s->n_free || s->n_in_pass < s->n_lanes);
    s->pass_began_ns = clb_now_ns();
    if (!clb_sched_text_waits(s)) /* else it is due when it would have been */
        s->text_ns = s->pass_began_ns;
    s->aside_began_ns = s->aside_ns;
    clb_sched_run_chosen(s, rows, err);
    return COLIBRI_OK;
}
