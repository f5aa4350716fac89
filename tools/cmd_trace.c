/* colibri trace: records, converts and describes routing traces. */
#include <string.h>

#include "base/str.h"
#include "model_run.h"
#include "trace.h"

static const clb_flag flags[] = {
    {"file", 'f', "FILE", "prompts: JSON lines, or a text that is one prompt (- for standard input)", true},
    {"prompts", 0, "FILE", "prompts, one on each line", true},
    {"output", 'o', "FILE", "where the trace goes (export: standard output unless given)", false},
    {"force", 0, NULL, "replace an existing file", false},
    {"teacher-forced", 0, NULL, "feed the texts token by token instead of generating", false},
    {"prefill", 0, "N", "teacher-forced and TRC1: the first N tokens are a prompt (128 unless given)", false},
    {"window", 0, "N", "teacher-forced: cut texts into independent pieces of N tokens", false},
    {"max-windows", 0, "N", "teacher-forced: at most N pieces of a text", false},
    {"ahead", 0, "N", "keep guesses of the next N routers (1 or 2), for predictors", false},
    {"ahead-top", 0, "N", "so many guesses of each (twice top-k unless given)", false},
    {"gates", 0, "TYPE", "router weights as f32 (exact), f16 or none (f32 unless given)", false},
    {"reset-cache", 0, NULL, "empty the expert cache before every prompt", false},
    {"ignore-eos", 0, NULL, "go on after end-of-generation tokens", false},
    {"from", 0, "NAME", "import: format of the file (found out unless given)", false},
    {"to", 0, "NAME", "export: csv, jsonl or oracleGeneral", false},
    {"layers", 0, "N", "import: MoE layers, where the file does not say", false},
    {"experts", 0, "N", "import: experts of a layer, where the file does not say", false},
    {"top-k", 0, "N", "import: experts per token, where the file does not say", false},
    {"expert-bytes", 0, "SIZE", "import: size of an expert", false},
    {"label", 0, "TEXT", "import: name of the model in the trace", false},
    {"json", 'j', NULL, "info: print one JSON object", false},
    {0},
};

/* --top-k is the import's here, not the sampler's: traces are sampled as the settings say. */
static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS,
                                            CLB_SET_sampling_temperature,
                                            CLB_SET_sampling_top_p,
                                            CLB_SET_sampling_min_p,
                                            CLB_SET_sampling_repeat_penalty,
                                            CLB_SET_sampling_seed,
                                            CLB_SET_run_predict,
                                            CLB_SET_run_raw,
                                            CLB_SET_COUNT};

static const char *const recording[] = {"file",  "prompts",   "teacher-forced", "window",      "max-windows",
                                        "ahead", "ahead-top", "gates",          "reset-cache", "ignore-eos"};

static int no_recording_flags(const clb_args *args, const char *action, clb_error *err)
{
    for (size_t i = 0; i < sizeof recording / sizeof *recording; i++)
        if (clb_args_has(args, recording[i]))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s goes with recording, not with '%s'", recording[i], action);
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    static const struct {
        const char *name;
        int (*run)(clb_args *args, const char *file, clb_error *err);
    } actions[] = {{"import", clb_trace_cmd_import}, {"export", clb_trace_cmd_export}, {"info", clb_trace_cmd_info}};
    enum { N_ACTIONS = sizeof actions / sizeof *actions };
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    if (n == 0)
        return clb_trace_cmd_record(args, err);
    size_t at = 0;
    while (at < N_ACTIONS && strcmp(actions[at].name, words[0]) != 0)
        at++;
    if (at == N_ACTIONS) {
        const char *const names[N_ACTIONS] = {"import", "export", "info"};
        const long near = clb_nearest(words[0], names, N_ACTIONS);
        return clb_fail(
            err, COLIBRI_E_USAGE, "unknown action '%.80s'%s%s%s", words[0], near >= 0 ? "; did you mean '" : "",
            near >= 0 ? names[near] : " (import, export, info; prompts are given with -f)", near >= 0 ? "'?" : "");
    }
    if (n != 2)
        return clb_fail(err, COLIBRI_E_USAGE, "'%s' needs one FILE", words[0]);
    CLB_TRY(no_recording_flags(args, words[0], err));
    return actions[at].run(args, words[1], err);
}

const clb_command clb_command_trace = {
    .name = "trace",
    .summary = "record which experts a model uses, for colibri simulate",
    .usage = "colibri trace -m MODEL -f TEXT... -o OUT.clbt [-n N] [flags]\n"
             "colibri trace import FILE -o OUT.clbt [--from NAME]\n"
             "colibri trace export FILE --to csv|jsonl|oracleGeneral [-o OUT]\n"
             "colibri trace info FILE [--json]",
    .description =
        "Runs prompts through the model and writes down, for every token and layer, the experts that the router chose "
        "and "
        "their weights, with token, sequence, phase and time: what a cache sees. Each prompt is a unit of statistics. "
        "With "
        "--teacher-forced the texts themselves are fed, the first --prefill tokens as a prompt and the rest one by one "
        "as if "
        "they had been generated. A recording that is cut off is usable up to its last complete pass.\n\n"
        "'import' and 'export' convert from and to CSV, JSON lines and libCacheSim's oracleGeneral (which keeps the "
        "order of "
        "requests but not which of them came together); 'info' describes a trace. docs/traces.md has the formats.",
    .examples =
        "colibri trace -m moe.gguf -f questions.jsonl -n 200 -o chat.clbt   # prompts and answers\n"
        "colibri trace -m moe.gguf -f book.txt --teacher-forced --window 512 -o book.clbt   # a text as it stands\n"
        "colibri trace import routing.trace -o routing.clbt   # another program's trace\n"
        "colibri trace export chat.clbt --to csv -o chat.csv   # for pandas\n"
        "colibri trace info chat.clbt",
    .flags = flags,
    .settings = settings,
    .max_positional = 2,
    .run = run,
};
