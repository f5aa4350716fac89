/* Statistics of comparisons whose sampling unit is a prompt: everything inside one prompt hangs together, so prompts
 * are what is resampled. Percentile bootstrap, deterministic in its seed. [any-thread] */
#ifndef CLB_REPLAY_STATS_H
#define CLB_REPLAY_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CLB_BOOTSTRAP_RESAMPLES 10000u
#define CLB_BOOTSTRAP_LEVEL     0.95

typedef struct clb_bootstrap_options {
    double level;       /* of the interval, in (0, 1); 0: CLB_BOOTSTRAP_LEVEL */
    uint32_t resamples; /* 0: CLB_BOOTSTRAP_RESAMPLES; more than 10 million are refused */
    double power;       /* for `detectable`, in (0, 1); 0: 0.8 */
    uint64_t seed;
} clb_bootstrap_options;

typedef struct clb_interval {
    double value;     /* of the data as they are */
    double low, high; /* percentile interval; both are `value` with a single unit, which says nothing about others */
    double se;        /* standard deviation of the resampled values */
    uint32_t n;       /* units */
    uint32_t dropped; /* resamples whose value was not finite (a ratio 0/0) */
} clb_interval;

/* x: [n][n_columns]. Resamples rows; `statistic` turns the sums of the columns into the value, so that ratios of sums
 * (hits / look-ups, gain / gap) are resampled as ratios of sums. options NULL: defaults. Errors: USAGE (n == 0,
 * n_columns == 0 or > 8, options out of range), NOMEM. */
#define CLB_BOOTSTRAP_COLUMNS 8u
typedef double (*clb_statistic)(void *ctx, const double *sums);
int clb_bootstrap(const double *x, uint32_t n, uint32_t n_columns, clb_statistic statistic, void *ctx,
                  const clb_bootstrap_options *options, clb_interval *out, clb_error *err);

/* Mean of x[n]. */
int clb_bootstrap_mean(const double *x, uint32_t n, const clb_bootstrap_options *options, clb_interval *out,
                       clb_error *err);
/* sum(num) / sum(den). */
int clb_bootstrap_ratio(const double *num, const double *den, uint32_t n, const clb_bootstrap_options *options,
                        clb_interval *out, clb_error *err);

enum clb_verdict_word { CLB_TIE = 0, CLB_WIN = 1, CLB_LOSS = 2 };
const char *clb_verdict_name(enum clb_verdict_word verdict); /* "tie", "win", "loss" */

typedef struct clb_paired {
    clb_interval difference; /* of b[i] - a[i], the mean */
    double mean_a, mean_b;
    double sd;         /* of the differences (n - 1); 0 for n == 1 */
    double p;          /* two-sided: how often resampled means lie on the other side of 0; in [1 / resamples, 1] */
    double detectable; /* the smallest true mean difference that n pairs which scatter like these would show as
                        * different from 0 with probability `power` at this level: (z(level) + z(power)) * sd / sqrt(n);
                        * INFINITY for n == 1 */
    enum clb_verdict_word verdict; /* WIN: b is larger, 0 outside the interval; TIE with fewer than 2 pairs */
} clb_paired;

/* Whether larger is better is the caller's business: for times, swap a and b or the words. Errors as above. */
int clb_bootstrap_paired(const double *a, const double *b, uint32_t n, const clb_bootstrap_options *options,
                         clb_paired *out, clb_error *err);

/* Holm's step-down correction of n p-values: adjusted[i] for p[i], in the same order. Errors: NOMEM. */
int clb_holm(const double *p, uint32_t n, double *adjusted, clb_error *err);

/* x[n] is sorted in place. q in [0, 1]; linear interpolation between order statistics (type 7); NAN for n == 0. */
double clb_quantile_sorted(const double *x, uint32_t n, double q);
void clb_sort_doubles(double *x, uint32_t n);
double clb_median(double *x, uint32_t n);
/* Quantile of the standard normal distribution, p in (0, 1); relative error below 1.2e-9. */
double clb_normal_quantile(double p);

#endif
