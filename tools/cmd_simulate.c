/* colibri simulate: policies, predictors and capacities on recorded traces. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/value.h"
#include "cpu/topology.h"
#include "paths.h"
#include "plan/rates.h"
#include "plugin/open.h"
#include "simulate.h"

static const clb_flag flags[] = {
    {"policy", 0, "LIST", "expert policies, separated by commas, or all; parameters as NAME:key=value", true},
    {"predictor", 0, "LIST", "predictors, separated by commas, or all (none is always among them)", true},
    {"slots", 0, "LIST", "capacities: shares of all experts (25%) or numbers of slots", true},
    {"format", 0, "NAME", "of the traces: clbt, csv, jsonl, oracleGeneral, trc1 (found out unless given)", false},
    {"prefill", 0, "N", "TRC1: the first N tokens of a window are one pass (128 unless given)", false},
    {"expert-bytes", 0, "SIZE", "size of an expert, where the trace does not say", false},
    {"reset-cache", 0, NULL, "every prompt begins with an empty cache", false},
    {"cold", 0, NULL, "do not load experts at start even if all fit", false},
    {"read-rate", 0, "SIZE", "the drive's bytes per second (3G where the trace does not say)", false},
    {"read-latency", 0, "US", "microseconds until a read's first byte (100 where the trace does not say)", false},
    {"layer-time", 0, "US", "microseconds per token and layer without experts", false},
    {"expert-time", 0, "US", "microseconds per token and expert", false},
    {"window", 0, "N", "--html: tokens per point of the plot over time (64 unless given)", false},
    {"resamples", 0, "N", "resamples of the bootstrap (10000 unless given)", false},
    {"json", 'j', NULL, "print one JSON object", false},
    {"jsonl", 0, NULL, "print JSON lines: one object with the conditions, one per cell", false},
    {"csv", 0, NULL, "print CSV", false},
    {"html", 0, "FILE", "write a page with plots", false},
    {"force", 0, NULL, "--html: replace an existing file", false},
    {"bench", 0, NULL, "measure look-ups per second on one thread instead", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_SET_store_expert_policy,
                                            CLB_SET_store_expert_pool,
                                            CLB_SET_store_prefetch_depth,
                                            CLB_SET_cpu_threads,
                                            CLB_SET_cpu_mask,
                                            CLB_SET_sampling_seed,
                                            CLB_SET_plugins_path,
                                            CLB_SET_plugins_prefer,
                                            CLB_SET_plugins_deny,
                                            CLB_SET_COUNT};

static int flag_number(const clb_args *args, const char *flag, double least, double most, double *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    if (!text)
        return COLIBRI_OK;
    double v;
    if (clb_parse_f64(text, &v, err) || !(v >= least && v <= most))
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.60s: a number from %g to %g is expected", flag, text, least,
                        most);
    *out = v;
    return COLIBRI_OK;
}

static int flag_count(const clb_args *args, const char *flag, uint32_t most, uint32_t *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    uint64_t v = 0;
    if (!text)
        return COLIBRI_OK;
    if (clb_parse_u64(text, &v, err) || v < 1 || v > most)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.60s: must be a whole number between 1 and %u", flag, text, most);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

static int flag_size(const clb_args *args, const char *flag, uint64_t *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    if (!text)
        return COLIBRI_OK;
    if (clb_parse_size(text, out, err) || *out == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.60s: a size such as 3G or 700K is expected", flag, text);
    return COLIBRI_OK;
}

static int read_rates(const clb_args *args, clb_sim *s, clb_error *err)
{
    uint64_t rate = 0;
    double latency = 0, layer = 0, expert = 0;
    CLB_TRY(flag_size(args, "read-rate", &rate, err));
    CLB_TRY(flag_number(args, "read-latency", 0, 1e9, &latency, err));
    CLB_TRY(flag_number(args, "layer-time", 0, 1e9, &layer, err));
    CLB_TRY(flag_number(args, "expert-time", 0, 1e9, &expert, err));
    s->rates = (clb_trace_rates){.decode_layer_ns = layer * 1e3,
                                 .decode_expert_ns = expert * 1e3,
                                 .prefill_layer_ns = layer * 1e3,
                                 .prefill_expert_ns = expert * 1e3,
                                 .read_bytes_per_s = (double)rate,
                                 .read_latency_ns = latency * 1e3};
    return COLIBRI_OK;
}

static int check_flags(const clb_args *args, clb_error *err)
{
    static const char *const ways[] = {"json", "jsonl", "csv", "bench"};
    const char *one = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (clb_args_has(args, ways[i])) {
            if (one)
                return clb_fail(err, COLIBRI_E_USAGE, "--%s and --%s exclude each other", one, ways[i]);
            one = ways[i];
        }
    if (clb_args_has(args, "bench") && clb_args_has(args, "html"))
        return clb_fail(err, COLIBRI_E_USAGE, "--bench and --html exclude each other");
    return COLIBRI_OK;
}

static int setup(clb_args *args, clb_sim *s, clb_error *err)
{
    const clb_config *const config = clb_args_config(args);
    const char *const *words, *const *lists;
    const size_t n = clb_args_positional(args, &words);
    char dir[PATH_MAX];
    clb_trace_import_options import = {0};
    int format = -1;
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no trace given (colibri trace records one)");
    if (clb_args_value(args, "format") && (format = clb_trace_format_of(clb_args_value(args, "format"))) < 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--format %.40s: clbt, csv, jsonl, oracleGeneral or trc1 is expected",
                        clb_args_value(args, "format"));
    s->args = args;
    s->window = 64;
    s->resamples = CLB_BOOTSTRAP_RESAMPLES;
    CLB_TRY(flag_count(args, "prefill", CLB_TRACE_ROWS_MAX, &import.prefill, err));
    CLB_TRY(flag_count(args, "window", 1000000, &s->window, err));
    CLB_TRY(flag_count(args, "resamples", 10000000, &s->resamples, err));
    CLB_TRY(flag_size(args, "expert-bytes", &s->expert_bytes, err));
    CLB_TRY(read_rates(args, s, err));
    s->layer_pools = !strcmp(clb_config_str(config, CLB_SET_store_expert_pool), "layer");
    s->cold = clb_args_has(args, "cold");
    s->reset_units = clb_args_has(args, "reset-cache");
    s->prefetch_depth = (uint32_t)clb_config_u64(config, CLB_SET_store_prefetch_depth);
    s->seed = clb_config_u64(config, CLB_SET_sampling_seed);
    const uint32_t threads = (uint32_t)clb_config_u64(config, CLB_SET_cpu_threads);
    s->n_threads = threads ? threads : clb_cpu_default_threads();
    CLB_TRY(clb_registry_from_config(config, clb_paths_plugin_dir(dir) ? dir : NULL, clb_args_log(args), &s->registry,
                                     err));
    CLB_TRY(clb_sim_add_traces(s, words, n, format, &import, err));
    size_t k = clb_args_values(args, "policy", &lists);
    CLB_TRY(clb_sim_add_policies(s, lists, k, err));
    k = clb_args_values(args, "predictor", &lists);
    CLB_TRY(clb_sim_add_predictors(s, lists, k, err));
    k = clb_args_values(args, "slots", &lists);
    return clb_sim_add_slots(s, lists, k, err);
}

static void report_misbehaviour(const clb_sim *s)
{
    for (uint32_t c = 0; c < s->n_cells; c++) {
        const clb_sim_cell *const k = &s->cells[c];
        if (k->misbehaved)
            clb_registry_misbehaved(s->registry, s->policies[k->policy].policy->name, k->misbehaved);
    }
}

/* A trace of another machine, or of this one while it was busy, is a bad model of this one. The planner's rates are of
 * kernels; two parallel loops come on top of them, which matter for small experts only. */
