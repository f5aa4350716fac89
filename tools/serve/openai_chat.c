/* POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/openai_chat.h"

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
    bool reasoning;
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

static int no_such_tool(clb_refusal *r, const char *name)
{
    return clb_refuse(r, "invalid_value", "tool_choice", "Invalid 'tool_choice': there is no tool '%.64s' in 'tools'.",
                      name);
}

static const clb_field choice_fields[] = {
    {"type", CLB_FIELD_USED, NULL},
    {"function", CLB_FIELD_USED, NULL},
    {"allowed_tools", CLB_FIELD_USED, NULL},
    {NULL, CLB_FIELD_USED, NULL},
};

static int read_named_tool(const json_t *choice, struct chat_request *q, clb_refusal *r)
{
    json_t *function;
    CLB_TRY(clb_field_object(choice, "tool_choice.function", &function, r));
    if (function)
        CLB_TRY(clb_field_string(function, "tool_choice.function.name", &q->prompt.tool_name, r));
    if (!q->prompt.tool_name)
        return clb_refuse(r, "missing_required_parameter", "tool_choice.function.name",
                          "Missing required parameter: 'tool_choice.function.name'.");
    q->prompt.choice = CLB_TOOLS_NAMED;
    return clb_tools_find(q->prompt.tools, q->prompt.tool_name) ? COLIBRI_OK : no_such_tool(r, q->prompt.tool_name);
}

/* The model sees those of the tools that are listed. */
static int read_allowed_tools(const json_t *choice, struct chat_request *q, clb_refusal *r)
{
    static const char *const modes[] = {"auto", "required", NULL};
    json_t *allowed, *list, *item;
    size_t mode = 2, i;
    CLB_TRY(clb_field_object(choice, "tool_choice.allowed_tools", &allowed, r));
    if (!allowed)
        return clb_refuse(r, "missing_required_parameter", "tool_choice.allowed_tools",
                          "Missing required parameter: 'tool_choice.allowed_tools'.");
    CLB_TRY(clb_field_choice(allowed, "tool_choice.allowed_tools.mode", modes, &mode, r));
    CLB_TRY(clb_field_array(allowed, "tool_choice.allowed_tools.tools", &list, r));
    if (mode == 2 || !json_array_size(list))
        return clb_refuse(r, "missing_required_parameter", "tool_choice.allowed_tools",
                          "'tool_choice.allowed_tools' needs a 'mode' and 'tools'.");
    q->allowed = json_array();
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(json_object_get(json_object_get(item, "function"), "name"));
        json_t *const tool = name ? clb_tools_find(q->prompt.tools, name) : NULL;
        if (!tool)
            return no_such_tool(r, name ? name : "");
        if (!q->allowed || json_array_append(q->allowed, tool))
            return clb_refuse_nomem(r);
    }
    q->prompt.tools = q->allowed;
    q->prompt.choice = mode ? CLB_TOOLS_REQUIRED : CLB_TOOLS_AUTO;
    return COLIBRI_OK;
}

static int read_tool_choice(const json_t *body, struct chat_request *q, clb_refusal *r)
{
    static const char *const types[] = {"function", "allowed_tools", NULL};
    static const char *const names[] = {"auto", "none", "required", NULL};
    static const enum clb_tool_choice choices[] = {CLB_TOOLS_AUTO, CLB_TOOLS_NONE, CLB_TOOLS_REQUIRED};
    const json_t *choice = json_object_get(body, "tool_choice");
    size_t which = 0, type = 2;
    if (!choice || json_is_null(choice))
        return COLIBRI_OK;
    if (!json_is_string(choice) && !json_is_object(choice))
        return clb_refuse_type(r, "tool_choice", "a string or an object", choice);
    if (json_is_string(choice))
        CLB_TRY(clb_field_choice(body, "tool_choice", names, &which, r));
    if (!q->prompt.tools && (json_is_object(choice) || choices[which] == CLB_TOOLS_REQUIRED))
        return clb_refuse(r, "invalid_value", "tool_choice",
                          "'tool_choice' is only allowed when 'tools' are specified.");
    if (json_is_string(choice)) {
        q->prompt.choice = choices[which];
        return COLIBRI_OK;
    }
    CLB_TRY(clb_fields_check(choice, "tool_choice", (const clb_field *const[]){choice_fields}, 1, r));
    CLB_TRY(clb_field_choice(choice, "tool_choice.type", types, &type, r));
    if (type == 2)
        return clb_refuse(r, "missing_required_parameter", "tool_choice.type",
                          "Missing required parameter: 'tool_choice.type'.");
    return type ? read_allowed_tools(choice, q, r) : read_named_tool(choice, q, r);
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
    return read_tool_choice(body, q, r);
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
    q->reasoning = format != 3;
    q->prompt.documents = documents;
    q->prompt.kwargs = json_object_size(q->kwargs) ? q->kwargs : NULL;
    return COLIBRI_OK;
}

static int read_messages(const json_t *body, clb_prompt_request *p, clb_refusal *r)
{
    json_t *messages;
    CLB_TRY(clb_field_array(body, "messages", &messages, r));
    if (!messages)
        return clb_refuse(r, "missing_required_parameter", "messages", "Missing required parameter: 'messages'.");
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
    q->prompt.reasoning = q->reasoning;
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
    if (!rc && !app->chat)
        rc = clb_refuse(
            &r, "unsupported_model", "model",
            "The model has no chat template: use /v1/completions, or start the server with --chat-template.");
    if (!rc)
        rc = make_prompt(app, &q, &o, &prompt, &r);
    if (!rc)
        rc = clb_chat_own_create(&prompt, q.prompt.choice == CLB_TOOLS_NONE ? NULL : q.prompt.tools, q.reasoning, &own,
                                 &r);
    if (rc) {
        clb_text_options_free(&o);
        clb_openai_refuse(x, &r);
    } else {
        clb_completion_start(app, x, &clb_openai_chat_shape, &o, &prompt.tokens, 1, own);
    }
    clb_prompt_free(&prompt);
    clb_buf_free(&q.gbnf);
    json_decref(q.kwargs);
    json_decref(q.allowed);
    json_decref(body);
}
