/* colibri run: one prompt, one answer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "constrain.h"
#include "model_run.h"

static const clb_flag flags[] = {
    {"file", 'f', "FILE", "read the prompt from FILE (- for standard input)", false},
    {"system", 0, "TEXT", "system message for the chat template", false},
    {"stop", 0, "TEXT", "end the text before TEXT", true},
    {"grammar", 0, "FILE", "only text that the GBNF grammar in FILE allows", false},
    {"json-schema", 0, "FILE", "only JSON that the schema in FILE allows", false},
    {"special", 0, NULL, "show control tokens", false},
    {"ignore-eos", 0, NULL, "go on after end-of-generation tokens", false},
    {"stats", 0, NULL, "print figures to standard error at the end", false},
    {"json", 'j', NULL, "print one JSON object instead of streaming text", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SAMPLING_SETTINGS, CLB_SET_run_predict,
                                            CLB_SET_run_raw, CLB_SET_model_chat_template, CLB_SET_COUNT};

/* The prompt: the argument, --file, or standard input when it is not a terminal. */
static int read_prompt(clb_args *args, clb_buf *prompt, clb_error *err)
{
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    const char *file = clb_args_value(args, "file");
    if (n && file)
        return clb_fail(err, COLIBRI_E_USAGE, "give the prompt as an argument or with --file, not both");
    if (n)
        return clb_buf_append(prompt, words[0], strlen(words[0]), err);
    if (!file && isatty(STDIN_FILENO))
        return clb_fail(err, COLIBRI_E_USAGE, "no prompt: give it as an argument, with --file, or on standard input");
    CLB_TRY(clb_read_input(file ? file : "-", prompt, err));
    if (prompt->n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "the prompt is empty");
    return COLIBRI_OK;
}

/* Into the session goes only what of the prompt must stay. */
static int tokenize_prompt(clb_args *args, const clb_engine *engine, clb_session *session, const clb_buf *prompt,
                           clb_tokens *ids, clb_error *err)
{
    const clb_chat_format *chat;
    CLB_TRY(clb_check_prompt_size(engine, prompt->n, err));
    CLB_TRY(clb_open_chat(args, engine, &chat, err));
    const char *system = clb_args_value(args, "system");
    if (!chat) {
        if (system)
            return clb_fail(err, COLIBRI_E_USAGE, "--system does not apply: %s",
                            clb_config_bool(clb_args_config(args), CLB_SET_run_raw) ? "--raw bypasses the chat template"
                                                                                    : "the model has no chat template");
        return clb_tokenize(engine->vocab, prompt->data, prompt->n, CLB_TOKENIZE_BOS | CLB_TOKENIZE_SPECIAL, ids, err);
    }
    clb_message messages[2];
    size_t n = 0;
    if (memchr(prompt->data, 0, prompt->n)) { /* a chat message is a string: what follows would be lost */
        clb_chat_free(chat);
        return clb_fail(err, COLIBRI_E_USAGE,
                        "the prompt contains a NUL byte: with a chat template it must be text (or use --raw)");
    }
    if (system)
        messages[n++] = (clb_message){"system", system};
    messages[n++] = (clb_message){"user", prompt->data};
    int rc = clb_chat_tokenize(chat, engine->vocab, messages, n, 1, ids, err);
    if (!rc && system)
        rc = clb_protect_system(engine, session, chat, system, ids, err);
    clb_chat_free(chat);
    return rc;
}

static int print_json(const clb_engine *engine, const clb_session *session, const clb_generation *g, uint64_t seed,
                      clb_error *err)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < g->tokens.n; i++)
        json_array_append_new(ids, json_integer((json_int_t)g->tokens.ids[i]));
    json_t *out = json_pack("{s:o, s:o, s:s, s:{s:i, s:i, s:i}, s:o}", "text", clb_json_bytes(g->text.data, g->text.n),
                            "tokens", ids, "finish_reason", clb_finish_name(g->finish), "usage", "prompt_tokens",
                            (int)g->n_prompt, "completion_tokens", (int)g->tokens.n, "cached_tokens", (int)g->n_reused,
                            "stats", clb_stats_json(engine, session, g, seed));
    return clb_json_print(out, err);
}

