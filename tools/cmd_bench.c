/* colibri bench: how fast a model reads prompts and generates. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cpu/topology.h"
#include "engine/bench.h"
#include "model_run.h"

static const clb_flag flags[] = {
    {"n-prompt", 'p', "N,..", "prompt tests: tokens (512 unless given; 0: none)", false},
    {"n-gen", 'n', "N,..", "generation tests: tokens (128 unless given; 0: none)", false},
    {"n-depth", 'd', "N,..", "tokens in the context before each test (0 unless given)", false},
    {"repetitions", 'r', "N", "measured runs of each test (5 unless given)", false},
    {"no-warmup", 0, NULL, "measure the first run too", false},
    {"split", 0, NULL, "show where the time goes, and how much of it is waiting", false},
    {"stdin", 0, NULL, "run the tests that standard input names, one per line (see below)", false},
    {"json", 'j', NULL, "print a JSON array with one object per test", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_COUNT};

#define MAX_LIST     16u
#define MAX_RUNS     1000u
#define MAX_TOKENS   16777216u
#define DEFAULT_RUNS 5u

struct list {
    uint32_t v[MAX_LIST];
    uint32_t n;
};

/* "512,2048" into *out; `text` NULL: the default. */
static int parse_list(const char *flag, const char *text, uint32_t initial, struct list *out, clb_error *err)
{
    *out = (struct list){.v = {initial}, .n = 1};
    if (!text)
        return COLIBRI_OK;
    out->n = 0;
    for (const char *p = text;; p++) {
        char *end;
        const unsigned long v = *p >= '0' && *p <= '9' ? strtoul(p, &end, 10) : MAX_TOKENS + 1ul;
        if (v > MAX_TOKENS || (*end && *end != ','))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s %s: must be whole numbers up to %u, separated by commas", flag,
                            text, MAX_TOKENS);
        if (out->n == MAX_LIST)
            return clb_fail(err, COLIBRI_E_USAGE, "--%s %s: at most %u numbers", flag, text, MAX_LIST);
        out->v[out->n++] = (uint32_t)v;
        p = end;
        if (!*p)
            return COLIBRI_OK;
    }
}

/* All of `text`, digits only, up to MAX_TOKENS. */
static bool parse_number(const char *text, uint32_t *out)
{
    char *end;
    const unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : MAX_TOKENS + 1ul;
    *out = v > MAX_TOKENS || *end ? 0 : (uint32_t)v;
    return v <= MAX_TOKENS && !*end;
}

static uint32_t largest(const struct list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        most = l->v[i] > most ? l->v[i] : most;
    return most;
}

struct test {
    uint32_t depth, n_prompt, n_gen;
    uint64_t ns[MAX_RUNS];
    double bandwidth[MAX_RUNS]; /* bytes per second, measured before each run */
    uint32_t n;
    clb_profile profile; /* of the measured runs */
};

struct figures {
    double avg_ns, stddev_ns, avg_ts, stddev_ts;
};

static double tokens_of(const struct test *t)
{
    return (double)(t->n_prompt ? t->n_prompt : t->n_gen);
}

static void spread(const double *v, uint32_t n, double *avg, double *stddev)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i];
    *avg = sum / n;
    for (uint32_t i = 0; i < n; i++)
        squares += (v[i] - *avg) * (v[i] - *avg);
    *stddev = n > 1 ? sqrt(squares / (n - 1)) : 0;
}

