/* Rules of calls: what stands around the arguments in each format, and control tokens, which no characters match. */
#include "serve/tool_rules.h"

#include <stdio.h>
#include <string.h>

#include "serve/tool_impl.h"
#include "serve/tool_text.h"

#define CALLS_MORE 15 /* further calls of one reply */

/* ---- control tokens, which no characters match ---- */

static bool part_of(const char *mark, clb_str token)
{
    return mark && memmem(mark, strlen(mark), token.p, token.n);
}

static bool in_call(const clb_tool_format *f, clb_str token)
{
    static const char *const channels[] = {"<|channel|>", "<|start|>",     "<|message|>", "<|end|>",
                                           "<|call|>",    "<|constrain|>", "<|return|>"};
    bool found = part_of(f->call_open, token) || part_of(f->call_close, token) || part_of(f->sep, token) ||
                 part_of(f->param_open, token) || part_of(f->key_end, token) || part_of(f->value_end, token);
    for (size_t i = 0; i < CLB_MARKS; i++)
        found = found || part_of(f->open[i], token) || part_of(f->close[i], token);
    for (size_t i = 0; f->shape == CLB_SHAPE_HARMONY && i < sizeof channels / sizeof *channels; i++)
        found = found || part_of(channels[i], token);
    return found;
}

static void find_tokens(clb_call_rules *m, const clb_vocab *vocab)
{
    m->vocab = vocab;
    for (uint32_t id = 0; vocab && id < clb_vocab_size(vocab); id++) {
        const clb_str text = clb_token_text(vocab, id);
        const char *const thought = text.n && strchr("<[", text.p[0]) ? clb_thought_open(text.p, text.n) : NULL;
        if (thought && strlen(thought) == text.n && m->n_thoughts < CLB_CALL_TOKENS)
            m->thoughts[m->n_thoughts++] = thought;
        if (!clb_vocab_is_control(vocab, id) || clb_vocab_is_eog(vocab, id))
            continue;
        bool between = clb_thought_part(text);
        if (!text.n)
            continue;
        for (size_t i = 0; i < 2 * CLB_MARKS; i++)
            between = between || part_of(m->f->drop[i], text);
        if (in_call(m->f, text) && m->n_marks < CLB_CALL_TOKENS)
            m->marks[m->n_marks++] = id;
        else if (between && m->n_between < CLB_CALL_TOKENS)
            m->between[m->n_between++] = id;
    }
}

int clb_rules_begin(clb_call_rules *m, const clb_tool_format *f, const clb_vocab *vocab, clb_error *err)
{
    *m = (clb_call_rules){.f = f, .err = err};
    find_tokens(m, vocab);
    return clb_gbnf_create(&m->g, err);
}

int clb_rules_finish(clb_call_rules *m, clb_buf *gbnf)
{
    CLB_TRY(clb_gbnf_finish(m->g, m->body.n ? m->body.data : "\"\"", gbnf, m->err));
    return clb_buf_append(gbnf, m->more.n ? m->more.data : "", m->more.n, m->err);
}

void clb_rules_free(clb_call_rules *m)
{
    clb_gbnf_destroy(m->g);
    clb_buf_free(&m->body);
    clb_buf_free(&m->more);
}

int clb_rules_text(clb_call_rules *m, const char *const *marks, size_t n, char rule[CLB_GBNF_NAME])
{
    char name[CLB_GBNF_NAME - 4];
    snprintf(name, sizeof name, "t%u", m->n_texts++);
    snprintf(rule, CLB_GBNF_NAME, "%s-0", name);
    return clb_text_without(name, marks, n, &m->more, m->err);
}

/* The longest mark that the text begins with; false: none. */
static bool find_mark(const clb_call_rules *m, const char *text, uint32_t *id, size_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < m->n_marks + m->n_between; i++) {
        const uint32_t token = i < m->n_marks ? m->marks[i] : m->between[i - m->n_marks];
        const clb_str mark = clb_token_text(m->vocab, token);
        if (mark.n > *n && strncmp(text, mark.p, mark.n) == 0) {
            *n = mark.n;
            *id = token;
        }
    }
    return *n > 0;
}

