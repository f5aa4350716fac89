/* Grammars under which the model may call: text, thoughts or an answer of a grammar, and calls that fit. */
#include <stdio.h>
#include <string.h>

#include "grammar/grammar.h"
#include "serve/gbnf_rename.h"
#include "serve/tool_grammar.h"
#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

#define ANSWER "answer-" /* before names of rules that are not ours */

bool clb_tool_may_be_constrained(const clb_tool_format *f)
{
    return !f->bare && !clb_is_format(f, "functionary-v3.2");
}

/* ---- calls ---- */

/* Calls of a format that has a mark, with any of its marks. */
static int marked_calls(clb_call_rules *m, const clb_tool_auto *o, const char *call, char rule[CLB_GBNF_NAME])
{
    clb_buf all = {0}, open = {0};
    char one[CLB_GBNF_NAME];
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < CLB_MARKS && o->format->open[i]; i++) {
        open.n = m->body.n = 0;
        CLB_GO(clb_write_open(o->format, i, &open, m->err));
        if (open.n)
            CLB_GO(clb_rules_literal(m, open.data));
        CLB_GO(clb_put_calls(m, call, i, o->one_call));
        CLB_GO(clb_rules_close(m, one));
        CLB_GO(clb_buf_printf(&all, m->err, "%s%s", all.n ? " | " : "", one));
    }
    rc = clb_gbnf_rule(m->g, all.data, rule, m->err);
done:
    clb_buf_free(&all);
    clb_buf_free(&open);
    return rc;
}

/* Calls without a mark; the mark that there is may stand around them. */
static int bare_calls(clb_call_rules *m, const clb_tool_auto *o, const char *call, char rule[CLB_GBNF_NAME])
{
    const char *const marks[] = {o->format->open[0], o->format->close[0]};
    m->body.n = 0;
    for (int i = 0; i < 2; i++) {
        if (i)
            CLB_TRY(clb_put_calls(m, call, 0, o->one_call));
        if (!marks[i])
            continue;
        CLB_TRY(clb_buf_append(&m->body, " (", 2, m->err));
        CLB_TRY(clb_rules_literal(m, marks[i]));
        CLB_TRY(clb_buf_append(&m->body, ")?", 2, m->err));
    }
    return clb_rules_close(m, rule);
}

/* ---- text around them ---- */

/* Text, with control tokens that may stand in it. */
static int free_rule(clb_call_rules *m, char rule[CLB_GBNF_NAME])
{
    char text[CLB_GBNF_NAME];
    CLB_TRY(clb_rules_text(m, m->f->open, CLB_MARKS, text));
    m->body.n = 0;
    CLB_TRY(clb_rules_refer(m, text));
    for (uint32_t i = 0; i < m->n_between; i++)
        CLB_TRY(clb_buf_printf(&m->body, m->err, "%s<[%u]>", i ? " | " : " ((", m->between[i]));
    if (m->n_between)
        CLB_TRY(clb_buf_printf(&m->body, m->err, ") %s)*", text));
    return clb_rules_close(m, rule);
}

/* A thought and, once it is closed, the rest. What is within it are no calls, but for marks that end thoughts, too. */
static int thought_rule(clb_call_rules *m, const char *open, bool opened, const char *rest, const char *calls,
                        char rule[CLB_GBNF_NAME])
{
    const char *const close = clb_thought_close(open), *const *const within = clb_marks_in_thoughts(m->f);
    const char *const marks[] = {close, within ? within[0] : NULL, within ? within[1] : NULL,
                                 within ? within[2] : NULL};
    char text[CLB_GBNF_NAME];
    CLB_TRY(clb_rules_text(m, marks, sizeof marks / sizeof *marks, text));
    m->body.n = 0;
    if (!opened) {
        CLB_TRY(clb_buf_append(&m->body, " [ \\n\\t\\r]*", 11, m->err));
        CLB_TRY(clb_rules_literal(m, open));
    }
    CLB_TRY(clb_rules_refer(m, text));
    CLB_TRY(clb_buf_append(&m->body, " (", 2, m->err));
    CLB_TRY(clb_rules_literal(m, close));
    CLB_TRY(clb_rules_refer(m, rest));
    if (within)
        CLB_TRY(clb_buf_printf(&m->body, m->err, " | %s", calls));
    CLB_TRY(clb_buf_append(&m->body, ")?", 2, m->err));
    return clb_rules_close(m, rule);
}

