/* colibri bench: how fast a model reads prompts and generates. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "machine_rates.h"

static const clb_flag flags[] = {
    {"n-prompt", 'p', "N,..", "prompt tests: tokens (512 unless given; 0: none)", false},
    {"n-gen", 'n', "N,..", "generation tests: tokens (128 unless given; 0: none); answers to texts: the first of them",
     false},
    {"n-depth", 'd', "N,..", "tokens in the context before each test (0 unless given)", false},
    {"streams", 's', "N,..", "generation tests: sequences side by side, each with tokens of its own (1 unless given)",
     false},
    {"repetitions", 'r', "N", "measured runs of each test (5 unless given); also --repeat", false},
    {"repeat", 0, "N", "the same", false},
    {"texts", 0, NULL, "answers to the texts that come with Colibri: short answer, code, long summary", false},
    {"text", 0, "PATH", "answers to the text of a file, or to all *.txt of a folder", true},
    {"reset-cache", 0, NULL, "before each run: empty expert slots, model files and their mirrors out of the page cache",
     false},
    {"sustained", 0, "MIN", "generate for so many minutes and show whether the speed holds", false},
    {"sweep", 0, "WHAT", "threads=A..B: both tests for every number of threads; finds the best", false},
    {"write-ini", 0, "FILE", "write the best number of threads of --sweep into FILE", false},
    {"no-warmup", 0, NULL, "measure the first run too", false},
    {"split", 0, NULL, "show where the time goes, and how much of it is waiting", false},
    {"stdin", 0, NULL, "run the tests that standard input names, one per line (see below)", false},
    {"format", 0, "FORMAT", "md, csv, json or jsonl (md unless given)", false},
    {"json", 'j', NULL, "print a JSON array with one object per test", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_run_raw, CLB_SET_COUNT};

#define MAX_LIST     16u
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
        const unsigned long v = *p >= '0' && *p <= '9' ? strtoul(p, &end, 10) : CLB_BENCH_TOKENS + 1ul;
        if (v > CLB_BENCH_TOKENS || (*end && *end != ','))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s %s: must be whole numbers up to %u, separated by commas", flag,
                            text, CLB_BENCH_TOKENS);
        if (out->n == MAX_LIST)
            return clb_fail(err, COLIBRI_E_USAGE, "--%s %s: at most %u numbers", flag, text, MAX_LIST);
        out->v[out->n++] = (uint32_t)v;
        p = end;
        if (!*p)
            return COLIBRI_OK;
    }
}

/* All of `text`, digits only, up to CLB_BENCH_TOKENS. */
static bool parse_number(const char *text, uint32_t *out)
{
    char *end;
    const unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : CLB_BENCH_TOKENS + 1ul;
    *out = v > CLB_BENCH_TOKENS || *end ? 0 : (uint32_t)v;
    return v <= CLB_BENCH_TOKENS && !*end;
}

static uint32_t largest(const struct list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        most = l->v[i] > most ? l->v[i] : most;
    return most;
}

/* What was asked for. */
struct wish {
    struct list prompts, gens, depths, streams;
    uint32_t runs;
    double sustained; /* minutes; 0: not that */
    enum clb_bench_format format;
    clb_bench_texts texts;
};

/* What the drive can do, measured or remembered, once something was read from it. */
static void know_drive(clb_bench *b, const clb_bench_test *t)
{
    clb_rates rates;
    if (b->drive_rate > 0.0 || !t->drive_bytes)
        return;
    clb_machine_rates(clb_args_config(b->args), b->engine, b->topology.model, true, false, &rates);
    b->drive_rate = rates.drive_source == CLB_RATE_ASSUMED ? 0.0 : rates.drive_bytes_per_second;
}

static int print_line(json_t *o, clb_error *err)
{
    const int failed = o ? json_dumpf(o, stdout, JSON_COMPACT) || putchar('\n') < 0 || fflush(stdout) : 0;
    json_decref(o);
    return !o       ? CLB_NOMEM(err, "results")
           : failed ? clb_fail(err, COLIBRI_E_IO, "cannot write standard output")
                    : COLIBRI_OK;
}

