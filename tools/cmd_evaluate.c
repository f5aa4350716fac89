/* colibri evaluate: what the configured KV cache costs in quality, and what it saves. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv_settings.h"
#include "evaluate.h"
#include "model_run.h"
#include "paths.h"

static const clb_flag flags[] = {
    {"task", 0, "KIND=FILE", "text=FILE, recall=FILE or passkey=FILE, or with modes: recall:ask-later=FILE", true},
    {"items", 0, "N", "items per task at most, spread evenly over the file", false},
    {"budget", 0, "SHARE", "what the strategy may keep: a share of each item (25%) or a number of positions", false},
    {"chunk", 0, "N", "tokens of a prompt that are read at once (64 unless given)", false},
    {"see-question", 0, NULL, "read each prompt in one piece, so that the question is known when something is dropped",
     false},
    {"text-tokens", 0, "N", "tokens of a piece of a text (1024 unless given); the second half is scored", false},
    {"jsonl", 0, "FILE", "write a line per item as it comes", false},
    {"force", 0, NULL, "replace that file", false},
    {"json", 'j', NULL, "print one JSON object", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_sampling_seed, CLB_SET_run_raw, CLB_SET_COUNT};

static int read_budget(clb_evaluation *e, clb_error *err)
{
    const char *const text = clb_args_value(e->args, "budget");
    const bool counted = e->choice.traits.evicts || e->choice.picks_pages;
    if (text && clb_kv_choice_bounded(&e->choice))
        return clb_fail(err, COLIBRI_E_USAGE, "--budget and --kv-budget exclude each other");
    if (text && !counted)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--budget does not apply: the KV strategy %.80s keeps everything (--kv-strategy)",
                        e->choice.name);
    if (!text && counted && !clb_kv_choice_bounded(&e->choice))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "how much may the KV strategy %.80s keep? Give a share of each item (--budget 25%%) or a "
                        "number of positions",
                        e->choice.name);
    if (!text) {
        if (counted)
            snprintf(e->budget, sizeof e->budget, "%u", clb_kv_choice_budget(&e->choice, e->engine->ctx));
        return COLIBRI_OK;
    }
    CLB_TRY(clb_kvc_check_budget("budget", text, err));
    snprintf(e->budget, sizeof e->budget, "%s", text);
    return COLIBRI_OK;
}

static uint32_t type_of(const clb_config *config, enum clb_setting id)
{
    const char *name = clb_config_str(config, id);
    if (strcmp(name, "same") == 0)
        name = clb_config_str(config, CLB_SET_kv_kv_type);
    static const uint32_t types[] = {COLIBRI_TYPE_F16, COLIBRI_TYPE_F32, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, clb_kv_type_name(types[i])) == 0)
            return types[i];
    return COLIBRI_TYPE_F16;
}

/* The engine has room for the full cache, in the configured types and, beside it, in F16. */
static int open_engine(clb_evaluation *e, clb_error *err)
{
    static const char *const whole[] = {"kv.kv-strategy=full", "kv.kv-budget=0", "kv.kv-positions=auto",
                                        "kv.kv-protect=0", "kv.context-shift=no"};
    const clb_config *const asked = clb_args_config(e->args);
    char dir[PATH_MAX];
    CLB_TRY(clb_args_config_with(e->args, whole, sizeof whole / sizeof *whole, "evaluate", &e->config, err));
    const clb_engine_options options = {
        .config = e->config,
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(e->args),
        .any_strategy = true,
        .n_sequences =
            clb_kv_reference_sequences(type_of(asked, CLB_SET_kv_kv_type_k), type_of(asked, CLB_SET_kv_kv_type_v)),
        .cancelled = clb_run_interrupted,
        .cancelled_ctx = e->args,
        .pin_caller = true,
    };
    CLB_TRY(clb_engine_open(&options, &e->engine, err));
    CLB_TRY(clb_kv_reference_open(e->engine, clb_run_interrupted, e->args, &e->reference, err));
    return clb_kv_choice_parse(e->engine->registry, asked, NULL, &e->choice, err);
}

static int load_tasks(clb_evaluation *e, clb_error *err)
{
    const char *const *tasks;
    const size_t n = clb_args_values(e->args, "task", &tasks);
    clb_kvc_task_options o = {.engine = e->engine,
                              .text_tokens = e->text_tokens,
                              .log = clb_args_log(e->args),
                              .cancelled = clb_run_interrupted,
                              .cancelled_ctx = e->args};
    if (clb_args_value(e->args, "items"))
        CLB_TRY(clb_kvc_parse_number(e->args, "items", 0, &o.most_items, err));
    CLB_TRY(clb_open_chat(e->args, e->engine, &o.chat, err));
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = clb_kvc_load_task(&e->grid, tasks[i], &o, &e->cases, err);
    clb_chat_free(o.chat);
    return rc;
}

static int check(const clb_evaluation *e, clb_error *err)
{
    if (e->chunk > e->engine->batch)
        return clb_fail(err, COLIBRI_E_USAGE, "--chunk %u: passes have at most %u tokens (--batch)", e->chunk,
                        e->engine->batch);
    return clb_kvc_check_passes(&e->grid, &e->cases, e->engine, e->see_question, err);
}

static void make_label(clb_evaluation *e)
{
    char layout[CLB_KV_LAYOUT_TEXT];
    snprintf(e->label, sizeof e->label, "%.120s%s%.31s%s, %.63s", e->choice.text, *e->budget ? " at " : "", e->budget,
             strcmp(clb_kv_choice_positions(&e->choice), "compact") == 0 ? ", compact positions" : "",
             clb_kv_layout_text(&e->engine->kv_layout, layout));
}