/* The body of root for text that may end with calls. */
static int text_body(clb_call_rules *m, const clb_tool_auto *o, const char *calls)
{
    const char *const opened = o->opened && o->thoughts ? clb_thought_open(o->opened, strlen(o->opened)) : NULL;
    char text[CLB_GBNF_NAME], rest[CLB_GBNF_NAME], thought[CLB_GBNF_NAME];
    clb_buf all = {0};
    int rc = COLIBRI_OK;
    CLB_GO(free_rule(m, text));
    CLB_GO(clb_buf_printf(&m->body, m->err, "%s %s?", text, calls));
    CLB_GO(clb_rules_close(m, rest));
    if (opened) {
        CLB_GO(thought_rule(m, opened, true, rest, calls, thought));
        CLB_GO(clb_buf_printf(&all, m->err, "%s", thought));
    } else {
        CLB_GO(clb_buf_printf(&all, m->err, "%s", rest));
        for (uint32_t i = 0; i < m->n_thoughts && o->thoughts; i++) {
            CLB_GO(thought_rule(m, m->thoughts[i], false, rest, calls, thought));
            CLB_GO(clb_buf_printf(&all, m->err, " | %s", thought));
        }
    }
    m->body.n = 0;
    rc = clb_buf_printf(&m->body, m->err, "%s", all.data);
done:
    clb_buf_free(&all);
    return rc;
}

/* ---- channels ---- */

/* What a call's message begins with, in the ways that the model has for it. */
static int channel_heads(clb_call_rules *m, const char *name, const char *arguments)
{
    static const char *const before[] = {"<|channel|>commentary to=functions.", " to=functions."};
    static const char *const behind[] = {"", "<|channel|>commentary"};
    for (int i = 0; i < 2; i++) {
        CLB_TRY(clb_buf_append(&m->body, i ? " |" : "", i ? 2 : 0, m->err));
        CLB_TRY(clb_rules_literal(m, before[i]));
        CLB_TRY(clb_rules_literal(m, name));
        CLB_TRY(clb_rules_literal(m, behind[i]));
        CLB_TRY(clb_buf_printf(&m->body, m->err, " (\" \"?"));
        CLB_TRY(clb_rules_literal(m, "<|constrain|>"));
        CLB_TRY(clb_buf_printf(&m->body, m->err, " \"json\" | \" json\")?"));
        CLB_TRY(clb_rules_literal(m, "<|message|>"));
        CLB_TRY(clb_rules_refer(m, arguments));
    }
    return COLIBRI_OK;
}

static int channel_calls(clb_call_rules *m, const clb_tool_auto *o, char rule[CLB_GBNF_NAME])
{
    const json_t *tool;
    clb_buf all = {0};
    size_t i;
    int rc = COLIBRI_OK;
    json_array_foreach(o->tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        char arguments[CLB_GBNF_NAME];
        CLB_GO(clb_arguments_rule(m, f, arguments));
        m->body.n = 0;
        CLB_GO(channel_heads(m, json_string_value(json_object_get(f, "name")), arguments));
        CLB_GO(clb_rules_close(m, rule));
        CLB_GO(clb_buf_printf(&all, m->err, "%s%s", all.n ? " | " : "", rule));
    }
    rc = clb_gbnf_rule(m->g, all.data, rule, m->err);
done:
    clb_buf_free(&all);
    return rc;
}

/* Messages of the channels, each but the last one followed by the begin of the next. */
static int channel_body(clb_call_rules *m, const clb_tool_auto *o)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
    char text[CLB_GBNF_NAME], calls[CLB_GBNF_NAME], message[CLB_GBNF_NAME], next[CLB_GBNF_NAME];
    CLB_TRY(channel_calls(m, o, calls));
    CLB_TRY(clb_rules_text(m, ends, sizeof ends / sizeof *ends, text));
    m->body.n = 0;
    CLB_TRY(clb_rules_literal(m, "<|channel|>"));
    CLB_TRY(clb_buf_printf(&m->body, m->err, " %s",
                           o->answer ? "\"analysis\"" : "(\"analysis\" | \"commentary\" | \"final\")"));
    CLB_TRY(clb_rules_literal(m, "<|message|>"));
    CLB_TRY(clb_rules_refer(m, text));
    CLB_TRY(clb_rules_close(m, message));
    CLB_TRY(clb_rules_literal(m, "<|end|><|start|>assistant"));
    CLB_TRY(clb_rules_close(m, next));
    if (!o->answer)
        return clb_buf_printf(&m->body, m->err, "(%s %s)* (%s | %s)", message, next, message, calls);
    if (o->thoughts) /* otherwise they would be a part of the answer */
        CLB_TRY(clb_buf_printf(&m->body, m->err, "(%s %s)? ", message, next));
    CLB_TRY(clb_buf_append(&m->body, "(", 1, m->err));
    CLB_TRY(clb_rules_literal(m, "<|channel|>final<|message|>"));
    return clb_buf_printf(&m->body, m->err, " " ANSWER "root | %s)", calls);
}