int clb_put_literal(clb_call_rules *m, clb_buf *out, const char *text)
{
    size_t n = 0, n_mark;
    uint32_t id;
    while (text && text[n]) {
        if (!find_mark(m, text + n, &id, &n_mark)) {
            n++;
            continue;
        }
        if (n) {
            CLB_TRY(clb_buf_append(out, " ", 1, m->err));
            CLB_TRY(clb_gbnf_literal(out, text, n, m->err));
        }
        CLB_TRY(clb_buf_printf(out, m->err, " <[%u]>", id));
        text += n + n_mark;
        n = 0;
    }
    if (!n)
        return COLIBRI_OK;
    CLB_TRY(clb_buf_append(out, " ", 1, m->err));
    return clb_gbnf_literal(out, text, n, m->err);
}

int clb_rules_literal(clb_call_rules *m, const char *text)
{
    return clb_put_literal(m, &m->body, text);
}

int clb_rules_refer(clb_call_rules *m, const char *rule)
{
    return clb_buf_printf(&m->body, m->err, " %s", rule);
}

int clb_rules_close(clb_call_rules *m, char rule[CLB_GBNF_NAME])
{
    const int rc = clb_gbnf_rule(m->g, m->body.n ? m->body.data : "\"\"", rule, m->err);
    m->body.n = 0;
    return rc;
}

int clb_arguments_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME])
{
    const json_t *schema = json_object_get(function, "parameters");
    if (!json_is_object(schema) || json_object_size(schema) == 0)
        return clb_gbnf_object(m->g, rule, m->err);
    const int rc = clb_gbnf_schema(m->g, schema, rule, m->err);
    if (rc == COLIBRI_OK || rc == COLIBRI_E_NOMEM || json_is_true(json_object_get(function, "strict")))
        return rc;
    return clb_gbnf_object(m->g, rule, m->err);
}

/* ---- what stands around the arguments ---- */

bool clb_is_format(const clb_tool_format *f, const char *name)
{
    return strcmp(f->name, name) == 0;
}

int clb_write_head(const clb_tool_format *f, const char *name, clb_buf *out, clb_error *err)
{
    switch (f->shape) {
    case CLB_SHAPE_JSON:
        return f->key_is_name
                   ? clb_buf_printf(out, err, "{\"%s\": ", name)
                   : clb_buf_printf(out, err, "{\"%s\": \"%s\", \"%s\": ", f->name_key, name, f->arguments_key);
    case CLB_SHAPE_NAMED:
        if (clb_is_format(f, "deepseek-v3"))
            return clb_buf_printf(out, err, "function%s%s\n```json\n", f->sep, name);
        if (clb_is_format(f, "kimi-k2"))
            return clb_buf_printf(out, err, "functions.%s:0%s", name, f->sep);
        return clb_buf_printf(out, err, "%s%s", name, f->sep);
    case CLB_SHAPE_HARMONY:
        return clb_buf_printf(out, err, "%s <|constrain|>json<|message|>", name);
    case CLB_SHAPE_XML:
        if (f->call_open[0] == '\0')
            return clb_buf_printf(out, err, "%s%s", name, clb_is_format(f, "glm") ? "\n" : "");
        return clb_buf_printf(out, err, "%s%s%s>", f->call_open, name,
                              f->call_open[strlen(f->call_open) - 1] == '"' ? "\"" : "");
    case CLB_SHAPE_BRACES:
        return clb_buf_printf(out, err, "%s%s", f->call_open, name);
    default:
        return clb_buf_printf(out, err, "%s(", name);
    }
}

