/* Submitting the prompts of a completion. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "serve/completion_internal.h"

/* ---- submitting ---- */

static int submit(clb_completion *c, clb_completion_item *item, clb_error *err)
{
    const clb_text_options *o = &c->options;
    clb_tokens *const prompt = &c->prompts[item->prompt];
    const uint64_t spent = clb_now_ns() - c->began_ns;
    clb_request_options request = {
        .prompt = prompt->ids,
        .n_prompt = prompt->n,
        .n_choices = o->n_choices,
        .sampling = o->sampling,
        .bias = o->bias,
        .n_bias = o->n_bias,
        .grammar = o->grammar,
        .tree = c->app->tree,
        .stops = (const char *const *)o->stops,
        .n_stops = o->n_stops,
        .max_tokens = o->max_tokens ? o->max_tokens : c->app->engine->ctx, /* some strategies never fill it */
        .ignore_eog = o->ignore_eog,
        .special = o->special,
        .n_protected = o->n_protected,
        .n_logprobs = o->n_logprobs,
        .score_prompt = o->score_prompt,
        .no_text = o->no_text,
        .embed = o->embed,
        .lora = o->lora,
        .n_lora = o->n_lora,
        .lora_given = o->lora_given,
        .timeout_ns = !c->timeout_ns          ? 0
                      : c->timeout_ns > spent ? c->timeout_ns - spent
                                              : 1,
        .on_event = clb_completion_on_event,
        .ctx = item,
    };
    clb_request *handle;
    CLB_TRY(clb_scheduler_submit(c->app->scheduler, &request, &handle, err));
    atomic_store(&item->request, handle);
    if (atomic_load(&c->gone))
        clb_request_cancel(handle);
    return COLIBRI_OK;
}

static void refuse_prompt(clb_completion *c, const clb_completion_item *item, int status, const clb_error *err)
{
    clb_refusal r;
    if (status == COLIBRI_E_LIMIT) {
        const size_t n = c->prompts[item->prompt].n;
        const uint32_t ctx = c->app->engine->ctx;
        char text[256];
        snprintf(text, sizeof text,
                 "This model's maximum context length is %u tokens. However, your prompt has %zu tokens. Please reduce "
                 "its length, or "
                 "start the server with a larger --ctx.",
                 ctx, n);
        clb_refuse_as(&r, status, 400, "invalid_request_error", "context_length_exceeded", text);
        snprintf(r.param, sizeof r.param, "%s", c->shape->prompt_param ? c->shape->prompt_param : "");
        r.n_prompt = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
        r.n_ctx = ctx;
        clb_completion_refuse(c, &r);
        return;
    }
    if (status == COLIBRI_E_BUSY) {
        clb_refuse_as(&r, status, 429, "rate_limit_error", "queue_full", err->msg);
        r.retry_after_s = 1;
        clb_completion_refuse(c, &r);
        return;
    }
    clb_completion_fail(c, status, err->msg);
}

void clb_completion_submit(clb_completion *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->submitting || c->over) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    const bool first = c->fresh;
    c->fresh = false;
    c->submitting = true;
    if (atomic_load(&c->gone))
        clb_completion_fail(c, COLIBRI_E_CANCELLED, "");
    while (c->next < c->n_prompts && c->running < c->window && !c->refusal.http) {
        clb_error err = {0};
        clb_completion_item *const item = &c->items[c->next++];
        c->running++;
        pthread_mutex_unlock(&c->lock);
        const int rc = submit(c, item, &err);
        pthread_mutex_lock(&c->lock);
        if (!rc) {
            clb_tokens_free(&c->prompts[item->prompt]);
            if (c->refusal.http) /* another one failed meanwhile */
                clb_request_cancel(atomic_load(&item->request));
            continue;
        }
        c->running--;
        if (rc == COLIBRI_E_BUSY && (!first || item->prompt > 0) && !c->refusal.http) {
            c->next--;
            break;
        }
        refuse_prompt(c, item, rc, &err);
    }
    c->submitting = false;
    if (c->options.stream && !c->refusal.http)
        clb_completion_flush(c);
    const bool over = clb_completion_is_over(c);
    pthread_mutex_unlock(&c->lock);
    if (over)
        clb_completion_finish(c);
}

/* ---- start ---- */

static clb_completion *create(clb_app *app, clb_exchange *x, const clb_completion_shape *shape,
                              const clb_text_options *options, const clb_tokens *prompts, size_t n_prompts)
{
    clb_completion *const c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->n_prompts = n_prompts;
    c->n_choices = n_prompts * options->n_choices;
    c->prompts = calloc(n_prompts, sizeof *c->prompts);
    c->items = calloc(n_prompts, sizeof *c->items);
    c->choices = calloc(c->n_choices, sizeof *c->choices);
    if (!c->prompts || !c->items || !c->choices) {
        free(c->prompts);
        free(c->items);
        free(c->choices);
        free(c);
        return NULL;
    }
    c->app = app;
    c->x = x;
    c->shape = shape;
    c->created = (uint64_t)time(NULL);
    c->began_ns = c->written_ns = clb_now_ns();
    pthread_mutex_lock(app->settings_lock);
    c->timeout_ns = app->timeout_ns;
    c->queue_timeout_ns = app->queue_timeout_ns;
    c->silence_ns = (uint64_t)app->keep_alive_s * 1000000000u;
    pthread_mutex_unlock(app->settings_lock);
    c->fresh = true;
    c->window = app->parallel ? app->parallel : 1;
    atomic_init(&c->refs, 1);
    atomic_init(&c->gone, false);
    pthread_mutex_init(&c->lock, NULL);
    for (size_t i = 0; i < n_prompts; i++) {
        c->items[i].c = c;
        c->items[i].prompt = (uint32_t)i;
        c->items[i].n_prompt = (uint32_t)prompts[i].n;
        atomic_init(&c->items[i].request, NULL);
    }
    for (size_t i = 0; i < c->n_choices; i++) {
        c->choices[i].index = (uint32_t)i;
        c->choices[i].prompt = (uint32_t)(i / options->n_choices);
    }
    return c;
}

void clb_completion_start(clb_app *app, clb_exchange *x, const clb_completion_shape *shape, const clb_refusal *refused,
                          clb_text_options *options, clb_tokens *prompts, size_t n_prompts, void *own)
{
    clb_completion *const c = refused ? NULL : create(app, x, shape, options, prompts, n_prompts);
    if (!c) {
        clb_refusal memory;
        for (size_t i = 0; i < n_prompts; i++)
            clb_tokens_free(&prompts[i]);
        clb_text_options_free(options);
        if (own && shape->free_own)
            shape->free_own(own);
        if (!refused) {
            clb_refuse_nomem(&memory);
            refused = &memory;
        }
        shape->refuse(x, refused);
        return;
    }
    c->options = *options;
    *options = (clb_text_options){.n_choices = 1, .n_logprobs = -1};
    for (size_t i = 0; i < n_prompts; i++) {
        c->prompts[i] = prompts[i];
        prompts[i] = (clb_tokens){0};
    }
    c->own = own;
    clb_watch_add(app->watch, c);
    clb_exchange_on_gone(x, clb_completion_on_gone, c);
    clb_completion_submit(c); /* nobody else does before it, or finishes */
}
