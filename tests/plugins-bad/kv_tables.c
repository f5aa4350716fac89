/* Tables of KV strategies with one mistake each: the check of components names it, and the good one at the end loads. */
#include <string.h>

#include "colibri/kv_strategy.h"

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    static char self; /* nothing is ever stored in it */
    (void)config;
    (void)why;
    (void)why_size;
    return &self;
}

static void nothing(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = (float)i;
}

static int select_none(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    (void)view;
    (void)keep;
    return COLIBRI_OK;
}

static int allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                 const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    (void)self;
    (void)layer;
    (void)views;
    (void)scores;
    for (uint32_t h = 0; h < n_heads; h++)
        n_keep[h] = total / n_heads;
    return COLIBRI_OK;
}

static int pick(void *self, const struct colibri_kv_pages *pages, uint8_t *use)
{
    (void)self;
    memset(use, 1, pages->n_use);
    return COLIBRI_OK;
}

#define TABLE(component)                                                                                               \
    .struct_size = sizeof(struct colibri_kv_strategy), .name = (component), .summary = "of a test plugin",             \
    .source = "none", .create = create, .destroy = nothing, .reset = nothing
#define OVER .triggers = COLIBRI_KV_AT_OVER_BUDGET
#define KEEPS .flags = COLIBRI_KV_FLAG_KEEPS_ALL

static const struct colibri_kv_strategy strategies[] = {
    {TABLE("t-no-trigger"), .score = score},
    {TABLE("t-nothing"), OVER},
    {TABLE("t-need"), OVER, .score = score, .needs = 0x1000},
    {TABLE("t-flag"), OVER, .score = score, .flags = 0x10},
    {TABLE("t-window"), OVER, .score = score, .needs = COLIBRI_KV_NEED_Q_STATS},
    {TABLE("t-rows"), OVER, .score = score, .needs = COLIBRI_KV_NEED_V},
    {TABLE("t-allot-select"), OVER, .score = score, .select = select_none, .allot = allot,
     .flags = COLIBRI_KV_FLAG_PER_HEAD},
    {TABLE("t-allot-layer"), OVER, .score = score, .allot = allot},
    {TABLE("t-pages-evict"), OVER, .score = score, .pick_pages = pick},
    {TABLE("t-pages-compact"), KEEPS, .pick_pages = pick, .positions = COLIBRI_KV_POS_COMPACT},
    {TABLE("t-minmax"), KEEPS, .needs = COLIBRI_KV_NEED_PAGE_MINMAX},
    {TABLE("t-wrap-keeps"), .score = score, .flags = COLIBRI_KV_FLAG_KEEPS_ALL | COLIBRI_KV_FLAG_WRAPPER},
    {TABLE("t-good"), OVER, .score = score},
};

static const void *get(const char *iface, uint32_t index)
{
    return index < sizeof strategies / sizeof *strategies && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY)
               ? &strategies[index]
               : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_kv_tables, NULL, get, .id = "test.kv-tables", .kinds = COLIBRI_KIND_KV_STRATEGY, .rank = 50,
                      .version = "1.0.0", .summary = "its tables are wrong", .license = "MIT");