static int report(clb_bench *b, const clb_bench_test *t, enum clb_bench_format format, bool first, json_t *all,
                  clb_error *err)
{
    know_drive(b, t);
    if (format == CLB_BENCH_JSON)
        json_array_append_new(all, clb_bench_json(b, t));
    else if (format == CLB_BENCH_JSONL)
        CLB_TRY(print_line(clb_bench_json(b, t), err));
    else if (format == CLB_BENCH_CSV)
        clb_bench_print_csv(b, t, first);
    else
        clb_bench_print_md(b, t, first);
    if (t->has_profile && format == CLB_BENCH_MD)
        clb_bench_print_split(b, t);
    return ferror(stdout) ? clb_fail(err, COLIBRI_E_IO, "cannot write standard output")
                          : COLIBRI_OK; /* nobody will see the others */
}

static int run_one(clb_bench *b, clb_bench_test *t, enum clb_bench_format format, bool first, json_t *all,
                   clb_error *err)
{
    int rc = clb_bench_test_run(b, t, err);
    if (!rc)
        rc = report(b, t, format, first, all, err);
    clb_bench_test_free(t);
    return rc;
}

static int run_texts(clb_bench *b, const clb_bench_texts *texts, uint32_t n_gen, enum clb_bench_format format,
                     json_t *all, clb_error *err)
{
    for (size_t i = 0; i < texts->n; i++) {
        clb_bench_test t = {.n_prompt = (uint32_t)texts->at[i].ids.n, .n_gen = n_gen, .ids = texts->at[i].ids.ids};
        memcpy(t.name, texts->at[i].name, sizeof texts->at[i].name);
        CLB_TRY(run_one(b, &t, format, i == 0, all, err));
    }
    return COLIBRI_OK;
}

static void name_test(clb_bench_test *t)
{
    int n = snprintf(t->name, sizeof t->name, "%s%u", t->n_prompt ? "pp" : "tg", t->n_prompt ? t->n_prompt : t->n_gen);
    if (t->n_streams > 1)
        n += snprintf(t->name + n, sizeof t->name - (size_t)n, " x %u", t->n_streams);
    if (t->depth)
        snprintf(t->name + n, sizeof t->name - (size_t)n, " @ %u", t->depth);
}

static int run_tests(clb_bench *b, const struct wish *w, json_t *all, clb_error *err)
{
    bool first = true;
    for (uint32_t d = 0; d < w->depths.n; d++)
        for (uint32_t i = 0; i < w->prompts.n + w->gens.n * w->streams.n; i++) {
            clb_bench_test t = {.depth = w->depths.v[d]};
            if (i < w->prompts.n) {
                t.n_prompt = w->prompts.v[i];
            } else {
                t.n_gen = w->gens.v[(i - w->prompts.n) / w->streams.n];
                t.n_streams = w->streams.v[(i - w->prompts.n) % w->streams.n];
            }
            if (t.n_prompt + t.n_gen == 0)
                continue;
            name_test(&t);
            CLB_TRY(run_one(b, &t, w->format, first, all, err));
            first = false;
        }
    return COLIBRI_OK;
}

/* Lines "pp N [DEPTH]", "tg N [DEPTH [STREAMS]]", "bw", "quit" on standard input; answers "pp N SECONDS" and so on. For
 * scripts that take turns between engines. */
