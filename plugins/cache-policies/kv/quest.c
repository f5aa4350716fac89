/* quest: nothing is dropped; each generated token looks at those pages only that its query may find the most in.
 *
 * Source: Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", arXiv:2406.10774: a
 * page's rank is the largest product of query and key that the smallest and the largest value of each channel in the
 * page allow, the sum over d of max(q[d] * min[d], q[d] * max[d]). It saves the reading of pages, not their memory. The
 * paper uses pages of 16 tokens (`kv-block-size`), has no query heads that share a KV head, and reads all of the first
 * two layers; here a page is as good as its best query head finds it (`max` = 0: their mean), and each layer has a
 * budget. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { MAX };

static const struct colibri_param params[] = {
    [MAX] = {"max", 0, 1, 1, 1, "of the query heads of a KV head: 1: the maximum, 0: the mean"},
};

struct quest {
    int max;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct quest *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->max = colibri_kv_param(config, params, MAX) != 0;
    return s;
}

static void reset(void *self)
{
    (void)self;
}

static float bound(const struct quest *s, const struct colibri_kv_pages *p, uint32_t page)
{
    const float *low = p->k_min + (size_t)page * p->head_dim, *high = p->k_max + (size_t)page * p->head_dim;
    float best = -INFINITY, total = 0;
    for (uint32_t h = 0; h < p->n_heads; h++) {
        const float *q = p->q + (size_t)h * p->head_dim;
        float sum = 0;
        for (uint32_t d = 0; d < p->head_dim; d++) {
            const float a = q[d] * low[d], b = q[d] * high[d];
            sum += a > b ? a : b;
        }
        total += sum;
        best = sum > best ? sum : best;
    }
    return s->max ? best : total;
}

/* The n_use best, without memory of its own: [any-thread]. Ranks are kept for the first HELD pages and computed again
 * in each pass for those beyond. */
enum { HELD = 4096 };

static uint32_t page_key(const struct quest *s, const struct colibri_kv_pages *p, const uint32_t *held, uint32_t page)
{
    return page < HELD ? held[page] : colibri_kv_rank_key(bound(s, p, page));
}

static int pick_pages(void *self, const struct colibri_kv_pages *p, uint8_t *use)
{
    const struct quest *s = self;
    uint32_t held[HELD], want = p->n_use, prefix = 0, mask = 0;
    if (want >= p->n_pages) {
        memset(use, 1, p->n_pages);
        return COLIBRI_OK;
    }
    for (uint32_t i = 0; i < p->n_pages && i < HELD; i++)
        held[i] = colibri_kv_rank_key(bound(s, p, i));
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = {0}, digit = 255;
        for (uint32_t i = 0; i < p->n_pages; i++) {
            const uint32_t key = page_key(s, p, held, i);
            if ((key & mask) == prefix)
                count[(key >> shift) & 255u]++;
        }
        while (count[digit] < want)
            want -= count[digit--];
        prefix |= digit << shift;
        mask |= UINT32_C(255) << shift;
    }
    for (uint32_t i = p->n_pages; i-- > 0;) {
        const uint32_t key = page_key(s, p, held, i);
        use[i] = key > prefix || (key == prefix && want > 0);
        want -= key == prefix && want > 0;
    }
    return COLIBRI_OK;
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_KEEPS_ALL | COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PAGE_MINMAX,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "quest",
    .summary = "keeps all, but each token looks at the pages that its query may find the most in (lossy)",
    .source = "Quest, arXiv:2406.10774",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .pick_pages = pick_pages,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_quest, NULL, get, .id = "colibri.kv-strategy.quest",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: looks at the pages that matter to each query (lossy)");
