/* What a chat template makes use of: small conversations are rendered, and what went in is looked for in what came out.
 * A template is a program: nothing else says so reliably. */
#include <string.h>

#include "text/chat_impl.h"
#include "text/jinja_impl.h"

/* Words that no template contains. */
#define SYSTEM   "qxsystem"
#define USER     "qxuser"
#define TOOL     "qxtool"
#define ARGUMENT "qxargument"
#define VALUE    "qxvalue"
#define RESULT   "qxresult"

typedef struct probe {
    const clb_chat_format *format;
    clb_jdata *d;
    clb_jinja_output out; /* of the last rendering */
    bool rendered;
} probe;

static clb_jvalue *text(probe *p, const char *s)
{
    return clb_jdata_str(p->d, (clb_str){s, strlen(s)});
}

static void set(probe *p, clb_jvalue *dict, const char *key, const clb_jvalue *value)
{
    clb_jdata_set(p->d, dict, (clb_str){key, strlen(key)}, value);
}

static clb_jvalue *add(probe *p, clb_jvalue *messages, const char *role, const clb_jvalue *content)
{
    clb_jvalue *m = clb_jdata_dict(p->d);
    set(p, m, "role", clb_jdata_clean(p->d, role));
    set(p, m, "content", content);
    clb_jdata_push(p->d, messages, m);
    return m;
}

static clb_jvalue *parts(probe *p, const char *s)
{
    clb_jvalue *list = clb_jdata_list(p->d), *part = clb_jdata_dict(p->d);
    set(p, part, "type", text(p, "text"));
    set(p, part, "text", text(p, s));
    clb_jdata_push(p->d, list, part);
    return list;
}

static void render(probe *p, const clb_jvalue *messages, const clb_jvalue *tools, const clb_jvalue *more)
{
    clb_error err;
    const clb_chat_values v = {
        .messages = messages, .tools = tools, .more = more, .add_generation = true, .now = 1735689600};
    p->out.text.n = p->out.taint.n = 0;
    p->rendered = clb_jdata_status(p->d, &err) == COLIBRI_OK &&
                  clb_chat_render_marked(p->format, &v, &p->out, &err) == COLIBRI_OK;
}

static bool shows(const probe *p, const char *what)
{
    return p->rendered && p->out.text.n && memmem(p->out.text.data, p->out.text.n, what, strlen(what));
}

static clb_jvalue *content(probe *p, const clb_chat_caps *caps, const char *s)
{
    return caps->typed_content ? parts(p, s) : text(p, s);
}

static bool shows_role(probe *p, const clb_chat_caps *caps, const char *role)
{
    clb_jvalue *m = clb_jdata_list(p->d);
    add(p, m, role, content(p, caps, SYSTEM));
    add(p, m, "user", content(p, caps, USER));
    render(p, m, NULL, NULL);
    return shows(p, SYSTEM);
}

static clb_jvalue *some_tools(probe *p)
{
    clb_jvalue *list = clb_jdata_list(p->d), *tool = clb_jdata_dict(p->d), *f = clb_jdata_dict(p->d);
    clb_jvalue *schema = clb_jdata_dict(p->d), *properties = clb_jdata_dict(p->d), *argument = clb_jdata_dict(p->d);
    clb_jvalue *required = clb_jdata_list(p->d);
    set(p, argument, "type", text(p, "string"));
    set(p, argument, "description", text(p, "about " ARGUMENT));
    set(p, properties, ARGUMENT, argument);
    clb_jdata_push(p->d, required, text(p, ARGUMENT));
    set(p, schema, "type", text(p, "object"));
    set(p, schema, "properties", properties);
    set(p, schema, "required", required);
    set(p, f, "name", text(p, TOOL));
    set(p, f, "description", text(p, "about " TOOL));
    set(p, f, "parameters", schema);
    set(p, tool, "type", text(p, "function"));
    set(p, tool, "function", f);
    clb_jdata_push(p->d, list, tool);
    return list;
}

