/* Expressions of the Jinja interpreter. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_impl.h"

/* Runtime nesting; the C stack is worth more than any template needs. */
#define EVAL_DEPTH 400

static const clb_jvalue *find(const clb_jscope *s, const char *name)
{
    for (; s; s = s->parent)
        for (size_t i = s->n; i-- > 0;)
            if (strcmp(s->vars[i].name, name) == 0)
                return &s->vars[i].value;
    return NULL;
}

int clb_jassign(clb_jrun *r, const char *name, clb_jvalue value)
{
    clb_jscope *s = r->scope;
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->vars[i].name, name) == 0) {
            s->vars[i].value = value;
            return COLIBRI_OK;
        }
    if (s->n == s->cap) {
        const size_t cap = s->cap ? s->cap * 2 : 8;
        void *grown;
        CLB_TRY(clb_jalloc(&r->arena, cap * sizeof *s->vars, &grown, r->err));
        if (s->n)
            memcpy(grown, s->vars, s->n * sizeof *s->vars);
        s->vars = grown;
        s->cap = cap;
    }
    s->vars[s->n++] = (clb_jvar){name, value};
    return COLIBRI_OK;
}

const clb_jvalue *clb_jarg(const clb_jargs *a, size_t i, const char *name)
{
    if (i < a->list->n)
        return &a->list->items[i];
    return name ? clb_jdict_at(a->named, name) : NULL;
}

static int undefined_of(clb_jrun *r, const clb_jvalue *of, const char *what)
{
    return clb_jfail(r, COLIBRI_E_USAGE, "\"%.*s\" is undefined, so it has no %s", (int)of->as.s.n, of->as.s.p, what);
}

int clb_jget_attr(clb_jrun *r, const clb_jvalue *of, const char *name, clb_jvalue *out)
{
    if (of->type == J_UNDEFINED)
        return undefined_of(r, of, name);
    if (clb_jhas_method(of, name)) {
        void *m, *self;
        CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jmethod), &m, r->err));
        CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jvalue), &self, r->err));
        *(clb_jvalue *)self = *of;
        *(clb_jmethod *)m = (clb_jmethod){self, name};
        *out = (clb_jvalue){.type = J_METHOD, .as.method = m};
        return COLIBRI_OK;
    }
    const clb_jvalue *v = of->type == J_DICT ? clb_jdict_at(of->as.dict, name) : NULL;
    *out = v ? *v : clb_jundefined(name);
    return COLIBRI_OK;
}

/* Index of Python, negative ones from the end; false if outside. */
static bool resolve(int64_t i, size_t n, size_t *out)
{
    if (i < 0)
        i += (int64_t)n;
    *out = (size_t)i;
    return i >= 0 && (uint64_t)i < n;
}

int clb_jget_item(clb_jrun *r, const clb_jvalue *container, const clb_jvalue *key, clb_jvalue *out)
{
    const clb_jvalue copy = *container, *of = &copy; /* out may be the container */
    size_t i;
    if (of->type == J_UNDEFINED)
        return undefined_of(r, of, "items");
    *out = clb_jundefined("item");
    if (of->type == J_DICT) {
        const clb_jvalue *v = clb_jdict_get(of->as.dict, key);
        if (v)
            *out = *v;
        else if (key->type == J_STR)
            out->as.s = key->as.s;
    } else if (of->type == J_LIST && (key->type == J_INT || key->type == J_BOOL)) {
        if (resolve(key->type == J_INT ? key->as.i : key->as.b, of->as.list->n, &i))
            *out = of->as.list->items[i];
    } else if (of->type == J_STR && key->type == J_INT) {
        if (resolve(key->as.i, clb_jlength(of), &i)) {
            const size_t from = clb_jchar_at(of->as.s, i), to = clb_jchar_at(of->as.s, i + 1);
            *out = (clb_jvalue){.type = J_STR, .as.s = clb_jsub(of->as.s, from, to)};
        }
    }
    return COLIBRI_OK;
}

