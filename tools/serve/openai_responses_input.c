/* Items and tools of the Responses API in the shape of chat, which prompts are made of. */
#include <stdio.h>
#include <string.h>

#include "serve/chat_shape.h"
#include "serve/openai_responses.h"

/* Appends the text of a list of parts, one per line; `types` are those that hold text, and end with NULL. */
static int add_parts(const json_t *parts, const char *where, const char *const *types, clb_buf *text, clb_refusal *r)
{
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        char at[120];
        const char *type = clb_shape_text(part, "type");
        const json_t *s = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
        size_t k = 0;
        snprintf(at, sizeof at, "%s[%zu]", where, i);
        if (!json_is_object(part) || !*type)
            return clb_refuse(r, "invalid_type", at, "Invalid type for '%s': expected an object with a type.", at);
        while (types[k] && strcmp(types[k], type) != 0)
            k++;
        if (!types[k])
            return clb_refuse(r, "invalid_value", at,
                              "Invalid '%s': parts of type '%.40s' are not supported: this server reads text only.", at,
                              type);
        if (!json_is_string(s))
            return clb_refuse(r, "invalid_type", at, "Invalid '%s': a part of type '%.40s' has a string.", at, type);
        if ((i && clb_buf_append(text, "\n", 1, NULL)) ||
            clb_buf_append(text, json_string_value(s), json_string_length(s), NULL))
            return clb_refuse_nomem(r);
    }
    return COLIBRI_OK;
}

/* The text of a string or of parts, as a new JSON string. */
static int read_text(const json_t *content, const char *where, json_t **out, clb_refusal *r)
{
    static const char *const types[] = {"input_text", "output_text", "text", "refusal", NULL};
    clb_buf text = {0};
    *out = NULL;
    if (json_is_string(content)) {
        *out = json_copy((json_t *)content);
        return *out ? COLIBRI_OK : clb_refuse_nomem(r);
    }
    if (!json_is_array(content))
        return clb_refuse_type(r, where, "a string or an array of parts", content);
    int rc = add_parts(content, where, types, &text, r);
    if (!rc) {
        *out = json_stringn(text.n ? text.data : "", text.n);
        rc = *out ? COLIBRI_OK : clb_refuse_nomem(r);
    }
    clb_buf_free(&text);
    return rc;
}

/* A message at the end of the list, which owns it. Takes `content`, also if it fails. */
static json_t *add(json_t *list, const char *role, json_t *content)
{
    json_t *m = json_pack("{s:s, s:o*}", "role", role, "content", content);
    return m && json_array_append_new(list, m) == 0 ? m : NULL;
}

/* The assistant's message that an item belongs to: the last one, unless it has one of these already. */
static json_t *assistants(json_t *list, const char *not_after, const char *nor_after)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    if (json_array_size(list) && strcmp(clb_shape_text(last, "role"), "assistant") == 0 &&
        !json_object_get(last, not_after) && !(nor_after && json_object_get(last, nor_after)))
        return last;
    return add(list, "assistant", NULL);
}

static int read_message(json_t *list, const json_t *item, const char *where, clb_refusal *r)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    char at[96];
    const json_t *content = json_object_get(item, "content");
    json_t *text;
    size_t role = 0;
    snprintf(at, sizeof at, "%s.role", where);
    if (!json_is_string(json_object_get(item, "role")))
        return clb_refuse_missing(r, at);
    CLB_TRY(clb_field_choice(item, at, roles, &role, r));
    snprintf(at, sizeof at, "%s.content", where);
    if (!content || json_is_null(content))
        return clb_refuse_missing(r, at);
    CLB_TRY(read_text(content, at, &text, r));
    if (role != 1)
        return add(list, roles[role], text) ? COLIBRI_OK : clb_refuse_nomem(r);
    json_t *m = assistants(list, "content", "tool_calls"); /* thoughts came before it */
    if (!m) {
        json_decref(text);
        return clb_refuse_nomem(r);
    }
    return json_object_set_new(m, "content", text) == 0 ? COLIBRI_OK : clb_refuse_nomem(r);
}

