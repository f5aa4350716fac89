/* For KV strategies that wrap another one: the child's life, and calls that are passed on to it.
 *
 * The wrapper's instance starts with a struct colibri_kv_wrap. colibri_kv_wrap_open makes the child from the wrapper's
 * config; the functions colibri_kv_wrap_* below with the signature of a callback pass it on. */
#ifndef COLIBRI_KV_WRAP_H
#define COLIBRI_KV_WRAP_H

#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

struct colibri_kv_wrap {
    const struct colibri_kv_strategy *strategy; /* the child's table and instance */
    void *self;
    uint32_t budget;                 /* positions per (layer, head), as configured */
    struct colibri_kv_config config; /* the wrapper's own, with copies of what lives during create only */
    double *params;
    uint8_t *evictable;
};

#define COLIBRI_KV_HAS_CALL(s, call) (COLIBRI_HAS(s, call) && (s)->call)

/* True if the child ranks positions; a wrapper in between does if what it wraps does. */
static inline int colibri_kv_child_scores(const struct colibri_kv_child *c)
{
    for (; c; c = c->child)
        if (!c->strategy->score)
            return 0;
    return 1;
}

/* A wrapper passes on neither of these: such strategies stand at the outer end, or alone. */
static inline const char *colibri_kv_child_refused(const struct colibri_kv_child *c)
{
    for (; c; c = c->child) {
        const struct colibri_kv_strategy *s = c->strategy;
        if ((s->flags & COLIBRI_KV_FLAG_KEEPS_ALL) || COLIBRI_KV_HAS_CALL(s, pick_pages))
            return "drops nothing, so there is nothing to wrap";
        if (COLIBRI_KV_HAS_CALL(s, allot) || COLIBRI_KV_HAS_CALL(s, merge))
            return "works on the whole layer or on values; put it in front, as the outermost";
    }
    return NULL;
}

static inline void colibri_kv_wrap_close(struct colibri_kv_wrap *w)
{
    if (w->self)
        w->strategy->destroy(w->self);
    free(w->params);
    free(w->evictable);
    w->self = w->params = NULL;
    w->evictable = NULL;
}

/* What colibri_kv_wrap_open takes beside the child, for state_bytes. */
static inline uint64_t colibri_kv_wrap_bytes(const struct colibri_kv_config *config, uint32_t n_params)
{
    return n_params * sizeof(double) + config->n_layers + 64;
}

/* child_budget: positions per (layer, head) that the child is told. must_score: refuse a child that does not rank.
 * Returns 0, or -1 and the reason in `why`; nothing is then left to close. */
static inline int colibri_kv_wrap_open(struct colibri_kv_wrap *w, const struct colibri_kv_config *config,
                                       uint32_t n_params, uint32_t child_budget, int must_score, char *why,
                                       size_t why_size)
{
    const struct colibri_kv_child *c = config->child;
    memset(w, 0, sizeof *w);
    if (!c) {
        snprintf(why, why_size, "it wraps another strategy: name that one behind it, after a slash");
        return -1;
    }
    const char *const refused = colibri_kv_child_refused(c);
    if (refused) {
        snprintf(why, why_size, "cannot wrap %s: it %s", c->strategy->name, refused);
        return -1;
    }
    if (must_score && !colibri_kv_child_scores(c)) {
        snprintf(why, why_size, "cannot wrap %s: it chooses positions without ranking them", c->strategy->name);
        return -1;
    }
    w->strategy = c->strategy;
    w->budget = config->budget;
    w->config = *config;
    if (config->params && n_params) {
        w->params = (double *)malloc(n_params * sizeof w->params[0]);
        if (w->params)
            memcpy(w->params, config->params, n_params * sizeof w->params[0]);
    }
    if (config->evictable) {
        w->evictable = (uint8_t *)malloc(config->n_layers);
        if (w->evictable)
            memcpy(w->evictable, config->evictable, config->n_layers);
    }
    if ((config->params && n_params && !w->params) || (config->evictable && !w->evictable)) {
        snprintf(why, why_size, "out of memory");
        colibri_kv_wrap_close(w);
        return -1;
    }
    w->config.params = w->params;
    w->config.evictable = w->evictable;
    struct colibri_kv_config inner = *config;
    inner.params = c->params;
    inner.child = c->child;
    inner.budget = child_budget;
    w->self = c->strategy->create(&inner, why, why_size);
    if (!w->self) {
        colibri_kv_wrap_close(w);
        return -1;
    }
    return 0;
}

/* The child's state instead of that of a fresh one. */
static inline int colibri_kv_wrap_copy(const struct colibri_kv_wrap *from, struct colibri_kv_wrap *to)
{
    if (!from->strategy->fork)
        return 0;
    void *const child = from->strategy->fork(from->self);
    if (!child)
        return -1;
    to->strategy->destroy(to->self);
    to->self = child;
    return 0;
}

/* `fork` of a wrapper without state of its own beside what create makes: a new instance with a copy of the child's state. The
 * wrapper's instance starts with its struct colibri_kv_wrap. */
static inline void *colibri_kv_wrap_fork(const struct colibri_kv_wrap *w,
                                         void *(*create)(const struct colibri_kv_config *, char *, size_t),
                                         void (*destroy)(void *))
{
    char why[128];
    void *copy = create(&w->config, why, sizeof why);
    if (copy && colibri_kv_wrap_copy(w, (struct colibri_kv_wrap *)copy)) {
        destroy(copy);
        return NULL;
    }
    return copy;
}

static inline uint32_t colibri_kv_wrap_budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    return w->strategy->budget ? w->strategy->budget(w->self, layer, kv_head, n_seen) : w->budget;
}

static inline void colibri_kv_wrap_on_append(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    if (w->strategy->on_append)
        w->strategy->on_append(w->self, layer, kv_head, n);
}

static inline void colibri_kv_wrap_on_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept,
                                            uint32_t n_kept)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    if (w->strategy->on_evict)
        w->strategy->on_evict(w->self, layer, kv_head, kept, n_kept);
}

static inline void colibri_kv_wrap_reset(void *self)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    w->strategy->reset(w->self);
}

static inline void colibri_kv_wrap_score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    w->strategy->score(w->self, view, out);
}

/* What the child keeps: its selection, or its highest scores with the protected and the newest. scratch: [view->n].
 * The child's answer is passed on as it is, so that the host finds what is wrong with it. */
static inline int colibri_kv_wrap_select(void *self, const struct colibri_kv_view *view, float *scratch, uint8_t *keep)
{
    const struct colibri_kv_wrap *w = (const struct colibri_kv_wrap *)self;
    if (w->strategy->select)
        return w->strategy->select(w->self, view, keep);
    w->strategy->score(w->self, view, scratch);
    for (uint32_t i = 0; i < view->n; i++)
        if (scratch[i] != scratch[i])
            return COLIBRI_E_PLUGIN;
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, 0, 1), scratch);
    colibri_kv_keep_top(scratch, view->n, view->n_keep, keep);
    return COLIBRI_OK;
}

#endif