static int run(clb_args *args, clb_error *err)
{
    const clb_config *config = clb_args_config(args);
    const bool json = clb_args_has(args, "json");
    clb_engine *engine = NULL;
    clb_session *session = NULL;
    clb_buf prompt = {0};
    clb_tokens ids = {0};
    clb_generation g = {0};
    clb_constraint constraint = {0};
    clb_generate_options options = {
        .sampling = clb_engine_sampler_params(config),
        .max_tokens = (uint32_t)clb_config_u64(config, CLB_SET_run_predict),
        .ignore_eog = clb_args_has(args, "ignore-eos"),
        .special = clb_args_has(args, "special"),
        .on_text = json ? NULL : clb_print_text,
        .cancelled = clb_run_interrupted,
        .cancelled_ctx = args,
    };
    options.n_stops = clb_args_values(args, "stop", &options.stops);
    int rc = COLIBRI_OK;
    CLB_GO(clb_constraint_read(args, &constraint, err));
    CLB_GO(read_prompt(args, &prompt, err));
    CLB_GO(clb_open_engine(args, &engine, err));
    CLB_GO(clb_session_create(engine, &session, err));
    CLB_GO(tokenize_prompt(args, engine, session, &prompt, &ids, err));
    CLB_GO(clb_constraint_open(&constraint, engine->vocab, &options.matcher, err));
    rc = clb_session_generate(session, ids.ids, ids.n, &options, &g, err);
    if (!json && g.text.n && g.text.data[g.text.n - 1] != '\n')
        putchar('\n');
    if (rc)
        goto done;
    if (json)
        CLB_GO(print_json(engine, session, &g, options.sampling.seed, err));
    fflush(stdout);
    if (g.finish == CLB_FINISH_CONTEXT && !json)
        fprintf(stderr, "(the context of %u tokens is full: --ctx makes it larger, --context-shift drops the oldest)\n",
                engine->ctx);
    if (clb_args_has(args, "stats"))
        clb_print_stats(stderr, engine, session, &g, options.sampling.seed);
    if (g.finish == CLB_FINISH_CANCELLED)
        rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request after %zu tokens", g.tokens.n);
done:
    clb_generation_free(&g);
    clb_constraint_close(&constraint);
    clb_session_destroy(session);
    clb_engine_close(engine);
    clb_tokens_free(&ids);
    clb_buf_free(&prompt);
    return rc;
}

const struct clb_command clb_command_run = {
    .name = "run",
    .summary = "answer one prompt, or continue one text",
    .usage = "colibri run -m MODEL [flags] [PROMPT]",
    .description = "Writes the model's answer to PROMPT to standard output as it comes. The prompt goes through the "
                   "model's chat template; "
                   "with --raw, or if the model has none, the text is simply continued. Without PROMPT it is read from "
                   "--file or from "
                   "standard input.\n\n"
                   "The same model, prompt, seed and sampling settings give the same tokens on every machine, whatever "
                   "the threads, "
                   "kernels, memory budget or expert policy.",
    .examples = "colibri run -m model.gguf \"Why is the sky blue?\"   # chat template, sampled\n"
                "colibri run -m model.gguf --raw --temperature 0 -n 64 \"Once upon a time\"   # greedy continuation\n"
                "colibri run -m moe.gguf --max-memory 8G --stats -f question.txt   # within 8 GiB, with figures\n"
                "colibri run -m model.gguf --json-schema person.json \"Describe a person.\"   # JSON of that shape",
    .flags = flags,
    .settings = settings,
    .max_positional = 1,
    .run = run,
};
