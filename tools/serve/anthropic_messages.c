/* Messages and tools of Anthropic's API in OpenAI's shape, which prompts are made of. */
#include <stdio.h>
#include <string.h>

#include "serve/anthropic.h"
#include "serve/chat_shape.h"

/* Claude Code puts a line into its system prompt that differs from request to request: it would end every prefix that
 * could be reused, and says nothing to the model. */
static const char billing_line[] = "x-anthropic-billing-header:";

static int refuse_block(clb_refusal *r, const char *where, const json_t *block)
{
    const char *type = clb_shape_text(block, "type");
    if (!*type)
        return clb_refuse(r, NULL, where, "a block is an object with a type");
    return clb_refuse(r, NULL, where, "blocks of type '%.40s' are not supported here: this server reads text only",
                      type);
}

/* The text of a string or of text blocks, one per line, as a new JSON string. */
static int join_text(const json_t *content, const char *where, bool system, json_t **out, clb_refusal *r)
{
    clb_buf text = {0};
    clb_error err;
    const json_t *block;
    size_t i;
    int rc = COLIBRI_OK, failed = 0;
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_copy((json_t *)content);
        return *out ? COLIBRI_OK : clb_refuse_nomem(r);
    }
    if (!json_is_array(content))
        return clb_refuse_type(r, where, "a string or an array of blocks", content);
    json_array_foreach(content, i, block)
    {
        char at[160];
        const json_t *s = json_object_get(block, "text");
        snprintf(at, sizeof at, "%s.%zu", where, i);
        if (!clb_shape_is(block, "text") || !json_is_string(s)) {
            rc = clb_shape_is(block, "text") ? clb_refuse(r, NULL, at, "a text block has a string 'text'")
                                             : refuse_block(r, at, block);
            break;
        }
        if (system && strncmp(json_string_value(s), billing_line, sizeof billing_line - 1) == 0)
            continue;
        failed |= text.n && clb_buf_append(&text, "\n", 1, &err);
        failed |= clb_buf_append(&text, json_string_value(s), json_string_length(s), &err);
    }
    if (!rc && !failed)
        *out = json_stringn(text.n ? text.data : "", text.n);
    if (!rc && !*out)
        rc = failed ? clb_refuse_nomem(r) : clb_refuse(r, NULL, where, "the text is not UTF-8");
    clb_buf_free(&text);
    return rc;
}

/* A message of OpenAI's at the end of the list. Takes `content`. */
static json_t *add(json_t *list, const char *role, json_t *content)
{
    json_t *m = json_pack("{s:s, s:o?}", "role", role, "content", content);
    if (!m || json_array_append_new(list, m))
        return NULL;
    return m;
}

/* One more text of the message. There may be as many as a body has room for: they are joined at the end (join_texts).
 */
static int add_text(json_t *m, const char *key, const json_t *text, clb_refusal *r)
{
    json_t *texts = json_object_get(m, key);
    if (!json_is_array(texts)) {
        texts = json_array();
        if (json_object_set_new(m, key, texts))
            return clb_refuse_nomem(r);
    }
    return json_array_append(texts, (json_t *)text) == 0 ? COLIBRI_OK : clb_refuse_nomem(r);
}

/* The texts of each message as one, a line for each; the assistant's begins with the first one that says something. */
static int join_texts(const json_t *list, clb_refusal *r)
{
    static const char *const keys[] = {"content", "reasoning_content"};
    json_t *m;
    size_t i;
    json_array_foreach(list, i, m) for (size_t k = 0; k < 2; k++)
    {
        const json_t *const texts = json_object_get(m, keys[k]), *text;
        const bool users = strcmp(clb_shape_text(m, "role"), "user") == 0;
        clb_buf all = {0};
        size_t nth;
        bool failed = false;
        if (!json_is_array(texts))
            continue;
        json_array_foreach(texts, nth, text)
        {
            failed |= (users ? nth > 0 : all.n > 0) && clb_buf_append(&all, "\n", 1, NULL);
            failed |= clb_buf_append(&all, json_string_value(text), json_string_length(text), NULL) != COLIBRI_OK;
        }
        failed = failed || json_object_set_new(m, keys[k], json_stringn(all.n ? all.data : "", all.n));
        clb_buf_free(&all);
        if (failed)
            return clb_refuse_nomem(r);
    }
    return COLIBRI_OK;
}

/* The content of the last message, if it is the user's, goes on. */
static int add_user_text(json_t *list, const json_t *text, clb_refusal *r)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    if (!json_array_size(list) || strcmp(clb_shape_text(last, "role"), "user") != 0)
        last = add(list, "user", NULL);
    return last ? add_text(last, "content", text, r) : clb_refuse_nomem(r);
}

