/* POST /v1/messages and /v1/messages/count_tokens: the request. */
#include "serve/anthropic.h"

#include <string.h>

#include "serve/schema.h"

static const clb_field fields[] = {
    {"model", CLB_FIELD_USED, NULL},
    {"messages", CLB_FIELD_USED, NULL},
    {"system", CLB_FIELD_USED, NULL},
    {"max_tokens", CLB_FIELD_USED, NULL},
    {"stop_sequences", CLB_FIELD_USED, NULL},
    {"stream", CLB_FIELD_USED, NULL},
    {"temperature", CLB_FIELD_USED, NULL},
    {"top_p", CLB_FIELD_USED, NULL},
    {"top_k", CLB_FIELD_USED, NULL},
    {"tools", CLB_FIELD_USED, NULL},
    {"tool_choice", CLB_FIELD_USED, NULL},
    {"thinking", CLB_FIELD_USED, NULL},
    {"output_config", CLB_FIELD_USED, NULL},
    {"output_format", CLB_FIELD_USED, NULL},
    /* beyond Anthropic's */
    {"seed", CLB_FIELD_USED, NULL},
    {"min_p", CLB_FIELD_USED, NULL},
    {"repeat_penalty", CLB_FIELD_USED, NULL},
    {"lora", CLB_FIELD_USED, NULL},
    {"chat_template_kwargs", CLB_FIELD_USED, NULL},
    /* no influence on the text */
    {"metadata", CLB_FIELD_IGNORED, NULL},
    {"service_tier", CLB_FIELD_IGNORED, NULL},
    {"cache_control", CLB_FIELD_IGNORED, NULL},
    {"inference_geo", CLB_FIELD_IGNORED, NULL},
    {"speed", CLB_FIELD_IGNORED, NULL},
    {"diagnostics", CLB_FIELD_IGNORED, NULL},
    {"user_profile_id", CLB_FIELD_IGNORED, NULL},
    {"workspace_id", CLB_FIELD_IGNORED, NULL},
    {"betas", CLB_FIELD_IGNORED, NULL},
    {"context_management", CLB_FIELD_IGNORED, NULL},
    {"container", CLB_FIELD_NEUTRAL, "null"},
    {"mcp_servers", CLB_FIELD_NEUTRAL, "[]"},
    {NULL, CLB_FIELD_USED, NULL},
};

/* A request on its way to a prompt. */
typedef struct request {
    json_t *messages, *tools, *kwargs; /* owned */
    const char *tool_name;             /* borrowed from the body */
    clb_buf gbnf;                      /* of an output format */
    clb_prompt_request prompt;
} request;

static void free_request(request *q)
{
    json_decref(q->messages);
    json_decref(q->tools);
    json_decref(q->kwargs);
    clb_buf_free(&q->gbnf);
}

static int read_tool_choice(const json_t *body, request *q, clb_refusal *r)
{
    static const char *const types[] = {"auto", "any", "tool", "none", NULL};
    static const enum clb_tool_choice choices[] = {CLB_TOOLS_AUTO, CLB_TOOLS_REQUIRED, CLB_TOOLS_NAMED, CLB_TOOLS_NONE};
    json_t *choice;
    size_t type = 4;
    bool one = false;
    CLB_TRY(clb_field_object(body, "tool_choice", &choice, r));
    if (!choice)
        return COLIBRI_OK;
    CLB_TRY(clb_field_choice(choice, "tool_choice.type", types, &type, r));
    if (type == 4)
        return clb_refuse(r, NULL, "tool_choice.type", "Field required");
    CLB_TRY(clb_field_bool(choice, "tool_choice.disable_parallel_tool_use", &one, r));
    q->prompt.one_call = one;
    q->prompt.choice = choices[type];
    if (q->prompt.choice == CLB_TOOLS_NONE)
        return COLIBRI_OK;
    if (!q->tools)
        return clb_refuse(r, NULL, "tool_choice", "tool_choice may only be specified while providing tools");
    if (q->prompt.choice != CLB_TOOLS_NAMED)
        return COLIBRI_OK;
    CLB_TRY(clb_field_string(choice, "tool_choice.name", &q->prompt.tool_name, r));
    if (q->prompt.tool_name && clb_tools_find(q->tools, q->prompt.tool_name))
        return COLIBRI_OK;
    return clb_refuse(r, NULL, "tool_choice.name", "no tool of this name among 'tools'");
}

/* thinking: on, off, or as not given: off where the template lets one choose, as Anthropic has it. */
static int read_thinking(const json_t *body, request *q, clb_refusal *r)
{
    static const char *const types[] = {"enabled", "disabled", "adaptive", "between_tools", NULL};
    json_t *thinking, *kwargs;
    size_t type = 1;
    CLB_TRY(clb_field_object(body, "thinking", &thinking, r));
    CLB_TRY(clb_field_object(body, "chat_template_kwargs", &kwargs, r));
    if (thinking) {
        CLB_TRY(clb_field_choice(thinking, "thinking.type", types, &type, r));
    }
    q->kwargs = kwargs ? json_copy(kwargs) : json_object();
    if (!q->kwargs)
        return clb_refuse_nomem(r);
    int failed = 0;
    if (!json_object_get(q->kwargs, "enable_thinking"))
        failed |= json_object_set_new(q->kwargs, "enable_thinking", json_boolean(type != 1));
    if (!json_object_get(q->kwargs, "thinking")) /* DeepSeek's word for it */
        failed |= json_object_set_new(q->kwargs, "thinking", json_boolean(type != 1));
    q->prompt.kwargs = q->kwargs;
    return failed ? clb_refuse_nomem(r) : COLIBRI_OK;
}

