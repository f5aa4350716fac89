#include "engine/scheduler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "engine/sched_internal.h"

#define IDLE_WAKE_NS UINT64_C(200000000) /* how often timeouts in the queue are looked at while nothing runs */

/* ---- requests ---- */

static void free_options(clb_request_options *o)
{
    free((void *)o->prompt);
    free((void *)o->bias);
    for (size_t i = 0; i < o->n_stops && o->stops; i++)
        free((void *)o->stops[i]);
    free((void *)o->stops);
    free((void *)o->lora);
    clb_grammar_release(o->grammar);
}

void clb_request_release(clb_request *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    free_options(&r->o);
    free(r);
}

void clb_request_cancel(clb_request *r)
{
    atomic_store(&r->cancelled, true);
    sem_post(&r->scheduler->wake);
}

static void *copy(const void *p, size_t n, size_t size, bool *failed)
{
    if (!n)
        return NULL;
    void *const out = n > SIZE_MAX / size ? NULL : malloc(n * size);
    if (!out)
        *failed = true;
    else
        memcpy(out, p, n * size);
    return out;
}

static bool copy_options(clb_request_options *to, const clb_request_options *from)
{
    bool failed = false;
    *to = *from;
    to->prompt = copy(from->prompt, from->n_prompt, sizeof *from->prompt, &failed);
    to->bias = copy(from->bias, from->n_bias, sizeof *from->bias, &failed);
    to->lora = copy(from->lora, from->n_lora, sizeof *from->lora, &failed);
    to->grammar = from->grammar ? clb_grammar_hold(from->grammar) : NULL;
    char **const stops = calloc(from->n_stops + 1, sizeof *stops);
    failed = failed || !stops;
    for (size_t i = 0; i < from->n_stops && stops; i++) {
        stops[i] = strdup(from->stops[i]);
        failed = failed || !stops[i];
    }
    to->stops = (const char *const *)stops;
    return !failed;
}

static int check_options(const clb_scheduler *s, const clb_request_options *o, clb_error *err)
{
    const clb_engine *e = s->o.engine;
    if (!o->n_prompt)
        return clb_fail(err, COLIBRI_E_USAGE, "the prompt has no tokens");
    if (!o->n_choices || o->n_choices > s->o.n_sequences)
        return clb_fail(err, COLIBRI_E_USAGE, "%u choices: at least 1, at most %u (--parallel)", o->n_choices,
                        s->o.n_sequences);
    if (o->n_logprobs > (int)CLB_TOP_LOGPROBS_MOST || (o->n_logprobs > 0 && (uint32_t)o->n_logprobs > s->n_vocab))
        return clb_fail(err, COLIBRI_E_USAGE, "%d log probabilities per token: at most %u", o->n_logprobs,
                        CLB_TOP_LOGPROBS_MOST);
    if (o->grammar && !o->tree)
        return clb_fail(err, COLIBRI_E_INTERNAL, "a grammar without its token tree");
    for (size_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] >= s->n_vocab)
            return clb_fail(err, COLIBRI_E_USAGE, "token %u is outside the vocabulary of %u", o->prompt[i], s->n_vocab);
    const bool bounded = clb_kv_holds_prompts(&e->kv_layout, &e->kv_choice.traits);
    if ((bounded && o->n_prompt > e->ctx) || o->n_prompt > UINT32_MAX / 2)
        return clb_fail(err, COLIBRI_E_LIMIT, "the prompt has %zu tokens, the context holds %u", o->n_prompt, e->ctx);
    return COLIBRI_OK;
}

int clb_scheduler_submit(clb_scheduler *s, const clb_request_options *options, clb_request **out, clb_error *err)
{
    *out = NULL;
    CLB_TRY(check_options(s, options, err));
    clb_request *const r = calloc(1, sizeof *r);
    if (!r || !copy_options(&r->o, options)) {
        if (r)
            free_options(&r->o);
        free(r);
        return CLB_NOMEM(err, "a request");
    }
    atomic_init(&r->refs, 2); /* the caller's, the scheduler's */
    atomic_init(&r->cancelled, false);
    r->scheduler = s;
    r->submitted_ns = clb_now_ns();
    int rc = COLIBRI_OK;
    pthread_mutex_lock(&s->lock);
    if (s->draining || s->over)
        rc = clb_fail(err, COLIBRI_E_CANCELLED, "the server is shutting down");
    else if (s->n_queued >= s->o.queue + s->n_idle) /* who can start at once does not wait */
        rc = clb_fail(err, COLIBRI_E_BUSY, "the queue is full: %u requests wait (--queue)", s->n_queued);
    s->stats.refused += rc != COLIBRI_OK;
    if (!rc) {
        r->id = ++s->next_id;
        *s->queue_end = r;
        s->queue_end = &r->next;
        s->n_queued++;
        s->stats.submitted++;
        *out = r; /* before its first event */
        atomic_fetch_add(&s->newcomers, 1);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc) {
        free_options(&r->o);
        free(r);
        return rc;
    }
    sem_post(&s->wake);
    return COLIBRI_OK;
}