static int serve_stdin(clb_args *args, clb_session *s, uint32_t most_streams, clb_error *err)
{
    char line[128];
    printf("ready\n");
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        const char *word[5] = {"", "0", "0", "1", NULL}, *w;
        char *rest = line;
        uint32_t n = 0, depth = 0, streams = 0, words = 0;
        while (words < 5 && (w = strtok_r(rest, " \t\r\n", &rest)))
            word[words++] = w;
        const bool numbers =
            parse_number(word[1], &n) && parse_number(word[2], &depth) && parse_number(word[3], &streams);
        const bool sized = numbers && words >= 2 && words < 5 && n > 0 && (words < 4 || *word[0] == 't') && streams > 0;
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
                            "standard input: expected \"pp N [DEPTH]\", \"tg N [DEPTH [STREAMS]]\", \"bw\" or "
                            "\"quit\"");
        if (streams > most_streams)
            return clb_fail(err, COLIBRI_E_USAGE, "standard input: %u streams, --streams made room for %u", streams,
                            most_streams);
        uint64_t ns;
        CLB_TRY(streams > 1 ? clb_bench_streams(clb_session_engine(s), streams, depth, n, &ns, NULL, err)
                            : clb_bench_run(s, depth, pp ? n : 0, pp ? 0 : n, &ns, NULL, err));
        printf("%s %u %.9f\n", word[0], n, (double)ns / 1e9);
    }
    if (clb_args_interrupted(args))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
    return ferror(stdin) ? clb_fail(err, COLIBRI_E_IO, "cannot read standard input") : COLIBRI_OK;
}

/* ---- reading the flags ---- */

static int parse_format(clb_args *args, enum clb_bench_format *out, clb_error *err)
{
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    const char *const text = clb_args_value(args, "format");
    *out = clb_args_has(args, "json") ? CLB_BENCH_JSON : CLB_BENCH_MD;
    if (!text)
        return COLIBRI_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum clb_bench_format)i;
            return COLIBRI_OK;
        }
    return clb_fail(err, COLIBRI_E_USAGE, "--format %.40s: must be md, csv, json or jsonl", text);
}

static int parse_runs(clb_args *args, uint32_t *out, clb_error *err)
{
    struct list runs;
    const char *const flag = clb_args_has(args, "repeat") ? "repeat" : "repetitions";
    if (clb_args_has(args, "repeat") && clb_args_has(args, "repetitions"))
        return clb_fail(err, COLIBRI_E_USAGE, "--repeat and --repetitions are the same: give one");
    if (parse_list(flag, clb_args_value(args, flag), DEFAULT_RUNS, &runs, err) || runs.n != 1 || runs.v[0] < 1 ||
        runs.v[0] > CLB_BENCH_RUNS)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s: must be a whole number between 1 and %u", flag, CLB_BENCH_RUNS);
    *out = runs.v[0];
    return COLIBRI_OK;
}

/* Kinds of runs exclude each other, and flags that would do nothing are refused. */
static int check_wish(clb_args *args, const struct wish *w, clb_error *err)
{
    static const char *const kinds[] = {"stdin", "sweep", "sustained"};
    static const char *const not_for[][9] = {
        {"repetitions", "repeat", "no-warmup", "split", "json", "format", "reset-cache", NULL},
        {"no-warmup", "split", "n-depth", "reset-cache", "streams", NULL},
        {"repetitions", "repeat", "no-warmup", "split", "json", "format", "reset-cache", "streams", NULL}};
    for (size_t k = 0; k < 3; k++) {
        if (!clb_args_has(args, kinds[k]))
            continue;
        for (size_t o = k + 1; o < 3; o++)
            if (clb_args_has(args, kinds[o]))
                return clb_fail(err, COLIBRI_E_USAGE, "--%s and --%s exclude each other", kinds[k], kinds[o]);
        for (size_t i = 0; not_for[k][i]; i++)
            if (clb_args_has(args, not_for[k][i]))
                return clb_fail(err, COLIBRI_E_USAGE, "--%s does not apply to --%s", not_for[k][i], kinds[k]);
        if (w->texts.n)
            return clb_fail(err, COLIBRI_E_USAGE, "texts do not apply to --%s", kinds[k]);
    }
    if (clb_args_has(args, "write-ini") && !clb_args_has(args, "sweep"))
        return clb_fail(err, COLIBRI_E_USAGE, "--write-ini needs --sweep");
    if (clb_args_has(args, "split") && (largest(&w->depths) || w->texts.n))
        return clb_fail(err, COLIBRI_E_USAGE, "--split does not apply to tests with --n-depth, nor to texts");
    if (!clb_args_has(args, "stdin") && !(w->sustained > 0.0) && !w->texts.n &&
        largest(&w->prompts) + largest(&w->gens) == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "nothing to measure: --n-prompt and --n-gen are both 0");
    if (w->texts.n && !w->gens.v[0])
        return clb_fail(err, COLIBRI_E_USAGE, "answers to texts need --n-gen");
    return COLIBRI_OK;
}