static int read_call(json_t *list, const json_t *item, const char *where, clb_refusal *r)
{
    json_t *const m = assistants(list, "", NULL);
    const json_t *arguments = json_object_get(item, "arguments");
    if (!*clb_shape_text(item, "call_id") || !*clb_shape_text(item, "name") || !json_is_string(arguments))
        return clb_refuse(r, "missing_required_parameter", where,
                          "Invalid '%s': a function_call has the strings 'call_id', 'name' and 'arguments'.", where);
    return clb_shape_call(m, clb_shape_text(item, "call_id"), clb_shape_text(item, "name"),
                          json_incref((json_t *)arguments), r);
}

static int read_result(json_t *list, const json_t *item, const char *where, clb_refusal *r)
{
    char at[96];
    json_t *text;
    snprintf(at, sizeof at, "%s.call_id", where);
    if (!*clb_shape_text(item, "call_id"))
        return clb_refuse_missing(r, at);
    snprintf(at, sizeof at, "%s.output", where);
    CLB_TRY(read_text(json_object_get(item, "output"), at, &text, r));
    json_t *m = add(list, "tool", text);
    return m && json_object_set(m, "tool_call_id", json_object_get(item, "call_id")) == 0 ? COLIBRI_OK
                                                                                          : clb_refuse_nomem(r);
}

/* The thoughts before a message or a call: themselves, or what was made of them, behind those of the items before. */
static int read_reasoning(clb_buf *thoughts, const json_t *item, const char *where, clb_refusal *r)
{
    static const char *const content_types[] = {"reasoning_text", "text", NULL};
    static const char *const summary_types[] = {"summary_text", NULL};
    char at[96], name[96];
    json_t *content, *summary;
    const size_t before = thoughts->n;
    snprintf(name, sizeof name, "%s.content", where);
    CLB_TRY(clb_field_array(item, name, &content, r));
    snprintf(at, sizeof at, "%s.summary", where);
    CLB_TRY(clb_field_array(item, at, &summary, r));
    if (before && clb_buf_append(thoughts, "\n", 1, NULL))
        return clb_refuse_nomem(r);
    const size_t begin = thoughts->n;
    CLB_TRY(json_array_size(content) ? add_parts(content, name, content_types, thoughts, r)
                                     : add_parts(summary, at, summary_types, thoughts, r));
    if (thoughts->n == begin) /* it says nothing */
        thoughts->n = before;
    return COLIBRI_OK;
}

/* Gives the thoughts of a row of items to the message that they belong to, all at once: there may be as many as a body
 * has room for. */
static int put_thoughts(json_t *list, clb_buf *thoughts, clb_refusal *r)
{
    if (!thoughts->n)
        return COLIBRI_OK;
    json_t *const m = assistants(list, "content", "tool_calls");
    const bool put = m && json_object_set_new(m, "reasoning_content", json_stringn(thoughts->data, thoughts->n)) == 0;
    thoughts->n = 0;
    return put ? COLIBRI_OK : clb_refuse_nomem(r);
}

static int read_item(json_t *list, clb_buf *thoughts, const json_t *item, const char *where, clb_refusal *r)
{
    char at[96];
    if (!json_is_object(item))
        return clb_refuse_type(r, where, "an object", item);
    if (clb_shape_is(item, "reasoning"))
        return read_reasoning(thoughts, item, where, r);
    CLB_TRY(put_thoughts(list, thoughts, r));
    if (clb_shape_is(item, "message") || (!json_object_get(item, "type") && json_object_get(item, "role")))
        return read_message(list, item, where, r);
    if (clb_shape_is(item, "function_call"))
        return read_call(list, item, where, r);
    if (clb_shape_is(item, "function_call_output"))
        return read_result(list, item, where, r);
    snprintf(at, sizeof at, "%s.type", where);
    if (!*clb_shape_text(item, "type"))
        return clb_refuse_missing(r, at);
    if (clb_shape_is(item, "item_reference"))
        return clb_refuse(r, "unsupported_value", at,
                          "Items of type 'item_reference' are not supported: this server stores nothing. Send the item "
                          "itself (clients: store=false).");
    return clb_refuse(r, "unsupported_value", at, "Items of type '%.40s' are not supported by this server.",
                      clb_shape_text(item, "type"));
}

