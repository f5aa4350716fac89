/* Statements of Jinja templates -> syntax tree.
 *
 * What the fields of a node hold:
 *   BLOCK: items; TEXT: value; PRINT: a
 *   IF: items = bodies, named = their conditions, c = else or NULL
 *   FOR: items = targets (NAME), a = what to loop over, b = condition or NULL, named[0] = body, c = else or NULL
 *   SET: items = targets (NAME, or ATTR for ns.x), a = value; SET_BLOCK: items[0] = target, a = body, b = filters or
 * NULL MACRO: name, items = parameters (NAME, a = default or NULL), a = body FILTER_BLOCK: a = body, b = filters In
 * filters of blocks the innermost operand is a NULL, to be replaced by the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

static int block(clb_jparser *p, const char *const *ends, clb_jnode **out);

static int block_end(clb_jparser *p)
{
    if (p->t->type != JT_BLOCK_END)
        return clb_jparse_fail(p, "expected \"%}\"");
    p->t++;
    return COLIBRI_OK;
}

/* "endif %}" and the like, the tag's "{%" being behind us */
static int closing(clb_jparser *p, const char *name)
{
    char what[48];
    snprintf(what, sizeof what, "expected \"%s\"", name);
    if (!clb_jtake_name(p, name))
        return clb_jparse_fail(p, what);
    return block_end(p);
}

static int if_statement(clb_jparser *p, clb_jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    do {
        clb_jnode *condition, *body;
        CLB_TRY(clb_jparse_expr(p, &condition));
        CLB_TRY(block_end(p));
        CLB_TRY(block(p, ends, &body));
        size_t same = n->n;
        CLB_TRY(clb_jnode_add(p, &n->items, &n->n, body));
        CLB_TRY(clb_jnode_add(p, &n->named, &same, condition));
    } while (clb_jtake_name(p, "elif"));
    if (clb_jtake_name(p, "else")) {
        CLB_TRY(block_end(p));
        CLB_TRY(block(p, last, &n->c));
    }
    return closing(p, "endif");
}

/* "a" or "a, b" or "(a, b)" or "ns.a" */
static int targets(clb_jparser *p, bool attributes, clb_jnode *n)
{
    const bool parenthesis = clb_jtake_op(p, "(");
    do {
        clb_jnode *target;
        CLB_TRY(clb_jnode_new(p, JN_NAME, &target));
        CLB_TRY(clb_jname(p, &target->name));
        if (attributes && clb_jtake_op(p, ".")) {
            clb_jnode *of = target;
            CLB_TRY(clb_jnode_new(p, JN_ATTR, &target));
            target->a = of;
            CLB_TRY(clb_jname(p, &target->name));
        }
        CLB_TRY(clb_jnode_add(p, &n->items, &n->n, target));
    } while (clb_jtake_op(p, ","));
    return parenthesis ? clb_jexpect_op(p, ")") : COLIBRI_OK;
}

static int for_statement(clb_jparser *p, clb_jnode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    clb_jnode *body;
    CLB_TRY(targets(p, false, n));
    if (!clb_jtake_name(p, "in"))
        return clb_jparse_fail(p, "expected \"in\"");
    CLB_TRY(clb_jparse_tuple(p, false, &n->a));
    if (clb_jtake_name(p, "if"))
        CLB_TRY(clb_jparse_expr(p, &n->b));
    if (clb_jis_name(p, "recursive"))
        return clb_jparse_fail(p, "recursive loops are not supported");
    CLB_TRY(block_end(p));
    CLB_TRY(block(p, ends, &body));
    CLB_TRY(clb_jnode_add(p, &n->named, &n->n_named, body));
    if (clb_jtake_name(p, "else")) {
        CLB_TRY(block_end(p));
        CLB_TRY(block(p, last, &n->c));
    }
    return closing(p, "endfor");
}

static int set_statement(clb_jparser *p, clb_jnode *n)
{
    static const char *const last[] = {"endset", NULL};
    CLB_TRY(targets(p, true, n));
    if (clb_jtake_op(p, "=")) {
        CLB_TRY(clb_jparse_tuple(p, true, &n->a));
        return block_end(p);
    }
    n->kind = JN_SET_BLOCK;
    if (n->n != 1)
        return clb_jparse_fail(p, "expected \"=\"");
    if (clb_jtake_op(p, "|"))
        CLB_TRY(clb_jparse_filters(p, NULL, &n->b));
    CLB_TRY(block_end(p));
    CLB_TRY(block(p, last, &n->a));
    return closing(p, "endset");
}

static int macro_statement(clb_jparser *p, clb_jnode *n)
{
    static const char *const last[] = {"endmacro", NULL};
    CLB_TRY(clb_jname(p, &n->name));
    CLB_TRY(clb_jexpect_op(p, "("));
    while (!clb_jtake_op(p, ")")) {
        clb_jnode *parameter;
        CLB_TRY(clb_jnode_new(p, JN_NAME, &parameter));
        CLB_TRY(clb_jname(p, &parameter->name));
        if (clb_jtake_op(p, "="))
            CLB_TRY(clb_jparse_expr(p, &parameter->a));
        CLB_TRY(clb_jnode_add(p, &n->items, &n->n, parameter));
        if (!clb_jtake_op(p, ",") && !clb_jis_op(p, ")"))
            return clb_jparse_fail(p, "expected \",\" or \")\"");
    }
    CLB_TRY(block_end(p));
    CLB_TRY(block(p, last, &n->a));
    if (clb_jtake_name(p, "endmacro"))
        if (p->t->type == JT_NAME)
            p->t++; /* the name may be said again */
    return block_end(p);
}