static struct figures figures_of(const struct test *t)
{
    struct figures f;
    double ns[MAX_RUNS], ts[MAX_RUNS];
    for (uint32_t i = 0; i < t->n; i++) {
        ns[i] = (double)t->ns[i];
        ts[i] = tokens_of(t) * 1e9 / ns[i];
    }
    spread(ns, t->n, &f.avg_ns, &f.stddev_ns);
    spread(ts, t->n, &f.avg_ts, &f.stddev_ts);
    return f;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v, uint32_t n)
{
    double sorted[MAX_RUNS];
    memcpy(sorted, v, n * sizeof *v);
    qsort(sorted, n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Weights and keys and values that a token of a generation test reads, at the middle of the test. */
static double bytes_per_token(const clb_engine *e, const struct test *t)
{
    return (double)(clb_bench_weight_bytes(e->model) + clb_bench_kv_bytes(e, t->depth + t->n_gen / 2));
}

static uint64_t model_bytes(const clb_model *model)
{
    const clb_model_sizes s = clb_model_get_sizes(model);
    return s.embedding_bytes + s.dense_bytes + s.expert_bytes;
}

static uint64_t peak_rss(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

/* ---- printing -------------------------------------------------------------------------------------------- */

static void print_head(const clb_engine *e, const char *path, const struct clb_topology *t)
{
    char weights[24], read[24];
    printf("%s\n%s, %s of weights, %s read per token, %u threads on %s\nloaded in %.2f s\n\n", path,
           e->model->arch->name, clb_human_bytes(model_bytes(e->model), weights),
           clb_human_bytes(clb_bench_weight_bytes(e->model), read), clb_pool_workers(e->pool), t->model,
           (double)e->load_ns / 1e9);
    printf("| test | tok/s | +/- | median | GB/s | of read bandwidth |\n|---|---:|---:|---:|---:|---:|\n");
}

static void print_test(const clb_engine *e, const struct test *t)
{
    const struct figures f = figures_of(t);
    double ts[MAX_RUNS];
    char name[48];
    for (uint32_t i = 0; i < t->n; i++)
        ts[i] = tokens_of(t) * 1e9 / (double)t->ns[i];
    snprintf(name, sizeof name, t->depth ? "%s%u @ %u" : "%s%u", t->n_prompt ? "pp" : "tg",
             t->n_prompt ? t->n_prompt : t->n_gen, t->depth);
    printf("| %s | %.2f | %.2f | %.2f |", name, f.avg_ts, f.stddev_ts, median(ts, t->n));
    if (t->n_prompt) {
        printf(" | |\n");
    } else {
        const double rate = bytes_per_token(e, t) * median(ts, t->n);
        printf(" %.1f | %.0f %% |\n", rate / 1e9, 100 * rate / median(t->bandwidth, t->n));
    }
    fflush(stdout);
}

static void print_split(const clb_engine *e, const struct test *t)
{
    const double pass = (double)t->profile.pass_ns, n = clb_pool_workers(e->pool);
    printf("\n%-42s %9s %7s %9s\n", t->n_prompt ? "time of the prompt test" : "time of the generation test", "us/token",
           "share", "waiting");
    double waiting = 0;
    for (int p = 0; p < CLB_PHASE_COUNT; p++) {
        const double wall = (double)t->profile.wall_ns[p], busy = (double)atomic_load(&t->profile.busy_ns[p]);
        if (t->profile.wall_ns[p] == 0)
            continue;
        waiting += n * wall - busy;
        printf("%-42s %9.2f %6.1f%% %8.1f%%\n", clb_phase_name((enum clb_phase)p), wall / 1e3 / (tokens_of(t) * t->n),
               100 * wall / pass, 100 * (n * wall - busy) / (n * pass));
    }
    printf("%-42s %9.2f %6.1f%% %8.1f%%   %.1f parallel loops per pass\n\n", "together",
           pass / 1e3 / (tokens_of(t) * t->n), 100.0, 100 * waiting / (n * pass),
           (double)t->profile.loops / (double)t->profile.passes);
}

static json_t *split_json(const clb_engine *e, const struct test *t)
{
    const double n = clb_pool_workers(e->pool);
    json_t *phases = json_array();
    for (int p = 0; p < CLB_PHASE_COUNT; p++) {
        const double wall = (double)t->profile.wall_ns[p], busy = (double)atomic_load(&t->profile.busy_ns[p]);
        if (t->profile.wall_ns[p])
            json_array_append_new(phases, json_pack("{s:s, s:f, s:f}", "phase", clb_phase_name((enum clb_phase)p),
                                                    "seconds", wall / 1e9, "waiting_seconds", (n * wall - busy) / 1e9));
    }
    return json_pack("{s:f, s:I, s:I, s:o}", "seconds", (double)t->profile.pass_ns / 1e9, "passes",
                     (json_int_t)t->profile.passes, "parallel_loops", (json_int_t)t->profile.loops, "phases", phases);
}

static json_t *test_json(const clb_engine *e, const char *path, const struct clb_topology *topo, const char *when,
                         const struct test *t, bool split)
{
    const struct figures f = figures_of(t);
    json_t *ns = json_array(), *ts = json_array();
    double speed[MAX_RUNS];
    for (uint32_t i = 0; i < t->n; i++) {
        speed[i] = tokens_of(t) * 1e9 / (double)t->ns[i];
        json_array_append_new(ns, json_integer((json_int_t)t->ns[i]));
        json_array_append_new(ts, json_real(speed[i]));
    }
    json_t *o =
        json_pack("{s:s, s:s, s:o, s:s, s:I, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:s}", "engine", "colibri", "version",
                  COLIBRI_VERSION, "model_filename", clb_json_text(path), "model_type", e->model->arch->name,
                  "model_size", (json_int_t)model_bytes(e->model), "n_batch", (int)e->batch, "n_threads",
                  (int)clb_pool_workers(e->pool), "type_k", clb_kv_type_name(e->kv_layout.k_type),
                  "type_v", clb_kv_type_name(e->kv_layout.v_type), "n_prompt", (int)t->n_prompt,
                  "n_gen", (int)t->n_gen, "n_depth", (int)t->depth, "test_time", when);
    if (!o)
        return NULL;
    json_object_set_new(o, "cpu_info", clb_json_text(topo->model));
    json_object_set_new(o, "avg_ns", json_integer((json_int_t)f.avg_ns));
    json_object_set_new(o, "stddev_ns", json_integer((json_int_t)f.stddev_ns));
    json_object_set_new(o, "avg_ts", json_real(f.avg_ts));
    json_object_set_new(o, "stddev_ts", json_real(f.stddev_ts));
    json_object_set_new(o, "median_ts", json_real(median(speed, t->n)));
    json_object_set_new(o, "samples_ns", ns);
    json_object_set_new(o, "samples_ts", ts);
    json_object_set_new(o, "load_seconds", json_real((double)e->load_ns / 1e9));
    json_object_set_new(o, "peak_rss_bytes", json_integer((json_int_t)peak_rss()));
    json_object_set_new(o, "weight_bytes_per_token", json_integer((json_int_t)clb_bench_weight_bytes(e->model)));
    if (!t->n_prompt) {
        const double bytes = bytes_per_token(e, t), most = median(t->bandwidth, t->n);
        json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)bytes));
        json_object_set_new(o, "read_bandwidth", json_real(most));
        json_object_set_new(o, "bandwidth_share", json_real(bytes * median(speed, t->n) / most));
    }
    if (split)
        json_object_set_new(o, "split", split_json(e, t));
    return o;
}