#define FAR_OFF  3.0
#define LOOPS_NS 1e4
static void check_rates(const clb_sim *s)
{
    char path[PATH_MAX];
    double least, most;
    clb_topology topology;
    clb_topology_read(&topology);
    if (!clb_rates_default_path(path, sizeof path) ||
        !clb_rates_remembered_range(path, topology.model, clb_cpu_default_threads(), &least, &most))
        return;
    for (uint32_t t = 0; t < s->n_traces; t++) {
        const clb_trace *const trace = s->traces[t].trace;
        const double took = trace->rates.decode_expert_ns;
        double bytes = 0;
        for (uint32_t l = 0; l < trace->info.n_layers; l++)
            bytes += (double)trace->info.expert_bytes[l] / trace->info.n_layers;
        if (s->rates.decode_expert_ns > 0 || !(took > 0) || !(bytes > 0))
            continue;
        const double fast = bytes * 1e9 / most, slow = bytes * 1e9 / least + LOOPS_NS;
        if (took * FAR_OFF < fast || took > FAR_OFF * slow)
            clb_logf(
                clb_args_log(s->args), COLIBRI_LOG_WARN,
                "%s: an expert took %.1f us when it was recorded, by the rates that 'colibri plan' remembers of this "
                "machine it takes %.1f to %.1f us: times and tok/s are those of another machine or of a busy one "
                "(--layer-time and --expert-time say better)",
                s->traces[t].name, took / 1e3, fast / 1e3, slow / 1e3);
    }
}