/* A question, a call and its result. */
static void render_calls(probe *p, const clb_chat_caps *caps, bool object, bool null, unsigned n)
{
    static const char *const ids[] = {"abcde1234", "fghij5678"}; /* Mistral's are of nine characters */
    clb_jvalue *m = clb_jdata_list(p->d), *calls = clb_jdata_list(p->d);
    for (unsigned i = 0; i < n; i++) {
        clb_jvalue *call = clb_jdata_dict(p->d), *f = clb_jdata_dict(p->d), *arguments = clb_jdata_dict(p->d);
        set(p, arguments, ARGUMENT, text(p, VALUE));
        set(p, f, "name", text(p, TOOL));
        set(p, f, "arguments", object ? arguments : text(p, "{\"" ARGUMENT "\": \"" VALUE "\"}"));
        set(p, call, "id", text(p, ids[i]));
        set(p, call, "type", text(p, "function"));
        set(p, call, "function", f);
        clb_jdata_push(p->d, calls, call);
    }
    add(p, m, "user", content(p, caps, USER));
    set(p, add(p, m, "assistant", null ? clb_jdata_null(p->d) : text(p, "")), "tool_calls", calls);
    for (unsigned i = 0; i < n; i++) {
        clb_jvalue *result = add(p, m, "tool", content(p, caps, RESULT));
        set(p, result, "tool_call_id", text(p, ids[i]));
        set(p, result, "name", text(p, TOOL));
    }
    render(p, m, some_tools(p), NULL);
}

static void probe_calls(probe *p, clb_chat_caps *caps)
{
    render_calls(p, caps, true, false, 1);
    /* 'name': is how Python prints a dict: then the template means text */
    const bool object = shows(p, VALUE) && !shows(p, "'" ARGUMENT "':"), results = shows(p, RESULT);
    const bool none = shows(p, "None");
    render_calls(p, caps, false, false, 1);
    const bool as_text = shows(p, VALUE);
    caps->object_arguments = object || !as_text;
    caps->tool_calls = object || as_text;
    caps->tool_results = object ? results : shows(p, RESULT);
    render_calls(p, caps, caps->object_arguments, true, 1);
    caps->null_content = shows(p, VALUE) && shows(p, "None") == none;
    render_calls(p, caps, caps->object_arguments, false, 2);
    caps->parallel_calls = p->rendered;
}

/* The opening of a turn with enable_thinking on and off. */
static void probe_thinking(probe *p, clb_chat_caps *caps)
{
    clb_buf on = {0};
    for (int i = 1; i >= 0; i--) {
        clb_error err;
        clb_jvalue *m = clb_jdata_list(p->d), *more = clb_jdata_dict(p->d);
        add(p, m, "user", content(p, caps, USER));
        set(p, more, "enable_thinking", clb_jdata_bool(p->d, i));
        render(p, m, NULL, more);
        if (!p->rendered)
            break;
        if (i && clb_buf_append(&on, p->out.text.data, p->out.text.n, &err))
            break;
        caps->thinking = !i && (on.n != p->out.text.n || memcmp(on.data, p->out.text.data, on.n) != 0);
    }
    clb_buf_free(&on);
}

void clb_chat_probe(const clb_chat_format *format, clb_chat_caps *caps)
{
    probe p = {.format = format};
    clb_error err;
    *caps = (clb_chat_caps){0};
    if (clb_jdata_create((size_t)1 << 20, &p.d, &err))
        return;
    clb_jvalue *m = clb_jdata_list(p.d), *typed = clb_jdata_list(p.d);
    add(&p, m, "user", text(&p, USER));
    render(&p, m, NULL, NULL);
    if (!shows(&p, USER)) {
        add(&p, typed, "user", parts(&p, USER));
        render(&p, typed, NULL, NULL);
        caps->typed_content = shows(&p, USER);
    }
    caps->system = shows_role(&p, caps, "system");
    /* A template that writes any role as it is knows nothing of this one, nor does its model. */
    const clb_str source = clb_chat_source(format);
    caps->developer = source.n && memmem(source.p, source.n, "developer", 9) && shows_role(&p, caps, "developer");
    render(&p, caps->typed_content ? typed : m, some_tools(&p), NULL);
    caps->tools = shows(&p, TOOL);
    probe_calls(&p, caps);
    probe_thinking(&p, caps);
    clb_jinja_output_free(&p.out);
    clb_jdata_free(p.d);
}
