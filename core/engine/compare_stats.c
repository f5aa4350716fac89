/* What the runs of a comparison say together. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compare.h"

clb_compare_metric_info clb_compare_metric_get(enum clb_compare_metric metric)
{
    static const clb_compare_metric_info infos[] = {
#define INFO(name, json_name, text, unit, ratio, larger) {json_name, text, unit, ratio, larger},
        CLB_COMPARE_METRICS(INFO)
#undef INFO
    };
    return infos[metric];
}

/* ---- values of one run ------------------------------------------------------------------------------------------ */

static double sum_steps(const clb_compare_run *run)
{
    double sum = 0;
    for (size_t i = 0; i < run->tokens.n; i++)
        sum += (double)run->step_ns[i];
    return sum;
}

static double latency(const clb_compare_run *run, double q)
{
    const uint32_t n = (uint32_t)run->tokens.n;
    double *const ms = malloc(((size_t)n + 1) * sizeof *ms);
    if (!ms)
        return NAN;
    for (uint32_t i = 0; i < n; i++)
        ms[i] = (double)run->step_ns[i] / 1e6;
    clb_sort_doubles(ms, n);
    const double v = clb_quantile_sorted(ms, n, q);
    free(ms);
    return v;
}

/* Percent; what was on its way is no hit: somebody waited for it. */
static double hit_rate(uint64_t hits, uint64_t late, uint64_t misses)
{
    const uint64_t all = hits + late + misses;
    return all ? 100.0 * (double)hits / (double)all : NAN;
}

