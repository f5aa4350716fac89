/* A grammar that makes the model call. What every call begins with is written into the prompt, where the marks are
 * tokens; the grammar is for the rest. */
#include "serve/tool_grammar.h"

#include <string.h>

#include "serve/gbnf_rename.h"
#include "serve/schema.h"
#include "serve/tool_impl.h"

#define CALLS_MORE 15 /* further calls of one reply */
#define TOKENS     64u
#define ANSWER     "answer-" /* before names of rules that are not ours */

typedef struct maker {
    const clb_tool_format *f;
    clb_gbnf *g;
    clb_buf body; /* GBNF of the rule at hand */
    clb_error *err;
    const clb_vocab *vocab;
    uint32_t marks[TOKENS], n_marks;     /* control tokens in marks of calls */
    uint32_t between[TOKENS], n_between; /* in marks of thoughts, and in marks that are no text */
} maker;

/* ---- control tokens, which no characters match ---- */

static bool part_of(const char *mark, clb_str token)
{
    return mark && memmem(mark, strlen(mark), token.p, token.n);
}

static bool in_call(const clb_tool_format *f, clb_str token)
{
    bool found = part_of(f->call_open, token) || part_of(f->call_close, token) || part_of(f->sep, token) ||
                 part_of(f->param_open, token) || part_of(f->key_end, token) || part_of(f->value_end, token);
    for (size_t i = 0; i < CLB_MARKS; i++)
        found = found || part_of(f->open[i], token) || part_of(f->close[i], token);
    return found;
}

static void find_tokens(maker *m, const clb_vocab *vocab)
{
    m->vocab = vocab;
    for (uint32_t id = 0; vocab && id < clb_vocab_size(vocab); id++) {
        if (!clb_vocab_is_control(vocab, id) || clb_vocab_is_eog(vocab, id))
            continue;
        const clb_str text = clb_token_text(vocab, id);
        bool between = clb_thought_part(text);
        if (!text.n)
            continue;
        for (size_t i = 0; i < 2 * CLB_MARKS; i++)
            between = between || part_of(m->f->drop[i], text);
        if (in_call(m->f, text) && m->n_marks < TOKENS)
            m->marks[m->n_marks++] = id;
        else if (between && m->n_between < TOKENS)
            m->between[m->n_between++] = id;
    }
}

/* The longest mark that the text begins with; false: none. */
static bool find_mark(const maker *m, const char *text, uint32_t *id, size_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < m->n_marks; i++) {
        const clb_str mark = clb_token_text(m->vocab, m->marks[i]);
        if (mark.n > *n && strncmp(text, mark.p, mark.n) == 0) {
            *n = mark.n;
            *id = m->marks[i];
        }
    }
    return *n > 0;
}

static int put_literal(maker *m, clb_buf *out, const char *text)
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

static int literal(maker *m, const char *text)
{
    return put_literal(m, &m->body, text);
}

static int reference(maker *m, const char *rule)
{
    return clb_buf_printf(&m->body, m->err, " %s", rule);
}

/* Makes the body so far a rule of its own and begins a new one. */
static int close_rule(maker *m, char rule[CLB_GBNF_NAME])
{
    const int rc = clb_gbnf_rule(m->g, m->body.n ? m->body.data : "\"\"", rule, m->err);
    m->body.n = 0;
    return rc;
}

/* Arguments as a JSON object. A schema that grammars do not know is an error for strict functions only. */
static int arguments_rule(maker *m, const json_t *function, char rule[CLB_GBNF_NAME])
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

static bool is(const clb_tool_format *f, const char *name)
{
    return strcmp(f->name, name) == 0;
}

