/* Messages of a request -> messages of the template. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/json_values.h"
#include "serve/prompt_impl.h"

static int refuse(clb_adapter *a, size_t i, const char *field, const char *what, clb_error *err)
{
    if (a->param)
        snprintf(a->param, 64, "messages[%u]%.40s", (unsigned)i, field);
    return clb_fail(err, COLIBRI_E_USAGE, "%s", what);
}

static const char *role_of(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return !role ? "" : strcmp(role, "function") == 0 ? "tool" : role;
}

/* Appends the text of a message: a string, or parts of type text. */
static int add_content(clb_adapter *a, size_t i, const json_t *content, clb_marked *out, clb_error *err)
{
    const json_t *part;
    size_t k;
    char field[72];
    if (!content || json_is_null(content))
        return COLIBRI_OK;
    if (json_is_string(content))
        return clb_marked_add(out, json_string_value(content), json_string_length(content), true, err);
    if (!json_is_array(content))
        return refuse(a, i, ".content", "content must be a string, a list of parts or null", err);
    json_array_foreach(content, k, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
        snprintf(field, sizeof field, ".content[%zu]", k);
        if (!type)
            return refuse(a, i, field, "a part of a message is an object with a type", err);
        if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 &&
            strcmp(type, "refusal") != 0) {
            if (a->param)
                snprintf(a->param, 64, "messages[%u]%.32s.type", (unsigned)i, field);
            return clb_fail(err, COLIBRI_E_USAGE,
                            "parts of type '%.40s' are not supported: this server reads text only", type);
        }
        if (!json_is_string(text))
            return refuse(a, i, field, "a part of type text has a string 'text'", err);
        if (k)
            CLB_TRY(clb_marked_add(out, "\n", 1, true, err));
        CLB_TRY(clb_marked_add(out, json_string_value(text), json_string_length(text), true, err));
    }
    return COLIBRI_OK;
}

static void set(clb_adapter *a, clb_jvalue *dict, const char *key, const clb_jvalue *value)
{
    clb_jdata_set(a->d, dict, (clb_str){key, strlen(key)}, value);
}

static clb_jvalue *text_value(clb_adapter *a, const char *s)
{
    return clb_jdata_str(a->d, (clb_str){s, strlen(s)});
}

/* The content as the template wants it. */
static clb_jvalue *content_value(clb_adapter *a, const clb_marked *text)
{
    clb_jvalue *s = text->text.n ? clb_jdata_mixed(a->d, (clb_str){text->text.data, text->text.n},
                                                   (const uint8_t *)text->taint.data)
                                 : clb_jdata_str(a->d, (clb_str){"", 0});
    if (!a->caps->typed_content)
        return s;
    clb_jvalue *list = clb_jdata_list(a->d), *part = clb_jdata_dict(a->d);
    set(a, part, "type", text_value(a, "text"));
    set(a, part, "text", s);
    clb_jdata_push(a->d, list, part);
    return list;
}

static clb_jvalue *message(clb_adapter *a, const char *role, const clb_jvalue *content)
{
    clb_jvalue *m = clb_jdata_dict(a->d);
    set(a, m, "role", clb_jdata_clean(a->d, role));
    set(a, m, "content", content);
    return m;
}

/* Ids of nine letters and digits, where the template insists on them: others are replaced, the same one always alike.
 */
static clb_jvalue *id_value(clb_adapter *a, const char *id)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    char brief[10];
    if (!a->format->short_ids || (strlen(id) == 9 && strspn(id, letters) == 9))
        return text_value(a, id);
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = id; *c; c++)
        h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    for (size_t i = 0; i < 9; i++, h /= 62)
        brief[i] = letters[h % 62];
    brief[9] = '\0';
    return text_value(a, brief);
}

/* The arguments of an earlier call: OpenAI's clients send a string. Models write broken JSON at times, and their
 * clients send that back with what went wrong: it is shown as it is where the template takes text (*raw), and as one
 * string of an object elsewhere. */
static int arguments_of(clb_adapter *a, size_t i, size_t k, const json_t *f, json_t **out, const char **raw,
                        clb_error *err)
{
    json_t *const arguments = json_object_get(f, "arguments");
    char field[72];
    *raw = NULL;
    if (json_is_object(arguments)) {
        *out = json_incref(arguments);
    } else if (!arguments || json_is_null(arguments) || (json_is_string(arguments) && !json_string_length(arguments))) {
        *out = json_object();
    } else if (json_is_string(arguments)) {
        *out = json_loadb(json_string_value(arguments), json_string_length(arguments), 0, NULL);
        if (!json_is_object(*out)) {
            json_decref(*out);
            *out = json_pack("{s:O}", "arguments", arguments);
            *raw = json_string_value(arguments);
        }
    } else {
        *out = NULL;
        snprintf(field, sizeof field, ".tool_calls[%zu].function.arguments", k);
        return refuse(a, i, field, "the arguments of a call must be a JSON object, or a string of one", err);
    }
    return *out ? COLIBRI_OK : CLB_NOMEM(err, "arguments");
}