static int filter_statement(clb_jparser *p, clb_jnode *n)
{
    static const char *const last[] = {"endfilter", NULL};
    CLB_TRY(clb_jparse_filters(p, NULL, &n->b));
    CLB_TRY(block_end(p));
    CLB_TRY(block(p, last, &n->a));
    return closing(p, "endfilter");
}

static int generation_statement(clb_jparser *p, clb_jnode **out)
{
    static const char *const last[] = {"endgeneration", NULL};
    CLB_TRY(block_end(p));
    CLB_TRY(block(p, last, out));
    return closing(p, "endgeneration");
}

/* Behind "{%". */
static int statement(clb_jparser *p, clb_jnode **out)
{
    CLB_TRY(clb_jnode_new(p, JN_IF, out));
    if (clb_jtake_name(p, "if"))
        return if_statement(p, *out);
    (*out)->kind = JN_FOR;
    if (clb_jtake_name(p, "for"))
        return for_statement(p, *out);
    (*out)->kind = JN_SET;
    if (clb_jtake_name(p, "set"))
        return set_statement(p, *out);
    (*out)->kind = JN_MACRO;
    if (clb_jtake_name(p, "macro"))
        return macro_statement(p, *out);
    (*out)->kind = JN_FILTER_BLOCK;
    if (clb_jtake_name(p, "filter"))
        return filter_statement(p, *out);
    (*out)->kind = JN_BREAK;
    if (clb_jtake_name(p, "break"))
        return block_end(p);
    (*out)->kind = JN_CONTINUE;
    if (clb_jtake_name(p, "continue"))
        return block_end(p);
    if (clb_jtake_name(p, "generation"))
        return generation_statement(p, out);
    return clb_jparse_fail(p, "a statement that is not supported");
}

/* Statements up to a tag that begins with one of `ends` (NULL: to the end of the template); its "{%" is taken. */
static int block(clb_jparser *p, const char *const *ends, clb_jnode **out)
{
    CLB_TRY(clb_jnode_new(p, JN_BLOCK, out));
    if (++p->depth > CLB_JINJA_MAX_DEPTH)
        return clb_jparse_fail(p, "statements that are nested too deeply");
    for (;;) {
        clb_jnode *n;
        if (p->t->type == JT_END) {
            if (ends)
                return clb_jparse_fail(p, "a block is not closed");
            break;
        }
        if (p->t->type == JT_TEXT) {
            CLB_TRY(clb_jnode_new(p, JN_TEXT, &n));
            n->value = (clb_jvalue){.type = J_STR, .as.s = {.p = p->t->s.p, .n = p->t->s.n}};
            p->t++;
        } else if (p->t->type == JT_VAR_BEGIN) {
            p->t++;
            CLB_TRY(clb_jnode_new(p, JN_PRINT, &n));
            CLB_TRY(clb_jparse_tuple(p, true, &n->a));
            if (p->t->type != JT_VAR_END)
                return clb_jparse_fail(p, "expected \"}}\"");
            p->t++;
        } else {
            p->t++; /* {% */
            bool end = false;
            for (const char *const *e = ends; e && *e; e++)
                end |= clb_jis_name(p, *e);
            if (end)
                break;
            CLB_TRY(statement(p, &n));
        }
        CLB_TRY(clb_jnode_add(p, &(*out)->items, &(*out)->n, n));
    }
    p->depth--;
    return COLIBRI_OK;
}

int clb_jparse_template(clb_jparser *p, clb_jnode **out)
{
    return block(p, NULL, out);
}

/* Long enough for every published template; a file may claim anything. */
#define SOURCE_MAX ((size_t)1 << 20)

int clb_jinja_parse(clb_str source, clb_jinja **out, clb_error *err)
{
    if (source.n > SOURCE_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "a chat template of %zu bytes; at most %zu", source.n, SOURCE_MAX);
    clb_jinja *t = calloc(1, sizeof *t);
    if (!t || !(t->source = malloc(source.n + 1))) {
        free(t);
        return CLB_NOMEM(err, "chat template");
    }
    size_t n = 0;
    for (size_t i = 0; i < source.n; i++) /* line ends become \n */
        if (source.p[i] == '\r') {
            t->source[n++] = '\n';
            i += i + 1 < source.n && source.p[i + 1] == '\n';
        } else {
            t->source[n++] = source.p[i];
        }
    t->source[n] = '\0';
    size_t k = 0;
    for (size_t i = 0; i < n && t->source[i] != '\n' && k + 4 < sizeof t->first_line; i++)
        t->first_line[k++] = t->source[i];
    if (k + 4 >= sizeof t->first_line)
        strcpy(t->first_line + k, "...");
    clb_jone_line(t->first_line);
    t->arena.limit = (size_t)64 << 20;

    clb_jparser p = {.arena = &t->arena, .err = err};
    clb_jtoken *tokens;
    int rc = clb_jlex(&t->arena, (clb_str){t->source, n}, &tokens, err);
    if (rc == COLIBRI_OK) {
        p.t = tokens;
        rc = clb_jparse_template(&p, &t->root);
    }
    if (rc) {
        char first[sizeof t->first_line];
        memcpy(first, t->first_line, sizeof first);
        clb_jinja_free(t);
        return rc == COLIBRI_E_NOMEM
                   ? rc
                   : clb_context(err, "chat template \"%s\" (--raw sends the prompt without it)", first);
    }
    *out = t;
    return COLIBRI_OK;
}

void clb_jinja_free(clb_jinja *t)
{
    if (!t)
        return;
    clb_jarena_free(&t->arena);
    free(t->source);
    free(t);
}