static int read_wish(clb_args *args, struct wish *w, clb_error *err)
{
    char rest;
    const char *const *paths;
    if (clb_args_positional(args, &paths)) /* a path after --texts, mostly */
        return clb_fail(err, COLIBRI_E_USAGE,
                        "unexpected argument '%.80s': a file or folder of texts is given by --text PATH (--texts takes "
                        "those that come with Colibri)",
                        paths[0]);
    CLB_TRY(parse_list("n-prompt", clb_args_value(args, "n-prompt"), 512, &w->prompts, err));
    CLB_TRY(parse_list("n-gen", clb_args_value(args, "n-gen"), 128, &w->gens, err));
    CLB_TRY(parse_list("n-depth", clb_args_value(args, "n-depth"), 0, &w->depths, err));
    CLB_TRY(parse_list("streams", clb_args_value(args, "streams"), 1, &w->streams, err));
    for (uint32_t i = 0; i < w->streams.n; i++)
        if (!w->streams.v[i] || w->streams.v[i] > CLB_BENCH_STREAMS)
            return clb_fail(err, COLIBRI_E_USAGE, "--streams %u: at least 1, at most %u", w->streams.v[i],
                            CLB_BENCH_STREAMS);
    CLB_TRY(parse_runs(args, &w->runs, err));
    CLB_TRY(parse_format(args, &w->format, err));
    const char *const minutes = clb_args_value(args, "sustained");
    if (minutes &&
        (sscanf(minutes, "%lf%c", &w->sustained, &rest) != 1 || !(w->sustained > 0.0) || w->sustained > 10000.0))
        return clb_fail(err, COLIBRI_E_USAGE, "--sustained %.40s: must be minutes, as 5 or 0.5", minutes);
    const size_t n = clb_args_values(args, "text", &paths);
    if (clb_args_has(args, "texts"))
        CLB_TRY(clb_bench_texts_add(&w->texts, NULL, err));
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_bench_texts_add(&w->texts, paths[i], err));
    return check_wish(args, w, err);
}

/* Texts are there to be measured: random tokens only if they are asked for too. */
static int run_wish(clb_bench *b, struct wish *w, clb_error *err)
{
    json_t *const all = json_array();
    const bool tests = !w->texts.n || clb_args_has(b->args, "n-prompt");
    int rc = all ? COLIBRI_OK : CLB_NOMEM(err, "results");
    if (!rc && w->texts.n)
        rc = clb_bench_texts_tokenize(&w->texts, b->args, b->engine, w->gens.v[0], err);
    if (!rc && w->format == CLB_BENCH_MD)
        clb_bench_print_head(b);
    if (!rc && w->sustained > 0.0)
        rc = clb_bench_sustained(b, w->sustained, err);
    else if (!rc && tests)
        rc = run_tests(b, w, all, err);
    if (!rc && w->texts.n && tests && w->format == CLB_BENCH_MD)
        printf("\n");
    if (!rc && w->texts.n)
        rc = run_texts(b, &w->texts, w->gens.v[0], w->format, all, err);
    if (!rc && w->format == CLB_BENCH_JSON)
        return clb_json_print(all, err);
    json_decref(all);
    return rc;
}

