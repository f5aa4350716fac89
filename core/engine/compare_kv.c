#include "engine/compare_kv.h"

#include <math.h>
#include <stdlib.h>

clb_kvc_metric_info clb_kvc_metric_get(enum clb_kvc_metric metric)
{
    static const clb_kvc_metric_info infos[CLB_KVC_METRIC_COUNT] = {
#define CLB_KVC_INFO(name, ...) [CLB_KVC_##name] = {__VA_ARGS__},
        CLB_KVC_METRICS(CLB_KVC_INFO)
#undef CLB_KVC_INFO
    };
    return infos[metric];
}

static double value_of(const clb_kvc_grid *g, uint32_t setting, uint32_t item, enum clb_kvc_metric metric)
{
    return g->values[((size_t)setting * g->n_items + item) * CLB_KVC_METRIC_COUNT + (size_t)metric];
}

static bool belongs(const clb_kvc_item *item, uint32_t task, uint32_t group)
{
    return item->task == task && (group == CLB_KVC_ALL || item->group == group);
}

/* Every figure has a seed of its own kind, but not of the settings: two settings with equal values get equal intervals.
 */
static clb_bootstrap_options options_of(const clb_kvc_grid *g, uint32_t task, uint32_t group,
                                        enum clb_kvc_metric metric)
{
    return (clb_bootstrap_options){
        .resamples = g->resamples,
        .seed = g->seed + UINT64_C(0x9e3779b97f4a7c15) * (1 + (uint64_t)task * 64 + (uint64_t)metric) + group,
    };
}

int clb_kvc_mean(const clb_kvc_grid *g, uint32_t setting, uint32_t task, uint32_t group, enum clb_kvc_metric metric,
                 clb_interval *out, clb_error *err)
{
    *out = (clb_interval){.value = NAN, .low = NAN, .high = NAN, .se = NAN};
    double *const x = malloc(((size_t)g->n_items + 1) * sizeof *x);
    if (!x)
        return CLB_NOMEM(err, "values of a setting");
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_items; i++) {
        const double v = value_of(g, setting, i, metric);
        if (belongs(&g->items[i], task, group) && isfinite(v))
            x[n++] = v;
    }
    int rc = COLIBRI_OK;
    if (n) {
        const clb_bootstrap_options o = options_of(g, task, group, metric);
        rc = clb_bootstrap_mean(x, n, &o, out, err);
    }
    free(x);
    if (rc || !n || clb_kvc_metric_get(metric).average == CLB_KVC_PLAIN)
        return rc;
    out->value = exp(out->value);
    out->low = exp(out->low);
    out->high = exp(out->high);
    out->se *= out->value; /* by the delta method */
    return COLIBRI_OK;
}

/* Differences that are all the same number, but for rounding: resampling cannot tell how they scatter. */
static bool scatters(const clb_paired *p)
{
    return p->sd > 1e-12 * (fabs(p->difference.value) + 1e-300);
}

static void fill(clb_kvc_pair *out, const clb_paired *p, const clb_kvc_metric_info *info)
{
    const bool log_mean = info->average == CLB_KVC_LOG;
    out->mean_a = log_mean ? exp(p->mean_a) : p->mean_a;
    out->mean_b = log_mean ? exp(p->mean_b) : p->mean_b;
    out->change = log_mean ? exp(p->difference.value) : p->difference.value;
    out->low = log_mean ? exp(p->difference.low) : p->difference.low;
    out->high = log_mean ? exp(p->difference.high) : p->difference.high;
    out->p = p->p;
    out->p_holm = p->p;
    if (isfinite(p->detectable) && scatters(p))
        out->detectable = log_mean ? expm1(p->detectable) : p->detectable;
    if (info->better == CLB_KVC_HIGHER)
        out->verdict = p->verdict;
    else if (info->better == CLB_KVC_LOWER)
        out->verdict = p->verdict == CLB_WIN ? CLB_LOSS : p->verdict == CLB_LOSS ? CLB_WIN : CLB_TIE;
}

int clb_kvc_compare(const clb_kvc_grid *g, uint32_t a, uint32_t b, uint32_t task, uint32_t group,
                    enum clb_kvc_metric metric, clb_kvc_pair *out, clb_error *err)
{
    *out = (clb_kvc_pair){.a = a,
                          .b = b,
                          .mean_a = NAN,
                          .mean_b = NAN,
                          .change = NAN,
                          .low = NAN,
                          .high = NAN,
                          .detectable = NAN,
                          .p = 1,
                          .p_holm = 1};
    double *const x = malloc(((size_t)g->n_items + 1) * 2 * sizeof *x), *const y = x ? x + g->n_items + 1 : NULL;
    if (!x)
        return CLB_NOMEM(err, "values of two settings");
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_items; i++) {
        const double va = value_of(g, a, i, metric), vb = value_of(g, b, i, metric);
        if (!belongs(&g->items[i], task, group) || !isfinite(va) || !isfinite(vb))
            continue;
        x[n] = va;
        y[n++] = vb;
    }
    int rc = COLIBRI_OK;
    out->n = n;
    if (n) {
        const clb_bootstrap_options o = options_of(g, task, group, metric);
        const clb_kvc_metric_info info = clb_kvc_metric_get(metric);
        clb_paired p;
        rc = clb_bootstrap_paired(x, y, n, &o, &p, err);
        if (!rc)
            fill(out, &p, &info);
        /* Resampling two values gives nothing but the two, and calls any difference certain. Of n differences the signs
         * alone agree by chance as often as this: no p-value of a paired test of them is smaller. */
        out->p = out->p_holm = fmax(out->p, ldexp(1, 1 - (int)n));
    }
    free(x);
    return rc;
}

int clb_kvc_correct(clb_kvc_pair *pairs, uint32_t n, clb_error *err)
{
    double *const p = calloc(((size_t)n + 1) * 2, sizeof *p), *const holm = p ? p + n + 1 : NULL;
    if (!p)
        return CLB_NOMEM(err, "Holm's correction");
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++)
        if (pairs[i].n)
            p[m++] = pairs[i].p;
    const int rc = clb_holm(p, m, holm, err);
    m = 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        if (pairs[i].n)
            pairs[i].p_holm = holm[m++];
    free(p);
    return rc;
}

bool clb_kvc_claims(const clb_kvc_pair *pair)
{
    return pair->n > 1 && pair->verdict != CLB_TIE && pair->p_holm < 1 - CLB_BOOTSTRAP_LEVEL;
}