/* From the begin of one call up to its arguments. `first`: of the reply (Kimi counts). */
static int write_head(const clb_tool_format *f, const char *name, clb_buf *out, clb_error *err)
{
    switch (f->shape) {
    case CLB_SHAPE_JSON:
        return f->key_is_name
                   ? clb_buf_printf(out, err, "{\"%s\": ", name)
                   : clb_buf_printf(out, err, "{\"%s\": \"%s\", \"%s\": ", f->name_key, name, f->arguments_key);
    case CLB_SHAPE_NAMED:
        if (is(f, "deepseek-v3"))
            return clb_buf_printf(out, err, "function%s%s\n```json\n", f->sep, name);
        if (is(f, "kimi-k2"))
            return clb_buf_printf(out, err, "functions.%s:0%s", name, f->sep);
        return clb_buf_printf(out, err, "%s%s", name, f->sep);
    case CLB_SHAPE_HARMONY:
        return clb_buf_printf(out, err, "%s <|constrain|>json<|message|>", name);
    case CLB_SHAPE_XML:
        if (f->call_open[0] == '\0')
            return clb_buf_printf(out, err, "%s%s", name, is(f, "glm") ? "\n" : "");
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
        return is(f, "deepseek-v3") ? "\n```" : is(f, "hunyuan") ? "\n```\n" : "";
    }
}

static bool each_marked(const clb_tool_format *f)
{
    return (f->shape == CLB_SHAPE_JSON && !f->list) || is(f, "glm") || is(f, "qwen3-coder") || is(f, "seed-oss") ||
           f->shape == CLB_SHAPE_BRACES || is(f, "mistral") || is(f, "functionary-v3.1");
}

/* Opens the calls. */
static int write_open(const clb_tool_format *f, clb_buf *out, clb_error *err)
{
    if (f->shape == CLB_SHAPE_HARMONY)
        return clb_buf_printf(out, err, "<|channel|>commentary to=functions.");
    if (!f->bare)
        CLB_TRY(clb_buf_printf(out, err, "%s", f->open[0]));
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON)
        return clb_buf_append(out, "[", 1, err);
    const bool lines = (f->shape == CLB_SHAPE_JSON && f->close[0]) || f->lines || is(f, "deepseek-v3.2") ||
                       is(f, "deepseek-v4") || is(f, "minimax");
    if (lines && !f->bare)
        CLB_TRY(clb_buf_append(out, "\n", 1, err));
    return f->shape == CLB_SHAPE_NAMED ? clb_buf_printf(out, err, "%s", f->call_open) : COLIBRI_OK;
}

static int write_close(const clb_tool_format *f, clb_buf *out, clb_error *err)
{
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON)
        CLB_TRY(clb_buf_append(out, "]", 1, err));
    else if ((f->shape == CLB_SHAPE_JSON || f->shape == CLB_SHAPE_XML) && f->close[0] && !f->bare)
        CLB_TRY(clb_buf_append(out, "\n", 1, err));
    return f->close[0] && !f->bare ? clb_buf_printf(out, err, "%s", f->close[0]) : COLIBRI_OK;
}

/* ---- parameters one by one ---- */

static bool string_schema(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

/* Any text in which the closing mark (which begins with '<') cannot begin; an enum's words as they are. */
static int string_rule(maker *m, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    const json_t *words = json_object_get(schema, "enum"), *w;
    clb_buf body = {0};
    size_t i;
    int rc = COLIBRI_OK;
    if (!json_array_size(words))
        return clb_gbnf_rule(m->g, "([^<] | \"<\" [^/<])*", rule, m->err);
    json_array_foreach(words, i, w)
    {
        if (!json_is_string(w))
            continue;
        if (body.n)
            CLB_GO(clb_buf_append(&body, " | ", 3, m->err));
        CLB_GO(clb_gbnf_literal(&body, json_string_value(w), json_string_length(w), m->err));
    }
    rc = clb_gbnf_rule(m->g, body.n ? body.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&body);
    return rc;
}

static int value_rule(maker *m, const json_t *function, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    if (m->f->shape == CLB_SHAPE_XML && string_schema(schema))
        return string_rule(m, schema, rule);
    const int rc = clb_gbnf_schema(m->g, schema, rule, m->err);
    if (rc == COLIBRI_OK || rc == COLIBRI_E_NOMEM || json_is_true(json_object_get(function, "strict")))
        return rc;
    return clb_gbnf_schema(m->g, NULL, rule, m->err);
}

static bool is_required(const json_t *function, const char *name)
{
    const json_t *r;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(function, "parameters"), "required"), i,
                       r) if (json_is_string(r) && strcmp(json_string_value(r), name) == 0) return true;
    return false;
}

