/* Expressions of Jinja templates -> syntax tree, with Jinja's precedence:
 * if-else, or, and, not, comparison and in, + -, ~, * / // %, **, sign, postfix, filters and tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

int clb_jparse_fail(clb_jparser *p, const char *what)
{
    char at[24];
    if (p->t->type == JT_END)
        return clb_fail(p->err, COLIBRI_E_UNSUPPORTED, "line %u: %s at the end of the template", p->t->line, what);
    snprintf(at, sizeof at, "%.*s", p->t->s.n < 20 ? (int)p->t->s.n : 20, p->t->s.p);
    return clb_fail(p->err, COLIBRI_E_UNSUPPORTED, "line %u: %s at \"%s\"", p->t->line, what, clb_jone_line(at));
}

static bool token_is(const clb_jtoken *t, enum clb_jtoken_type type, const char *s)
{
    return t->type == type && t->s.n == strlen(s) && memcmp(t->s.p, s, t->s.n) == 0;
}

bool clb_jis_op(const clb_jparser *p, const char *op)
{
    return token_is(p->t, JT_OP, op);
}

bool clb_jis_name(const clb_jparser *p, const char *name)
{
    return token_is(p->t, JT_NAME, name);
}

bool clb_jtake_op(clb_jparser *p, const char *op)
{
    const bool is = clb_jis_op(p, op);
    p->t += is;
    return is;
}

bool clb_jtake_name(clb_jparser *p, const char *name)
{
    const bool is = clb_jis_name(p, name);
    p->t += is;
    return is;
}

int clb_jexpect_op(clb_jparser *p, const char *op)
{
    char what[32];
    snprintf(what, sizeof what, "expected \"%s\"", op);
    return clb_jtake_op(p, op) ? COLIBRI_OK : clb_jparse_fail(p, what);
}

int clb_jname(clb_jparser *p, const char **out)
{
    void *copy;
    if (p->t->type != JT_NAME)
        return clb_jparse_fail(p, "expected a name");
    CLB_TRY(clb_jalloc(p->arena, p->t->s.n + 1, &copy, p->err));
    memcpy(copy, p->t->s.p, p->t->s.n);
    *out = copy;
    p->t++;
    return COLIBRI_OK;
}

int clb_jnode_new(clb_jparser *p, enum clb_jkind kind, clb_jnode **out)
{
    void *n;
    CLB_TRY(clb_jalloc(p->arena, sizeof **out, &n, p->err));
    *out = n;
    **out = (clb_jnode){.kind = kind, .line = p->t->line};
    return COLIBRI_OK;
}

int clb_jnode_add(clb_jparser *p, clb_jnode ***list, size_t *n, clb_jnode *item)
{
    if ((*n & (*n - 1)) == 0) { /* 0 or a power of two: full */
        void *grown;
        CLB_TRY(clb_jalloc(p->arena, (*n ? *n * 2 : 1) * sizeof **list, &grown, p->err));
        if (*n)
            memcpy(grown, *list, *n * sizeof **list);
        *list = grown;
    }
    (*list)[(*n)++] = item;
    return COLIBRI_OK;
}

static int binary(clb_jparser *p, enum clb_jkind kind, enum clb_jop op, clb_jnode *a, clb_jnode *b, clb_jnode **out)
{
    CLB_TRY(clb_jnode_new(p, kind, out));
    (*out)->op = op;
    (*out)->a = a;
    (*out)->b = b;
    return COLIBRI_OK;
}

static int unary_expr(clb_jparser *p, bool filters, clb_jnode **out);

