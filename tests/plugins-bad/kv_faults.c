/* KV strategies that answer badly, each in one way: parameter `fault` says which. Between faults they are a sliding window. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri/kv_strategy.h"

static const struct colibri_param params[] = {
    {"fault", 0, 15, 0, 1, "which answer is wrong"},
};

struct faulty {
    int fault, calls;
    uint32_t budget;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct faulty *const f = calloc(1, sizeof *f);
    (void)why;
    (void)why_size;
    if (f) {
        f->fault = (int)config->params[0];
        f->budget = config->budget;
    }
    return f;
}

static void reset(void *self)
{
    (void)self;
}

/* ---- select ---- */

enum { S_ERROR, S_NONE, S_TOO_MANY, S_PROTECTED, S_NEWEST, S_BEYOND, S_FLAG, S_SLOW, S_UNDECLARED, S_READS_BEYOND };

static int bad_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    struct faulty *const f = self;
    const uint32_t n = view->n, k = view->n_keep, p = view->n_protected;
    memset(keep, 1, p);
    memset(keep + n - (k - p), 1, k - p);
    f->calls++;
    switch (f->fault) {
    case S_ERROR:
        return COLIBRI_E_INTERNAL;
    case S_NONE:
        memset(keep, 0, n);
        break;
    case S_TOO_MANY:
        memset(keep, 1, n);
        break;
    case S_PROTECTED:
        memset(keep, 0, p);
        break;
    case S_NEWEST:
        keep[n - 1] = 0;
        break;
    case S_BEYOND:
        keep[n] = 1;
        break;
    case S_FLAG:
        keep[n - 1] = 7;
        break;
    case S_SLOW:
        if (f->calls == 1)
            nanosleep(&(struct timespec){2, 200000000}, NULL);
        break;
    case S_UNDECLARED: /* nothing was declared, so nothing is there */
        return view->prob_sum || view->prob_max || view->prob_last || view->read_k || view->read_k_pre || view->read_v ||
                       view->q_last || view->q_mean || view->q_cov || view->prob_future
                   ? COLIBRI_OK
                   : COLIBRI_E_UNSUPPORTED;
    default:
        break;
    }
    return COLIBRI_OK;
}

/* Asks for rows that are not there: zeros, or the answer is an error. */
static int curious_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    float row[4096];
    view->read_k(view, view->n, row);
    const float first = row[0];
    view->read_v(view, UINT32_MAX, row);
    (void)bad_select(self, view, keep); /* fault S_READS_BEYOND: a good answer */
    return first == 0 && row[0] == 0 ? COLIBRI_OK : COLIBRI_E_INTERNAL;
}

/* ---- score, allot, merge ---- */

static void good_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)i;
}

static void bad_score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct faulty *const f = self;
    for (uint32_t i = 0; i < (f->fault == 1 ? view->n / 2 : view->n); i++) /* 1: half of them stay as they came */
        out[i] = f->fault == 0 && i == view->n / 2 ? NAN : (float)i;
    if (f->fault == 2)
        out[view->n] = 1;
}

/* 0: another one at each call, though there is one answer for all heads of a layer; 1: sleeps over it, once. */
static uint32_t bad_budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    struct faulty *const f = self;
    (void)layer;
    (void)kv_head;
    if (f->fault == 1 && n_seen > 60 && n_seen < 90 && f->calls++ == 0) /* not when memory is planned: 48, 96 */
        nanosleep(&(struct timespec){2, 200000000}, NULL);
    return f->fault == 1 ? f->budget : f->calls++ % 3 ? 1 : UINT32_MAX;
}

enum { A_ERROR, A_SUM, A_ZERO, A_ONE };

