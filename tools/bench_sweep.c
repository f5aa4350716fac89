/* How many threads are best: the two tests for each number, the knee of the curve, and a line for the INI file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "bench.h"
#include "paths.h"

#define MOST_THREADS 256u
#define NEAR         0.97 /* fewer threads that reach this share of the best speed are better: they leave cores to others */

struct point {
    uint32_t threads;
    double pp, tg;
};

static int parse(const char *what, uint32_t *first, uint32_t *last, clb_error *err)
{
    char rest;
    if (sscanf(what, "threads=%u..%u%c", first, last, &rest) != 2 || !*first || *last < *first || *last > MOST_THREADS)
        return clb_fail(err, COLIBRI_E_USAGE, "--sweep %.60s: write threads=A..B, as threads=1..8", what);
    return COLIBRI_OK;
}

static bool interrupted(void *args)
{
    return clb_args_interrupted(args);
}

static int measure(clb_bench *b, uint32_t n_prompt, uint32_t n_gen, struct point *p, clb_error *err)
{
    clb_bench_test pp = {.name = "prompt", .n_prompt = n_prompt}, tg = {.name = "generation", .n_gen = n_gen};
    int rc = n_prompt ? clb_bench_test_run(b, &pp, err) : COLIBRI_OK;
    if (!rc && n_gen)
        rc = clb_bench_test_run(b, &tg, err);
    if (!rc && n_prompt)
        p->pp = clb_bench_figures_of(b, &pp).median_ts;
    if (!rc && n_gen)
        p->tg = clb_bench_figures_of(b, &tg).median_ts;
    clb_bench_test_free(&pp);
    clb_bench_test_free(&tg);
    return rc;
}

/* An engine of its own for each number: threads are bound and weights placed by it. */
static int run_point(clb_args *args, uint32_t n_prompt, uint32_t n_gen, uint32_t runs, struct point *p, clb_error *err)
{
    char assignment[32], dir[PATH_MAX];
    const char *const list[] = {assignment};
    clb_config *config;
    clb_bench b = {.args = args, .runs = runs, .warm_up = true};
    snprintf(assignment, sizeof assignment, "cpu.threads=%u", p->threads);
    CLB_TRY(clb_args_config_with(args, list, 1, "--sweep", &config, err));
    const clb_engine_options options = {
        .config = config,
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(args),
        .n_sequences = 1,
        .min_ctx = n_prompt > n_gen ? n_prompt : n_gen,
        .cancelled = interrupted,
        .cancelled_ctx = args,
        .pin_caller = true,
    };
    int rc = clb_engine_open(&options, &b.engine, err);
    if (!rc)
        rc = clb_session_create(b.engine, &b.session, err);
    if (!rc)
        rc = measure(&b, n_prompt, n_gen, p, err);
    clb_session_destroy(b.session);
    clb_engine_close(b.engine);
    clb_config_destroy(config);
    return rc;
}

/* The fewest threads that are nearly as fast as the best, for generating; for prompts where nothing is generated. */
static uint32_t knee(const struct point *p, uint32_t n)
{
    double best = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const double x = p[i].tg > 0.0 ? p[i].tg : p[i].pp;
        best = x > best ? x : best;
    }
    for (uint32_t i = 0; i < n; i++)
        if ((p[i].tg > 0.0 ? p[i].tg : p[i].pp) >= NEAR * best)
            return i;
    return 0;
}

/* ---- the INI file ---- */

static bool begins(const char *p, const char *end, const char *with)
{
    const size_t n = strlen(with);
    return (size_t)(end - p) >= n && memcmp(p, with, n) == 0;
}

/* The comment at the end of a line: a ';' after a blank. NULL: there is none. */
static const char *comment_of(const char *p, const char *end)
{
    for (const char *at = p + 1; at < end; at++)
        if (*at == ';' && (at[-1] == ' ' || at[-1] == '\t'))
            return at;
    return NULL;
}

/* The text with `threads = N` in [cpu]: in place of what is there, or in a section of its own at the end. Everything
 * else stays as it is, line ends and comments included. */
