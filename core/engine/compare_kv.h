/* KV strategies x budgets against each other on evaluation tasks: what the figures of all runs say.
 *
 * A setting is a strategy at a budget; an item is one prompt of one task, and the sampling unit: everything measured
 * inside one hangs together. The values of a (setting, item) come from the evaluation (engine/evaluate.h) or from an
 * earlier run's file; here they are numbers. All comparisons are paired: over the items that both settings have.
 *
 * [any-thread] */
#ifndef CLB_ENGINE_COMPARE_KV_H
#define CLB_ENGINE_COMPARE_KV_H

#include "replay/stats.h"

/* X(NAME, "json_name", "text", "unit", how values of items are averaged, better, judged)
 * LOG: the value of an item is a logarithm (of a perplexity, of a speed); means are geometric, differences are ratios.
 * judged: settings are compared with each other by it, not only shown. */
#define CLB_KVC_METRICS(X)                                                                                             \
    X(EXACT, "exact_match", "exact match", "%", CLB_KVC_PLAIN, CLB_KVC_HIGHER, true)                                   \
    X(TOKENS, "token_accuracy", "right tokens", "%", CLB_KVC_PLAIN, CLB_KVC_HIGHER, true)                              \
    X(PERPLEXITY, "perplexity", "perplexity", "", CLB_KVC_LOG, CLB_KVC_LOWER, true)                                    \
    X(KL, "kl_mean", "KL divergence", "nats", CLB_KVC_PLAIN, CLB_KVC_LOWER, true)                                      \
    X(KL_MEDIAN, "kl_median", "KL, median", "nats", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                               \
    X(KL_P99, "kl_p99", "KL, 99 %", "nats", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                                       \
    X(KL_MAX, "kl_max", "KL, largest", "nats", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                                    \
    X(SAME_TOP, "same_top", "same best token", "%", CLB_KVC_PLAIN, CLB_KVC_HIGHER, true)                               \
    X(DP_RMS, "delta_p_rms", "RMS of delta p", "%", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                               \
    X(RETAINED, "retained", "kept", "%", CLB_KVC_PLAIN, CLB_KVC_NEITHER, false)                                        \
    X(BYTES, "kv_bytes", "KV at the end", "MiB", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                                  \
    X(PEAK, "kv_bytes_peak", "KV at most", "MiB", CLB_KVC_PLAIN, CLB_KVC_LOWER, false)                                 \
    X(DECODE, "decode_tokens_per_second", "generation", "tok/s", CLB_KVC_LOG, CLB_KVC_HIGHER, false)                   \
    X(PREFILL, "prompt_tokens_per_second", "prompt", "tok/s", CLB_KVC_LOG, CLB_KVC_HIGHER, false)                      \
    X(ATTENTION, "attention_ms", "attention per token", "ms", CLB_KVC_LOG, CLB_KVC_LOWER, false)

enum clb_kvc_average { CLB_KVC_PLAIN, CLB_KVC_LOG };
enum clb_kvc_better { CLB_KVC_HIGHER, CLB_KVC_LOWER, CLB_KVC_NEITHER };

enum clb_kvc_metric {
#define CLB_KVC_ENUM(name, ...) CLB_KVC_##name,
    CLB_KVC_METRICS(CLB_KVC_ENUM)
#undef CLB_KVC_ENUM
        CLB_KVC_METRIC_COUNT
};

typedef struct clb_kvc_metric_info {
    const char *json_name, *text, *unit;
    enum clb_kvc_average average;
    enum clb_kvc_better better;
    bool judged;
} clb_kvc_metric_info;
clb_kvc_metric_info clb_kvc_metric_get(enum clb_kvc_metric metric);

#define CLB_KVC_ALL UINT32_MAX /* of a group: every item of the task */

typedef struct clb_kvc_item {
    uint32_t task;
    uint32_t group; /* of the task, as the caller numbers them: a distance, a cell of the needle grid */
} clb_kvc_item;

/* What is known. values[(setting * n_items + item) * CLB_KVC_METRIC_COUNT + metric]: NAN where it was not measured;
 * for LOG metrics the natural logarithm. Everything is borrowed. */
typedef struct clb_kvc_grid {
    uint32_t n_settings, n_items;
    const clb_kvc_item *items; /* [n_items] */
    const double *values;
    uint64_t seed;
    uint32_t resamples; /* 0: CLB_BOOTSTRAP_RESAMPLES */
} clb_kvc_grid;

/* One setting on one task (and group): the mean over its items, in the metric's unit (geometric for LOG). n == 0: no
 * values; then the rest is NAN. NOMEM. */
int clb_kvc_mean(const clb_kvc_grid *grid, uint32_t setting, uint32_t task, uint32_t group, enum clb_kvc_metric metric,
                 clb_interval *out, clb_error *err);

/* b against a. */
typedef struct clb_kvc_pair {
    uint32_t a, b; /* settings */
    uint32_t n;    /* items that both have; 0: nothing to compare, the rest is NAN */
    double mean_a, mean_b;
    /* b - a in the unit, or b / a for LOG metrics. detectable: the smallest true difference that so many items which
     * scatter like these would have shown four times in five: in the unit, for LOG as a share (0.02: 2 %); NAN where
     * that cannot be said (one item, or all differ by the same). */
    double change, low, high, detectable;
    double p, p_holm;              /* p: at least 2^(1-n), so that two items claim nothing; p_holm: clb_kvc_correct */
    enum clb_verdict_word verdict; /* WIN: b is better; TIE for metrics that are neither better nor worse */
} clb_kvc_pair;
int clb_kvc_compare(const clb_kvc_grid *grid, uint32_t a, uint32_t b, uint32_t task, uint32_t group,
                    enum clb_kvc_metric metric, clb_kvc_pair *out, clb_error *err);
/* Holm's correction over those of pairs[n] that compare something. NOMEM. */
int clb_kvc_correct(clb_kvc_pair *pairs, uint32_t n, clb_error *err);

/* Whether b is still better or worse than a after the correction (p_holm below 1 - level): what may be claimed when
 * many were compared at once. */
bool clb_kvc_claims(const clb_kvc_pair *pair);

#endif