/* "(a, b, key=c)" behind the parenthesis, into items and named (whose nodes carry the keyword as name of a wrapper). */
static int arguments(clb_jparser *p, clb_jnode *call)
{
    while (!clb_jtake_op(p, ")")) {
        if (clb_jis_op(p, "*") || clb_jis_op(p, "**"))
            return clb_jparse_fail(p, "unpacked arguments are not supported");
        clb_jnode *value;
        if (p->t->type == JT_NAME && token_is(p->t + 1, JT_OP, "=")) {
            clb_jnode *key;
            CLB_TRY(clb_jnode_new(p, JN_CONST, &key));
            CLB_TRY(clb_jname(p, &key->name));
            p->t++;
            CLB_TRY(clb_jparse_expr(p, &value));
            key->a = value;
            CLB_TRY(clb_jnode_add(p, &call->named, &call->n_named, key));
        } else {
            CLB_TRY(clb_jparse_expr(p, &value));
            CLB_TRY(clb_jnode_add(p, &call->items, &call->n, value));
        }
        if (!clb_jtake_op(p, ",") && !clb_jis_op(p, ")"))
            return clb_jparse_fail(p, "expected \",\" or \")\"");
    }
    return COLIBRI_OK;
}

static int list_literal(clb_jparser *p, clb_jnode **out)
{
    CLB_TRY(clb_jnode_new(p, JN_LIST, out));
    while (!clb_jtake_op(p, "]")) {
        clb_jnode *item;
        CLB_TRY(clb_jparse_expr(p, &item));
        CLB_TRY(clb_jnode_add(p, &(*out)->items, &(*out)->n, item));
        if (!clb_jtake_op(p, ",") && !clb_jis_op(p, "]"))
            return clb_jparse_fail(p, "expected \",\" or \"]\"");
    }
    return COLIBRI_OK;
}

static int dict_literal(clb_jparser *p, clb_jnode **out)
{
    CLB_TRY(clb_jnode_new(p, JN_DICT, out));
    while (!clb_jtake_op(p, "}")) {
        clb_jnode *key, *value;
        CLB_TRY(clb_jparse_expr(p, &key));
        CLB_TRY(clb_jexpect_op(p, ":"));
        CLB_TRY(clb_jparse_expr(p, &value));
        CLB_TRY(clb_jnode_add(p, &(*out)->items, &(*out)->n, key));
        CLB_TRY(clb_jnode_add(p, &(*out)->named, &(*out)->n_named, value));
        if (!clb_jtake_op(p, ",") && !clb_jis_op(p, "}"))
            return clb_jparse_fail(p, "expected \",\" or \"}\"");
    }
    return COLIBRI_OK;
}

static int number(clb_jparser *p, clb_jnode *n)
{
    char text[64];
    size_t k = 0;
    for (size_t i = 0; i < p->t->s.n; i++)
        if (p->t->s.p[i] != '_') {
            if (k + 1 == sizeof text)
                return clb_jparse_fail(p, "a number of too many digits");
            text[k++] = p->t->s.p[i];
        }
    text[k] = '\0';
    if (p->t->type == JT_FLOAT)
        n->value = (clb_jvalue){.type = J_FLOAT, .as.f = strtod(text, NULL)};
    else if (k > 18)
        return clb_jparse_fail(p, "an integer beyond 18 digits");
    else
        n->value = clb_jint(strtoll(text, NULL, 10));
    p->t++;
    return COLIBRI_OK;
}

/* Neighbouring strings are one. */
static int strings(clb_jparser *p, clb_jnode *n)
{
    size_t len = 0;
    const clb_jtoken *t = p->t;
    void *copy;
    for (; t->type == JT_STRING; t++)
        len += t->s.n;
    CLB_TRY(clb_jalloc(p->arena, len, &copy, p->err));
    len = 0;
    for (; p->t->type == JT_STRING; p->t++) {
        memcpy((char *)copy + len, p->t->s.p, p->t->s.n);
        len += p->t->s.n;
    }
    n->value = (clb_jvalue){.type = J_STR, .as.s = {.p = copy, .n = len}};
    return COLIBRI_OK;
}

