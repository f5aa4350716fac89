/* What the items of a task say together. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate.h"

const double clb_eval_kl_levels[7] = {1, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1};

static int mean(const clb_evaluation *e, const double *x, uint32_t n, clb_eval_mean *out, clb_error *err)
{
    *out = (clb_eval_mean){.value = NAN, .se = NAN, .low = NAN, .high = NAN, .n = n};
    if (n == 0)
        return COLIBRI_OK;
    const clb_bootstrap_options options = {.seed = e->engine->seed + 1};
    clb_interval interval;
    CLB_TRY(clb_bootstrap_mean(x, n, &options, &interval, err));
    out->value = interval.value;
    if (n < 2)
        return COLIBRI_OK;
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (x[i] - interval.value) * (x[i] - interval.value);
    out->se = sqrt(squares / ((double)n * (n - 1)));
    out->low = interval.low;
    out->high = interval.high;
    return COLIBRI_OK;
}

/* Wilson's interval of a share p of n. The bootstrap's is empty where all are right. */
static void wilson(double p, double n, double *low, double *high)
{
    const double z = clb_normal_quantile(0.975);
    const double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    const double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = fmax(0, middle - half);
    *high = fmin(1, middle + half);
}

/* Of a share of items that are right or wrong. */
static void share_interval(clb_eval_mean *m)
{
    if (m->n < 2)
        return;
    wilson(m->value / 100, m->n, &m->low, &m->high);
    m->low *= 100;
    m->high *= 100;
}

/* Of own - full where both are right or wrong on the same n items: Newcombe's interval for paired shares (Statistics in
 * Medicine 17, 1998, method 10), from the intervals of either and their correlation. It has a width even where all
 * items agree. */
static void difference_interval(const uint32_t count[2][2], clb_eval_mean *m)
{
    const double n = m->n, own = (count[1][0] + count[1][1]) / n, full = (count[0][1] + count[1][1]) / n;
    double own_low, own_high, full_low, full_high;
    if (m->n < 2)
        return;
    wilson(own, n, &own_low, &own_high);
    wilson(full, n, &full_low, &full_high);
    const double spread = sqrt(own * (1 - own) * full * (1 - full));
    double phi = 0;
    if (spread > 0) {
        double cross = (double)count[1][1] * count[0][0] - (double)count[1][0] * count[0][1];
        if (cross > 0) /* towards no correlation, by half an item */
            cross = fmax(cross - n / 2, 0);
        phi = cross / (n * n * spread);
    }
    const double down = own - own_low, up = full_high - full, rise = own_high - own, fall = full - full_low;
    m->low = 100 * (own - full - sqrt(fmax(0, down * down - 2 * phi * down * up + up * up)));
    m->high = 100 * (own - full + sqrt(fmax(0, rise * rise - 2 * phi * rise * fall + fall * fall)));
}

static bool belongs(const clb_evaluation *e, uint32_t number, uint32_t task, uint32_t group, const char *sort)
{
    const clb_kvc_item *const item = &e->grid.items[e->cases.v[number].item];
    return e->items[number].done && item->task == task && (group == CLB_KVC_ALL || item->group == group) &&
           (!sort || strcmp(sort, e->cases.v[number].sort) == 0);
}

static double *room(const clb_evaluation *e)
{
    return calloc((size_t)e->cases.n + 1, sizeof(double));
}

int clb_eval_mean_of(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort, int side,
                     enum clb_kvc_metric metric, clb_eval_mean *out, clb_error *err)
{
    double *const x = room(e);
    uint32_t n = 0;
    if (!x)
        return CLB_NOMEM(err, "a mean");
    for (uint32_t i = 0; i < e->cases.n; i++)
        if (belongs(e, i, task, group, sort) && !isnan(e->items[i].run[side].values[metric]))
            x[n++] = e->items[i].run[side].values[metric];
    const int rc = mean(e, x, n, out, err);
    if (!rc && metric == CLB_KVC_EXACT)
        share_interval(out);
    free(x);
    return rc;
}

int clb_eval_difference(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort,
                        enum clb_kvc_metric metric, clb_eval_mean *out, clb_error *err)
{
    double *const x = room(e);
    uint32_t n = 0, count[2][2] = {{0, 0}, {0, 0}}; /* [own is right][full is right] */
    if (!x)
        return CLB_NOMEM(err, "a difference");
    for (uint32_t i = 0; i < e->cases.n; i++) {
        const clb_eval_run *const run = e->items[i].run;
        const double d = run[CLB_EVAL_OWN].values[metric] - run[CLB_EVAL_FULL].values[metric];
        if (!belongs(e, i, task, group, sort) || isnan(d))
            continue;
        x[n++] = d;
        count[run[CLB_EVAL_OWN].values[metric] > 50][run[CLB_EVAL_FULL].values[metric] > 50]++;
    }
    const int rc = mean(e, x, n, out, err);
    if (!rc && n && metric == CLB_KVC_EXACT)
        difference_interval(count, out);
    free(x);
    return rc;
}