static int bad_allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                     const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    const struct faulty *const f = self;
    (void)layer;
    (void)scores;
    for (uint32_t h = 0; h < n_heads; h++)
        n_keep[h] = total / n_heads;
    if (f->fault == A_SUM)
        n_keep[0] = n_keep[n_heads - 1] = UINT32_MAX; /* their sum overflows 32 bits */
    else if (f->fault == A_ZERO)
        n_keep[n_heads - 1] = 0;
    else if (f->fault == A_ONE)
        n_keep[n_heads - 1] = views[n_heads - 1].n_protected; /* no room for the newest */
    return f->fault == A_ERROR ? COLIBRI_E_INTERNAL : COLIBRI_OK;
}

enum { M_ERROR, M_NOT_KEPT, M_BEYOND, M_NAN };

static int bad_merge(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into, float *weight)
{
    const struct faulty *const f = self;
    uint32_t dropped = 0;
    while (keep[dropped])
        dropped++;
    into[dropped] = f->fault == M_NOT_KEPT ? dropped : f->fault == M_BEYOND ? view->n : view->n - 1;
    weight[dropped] = f->fault == M_NAN ? NAN : 0.5f;
    return f->fault == M_ERROR ? COLIBRI_E_INTERNAL : COLIBRI_OK;
}

/* ---- pick_pages ---- */

enum { P_ERROR, P_NONE, P_TOO_MANY, P_FLAG };

static int bad_pages(void *self, const struct colibri_kv_pages *pages, uint8_t *use)
{
    const struct faulty *const f = self;
    memset(use, 1, f->fault == P_TOO_MANY ? pages->n_pages : f->fault == P_NONE ? 0 : pages->n_use);
    if (f->fault == P_FLAG)
        use[0] = 3;
    return f->fault == P_ERROR ? COLIBRI_E_INTERNAL : COLIBRI_OK;
}

/* ---- create ---- */

static void *refuses(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    memset(why, 'x', why_size); /* no end: the host must put one */
    return NULL;
}

static void *refuses_silently(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return NULL;
}

#define TABLE(component)                                                                                               \
    .struct_size = sizeof(struct colibri_kv_strategy), .n_params = 1, .name = (component),                             \
    .summary = "of a test plugin", .source = "none", .params = params, .destroy = free, .reset = reset
#define EVICTS                                                                                                         \
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_OVER_BUDGET, .create = create

static const struct colibri_kv_strategy strategies[] = {
    {TABLE("bad-select"), EVICTS, .select = bad_select},
    {TABLE("bad-reader"), EVICTS, .select = curious_select, .flags = COLIBRI_KV_FLAG_PER_HEAD,
     .needs = COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V},
    {TABLE("bad-score"), EVICTS, .score = bad_score},
    {TABLE("bad-budget"), EVICTS, .score = good_score, .budget = bad_budget},
    {TABLE("bad-allot"), EVICTS, .score = good_score, .allot = bad_allot, .flags = COLIBRI_KV_FLAG_PER_HEAD},
    {TABLE("bad-merge"), EVICTS, .score = good_score, .merge = bad_merge, .flags = COLIBRI_KV_FLAG_PER_HEAD},
    {TABLE("bad-pages"), .create = create, .pick_pages = bad_pages, .needs = COLIBRI_KV_NEED_PAGE_MINMAX,
     .flags = COLIBRI_KV_FLAG_KEEPS_ALL | COLIBRI_KV_FLAG_PER_HEAD},
    {TABLE("bad-create"), .create = refuses, .triggers = COLIBRI_KV_AT_OVER_BUDGET, .select = bad_select},
    {TABLE("bad-silence"), .create = refuses_silently, .triggers = COLIBRI_KV_AT_OVER_BUDGET, .select = bad_select},
};

static const void *get(const char *iface, uint32_t index)
{
    return index < sizeof strategies / sizeof *strategies && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY)
               ? &strategies[index]
               : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_kv_faults, NULL, get, .id = "test.kv-faults", .kinds = COLIBRI_KIND_KV_STRATEGY, .rank = 50,
                      .version = "1.0.0", .summary = "its strategies answer badly", .license = "MIT");