static int add_result(json_t *list, const json_t *block, const char *where, clb_refusal *r)
{
    const json_t *content = json_object_get(block, "content");
    const char *id = clb_shape_text(block, "tool_use_id");
    char at[160];
    json_t *text = NULL;
    if (!*id)
        return clb_refuse(r, NULL, where, "a tool_result block has a 'tool_use_id'");
    snprintf(at, sizeof at, "%s.content", where);
    if (!content || json_is_null(content))
        text = json_string("");
    else
        CLB_TRY(join_text(content, at, false, &text, r));
    if (json_is_true(json_object_get(block, "is_error")) && text &&
        strncasecmp(json_string_value(text), "error", 5) != 0) {
        json_t *marked = json_sprintf("Error: %s", json_string_value(text));
        json_decref(text);
        text = marked;
    }
    json_t *m = text ? add(list, "tool", text) : NULL;
    return m && json_object_set_new(m, "tool_call_id", json_string(id)) == 0 ? COLIBRI_OK : clb_refuse_nomem(r);
}

static int read_user(json_t *list, const json_t *content, const char *where, clb_refusal *r)
{
    const json_t *block;
    size_t i;
    if (json_is_string(content))
        return add_user_text(list, content, r);
    json_array_foreach(content, i, block) /* results come first, whatever their place: they answer the calls before */
    {
        char at[128];
        snprintf(at, sizeof at, "%s.%zu", where, i);
        if (clb_shape_is(block, "tool_result"))
            CLB_TRY(add_result(list, block, at, r));
        else if (!clb_shape_is(block, "text"))
            return refuse_block(r, at, block);
    }
    json_array_foreach(content, i, block)
    {
        char at[128];
        const json_t *text = json_object_get(block, "text");
        if (!clb_shape_is(block, "text"))
            continue;
        snprintf(at, sizeof at, "%s.%zu.text", where, i);
        if (!json_is_string(text))
            return clb_refuse_type(r, at, "a string", text);
        CLB_TRY(add_user_text(list, text, r));
    }
    return COLIBRI_OK;
}

static int add_call(json_t *m, const json_t *block, const char *where, clb_refusal *r)
{
    const json_t *input = json_object_get(block, "input");
    if (!*clb_shape_text(block, "name") || !*clb_shape_text(block, "id"))
        return clb_refuse(r, NULL, where, "a tool_use block has an 'id' and a 'name'");
    if (input && !json_is_object(input))
        return clb_refuse(r, NULL, where, "the input of a tool_use block is an object");
    return clb_shape_call(m, clb_shape_text(block, "id"), clb_shape_text(block, "name"),
                          input ? json_incref((json_t *)input) : json_object(), r);
}

static int read_assistant(json_t *list, const json_t *content, const char *where, clb_refusal *r)
{
    const json_t *block;
    size_t i;
    json_t *m = json_array_get(list, json_array_size(list) - 1);
    if (!json_array_size(list) ||
        strcmp(clb_shape_text(m, "role"), "assistant") != 0) /* messages of one role are one */
        m = add(list, "assistant", NULL);
    if (!m)
        return clb_refuse_nomem(r);
    if (json_is_string(content))
        return add_text(m, "content", content, r);
    json_array_foreach(content, i, block)
    {
        char at[128];
        snprintf(at, sizeof at, "%s.%zu", where, i);
        if (clb_shape_is(block, "text") && json_is_string(json_object_get(block, "text")))
            CLB_TRY(add_text(m, "content", json_object_get(block, "text"), r));
        else if (clb_shape_is(block, "thinking") && json_is_string(json_object_get(block, "thinking")))
            CLB_TRY(add_text(m, "reasoning_content", json_object_get(block, "thinking"), r));
        else if (clb_shape_is(block, "tool_use"))
            CLB_TRY(add_call(m, block, at, r));
        else if (!clb_shape_is(block, "redacted_thinking"))
            return refuse_block(r, at, block);
    }
    return COLIBRI_OK;
}

static int add_system(json_t *list, const json_t *content, const char *where, clb_refusal *r)
{
    json_t *text;
    CLB_TRY(join_text(content, where, true, &text, r));
    if (json_string_length(text) == 0) {
        json_decref(text);
        return COLIBRI_OK;
    }
    return add(list, "system", text) ? COLIBRI_OK : clb_refuse_nomem(r);
}

