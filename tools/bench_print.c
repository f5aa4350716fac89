/* Tables for people (Markdown) and for spreadsheets (CSV). */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "bench.h"

void clb_bench_print_head(const clb_bench *b)
{
    const clb_engine *e = b->engine;
    char weights[24], read[24];
    printf("%s\n%s, %s of weights, %s read per token, %u threads on %s\nloaded in %.2f s\n\n", b->path,
           e->model->arch->name, clb_human_bytes(clb_bench_model_bytes(e->model), weights),
           clb_human_bytes(clb_bench_weight_bytes(e->model), read), clb_pool_workers(e->pool), b->topology.model,
           (double)e->load_ns / 1e9);
}

/* What experts and the drive did: two columns, empty where there is nothing to say. */
static void print_drive(const clb_bench_figures *f)
{
    if (f->hit_rate >= 0.0)
        printf(" %.1f %% |", 100 * f->hit_rate);
    else
        printf(" |");
    if (f->drive_bytes_per_token > 0.0)
        printf(" %.2f MB%s", f->drive_bytes_per_token / 1e6, f->drive_share > 0.0 ? "" : " |\n");
    else
        printf(" |\n");
    if (f->drive_bytes_per_token > 0.0 && f->drive_share > 0.0)
        printf(", %.0f %% of the drive |\n", 100 * f->drive_share);
}

void clb_bench_print_md(const clb_bench *b, const clb_bench_test *t, bool first)
{
    const clb_bench_figures f = clb_bench_figures_of(b, t);
    if (first && t->ids)
        printf("| text | tokens | first token, ms | prompt, tok/s | answer, tok/s | +/- | p50, ms | p99, ms | of read "
               "bandwidth | hits | "
               "drive per token |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    else if (first)
        printf(
            "| test | tok/s | +/- | median | p50, ms | p99, ms | GB/s | of read bandwidth | hits | drive per token |\n"
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    if (t->ids)
        printf("| %s | %u + %u | %.1f | %.1f | %.2f | %.2f | %.2f | %.2f | %.0f %% |", t->name, t->n_prompt, t->n_gen,
               f.ttft_ms, f.median_ts, f.gen_ts, f.gen_stddev, f.p50_ms, f.p99_ms, 100 * f.bandwidth_share);
    else
        printf("| %s | %.2f | %.2f | %.2f |", t->name, f.avg_ts, f.stddev_ts, f.median_ts);
    if (!t->ids && t->n_prompt)
        printf(" | | | |");
    else if (!t->ids && t->n_streams > 1)
        printf(" %.2f | %.2f | | |", f.p50_ms, f.p99_ms);
    else if (!t->ids)
        printf(" %.2f | %.2f | %.1f | %.0f %% |", f.p50_ms, f.p99_ms, f.bytes_per_token * f.median_ts / 1e9,
               100 * f.bandwidth_share);
    print_drive(&f);
    fflush(stdout);
}

void clb_bench_print_csv(const clb_bench *b, const clb_bench_test *t, bool first)
{
    const clb_bench_figures f = clb_bench_figures_of(b, t);
    if (first)
        printf("test,threads,n_prompt,n_gen,n_depth,runs,avg_ts,stddev_ts,median_ts,ttft_ms,gen_ts,p50_ms,p99_ms,bytes_"
               "per_token,"
               "bandwidth_share,hit_rate,drive_bytes_per_token,drive_share\n");
    printf("%s,%u,%u,%u,%u,%u,%.6g,%.6g,%.6g,", t->name, clb_pool_workers(b->engine->pool), t->n_prompt, t->n_gen,
           t->depth, t->n, f.avg_ts, f.stddev_ts, f.median_ts);
    if (t->ids)
        printf("%.6g,%.6g,", f.ttft_ms, f.gen_ts);
    else
        printf(",,");
    if (t->n_token_ns)
        printf("%.6g,%.6g,", f.p50_ms, f.p99_ms);
    else
        printf(",,");
    if (f.bandwidth > 0.0)
        printf("%.0f,%.4f,", f.bytes_per_token, f.bandwidth_share);
    else
        printf(",,");
    if (f.hit_rate >= 0.0)
        printf("%.5f", f.hit_rate);
    printf(",%.0f,", f.drive_bytes_per_token);
    if (f.drive_share > 0.0)
        printf("%.4f", f.drive_share);
    printf("\n");
    fflush(stdout);
}

void clb_bench_print_split(const clb_bench *b, const clb_bench_test *t)
{
    const double pass = (double)t->profile.pass_ns, n = clb_pool_workers(b->engine->pool);
    const double tokens = clb_bench_tokens(t);
    printf("\n%-42s %9s %7s %9s\n", t->n_prompt ? "time of the prompt test" : "time of the generation test", "us/token",
           "share", "waiting");
    double waiting = 0;
    for (int p = 0; p < CLB_PHASE_COUNT; p++) {
        const double wall = (double)t->profile.wall_ns[p], busy = (double)atomic_load(&t->profile.busy_ns[p]);
        if (t->profile.wall_ns[p] == 0)
            continue;
        waiting += n * wall - busy;
        printf("%-42s %9.2f %6.1f%% %8.1f%%\n", clb_phase_name((enum clb_phase)p), wall / 1e3 / tokens,
               100 * wall / pass, 100 * (n * wall - busy) / (n * pass));
    }
    printf("%-42s %9.2f %6.1f%% %8.1f%%   %.1f parallel loops per pass\n\n", "together", pass / 1e3 / tokens, 100.0,
           100 * waiting / (n * pass), (double)t->profile.loops / (double)t->profile.passes);
}