/* "<parameter=a>\n" value "\n</parameter>\n" */
static int xml_parameter(maker *m, const char *name, const char *value, bool text)
{
    const clb_tool_format *f = m->f;
    clb_buf head = {0};
    int rc = COLIBRI_OK;
    if (f->key_end)
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s%s\n<arg_value>", f->param_open, name, f->key_end));
    else if (strstr(f->param_open, "DSML"))
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s\" string=\"%s\">", f->param_open, name, text ? "true" : "false"));
    else
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s%s>%s", f->param_open, name,
                              f->param_open[strlen(f->param_open) - 1] == '"' ? "\"" : "", f->lines ? "\n" : ""));
    CLB_GO(literal(m, head.data));
    CLB_GO(reference(m, value));
    head.n = 0;
    CLB_GO(clb_buf_printf(&head, m->err, "%s%s\n", f->lines ? "\n" : "", f->value_end));
    CLB_GO(literal(m, head.data));
done:
    clb_buf_free(&head);
    return rc;
}

/* Parameters in the schema's order; those that are not required may be left out. */
static int parameters_rule(maker *m, const json_t *function, char rule[CLB_GBNF_NAME])
{
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    const bool xml = m->f->shape == CLB_SHAPE_XML;
    clb_buf all = {0};
    const char *name;
    json_t *schema;
    bool certain = false; /* a parameter is there for sure: the next one begins with a comma */
    int rc = COLIBRI_OK;
    json_object_foreach((json_t *)properties, name, schema)
    {
        char value[CLB_GBNF_NAME], parameter[CLB_GBNF_NAME];
        const bool required = is_required(function, name);
        if (!xml && !required) /* Python: only what must be said, so that commas are simple */
            continue;
        CLB_GO(value_rule(m, function, schema, value));
        m->body.n = 0;
        if (xml) {
            CLB_GO(xml_parameter(m, name, value, string_schema(schema)));
        } else {
            clb_buf key = {0};
            rc = clb_buf_printf(&key, m->err, "%s%s=", certain ? ", " : "", name);
            if (!rc)
                rc = literal(m, key.data);
            clb_buf_free(&key);
            CLB_GO(rc);
            CLB_GO(reference(m, value));
            certain = true;
        }
        CLB_GO(close_rule(m, parameter));
        CLB_GO(clb_buf_printf(&all, m->err, " %s%s", parameter, required ? "" : "?"));
    }
    m->body.n = 0;
    if (xml)
        CLB_GO(put_literal(m, &all, m->f->call_close));
    rc = clb_gbnf_rule(m->g, all.n ? all.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&all);
    return rc;
}

/* ---- the whole ---- */

/* One call of a function, with or without what stands before the arguments. */
static int call_rule(maker *m, const json_t *function, bool head, char rule[CLB_GBNF_NAME])
{
    const clb_tool_format *f = m->f;
    char arguments[CLB_GBNF_NAME];
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    const bool one_by_one = f->shape == CLB_SHAPE_XML || f->shape == CLB_SHAPE_PYTHON;
    CLB_GO(one_by_one ? parameters_rule(m, function, arguments) : arguments_rule(m, function, arguments));
    m->body.n = 0;
    if (head) {
        CLB_GO(write_head(f, json_string_value(json_object_get(function, "name")), &text, m->err));
        if (one_by_one && f->call_open && f->call_open[0])
            CLB_GO(clb_buf_printf(&text, m->err, "\n"));
        CLB_GO(literal(m, text.data));
    }
    CLB_GO(reference(m, arguments));
    CLB_GO(literal(m, tail_of(f)));
    if (f->shape == CLB_SHAPE_NAMED)
        CLB_GO(literal(m, f->call_close));
    rc = close_rule(m, rule);
done:
    clb_buf_free(&text);
    return rc;
}

