/* snapkv: the last positions (the observation window) stay, and those that the queries of the window look at the most,
 * after smoothing along the text, so that neighbours of an important token stay with it.
 *
 * Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv:2404.14469; defaults of its
 * code: window 64, mean over 5. (Its experiments also use 16 and 32, kernel 7 and maxima.) It compresses the prompt
 * once, at its end; here the same choice is also made whenever the sequence is over its budget, by the queries that
 * came last, so that generation is bounded too. A prompt that is longer than one chunk plus the budget is thinned while
 * it is read: to compare with the paper, let `batch` be as long as the prompt. Query heads of one KV head are averaged.
 */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"

enum { WINDOW, KERNEL, MAX };

enum { OBSERVED = 64 }; /* queries that vote */

static const struct colibri_param params[] = {
    [WINDOW] = {"window", 1, 65536, OBSERVED, 1, "last positions that always stay, at most half of the budget"},
    [KERNEL] = {"kernel", 1, 63, 5, 1, "neighbouring positions over which attention is smoothed, an odd number"},
    [MAX] = {"max", 0, 1, 0, 1, "1: smooth by the maximum; 0: by the mean"},
};

struct snapkv {
    uint32_t window, kernel;
    int max;
};

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const struct snapkv s = {(uint32_t)colibri_kv_param(config, params, WINDOW),
                             (uint32_t)colibri_kv_param(config, params, KERNEL),
                             colibri_kv_param(config, params, MAX) != 0};
    if (s.kernel % 2 == 0) {
        snprintf(why, why_size, "kernel is %u, but must be odd: as many neighbours before a position as after it",
                 s.kernel);
        return NULL;
    }
    struct snapkv *self = malloc(sizeof *self);
    if (!self) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    *self = s;
    return self;
}

static void reset(void *self)
{
    (void)self;
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct snapkv *s = self;
    const uint32_t most = view->n_keep / 2;
    const struct colibri_kv_ends ends = colibri_kv_ends_of(view, 0, s->window < most ? s->window : most);
    /* the window itself does not take part in the smoothing: its own attention would spill over its border */
    const uint32_t n = view->n - ends.last;
    colibri_kv_pool(view->prob_last, n, s->kernel, s->max, out);
    for (uint32_t i = 0; i < n; i++)
        out[i] = colibri_kv_number(out[i]);
    colibri_kv_mark_ends(view, ends, out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_PROB_LAST_W,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_OVER_BUDGET,
    .window_w = OBSERVED,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "snapkv",
    .summary = "keeps the tokens that the last 64 look at the most, smoothed, and the last ones (lossy)",
    .source = "SnapKV, arXiv:2404.14469",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_snapkv, NULL, get, .id = "colibri.kv-strategy.snapkv",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps what the last queries look at, and the last tokens (lossy)");