static int read_messages(const json_t *body, json_t *list, clb_refusal *r)
{
    static const clb_field fields[] = {
        {"role", CLB_FIELD_USED, NULL}, {"content", CLB_FIELD_USED, NULL}, {NULL, CLB_FIELD_USED, NULL}};
    const json_t *m;
    json_t *messages;
    size_t i;
    const json_t *system = json_object_get(body, "system");
    if (system && !json_is_null(system))
        CLB_TRY(add_system(list, system, "system", r));
    CLB_TRY(clb_field_array(body, "messages", &messages, r));
    if (!messages)
        return clb_refuse(r, NULL, "messages", "Field required");
    if (!json_array_size(messages))
        return clb_refuse(r, NULL, "messages", "at least one message is required");
    json_array_foreach(messages, i, m)
    {
        char where[64];
        const char *role = clb_shape_text(m, "role");
        const json_t *content = json_object_get(m, "content");
        snprintf(where, sizeof where, "messages.%zu", i);
        if (!json_is_object(m))
            return clb_refuse_type(r, where, "an object", m);
        CLB_TRY(clb_fields_check(m, where, (const clb_field *const[]){fields}, 1, r));
        snprintf(where, sizeof where, "messages.%zu.content", i);
        if (!json_is_string(content) && !json_is_array(content))
            return clb_refuse(r, NULL, where, "content is a string or an array of blocks");
        if (strcmp(role, "user") == 0)
            CLB_TRY(read_user(list, content, where, r));
        else if (strcmp(role, "assistant") == 0)
            CLB_TRY(read_assistant(list, content, where, r));
        else if (strcmp(role, "system") == 0)
            CLB_TRY(add_system(list, content, where, r));
        else
            return clb_refuse(r, NULL, where, "the role of a message is user, assistant or system");
    }
    return join_texts(list, r);
}

int clb_anthropic_messages(const json_t *body, json_t **out, clb_refusal *r)
{
    return clb_shape_messages(body, read_messages, out, r);
}

static int read_tool(const json_t *tool, size_t i, json_t *list, clb_refusal *r)
{
    static const clb_field fields[] = {{"name", CLB_FIELD_USED, NULL},
                                       {"description", CLB_FIELD_USED, NULL},
                                       {"input_schema", CLB_FIELD_USED, NULL},
                                       {"type", CLB_FIELD_USED, NULL},
                                       {"strict", CLB_FIELD_USED, NULL},
                                       {"cache_control", CLB_FIELD_IGNORED, NULL},
                                       {"defer_loading", CLB_FIELD_IGNORED, NULL},
                                       {"allowed_callers", CLB_FIELD_IGNORED, NULL},
                                       {"input_examples", CLB_FIELD_IGNORED, NULL},
                                       {"eager_input_streaming", CLB_FIELD_IGNORED, NULL},
                                       {NULL, CLB_FIELD_USED, NULL}};
    const json_t *type = json_object_get(tool, "type"), *schema = json_object_get(tool, "input_schema");
    char where[48];
    snprintf(where, sizeof where, "tools.%zu", i);
    if (!json_is_object(tool))
        return clb_refuse_type(r, where, "an object", tool);
    if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0)
        return clb_refuse(r, NULL, where, "tools of type '%.60s' are not supported: only those with an input_schema",
                          json_string_value(type));
    CLB_TRY(clb_fields_check(tool, where, (const clb_field *const[]){fields}, 1, r));
    if (!json_is_object(schema))
        return clb_refuse(r, NULL, where, "a tool has an 'input_schema': an object");
    json_t *f = json_pack("{s:O?, s:O}", "name", json_object_get(tool, "name"), "parameters", schema);
    json_t *all = f ? json_pack("{s:s, s:o}", "type", "function", "function", f) : NULL;
    if (!all || json_array_append_new(list, all))
        return clb_refuse_nomem(r);
    int failed = 0;
    if (json_object_get(tool, "description"))
        failed |= json_object_set(f, "description", json_object_get(tool, "description"));
    if (json_object_get(tool, "strict"))
        failed |= json_object_set(f, "strict", json_object_get(tool, "strict"));
    return failed ? clb_refuse_nomem(r) : COLIBRI_OK;
}

static int refuse_tools(clb_refusal *r, const char *param, const char *message)
{
    return clb_refuse(r, NULL, "tools", "%s%s%s", param, param[0] ? ": " : "", message);
}

int clb_anthropic_tools(const json_t *body, json_t **out, clb_refusal *r)
{
    return clb_shape_tools(body, read_tool, refuse_tools, out, r);
}