static int measure(clb_args *args, struct wish *w, clb_error *err)
{
    const clb_config *config = clb_args_config(args);
    clb_bench b = {.args = args,
                   .path = clb_config_str(config, CLB_SET_model_model),
                   .runs = w->runs,
                   .warm_up = !clb_args_has(args, "no-warmup"),
                   .split = clb_args_has(args, "split"),
                   .reset = clb_args_has(args, "reset-cache")};
    int rc = COLIBRI_OK;
    /* Room for the longest test, unless the user has said how much. */
    const uint32_t most = largest(&w->prompts) > largest(&w->gens) ? largest(&w->prompts) : largest(&w->gens);
    const uint32_t need = w->texts.n || w->sustained > 0.0 ? 0 : largest(&w->depths) + most;
    const uint32_t streams = largest(&w->streams);
    CLB_GO(clb_open_engine_for(args, need, streams > 1 ? streams + 1 : 1, &b.engine, err));
    if (need > b.engine->ctx && clb_config_is_set(config, CLB_SET_model_ctx))
        CLB_GO(clb_fail(err, COLIBRI_E_LIMIT, "the longest test has %u tokens, the context holds %u: raise --ctx", need,
                        b.engine->ctx));
    CLB_GO(clb_session_create(b.engine, &b.session, err));
    clb_topology_read(&b.topology);
    const time_t now = time(NULL);
    struct tm tm;
    strftime(b.when, sizeof b.when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    rc = clb_args_has(args, "stdin") ? serve_stdin(args, b.session, streams, err) : run_wish(&b, w, err);
done:
    clb_session_destroy(b.session);
    clb_engine_close(b.engine);
    return rc;
}

static int run(clb_args *args, clb_error *err)
{
    struct wish w = {.runs = 0};
    int rc = read_wish(args, &w, err);
    if (!rc && clb_args_has(args, "sweep"))
        rc = clb_bench_sweep(args, clb_args_value(args, "sweep"), w.prompts.v[0], w.gens.v[0], w.runs,
                             clb_args_value(args, "write-ini"), w.format, err);
    else if (!rc)
        rc = measure(args, &w, err);
    clb_bench_texts_free(&w.texts);
    return rc;
}

const struct clb_command clb_command_bench = {
    .name = "bench",
    .summary = "measure how fast a model reads prompts and generates",
    .usage =
        "colibri bench -m MODEL [-p N,..] [-n N,..] [-r N] [--texts | --text PATH | --sustained MIN | --sweep threads=A..B] [flags]",
    .description =
        "Prompt tests (pp) read N random tokens, generation tests (tg) feed N random tokens one after another; nothing "
        "is sampled. Each test starts with an empty context (or --n-depth tokens) and is repeated; shown are mean, "
        "standard deviation and median of the tokens per second. For generation the bytes of weights, keys and values "
        "that a token reads are set against what a plain reading loop of the same threads reached between the runs.\n\n"
        "--texts and --text measure answers to texts as a user would ask them: time to the first token, speed of the "
        "prompt and of the "
        "answer, the median and the 99th percentile of a token's time. Where experts or layers are read while running, "
        "hit rate, bytes "
        "from the drive per token, and their share of what the drive can do are shown too; --reset-cache starts each "
        "run cold.\n\n"
        "--json prints the names that llama-bench uses (n_prompt, n_gen, avg_ts, stddev_ts, samples_ts, ...) and some "
        "more.\n\n"
        "With --stdin the model is loaded once; then each line \"pp N [DEPTH]\" or \"tg N [DEPTH [STREAMS]]\" runs a "
        "test once "
        "and "
        "is answered by a line \"pp N SECONDS\", \"bw\" by the read bandwidth, and \"quit\" ends. The first line "
        "printed "
        "is \"ready\". -p, -n and -d then name no tests, but the largest ones that the context must hold.",
    .examples =
        "colibri bench -m model.gguf   # pp512 and tg128, five times each\n"
        "colibri bench -m model.gguf -p 512,4096 -n 0 --threads 4 --json   # prompts only, for scripts\n"
        "colibri bench -m model.gguf --texts --reset-cache   # short answer, code, long summary, from a cold start\n"
        "colibri bench -m model.gguf --sweep threads=1..8 --write-ini ~/.config/colibri/colibri.ini   # the best "
        "number of threads\n"
        "colibri bench -m model.gguf --sustained 10   # does the machine throttle?\n"
        "colibri bench -m model.gguf -p 0 -n 64 --split   # where a token's time goes",
    .flags = flags,
    .settings = settings,
    .max_positional = -1, /* to say more than that they are unexpected */
    .run = run,
};