/* ---- texts: pieces have equally many scored tokens, so the mean of their means is the mean over tokens ---- */

enum column { FULL, OWN, DIFFERENCE, KL, SAME, DELTA, DELTA_SQUARES, COLUMNS };

static double sum_of(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static void add_piece(const clb_eval_item *item, bool alone, double *columns, uint32_t n_cases, uint32_t at)
{
    const clb_kv_trial *const full = &item->run[CLB_EVAL_FULL].trial, *const own = &item->run[CLB_EVAL_OWN].trial;
    columns[FULL * n_cases + at] = full->nll_sum / full->n_scored;
    if (alone)
        return;
    const double n = own->n_compared;
    columns[OWN * n_cases + at] = own->nll_sum / own->n_scored;
    columns[DIFFERENCE * n_cases + at] = (own->nll_sum - full->nll_sum) / own->n_scored;
    columns[KL * n_cases + at] = sum_of(own->kl, own->n_compared) / n;
    columns[SAME * n_cases + at] = 100 * own->n_same_top / n;
    columns[DELTA * n_cases + at] = 100 * own->delta_p_sum / n;
    columns[DELTA_SQUARES * n_cases + at] = 1e4 * own->delta_p_squares / n;
}

static int quantiles(const clb_evaluation *e, uint32_t task, clb_eval_text *out, clb_error *err)
{
    double *const all = malloc(((size_t)out->n_compared + 1) * sizeof *all);
    size_t n = 0;
    if (!all)
        return CLB_NOMEM(err, "divergences");
    for (uint32_t i = 0; i < e->cases.n; i++)
        if (belongs(e, i, task, CLB_KVC_ALL, NULL)) {
            const clb_kv_trial *const own = &e->items[i].run[CLB_EVAL_OWN].trial;
            memcpy(all + n, own->kl, own->n_compared * sizeof *all);
            n += own->n_compared;
        }
    clb_sort_doubles(all, (uint32_t)n);
    for (int i = 0; i < 7; i++)
        out->kl_at[i] = clb_quantile_sorted(all, (uint32_t)n, clb_eval_kl_levels[i]);
    free(all);
    return COLIBRI_OK;
}

int clb_eval_text_of(const clb_evaluation *e, uint32_t task, clb_eval_text *out, clb_error *err)
{
    *out = (clb_eval_text){0};
    const uint32_t most = e->cases.n + 1;
    double *const columns = calloc((size_t)COLUMNS * most, sizeof *columns);
    if (!columns)
        return CLB_NOMEM(err, "a text's figures");
    for (uint32_t i = 0; i < e->cases.n; i++)
        if (belongs(e, i, task, CLB_KVC_ALL, NULL)) {
            add_piece(&e->items[i], e->alone, columns, most, out->n_pieces++);
            out->n_scored += e->items[i].run[CLB_EVAL_FULL].trial.n_scored;
            out->n_compared += e->items[i].run[CLB_EVAL_OWN].trial.n_compared;
        }
    const uint32_t n = out->n_pieces;
    int rc = mean(e, &columns[FULL * most], n, &out->nll[CLB_EVAL_FULL], err);
    if (rc || e->alone || !n)
        goto done;
    CLB_GO(mean(e, &columns[OWN * most], n, &out->nll[CLB_EVAL_OWN], err));
    CLB_GO(mean(e, &columns[DIFFERENCE * most], n, &out->difference, err));
    CLB_GO(mean(e, &columns[KL * most], n, &out->kl, err));
    CLB_GO(mean(e, &columns[SAME * most], n, &out->same_top, err));
    CLB_GO(mean(e, &columns[DELTA * most], n, &out->delta_p, err));
    CLB_GO(mean(e, &columns[DELTA_SQUARES * most], n, &out->delta_p_rms, err));
    clb_eval_mean *const rms = &out->delta_p_rms; /* of the squares so far */
    rms->value = sqrt(rms->value);
    rms->se = rms->value > 0 ? rms->se / (2 * rms->value) : 0; /* the delta method */
    rms->low = sqrt(rms->low);
    rms->high = sqrt(rms->high);
    CLB_GO(quantiles(e, task, out, err));
done:
    free(columns);
    return rc;
}

uint32_t clb_eval_sorts(const clb_evaluation *e, uint32_t task, const char **out, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->cases.n; i++) {
        const char *const sort = e->cases.v[i].sort;
        bool known = !*sort || !belongs(e, i, task, CLB_KVC_ALL, NULL);
        for (uint32_t k = 0; k < n && !known; k++)
            known = strcmp(out[k], sort) == 0;
        if (!known && n < most)
            out[n++] = sort;
    }
    return n;
}