/* What may follow a call: another one. */
static int more_rule(maker *m, const char *calls, char rule[CLB_GBNF_NAME])
{
    const clb_tool_format *f = m->f;
    clb_buf between = {0};
    int rc = COLIBRI_OK;
    m->body.n = 0;
    if ((f->shape == CLB_SHAPE_JSON && f->list) || f->shape == CLB_SHAPE_PYTHON) {
        CLB_GO(literal(m, ", "));
    } else if (f->bare) {
        CLB_GO(literal(m, "\n"));
    } else if (each_marked(f)) {
        CLB_GO(write_close(f, &between, m->err));
        CLB_GO(clb_buf_append(&between, is(f, "mistral") || f->shape == CLB_SHAPE_BRACES ? "" : "\n",
                              is(f, "mistral") || f->shape == CLB_SHAPE_BRACES ? 0 : 1, m->err));
        CLB_GO(write_open(f, &between, m->err));
        CLB_GO(literal(m, between.data));
    } else {
        CLB_GO(literal(m, f->shape == CLB_SHAPE_NAMED ? f->call_open : "\n"));
    }
    CLB_GO(reference(m, calls));
    rc = close_rule(m, rule);
done:
    clb_buf_free(&between);
    return rc;
}

/* What comes before the character at which a text stops to be the mark */
static int literal_of(clb_buf *out, const char *text, size_t n, clb_error *err)
{
    return n ? clb_gbnf_literal(out, text, n, err) : clb_buf_append(out, "\"\"", 2, err);
}