static int slice_bound(clb_jrun *r, const clb_jnode *e, int64_t *out, bool *given)
{
    clb_jvalue v = {.type = J_NONE};
    if (e)
        CLB_TRY(clb_jeval(r, e, &v));
    *given = v.type != J_NONE;
    if (*given && v.type != J_INT)
        return clb_jfail(r, COLIBRI_E_USAGE, "a slice by %s", clb_jtype_name(&v));
    if (*given)
        *out = v.as.i;
    return COLIBRI_OK;
}

static int slice(clb_jrun *r, const clb_jnode *e, const clb_jvalue *of, clb_jvalue *out)
{
    int64_t from = 0, to = 0, step = 1;
    bool has_from, has_to, has_step;
    CLB_TRY(slice_bound(r, e->items[0], &from, &has_from));
    CLB_TRY(slice_bound(r, e->items[1], &to, &has_to));
    CLB_TRY(slice_bound(r, e->items[2], &step, &has_step));
    if (of->type != J_STR && of->type != J_LIST)
        return of->type == J_UNDEFINED ? undefined_of(r, of, "slices")
                                       : clb_jfail(r, COLIBRI_E_USAGE, "%s cannot be sliced", clb_jtype_name(of));
    const int64_t n = (int64_t)clb_jlength(of);
    if (step == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "a slice with step 0");
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    from = !has_from ? (step > 0 ? low : high) : from < 0 ? from + n : from;
    to = !has_to ? (step > 0 ? high : low) : to < 0 ? to + n : to;
    from = from < low ? low : from > high ? high : from;
    to = to < low ? low : to > high ? high : to;
    if (of->type == J_STR && step == 1) {
        const size_t a = clb_jchar_at(of->as.s, (size_t)from), b = to > from ? clb_jchar_at(of->as.s, (size_t)to) : a;
        *out = (clb_jvalue){.type = J_STR, .as.s = clb_jsub(of->as.s, a, b)};
        return COLIBRI_OK;
    }
    clb_jlist items;
    clb_jout text = {0};
    CLB_TRY(clb_jiterate(r, of, &items));
    if (of->type == J_LIST) {
        CLB_TRY(clb_jlist_new(r, out));
        out->as.list->tuple = of->as.list->tuple;
    }
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (of->type == J_STR)
            CLB_TRY(clb_jout_put(r, &text, items.items[i].as.s));
        else
            CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
        if (step > 0 ? step >= to - i : step <= to - i)
            break; /* and no overflow */
    }
    if (of->type == J_STR)
        *out = clb_jout_value(&text);
    return COLIBRI_OK;
}

static bool is_number(const clb_jvalue *v)
{
    return v->type == J_INT || v->type == J_FLOAT || v->type == J_BOOL;
}

static double as_float(const clb_jvalue *v)
{
    return v->type == J_FLOAT ? v->as.f : v->type == J_INT ? (double)v->as.i : v->as.b;
}

static int64_t as_int(const clb_jvalue *v)
{
    return v->type == J_INT ? v->as.i : v->as.b;
}

static int integers(clb_jrun *r, enum clb_jop op, int64_t a, int64_t b, clb_jvalue *out)
{
    int64_t v = 0;
    bool overflow = false;
    switch (op) {
    case JO_ADD:
        overflow = __builtin_add_overflow(a, b, &v);
        break;
    case JO_SUB:
        overflow = __builtin_sub_overflow(a, b, &v);
        break;
    case JO_MUL:
        overflow = __builtin_mul_overflow(a, b, &v);
        break;
    case JO_POW:
        for (v = 1; b > 0 && !overflow; b--) {
            overflow = __builtin_mul_overflow(v, a, &v);
            if (v == 0 || (v == 1 && a == 1))
                break;
            if (a == -1 && b > 2)
                b = 2 + b % 2;
        }
        break;
    default: /* floor division and its remainder */
        if (b == 0)
            return clb_jfail(r, COLIBRI_E_USAGE, "division by zero");
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) {
            const int64_t q = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
            v = op == JO_FLOORDIV ? q : a - q * b;
        }
        break;
    }
    if (overflow)
        return clb_jfail(r, COLIBRI_E_LIMIT, "an integer beyond 64 bits");
    *out = clb_jint(v);
    return COLIBRI_OK;
}