/* ---- answers ---- */

/* Whether a text of the grammar can begin like this. */
static int may_begin(const clb_token_tree *tree, clb_grammar *g, const char *text, bool *may, clb_error *err)
{
    clb_matcher *m;
    CLB_TRY(clb_matcher_create(g, tree, &m, err));
    const int rc = clb_matcher_accept_bytes(m, text, strlen(text), err);
    clb_matcher_destroy(m);
    *may = rc == COLIBRI_OK;
    return rc == COLIBRI_E_USAGE ? COLIBRI_OK : rc;
}

/* An answer that begins like a call would be taken for one, which need not fit: strict functions do not allow that. */
static int check_apart(const clb_tool_auto *o, clb_error *err)
{
    const json_t *tool;
    clb_token_tree *own = NULL;
    clb_grammar *g = NULL;
    clb_buf head = {0};
    size_t i;
    bool may = false, strict = false;
    int rc = COLIBRI_OK;
    json_array_foreach(o->tools, i, tool) strict |=
        json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    if (!strict || !o->vocab || clb_is_format(o->format, "functionary-v3.2"))
        return COLIBRI_OK;
    CLB_GO(clb_grammar_parse((clb_str){o->answer, strlen(o->answer)}, &g, err));
    if (!o->tree)
        CLB_GO(clb_token_tree_create(o->vocab, &own, err));
    for (size_t k = 0; k < CLB_MARKS && !may && o->format->open[k]; k++)
        CLB_GO(may_begin(own ? own : o->tree, g, o->format->open[k], &may, err));
    json_array_foreach(o->tools, i, tool)
    {
        if (!o->format->bare || may)
            break;
        head.n = 0;
        CLB_GO(clb_write_head(o->format, json_string_value(json_object_get(json_object_get(tool, "function"), "name")),
                              &head, err));
        CLB_GO(may_begin(own ? own : o->tree, g, head.data, &may, err));
    }
    if (may)
        rc = clb_fail(err, COLIBRI_E_UNSUPPORTED,
                      "the format of the answer lets it begin like a call in the model's format (%s), so that strict "
                      "functions cannot be kept apart from it: ask for a call with tool_choice \"required\", or for an "
                      "answer with \"none\"",
                      o->format->name);
done:
    clb_buf_free(&head);
    clb_grammar_release(g);
    clb_token_tree_destroy(own);
    return rc;
}

/* Who is spoken to comes first: everybody, or a function. */
static int addressed_body(clb_call_rules *m, const clb_tool_auto *o, const char *call)
{
    if (clb_tools_find(o->tools, "all"))
        return clb_fail(m->err, COLIBRI_E_UNSUPPORTED,
                        "in the model's format of calls (%s) \"all\" means the answer: give the function of that name "
                        "another one",
                        o->format->name);
    m->body.n = 0;
    if (!o->opened || strcmp(o->opened, o->format->open[0]) != 0)
        CLB_TRY(clb_rules_literal(m, o->format->open[0]));
    return clb_buf_printf(&m->body, m->err, " (\"all\\n\" " ANSWER "root | %s)", call);
}

int clb_tool_grammar_auto(const clb_tool_auto *o, clb_buf *gbnf, clb_error *err)
{
    clb_call_rules m;
    char call[CLB_GBNF_NAME], calls[CLB_GBNF_NAME];
    int rc = COLIBRI_OK;
    if (o->answer)
        CLB_TRY(check_apart(o, err));
    CLB_GO(clb_rules_begin(&m, o->format, o->vocab, err));
    if (o->format->shape == CLB_SHAPE_HARMONY) {
        CLB_GO(channel_body(&m, o));
    } else {
        CLB_GO(clb_calls_rule(&m, o->tools, NULL, NULL, call));
        m.body.n = 0;
        if (clb_is_format(o->format, "functionary-v3.2")) {
            CLB_GO(addressed_body(&m, o, call));
        } else {
            CLB_GO(o->format->bare ? bare_calls(&m, o, call, calls) : marked_calls(&m, o, call, calls));
            m.body.n = 0;
            if (o->answer)
                CLB_GO(clb_buf_printf(&m.body, err, ANSWER "root | %s", calls));
            else
                CLB_GO(text_body(&m, o, calls));
        }
    }
    CLB_GO(clb_rules_finish(&m, gbnf));
    if (o->answer) {
        CLB_GO(clb_buf_append(gbnf, "\n", 1, err));
        CLB_GO(clb_gbnf_rename(o->answer, ANSWER, gbnf, err));
    }
done:
    clb_rules_free(&m);
    return rc;
}