/* ---- running --------------------------------------------------------------------------------------------- */

/* One test: warm-up, then n runs; before each generation run the bandwidth is measured. */
static int run_test(clb_session *s, struct test *t, uint32_t n, bool warm_up, clb_error *err)
{
    clb_engine *e = clb_session_engine(s);
    uint64_t ns;
    if (warm_up)
        CLB_TRY(clb_bench_run(s, 0, t->n_prompt, t->n_gen < 4 ? t->n_gen : 4, &ns, err));
    for (t->n = 0; t->n < n; t->n++) {
        if (!t->n_prompt)
            CLB_TRY(clb_bandwidth_measure(e->pool, 2, &t->bandwidth[t->n], err));
        CLB_TRY(clb_bench_run(s, t->depth, t->n_prompt, t->n_gen, &t->ns[t->n], err));
        clb_progress(e->log, t->n_prompt ? "prompt test" : "generation test", t->n + 1, n);
    }
    return COLIBRI_OK;
}

/* One run more, with the clock in every loop; apart from the others, which it would slow down. */
static int run_split(clb_session *s, struct test *t, clb_error *err)
{
    clb_engine *e = clb_session_engine(s);
    uint64_t ns;
    uint32_t runs = t->n;
    clb_session_reset(s);
    clb_forward_profile(e->forward, &t->profile);
    t->n = 1; /* what the profile holds */
    const int rc = clb_bench_run(s, 0, t->n_prompt, t->n_gen, &ns, err);
    clb_forward_profile(e->forward, NULL);
    t->n = runs;
    return rc;
}