static int floats(clb_jrun *r, enum clb_jop op, double a, double b, clb_jvalue *out)
{
    double v;
    if (b == 0 && (op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD))
        return clb_jfail(r, COLIBRI_E_USAGE, "division by zero");
    switch (op) {
    case JO_ADD:
        v = a + b;
        break;
    case JO_SUB:
        v = a - b;
        break;
    case JO_MUL:
        v = a * b;
        break;
    case JO_DIV:
        v = a / b;
        break;
    case JO_FLOORDIV:
        v = floor(a / b);
        break;
    case JO_MOD:
        v = a - floor(a / b) * b;
        break;
    default:
        v = pow(a, b);
        break;
    }
    *out = (clb_jvalue){.type = J_FLOAT, .as.f = v};
    return COLIBRI_OK;
}

static int repeat(clb_jrun *r, const clb_jvalue *text, int64_t times, clb_jvalue *out)
{
    clb_jout o = {0};
    for (int64_t i = 0; i < times && text->as.s.n; i++)
        CLB_TRY(clb_jout_put(r, &o, text->as.s));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

static int binary(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, clb_jvalue *out)
{
    static const char *const sign[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    if (op == JO_CONCAT) {
        clb_jstr x, y;
        CLB_TRY(clb_jto_str(r, a, &x));
        CLB_TRY(clb_jto_str(r, b, &y));
        return clb_jconcat(r, x, y, out);
    }
    if (op == JO_ADD && a->type == J_STR && b->type == J_STR)
        return clb_jconcat(r, a->as.s, b->as.s, out);
    if (op == JO_ADD && a->type == J_LIST && b->type == J_LIST) {
        CLB_TRY(clb_jlist_new(r, out));
        for (size_t i = 0; i < a->as.list->n; i++)
            CLB_TRY(clb_jlist_push(r, out->as.list, a->as.list->items[i]));
        for (size_t i = 0; i < b->as.list->n; i++)
            CLB_TRY(clb_jlist_push(r, out->as.list, b->as.list->items[i]));
        return COLIBRI_OK;
    }
    if (op == JO_MUL && a->type == J_STR && b->type == J_INT)
        return repeat(r, a, b->as.i, out);
    if (op == JO_MUL && b->type == J_STR && a->type == J_INT)
        return repeat(r, b, a->as.i, out);
    if (is_number(a) && is_number(b)) {
        const bool whole = a->type != J_FLOAT && b->type != J_FLOAT && op != JO_DIV && !(op == JO_POW && as_int(b) < 0);
        return whole ? integers(r, op, as_int(a), as_int(b), out) : floats(r, op, as_float(a), as_float(b), out);
    }
    const clb_jvalue *undefined = a->type == J_UNDEFINED ? a : b->type == J_UNDEFINED ? b : NULL;
    if (undefined)
        return clb_jfail(r, COLIBRI_E_USAGE, "\"%.*s\" is undefined", (int)undefined->as.s.n, undefined->as.s.p);
    return clb_jfail(r, COLIBRI_E_USAGE, "%s %s %s", clb_jtype_name(a), sign[op], clb_jtype_name(b));
}

static int contains(clb_jrun *r, const clb_jvalue *item, const clb_jvalue *in, bool *out)
{
    *out = false;
    if (in->type == J_STR) {
        if (item->type != J_STR)
            return clb_jfail(r, COLIBRI_E_USAGE, "%s in a string", clb_jtype_name(item));
        *out = item->as.s.n == 0 || memmem(in->as.s.p, in->as.s.n, item->as.s.p, item->as.s.n) != NULL;
        return COLIBRI_OK;
    }
    if (in->type == J_DICT) {
        *out = clb_jdict_get(in->as.dict, item) != NULL;
        return COLIBRI_OK;
    }
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, in, &items));
    for (size_t i = 0; i < items.n && !*out; i++)
        *out = clb_jequal(&items.items[i], item);
    return COLIBRI_OK;
}

