/* From records to means, intervals, differences and claims. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "compare_kv.h"

enum clb_kvc_metric clb_kvc_main_metric(enum clb_kvc_kind kind)
{
    return kind == CLB_KVC_TEXT ? CLB_KVC_PERPLEXITY : CLB_KVC_EXACT;
}

static size_t at(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric)
{
    return ((size_t)setting * c->n_tasks + task) * CLB_KVC_METRIC_COUNT + (size_t)metric;
}

const clb_interval *clb_kvc_mean_of(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric)
{
    return &c->means[at(c, setting, task, metric)];
}

const clb_kvc_pair *clb_kvc_against(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric)
{
    return &c->against[at(c, setting, task, metric)];
}

const clb_interval *clb_kvc_group_mean(const clb_kvc *c, uint32_t setting, uint32_t task, uint32_t group)
{
    return &c->group_means[(size_t)setting * c->n_groups + c->tasks[task].first_group + group];
}

uint32_t clb_kvc_baseline_of(const clb_kvc *c, uint32_t setting)
{
    if (c->baseline == CLB_KVC_NONE)
        return CLB_KVC_NONE;
    uint32_t s = clb_kvc_cell(c, c->baseline, c->settings[setting].size);
    for (uint32_t k = 0; s == CLB_KVC_NONE && k < c->n_settings; k++)
        if (c->settings[k].name == c->baseline && !*c->settings[k].budget)
            s = k;
    return s;
}

void clb_kvc_order(const clb_kvc *c, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < c->n_sizes; b++)
        for (uint32_t k = 0; k < c->n_names; k++) {
            const uint32_t s = clb_kvc_cell(c, k, b);
            if (s != CLB_KVC_NONE)
                out[n++] = s;
        }
}

static int find_baseline(clb_kvc *c, const char *name, clb_error *err)
{
    const char *const wanted = name ? name : "full";
    for (c->baseline = 0; c->baseline < c->n_names; c->baseline++)
        if (!strcmp(c->names[c->baseline], wanted))
            return COLIBRI_OK;
    c->baseline = CLB_KVC_NONE;
    if (!name)
        return COLIBRI_OK;
    const long near = clb_nearest(name, (const char *const *)c->names, c->n_names);
    return clb_fail(err, COLIBRI_E_USAGE,
                    near >= 0 ? "--baseline %.60s is not among the strategies; did you mean %s?"
                              : "--baseline %.60s is not among the strategies",
                    name, near >= 0 ? c->names[near] : "");
}

static int allocate(clb_kvc *c, clb_error *err)
{
    const size_t cells = (size_t)c->n_settings * c->n_tasks * CLB_KVC_METRIC_COUNT;
    const size_t n = (size_t)c->n_settings * c->n_items * CLB_KVC_METRIC_COUNT;
    c->n_groups = 0;
    for (uint32_t t = 0; t < c->n_tasks; t++) {
        c->tasks[t].first_group = c->n_groups;
        c->n_groups += c->tasks[t].n_groups;
    }
    free(c->values);
    free(c->means);
    free(c->against);
    free(c->group_means);
    free(c->pairs);
    c->pairs = NULL;
    c->n_pairs = 0;
    c->values = malloc((n + 1) * sizeof *c->values);
    c->means = calloc(cells + 1, sizeof *c->means);
    c->against = calloc(cells + 1, sizeof *c->against);
    c->group_means = calloc((size_t)c->n_settings * c->n_groups + 1, sizeof *c->group_means);
    if (!c->values || !c->means || !c->against || !c->group_means)
        return CLB_NOMEM(err, "the results");
    for (size_t i = 0; i < n; i++)
        c->values[i] = NAN;
    for (uint32_t r = 0; r < c->n_records; r++) {
        double *const v =
            &c->values[((size_t)c->records[r].setting * c->n_items + c->records[r].item) * CLB_KVC_METRIC_COUNT];
        for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++) {
            const double x = c->records[r].values[m];
            v[m] = clb_kvc_metric_get((enum clb_kvc_metric)m).average == CLB_KVC_LOG ? log(x) : x;
        }
    }
    c->grid = (clb_kvc_grid){.n_settings = c->n_settings,
                             .n_items = c->n_items,
                             .items = c->items,
                             .values = c->values,
                             .seed = c->seed,
                             .resamples = c->resamples};
    return COLIBRI_OK;
}

static int all_means(clb_kvc *c, clb_error *err)
{
    for (uint32_t s = 0; s < c->n_settings; s++)
        for (uint32_t t = 0; t < c->n_tasks; t++) {
            const enum clb_kvc_metric main = clb_kvc_main_metric(c->tasks[t].kind);
            for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++) {
                const enum clb_kvc_metric metric = (enum clb_kvc_metric)m;
                CLB_TRY(clb_kvc_mean(&c->grid, s, t, CLB_KVC_ALL, metric, &c->means[at(c, s, t, metric)], err));
            }
            for (uint32_t g = 0; g < c->tasks[t].n_groups; g++)
                CLB_TRY(clb_kvc_mean(&c->grid, s, t, g, main,
                                     &c->group_means[(size_t)s * c->n_groups + c->tasks[t].first_group + g], err));
        }
    return COLIBRI_OK;
}

/* Corrected over all settings that one figure on one task compares with the baseline. */
static int all_against(clb_kvc *c, clb_error *err)
{
    clb_kvc_pair *const row = calloc((size_t)c->n_settings + 1, sizeof *row);
    if (!row)
        return CLB_NOMEM(err, "the comparisons");
    int rc = COLIBRI_OK;
    for (uint32_t t = 0; t < c->n_tasks && !rc; t++)
        for (int m = 0; m < CLB_KVC_METRIC_COUNT && !rc; m++) {
            const enum clb_kvc_metric metric = (enum clb_kvc_metric)m;
            for (uint32_t s = 0; s < c->n_settings && !rc; s++) {
                const uint32_t base = clb_kvc_baseline_of(c, s);
                row[s] = (clb_kvc_pair){.a = base,
                                        .b = s,
                                        .change = NAN,
                                        .low = NAN,
                                        .high = NAN,
                                        .detectable = NAN,
                                        .mean_a = NAN,
                                        .mean_b = NAN,
                                        .p = 1,
                                        .p_holm = 1};
                if (base != CLB_KVC_NONE && base != s && clb_kvc_mean_of(c, s, t, metric)->n)
                    rc = clb_kvc_compare(&c->grid, base, s, t, CLB_KVC_ALL, metric, &row[s], err);
            }
            if (!rc)
                rc = clb_kvc_correct(row, c->n_settings, err);
            for (uint32_t s = 0; s < c->n_settings && !rc; s++)
                c->against[at(c, s, t, metric)] = row[s];
        }
    free(row);
    return rc;
}