static int read_input(const json_t *body, json_t *list, clb_refusal *r)
{
    const json_t *input = json_object_get(body, "input"), *item;
    const char *instructions = NULL;
    size_t i;
    CLB_TRY(clb_field_string(body, "instructions", &instructions, r));
    if (instructions && *instructions && !add(list, "system", json_copy(json_object_get(body, "instructions"))))
        return clb_refuse_nomem(r);
    if (!input || json_is_null(input))
        return clb_refuse_missing(r, "input");
    if (json_is_string(input))
        return add(list, "user", json_copy((json_t *)input)) ? COLIBRI_OK : clb_refuse_nomem(r);
    if (!json_is_array(input))
        return clb_refuse_type(r, "input", "a string or an array of items", input);
    if (!json_array_size(input))
        return clb_refuse(r, "empty_array", "input", "Invalid 'input': empty array. Expected at least one item.");
    clb_buf thoughts = {0};
    int rc = COLIBRI_OK;
    json_array_foreach(input, i, item)
    {
        char where[32];
        snprintf(where, sizeof where, "input[%zu]", i);
        CLB_GO(read_item(list, &thoughts, item, where, r));
    }
    rc = put_thoughts(list, &thoughts, r);
done:
    clb_buf_free(&thoughts);
    return rc;
}

int clb_responses_messages(const json_t *body, json_t **out, clb_refusal *r)
{
    return clb_shape_messages(body, read_input, out, r);
}

static int read_tool(const json_t *tool, size_t i, json_t *list, clb_refusal *r)
{
    static const clb_field fields[] = {{"type", CLB_FIELD_USED, NULL},
                                       {"name", CLB_FIELD_USED, NULL},
                                       {"description", CLB_FIELD_USED, NULL},
                                       {"parameters", CLB_FIELD_USED, NULL},
                                       {"strict", CLB_FIELD_USED, NULL},
                                       {"defer_loading", CLB_FIELD_IGNORED, NULL},
                                       {"allowed_callers", CLB_FIELD_IGNORED, NULL},
                                       {"output_schema", CLB_FIELD_IGNORED, NULL},
                                       {NULL, CLB_FIELD_USED, NULL}};
    static const char *const copied[] = {"name", "description", "parameters", "strict"};
    char where[48], at[64];
    snprintf(where, sizeof where, "tools[%zu]", i);
    snprintf(at, sizeof at, "tools[%zu].type", i);
    if (!json_is_object(tool))
        return clb_refuse_type(r, where, "an object", tool);
    if (!*clb_shape_text(tool, "type"))
        return clb_refuse_missing(r, at);
    if (!clb_shape_is(tool, "function"))
        return clb_refuse(r, "unsupported_value", at,
                          "Tools of type '%.60s' are not supported: this server runs none itself, only tools of type "
                          "'function' can be offered. Leave it out, or disable it in the client.",
                          clb_shape_text(tool, "type"));
    CLB_TRY(clb_fields_check(tool, where, (const clb_field *const[]){fields}, 1, r));
    json_t *f = json_object(), *all = json_pack("{s:s, s:o?}", "type", "function", "function", f);
    int failed = !f || !all || json_array_append_new(list, all);
    for (size_t k = 0; k < sizeof copied / sizeof *copied && !failed; k++) {
        json_t *v = json_object_get(tool, copied[k]);
        failed |= v && !json_is_null(v) && json_object_set(f, copied[k], v);
    }
    return failed ? clb_refuse_nomem(r) : COLIBRI_OK;
}

/* Where clb_tools_check found something is the name of chat's field: "tools[2].function.name". */
static int refuse_tools(clb_refusal *r, const char *param, const char *message)
{
    char at[64];
    if (!param[0])
        param = "tools";
    const char *inner = strstr(param, ".function");
    snprintf(at, sizeof at, "%.*s%s", inner ? (int)(inner - param) : (int)strlen(param), param,
             inner ? inner + strlen(".function") : "");
    return clb_refuse(r, "invalid_value", at, "%s", message);
}

int clb_responses_tools(const json_t *body, json_t **out, clb_refusal *r)
{
    return clb_shape_tools(body, read_tool, refuse_tools, out, r);
}