/* output_config: {"effort", "format": {"type": "json_schema", "schema"}}; output_format is its older name. */
static int read_output(const json_t *body, request *q, clb_refusal *r)
{
    static const char *const efforts[] = {"low", "medium", "high", "max", "xhigh", NULL};
    static const char *const types[] = {"json_schema", NULL};
    json_t *config, *format, *older, *schema;
    size_t effort = 5, type = 1;
    CLB_TRY(clb_field_object(body, "output_config", &config, r));
    CLB_TRY(clb_field_object(body, "output_format", &older, r));
    CLB_TRY(clb_field_choice(config, "output_config.effort", efforts, &effort, r));
    CLB_TRY(clb_field_object(config, "output_config.format", &format, r));
    if (effort < 5 && !json_object_get(q->kwargs, "reasoning_effort") &&
        json_object_set_new(q->kwargs, "reasoning_effort", json_string(effort > 2 ? "high" : efforts[effort])))
        return clb_refuse_nomem(r);
    if (!format)
        format = older;
    if (!format)
        return COLIBRI_OK;
    CLB_TRY(clb_field_choice(format, "output_config.format.type", types, &type, r));
    CLB_TRY(clb_field_object(format, "output_config.format.schema", &schema, r));
    if (type == 1 || !schema)
        return clb_refuse(r, NULL, "output_config.format", "a format has the type json_schema and a schema");
    clb_error err = {0};
    const int rc = clb_schema_to_gbnf(schema, &q->gbnf, &err);
    return rc ? clb_refuse(r, NULL, "output_config.format.schema", "%s", err.msg) : COLIBRI_OK;
}

static int read_request(const json_t *body, request *q, clb_refusal *r)
{
    const char *model = NULL;
    CLB_TRY(clb_fields_check(body, "", (const clb_field *const[]){fields}, 1, r));
    CLB_TRY(clb_field_string(body, "model", &model, r));
    if (!model)
        return clb_refuse(r, NULL, "model", "Field required");
    CLB_TRY(clb_anthropic_messages(body, &q->messages, r));
    CLB_TRY(clb_anthropic_tools(body, &q->tools, r));
    CLB_TRY(read_tool_choice(body, q, r));
    CLB_TRY(read_thinking(body, q, r));
    CLB_TRY(read_output(body, q, r));
    q->prompt.messages = q->messages;
    q->prompt.tools = q->tools;
    q->prompt.reasoning = true;
    q->prompt.constrained = q->gbnf.n > 0;
    q->prompt.answer = q->gbnf.n ? q->gbnf.data : NULL;
    return COLIBRI_OK;
}

static int make_prompt(const clb_app *app, request *q, clb_prompt *prompt, clb_refusal *r)
{
    clb_error err = {0};
    if (!app->chat)
        return clb_refuse(r, NULL, "model", "the model has no chat template: start the server with --chat-template");
    q->prompt.tree = app->tree;
    const int rc = clb_prompt_make(app->chat, app->engine->vocab, &q->prompt, prompt, NULL, &err);
    if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT)
        return clb_refuse(r, NULL, "messages", "%s", err.msg);
    return rc ? clb_refuse_status(r, rc, err.msg) : COLIBRI_OK;
}

static int read_options(const clb_app *app, const json_t *body, const request *q, const clb_prompt *prompt,
                        clb_text_options *o, clb_refusal *r)
{
    static const char *const limits[] = {"max_tokens", NULL};
    const json_t *most = json_object_get(body, "max_tokens");
    const char *gbnf = prompt->gbnf ? prompt->gbnf : q->gbnf.n ? q->gbnf.data : NULL;
    clb_error err = {0};
    if (!most || json_is_null(most))
        return clb_refuse(r, NULL, "max_tokens", "Field required");
    CLB_TRY(clb_text_options_read(o, app, body, 1, r));
    CLB_TRY(clb_text_limit_read(o, body, limits, 1, r));
    CLB_TRY(clb_text_stops_read(o, body, "stop_sequences", r));
    o->n_protected = prompt->n_protected;
    o->special = prompt->special;
    if (!gbnf)
        return COLIBRI_OK;
    const int rc = clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &o->grammar, &err);
    return rc == COLIBRI_E_NOMEM ? clb_refuse_nomem(r) : rc ? clb_refuse(r, NULL, "tools", "%s", err.msg) : COLIBRI_OK;
}

void clb_serve_messages(void *ctx, clb_exchange *x)
{
    clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_text_options o;
    clb_prompt prompt = {0};
    request q = {.prompt = {.choice = CLB_TOOLS_AUTO}};
    clb_prompt_reply *own = NULL;
    clb_text_options_init(&o, app);
    int rc = read_request(body, &q, &r);
    if (!rc)
        rc = make_prompt(app, &q, &prompt, &r);
    if (!rc)
        rc = read_options(app, body, &q, &prompt, &o, &r);
    if (!rc)
        rc = clb_anthropic_own_create(&prompt, &q.prompt, &own, &r);
    clb_completion_start(app, x, &clb_anthropic_shape, rc ? &r : NULL, &o, &prompt.tokens, 1, own);
    clb_prompt_free(&prompt);
    free_request(&q);
    json_decref(body);
}

void clb_serve_count_tokens(void *ctx, clb_exchange *x)
{
    const clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_prompt prompt = {0};
    request q = {.prompt = {.choice = CLB_TOOLS_AUTO}};
    int rc = read_request(body, &q, &r);
    if (!rc)
        rc = make_prompt(app, &q, &prompt, &r);
    if (rc)
        clb_anthropic_refuse(x, &r);
    else
        clb_reply_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)prompt.tokens.n));
    clb_prompt_free(&prompt);
    free_request(&q);
    json_decref(body);
}