/* Lines "pp N [DEPTH]", "tg N [DEPTH]", "bw", "quit" on standard input; answers "pp N SECONDS" and so on. For scripts
 * that take turns between engines. */
static int serve_stdin(clb_args *args, clb_session *s, clb_error *err)
{
    char line[128];
    printf("ready\n");
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        const char *word[4] = {"", "0", "0", NULL}, *w;
        char *rest = line;
        uint32_t n = 0, depth = 0, words = 0;
        while (words < 4 && (w = strtok_r(rest, " \t\r\n", &rest)))
            word[words++] = w;
        const bool numbers = parse_number(word[1], &n) && parse_number(word[2], &depth);
        const bool sized = numbers && (words == 2 || words == 3) && n > 0;
        const bool pp = sized && strcmp(word[0], "pp") == 0, tg = sized && strcmp(word[0], "tg") == 0;
        if (words == 1 && strcmp(word[0], "quit") == 0)
            return COLIBRI_OK;
        if (words == 1 && strcmp(word[0], "bw") == 0) {
            double rate;
            CLB_TRY(clb_bandwidth_measure(clb_session_engine(s)->pool, 3, &rate, err));
            printf("bw %.6g\n", rate);
            continue;
        }
        if (!pp && !tg)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "standard input: expected \"pp N [DEPTH]\", \"tg N [DEPTH]\", \"bw\" or "
                            "\"quit\"");
        uint64_t ns;
        CLB_TRY(clb_bench_run(s, depth, pp ? n : 0, pp ? 0 : n, &ns, err));
        printf("%s %u %.9f\n", word[0], n, (double)ns / 1e9);
    }
    if (clb_args_interrupted(args))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
    return ferror(stdin) ? clb_fail(err, COLIBRI_E_IO, "cannot read standard input") : COLIBRI_OK;
}

static int run_tests(clb_args *args, clb_session *s, const struct list *prompts, const struct list *gens,
                     const struct list *depths, uint32_t runs, clb_error *err)
{
    clb_engine *e = clb_session_engine(s);
    const char *path = clb_config_str(clb_args_config(args), CLB_SET_model_model);
    const bool json = clb_args_has(args, "json"), split = clb_args_has(args, "split");
    struct clb_topology topo;
    clb_topology_read(&topo);
    char when[32];
    const time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    struct test *t = calloc(1, sizeof *t);
    json_t *all = json_array();
    int rc = t && all ? COLIBRI_OK : CLB_NOMEM(err, "results");
    if (!rc && !json)
        print_head(e, path, &topo);
    for (uint32_t d = 0; d < depths->n && !rc; d++)
        for (uint32_t i = 0; i < prompts->n + gens->n && !rc; i++) {
            *t = (struct test){.depth = depths->v[d]};
            if (i < prompts->n)
                t->n_prompt = prompts->v[i];
            else
                t->n_gen = gens->v[i - prompts->n];
            if (t->n_prompt + t->n_gen == 0)
                continue;
            rc = run_test(s, t, runs, !clb_args_has(args, "no-warmup"), err);
            if (!rc && split)
                rc = run_split(s, t, err);
            if (rc)
                break;
            if (json) {
                json_array_append_new(all, test_json(e, path, &topo, when, t, split));
            } else {
                print_test(e, t);
                if (split) {
                    struct test one = *t;
                    one.n = 1;
                    print_split(e, &one);
                }
                if (ferror(stdout)) /* nobody will see the other tests */
                    rc = clb_fail(err, COLIBRI_E_IO, "cannot write standard output");
            }
        }
    if (json && !rc)
        rc = clb_json_print(all, err);
    else
        json_decref(all);
    free(t);
    return rc;
}

