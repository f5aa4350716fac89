/* What the text must look like: response_format, llama.cpp's json_schema and grammar; and what the template is told. */
#include <string.h>

#include "serve/openai_prompt.h"
#include "serve/schema.h"

static const clb_field format_fields[] = {
    {"type", CLB_FIELD_USED, NULL},
    {"json_schema", CLB_FIELD_USED, NULL},
    {"schema", CLB_FIELD_USED, NULL}, /* llama.cpp */
    {NULL, CLB_FIELD_USED, NULL},
};
static const clb_field schema_fields[] = {
    {"name", CLB_FIELD_USED, NULL},      {"schema", CLB_FIELD_USED, NULL}, {"description", CLB_FIELD_IGNORED, NULL},
    {"strict", CLB_FIELD_IGNORED, NULL}, /* always is */
    {NULL, CLB_FIELD_USED, NULL},
};

int clb_openai_schema(const json_t *schema, const char *param, clb_buf *gbnf, clb_refusal *r)
{
    clb_error err = {0};
    const int rc = schema ? clb_schema_to_gbnf(schema, gbnf, &err) : clb_json_object_gbnf(gbnf, &err);
    if (rc == COLIBRI_E_NOMEM || rc == COLIBRI_E_INTERNAL)
        return clb_refuse_status(r, rc, err.msg);
    return rc ? clb_refuse(r, "invalid_value", param, "Invalid '%s': %s", param, err.msg) : COLIBRI_OK;
}

static int read_json_schema(const json_t *format, clb_buf *gbnf, clb_refusal *r)
{
    json_t *wrapper, *schema;
    const char *name = NULL;
    CLB_TRY(clb_field_object(format, "response_format.json_schema", &wrapper, r));
    if (!wrapper) { /* llama.cpp: the schema beside the type */
        schema = json_object_get(format, "schema");
        if (!schema || json_is_null(schema))
            return clb_refuse_missing(r, "response_format.json_schema");
        return clb_openai_schema(schema, "response_format.schema", gbnf, r);
    }
    CLB_TRY(clb_fields_check(wrapper, "response_format.json_schema", (const clb_field *const[]){schema_fields}, 1, r));
    CLB_TRY(clb_field_string(wrapper, "response_format.json_schema.name", &name, r));
    schema = json_object_get(wrapper, "schema");
    if (!schema || json_is_null(schema))
        return clb_refuse_missing(r, "response_format.json_schema.schema");
    return clb_openai_schema(schema, "response_format.json_schema.schema", gbnf, r);
}

static int read_response_format(const json_t *format, clb_buf *gbnf, clb_refusal *r)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    size_t type = 3;
    CLB_TRY(clb_fields_check(format, "response_format", (const clb_field *const[]){format_fields}, 1, r));
    CLB_TRY(clb_field_choice(format, "response_format.type", types, &type, r));
    if (type == 3)
        return clb_refuse_missing(r, "response_format.type");
    if (type == 2)
        return read_json_schema(format, gbnf, r);
    const json_t *schema = json_object_get(format, "schema");
    if (json_is_null(schema))
        schema = NULL;
    if ((type == 0 && schema) || json_is_object(json_object_get(format, "json_schema")))
        return clb_refuse(r, "invalid_value", "response_format",
                          "Invalid 'response_format': a schema needs the type 'json_schema'.");
    return type == 1 ? clb_openai_schema(schema, "response_format.schema", gbnf, r) : COLIBRI_OK;
}

int clb_openai_format_read(const json_t *body, clb_buf *gbnf, const char **param, clb_refusal *r)
{
    json_t *format;
    const char *grammar = NULL;
    int given = 0;
    *param = "response_format";
    CLB_TRY(clb_field_object(body, "response_format", &format, r));
    if (format) {
        CLB_TRY(read_response_format(format, gbnf, r));
        given += gbnf->n > 0;
    }
    const json_t *schema = json_object_get(body, "json_schema");
    if (schema && !json_is_null(schema)) {
        if (given++)
            return clb_refuse(r, "invalid_value", "json_schema",
                              "'json_schema' and 'response_format' cannot be combined.");
        *param = "json_schema";
        CLB_TRY(clb_openai_schema(schema, "json_schema", gbnf, r));
    }
    CLB_TRY(clb_field_string(body, "grammar", &grammar, r));
    if (!grammar || !*grammar)
        return COLIBRI_OK;
    if (given++)
        return clb_refuse(r, "invalid_value", "grammar",
                          "'grammar' cannot be combined with 'response_format' or 'json_schema'.");
    *param = "grammar";
    return clb_buf_append(gbnf, grammar, strlen(grammar), NULL) ? clb_refuse_nomem(r) : COLIBRI_OK;
}

int clb_openai_grammar(clb_text_options *o, const clb_buf *gbnf, const char *param, clb_refusal *r)
{
    clb_error err = {0};
    const int rc = clb_grammar_parse((clb_str){gbnf->data, gbnf->n}, &o->grammar, &err);
    if (rc == COLIBRI_E_NOMEM || rc == COLIBRI_E_INTERNAL)
        return clb_refuse_status(r, rc, err.msg);
    return rc ? clb_refuse(r, "invalid_value", param, "Invalid '%s': %s", param, err.msg) : COLIBRI_OK;
}

int clb_openai_template_values(const json_t *body, const json_t *from, const char *name, json_t **kwargs,
                               clb_refusal *r)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max", NULL};
    json_t *given;
    size_t effort = 7;
    bool thinking = true;
    CLB_TRY(clb_field_object(body, "chat_template_kwargs", &given, r));
    CLB_TRY(clb_field_choice(from, name, efforts, &effort, r));
    CLB_TRY(clb_field_bool(body, "enable_thinking", &thinking, r));
    *kwargs = given ? json_copy(given) : json_object();
    if (!*kwargs)
        return clb_refuse_nomem(r);
    int failed = 0;
    if (effort < 7 && !json_object_get(*kwargs, "reasoning_effort"))
        failed |= json_object_set_new(*kwargs, "reasoning_effort", json_string(efforts[effort]));
    if ((effort == 0 || json_is_boolean(json_object_get(body, "enable_thinking"))) &&
        !json_object_get(*kwargs, "enable_thinking"))
        failed |= json_object_set_new(*kwargs, "enable_thinking", json_boolean(effort != 0 && thinking));
    return failed ? clb_refuse_nomem(r) : COLIBRI_OK;
}

int clb_openai_needs_chat(const clb_app *app, clb_refusal *r)
{
    if (app->chat)
        return COLIBRI_OK;
    return clb_refuse(r, "unsupported_model", "model",
                      "The model has no chat template: use /v1/completions, or start the server with "
                      "--chat-template.");
}
