/* GBNF text -> expressions. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/gbnf.h"

int clb_grow(void *p, uint32_t n, uint32_t *cap, size_t size, clb_error *err)
{
    if (n < *cap)
        return COLIBRI_OK;
    if (*cap > UINT32_MAX / 2 - 16)
        return CLB_NOMEM(err, "a grammar");
    const uint32_t bigger = *cap ? *cap * 2 : 16;
    void *old, *grown;
    memcpy(&old, p, sizeof old); /* p points to a pointer of some type */
    grown = realloc(old, bigger * size);
    if (!grown)
        return CLB_NOMEM(err, "a grammar");
    memcpy(p, &grown, sizeof grown);
    *cap = bigger;
    return COLIBRI_OK;
}

void clb_gbnf_say(clb_gbnf_reader *r, int code, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    clb_error_set(r->err, code, "grammar line %u, column %zu: %s", r->line, r->at - r->line_begin + 1, text);
}

int clb_gbnf_node_new(clb_gbnf_reader *r, enum clb_gbnf_kind kind, uint32_t *node)
{
    clb_gbnf_tree *t = r->t;
    if (t->n_nodes == CLB_GRAMMAR_MOST_NODES)
        return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "more than %u parts", CLB_GRAMMAR_MOST_NODES);
    CLB_TRY(clb_grow(&t->nodes, t->n_nodes, &t->cap_nodes, sizeof *t->nodes, r->err));
    t->nodes[t->n_nodes] = (clb_gbnf_node){.kind = kind, .child = CLB_GBNF_NONE, .next = CLB_GBNF_NONE};
    *node = t->n_nodes++;
    return COLIBRI_OK;
}

int clb_gbnf_text_add(clb_gbnf_reader *r, const char *p, size_t n)
{
    clb_gbnf_tree *t = r->t;
    for (size_t i = 0; i < n; i++) {
        CLB_TRY(clb_grow(&t->text, t->n_text, &t->cap_text, 1, r->err));
        t->text[t->n_text++] = p[i];
    }
    return COLIBRI_OK;
}

static bool is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static clb_str read_name(clb_gbnf_reader *r)
{
    const size_t begin = r->at;
    while (is_name(clb_gbnf_peek(r)))
        r->at++;
    return (clb_str){r->in.p + begin, r->at - begin};
}

/* White space and comments; with newlines or up to one. */
static void space(clb_gbnf_reader *r, bool newlines)
{
    for (;; r->at++) {
        const int c = clb_gbnf_peek(r);
        if (c == '#') {
            while (clb_gbnf_peek(r) >= 0 && clb_gbnf_peek(r) != '\n')
                r->at++;
            r->at--;
        } else if (c == '\n') {
            if (!newlines)
                return;
            r->line++;
            r->line_begin = r->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

/* ---- rules by name ---- */

static uint32_t hash(clb_str s)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * 16777619u;
    return h ^ h >> 15;
}

static int rehash(clb_gbnf_reader *r)
{
    const uint32_t size = r->names_size ? r->names_size * 2 : 64;
    uint32_t *names = calloc(size, sizeof *names);
    if (!names)
        return CLB_NOMEM(r->err, "a grammar");
    for (uint32_t i = 0; i < r->t->n_rules; i++) {
        const clb_gbnf_rule *rule = &r->t->rules[i];
        uint32_t at = hash((clb_str){r->t->text + rule->name, rule->name_n}) & (size - 1);
        while (names[at])
            at = (at + 1) & (size - 1);
        names[at] = i + 1;
    }
    free(r->names);
    r->names = names;
    r->names_size = size;
    return COLIBRI_OK;
}

static int find_rule(clb_gbnf_reader *r, clb_str name, uint32_t *out)
{
    clb_gbnf_tree *t = r->t;
    if (name.n > 4096)
        return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "a name of more than 4096 characters");
    if (t->n_rules * 2 >= r->names_size)
        CLB_TRY(rehash(r));
    uint32_t at = hash(name) & (r->names_size - 1);
    for (; r->names[at]; at = (at + 1) & (r->names_size - 1)) {
        const clb_gbnf_rule *rule = &t->rules[r->names[at] - 1];
        if (rule->name_n == name.n && memcmp(t->text + rule->name, name.p, name.n) == 0) {
            *out = r->names[at] - 1;
            return COLIBRI_OK;
        }
    }
    CLB_TRY(clb_grow(&t->rules, t->n_rules, &t->cap_rules, sizeof *t->rules, r->err));
    const uint32_t text = t->n_text;
    CLB_TRY(clb_gbnf_text_add(r, name.p, name.n));
    t->rules[t->n_rules] =
        (clb_gbnf_rule){.name = text, .name_n = (uint32_t)name.n, .body = CLB_GBNF_NONE, .line = r->line};
    *out = t->n_rules++;
    r->names[at] = t->n_rules;
    return COLIBRI_OK;
}

/* ---- expressions ---- */

static int number(clb_gbnf_reader *r, uint32_t *out)
{
    uint32_t v = 0;
    const size_t begin = r->at;
    for (; clb_gbnf_peek(r) >= '0' && clb_gbnf_peek(r) <= '9'; r->at++) {
        v = v * 10 + (uint32_t)(clb_gbnf_peek(r) - '0');
        if (v > 100000000u)
            return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "a number of more than 100000000");
    }
    if (r->at == begin)
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a number is missing");
    *out = v;
    return COLIBRI_OK;
}

