/* POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai_chat.h"
#include "serve/openai_prompt.h"

static const clb_field fields[] = {
    {"messages", CLB_FIELD_USED, NULL},
    {"max_completion_tokens", CLB_FIELD_USED, NULL},
    {"logprobs", CLB_FIELD_USED, NULL},
    {"top_logprobs", CLB_FIELD_USED, NULL},
    {"tools", CLB_FIELD_USED, NULL},
    {"tool_choice", CLB_FIELD_USED, NULL},
    {"parallel_tool_calls", CLB_FIELD_USED, NULL},
    {"reasoning_effort", CLB_FIELD_USED, NULL},
    /* of llama.cpp, vLLM and others */
    {"reasoning_format", CLB_FIELD_USED, NULL},
    {"chat_template_kwargs", CLB_FIELD_USED, NULL},
    {"enable_thinking", CLB_FIELD_USED, NULL},
    {"documents", CLB_FIELD_USED, NULL},
    {"prediction", CLB_FIELD_IGNORED, NULL},
    {"modalities", CLB_FIELD_NEUTRAL, "[\"text\"]"},
    {"verbosity", CLB_FIELD_NEUTRAL, "\"medium\""},
    {"add_generation_prompt", CLB_FIELD_NEUTRAL, "true"},
    {"echo", CLB_FIELD_NEUTRAL, "false"},
    {"skip_special_tokens", CLB_FIELD_NEUTRAL, "true"},
    {"moderation", CLB_FIELD_REFUSED, "this server does not moderate"},
    {"audio", CLB_FIELD_REFUSED, "this server speaks text"},
    {"web_search_options", CLB_FIELD_REFUSED, "this server does not search the web"},
    {"functions", CLB_FIELD_REFUSED, "deprecated, use 'tools'"},
    {"function_call", CLB_FIELD_REFUSED, "deprecated, use 'tool_choice'"},
    {NULL, CLB_FIELD_USED, NULL},
};

/* What a request says about tools and thoughts. */
struct chat_request {
    clb_prompt_request prompt;
    json_t *kwargs, *allowed; /* made here */
    clb_buf gbnf;
    const char *gbnf_param;
};

