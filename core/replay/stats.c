#include "replay/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RESAMPLES 10000000u

/* ---- random numbers: splitmix64 (Steele, Lea, Flood 2014) ----------------------------------------------------------
 */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* [0, n): the high half of a 32 x 32 bit product. Its bias is below n / 2^32. */
static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(((next_random(state) >> 32) * n) >> 32);
}

/* ---- order statistics ----------------------------------------------------------------------------------------------
 */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void clb_sort_doubles(double *x, uint32_t n)
{
    if (n > 1)
        qsort(x, n, sizeof *x, compare_doubles);
}

double clb_quantile_sorted(const double *x, uint32_t n, double q)
{
    if (n == 0)
        return NAN;
    const double at = q * (double)(n - 1);
    const uint32_t i = at <= 0 ? 0 : at >= (double)(n - 1) ? n - 1 : (uint32_t)at;
    if (i + 1 >= n)
        return x[n - 1];
    return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

double clb_median(double *x, uint32_t n)
{
    clb_sort_doubles(x, n);
    return clb_quantile_sorted(x, n, 0.5);
}

/* Peter Acklam's rational approximation (2003). */
double clb_normal_quantile(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                               1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                               6.680131188771972e+01, -1.328068155288572e+01};
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                               -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};
    const double edge = 0.02425;
    if (p > 1 - edge)
        return -clb_normal_quantile(1 - p);
    if (p < edge) {
        const double q = sqrt(-2 * log(p));
        return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    }
    const double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

/* ---- bootstrap -----------------------------------------------------------------------------------------------------
 */

static int check_options(const clb_bootstrap_options *in, clb_bootstrap_options *out, clb_error *err)
{
    *out = in ? *in : (clb_bootstrap_options){0};
    if (out->level == 0)
        out->level = CLB_BOOTSTRAP_LEVEL;
    if (out->resamples == 0)
        out->resamples = CLB_BOOTSTRAP_RESAMPLES;
    if (out->power == 0)
        out->power = 0.8;
    if (!(out->level > 0 && out->level < 1) || !(out->power > 0 && out->power < 1))
        return clb_fail(err, COLIBRI_E_USAGE, "bootstrap: level and power must lie between 0 and 1");
    if (out->resamples > MAX_RESAMPLES)
        return clb_fail(err, COLIBRI_E_USAGE, "bootstrap: at most %u resamples", MAX_RESAMPLES);
    return COLIBRI_OK;
}

/* Values of `resamples` resampled sets, sorted; those that are not finite are left out. */
static uint32_t resample(const double *x, uint32_t n, uint32_t n_columns, clb_statistic statistic, void *ctx,
                         const clb_bootstrap_options *o, double *out)
{
    uint64_t state = o->seed;
    uint32_t kept = 0;
    for (uint32_t r = 0; r < o->resamples; r++) {
        double sums[CLB_BOOTSTRAP_COLUMNS] = {0};
        for (uint32_t i = 0; i < n; i++) {
            const double *const row = &x[(size_t)random_below(&state, n) * n_columns];
            for (uint32_t c = 0; c < n_columns; c++)
                sums[c] += row[c];
        }
        const double v = statistic(ctx, sums);
        if (isfinite(v))
            out[kept++] = v;
    }
    clb_sort_doubles(out, kept);
    return kept;
}

static double spread(const double *x, uint32_t n)
{
    if (n < 2)
        return 0;
    double mean = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

/* As clb_bootstrap; *values are the sorted resampled ones, for the caller to free. */
static int bootstrap(const double *x, uint32_t n, uint32_t n_columns, clb_statistic statistic, void *ctx,
                     const clb_bootstrap_options *o, clb_interval *out, double **values, uint32_t *n_values,
                     clb_error *err)
{
    if (n == 0 || n_columns == 0 || n_columns > CLB_BOOTSTRAP_COLUMNS)
        return clb_fail(err, COLIBRI_E_USAGE, "bootstrap: nothing to resample");
    double *const v = malloc(o->resamples * sizeof *v);
    if (!v)
        return CLB_NOMEM(err, "bootstrap");
    double sums[CLB_BOOTSTRAP_COLUMNS] = {0};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < n_columns; c++)
            sums[c] += x[(size_t)i * n_columns + c];
    *out = (clb_interval){.value = statistic(ctx, sums), .n = n};
    const uint32_t kept = resample(x, n, n_columns, statistic, ctx, o, v);
    out->dropped = o->resamples - kept;
    out->low = n > 1 && kept ? clb_quantile_sorted(v, kept, (1 - o->level) / 2) : out->value;
    out->high = n > 1 && kept ? clb_quantile_sorted(v, kept, (1 + o->level) / 2) : out->value;
    out->se = spread(v, kept);
    *values = v;
    *n_values = kept;
    return COLIBRI_OK;
}