static int compare(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, bool *out)
{
    int order = 0;
    if (op == JO_EQ || op == JO_NE) {
        *out = clb_jequal(a, b) == (op == JO_EQ);
        return COLIBRI_OK;
    }
    if (op == JO_IN || op == JO_NOT_IN) {
        CLB_TRY(contains(r, a, b, out));
        *out = *out == (op == JO_IN);
        return COLIBRI_OK;
    }
    CLB_TRY(clb_jorder(r, a, b, &order));
    *out = op == JO_LT ? order < 0 : op == JO_LE ? order <= 0 : op == JO_GT ? order > 0 : order >= 0;
    return COLIBRI_OK;
}

/* a < b < c: each neighbour pair, until one is false */
static int comparison(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue left, right;
    bool holds = true;
    CLB_TRY(clb_jeval(r, e->a, &left));
    for (size_t i = 0; i < e->n && holds; i++, left = right) {
        CLB_TRY(clb_jeval(r, e->items[i]->a, &right));
        CLB_TRY(compare(r, e->items[i]->op, &left, &right, &holds));
    }
    *out = clb_jbool(holds);
    return COLIBRI_OK;
}

static int sequence(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    CLB_TRY(clb_jlist_new(r, out));
    out->as.list->tuple = e->kind == JN_TUPLE;
    for (size_t i = 0; i < e->n; i++) {
        clb_jvalue item;
        CLB_TRY(clb_jeval(r, e->items[i], &item));
        CLB_TRY(clb_jlist_push(r, out->as.list, item));
    }
    return COLIBRI_OK;
}

static int dict(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    CLB_TRY(clb_jdict_new(r, out));
    for (size_t i = 0; i < e->n; i++) {
        clb_jvalue key, value;
        CLB_TRY(clb_jeval(r, e->items[i], &key));
        CLB_TRY(clb_jeval(r, e->named[i], &value));
        CLB_TRY(clb_jdict_set(r, out->as.dict, key, value));
    }
    return COLIBRI_OK;
}

static int arguments(clb_jrun *r, const clb_jnode *e, clb_jvalue *list, clb_jvalue *named)
{
    CLB_TRY(clb_jlist_new(r, list));
    CLB_TRY(clb_jdict_new(r, named));
    for (size_t i = 0; i < e->n; i++) {
        clb_jvalue v;
        CLB_TRY(clb_jeval(r, e->items[i], &v));
        CLB_TRY(clb_jlist_push(r, list->as.list, v));
    }
    for (size_t i = 0; i < e->n_named; i++) {
        clb_jvalue v;
        CLB_TRY(clb_jeval(r, e->named[i]->a, &v));
        CLB_TRY(clb_jdict_set(r, named->as.dict, clb_jstr_lit(e->named[i]->name), v));
    }
    return COLIBRI_OK;
}

static int call(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue f, list, named;
    CLB_TRY(clb_jeval(r, e->a, &f));
    CLB_TRY(arguments(r, e, &list, &named));
    const clb_jargs args = {list.as.list, named.as.dict};
    r->line = e->line;
    switch (f.type) {
    case J_MACRO:
        return clb_jcall_macro(r, f.as.macro, args.list, args.named, out);
    case J_FUNCTION:
        return clb_jcall_function(r, f.as.function, &args, out);
    case J_METHOD:
        return clb_jcall_method(r, f.as.method->self, f.as.method->name, &args, out);
    case J_UNDEFINED:
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "unknown function \"%.*s\"", (int)f.as.s.n, f.as.s.p);
    default:
        return clb_jfail(r, COLIBRI_E_USAGE, "%s cannot be called", clb_jtype_name(&f));
    }
}