/* {n}, {n,}, {n,m} or {,m} */
static int counts(clb_gbnf_reader *r, uint32_t *least, uint32_t *most)
{
    r->at++;
    space(r, false);
    *least = 0;
    if (clb_gbnf_peek(r) != ',')
        CLB_TRY(number(r, least));
    *most = *least;
    space(r, false);
    if (clb_gbnf_peek(r) == ',') {
        r->at++;
        space(r, false);
        *most = CLB_GBNF_FOREVER;
        if (clb_gbnf_peek(r) != '}')
            CLB_TRY(number(r, most));
        space(r, false);
    }
    if (clb_gbnf_peek(r) != '}')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a repetition is {n}, {n,} or {n,m}");
    if (*most < *least)
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a repetition of at least %u and at most %u", *least, *most);
    r->at++;
    return COLIBRI_OK;
}

/* <text>, <[id]>, with ! in front: any other token. */
static int token_mark(clb_gbnf_reader *r, uint32_t *node)
{
    clb_gbnf_tree *t = r->t;
    clb_token_mark mark = {0};
    if (clb_gbnf_peek(r) == '!') {
        mark.negated = true;
        r->at++;
        if (clb_gbnf_peek(r) != '<')
            return clb_gbnf_fail(r, COLIBRI_E_USAGE, "! stands before a token: !<text> or !<[id]>");
    }
    const size_t begin = r->at++;
    if (clb_gbnf_peek(r) == '[') {
        r->at++;
        CLB_TRY(number(r, &mark.id));
        if (clb_gbnf_peek(r) != ']')
            return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a token is <[id]> or <text>");
        r->at++;
    } else {
        while (clb_gbnf_peek(r) >= 0 && clb_gbnf_peek(r) != '>' && clb_gbnf_peek(r) != '\n')
            r->at++;
    }
    if (clb_gbnf_peek(r) != '>')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a token is not closed by > on its line");
    r->at++;
    if (r->in.p[begin + 1] != '[') {
        mark.text = t->n_text;
        mark.text_n = (uint32_t)(r->at - begin); /* the signs < and > belong to the token's text */
        CLB_TRY(clb_gbnf_text_add(r, r->in.p + begin, r->at - begin));
    }
    if (t->n_marks == CLB_GRAMMAR_MOST_TOKENS)
        return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "more than %u tokens", CLB_GRAMMAR_MOST_TOKENS);
    CLB_TRY(clb_grow(&t->marks, t->n_marks, &t->cap_marks, sizeof *t->marks, r->err));
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_TOKEN, node));
    t->nodes[*node].a = t->n_marks;
    t->marks[t->n_marks++] = mark;
    return COLIBRI_OK;
}

static int alternatives(clb_gbnf_reader *r, bool nested, uint32_t *node);

static int group(clb_gbnf_reader *r, uint32_t *node)
{
    if (r->depth == CLB_GRAMMAR_MOST_DEPTH)
        return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "parentheses more than %d deep", CLB_GRAMMAR_MOST_DEPTH);
    r->depth++;
    r->at++;
    space(r, true);
    CLB_TRY(alternatives(r, true, node));
    if (clb_gbnf_peek(r) != ')')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a closing parenthesis is missing");
    r->at++;
    r->depth--;
    return COLIBRI_OK;
}

/* One part of a sequence; *found is false at what cannot begin one. */
static int part(clb_gbnf_reader *r, uint32_t *node, bool *found)
{
    const int c = clb_gbnf_peek(r);
    *found = true;
    if (c == '"')
        return clb_gbnf_literal_node(r, node);
    if (c == '[')
        return clb_gbnf_class_node(r, node);
    if (c == '.')
        return clb_gbnf_any_node(r, node);
    if (c == '(')
        return group(r, node);
    if (c == '<' || c == '!')
        return token_mark(r, node);
    if (is_name(c)) {
        uint32_t rule;
        CLB_TRY(find_rule(r, read_name(r), &rule));
        CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_REF, node));
        r->t->nodes[*node].a = rule;
        return COLIBRI_OK;
    }
    *found = false;
    return COLIBRI_OK;
}

/* What ? * + { } after a part make of it. Levels of these are nesting too. */
static int repetitions(clb_gbnf_reader *r, bool nested, uint32_t *node)
{
    for (int levels = 0;; levels++) {
        space(r, nested);
        uint32_t least = 0, most = CLB_GBNF_FOREVER;
        switch (clb_gbnf_peek(r)) {
        case '*':
            r->at++;
            break;
        case '+':
            least = 1;
            r->at++;
            break;
        case '?':
            most = 1;
            r->at++;
            break;
        case '{':
            CLB_TRY(counts(r, &least, &most));
            break;
        default:
            return COLIBRI_OK;
        }
        if (levels == 4)
            return clb_gbnf_fail(r, COLIBRI_E_LIMIT, "more than 4 repetitions of one part");
        uint32_t repeat;
        CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_REPEAT, &repeat));
        r->t->nodes[repeat].a = least;
        r->t->nodes[repeat].b = most;
        r->t->nodes[repeat].child = *node;
        *node = repeat;
    }
}

