/* colibri plan: what a model will take and how fast it will be, before a weight is read. */
#include <stdlib.h>
#include <string.h>

#include "config/value.h"
#include "machine_rates.h"
#include "model_run.h"
#include "paths.h"
#include "plan_report.h"

#define MOST_ROWS 64u
#define DECODE_KV 256u

static const clb_flag flags[] = {
    {"what-if", 0, "SIZES", "a table of budgets instead, as 8G,12G,16G: where more memory would pay", false},
    {"trace", 0, "FILE", "hit rates of this routing trace (colibri trace) instead of assumed ones", false},
    {"no-measure", 0, NULL, "measure nothing: remembered rates, or assumed ones", false},
    {"measure-again", 0, NULL, "measure also what is remembered", false},
    {"json", 'j', NULL, "print one JSON object", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_COUNT};

static void predict(const clb_plan_report *r, const clb_plan_input *in, clb_plan_row *row)
{
    const clb_predict_input input = {.model = r->engine->model,
                                     .plan_input = in,
                                     .plan = &row->plan,
                                     .rates = &r->rates,
                                     .curve = r->curve,
                                     .n_kv = in->kv_positions < DECODE_KV ? in->kv_positions : DECODE_KV};
    clb_predict(&input, &row->prediction);
}

/* A plan and its prediction; a plan that does not fit is an answer, too. */
static int make_row(const clb_plan_report *r, uint64_t budget, clb_plan_row *row, clb_error *err)
{
    clb_plan_input in = r->engine->plan_input;
    in.budget = budget;
    row->budget = budget;
    const int rc = clb_plan_make(&in, &row->plan, err);
    row->fits = rc == COLIBRI_OK;
    if (rc == COLIBRI_E_NOMEM)
        snprintf(row->why_not, sizeof row->why_not, "%s", err->msg);
    if (!rc)
        predict(r, &in, row);
    return rc;
}

/* "the model needs at least 300 MiB (...), the budget is ...; would fit: ...": the first and the last part. */
static void shorten(char *text)
{
    char *end = strstr(text, " (");
    char *advice = strstr(text, "; would fit");
    if (end && advice && advice > end)
        memmove(end, advice, strlen(advice) + 1);
}

static int what_if(clb_plan_report *r, const char *list, clb_error *err)
{
    char item[32];
    r->rows = calloc(MOST_ROWS, sizeof *r->rows);
    if (!r->rows)
        return CLB_NOMEM(err, "plans");
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ",");
        uint64_t budget = 0;
        if (n == 0 || n >= sizeof item || r->n_rows == MOST_ROWS)
            return clb_fail(err, COLIBRI_E_USAGE, "--what-if %.80s: write up to %u sizes, as 8G,12G,16G", list,
                            MOST_ROWS);
        memcpy(item, p, n);
        item[n] = '\0';
        if (clb_parse_size(item, &budget, err))
            return clb_context(err, "--what-if");
        if (budget == 0)
            return clb_fail(err, COLIBRI_E_USAGE, "--what-if %.80s: a budget of 0 means none", list);
        clb_plan_row *row = &r->rows[r->n_rows++];
        const int rc = make_row(r, budget, row, err);
        if (rc && rc != COLIBRI_E_NOMEM)
            return rc;
        shorten(row->why_not);
        p += n;
        if (!*p)
            break;
    }
    return COLIBRI_OK;
}

static int read_trace(clb_plan_report *r, const char *path, clb_hit_curve *curve, clb_error *err)
{
    const clb_hparams *hp = &r->engine->model->hp;
    clb_trace *trace = NULL;
    if (!r->engine->model->n_moe_layers)
        return clb_fail(err, COLIBRI_E_USAGE, "--trace does not apply: the model has no experts");
    int rc = clb_trace_open(path, &trace, err);
    if (rc)
        return clb_context(err, "--trace");
    if (trace->info.n_layers != r->engine->model->n_moe_layers || trace->info.n_experts != hp->n_experts ||
        trace->info.top_k != hp->top_k)
        rc = clb_fail(err, COLIBRI_E_USAGE,
                      "%s: recorded from a model with %u layers of %u experts, top %u; this one has %u, %u, %u", path,
                      trace->info.n_layers, trace->info.n_experts, trace->info.top_k, r->engine->model->n_moe_layers,
                      hp->n_experts, hp->top_k);
    if (!rc)
        rc = clb_hit_curve_make(trace, curve, err);
    clb_trace_close(trace);
    if (rc)
        return clb_context(err, "--trace");
    r->trace = path;
    r->curve = curve;
    return COLIBRI_OK;
}