static int name(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    const clb_jvalue *v = find(r->scope, e->name);
    if (v)
        *out = *v;
    else if (clb_jhas_function(e->name))
        *out = (clb_jvalue){.type = J_FUNCTION, .as.function = e->name};
    else
        *out = clb_jundefined(e->name);
    return COLIBRI_OK;
}

static int negative(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    const clb_jvalue zero = clb_jint(0);
    clb_jvalue v;
    CLB_TRY(clb_jeval(r, e->a, &v));
    return binary(r, e->kind == JN_NEG ? JO_SUB : JO_ADD, &zero, &v, out);
}

static int filter(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue of, list, named;
    CLB_TRY(clb_jeval(r, e->a, &of));
    CLB_TRY(arguments(r, e, &list, &named));
    const clb_jargs args = {list.as.list, named.as.dict};
    r->line = e->line;
    return clb_jfilter(r, e->name, &of, &args, out);
}

static int test(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue of, list, named;
    bool holds;
    CLB_TRY(clb_jeval(r, e->a, &of));
    CLB_TRY(arguments(r, e, &list, &named));
    const clb_jargs args = {list.as.list, named.as.dict};
    r->line = e->line;
    CLB_TRY(clb_jtest(r, e->name, &of, &args, &holds));
    *out = clb_jbool(holds != e->negate);
    return COLIBRI_OK;
}

static int condition(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue v;
    CLB_TRY(clb_jeval(r, e->b, &v));
    if (clb_jtrue(&v))
        return clb_jeval(r, e->a, out);
    if (e->c)
        return clb_jeval(r, e->c, out);
    *out = clb_jundefined("the else of an if expression");
    return COLIBRI_OK;
}

static int eval(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue v, w;
    switch (e->kind) {
    case JN_CONST:
        *out = e->value;
        return COLIBRI_OK;
    case JN_NAME:
        return name(r, e, out);
    case JN_LIST:
    case JN_TUPLE:
        return sequence(r, e, out);
    case JN_DICT:
        return dict(r, e, out);
    case JN_ATTR:
        CLB_TRY(clb_jeval(r, e->a, &v));
        r->line = e->line;
        return clb_jget_attr(r, &v, e->name, out);
    case JN_ITEM:
        CLB_TRY(clb_jeval(r, e->a, &v));
        CLB_TRY(clb_jeval(r, e->b, &w));
        r->line = e->line;
        return clb_jget_item(r, &v, &w, out);
    case JN_SLICE:
        CLB_TRY(clb_jeval(r, e->a, &v));
        return slice(r, e, &v, out);
    case JN_CALL:
        return call(r, e, out);
    case JN_FILTER:
        return filter(r, e, out);
    case JN_TEST:
        return test(r, e, out);
    case JN_NOT:
        CLB_TRY(clb_jeval(r, e->a, &v));
        *out = clb_jbool(!clb_jtrue(&v));
        return COLIBRI_OK;
    case JN_NEG:
    case JN_POS:
        return negative(r, e, out);
    case JN_BINARY:
        CLB_TRY(clb_jeval(r, e->a, &v));
        CLB_TRY(clb_jeval(r, e->b, &w));
        r->line = e->line;
        return binary(r, e->op, &v, &w, out);
    case JN_AND:
    case JN_OR:
        CLB_TRY(clb_jeval(r, e->a, out));
        return clb_jtrue(out) == (e->kind == JN_AND) ? clb_jeval(r, e->b, out) : COLIBRI_OK;
    case JN_COMPARE:
        return comparison(r, e, out);
    case JN_COND:
        return condition(r, e, out);
    default:
        return clb_jfail(r, COLIBRI_E_INTERNAL, "a statement in an expression");
    }
}

int clb_jeval(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    r->line = e->line;
    if (++r->steps > CLB_JINJA_MAX_STEPS)
        return clb_jfail(r, COLIBRI_E_LIMIT, "the template does not come to an end");
    if (++r->depth > EVAL_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "calls are nested too deeply");
    CLB_TRY(eval(r, e, out));
    r->depth--;
    return COLIBRI_OK;
}