static int primary(clb_jparser *p, clb_jnode **out)
{
    if (p->t->type == JT_STRING) {
        CLB_TRY(clb_jnode_new(p, JN_CONST, out));
        return strings(p, *out);
    }
    if (p->t->type == JT_INT || p->t->type == JT_FLOAT) {
        CLB_TRY(clb_jnode_new(p, JN_CONST, out));
        return number(p, *out);
    }
    if (p->t->type == JT_NAME) {
        CLB_TRY(clb_jnode_new(p, JN_CONST, out));
        if (clb_jtake_name(p, "true") || clb_jtake_name(p, "True"))
            (*out)->value = clb_jbool(true);
        else if (clb_jtake_name(p, "false") || clb_jtake_name(p, "False"))
            (*out)->value = clb_jbool(false);
        else if (clb_jtake_name(p, "none") || clb_jtake_name(p, "None"))
            (*out)->value = (clb_jvalue){.type = J_NONE};
        else {
            (*out)->kind = JN_NAME;
            return clb_jname(p, &(*out)->name);
        }
        return COLIBRI_OK;
    }
    if (clb_jtake_op(p, "[")) {
        return list_literal(p, out);
    }
    if (clb_jtake_op(p, "{"))
        return dict_literal(p, out);
    if (clb_jtake_op(p, "(")) {
        if (clb_jtake_op(p, ")"))
            return clb_jnode_new(p, JN_TUPLE, out);
        CLB_TRY(clb_jparse_tuple(p, true, out));
        return clb_jexpect_op(p, ")");
    }
    return clb_jparse_fail(p, "expected an expression");
}

/* "[key]" or "[from:to:step]" behind the bracket */
static int subscript(clb_jparser *p, clb_jnode *of, clb_jnode **out)
{
    clb_jnode *part[3] = {NULL, NULL, NULL};
    size_t colons = 0;
    while (!clb_jtake_op(p, "]")) {
        if (clb_jtake_op(p, ":")) {
            if (++colons > 2)
                return clb_jparse_fail(p, "a slice of more than three parts");
        } else if (part[colons]) {
            return clb_jparse_fail(p, "expected \"]\"");
        } else {
            CLB_TRY(clb_jparse_expr(p, &part[colons]));
        }
    }
    if (!colons && !part[0])
        return clb_jparse_fail(p, "an empty subscript");
    if (!colons)
        return binary(p, JN_ITEM, JO_ADD, of, part[0], out);
    CLB_TRY(binary(p, JN_SLICE, JO_ADD, of, NULL, out));
    for (size_t i = 0; i < 3; i++) /* absent parts are NULL */
        CLB_TRY(clb_jnode_add(p, &(*out)->items, &(*out)->n, part[i]));
    return COLIBRI_OK;
}

static int call(clb_jparser *p, clb_jnode *of, clb_jnode **out)
{
    CLB_TRY(binary(p, JN_CALL, JO_ADD, of, NULL, out));
    return arguments(p, *out);
}

static int postfix(clb_jparser *p, clb_jnode **out)
{
    for (unsigned n = 0;; n++) {
        clb_jnode *of = *out;
        if (n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "a chain that is too long");
        if (clb_jtake_op(p, ".")) {
            if (p->t->type == JT_INT) {
                CLB_TRY(binary(p, JN_ITEM, JO_ADD, of, NULL, out));
                CLB_TRY(clb_jnode_new(p, JN_CONST, &(*out)->b));
                CLB_TRY(number(p, (*out)->b));
            } else {
                CLB_TRY(binary(p, JN_ATTR, JO_ADD, of, NULL, out));
                CLB_TRY(clb_jname(p, &(*out)->name));
            }
        } else if (clb_jtake_op(p, "[")) {
            CLB_TRY(subscript(p, of, out));
        } else if (clb_jtake_op(p, "(")) {
            CLB_TRY(call(p, of, out));
        } else {
            return COLIBRI_OK;
        }
    }
}

/* "x is [not] name", with one argument in or without parentheses */
static int test(clb_jparser *p, clb_jnode *of, clb_jnode **out)
{
    CLB_TRY(binary(p, JN_TEST, JO_ADD, of, NULL, out));
    (*out)->negate = clb_jtake_name(p, "not");
    CLB_TRY(clb_jname(p, &(*out)->name));
    if (clb_jtake_op(p, "("))
        return arguments(p, *out);
    const bool literal = p->t->type == JT_STRING || p->t->type == JT_INT || p->t->type == JT_FLOAT ||
                         clb_jis_op(p, "[") || clb_jis_op(p, "{");
    const bool name = p->t->type == JT_NAME && !clb_jis_name(p, "else") && !clb_jis_name(p, "or") &&
                      !clb_jis_name(p, "and") && !clb_jis_name(p, "is") && !clb_jis_name(p, "if") &&
                      !clb_jis_name(p, "in") && !clb_jis_name(p, "not");
    if (!literal && !name)
        return COLIBRI_OK;
    clb_jnode *argument;
    CLB_TRY(primary(p, &argument));
    CLB_TRY(postfix(p, &argument));
    return clb_jnode_add(p, &(*out)->items, &(*out)->n, argument);
}

