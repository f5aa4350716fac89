#include "serve/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "serve/completion_internal.h"
#include "serve/json_memory.h"
#include "serve/metrics.h"

/* Locks: the completion's own is taken before the scheduler's (cancelling) and the exchange's (writing), never with the
 * watch's. The scheduler calls on_event without its lock; on_gone takes none. */

/* ---- life ---- */

void clb_completion_hold(clb_completion *c)
{
    atomic_fetch_add(&c->refs, 1);
}

void clb_completion_drop(clb_completion *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    for (size_t i = 0; i < c->n_prompts; i++) {
        clb_tokens_free(&c->prompts[i]);
        clb_request_release(atomic_load(&c->items[i].request));
    }
    for (size_t i = 0; i < c->n_choices; i++) {
        if (c->shape->free_choice)
            c->shape->free_choice(&c->choices[i]);
        clb_jb_free(&c->choices[i].text);
        for (size_t k = 0; k < sizeof c->choices[i].logprobs / sizeof *c->choices[i].logprobs; k++)
            clb_jb_free(&c->choices[i].logprobs[k]);
    }
    if (c->own && c->shape->free_own)
        c->shape->free_own(c->own);
    clb_text_options_free(&c->options);
    clb_jb_free(&c->out);
    pthread_mutex_destroy(&c->lock);
    free(c->prompts);
    free(c->items);
    free(c->choices);
    free(c);
}

/* ---- writing ---- */

static void word_beginning(clb_completion *c)
{
    if (c->worded)
        return;
    c->worded = true;
    if (c->shape->begin)
        c->shape->begin(c, &c->out);
}

void clb_completion_flush(clb_completion *c)
{
    if (!c->out.buf.n || c->submitting)
        return;
    if (!c->begun) {
        c->begun = true;
        clb_exchange_set_header(c->x, "Cache-Control", "no-cache");
        clb_exchange_set_header(c->x, "X-Accel-Buffering", "no");
        clb_stream_begin(c->x, "text/event-stream");
    }
    clb_stream_write(c->x, c->out.buf.data, c->out.buf.n);
    c->out.buf.n = 0;
    c->written_ns = clb_now_ns();
}

/* ---- failure ---- */

void clb_completion_refuse(clb_completion *c, const clb_refusal *r)
{
    if (c->refusal.http)
        return;
    c->refusal = *r;
    c->next = c->n_prompts;
    for (size_t i = 0; i < c->n_prompts; i++) {
        clb_request *const request = atomic_load(&c->items[i].request);
        if (request)
            clb_request_cancel(request);
    }
}

void clb_completion_fail(clb_completion *c, int status, const char *message)
{
    clb_refusal r;
    if (atomic_load(&c->gone)) /* nobody reads it but the log */
        clb_refuse_as(&r, status, 499, "client_closed_request", NULL, "the client went away");
    else if (status == COLIBRI_E_LIMIT && c->timeout_ns && clb_now_ns() - c->began_ns >= c->timeout_ns)
        clb_refuse_as(&r, status, 408, "timeout", "request_timeout", message);
    else
        clb_refuse_status(&r, status, message);
    clb_completion_refuse(c, &r);
}

/* ---- the end ---- */

static void finish_well(clb_completion *c, clb_error *err)
{
    int rc = COLIBRI_OK;
    c->done = true;
    word_beginning(c);
    for (size_t i = 0; i < c->n_choices && !rc; i++) /* those without text of their own, and the one that waited */
        if (!c->choices[i].ended || &c->choices[i] == c->last) {
            if (!c->choices[i].ended)
                c->choices[i].finish = CLB_FINISH_LENGTH;
            c->choices[i].ended = true;
            rc = c->shape->choice_end ? c->shape->choice_end(c, &c->choices[i], &c->out, err) : COLIBRI_OK;
        }
    if (!rc)
        rc = c->shape->end(c, &c->out, err);
    if (!rc && c->out.failed)
        rc = CLB_NOMEM(err, "the reply");
    if (rc)
        clb_completion_fail(c, rc, err->msg);
}

/* One thread comes here, once, when no request runs and none will. */
void clb_completion_finish(clb_completion *c)
{
    clb_error err = {0};
    clb_json_memory_forget();
    clb_watch_remove(c->app->watch, c);
    pthread_mutex_lock(&c->lock);
    if (!c->refusal.http)
        finish_well(c, &err);
    if (c->refusal.http && c->begun) {
        clb_jb_free(&c->out); /* half an event may be in it */
        c->shape->error(c, &c->refusal, &c->out);
    }
    if (c->begun || (c->options.stream && !c->refusal.http))
        clb_completion_flush(c);
    const bool begun = c->begun;
    pthread_mutex_unlock(&c->lock);
    if (begun)
        clb_stream_end(c->x);
    else if (c->refusal.http)
        c->shape->refuse(c->x, &c->refusal);
    else
        clb_reply(c->x, 200, "application/json", c->out.buf.data, c->out.buf.n);
    clb_metrics_add(c->app->metrics, &(clb_metrics_request){
                                         .queued_ns = c->usage.queued_ns,
                                         .first_ns = c->first_text_ns ? c->first_text_ns - c->began_ns : 0,
                                         .total_ns = clb_now_ns() - c->began_ns,
                                         .n_prompt = c->usage.n_prompt,
                                         .n_generated = c->usage.n_generated,
                                     });
    clb_completion_drop(c);
}

