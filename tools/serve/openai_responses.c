/* POST /v1/responses: the request. */
#include "serve/openai_responses.h"

#include <string.h>

#include "serve/openai_prompt.h"

static const clb_field fields[] = {
    {"model", CLB_FIELD_USED, NULL},
    {"input", CLB_FIELD_USED, NULL},
    {"instructions", CLB_FIELD_USED, NULL},
    {"max_output_tokens", CLB_FIELD_USED, NULL},
    {"temperature", CLB_FIELD_USED, NULL},
    {"top_p", CLB_FIELD_USED, NULL},
    {"top_logprobs", CLB_FIELD_USED, NULL},
    {"include", CLB_FIELD_USED, NULL},
    {"text", CLB_FIELD_USED, NULL},
    {"tools", CLB_FIELD_USED, NULL},
    {"tool_choice", CLB_FIELD_USED, NULL},
    {"parallel_tool_calls", CLB_FIELD_USED, NULL},
    {"reasoning", CLB_FIELD_USED, NULL},
    {"metadata", CLB_FIELD_USED, NULL},
    {"stream", CLB_FIELD_USED, NULL},
    {"stream_options", CLB_FIELD_USED, NULL},
    {"store", CLB_FIELD_USED, NULL},
    {"truncation", CLB_FIELD_USED, NULL},
    {"background", CLB_FIELD_USED, NULL},
    /* beyond OpenAI's */
    {"top_k", CLB_FIELD_USED, NULL},
    {"min_p", CLB_FIELD_USED, NULL},
    {"seed", CLB_FIELD_USED, NULL},
    {"stop", CLB_FIELD_USED, NULL},
    {"presence_penalty", CLB_FIELD_USED, NULL},
    {"frequency_penalty", CLB_FIELD_USED, NULL},
    {"repeat_penalty", CLB_FIELD_USED, NULL},
    {"repeat_last_n", CLB_FIELD_USED, NULL},
    {"logit_bias", CLB_FIELD_USED, NULL},
    {"ignore_eos", CLB_FIELD_USED, NULL},
    {"lora", CLB_FIELD_USED, NULL},
    {"chat_template_kwargs", CLB_FIELD_USED, NULL},
    {"enable_thinking", CLB_FIELD_USED, NULL},
    /* no influence on the text */
    {"user", CLB_FIELD_IGNORED, NULL},
    {"service_tier", CLB_FIELD_IGNORED, NULL},
    {"safety_identifier", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_key", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_options", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_retention", CLB_FIELD_IGNORED, NULL},
    {"client_metadata", CLB_FIELD_IGNORED, NULL},
    {"max_tool_calls", CLB_FIELD_IGNORED, NULL}, /* of tools that the server runs */
    {"context_management", CLB_FIELD_NEUTRAL, "[]"},
    {"moderation", CLB_FIELD_REFUSED, "this server does not moderate"},
    {"previous_response_id", CLB_FIELD_REFUSED,
     "this server stores no responses: send the whole conversation in 'input'"},
    {"conversation", CLB_FIELD_REFUSED, "this server stores no conversations: send the whole conversation in 'input'"},
    {"prompt", CLB_FIELD_REFUSED, "this server stores no prompts: use 'instructions' and 'input'"},
    {NULL, CLB_FIELD_USED, NULL},
};

/* A request on its way to a prompt. */
typedef struct request {
    json_t *messages, *tools, *allowed, *kwargs; /* owned */
    clb_buf gbnf;                                /* of text.format */
    bool shorten;                                /* truncation "auto" */
    clb_prompt_request prompt;
} request;

static void free_request(request *q)
{
    json_decref(q->messages);
    json_decref(q->tools);
    json_decref(q->allowed);
    json_decref(q->kwargs);
    clb_buf_free(&q->gbnf);
}

/* ---- what the text must look like ---- */

static int read_format(const json_t *format, request *q, clb_refusal *r)
{
    static const clb_field format_fields[] = {
        {"type", CLB_FIELD_USED, NULL},      {"name", CLB_FIELD_USED, NULL},
        {"schema", CLB_FIELD_USED, NULL},    {"description", CLB_FIELD_IGNORED, NULL},
        {"strict", CLB_FIELD_IGNORED, NULL}, /* always is */
        {NULL, CLB_FIELD_USED, NULL}};
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    const char *name = NULL;
    json_t *schema;
    size_t type = 3;
    CLB_TRY(clb_fields_check(format, "text.format", (const clb_field *const[]){format_fields}, 1, r));
    CLB_TRY(clb_field_choice(format, "text.format.type", types, &type, r));
    CLB_TRY(clb_field_string(format, "text.format.name", &name, r));
    if (type == 3)
        return clb_refuse_missing(r, "text.format.type");
    schema = json_object_get(format, "schema");
    if (json_is_null(schema))
        schema = NULL;
    if (type == 2 && !schema)
        return clb_refuse_missing(r, "text.format.schema");
    if (type < 2 && schema)
        return clb_refuse(r, "invalid_value", "text.format",
                          "Invalid 'text.format': a schema needs the type 'json_schema'.");
    return type ? clb_openai_schema(schema, "text.format.schema", &q->gbnf, r) : COLIBRI_OK;
}

static int read_text(const json_t *body, request *q, clb_refusal *r)
{
    static const clb_field text_fields[] = {
        {"format", CLB_FIELD_USED, NULL}, {"verbosity", CLB_FIELD_NEUTRAL, "\"medium\""}, {NULL, CLB_FIELD_USED, NULL}};
    json_t *text, *format;
    CLB_TRY(clb_field_object(body, "text", &text, r));
    if (!text)
        return COLIBRI_OK;
    CLB_TRY(clb_fields_check(text, "text", (const clb_field *const[]){text_fields}, 1, r));
    CLB_TRY(clb_field_object(text, "text.format", &format, r));
    return format ? read_format(format, q, r) : COLIBRI_OK;
}

/* ---- the rest ---- */

static int read_reasoning(const json_t *body, request *q, clb_refusal *r)
{
    static const clb_field reasoning_fields[] = {{"effort", CLB_FIELD_USED, NULL},
                                                 {"summary", CLB_FIELD_IGNORED, NULL},
                                                 {"generate_summary", CLB_FIELD_IGNORED, NULL},
                                                 {"context", CLB_FIELD_IGNORED, NULL},
                                                 {NULL, CLB_FIELD_USED, NULL}};
    json_t *reasoning;
    CLB_TRY(clb_field_object(body, "reasoning", &reasoning, r));
    CLB_TRY(clb_fields_check(reasoning, "reasoning", (const clb_field *const[]){reasoning_fields}, 1, r));
    CLB_TRY(clb_openai_template_values(body, reasoning, "reasoning.effort", &q->kwargs, r));
    q->prompt.kwargs = json_object_size(q->kwargs) ? q->kwargs : NULL;
    q->prompt.reasoning = true;
    return COLIBRI_OK;
}

/* Log probabilities; what else may be asked for belongs to tools and stores that are not here. */
static int read_include(const json_t *body, clb_text_options *o, clb_refusal *r)
{
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs",
                                        NULL};
    json_t *list, *item;
    int64_t top = 0;
    size_t i;
    CLB_TRY(clb_field_array(body, "include", &list, r));
    CLB_TRY(clb_field_integer(body, "top_logprobs", 0, CLB_TOP_LOGPROBS_MOST, &top, r));
    bool wanted = top > 0;
    json_array_foreach(list, i, item)
    {
        char where[32];
        size_t k = 0;
        snprintf(where, sizeof where, "include[%zu]", i);
        if (!json_is_string(item))
            return clb_refuse_type(r, where, "a string", item);
        while (known[k] && strcmp(known[k], json_string_value(item)) != 0)
            k++;
        if (!known[k])
            return clb_refuse(r, "invalid_value", where, "Invalid value: '%.80s'. 'include' has no such value.",
                              json_string_value(item));
        wanted = wanted || k == 0;
    }
    o->n_logprobs = wanted ? (int)top : -1;
    return COLIBRI_OK;
}