static int sequence(clb_gbnf_reader *r, bool nested, uint32_t *node)
{
    uint32_t last = CLB_GBNF_NONE;
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_SEQ, node));
    for (;;) {
        uint32_t child;
        bool found;
        CLB_TRY(part(r, &child, &found));
        if (!found)
            break;
        CLB_TRY(repetitions(r, nested, &child));
        if (last == CLB_GBNF_NONE)
            r->t->nodes[*node].child = child;
        else
            r->t->nodes[last].next = child;
        last = child;
    }
    const int c = clb_gbnf_peek(r);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "%c has nothing before it to repeat", c);
    if (r->t->nodes[*node].child == last && last != CLB_GBNF_NONE) /* parentheses around one part are not nesting */
        *node = last;
    return COLIBRI_OK;
}

/* A rule may go on with | on the next line; `a ::= ...` there begins another rule. */
static bool next_line_goes_on(clb_gbnf_reader *r)
{
    clb_gbnf_reader ahead = *r;
    space(&ahead, true);
    if (clb_gbnf_peek(&ahead) != '|')
        return false;
    r->at = ahead.at;
    r->line = ahead.line;
    r->line_begin = ahead.line_begin;
    return true;
}

static int alternatives(clb_gbnf_reader *r, bool nested, uint32_t *node)
{
    uint32_t last;
    CLB_TRY(sequence(r, nested, &last));
    *node = last;
    if (clb_gbnf_peek(r) != '|' && (nested || !next_line_goes_on(r)))
        return COLIBRI_OK;
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_ALT, node));
    r->t->nodes[*node].child = last;
    while (clb_gbnf_peek(r) == '|' || (!nested && next_line_goes_on(r))) {
        uint32_t more;
        r->at++;
        space(r, true);
        CLB_TRY(sequence(r, nested, &more));
        r->t->nodes[last].next = more;
        last = more;
    }
    return COLIBRI_OK;
}

static int rule(clb_gbnf_reader *r)
{
    uint32_t index, body;
    const clb_str name = read_name(r);
    if (name.n == 0)
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a rule begins with its name: letters, digits, - and _");
    CLB_TRY(find_rule(r, name, &index));
    if (r->t->rules[index].body != CLB_GBNF_NONE)
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "rule \"%.*s\" is defined twice", (int)(name.n < 100 ? name.n : 100),
                             name.p);
    space(r, false);
    if (r->in.n - r->at < 3 || memcmp(r->in.p + r->at, "::=", 3) != 0)
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "::= is expected after the name of a rule");
    r->at += 3;
    space(r, true);
    CLB_TRY(alternatives(r, false, &body));
    if (clb_gbnf_peek(r) >= 0 && clb_gbnf_peek(r) != '\n')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "this can neither go on a rule nor end it");
    r->t->rules[index].body = body;
    return COLIBRI_OK;
}

/* Every rule that is mentioned exists. */
static int check_names(clb_gbnf_reader *r)
{
    const clb_gbnf_tree *t = r->t;
    for (uint32_t i = 0; i < t->n_rules; i++)
        if (t->rules[i].body == CLB_GBNF_NONE)
            return clb_fail(r->err, COLIBRI_E_USAGE, "grammar line %u: there is no rule \"%.*s\"", t->rules[i].line,
                            (int)(t->rules[i].name_n < 100 ? t->rules[i].name_n : 100), t->text + t->rules[i].name);
    return COLIBRI_OK;
}

int clb_gbnf_read(clb_str gbnf, clb_gbnf_tree *out, clb_error *err)
{
    *out = (clb_gbnf_tree){0};
    clb_gbnf_reader r = {.in = gbnf, .line = 1, .t = out, .err = err};
    int rc = COLIBRI_OK;
    if (gbnf.n > CLB_GRAMMAR_MOST_TEXT)
        return clb_fail(err, COLIBRI_E_LIMIT, "a grammar of %zu bytes; at most %u are read", gbnf.n,
                        CLB_GRAMMAR_MOST_TEXT);
    for (space(&r, true); r.at < r.in.n; space(&r, true))
        CLB_GO(rule(&r));
    const uint32_t n = out->n_rules;
    CLB_GO(find_rule(&r, (clb_str){"root", 4}, &out->root));
    if (out->n_rules > n) {
        rc = clb_fail(err, COLIBRI_E_USAGE, "the grammar has no rule \"root\"");
        goto done;
    }
    rc = check_names(&r);
done:
    free(r.names);
    return rc;
}

void clb_gbnf_tree_free(clb_gbnf_tree *t)
{
    free(t->text);
    free(t->nodes);
    free(t->ranges);
    free(t->rules);
    free(t->marks);
    *t = (clb_gbnf_tree){0};
}