int clb_jparse_filters(clb_jparser *p, clb_jnode *of, clb_jnode **out)
{
    *out = of;
    unsigned n = 0;
    do {
        if (++n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "a chain of filters that is too long");
        CLB_TRY(binary(p, JN_FILTER, JO_ADD, *out, NULL, out));
        CLB_TRY(clb_jname(p, &(*out)->name));
        if (clb_jtake_op(p, "("))
            CLB_TRY(arguments(p, *out));
    } while (clb_jtake_op(p, "|"));
    return COLIBRI_OK;
}

static int filters_and_tests(clb_jparser *p, clb_jnode **out)
{
    for (unsigned n = 0;; n++) {
        if (n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "a chain that is too long");
        if (clb_jtake_op(p, "|"))
            CLB_TRY(clb_jparse_filters(p, *out, out));
        else if (clb_jtake_name(p, "is"))
            CLB_TRY(test(p, *out, out));
        else if (clb_jtake_op(p, "("))
            CLB_TRY(call(p, *out, out));
        else
            return COLIBRI_OK;
    }
}

static int unary_expr(clb_jparser *p, bool filters, clb_jnode **out)
{
    const bool minus = clb_jis_op(p, "-");
    if (++p->depth > CLB_JINJA_MAX_DEPTH)
        return clb_jparse_fail(p, "an expression that is nested too deeply");
    if (minus || clb_jis_op(p, "+")) {
        clb_jnode *of;
        p->t++;
        CLB_TRY(unary_expr(p, false, &of));
        CLB_TRY(binary(p, minus ? JN_NEG : JN_POS, JO_ADD, of, NULL, out));
    } else {
        CLB_TRY(primary(p, out));
    }
    CLB_TRY(postfix(p, out));
    if (filters)
        CLB_TRY(filters_and_tests(p, out));
    p->depth--;
    return COLIBRI_OK;
}

typedef struct level_op {
    const char *text;
    enum clb_jop op;
} level_op;

/* Left-associative levels, loosest first. */
static const level_op levels[4][4] = {
    {{"+", JO_ADD}, {"-", JO_SUB}},
    {{"~", JO_CONCAT}},
    {{"*", JO_MUL}, {"/", JO_DIV}, {"//", JO_FLOORDIV}, {"%", JO_MOD}},
    {{"**", JO_POW}},
};

static int arithmetic(clb_jparser *p, size_t level, clb_jnode **out)
{
    if (level == 4)
        return unary_expr(p, true, out);
    CLB_TRY(arithmetic(p, level + 1, out));
    for (unsigned n = 0;; n++) {
        const level_op *found = NULL;
        for (size_t i = 0; i < 4 && levels[level][i].text; i++)
            if (clb_jtake_op(p, levels[level][i].text)) {
                found = &levels[level][i];
                break;
            }
        if (!found)
            return COLIBRI_OK;
        if (n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "an expression that is too long");
        clb_jnode *right;
        CLB_TRY(arithmetic(p, level + 1, &right));
        CLB_TRY(binary(p, JN_BINARY, found->op, *out, right, out));
    }
}