/* Corrected over all pairs of one task at one budget. */
static int pairs_of(clb_kvc *c, uint32_t task, uint32_t size, const uint32_t *settings, uint32_t n, clb_error *err)
{
    const enum clb_kvc_metric metric = clb_kvc_main_metric(c->tasks[task].kind);
    const uint32_t n_pairs = n * (n - 1) / 2;
    clb_kvc_pair *const pairs = calloc((size_t)n_pairs + 1, sizeof *pairs);
    clb_kvc_judgement *const all = realloc(c->pairs, ((size_t)c->n_pairs + n_pairs + 1) * sizeof *all);
    c->pairs = all ? all : c->pairs;
    int rc = pairs && all ? COLIBRI_OK : CLB_NOMEM(err, "the comparisons");
    uint32_t k = 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        for (uint32_t j = i + 1; j < n && !rc; j++)
            rc = clb_kvc_compare(&c->grid, settings[i], settings[j], task, CLB_KVC_ALL, metric, &pairs[k++], err);
    if (!rc)
        rc = clb_kvc_correct(pairs, n_pairs, err);
    for (k = 0; k < n_pairs && !rc; k++)
        c->pairs[c->n_pairs++] = (clb_kvc_judgement){.task = task, .size = size, .metric = metric, .pair = pairs[k]};
    free(pairs);
    return rc;
}

static int all_pairs(clb_kvc *c, clb_error *err)
{
    uint32_t *const settings = malloc(((size_t)c->n_names + 1) * sizeof *settings);
    if (!settings)
        return CLB_NOMEM(err, "the comparisons");
    int rc = COLIBRI_OK;
    for (uint32_t t = 0; t < c->n_tasks && !rc; t++)
        for (uint32_t b = 0; b < c->n_sizes && !rc; b++) {
            uint32_t n = 0;
            for (uint32_t k = 0; k < c->n_names; k++) {
                const uint32_t s = clb_kvc_cell(c, k, b);
                if (s != CLB_KVC_NONE && clb_kvc_mean_of(c, s, t, clb_kvc_main_metric(c->tasks[t].kind))->n)
                    settings[n++] = s;
            }
            if (n > 1)
                rc = pairs_of(c, t, b, settings, n, err);
        }
    free(settings);
    return rc;
}

int clb_kvc_summarize(clb_kvc *c, const char *baseline, clb_error *err)
{
    CLB_TRY(find_baseline(c, baseline, err));
    CLB_TRY(allocate(c, err));
    CLB_TRY(all_means(c, err));
    CLB_TRY(all_against(c, err));
    return all_pairs(c, err);
}