static int open_lines(clb_evaluation *e, clb_error *err)
{
    const char *const path = clb_args_value(e->args, "jsonl");
    if (!path)
        return COLIBRI_OK;
    const int how = clb_args_has(e->args, "force") ? O_TRUNC : O_EXCL;
    e->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | how, 0666);
    if (e->fd < 0 && errno == EEXIST)
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists: --force replaces it", path);
    if (e->fd < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open %s", path);
    return clb_kvc_write_json(e->fd, path, json_deep_copy(e->header), err);
}

static int prepare(clb_evaluation *e, clb_error *err)
{
    char hash[40], code[512];
    if (!clb_args_has(e->args, "task"))
        return clb_fail(err, COLIBRI_E_USAGE, "nothing to evaluate on: --task text=FILE, recall=FILE or passkey=FILE");
    CLB_TRY(clb_kvc_parse_number(e->args, "chunk", 64, &e->chunk, err));
    CLB_TRY(clb_kvc_parse_number(e->args, "text-tokens", 0, &e->text_tokens, err));
    e->see_question = clb_args_has(e->args, "see-question");
    CLB_TRY(open_engine(e, err));
    const clb_kv_layout *const l = &e->engine->kv_layout;
    if (!e->text_tokens)
        e->text_tokens = e->engine->ctx < 1024 ? e->engine->ctx : 1024;
    if (e->text_tokens < 4 || e->text_tokens > e->engine->ctx)
        return clb_fail(err, COLIBRI_E_USAGE, "--text-tokens %u: must be between 4 and the context of %u (--ctx)",
                        e->text_tokens, e->engine->ctx);
    CLB_TRY(read_budget(e, err));
    e->alone = !e->reference.own && !clb_kv_choice_lossy(&e->choice) && l->k_type == COLIBRI_TYPE_F16;
    make_label(e);
    CLB_TRY(load_tasks(e, err));
    CLB_TRY(check(e, err));
    CLB_TRY(clb_kvc_try_budget(e->engine, &e->choice, e->budget, &e->grid, &e->cases, err));
    CLB_TRY(clb_kvc_code_of(e->engine->registry, e->choice.name, code, err));
    CLB_TRY(clb_kvc_model_hash(e->engine->gguf, hash, err));
    e->header = clb_evaluate_header(e, hash, code);
    if (!e->header)
        return CLB_NOMEM(err, "the header");
    return open_lines(e, err);
}

static void free_all(clb_evaluation *e)
{
    for (uint32_t i = 0; e->items && i < e->cases.n; i++)
        for (int side = 0; side < CLB_EVAL_SIDES; side++) {
            clb_kv_trial_free(&e->items[i].run[side].trial);
            clb_buf_free(&e->items[i].run[side].said);
        }
    free(e->items);
    clb_kvc_cases_free(&e->cases);
    clb_kvc_free(&e->grid);
    clb_kv_choice_free(&e->choice);
    clb_kv_reference_close(&e->reference);
    clb_engine_close(e->engine);
    clb_config_destroy(e->config);
    json_decref(e->header);
}

static int run(clb_args *args, clb_error *err)
{
    clb_evaluation e = {.args = args, .fd = -1};
    clb_error second = {0};
    int rc = COLIBRI_OK;
    CLB_GO(prepare(&e, err));
    rc = clb_evaluate_all(&e, err);
    if (rc && e.n_done) /* what is complete is shown whatever ended the run */
        (void)(clb_args_has(args, "json") ? clb_evaluate_print_json(&e, &second) : clb_evaluate_print(&e, &second));
    CLB_GO(rc);
    CLB_GO(clb_args_has(args, "json") ? clb_evaluate_print_json(&e, err) : clb_evaluate_print(&e, err));
    if (e.interrupted)
        rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request after %u of %u items", e.n_done, e.cases.n);
done:
    if (e.fd >= 0 && close(e.fd) && !rc)
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to %s", clb_args_value(args, "jsonl"));
    free_all(&e);
    return rc;
}

const struct clb_command clb_command_evaluate = {
    .name = "evaluate",
    .summary = "measure what the KV cache as configured costs in quality",
    .usage = "colibri evaluate -m MODEL --task KIND=FILE [--kv-strategy NAME --budget 25%] [--kv-type TYPE] [flags]",
    .description =
        "Runs every item of the tasks with the full F16 cache and with the KV settings as configured (strategy, "
        "budget, positions, types), on the same tokens, and tells how far they are apart. With nothing configured it "
        "measures the model itself.\n\n"
        "text: the file is cut into pieces; the second half of each is scored. Perplexity of both, their ratio, the "
        "Kullback-Leibler divergence over the whole vocabulary from the full cache's probabilities, how often the best "
        "token is the same, and how the probability of the token that follows changes. Errors are over pieces, since "
        "the tokens of one hang together.\n\n"
        "recall: JSON lines with \"prompt\" and \"answer\"; right if each token of the answer is the most probable one "
        "after those before it. passkey: a key hidden at some depth of a long filler text, looked for in what is "
        "generated greedily. Prompts are read in small pieces, so that a strategy has to choose what it keeps before "
        "it sees the question.\n\n"
        "Modes, as in recall:ask-later+at-once=FILE: ask-later (the strategy has chosen before it sees the question), "
        "at-once (what it chooses from is read in one pass, which --batch must hold), decode (texts: the scored half "
        "is "
        "fed token by token, as if it were generated).\n\n"
        "To run many strategies and budgets against each other, see colibri compare --strategies.",
    .examples =
        "colibri evaluate -m model.gguf --task text=book.txt --kv-type q8_0   # quantized keys and values\n"
        "colibri evaluate -m model.gguf --task passkey=passkey.json --kv-strategy h2o --budget 25%   # a strategy\n"
        "colibri evaluate -m model.gguf --task recall=recall.jsonl --items 40 --json   # the model itself, for scripts",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