/* Under the lock: is this thread the one that finishes? */
bool clb_completion_is_over(clb_completion *c)
{
    if (c->over || c->submitting || c->running || c->next < c->n_prompts)
        return false;
    c->over = true;
    return true;
}

/* ---- events [engine-thread] ---- */

static void on_text(clb_completion *c, clb_completion_item *item, const clb_request_event *e)
{
    clb_error err = {0};
    clb_choice *const ch = &c->choices[(size_t)item->prompt * c->options.n_choices + e->choice];
    const uint64_t now = clb_now_ns();
    if (!c->first_text_ns)
        c->first_text_ns = now;
    c->live.n_generated += e->n_tokens;
    c->live.prompt_ns = c->first_text_ns - c->started_ns;
    c->live.decode_ns = now - c->first_text_ns;
    word_beginning(c);
    const int rc = c->shape->text(c, ch, e->text, e->n_text, e->tokens, e->n_tokens, &c->out, &err);
    if (rc)
        clb_completion_fail(c, rc, err.msg);
}

static void on_choice(clb_completion *c, clb_completion_item *item, const clb_request_event *e)
{
    clb_error err = {0};
    clb_choice *const ch = &c->choices[(size_t)item->prompt * c->options.n_choices + e->choice];
    ch->ended = true;
    ch->finish = e->finish;
    ch->n_generated = e->n_generated;
    for (size_t i = 0; e->stop && i < c->options.n_stops; i++)
        if (strcmp(c->options.stops[i], e->stop) == 0)
            ch->stop = c->options.stops[i];
    if (++c->n_ended == c->n_choices) {
        c->last = ch;
        return;
    }
    word_beginning(c);
    const int rc = c->shape->choice_end ? c->shape->choice_end(c, ch, &c->out, &err) : COLIBRI_OK;
    if (rc)
        clb_completion_fail(c, rc, err.msg);
}