/* Fields about storing, which say what this server does anyway, or cannot be met; and about what is too long to keep. */
static int read_memory(const json_t *body, request *q, clb_refusal *r)
{
    static const char *const ways[] = {"auto", "disabled", NULL};
    bool store = false, background = false;
    size_t truncation = 1;
    json_t *metadata;
    CLB_TRY(clb_field_bool(body, "store", &store, r));
    CLB_TRY(clb_field_bool(body, "background", &background, r));
    CLB_TRY(clb_field_choice(body, "truncation", ways, &truncation, r));
    q->shorten = truncation == 0;
    CLB_TRY(clb_field_object(body, "metadata", &metadata, r));
    if (background)
        return clb_refuse(r, "unsupported_value", "background",
                          "Unsupported value: 'background' can only be false: this server stores no responses that "
                          "could be asked for later. Use 'stream'.");
    return COLIBRI_OK;
}

static int read_body(clb_app *app, const json_t *body, clb_text_options *o, request *q, clb_refusal *r)
{
    static const char *const limits[] = {"max_output_tokens", NULL};
    bool parallel = true;
    CLB_TRY(clb_fields_check(body, "", (const clb_field *const[]){fields}, 1, r));
    CLB_TRY(read_memory(body, q, r));
    CLB_TRY(clb_responses_messages(body, &q->messages, r));
    CLB_TRY(clb_text_options_read(o, app, body, 2, r));
    CLB_TRY(clb_text_stops_read(o, body, "stop", r));
    CLB_TRY(clb_text_limit_read(o, body, limits, 1, r));
    CLB_TRY(read_include(body, o, r));
    CLB_TRY(clb_responses_tools(body, &q->tools, r));
    CLB_TRY(clb_field_bool(body, "parallel_tool_calls", &parallel, r));
    q->prompt.messages = q->messages;
    q->prompt.tools = q->tools;
    q->prompt.one_call = !parallel;
    CLB_TRY(clb_openai_responses_tool_choice(body, &q->prompt, &q->allowed, r));
    CLB_TRY(read_reasoning(body, q, r));
    CLB_TRY(read_text(body, q, r));
    q->prompt.constrained = q->gbnf.n > 0;
    q->prompt.tree = app->tree;
    q->prompt.answer = q->gbnf.n ? q->gbnf.data : NULL;
    return COLIBRI_OK;
}