double clb_compare_value(const clb_compare_run *run, enum clb_compare_metric metric)
{
    const clb_compare_counters *const p = &run->in_prompt, *const d = &run->in_steps;
    const double n = (double)run->tokens.n;
    const bool looked_up = d->hits + d->late + d->misses + p->hits + p->late + p->misses > 0;
    const bool stored = looked_up || d->bytes_read + p->bytes_read > 0; /* experts, or streamed layers */
    switch (metric) {
    case CLB_COMPARE_DECODE:
        return n > 0 ? n * 1e9 / sum_steps(run) : NAN;
    case CLB_COMPARE_PREFILL:
        return (double)run->n_prompt * 1e9 / (double)run->prompt_ns;
    case CLB_COMPARE_TTFT:
        return (double)run->prompt_ns / 1e6;
    case CLB_COMPARE_P50:
        return latency(run, 0.5);
    case CLB_COMPARE_P99:
        return latency(run, 0.99);
    case CLB_COMPARE_HIT_ALL:
        return hit_rate(p->hits + d->hits, p->late + d->late, p->misses + d->misses);
    case CLB_COMPARE_HIT_DECODE:
        return hit_rate(d->hits, d->late, d->misses);
    case CLB_COMPARE_BYTES:
        return stored && n > 0 ? (double)d->bytes_read / n / 1048576.0 : NAN;
    case CLB_COMPARE_STALL:
        return stored && n > 0 ? (double)d->stall_ns / 1e6 / n : NAN;
    case CLB_COMPARE_METRIC_COUNT:
        break;
    }
    return NAN;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static const clb_compare_run *partner(const clb_compare_run *runs, size_t n, const clb_compare_run *a)
{
    for (size_t i = 0; i < n; i++)
        if (runs[i].side != a->side && runs[i].prompt == a->prompt && runs[i].round == a->round)
            return &runs[i];
    return NULL;
}

enum order { ANY, A_FIRST, B_FIRST };

/* Means over a prompt's pairs, of logarithms for ratios: into a[i] and b[i] for the i-th prompt that has any. */
static uint32_t prompt_values(const clb_compare_run *runs, size_t n, uint32_t n_prompts, enum clb_compare_metric metric,
                              enum order order, double *a, double *b)
{
    const bool ratio = clb_compare_metric_get(metric).ratio;
    uint32_t count = 0;
    for (uint32_t p = 0; p < n_prompts; p++) {
        double sum_a = 0, sum_b = 0, pairs = 0;
        for (size_t i = 0; i < n; i++) {
            if (runs[i].prompt != p || runs[i].side != CLB_SIDE_A ||
                (order != ANY && runs[i].second != (order == B_FIRST)))
                continue;
            const clb_compare_run *const other = partner(runs, n, &runs[i]);
            if (!other)
                continue;
            double x = clb_compare_value(&runs[i], metric), y = clb_compare_value(other, metric);
            x = ratio ? log(x) : x;
            y = ratio ? log(y) : y;
            if (!isfinite(x) || !isfinite(y))
                continue;
            sum_a += x;
            sum_b += y;
            pairs++;
        }
        if (pairs > 0) {
            a[count] = sum_a / pairs;
            b[count++] = sum_b / pairs;
        }
    }
    return count;
}

static int compare_metric(const clb_compare_run *runs, size_t n, uint32_t n_prompts, enum clb_compare_metric metric,
                          uint64_t seed, double *a, double *b, clb_compare_result *out, clb_error *err)
{
    const clb_compare_metric_info info = clb_compare_metric_get(metric);
    *out = (clb_compare_result){.p = 1, .p_holm = 1};
    out->n = prompt_values(runs, n, n_prompts, metric, ANY, a, b);
    if (out->n == 0)
        return COLIBRI_OK;
    out->present = true;
    clb_paired paired;
    const clb_bootstrap_options options = {.seed = seed};
    CLB_TRY(clb_bootstrap_paired(a, b, out->n, &options, &paired, err));
    out->mean[CLB_SIDE_A] = info.ratio ? exp(paired.mean_a) : paired.mean_a;
    out->mean[CLB_SIDE_B] = info.ratio ? exp(paired.mean_b) : paired.mean_b;
    out->change = info.ratio ? exp(paired.difference.value) : paired.difference.value;
    out->low = info.ratio ? exp(paired.difference.low) : paired.difference.low;
    out->high = info.ratio ? exp(paired.difference.high) : paired.difference.high;
    out->detectable = info.ratio ? expm1(paired.detectable) : paired.detectable;
    out->p = paired.p;
    out->verdict = paired.verdict;
    if (!info.larger_is_better && paired.verdict != CLB_TIE)
        out->verdict = paired.verdict == CLB_WIN ? CLB_LOSS : CLB_WIN;
    return COLIBRI_OK;
}

/* Median over prompts of B / A. */
static double median_ratio(const clb_compare_run *runs, size_t n, uint32_t n_prompts, enum clb_compare_metric metric,
                           enum order order, double *a, double *b)
{
    const uint32_t count = prompt_values(runs, n, n_prompts, metric, order, a, b);
    for (uint32_t i = 0; i < count; i++)
        a[i] = b[i] - a[i];
    return exp(clb_median(a, count));
}

static clb_compare_gate gate_of(const clb_compare_run *runs, size_t n, uint32_t n_prompts, double *a, double *b)
{
    clb_compare_gate g = {
        .gain = median_ratio(runs, n, n_prompts, CLB_COMPARE_DECODE, ANY, a, b),
        .gain_a_first = median_ratio(runs, n, n_prompts, CLB_COMPARE_DECODE, A_FIRST, a, b),
        .gain_b_first = median_ratio(runs, n, n_prompts, CLB_COMPARE_DECODE, B_FIRST, a, b),
        .ttft = median_ratio(runs, n, n_prompts, CLB_COMPARE_TTFT, ANY, a, b),
        .p99 = median_ratio(runs, n, n_prompts, CLB_COMPARE_P99, ANY, a, b),
    };
    /* A comparison with NAN is false: what was not measured does not pass. */
    g.passed = g.gain >= CLB_GATE_GAIN && g.gain_a_first >= CLB_GATE_GAIN && g.gain_b_first >= CLB_GATE_GAIN &&
               g.ttft <= CLB_GATE_SLOW && g.p99 <= CLB_GATE_SLOW;
    return g;
}

/* ---- equality --------------------------------------------------------------------------------------------------- */

/* First step whose logits or token differ; false: the runs are equal. */
static bool first_difference(const clb_compare_run *a, const clb_compare_run *b, uint32_t *step, bool *tokens_differ)
{
    const size_t n = a->tokens.n < b->tokens.n ? a->tokens.n : b->tokens.n;
    for (size_t i = 0; i <= n; i++) {
        const bool both = i < n, more = i == n && a->tokens.n != b->tokens.n;
        *tokens_differ = more || (both && a->tokens.ids[i] != b->tokens.ids[i]);
        if (*tokens_differ || a->hash[i] != b->hash[i]) {
            *step = (uint32_t)i;
            return true;
        }
    }
    return false;
}

/* Both sides against side A's first run of the prompt, so that differences between rounds show, too. */
static void check_equality(const clb_compare_run *runs, size_t n, clb_compare_summary *out)
{
    for (size_t i = 0; i < n; i++) {
        if (runs[i].side != CLB_SIDE_B)
            continue;
        const clb_compare_run *const a = partner(runs, n, &runs[i]);
        if (!a)
            continue;
        out->n_pairs++;
        const clb_compare_run *first = a;
        for (size_t k = 0; k < n; k++)
            if (runs[k].side == CLB_SIDE_A && runs[k].prompt == a->prompt && runs[k].round < first->round)
                first = &runs[k];
        uint32_t step = 0;
        bool tokens = false;
        if (!first_difference(first, &runs[i], &step, &tokens) && !first_difference(first, a, &step, &tokens)) {
            out->n_equal_pairs++;
            continue;
        }
        const bool earlier =
            runs[i].round < out->round || (runs[i].round == out->round && runs[i].prompt < out->prompt);
        if (!out->differs || earlier) {
            out->differs = true;
            out->prompt = runs[i].prompt;
            out->round = runs[i].round;
            out->step = step;
            out->tokens_differ = tokens;
        }
    }
}

int clb_compare_summarize(const clb_compare_run *runs, size_t n, uint32_t n_prompts, uint64_t seed,
                          clb_compare_summary *out, clb_error *err)
{
    *out = (clb_compare_summary){0};
    double *const a = calloc(2 * (size_t)n_prompts + 2, sizeof *a), *const b = a ? a + n_prompts + 1 : NULL;
    if (!a)
        return CLB_NOMEM(err, "the summary");
    double p[CLB_COMPARE_METRIC_COUNT], holm[CLB_COMPARE_METRIC_COUNT];
    uint32_t n_p = 0;
    int rc = COLIBRI_OK;
    for (int m = 0; m < CLB_COMPARE_METRIC_COUNT; m++) {
        CLB_GO(compare_metric(runs, n, n_prompts, (enum clb_compare_metric)m, seed, a, b, &out->result[m], err));
        if (out->result[m].present)
            p[n_p++] = out->result[m].p;
    }
    CLB_GO(clb_holm(p, n_p, holm, err));
    for (int m = 0, at = 0; m < CLB_COMPARE_METRIC_COUNT; m++)
        if (out->result[m].present)
            out->result[m].p_holm = holm[at++];
    out->gate = gate_of(runs, n, n_prompts, a, b);
    out->gate.n = out->result[CLB_COMPARE_DECODE].n;
    out->gate.too_few = out->gate.n < CLB_COMPARE_ENOUGH;
    if (out->result[CLB_COMPARE_DECODE].verdict != CLB_WIN || out->gate.too_few)
        out->gate.passed = false;
    check_equality(runs, n, out);
    double kl_sum = 0;
    for (size_t i = 0; i < n; i++) {
        out->n_compared += runs[i].n_compared;
        out->n_same_top += runs[i].n_same_top;
        kl_sum += runs[i].kl_sum;
        out->kl_max = runs[i].kl_max > out->kl_max ? runs[i].kl_max : out->kl_max;
    }
    out->kl_mean = out->n_compared ? kl_sum / (double)out->n_compared : 0;
done:
    free(a);
    return rc;
}
