/* Arithmetic, concatenation and comparison of the Jinja interpreter, as Python does them. */
#include <math.h>
#include <string.h>

#include "text/jinja_impl.h"

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
    const bool safe = text->as.s.safe;
    *out = clb_jout_value(&o);
    out->as.s.safe = safe;
    return COLIBRI_OK;
}

int clb_jbinary(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, clb_jvalue *out)
{
    static const char *const sign[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    if (op == JO_CONCAT) {
        clb_jstr x, y;
        CLB_TRY(clb_jto_str(r, a, &x));
        CLB_TRY(clb_jto_str(r, b, &y));
        return clb_jconcat(r, x, y, out);
    }
    if (op == JO_ADD && a->type == J_STR && b->type == J_STR) {
        const bool safe = a->as.s.safe || b->as.s.safe;
        clb_jstr x = a->as.s, y = b->as.s;
        if (safe)
            CLB_TRY(clb_jescape(r, x, &x));
        if (safe)
            CLB_TRY(clb_jescape(r, y, &y));
        CLB_TRY(clb_jconcat(r, x, y, out));
        out->as.s.safe = safe;
        return COLIBRI_OK;
    }
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
    if (op == JO_MUL && a->type == J_LIST && b->type == J_INT) {
        CLB_TRY(clb_jlist_new(r, out));
        for (int64_t i = 0; i < b->as.i && a->as.list->n; i++)
            for (size_t k = 0; k < a->as.list->n; k++)
                CLB_TRY(clb_jlist_push(r, out->as.list, a->as.list->items[k]));
        return COLIBRI_OK;
    }
    if (op == JO_MOD && a->type == J_STR) {
        const clb_jlist one = {.items = (clb_jvalue *)b, .n = 1};
        return clb_jpercent(r, a->as.s, b->type == J_LIST && b->as.list->tuple ? b->as.list : &one, out);
    }
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

int clb_jcompare(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, bool *out)
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