static int open_for_planning(clb_args *args, clb_engine **out, clb_error *err)
{
    char dir[PATH_MAX];
    const clb_engine_options options = {
        .config = clb_args_config(args),
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(args),
        .n_sequences = 1,
        .pin_caller = true,
        .plan_only = true,
    };
    return clb_engine_open(&options, out, err);
}

static int run(clb_args *args, clb_error *err)
{
    const char *list = clb_args_value(args, "what-if"), *trace = clb_args_value(args, "trace");
    if (clb_args_has(args, "no-measure") && clb_args_has(args, "measure-again"))
        return clb_fail(err, COLIBRI_E_USAGE, "--no-measure and --measure-again exclude each other");
    clb_engine *engine = NULL;
    clb_hit_curve curve = {0};
    int rc = COLIBRI_OK;
    clb_plan_report *r = calloc(1, sizeof *r);
    if (!r)
        return CLB_NOMEM(err, "the report");
    CLB_GO(open_for_planning(args, &engine, err));
    engine->plan_input.resident = clb_memory_resident(); /* before measuring makes it larger */
    r->engine = engine;
    r->path = clb_config_str(clb_args_config(args), CLB_SET_model_model);
    clb_topology_read(&r->topology);
    clb_plan_find_roles(engine->model, r);
    if (trace)
        CLB_GO(read_trace(r, trace, &curve, err));
    clb_machine_rates(clb_args_config(args), engine, r->topology.model, !clb_args_has(args, "no-measure"),
                      clb_args_has(args, "measure-again"), &r->rates);
    if (list)
        CLB_GO(what_if(r, list, err));
    else
        CLB_GO(make_row(r, engine->plan_input.budget, &r->now, err));
    if (clb_args_has(args, "json"))
        CLB_GO(clb_plan_print_json(r, err));
    else if (list)
        clb_plan_print_rows(r);
    else
        clb_plan_print(r);
done:
    for (uint32_t i = 0; i < r->n_rows; i++)
        clb_plan_free(&r->rows[i].plan);
    clb_plan_free(&r->now.plan);
    free(r->rows);
    free(r);
    clb_hit_curve_free(&curve);
    clb_engine_close(engine);
    return rc;
}

const struct clb_command clb_command_plan = {
    .name = "plan",
    .summary = "show what a model takes in memory and how fast it will be",
    .usage = "colibri plan -m MODEL [--max-memory SIZE] [flags]",
    .description =
        "Plans as 'colibri run' does, with the same settings, and shows the plan without reading a weight: bytes by "
        "role "
        "and tensor type, what stays in memory, what is read while running, and the speed that follows, with the "
        "arithmetic. A plan that does not fit is refused with what would.\n"
        "\n"
        "Rates are measured, in a fraction of a second: the model's formats with the kernels that this CPU gets, and "
        "the "
        "drive under the model's file. They are remembered in the user's cache folder, a drive for a day. Speeds of "
        "models that do not fit are a range: with equal chances for all experts, and with chances as skewed as in "
        "published traces; --trace uses a trace of yours.",
    .examples = "colibri plan -m model.gguf   # with 80 % of what is free\n"
                "colibri plan -m model.gguf --max-memory 8G --ctx 8192   # with a budget\n"
                "colibri plan -m model.gguf --what-if 8G,12G,16G,24G,32G   # where memory pays\n"
                "colibri plan -m model.gguf --json | jq .prediction.decode.high.tokens_per_second   # for scripts\n",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
