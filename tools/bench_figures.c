#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share q of them lies (nearest rank; the mean of two for an even median). */
static double quantile(double *v, size_t n, double q)
{
    if (!n)
        return 0.0;
    qsort(v, n, sizeof *v, ascending);
    if (q == 0.5 && n % 2 == 0)
        return (v[n / 2 - 1] + v[n / 2]) / 2;
    const size_t at = (size_t)ceil(q * (double)n);
    return v[at ? at - 1 : 0];
}

static void spread(const double *v, uint32_t n, double *avg, double *stddev)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i];
    *avg = n ? sum / n : 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (v[i] - *avg) * (v[i] - *avg);
    *stddev = n > 1 ? sqrt(squares / (n - 1)) : 0;
}

uint64_t clb_bench_model_bytes(const clb_model *model)
{
    const clb_model_sizes s = clb_model_get_sizes(model);
    return s.embedding_bytes + s.dense_bytes + s.expert_bytes;
}

double clb_bench_tokens(const clb_bench_test *t)
{
    return (double)(t->n_prompt ? t->n_prompt : t->n_gen) * (t->n_streams ? t->n_streams : 1);
}

/* Weights, keys and values that a generated token reads, at the middle of the test. */
static double bytes_per_token(const clb_bench *b, const clb_bench_test *t)
{
    const uint32_t before = t->ids ? t->n_prompt : t->depth;
    return (double)(clb_bench_weight_bytes(b->engine->model) + clb_bench_kv_bytes(b->engine, before + t->n_gen / 2));
}

static void token_times(const clb_bench_test *t, clb_bench_figures *f)
{
    double *const ms = malloc((t->n_token_ns ? t->n_token_ns : 1) * sizeof *ms);
    if (!ms || !t->n_token_ns) {
        free(ms);
        return;
    }
    for (size_t i = 0; i < t->n_token_ns; i++)
        ms[i] = (double)t->token_ns[i] / 1e6;
    f->p50_ms = quantile(ms, t->n_token_ns, 0.5);
    f->p99_ms = quantile(ms, t->n_token_ns, 0.99);
    free(ms);
}

clb_bench_figures clb_bench_figures_of(const clb_bench *b, const clb_bench_test *t)
{
    clb_bench_figures f = {.hit_rate = -1.0};
    double ns[CLB_BENCH_RUNS], ts[CLB_BENCH_RUNS], gen[CLB_BENCH_RUNS], ttft[CLB_BENCH_RUNS], rate[CLB_BENCH_RUNS];
    double avg;
    for (uint32_t i = 0; i < t->n; i++) {
        ns[i] = (double)t->ns[i];
        ts[i] = clb_bench_tokens(t) * 1e9 / ns[i];
        gen[i] = t->gen_ns[i] ? t->n_gen * 1e9 / (double)t->gen_ns[i] : 0.0;
        ttft[i] = (double)t->ttft_ns[i] / 1e6;
        rate[i] = t->bandwidth[i];
    }
    spread(ns, t->n, &f.avg_ns, &f.stddev_ns);
    spread(ts, t->n, &f.avg_ts, &f.stddev_ts);
    spread(gen, t->n, &avg, &f.gen_stddev);
    f.median_ts = quantile(ts, t->n, 0.5);
    f.gen_ts = quantile(gen, t->n, 0.5);
    f.ttft_ms = quantile(ttft, t->n, 0.5);
    f.bandwidth = quantile(rate, t->n, 0.5);
    token_times(t, &f);
    if (f.bandwidth > 0.0) {
        f.bytes_per_token = bytes_per_token(b, t);
        f.bandwidth_share = f.bytes_per_token * (t->ids ? f.gen_ts : f.median_ts) / f.bandwidth;
    }
    if (t->hits + t->misses)
        f.hit_rate = (double)t->hits / (double)(t->hits + t->misses);
    const double before = (double)t->depth * (t->n_streams ? t->n_streams : 1);
    const double fed = (double)t->n * (t->ids ? t->n_prompt + t->n_gen : clb_bench_tokens(t) + before);
    f.drive_bytes_per_token = (double)t->drive_bytes / fed;
    if (b->drive_rate > 0.0 && t->drive_ns)
        f.drive_share = (double)t->drive_bytes * 1e9 / (double)t->drive_ns / b->drive_rate;
    return f;
}