static int run(clb_args *args, clb_error *err)
{
    const clb_config *config = clb_args_config(args);
    const bool from_stdin = clb_args_has(args, "stdin");
    struct list prompts, gens, depths, runs;
    CLB_TRY(parse_list("n-prompt", clb_args_value(args, "n-prompt"), 512, &prompts, err));
    CLB_TRY(parse_list("n-gen", clb_args_value(args, "n-gen"), 128, &gens, err));
    CLB_TRY(parse_list("n-depth", clb_args_value(args, "n-depth"), 0, &depths, err));
    if (parse_list("repetitions", clb_args_value(args, "repetitions"), DEFAULT_RUNS, &runs, err) || runs.n != 1 ||
        runs.v[0] < 1 || runs.v[0] > MAX_RUNS)
        return clb_fail(err, COLIBRI_E_USAGE, "--repetitions: must be a whole number between 1 and %u", MAX_RUNS);
    static const char *const not_stdin[] = {"repetitions", "no-warmup", "split", "json"};
    for (size_t i = 0; from_stdin && i < sizeof not_stdin / sizeof *not_stdin; i++)
        if (clb_args_has(args, not_stdin[i]))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s does not apply to --stdin", not_stdin[i]);
    if (clb_args_has(args, "split") && largest(&depths))
        return clb_fail(err, COLIBRI_E_USAGE, "--split does not apply to tests with --n-depth");
    if (!from_stdin && largest(&prompts) + largest(&gens) == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "nothing to measure: --n-prompt and --n-gen are both 0");
    clb_engine *engine = NULL;
    clb_session *session = NULL;
    int rc = COLIBRI_OK;
    /* Room for the longest test, unless the user has said how much. */
    const uint32_t most = largest(&prompts) > largest(&gens) ? largest(&prompts) : largest(&gens);
    const uint32_t need = largest(&depths) + most;
    CLB_GO(clb_open_engine_for(args, need, &engine, err));
    if (need > engine->ctx && clb_config_is_set(config, CLB_SET_model_ctx))
        CLB_GO(clb_fail(err, COLIBRI_E_LIMIT, "the longest test has %u tokens, the context holds %u: raise --ctx", need,
                        engine->ctx));
    CLB_GO(clb_session_create(engine, &session, err));
    rc = from_stdin ? serve_stdin(args, session, err)
                    : run_tests(args, session, &prompts, &gens, &depths, runs.v[0], err);
done:
    clb_session_destroy(session);
    clb_engine_close(engine);
    return rc;
}

const struct clb_command clb_command_bench = {
    .name = "bench",
    .summary = "measure how fast a model reads prompts and generates",
    .usage = "colibri bench -m MODEL [-p N,..] [-n N,..] [-r N] [flags]",
    .description =
        "Prompt tests (pp) read N random tokens, generation tests (tg) feed N random tokens one after another; nothing "
        "is sampled. Each test starts with an empty context (or --n-depth tokens) and is repeated; shown are mean, "
        "standard deviation and median of the tokens per second. For generation the bytes of weights, keys and values "
        "that a token reads are set against what a plain reading loop of the same threads reached between the runs.\n\n"
        "--json prints the names that llama-bench uses (n_prompt, n_gen, avg_ts, stddev_ts, samples_ts, ...) and some "
        "more.\n\n"
        "With --stdin the model is loaded once; then each line \"pp N [DEPTH]\" or \"tg N [DEPTH]\" runs a test once "
        "and "
        "is answered by a line \"pp N SECONDS\", \"bw\" by the read bandwidth, and \"quit\" ends. The first line "
        "printed "
        "is \"ready\". -p, -n and -d then name no tests, but the largest ones that the context must hold.",
    .examples = "colibri bench -m model.gguf   # pp512 and tg128, five times each\n"
                "colibri bench -m model.gguf -p 512,4096 -n 0 --threads 4 --json   # prompts only, for scripts\n"
                "colibri bench -m model.gguf -p 0 -n 64 --split   # where a token's time goes",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