/* a < b <= c: COMPARE with the operands in items, and each operator on the node of its right operand's wrapper. */
static int comparison(clb_jparser *p, clb_jnode **out)
{
    static const level_op ops[] = {{"==", JO_EQ}, {"!=", JO_NE}, {"<=", JO_LE},
                                   {">=", JO_GE}, {"<", JO_LT},  {">", JO_GT}};
    CLB_TRY(arithmetic(p, 0, out));
    clb_jnode *compare = NULL;
    for (;;) {
        bool found = false;
        enum clb_jop op = JO_EQ;
        for (size_t i = 0; i < sizeof ops / sizeof *ops && !found; i++)
            if ((found = clb_jtake_op(p, ops[i].text)))
                op = ops[i].op;
        if (!found && clb_jis_name(p, "not") && token_is(p->t + 1, JT_NAME, "in")) {
            p->t += 2;
            found = true;
            op = JO_NOT_IN;
        } else if (!found && clb_jtake_name(p, "in")) {
            found = true;
            op = JO_IN;
        }
        if (!found)
            return COLIBRI_OK;
        if (!compare) {
            CLB_TRY(binary(p, JN_COMPARE, JO_EQ, *out, NULL, &compare));
            *out = compare;
        }
        clb_jnode *right, *wrapper;
        CLB_TRY(arithmetic(p, 0, &right));
        CLB_TRY(binary(p, JN_COMPARE, op, right, NULL, &wrapper));
        CLB_TRY(clb_jnode_add(p, &compare->items, &compare->n, wrapper));
    }
}

static int not_expr(clb_jparser *p, clb_jnode **out)
{
    unsigned nots = 0;
    while (clb_jtake_name(p, "not"))
        nots++;
    CLB_TRY(comparison(p, out));
    if (nots)
        CLB_TRY(binary(p, JN_NOT, JO_ADD, *out, NULL, out));
    if (nots && nots % 2 == 0)
        CLB_TRY(binary(p, JN_NOT, JO_ADD, *out, NULL, out));
    return COLIBRI_OK;
}

static int and_or(clb_jparser *p, bool is_or, clb_jnode **out)
{
    CLB_TRY(is_or ? and_or(p, false, out) : not_expr(p, out));
    for (unsigned n = 0; clb_jtake_name(p, is_or ? "or" : "and"); n++) {
        clb_jnode *right;
        if (n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "a condition that is too long");
        CLB_TRY(is_or ? and_or(p, false, &right) : not_expr(p, &right));
        CLB_TRY(binary(p, is_or ? JN_OR : JN_AND, JO_ADD, *out, right, out));
    }
    return COLIBRI_OK;
}

int clb_jparse_expr(clb_jparser *p, clb_jnode **out)
{
    if (++p->depth > CLB_JINJA_MAX_DEPTH)
        return clb_jparse_fail(p, "an expression that is nested too deeply");
    CLB_TRY(and_or(p, true, out));
    for (unsigned n = 0; clb_jtake_name(p, "if"); n++) {
        clb_jnode *condition, *other = NULL;
        if (n > CLB_JINJA_MAX_DEPTH)
            return clb_jparse_fail(p, "a condition that is too long");
        CLB_TRY(and_or(p, true, &condition));
        if (clb_jtake_name(p, "else"))
            CLB_TRY(clb_jparse_expr(p, &other));
        CLB_TRY(binary(p, JN_COND, JO_ADD, *out, condition, out));
        (*out)->c = other;
    }
    p->depth--;
    return COLIBRI_OK;
}

int clb_jparse_tuple(clb_jparser *p, bool with_cond, clb_jnode **out)
{
    CLB_TRY(with_cond ? clb_jparse_expr(p, out) : and_or(p, true, out));
    if (!clb_jis_op(p, ","))
        return COLIBRI_OK;
    clb_jnode *tuple, *item = *out;
    CLB_TRY(clb_jnode_new(p, JN_TUPLE, &tuple));
    CLB_TRY(clb_jnode_add(p, &tuple->items, &tuple->n, item));
    while (clb_jtake_op(p, ",")) {
        if (clb_jis_op(p, ")") || p->t->type == JT_BLOCK_END || p->t->type == JT_VAR_END || clb_jis_op(p, "="))
            break;
        CLB_TRY(with_cond ? clb_jparse_expr(p, &item) : and_or(p, true, &item));
        CLB_TRY(clb_jnode_add(p, &tuple->items, &tuple->n, item));
    }
    *out = tuple;
    return COLIBRI_OK;
}