static int set_threads(const clb_buf *old, uint32_t threads, clb_buf *out, clb_error *err)
{
    const char *p = old->data ? old->data : "", *const end = p + old->n;
    const char *newline = "\n";
    bool in_cpu = false, done = false;
    if (begins(p, end, "\xEF\xBB\xBF")) {
        CLB_TRY(clb_buf_append(out, p, 3, err));
        p += 3;
    }
    while (p < end) {
        const char *const eol = memchr(p, '\n', (size_t)(end - p)), *const next = eol ? eol + 1 : end;
        const char *stop = eol ? eol : end, *word = p;
        if (stop > p && stop[-1] == '\r') {
            newline = "\r\n";
            stop--;
        }
        while (word < stop && (*word == ' ' || *word == '\t'))
            word++;
        if (word < stop && *word == '[')
            in_cpu = begins(word, stop, "[cpu]");
        const bool key = in_cpu && begins(word, stop, "threads") && word + 7 < stop && strchr(" \t=:", word[7]);
        if (!key) {
            CLB_TRY(clb_buf_append(out, p, (size_t)(stop - p), err));
        } else if (!done) { /* a second one would win, and goes */
            const char *const comment = comment_of(word, stop);
            CLB_TRY(clb_buf_printf(out, err, "threads = %u%s%.*s", threads, comment ? " " : "",
                                   comment ? (int)(stop - comment) : 0, comment ? comment : ""));
        }
        if (!key || !done)
            CLB_TRY(clb_buf_printf(out, err, "%s", newline));
        done = done || key;
        p = next;
    }
    if (done)
        return COLIBRI_OK;
    return clb_buf_printf(out, err, "%s[cpu]%sthreads = %u%s", old->n ? newline : "", newline, threads, newline);
}

static int write_ini(const char *path, uint32_t threads, clb_error *err)
{
    clb_buf old = {0}, now = {0};
    clb_new_file f = {.fd = -1};
    int rc = access(path, F_OK) == 0 ? clb_read_input(path, &old, err) : COLIBRI_OK;
    if (!rc)
        rc = set_threads(&old, threads, &now, err);
    if (!rc)
        rc = clb_file_begin(&f, path, true, err); /* permissions stay, and so do links */
    if (!rc)
        rc = clb_file_write(&f, now.data, now.n, err);
    if (!rc)
        rc = clb_file_finish(&f, err);
    clb_file_drop(&f);
    clb_buf_free(&old);
    clb_buf_free(&now);
    return rc;
}

/* ---- printing ---- */

static void print_point(const struct point *p, bool csv, bool first)
{
    if (first && csv)
        printf("threads,prompt_ts,generation_ts\n");
    else if (first)
        printf("| threads | prompt, tok/s | generation, tok/s |\n|---:|---:|---:|\n");
    printf(csv ? "%u,%.6g,%.6g\n" : "| %u | %.2f | %.2f |\n", p->threads, p->pp, p->tg);
    fflush(stdout);
}

static int print_json(const struct point *p, uint32_t n, uint32_t best, bool lines, clb_error *err)
{
    json_t *const list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:b}", "threads", (int)p[i].threads, "prompt_ts",
                                              p[i].pp, "generation_ts", p[i].tg, "best", i == best));
    if (!lines)
        return clb_json_print(json_pack("{s:o, s:i}", "sweep", list, "best_threads", (int)p[best].threads), err);
    for (uint32_t i = 0; i < n; i++) {
        json_dumpf(json_array_get(list, i), stdout, JSON_COMPACT);
        putchar('\n');
    }
    json_decref(list);
    return ferror(stdout) ? clb_fail(err, COLIBRI_E_IO, "cannot write standard output") : COLIBRI_OK;
}

int clb_bench_sweep(clb_args *args, const char *what, uint32_t n_prompt, uint32_t n_gen, uint32_t runs, const char *ini,
                    enum clb_bench_format format, clb_error *err)
{
    uint32_t first = 0, last = 0;
    CLB_TRY(parse(what, &first, &last, err));
    struct point point[MOST_THREADS];
    const uint32_t n = last - first + 1;
    const bool text = format == CLB_BENCH_MD || format == CLB_BENCH_CSV;
    for (uint32_t i = 0; i < n; i++) {
        point[i] = (struct point){.threads = first + i};
        CLB_TRY(run_point(args, n_prompt, n_gen, runs, &point[i], err));
        if (text)
            print_point(&point[i], format == CLB_BENCH_CSV, i == 0);
    }
    const uint32_t best = knee(point, n);
    if (format == CLB_BENCH_MD)
        printf("\n%u threads: the fewest that reach %.0f %% of the best\n", point[best].threads, 100 * NEAR);
    if (!text)
        CLB_TRY(print_json(point, n, best, format == CLB_BENCH_JSONL, err));
    if (!ini)
        return COLIBRI_OK;
    CLB_TRY(write_ini(ini, point[best].threads, err));
    clb_logf(clb_args_log(args), COLIBRI_LOG_INFO, "%s: threads = %u in [cpu]", ini, point[best].threads);
    return COLIBRI_OK;
}