void clb_request_event_out(const clb_request *r, const clb_request_event *event)
{
    if (r->o.on_event)
        r->o.on_event(r->o.ctx, event);
}

/* ---- the end of a request ---- */

static void done(clb_scheduler *s, clb_request *r, int status, const char *message)
{
    const uint64_t now = clb_now_ns();
    clb_request_event e = {
        .kind = CLB_EVENT_DONE, .n_prompt = (uint32_t)r->o.n_prompt, .status = status, .message = message};
    e.queued_ns = (r->started_ns ? r->started_ns : now) - r->submitted_ns;
    e.prompt_ns = r->started_ns ? (r->first_ns ? r->first_ns : now) - r->started_ns : 0;
    e.decode_ns = r->first_ns ? now - r->first_ns : 0;
    for (uint32_t i = 0; r->lanes && i < r->o.n_choices; i++)
        e.n_generated += r->lanes[i].n_generated;
    e.n_reused = r->lanes ? r->lanes[0].n_reused : 0;
    pthread_mutex_lock(&s->lock);
    s->stats.finished += status == COLIBRI_OK;
    s->stats.cancelled += status == COLIBRI_E_CANCELLED;
    s->stats.failed += status != COLIBRI_OK && status != COLIBRI_E_CANCELLED;
    pthread_mutex_unlock(&s->lock);
    clb_request_event_out(r, &e);
}

void clb_request_fail(clb_scheduler *s, clb_request *r, int status, const char *message)
{
    if (!r->n_open)
        return;
    for (uint32_t i = 0; i < r->o.n_choices; i++)
        r->lanes[i].state = CLB_LANE_OVER;
    r->n_open = 0;
    done(s, r, status, message);
}

void clb_request_lane_over(clb_scheduler *s, clb_request *r)
{
    if (--r->n_open == 0)
        done(s, r, COLIBRI_OK, "");
}

static bool is_in_flight(const clb_request *r)
{
    for (uint32_t i = 0; r->lanes && i < r->o.n_choices; i++)
        if (r->lanes[i].in_flight)
            return true;
    return false;
}

/* So many more sequences are free (negative: fewer), which also those who submit see. */
static void free_sequences(clb_scheduler *s, int more)
{
    if (!more)
        return;
    s->n_free = (uint32_t)((int)s->n_free + more);
    pthread_mutex_lock(&s->lock);
    s->n_idle = s->n_free;
    pthread_mutex_unlock(&s->lock);
}

/* Lanes that are over go; requests whose last lane went, too. */
static void reap(clb_scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i]->state != CLB_LANE_OVER || is_in_flight(s->lanes[i]->request))
            s->lanes[n++] = s->lanes[i];
        else
            clb_lane_free(s, s->lanes[i]);
    free_sequences(s, (int)(s->n_lanes - n));
    s->n_lanes = n;
    for (clb_request **at = &s->running; *at;) {
        clb_request *const r = *at;
        if (r->n_open || is_in_flight(r)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free(r->lanes);
        r->lanes = NULL;
        clb_request_release(r);
    }
}

/* ---- the queue ---- */

static void start(clb_scheduler *s, clb_request *r)
{
    clb_error err;
    r->started_ns = clb_now_ns();
    r->lanes = calloc(r->o.n_choices, sizeof *r->lanes);
    r->n_open = r->o.n_choices;
    int rc = r->lanes ? COLIBRI_OK : CLB_NOMEM(&err, "a request");
    for (uint32_t i = 0; i < r->o.n_choices && r->lanes; i++) {
        r->lanes[i].request = r;
        r->lanes[i].choice = i;
        s->lanes[s->n_lanes++] = &r->lanes[i];
    }
    free_sequences(s, r->lanes ? -(int)r->o.n_choices : 0);
    r->next = s->running;
    s->running = r;
    const clb_request_event e = {.kind = CLB_EVENT_STARTED, .n_prompt = (uint32_t)r->o.n_prompt};
    if (!rc)
        clb_request_event_out(r, &e);
    for (uint32_t i = 0; i < r->o.n_choices && !rc; i++)
        rc = clb_lane_start(s, &r->lanes[i], &err);
    if (!rc)
        return;
    if (r->lanes) {
        clb_request_fail(s, r, rc, err.msg);
        return;
    }
    r->n_open = 0;
    done(s, r, rc, err.msg);
}