static int read_logprobs(clb_text_options *o, const json_t *body, clb_refusal *r)
{
    bool wanted = false;
    int64_t top = -1;
    CLB_TRY(clb_field_bool(body, "logprobs", &wanted, r));
    CLB_TRY(clb_field_integer(body, "top_logprobs", 0, CLB_TOP_LOGPROBS_MOST, &top, r));
    if (top >= 0 && !wanted)
        return clb_refuse(r, "invalid_value", "top_logprobs",
                          "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
    o->n_logprobs = wanted ? (top > 0 ? (int)top : 0) : -1;
    return COLIBRI_OK;
}

static int read_tools(const json_t *body, struct chat_request *q, clb_refusal *r)
{
    json_t *tools;
    bool parallel = true;
    CLB_TRY(clb_field_array(body, "tools", &tools, r));
    CLB_TRY(clb_field_bool(body, "parallel_tool_calls", &parallel, r));
    q->prompt.one_call = !parallel;
    if (json_array_size(tools)) {
        clb_error err = {0};
        char param[64] = "tools";
        const int rc = clb_tools_check(tools, param, &err);
        if (rc)
            return clb_refuse(r, "invalid_value", param[0] ? param : "tools", "%s", err.msg);
        q->prompt.tools = tools;
    }
    return clb_openai_chat_tool_choice(body, &q->prompt, &q->allowed, r);
}

/* Variables of the template, and what is shown of the thoughts. */
static int read_template_values(const json_t *body, struct chat_request *q, clb_refusal *r)
{
    static const char *const formats[] = {"auto", "deepseek", "deepseek-legacy", "none", NULL};
    json_t *documents;
    size_t format = 0;
    CLB_TRY(clb_field_array(body, "documents", &documents, r));
    CLB_TRY(clb_openai_template_values(body, body, "reasoning_effort", &q->kwargs, r));
    CLB_TRY(clb_field_choice(body, "reasoning_format", formats, &format, r));
    q->prompt.reasoning = format != 3;
    q->prompt.documents = documents;
    q->prompt.kwargs = json_object_size(q->kwargs) ? q->kwargs : NULL;
    return COLIBRI_OK;
}

static int read_messages(const json_t *body, clb_prompt_request *p, clb_refusal *r)
{
    json_t *messages;
    CLB_TRY(clb_field_array(body, "messages", &messages, r));
    if (!messages)
        return clb_refuse_missing(r, "messages");
    if (!json_array_size(messages))
        return clb_refuse(r, "empty_array", "messages",
                          "Invalid 'messages': empty array. Expected at least one message.");
    p->messages = messages;
    return COLIBRI_OK;
}

/* The prompt and how to go on from it. */
static int make_prompt(clb_app *app, struct chat_request *q, clb_text_options *o, clb_prompt *prompt, clb_refusal *r)
{
    clb_error err = {0};
    char param[64] = "";
    q->prompt.constrained = q->gbnf.n > 0;
    q->prompt.tree = app->tree;
    if (q->gbnf.n && q->prompt.tools && q->prompt.choice != CLB_TOOLS_NONE) { /* it becomes a part of another one */
        CLB_TRY(clb_openai_grammar(o, &q->gbnf, q->gbnf_param, r));
        clb_grammar_release(o->grammar);
        o->grammar = NULL;
        q->prompt.answer = q->gbnf.data;
    }
    const int rc = clb_prompt_make(app->chat, app->engine->vocab, &q->prompt, prompt, param, &err);
    if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT)
        return clb_refuse(r, "invalid_value", param[0] ? param : "messages", "%s", err.msg);
    if (rc)
        return clb_refuse_status(r, rc, err.msg);
    o->n_protected = prompt->n_protected;
    o->special = prompt->special;
    if (prompt->gbnf) {
        q->gbnf_param = "tools";
        q->gbnf.n = 0; /* an answer's is in it; where calls must be, there is none */
        if (clb_buf_append(&q->gbnf, prompt->gbnf, strlen(prompt->gbnf), NULL))
            return clb_refuse_nomem(r);
    }
    return q->gbnf.n ? clb_openai_grammar(o, &q->gbnf, q->gbnf_param, r) : COLIBRI_OK;
}

static int read_body(clb_app *app, const json_t *body, clb_text_options *o, struct chat_request *q, clb_refusal *r)
{
    static const char *const limits[] = {"max_completion_tokens", "max_tokens", "n_predict", NULL};
    CLB_TRY(clb_fields_check(body, "", (const clb_field *const[]){fields, clb_text_fields}, 2, r));
    CLB_TRY(read_messages(body, &q->prompt, r));
    CLB_TRY(clb_text_options_read(o, app, body, 2, r));
    CLB_TRY(clb_text_stops_read(o, body, "stop", r));
    CLB_TRY(clb_text_limit_read(o, body, limits, 1, r));
    CLB_TRY(read_logprobs(o, body, r));
    CLB_TRY(read_tools(body, q, r));
    CLB_TRY(read_template_values(body, q, r));
    return clb_openai_format_read(body, &q->gbnf, &q->gbnf_param, r);
}

void clb_serve_chat_completions(void *ctx, clb_exchange *x)
{
    clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_text_options o;
    clb_prompt prompt = {0};
    struct chat_request q = {.prompt = {.choice = CLB_TOOLS_AUTO}};
    clb_chat_own *own = NULL;
    clb_text_options_init(&o, app);
    int rc = read_body(app, body, &o, &q, &r);
    if (!rc)
        rc = clb_openai_needs_chat(app, &r);
    if (!rc)
        rc = make_prompt(app, &q, &o, &prompt, &r);
    if (!rc)
        rc = clb_chat_own_create(&prompt, &q.prompt, &own, &r);
    clb_completion_start(app, x, &clb_openai_chat_shape, rc ? &r : NULL, &o, &prompt.tokens, 1, own);
    clb_prompt_free(&prompt);
    clb_buf_free(&q.gbnf);
    json_decref(q.kwargs);
    json_decref(q.allowed);
    json_decref(body);
}
