/* The timer of streams: one thread that sleeps while there is nothing to look after. */
#include <stdlib.h>

#include "base/clock.h"
#include "serve/completion_internal.h"

#define TICK_NS UINT64_C(200000000)

struct clb_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    clb_completion *first;
    size_t n;
    bool stop;
};

void clb_watch_add(clb_watch *w, clb_completion *c)
{
    pthread_mutex_lock(&w->lock);
    c->before = NULL;
    c->after = w->first;
    if (w->first)
        w->first->before = c;
    w->first = c;
    w->n++;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void clb_watch_remove(clb_watch *w, clb_completion *c)
{
    pthread_mutex_lock(&w->lock);
    if (c->before)
        c->before->after = c->after;
    else
        w->first = c->after;
    if (c->after)
        c->after->before = c->before;
    w->n--;
    pthread_mutex_unlock(&w->lock);
}

/* Ticks all that are there now, without the lock: a tick may end a completion, which then leaves the list. */
static void tick_all(clb_watch *w)
{
    clb_completion **const held = malloc(w->n * sizeof *held);
    if (!held)
        return;
    size_t n = 0;
    for (clb_completion *c = w->first; c; c = c->after) {
        clb_completion_hold(c);
        held[n++] = c;
    }
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < n; i++) {
        clb_completion_tick(held[i], clb_now_ns());
        clb_completion_drop(held[i]);
    }
    free(held);
    pthread_mutex_lock(&w->lock);
}

static void *run(void *arg)
{
    clb_watch *const w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!w->n) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        const uint64_t at = clb_now_ns() + TICK_NS;
        const struct timespec until = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
        while (!w->stop && clb_now_ns() < at)
            pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (!w->stop && w->n)
            tick_all(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int clb_watch_start(clb_app *app, clb_error *err)
{
    clb_watch *const w = calloc(1, sizeof *w);
    if (!w)
        return CLB_NOMEM(err, "the timer of streams");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    const int failed = pthread_create(&w->thread, NULL, run, w);
    if (failed) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return clb_fail_errno(err, COLIBRI_E_NOMEM, failed, "cannot start the timer of streams");
    }
    app->watch = w;
    return COLIBRI_OK;
}

void clb_watch_stop(clb_app *app)
{
    clb_watch *const w = app->watch;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
    app->watch = NULL;
}