static bool timed_out(const clb_request *r, uint64_t now)
{
    /* `now` may be older than a request that came after the look at the clock */
    return r->o.timeout_ns && now > r->submitted_ns && now - r->submitted_ns > r->o.timeout_ns;
}

static void end_early(clb_scheduler *s, clb_request *r, bool stopping, uint64_t now, bool queued)
{
    const bool cancelled = atomic_load(&r->cancelled) || stopping;
    if (!cancelled && !timed_out(r, now))
        return;
    char text[96];
    snprintf(text, sizeof text, "the request took longer than %.0f s", (double)r->o.timeout_ns / 1e9);
    const int status = cancelled ? COLIBRI_E_CANCELLED : COLIBRI_E_LIMIT;
    const char *message = !cancelled ? text : stopping ? "the server is shutting down" : "cancelled";
    if (!queued)
        clb_request_fail(s, r, status, message);
    else
        done(s, r, status, message);
}

/* Takes what was cancelled, is late or can start out of the queue, the latter in order. */
static void look_at_queue(clb_scheduler *s, bool stopping)
{
    const uint64_t now = clb_now_ns();
    atomic_store(&s->newcomers, 0);
    pthread_mutex_lock(&s->lock);
    s->o.slice_ns = s->slice_ns;
    pthread_mutex_unlock(&s->lock);
    for (;;) {
        clb_request *taken = NULL;
        bool starts = false;
        pthread_mutex_lock(&s->lock);
        for (clb_request **at = &s->queue; *at && !taken; at = &(*at)->next) {
            starts = at == &s->queue && (*at)->o.n_choices <= s->n_free;
            if (!starts && !stopping && !atomic_load(&(*at)->cancelled) && !timed_out(*at, now))
                continue;
            taken = *at;
            *at = taken->next;
            if (!*at)
                s->queue_end = at;
            s->n_queued--;
            break;
        }
        pthread_mutex_unlock(&s->lock);
        if (!taken)
            return;
        taken->next = NULL;
        if (stopping || atomic_load(&taken->cancelled) || timed_out(taken, now)) {
            end_early(s, taken, stopping, now, true);
            clb_request_release(taken);
        } else {
            start(s, taken);
        }
    }
}

static void look_at_running(clb_scheduler *s, bool stopping)
{
    const uint64_t now = clb_now_ns();
    for (clb_request *r = s->running; r; r = r->next)
        if (!is_in_flight(r))
            end_early(s, r, stopping, now, false);
}

void clb_sched_look_around(clb_scheduler *s, bool stopping)
{
    look_at_running(s, stopping);
    reap(s);
    look_at_queue(s, stopping);
    reap(s); /* those that could not start */
}

/* ---- calls ---- */

static void run_calls(clb_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->calls) {
        clb_sched_call *const c = s->calls;
        s->calls = c->next;
        pthread_mutex_unlock(&s->lock);
        c->rc = c->fn(c->ctx, s->o.engine, c->err);
        pthread_mutex_lock(&s->lock);
        c->done = true;
        pthread_cond_broadcast(&s->called);
    }
    pthread_mutex_unlock(&s->lock);
}

int clb_scheduler_call(clb_scheduler *s, int (*fn)(void *ctx, clb_engine *engine, clb_error *err), void *ctx,
                       clb_error *err)
{
    clb_sched_call c = {.fn = fn, .ctx = ctx, .err = err};
    pthread_mutex_lock(&s->lock);
    if (s->over) {
        pthread_mutex_unlock(&s->lock);
        return clb_fail(err, COLIBRI_E_CANCELLED, "the server is shutting down");
    }
    clb_sched_call **at = &s->calls;
    while (*at)
        at = &(*at)->next;
    *at = &c;
    sem_post(&s->wake);
    while (!c.done)
        pthread_cond_wait(&s->called, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return c.rc;
}

/* ---- the loop ---- */

static void wait_for_work(clb_scheduler *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)IDLE_WAKE_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (sem_timedwait(&s->wake, &until) && errno == EINTR) {
        if (atomic_load(&s->stop))
            return;
    }
    while (sem_trywait(&s->wake) == 0) /* one look is enough for all of them */
        ;
}