#define CALLS_MOST 128

/* `only`: this one of the calls, -1: all of them.
 * tool_calls of an assistant's message: as values, or where the template shows none, as text behind the content. */
static int add_calls(clb_adapter *a, size_t i, const json_t *calls, long only, clb_jvalue *m, clb_marked *text,
                     clb_error *err)
{
    clb_jvalue *list = clb_jdata_list(a->d);
    clb_written_call written[CALLS_MOST];
    json_t *parsed[CALLS_MOST] = {NULL};
    const json_t *call;
    size_t k, n = 0;
    int rc = COLIBRI_OK;
    if (!json_is_array(calls) || json_array_size(calls) > CALLS_MOST)
        return refuse(a, i, ".tool_calls", "tool_calls must be a list of at most 128 calls", err);
    json_array_foreach(calls, k, call)
    {
        const json_t *f = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(f, "name")),
                   *id = json_string_value(json_object_get(call, "id"));
        const char *raw;
        char field[72];
        if (only >= 0 && k != (size_t)only)
            continue;
        snprintf(field, sizeof field, ".tool_calls[%zu].function.name", k);
        if (!name)
            CLB_GO(refuse(a, i, field, "a call has a function with a name", err));
        CLB_GO(arguments_of(a, i, k, f, &parsed[n], &raw, err));
        written[n] = (clb_written_call){name, parsed[n]};
        clb_jvalue *v = clb_jdata_dict(a->d), *function = clb_jdata_dict(a->d);
        if (id)
            set(a, v, "id", id_value(a, id));
        set(a, v, "type", text_value(a, "function"));
        set(a, function, "name", text_value(a, name));
        if (a->caps->object_arguments) {
            set(a, function, "arguments", clb_json_values(a->d, parsed[n]));
        } else {
            char *dump = raw ? NULL : json_dumps(parsed[n], 0);
            if (!raw && !dump)
                CLB_GO(CLB_NOMEM(err, "arguments"));
            set(a, function, "arguments", text_value(a, raw ? raw : dump));
            free(dump);
        }
        set(a, v, "function", function);
        clb_jdata_push(a->d, list, v);
        n++;
    }
    if (a->caps->tool_calls || !clb_tool_writes(a->format)) {
        if (n)
            set(a, m, "tool_calls", list);
    } else if (n) {
        if (text->text.n)
            CLB_GO(clb_marked_add(text, "\n", 1, true, err));
        CLB_GO(clb_tool_write_calls(a->format, written, n, text, err));
    }
done:
    for (k = 0; k < n + 1 && k < CALLS_MOST; k++)
        json_decref(parsed[k]);
    return rc;
}

/* For the results of these calls: some templates want to know whose result it is. */
static int remember_calls(clb_adapter *a, const json_t *calls, clb_error *err)
{
    const json_t *call;
    size_t k;
    json_array_foreach(calls, k, call)
    {
        const char *const id = json_string_value(json_object_get(call, "id"));
        json_t *const name = json_object_get(json_object_get(call, "function"), "name");
        if (id && name && json_object_set(a->callers, id, name))
            return CLB_NOMEM(err, "calls");
    }
    return COLIBRI_OK;
}

/* What the system says but the template has no place for goes in front of the user's words. */
static int put_system_first(clb_adapter *a, clb_marked *text, clb_error *err)
{
    clb_marked both = {{0}, {0}};
    int rc = COLIBRI_OK;
    if (a->system.text.n == 0)
        return COLIBRI_OK;
    CLB_GO(clb_buf_append(&both.text, a->system.text.data, a->system.text.n, err));
    CLB_GO(clb_buf_append(&both.taint, a->system.taint.data, a->system.taint.n, err));
    CLB_GO(clb_marked_add(&both, "\n\n", 2, true, err));
    if (text->text.n)
        CLB_GO(clb_buf_append(&both.text, text->text.data, text->text.n, err));
    if (text->taint.n)
        CLB_GO(clb_buf_append(&both.taint, text->taint.data, text->taint.n, err));
    clb_marked_free(text);
    *text = both;
    clb_marked_free(&a->system);
    a->system = (clb_marked){{0}, {0}};
    return COLIBRI_OK;
done:
    clb_marked_free(&both);
    return rc;
}