static const char *tail_of(const clb_tool_format *f)
{
    switch (f->shape) {
    case CLB_SHAPE_JSON:
        return "}";
    case CLB_SHAPE_PYTHON:
        return ")";
    default:
        return clb_is_format(f, "deepseek-v3") ? "\n```" : clb_is_format(f, "hunyuan") ? "\n```\n" : "";
    }
}

static bool each_marked(const clb_tool_format *f)
{
    return (f->shape == CLB_SHAPE_JSON && !f->list) || clb_is_format(f, "glm") || clb_is_format(f, "qwen3-coder") ||
           clb_is_format(f, "seed-oss") || f->shape == CLB_SHAPE_BRACES || clb_is_format(f, "mistral") ||
           clb_is_format(f, "functionary-v3.1");
}

/* The mark begins each call by itself: what should be around them was left out. */
static bool within(const clb_tool_format *f, size_t which)
{
    return f->open[which] && f->call_open && f->call_open[0] && strcmp(f->open[which], f->call_open) == 0;
}

int clb_write_open(const clb_tool_format *f, size_t which, clb_buf *out, clb_error *err)
{
    const char *const mark = f->open[which];
    if (f->shape == CLB_SHAPE_HARMONY)
        return clb_buf_printf(out, err, "<|channel|>commentary to=functions.");
    if (within(f, which)) /* the heads of XML calls have it */
        return f->shape == CLB_SHAPE_NAMED ? clb_buf_printf(out, err, "%s", mark) : COLIBRI_OK;
    if (!f->bare)
        CLB_TRY(clb_buf_printf(out, err, "%s", mark));
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON)
        return mark[strlen(mark) - 1] == '[' ? COLIBRI_OK : clb_buf_append(out, "[", 1, err);
    const bool lines = (f->shape == CLB_SHAPE_JSON && f->close[0]) || f->lines || clb_is_format(f, "deepseek-v3.2") ||
                       clb_is_format(f, "deepseek-v4") || clb_is_format(f, "minimax");
    if (lines && !f->bare)
        CLB_TRY(clb_buf_append(out, "\n", 1, err));
    return f->shape == CLB_SHAPE_NAMED ? clb_buf_printf(out, err, "%s", f->call_open) : COLIBRI_OK;
}

static int write_close(const clb_tool_format *f, size_t which, clb_buf *out, clb_error *err)
{
    const char *const mark = f->close[which] ? f->close[which] : f->close[0];
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON)
        CLB_TRY(clb_buf_append(out, "]", 1, err));
    else if ((f->shape == CLB_SHAPE_JSON || f->shape == CLB_SHAPE_XML) && mark && !f->bare)
        CLB_TRY(clb_buf_append(out, "\n", 1, err));
    return mark && !f->bare ? clb_buf_printf(out, err, "%s", mark) : COLIBRI_OK;
}

/* ---- the whole ---- */

/* One call of a function, with or without what stands before the arguments. */
static int call_rule(clb_call_rules *m, const json_t *function, bool head, char rule[CLB_GBNF_NAME])
{
    const clb_tool_format *f = m->f;
    char arguments[CLB_GBNF_NAME];
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    const bool one_by_one = f->shape == CLB_SHAPE_XML || f->shape == CLB_SHAPE_PYTHON;
    CLB_GO(one_by_one ? clb_parameters_rule(m, function, arguments) : clb_arguments_rule(m, function, arguments));
    m->body.n = 0;
    if (head) {
        CLB_GO(clb_write_head(f, json_string_value(json_object_get(function, "name")), &text, m->err));
        if (one_by_one && f->call_open && f->call_open[0])
            CLB_GO(clb_buf_printf(&text, m->err, "\n"));
        CLB_GO(clb_rules_literal(m, text.data));
    }
    CLB_GO(clb_rules_refer(m, arguments));
    CLB_GO(clb_rules_literal(m, tail_of(f)));
    if (f->shape == CLB_SHAPE_NAMED)
        CLB_GO(clb_rules_literal(m, f->call_close));
    rc = clb_rules_close(m, rule);
done:
    clb_buf_free(&text);
    return rc;
}

