/* lagkv: the text is cut into partitions, and of each those positions stay whose keys and values stand out from what
 * came right after it.
 *
 * Source: Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important",
 * arXiv:2504.04704. A partition's keys and values are scaled, channel by channel, to the smallest and the largest of
 * the next partition; the standard deviation over the channels, through a softmax over the partition, is the score;
 * that of keys and values is added, and each partition keeps its best. The sinks, the last whole partition and what
 * follows it stay. Defaults: 16 sinks as in the authors' code, partitions of 128 as in NVIDIA's
 * kvpress (their code: 1024).
 *
 * Under `ada` heads can only differ with `cross` = 1: shares of a partition are the same everywhere.
 *
 * The paper thins a partition once and never again, so its memory grows with the text. Here a budget holds, so all that
 * is kept is partitioned and ranked anew at each selection; and partitions are shorter where the budget does not cover
 * two of them, which always stay. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"
#include "colibri/numerics.h"

enum { LAG, SINKS, CROSS };

static const struct colibri_param params[] = {
    [LAG] = {"lag", 2, 65536, 128, 1, "positions of a partition, at most a quarter of the budget"},
    [SINKS] = {"sinks", 0, 65536, 16, 1, "first positions that always stay, at most half of the budget"},
    [CROSS] = {"cross", 0, 1, 0, 1, "1: partitions compete by score; 0: each keeps the same share"},
};

struct lagkv {
    uint32_t lag, sinks, k_dim, v_dim;
    int cross;
    float *row, *low, *high; /* [larger dim] */
    float *part;             /* [lag] */
};

typedef void (*reader)(const struct colibri_kv_view *view, uint32_t i, float *out);

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const uint32_t lag = (uint32_t)colibri_kv_param(config, params, LAG);
    const size_t dim = config->head_dim > config->v_dim ? config->head_dim : config->v_dim;
    struct lagkv *s = malloc(sizeof *s + (3 * dim + lag) * sizeof(float));
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    float *const scratch = (float *)(s + 1);
    *s = (struct lagkv){
        .lag = lag,
        .sinks = (uint32_t)colibri_kv_param(config, params, SINKS),
        .k_dim = config->head_dim,
        .v_dim = config->v_dim,
        .cross = colibri_kv_param(config, params, CROSS) != 0,
        .row = scratch,
        .low = scratch + dim,
        .high = scratch + 2 * dim,
        .part = scratch + 3 * dim,
    };
    return s;
}

static void reset(void *self)
{
    (void)self;
}

/* Standard deviation over the channels of a row that is scaled to low .. high. */
static float spread(const struct lagkv *s, uint32_t dim)
{
    float sum = 0, square = 0;
    for (uint32_t d = 0; d < dim; d++) {
        const float range = s->high[d] - s->low[d];
        s->row[d] = range > 0 ? (s->row[d] - s->low[d]) / range : 0.0f; /* a channel that does not vary tells nothing */
        sum += s->row[d];
    }
    for (uint32_t d = 0; d < dim; d++) {
        const float x = s->row[d] - sum / (float)dim;
        square += x * x;
    }
    return dim > 1 ? sqrtf(square / (float)(dim - 1)) : 0.0f;
}

/* Adds the softmax of the spreads of entries [at, at + n), relative to the n that follow them. */
static void add_scores(const struct lagkv *s, const struct colibri_kv_view *view, reader read, uint32_t dim,
                       uint32_t at, uint32_t n, float *out)
{
    float best = -INFINITY, sum = 0;
    for (uint32_t d = 0; d < dim; d++) {
        s->low[d] = INFINITY;
        s->high[d] = -INFINITY;
    }
    for (uint32_t i = 0; i < n; i++) {
        read(view, at + n + i, s->row);
        for (uint32_t d = 0; d < dim; d++) {
            s->low[d] = s->row[d] < s->low[d] ? s->row[d] : s->low[d];
            s->high[d] = s->row[d] > s->high[d] ? s->row[d] : s->high[d];
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        read(view, at + i, s->row);
        const float x = spread(s, dim);
        s->part[i] = x < INFINITY ? x : -INFINITY; /* not a number ranks last */
        best = s->part[i] > best ? s->part[i] : best;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->part[i] = s->part[i] > -INFINITY ? colibri_expf(s->part[i] - best) : 0.0f;
        sum += s->part[i];
    }
    for (uint32_t i = 0; sum > 0 && i < n; i++)
        out[at + i] += s->part[i] / sum;
}

/* out[at .. at + n): how many of the partition are worse, as a share of it. Equal ones: the earlier is worse. */
static void rank_within(const struct lagkv *s, uint32_t at, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t worse = 0;
        for (uint32_t j = 0; j < n; j++)
            worse += out[at + j] < out[at + i] || (out[at + j] == out[at + i] && j < i);
        s->part[i] = (float)worse / (float)n;
    }
    memcpy(out + at, s->part, n * sizeof out[0]);
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct lagkv *s = self;
    const uint32_t sinks = s->sinks < view->n_keep / 2 ? s->sinks : view->n_keep / 2;
    const uint32_t first = colibri_kv_ends_of(view, sinks, 1).first;
    const uint32_t fits = (view->n_keep - first) / 4;
    const uint32_t lag = s->lag < fits ? s->lag : fits;
    uint32_t at = first;
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = 0;
    for (; lag > 1 && view->n - at >= 2 * lag; at += lag) {
        add_scores(s, view, view->read_k, s->k_dim, at, lag, out);
        add_scores(s, view, view->read_v, s->v_dim, at, lag, out);
        if (!s->cross)
            rank_within(s, at, lag, out);
    }
    /* a budget too small for partitions: the last positions stay */
    const uint32_t last = at > first ? view->n - at : view->n_keep;
    colibri_kv_mark_ends(view, colibri_kv_ends_of(view, sinks, last), out);
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    const uint64_t dim = config->head_dim > config->v_dim ? config->head_dim : config->v_dim;
    return sizeof(struct lagkv) + (3 * dim + (uint64_t)colibri_kv_param(config, params, LAG)) * sizeof(float);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "lagkv",
    .summary = "keeps the tokens whose keys and values stand out from those that follow (lossy)",
    .source = "LagKV, arXiv:2504.04704",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_lagkv, NULL, get, .id = "colibri.kv-strategy.lagkv",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps what stands out from the text that follows (lossy)");