/* A run of results where the template has no role for them: one message of the user's. *i: the first, then the last. */
static int adapt_results(clb_adapter *a, size_t *i, clb_jvalue *list, clb_error *err)
{
    clb_marked text = {{0}, {0}};
    const json_t *messages = a->request->messages;
    int rc = COLIBRI_OK;
    for (size_t k = *i; k < json_array_size(messages) && strcmp(role_of(json_array_get(messages, k)), "tool") == 0;
         k++) {
        if (text.text.n)
            CLB_GO(clb_marked_add(&text, "\n", 1, true, err));
        CLB_GO(clb_marked_add(&text, "<tool_response>\n", 16, true, err));
        CLB_GO(add_content(a, k, json_object_get(json_array_get(messages, k), "content"), &text, err));
        CLB_GO(clb_marked_add(&text, "\n</tool_response>", 17, true, err));
        *i = k;
    }
    clb_jdata_push(a->d, list, message(a, "user", content_value(a, &text)));
done:
    clb_marked_free(&text);
    return rc;
}

static bool is_handled(const char *key)
{
    static const char *const handled[] = {"role", "content", "tool_calls", "tool_call_id", "name"};
    for (size_t i = 0; i < sizeof handled / sizeof *handled; i++)
        if (strcmp(handled[i], key) == 0)
            return true;
    return false;
}

static int adapt_message(clb_adapter *a, size_t i, const char *role, long only, clb_jvalue *list, clb_error *err)
{
    const json_t *from = json_array_get(a->request->messages, i), *calls = json_object_get(from, "tool_calls");
    const json_t *content = json_object_get(from, "content"), *id = json_object_get(from, "tool_call_id");
    const json_t *name = json_object_get(from, "name");
    const bool assistant = strcmp(role, "assistant") == 0, tool = strcmp(role, "tool") == 0;
    const char *key, *name_text = json_string_value(name);
    json_t *value;
    clb_marked text = {{0}, {0}};
    int rc = COLIBRI_OK;
    clb_jvalue *m = message(a, role, NULL);
    json_object_foreach((json_t *)from, key, value) if (!is_handled(key)) set(a, m, key, clb_json_values(a->d, value));
    if (strcmp(role, "user") == 0)
        CLB_GO(put_system_first(a, &text, err));
    if (only <= 0)
        CLB_GO(add_content(a, i, content, &text, err));
    if (assistant && only <= 0)
        CLB_GO(remember_calls(a, calls, err));
    if (assistant && calls && !json_is_null(calls))
        CLB_GO(add_calls(a, i, calls, only, m, &text, err));
    else if (calls && !json_is_null(calls))
        CLB_GO(refuse(a, i, ".tool_calls", "only messages of the assistant have tool_calls", err));
    if (!assistant && !tool && (!content || json_is_null(content)))
        CLB_GO(refuse(a, i, ".content", "a message needs content", err));
    const bool null = assistant && a->caps->null_content && text.text.n == 0 && json_array_size(calls);
    set(a, m, "content", null ? clb_jdata_null(a->d) : content_value(a, &text));
    if (tool && json_is_string(id))
        set(a, m, "tool_call_id", id_value(a, json_string_value(id)));
    if (tool && !name_text)
        name_text = json_string_value(json_object_get(a->callers, json_string_value(id)));
    if (name_text)
        set(a, m, "name", text_value(a, name_text));
    /* what gpt-oss's template calls the thoughts that led to a call */
    if (assistant && a->format->shape == CLB_SHAPE_HARMONY &&
        json_is_string(json_object_get(from, "reasoning_content")))
        set(a, m, "thinking", clb_json_values(a->d, json_object_get(from, "reasoning_content")));
    clb_jdata_push(a->d, list, m);
done:
    clb_marked_free(&text);
    return rc;
}

/* A template that takes one call a message: each gets a message of its own, with its result behind it. *i: the message
 * with the calls, then the last of their results. */
static int adapt_calls_one_by_one(clb_adapter *a, size_t *i, clb_jvalue *list, clb_error *err)
{
    const json_t *messages = a->request->messages, *calls = json_object_get(json_array_get(messages, *i), "tool_calls");
    const size_t from = *i;
    size_t end = from + 1;
    while (end < json_array_size(messages) && strcmp(role_of(json_array_get(messages, end)), "tool") == 0)
        end++;
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const char *id = json_string_value(json_object_get(json_array_get(calls, k), "id"));
        size_t answer = from + 1 + k;
        for (size_t r = from + 1; r < end && id; r++) {
            const char *of = json_string_value(json_object_get(json_array_get(messages, r), "tool_call_id"));
            if (of && strcmp(of, id) == 0)
                answer = r;
        }
        CLB_TRY(adapt_message(a, from, "assistant", (long)k, list, err));
        if (answer < end)
            CLB_TRY(adapt_message(a, answer, "tool", -1, list, err));
    }
    *i = end - 1;
    return COLIBRI_OK;
}

