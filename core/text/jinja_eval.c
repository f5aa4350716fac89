/* Expressions of the Jinja interpreter. */
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

static int method(clb_jrun *r, const clb_jvalue *of, const char *name, clb_jvalue *out)
{
    void *m, *self;
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jmethod), &m, r->err));
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jvalue), &self, r->err));
    *(clb_jvalue *)self = *of;
    *(clb_jmethod *)m = (clb_jmethod){self, name};
    *out = (clb_jvalue){.type = J_METHOD, .as.method = m};
    return COLIBRI_OK;
}

/* x["name"] where x has no such item: jinja2 then looks for an attribute, so that schema["items"] of a schema without
 * "items" is the method of that name, and true. Templates were made with it. */
static int method_item(clb_jrun *r, const clb_jvalue *of, const clb_jvalue *key, clb_jvalue *out)
{
    char name[16];
    if (key->type != J_STR || key->as.s.n >= sizeof name)
        return COLIBRI_OK;
    memcpy(name, key->as.s.p, key->as.s.n);
    name[key->as.s.n] = '\0';
    if (!clb_jhas_method(of, name))
        return COLIBRI_OK;
    void *copy;
    CLB_TRY(clb_jalloc(&r->arena, sizeof name, &copy, r->err));
    memcpy(copy, name, sizeof name);
    return method(r, of, copy, out);
}

int clb_jget_attr(clb_jrun *r, const clb_jvalue *of, const char *name, clb_jvalue *out)
{
    if (of->type == J_UNDEFINED)
        return undefined_of(r, of, name);
    if (clb_jhas_method(of, name))
        return method(r, of, name, out);
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
    return out->type == J_UNDEFINED ? method_item(r, of, key, out) : COLIBRI_OK;
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

/* a < b < c: each neighbour pair, until one is false */
static int comparison(clb_jrun *r, const clb_jnode *e, clb_jvalue *out)
{
    clb_jvalue left, right;
    bool holds = true;
    CLB_TRY(clb_jeval(r, e->a, &left));
    for (size_t i = 0; i < e->n && holds; i++, left = right) {
        CLB_TRY(clb_jeval(r, e->items[i]->a, &right));
        CLB_TRY(clb_jcompare(r, e->items[i]->op, &left, &right, &holds));
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
    case J_UNDEFINED: /* a function that is not there, or a method of a value that is not of the expected type */
        return clb_jfail(r, e->a->kind == JN_NAME ? COLIBRI_E_UNSUPPORTED : COLIBRI_E_USAGE,
                         "unknown function \"%.*s\"", (int)f.as.s.n, f.as.s.p);
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
    return clb_jbinary(r, e->kind == JN_NEG ? JO_SUB : JO_ADD, &zero, &v, out);
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
        return clb_jbinary(r, e->op, &v, &w, out);
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