int clb_bootstrap(const double *x, uint32_t n, uint32_t n_columns, clb_statistic statistic, void *ctx,
                  const clb_bootstrap_options *options, clb_interval *out, clb_error *err)
{
    clb_bootstrap_options o;
    double *values = NULL;
    uint32_t n_values;
    CLB_TRY(check_options(options, &o, err));
    const int rc = bootstrap(x, n, n_columns, statistic, ctx, &o, out, &values, &n_values, err);
    free(values);
    return rc;
}

static double mean_of(void *ctx, const double *sums)
{
    return sums[0] / *(const double *)ctx;
}

static double ratio_of(void *ctx, const double *sums)
{
    (void)ctx;
    return sums[0] / sums[1];
}

int clb_bootstrap_mean(const double *x, uint32_t n, const clb_bootstrap_options *options, clb_interval *out,
                       clb_error *err)
{
    double count = (double)n;
    return clb_bootstrap(x, n, 1, mean_of, &count, options, out, err);
}

int clb_bootstrap_ratio(const double *num, const double *den, uint32_t n, const clb_bootstrap_options *options,
                        clb_interval *out, clb_error *err)
{
    double *const both = malloc(((size_t)n + 1) * 2 * sizeof *both);
    if (!both)
        return CLB_NOMEM(err, "bootstrap");
    for (uint32_t i = 0; i < n; i++) {
        both[2 * (size_t)i] = num[i];
        both[2 * (size_t)i + 1] = den[i];
    }
    const int rc = clb_bootstrap(both, n, 2, ratio_of, NULL, options, out, err);
    free(both);
    return rc;
}

const char *clb_verdict_name(enum clb_verdict_word verdict)
{
    return verdict == CLB_WIN ? "win" : verdict == CLB_LOSS ? "loss" : "tie";
}

/* Twice the share of resampled means on the rarer side of 0; those that are 0 count for both sides. */
static double two_sided(const double *sorted, uint32_t n)
{
    uint32_t below = 0, above = 0;
    for (uint32_t i = 0; i < n; i++) {
        below += sorted[i] <= 0;
        above += sorted[i] >= 0;
    }
    const uint32_t rare = below < above ? below : above;
    const double p = 2 * (double)rare / (double)n;
    return p > 1 ? 1 : p < 1 / (double)n ? 1 / (double)n : p;
}

int clb_bootstrap_paired(const double *a, const double *b, uint32_t n, const clb_bootstrap_options *options,
                         clb_paired *out, clb_error *err)
{
    clb_bootstrap_options o;
    CLB_TRY(check_options(options, &o, err));
    double *const d = calloc((size_t)n + 1, sizeof *d);
    if (!d)
        return CLB_NOMEM(err, "bootstrap");
    *out = (clb_paired){.p = 1, .detectable = INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        d[i] = b[i] - a[i];
        out->mean_a += a[i] / (double)n;
        out->mean_b += b[i] / (double)n;
    }
    double count = (double)n, *values = NULL;
    uint32_t n_values = 0;
    const int rc = bootstrap(d, n, 1, mean_of, &count, &o, &out->difference, &values, &n_values, err);
    if (!rc && n > 1) {
        out->sd = spread(d, n);
        out->p = n_values ? two_sided(values, n_values) : 1;
        out->detectable =
            (clb_normal_quantile((1 + o.level) / 2) + clb_normal_quantile(o.power)) * out->sd / sqrt(count);
        out->verdict = out->difference.low > 0 ? CLB_WIN : out->difference.high < 0 ? CLB_LOSS : CLB_TIE;
    }
    free(values);
    free(d);
    return rc;
}

int clb_holm(const double *p, uint32_t n, double *adjusted, clb_error *err)
{
    double *const order = malloc(((size_t)n + 1) * 2 * sizeof *order); /* pairs (p, index) */
    if (!order)
        return CLB_NOMEM(err, "Holm's correction");
    for (uint32_t i = 0; i < n; i++) {
        order[2 * (size_t)i] = p[i];
        order[2 * (size_t)i + 1] = (double)i;
    }
    if (n > 1)
        qsort(order, n, 2 * sizeof *order, compare_doubles);
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double v = order[2 * (size_t)i] * (double)(n - i);
        most = v > most ? v : most;
        adjusted[(uint32_t)order[2 * (size_t)i + 1]] = most > 1 ? 1 : most;
    }
    free(order);
    return COLIBRI_OK;
}