static int print(clb_args *args, const clb_sim *s, clb_error *err)
{
    if (clb_args_has(args, "csv"))
        clb_sim_print_csv(s, stdout);
    else if (clb_args_has(args, "json") || clb_args_has(args, "jsonl"))
        CLB_TRY(clb_sim_print_json(s, clb_args_has(args, "jsonl"), stdout, err));
    else
        clb_sim_print_table(s, stdout);
    if (fflush(stdout) || ferror(stdout))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to standard output");
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    clb_sim s = {0};
    const char *const html = clb_args_value(args, "html");
    int rc = COLIBRI_OK;
    CLB_GO(check_flags(args, err));
    CLB_GO(setup(args, &s, err));
    if (clb_args_has(args, "bench")) {
        rc = clb_sim_bench(&s, stdout, err);
        goto done;
    }
    CLB_GO(clb_sim_run(&s, html != NULL, err));
    report_misbehaviour(&s);
    check_rates(&s);
    if (html)
        CLB_GO(clb_sim_write_html(&s, html, err));
    rc = print(args, &s, err);
done:
    clb_sim_free(&s);
    return rc;
}

const clb_command clb_command_simulate = {
    .name = "simulate",
    .summary = "compare expert policies on recorded traces",
    .usage = "colibri simulate TRACE... [--policy LIST] [--predictor LIST] [--slots LIST] [--html FILE] [flags]",
    .description = "Replays traces (colibri trace) through the cache that the engine itself uses, with the same plugin "
                   "files, for every "
                   "policy, predictor and capacity asked for, on all threads. Without a predictor the hits are those "
                   "that the engine "
                   "would count; times come from a model of drive and processor.\n\n"
                   "lru and Belady's optimum are always computed: the share of the gap between them that a policy "
                   "closes says more "
                   "than its hit rate. Intervals are percentile bootstraps over prompts.",
    .examples = "colibri simulate chat.clbt --policy all --slots 10%,25%,50%   # which policy, at which size\n"
                "colibri simulate *.clbt --policy lru,frequency-weighted:half-life=16 --html report.html   # plots for "
                "a paper\n"
                "colibri simulate chat.clbt --policy lru --predictor all --read-rate 3G   # does read-ahead pay?\n"
                "colibri simulate chat.clbt --bench   # look-ups per second",
    .flags = flags,
    .settings = settings,
    .max_positional = -1,
    .run = run,
};