/* A part that may be missing, at the end of the body. */
static int put_optional(clb_call_rules *m, const char *text)
{
    if (!text || !*text)
        return COLIBRI_OK;
    CLB_TRY(clb_buf_append(&m->body, " (", 2, m->err));
    CLB_TRY(clb_rules_literal(m, text));
    return clb_buf_append(&m->body, ")?", 2, m->err);
}

/* Between two calls whose marks stand around each of them. */
static int put_between(clb_call_rules *m, size_t which)
{
    const clb_tool_format *f = m->f;
    const bool joined = clb_is_format(f, "mistral") || f->shape == CLB_SHAPE_BRACES;
    clb_buf close = {0}, open = {0};
    int rc = COLIBRI_OK;
    CLB_GO(write_close(f, which, &close, m->err));
    CLB_GO(clb_write_open(f, within(f, which) ? 0 : which, &open, m->err));
    if (within(f, which)) { /* the marks around may be there or not */
        CLB_GO(put_optional(m, close.data));
        CLB_GO(clb_rules_literal(m, "\n"));
        CLB_GO(put_optional(m, open.data));
        goto done;
    }
    CLB_GO(clb_buf_append(&close, "\n", joined ? 0 : 1, m->err));
    CLB_GO(clb_buf_append(&close, open.n ? open.data : "", open.n, m->err));
    CLB_GO(clb_rules_literal(m, close.data));
done:
    clb_buf_free(&close);
    clb_buf_free(&open);
    return rc;
}

/* What may follow a call: another one. */
static int more_rule(clb_call_rules *m, const char *calls, size_t which, char rule[CLB_GBNF_NAME])
{
    const clb_tool_format *f = m->f;
    m->body.n = 0;
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON)
        CLB_TRY(clb_rules_literal(m, ", "));
    else if (f->bare)
        CLB_TRY(clb_rules_literal(m, "\n"));
    else if (each_marked(f))
        CLB_TRY(put_between(m, which));
    else
        CLB_TRY(clb_rules_literal(m, f->shape == CLB_SHAPE_NAMED ? f->call_open : "\n"));
    CLB_TRY(clb_rules_refer(m, calls));
    return clb_rules_close(m, rule);
}

int clb_calls_rule(clb_call_rules *m, const json_t *tools, const char *only, const json_t *single,
                   char rule[CLB_GBNF_NAME])
{
    const json_t *tool;
    clb_buf calls = {0};
    size_t i;
    int rc = COLIBRI_OK;
    if (single)
        return call_rule(m, single, false, rule);
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (only && strcmp(only, json_string_value(json_object_get(f, "name"))) != 0)
            continue;
        CLB_GO(call_rule(m, f, true, rule));
        CLB_GO(clb_buf_printf(&calls, m->err, "%s%s", calls.n ? " | " : "", rule));
    }
    rc = clb_gbnf_rule(m->g, calls.data, rule, m->err);
done:
    clb_buf_free(&calls);
    return rc;
}

int clb_put_calls(clb_call_rules *m, const char *call, size_t which, bool once)
{
    char more[CLB_GBNF_NAME];
    clb_buf before = m->body, end = {0};
    int rc = COLIBRI_OK;
    m->body = (clb_buf){0};
    if (!once)
        CLB_GO(more_rule(m, call, which, more));
    CLB_GO(clb_buf_printf(&before, m->err, " %s", call));
    if (!once)
        CLB_GO(clb_buf_printf(&before, m->err, " %s{0,%d}", more, CALLS_MORE));
    CLB_GO(write_close(m->f, which, &end, m->err));
done:
    clb_buf_free(&m->body);
    m->body = before;
    if (!rc && end.n)
        rc = within(m->f, which) ? put_optional(m, end.data) : clb_rules_literal(m, end.data);
    clb_buf_free(&end);
    return rc;
}