static size_t character(const char *at)
{
    size_t n = 1;
    while (((unsigned char)at[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Any text in which the mark does not occur. Its first character occurs once in it, so that a text which stops to be
 * the mark may only begin it anew at the next one. */
static int text_rule(maker *m, const char *mark, char rule[CLB_GBNF_NAME])
{
    const size_t n = strlen(mark);
    const unsigned first = (unsigned char)mark[0];
    clb_buf tails = {0}, prefixes = {0}, body = {0};
    char tail[CLB_GBNF_NAME], prefix[CLB_GBNF_NAME];
    int rc = COLIBRI_OK;
    for (size_t k = 1; k < n; k += character(mark + k)) {
        const size_t n_next = character(mark + k);
        CLB_GO(clb_buf_append(&tails, " | ", k > 1 ? 3 : 0, m->err));
        CLB_GO(literal_of(&tails, mark + 1, k - 1, m->err));
        if (n_next == 1)
            CLB_GO(clb_buf_printf(&tails, m->err, " [^\\x%02x\\x%02x]", first, (unsigned)(unsigned char)mark[k]));
        else
            CLB_GO(clb_buf_printf(&tails, m->err, " [^\\x%02x%.*s]", first, (int)n_next, mark + k));
        CLB_GO(clb_buf_append(&prefixes, " | ", k > 1 ? 3 : 0, m->err));
        CLB_GO(literal_of(&prefixes, mark + 1, k - 1, m->err));
    }
    CLB_GO(clb_gbnf_rule(m->g, tails.data, tail, m->err));
    CLB_GO(clb_gbnf_rule(m->g, prefixes.data, prefix, m->err));
    CLB_GO(clb_buf_printf(&body, m->err, "[^\\x%02x]* (\"\\x%02x\" (%s [^\\x%02x]* | %s))*", first, first, tail, first,
                          prefix));
    rc = clb_gbnf_rule(m->g, body.data, rule, m->err);
done:
    clb_buf_free(&tails);
    clb_buf_free(&prefixes);
    clb_buf_free(&body);
    return rc;
}

bool clb_tool_may_be_constrained(const clb_tool_format *f)
{
    const char *mark = f->open[0];
    if (!mark || f->bare || (mark[0] != '<' && mark[0] != '[') || !mark[1] || strchr(mark + 1, mark[0]) ||
        f->shape == CLB_SHAPE_HARMONY)
        return false;
    for (const char *c = mark; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7F)
            return false;
    return true;
}

/* Rules for one call of any of the tools; or of `single`, whose name has been said. */
static int calls_rule(maker *m, const json_t *tools, const char *only, const json_t *single, char rule[CLB_GBNF_NAME])
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

static const json_t *find_tool(const json_t *tools, const char *only, size_t *n)
{
    const json_t *tool, *found = NULL;
    size_t i;
    *n = 0;
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (only && strcmp(only, json_string_value(json_object_get(f, "name"))) != 0)
            continue;
        found = f;
        ++*n;
    }
    return found;
}

/* One call or several, and what closes them, at the end of m->body. */
static int put_calls(maker *m, const char *call, bool once)
{
    char more[CLB_GBNF_NAME];
    clb_buf before = m->body, end = {0};
    int rc = COLIBRI_OK;
    m->body = (clb_buf){0};
    if (!once)
        CLB_GO(more_rule(m, call, more));
    CLB_GO(clb_buf_printf(&before, m->err, " %s", call));
    if (!once)
        CLB_GO(clb_buf_printf(&before, m->err, " %s{0,%d}", more, CALLS_MORE));
    CLB_GO(write_close(m->f, &end, m->err));
done:
    clb_buf_free(&m->body);
    m->body = before;
    if (!rc)
        rc = literal(m, end.n ? end.data : "");
    clb_buf_free(&end);
    return rc;
}

int clb_tool_grammar(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, const char *only,
                     bool one_call, clb_buf *prefill, clb_buf *gbnf, clb_error *err)
{
    maker m = {.f = f, .err = err};
    char rule[CLB_GBNF_NAME];
    size_t n;
    const json_t *single = find_tool(tools, only, &n);
    const bool once = one_call || only || f->shape == CLB_SHAPE_HARMONY || is(f, "functionary-v3.2");
    int rc = COLIBRI_OK;
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no function \"%s\" among the tools", only ? only : "");
    find_tokens(&m, vocab);
    CLB_GO(clb_gbnf_create(&m.g, err));
    CLB_GO(write_open(f, prefill, err));
    if (n > 1 || !once)
        single = NULL;
    if (single) { /* the name is known: only the arguments are left */
        CLB_GO(write_head(f, json_string_value(json_object_get(single, "name")), prefill, err));
        if ((f->shape == CLB_SHAPE_XML || f->shape == CLB_SHAPE_PYTHON) && f->call_open && f->call_open[0])
            CLB_GO(clb_buf_printf(prefill, err, "\n"));
    }
    CLB_GO(calls_rule(&m, tools, only, single, rule));
    m.body.n = 0;
    CLB_GO(put_calls(&m, rule, once));
    rc = clb_gbnf_finish(m.g, m.body.data, gbnf, err);
done:
    clb_gbnf_destroy(m.g);
    clb_buf_free(&m.body);
    return rc;
}

/* Text, with control tokens that may stand in it. */
static int free_rule(maker *m, char rule[CLB_GBNF_NAME])
{
    char text[CLB_GBNF_NAME];
    CLB_TRY(text_rule(m, m->f->open[0], text));
    m->body.n = 0;
    CLB_TRY(reference(m, text));
    for (uint32_t i = 0; i < m->n_between; i++)
        CLB_TRY(clb_buf_printf(&m->body, m->err, "%s<[%u]>", i ? " | " : " ((", m->between[i]));
    if (m->n_between)
        CLB_TRY(clb_buf_printf(&m->body, m->err, ") %s)*", text));
    return close_rule(m, rule);
}

int clb_tool_grammar_auto(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, bool one_call,
                          const char *answer, clb_buf *gbnf, clb_error *err)
{
    maker m = {.f = f, .err = err};
    char text[CLB_GBNF_NAME], rule[CLB_GBNF_NAME], calls[CLB_GBNF_NAME];
    clb_buf open = {0};
    int rc = COLIBRI_OK;
    find_tokens(&m, vocab);
    CLB_GO(clb_gbnf_create(&m.g, err));
    if (!answer)
        CLB_GO(free_rule(&m, text));
    CLB_GO(calls_rule(&m, tools, NULL, NULL, rule));
    CLB_GO(write_open(f, &open, err));
    m.body.n = 0;
    CLB_GO(literal(&m, open.data));
    CLB_GO(put_calls(&m, rule, one_call));
    CLB_GO(close_rule(&m, calls));
    if (answer)
        CLB_GO(clb_buf_printf(&m.body, err, ANSWER "root | %s", calls));
    else
        CLB_GO(clb_buf_printf(&m.body, err, "%s %s?", text, calls));
    CLB_GO(clb_gbnf_finish(m.g, m.body.data, gbnf, err));
    if (answer) {
        CLB_GO(clb_buf_append(gbnf, "\n", 1, err));
        CLB_GO(clb_gbnf_rename(answer, ANSWER, gbnf, err));
    }
done:
    clb_gbnf_destroy(m.g);
    clb_buf_free(&m.body);
    clb_buf_free(&open);
    return rc;
}