/* The prompt and how to go on from it. */
static int make_prompt(const clb_app *app, const request *q, clb_text_options *o, clb_prompt *prompt, clb_refusal *r)
{
    clb_error err = {0};
    char param[64] = "";
    CLB_TRY(clb_openai_needs_chat(app, r));
    const int rc = clb_prompt_make(app->chat, app->engine->vocab, &q->prompt, prompt, param, &err);
    if (rc == COLIBRI_E_USAGE || rc == COLIBRI_E_UNSUPPORTED ||
        rc == COLIBRI_E_LIMIT) /* messages are made of the input */
        return clb_refuse(r, "invalid_value", strcmp(param, "tools") == 0 ? param : "input", "%s", err.msg);
    if (rc)
        return clb_refuse_status(r, rc, err.msg);
    if (q->shorten)
        CLB_TRY(clb_responses_shorten(app, &q->prompt, o->max_tokens, prompt, r));
    o->n_protected = prompt->n_protected;
    o->special = prompt->special;
    if (prompt->gbnf) { /* of calls; an answer's is in it, or there must be calls */
        const clb_buf calls = {.data = prompt->gbnf, .n = strlen(prompt->gbnf)};
        return clb_openai_grammar(o, &calls, "tools", r);
    }
    return q->gbnf.n ? clb_openai_grammar(o, &q->gbnf, "text.format", r) : COLIBRI_OK;
}

void clb_serve_responses(void *ctx, clb_exchange *x)
{
    clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_text_options o;
    clb_prompt prompt = {0};
    request q = {.prompt = {.choice = CLB_TOOLS_AUTO}};
    clb_responses_own *own = NULL;
    clb_text_options_init(&o, app);
    int rc = read_body(app, body, &o, &q, &r);
    if (!rc)
        rc = make_prompt(app, &q, &o, &prompt, &r);
    if (!rc)
        rc = clb_responses_own_create(body, &o, &prompt, &q.prompt, &own, &r);
    clb_completion_start(app, x, &clb_responses_shape, rc ? &r : NULL, &o, &prompt.tokens, 1, own);
    clb_prompt_free(&prompt);
    free_request(&q);
    json_decref(body);
}