static void on_prompt(clb_completion *c, clb_completion_item *item, const clb_request_event *e)
{
    c->live.n_reused += e->n_reused - item->n_reused;
    item->n_done = e->n_done;
    item->n_reused = e->n_reused;
    if (!c->options.stream || !c->options.return_progress || !c->shape->progress)
        return;
    word_beginning(c);
    const clb_progress_info p = {item->n_prompt, e->n_done, e->n_reused, clb_now_ns() - c->began_ns};
    c->shape->progress(c, &c->choices[(size_t)item->prompt * c->options.n_choices], &p, &c->out);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void on_done(clb_completion *c, const clb_request_event *e)
{
    c->running--;
    c->usage.n_prompt += e->n_prompt;
    c->usage.n_reused += e->n_reused;
    c->usage.n_generated += e->n_generated;
    c->usage.queued_ns = larger(c->usage.queued_ns, e->queued_ns);
    c->usage.prompt_ns = larger(c->usage.prompt_ns, e->prompt_ns);
    c->usage.decode_ns = larger(c->usage.decode_ns, e->decode_ns);
    if (e->status)
        clb_completion_fail(c, e->status, e->message);
}

static void dispatch(clb_completion *c, clb_completion_item *item, const clb_request_event *e)
{
    clb_error err = {0};
    int rc = COLIBRI_OK;
    switch (e->kind) {
    case CLB_EVENT_STARTED:
        item->started = true;
        c->live.n_prompt += item->n_prompt;
        if (!c->started_ns) {
            c->started_ns = clb_now_ns();
            c->live.queued_ns = c->started_ns - c->began_ns;
        }
        break;
    case CLB_EVENT_PROMPT:
        on_prompt(c, item, e);
        break;
    case CLB_EVENT_SCORED:
        word_beginning(c);
        if (c->shape->scored)
            rc = c->shape->scored(c, item->prompt, e->text, e->n_text, e->tokens, e->n_tokens, &err);
        break;
    case CLB_EVENT_EMBEDDED:
        if (c->shape->embedded)
            rc = c->shape->embedded(c, item->prompt, e->embedding, e->n_embedding, &err);
        break;
    case CLB_EVENT_TEXT:
        on_text(c, item, e);
        break;
    case CLB_EVENT_CHOICE:
        on_choice(c, item, e);
        break;
    case CLB_EVENT_DONE:
        break;
    }
    if (rc)
        clb_completion_fail(c, rc, err.msg);
}

void clb_completion_on_event(void *ctx, const clb_request_event *e)
{
    clb_completion_item *const item = ctx;
    clb_completion *const c = item->c;
    pthread_mutex_lock(&c->lock);
    if (e->kind == CLB_EVENT_DONE)
        on_done(c, e);
    else if (!c->refusal.http)
        dispatch(c, item, e);
    if (c->out.failed)
        clb_completion_fail(c, COLIBRI_E_NOMEM, "out of memory: the reply");
    else if (c->options.stream && !c->refusal.http)
        clb_completion_flush(c);
    const bool more = e->kind == CLB_EVENT_DONE && c->next < c->n_prompts && !c->submitting;
    const bool over = e->kind == CLB_EVENT_DONE && clb_completion_is_over(c);
    if (more) /* the timer may be quicker, and end it */
        clb_completion_hold(c);
    pthread_mutex_unlock(&c->lock);
    if (more) {
        clb_completion_submit(c);
        clb_completion_drop(c);
    } else if (over) {
        clb_completion_finish(c);
    }
}

void clb_completion_on_gone(void *ctx)
{
    clb_completion *const c = ctx;
    atomic_store(&c->gone, true);
    for (size_t i = 0; i < c->n_prompts; i++) {
        clb_request *const request = atomic_load(&c->items[i].request);
        if (request)
            clb_request_cancel(request);
    }
}

/* ---- the timer ---- */

static void write_ping(clb_completion *c)
{
    if (c->shape->ping) {
        word_beginning(c);
        c->shape->ping(c, &c->out);
        return;
    }
    uint64_t n_prompt = 0, n_done = 0;
    bool started = false;
    for (size_t i = 0; i < c->n_prompts; i++) {
        started = started || c->items[i].started;
        n_prompt += c->items[i].n_prompt;
        n_done += c->items[i].n_done;
    }
    char text[80];
    if (!started)
        snprintf(text, sizeof text, ": queued\n\n");
    else if (n_done < n_prompt)
        snprintf(text, sizeof text, ": prompt %llu/%llu\n\n", (unsigned long long)n_done, (unsigned long long)n_prompt);
    else
        snprintf(text, sizeof text, ": generating\n\n");
    clb_jb_raw(&c->out, text);
}

/* Where one prompt of several has had its turn, the others wait for it rather than for other requests. */
static void end_wait(clb_completion *c, uint64_t now_ns)
{
    if (!c->queue_timeout_ns || c->started_ns || c->fresh || c->over || c->refusal.http || now_ns < c->began_ns ||
        now_ns - c->began_ns < c->queue_timeout_ns)
        return;
    clb_refusal r;
    char text[128];
    snprintf(text, sizeof text, "the request waited in the queue for longer than %.0f s (--queue-timeout)",
             (double)c->queue_timeout_ns / 1e9);
    clb_refuse_as(&r, COLIBRI_E_BUSY, 503, "unavailable_error", "queue_timeout", text);
    r.retry_after_s = 5;
    clb_completion_refuse(c, &r);
    clb_metrics_queue_timeout(c->app->metrics);
}

void clb_completion_tick(clb_completion *c, uint64_t now_ns)
{
    pthread_mutex_lock(&c->lock);
    end_wait(c, now_ns);
    if (c->options.stream && c->silence_ns && !c->over && !c->submitting && !c->refusal.http &&
        now_ns > c->written_ns && now_ns - c->written_ns >= c->silence_ns) {
        write_ping(c);
        clb_completion_flush(c);
    }
    const bool waits = !c->over && !c->fresh && !c->running && !c->submitting && c->next < c->n_prompts;
    if (waits && c->timeout_ns && now_ns > c->began_ns && now_ns - c->began_ns >= c->timeout_ns)
        clb_completion_fail(c, COLIBRI_E_LIMIT, "the request took too long: the queue was full");
    pthread_mutex_unlock(&c->lock);
    if (waits)
        clb_completion_submit(c);
}

/* ---- for shapes ---- */

clb_app *clb_completion_app(const clb_completion *c)
{
    return c->app;
}

clb_exchange *clb_completion_exchange(const clb_completion *c)
{
    return c->x;
}

void *clb_completion_own(const clb_completion *c)
{
    return c->own;
}

const clb_text_options *clb_completion_options(const clb_completion *c)
{
    return &c->options;
}

uint64_t clb_completion_created(const clb_completion *c)
{
    return c->created;
}

size_t clb_completion_n_choices(const clb_completion *c)
{
    return c->n_choices;
}

clb_choice *clb_completion_choice(clb_completion *c, size_t i)
{
    return &c->choices[i];
}

const clb_usage *clb_completion_usage(const clb_completion *c)
{
    return c->done ? &c->usage : &c->live;
}

void clb_completion_add_thoughts(clb_completion *c, uint64_t n_tokens)
{
    c->usage.n_thoughts += n_tokens;
    c->live.n_thoughts += n_tokens;
}

bool clb_completion_done(const clb_completion *c)
{
    return c->done;
}