static void ask_scheduler(clb_scheduler *s, bool ask)
{
    clb_engine *const e = s->o.engine;
    clb_forward_cancel_by(e->forward, ask ? clb_sched_cancelled : NULL, s);
    clb_forward_pause_by(e->forward, ask && e->aside ? clb_sched_pause : NULL, s);
    if (e->aside)
        clb_forward_cancel_by(e->aside, ask ? clb_sched_cancelled : NULL, s);
}

int clb_scheduler_run(clb_scheduler *s, clb_error *err)
{
    int rc = COLIBRI_OK;
    ask_scheduler(s, true);
    for (;;) {
        const bool stopping = atomic_load(&s->stop);
        if (stopping)
            clb_scheduler_drain(s);
        run_calls(s);
        clb_sched_look_around(s, stopping);
        bool ran = false;
        rc = clb_sched_pass(s, &ran, err);
        reap(s);
        clb_sched_publish(s);
        pthread_mutex_lock(&s->lock);
        const bool idle = !s->running && !s->queue, over = idle && s->draining;
        s->over = s->over || over || rc;
        pthread_mutex_unlock(&s->lock);
        if (over || rc)
            break;
        if (!ran && idle)
            wait_for_work(s);
    }
    if (rc) { /* nobody waits forever */
        clb_sched_look_around(s, true);
    }
    run_calls(s);
    ask_scheduler(s, false);
    return rc;
}

void clb_scheduler_drain(clb_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
    sem_post(&s->wake);
}

void clb_scheduler_set_limits(clb_scheduler *s, uint32_t queue, uint64_t slice_ns)
{
    pthread_mutex_lock(&s->lock);
    s->o.queue = queue;
    s->slice_ns = slice_ns;
    pthread_mutex_unlock(&s->lock);
}

void clb_scheduler_stop(clb_scheduler *s)
{
    atomic_store(&s->stop, true);
    sem_post(&s->wake);
}

/* ---- life ---- */

int clb_scheduler_create(const clb_scheduler_options *options, clb_scheduler **out, clb_error *err)
{
    const clb_engine *e = options->engine;
    const size_t n = options->n_sequences, n_vocab = e->model->hp.n_vocab;
    *out = NULL;
    if (!n || n > e->batch)
        return clb_fail(err, COLIBRI_E_USAGE, "%zu sequences at once: at least 1, at most --batch (%u)", n, e->batch);
    clb_scheduler *const s = calloc(1, sizeof *s);
    if (!s)
        return CLB_NOMEM(err, "scheduler");
    s->o = *options;
    s->slice_ns = options->slice_ns;
    s->n_vocab = (uint32_t)n_vocab;
    s->n_free = s->n_idle = options->n_sequences;
    s->queue_end = &s->queue;
    if (getrandom(&s->secret, sizeof s->secret, GRND_NONBLOCK) != (ssize_t)sizeof s->secret)
        s->secret = clb_now_ns();
    s->lora_hash = clb_lora_set_hash(&e->adapters.defaults, s->secret);
    s->began_ns = s->window_ns = clb_now_ns();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->called, NULL);
    sem_init(&s->wake, 0, 0);
    s->slots = calloc(n, sizeof *s->slots);
    s->lanes = calloc(n, sizeof *s->lanes);
    s->in_pass = calloc(n, sizeof *s->in_pass);
    s->reading = calloc(n, sizeof *s->reading);
    s->spans = calloc(n, sizeof *s->spans);
    s->aside_in_pass = calloc(n, sizeof *s->aside_in_pass);
    s->aside_spans = calloc(n, sizeof *s->aside_spans);
    s->logits = calloc(n * n_vocab, sizeof *s->logits);
    s->residency = calloc((size_t)e->model->n_moe_layers * e->model->hp.n_experts + 1, 1);
    if (!s->slots || !s->lanes || !s->in_pass || !s->reading || !s->spans || !s->aside_in_pass || !s->aside_spans ||
        !s->logits || !s->residency) {
        clb_scheduler_destroy(s);
        return CLB_NOMEM(err, "scheduler");
    }
    clb_sched_publish(s);
    *out = s;
    return COLIBRI_OK;
}

void clb_scheduler_destroy(clb_scheduler *s)
{
    if (!s)
        return;
    free(s->slots);
    free(s->lanes);
    free(s->in_pass);
    free(s->reading);
    free(s->spans);
    free(s->aside_in_pass);
    free(s->aside_spans);
    free(s->logits);
    free(s->residency);
    sem_destroy(&s->wake);
    pthread_cond_destroy(&s->called);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