/* Messages of the system at the beginning become one, with what there is to say about tools. */
static int adapt_system(clb_adapter *a, size_t *n, clb_error *err)
{
    const json_t *messages = a->request->messages;
    clb_marked text = {{0}, {0}};
    int rc = COLIBRI_OK;
    for (*n = 0; *n < json_array_size(messages); (*n)++) {
        const json_t *m = json_array_get(messages, *n);
        const char *role = role_of(m);
        if (strcmp(role, "system") != 0 && (strcmp(role, "developer") != 0 || a->caps->developer))
            break;
        if (text.text.n)
            CLB_GO(clb_marked_add(&text, "\n\n", 2, true, err));
        CLB_GO(add_content(a, *n, json_object_get(m, "content"), &text, err));
    }
    if (text.text.n && a->system.text.n)
        CLB_GO(clb_marked_add(&text, "\n\n", 2, true, err));
    if (a->system.text.n) {
        CLB_GO(clb_buf_append(&text.text, a->system.text.data, a->system.text.n, err));
        CLB_GO(clb_buf_append(&text.taint, a->system.taint.data, a->system.taint.n, err));
    }
    clb_marked_free(&a->system);
    a->system = text;
    return COLIBRI_OK;
done:
    clb_marked_free(&text);
    return rc;
}

static int adapt_messages(clb_adapter *a, clb_jvalue **out, clb_error *err)
{
    const json_t *messages = a->request->messages, *m;
    const size_t n = json_array_size(messages);
    clb_jvalue *list = clb_jdata_list(a->d);
    size_t i, first;
    json_array_foreach(messages, i, m)
    {
        const char *role = role_of(m);
        if (!json_is_object(m) || !*role)
            return refuse(a, i, json_is_object(m) ? ".role" : "", "a message is an object with a role", err);
        if (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0 && strcmp(role, "tool") != 0)
            return refuse(a, i, ".role", "the role of a message is system, developer, user, assistant or tool", err);
    }
    CLB_TRY(adapt_system(a, &first, err));
    a->any_system = first > 0 || a->system.text.n > 0 || a->tools;
    if (a->caps->system && (a->system.text.n || first)) {
        clb_jdata_push(a->d, list, message(a, "system", content_value(a, &a->system)));
        clb_marked_free(&a->system);
        a->system = (clb_marked){{0}, {0}};
    }
    for (i = first; i < n; i++) {
        m = json_array_get(messages, i);
        const char *role = role_of(m);
        const bool last_of_assistant = i + 1 == n && strcmp(role, "assistant") == 0;
        if (strcmp(role, "tool") == 0 && !a->caps->tool_results) {
            CLB_TRY(adapt_results(a, &i, list, err));
            continue;
        }
        if (strcmp(role, "developer") == 0 && !a->caps->developer)
            role = "system";
        if (strcmp(role, "system") == 0 && !a->caps->system) {
            if (a->system.text.n)
                CLB_TRY(clb_marked_add(&a->system, "\n\n", 2, true, err));
            CLB_TRY(add_content(a, i, json_object_get(m, "content"), &a->system, err));
            continue;
        }
        if (last_of_assistant && !json_array_size(json_object_get(m, "tool_calls"))) {
            const json_t *content = json_object_get(m, "content");
            clb_marked text = {{0}, {0}};
            const int rc = add_content(a, i, content, &text, err);
            bool empty = true;
            for (size_t k = 0; k < text.text.n && empty; k++)
                empty = strchr(" \n\t\r", text.text.data[k]) != NULL;
            clb_marked_free(&text);
            CLB_TRY(rc);
            if (empty) /* nothing to go on with */
                continue;
            a->continued = true;
        }
        if (json_array_size(json_object_get(m, "tool_calls")) > 1 && a->caps->tool_calls && a->caps->tool_results &&
            !a->caps->parallel_calls) {
            CLB_TRY(adapt_calls_one_by_one(a, &i, list, err));
            continue;
        }
        CLB_TRY(adapt_message(a, i, role, -1, list, err));
    }
    *out = list;
    if (a->system.text.n) /* no user has spoken: then it is all there is */
        clb_jdata_push(a->d, list, message(a, "user", content_value(a, &a->system)));
    return clb_jdata_status(a->d, err);
}

int clb_adapt_messages(clb_adapter *a, clb_jvalue **out, clb_error *err)
{
    a->callers = json_object();
    const int rc = a->callers ? adapt_messages(a, out, err) : CLB_NOMEM(err, "messages");
    json_decref(a->callers);
    a->callers = NULL;
    return rc;
}
