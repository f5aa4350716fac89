/* Filters of the Jinja interpreter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

typedef int (*filter_fn)(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out);

static clb_jvalue str(clb_jstr s)
{
    return (clb_jvalue){.type = J_STR, .as.s = s};
}

/* Argument i as an integer, or the default. */
static int int_arg(clb_jrun *r, const clb_jargs *a, size_t i, const char *name, int64_t def, int64_t *out)
{
    const clb_jvalue *v = clb_jarg(a, i, name);
    *out = def;
    if (!v || v->type == J_NONE)
        return COLIBRI_OK;
    if (v->type != J_INT && v->type != J_BOOL)
        return clb_jfail(r, COLIBRI_E_USAGE, "argument %s is %s, not a number", name, clb_jtype_name(v));
    *out = v->type == J_INT ? v->as.i : v->as.b;
    return COLIBRI_OK;
}

static bool bool_arg(const clb_jargs *a, size_t i, const char *name)
{
    const clb_jvalue *v = clb_jarg(a, i, name);
    return v && clb_jtrue(v);
}

static int f_trim(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    clb_jstr s;
    CLB_TRY(clb_jto_str(r, of, &s));
    CLB_TRY(clb_jstrip(&s, clb_jarg(a, 0, "chars"), true, true, &s));
    *out = str(s);
    return COLIBRI_OK;
}

static int f_length(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    if (of->type != J_STR && of->type != J_LIST && of->type != J_DICT && of->type != J_UNDEFINED)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s has no length", clb_jtype_name(of));
    *out = clb_jint((int64_t)clb_jlength(of));
    return COLIBRI_OK;
}

static int f_string(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    out->type = J_STR;
    return clb_jto_str(r, of, &out->as.s);
}

static int f_default(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)r;
    const clb_jvalue *v = clb_jarg(a, 0, "default_value");
    const bool missing = of->type == J_UNDEFINED || (bool_arg(a, 1, "boolean") && !clb_jtrue(of));
    *out = !missing ? *of : v ? *v : clb_jstr_lit("");
    return COLIBRI_OK;
}

static int f_tojson(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    /* as transformers defines it: ensure_ascii, indent, separators, sort_keys */
    const clb_jvalue *separators = clb_jarg(a, 2, "separators");
    clb_jout o = {0};
    int64_t indent;
    CLB_TRY(int_arg(r, a, 1, "indent", -1, &indent));
    if ((separators && separators->type != J_NONE) || bool_arg(a, 3, "sort_keys") || indent > 32)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "tojson with separators, sort_keys or a wide indent");
    CLB_TRY(clb_jout_json(r, &o, of, bool_arg(a, 0, "ensure_ascii"), (int)indent, 0));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

static int f_lower(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_string(r, of, a, out));
    return clb_jcase(r, out->as.s, 'l', out);
}

static int f_upper(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_string(r, of, a, out));
    return clb_jcase(r, out->as.s, 'u', out);
}

static int f_capitalize(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_string(r, of, a, out));
    return clb_jcase(r, out->as.s, 'c', out);
}

static int f_title(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_string(r, of, a, out));
    return clb_jcase(r, out->as.s, 't', out);
}

static int f_join(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *separator = clb_jarg(a, 0, "d"), *attribute = clb_jarg(a, 1, "attribute");
    clb_jstr sep = {.p = "", .n = 0};
    if (attribute)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "join by attribute");
    if (separator)
        CLB_TRY(clb_jto_str(r, separator, &sep));
    return clb_jjoin(r, of, sep, false, out);
}

static int f_replace(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *old = clb_jarg(a, 0, "old"), *with = clb_jarg(a, 1, "new");
    clb_jstr s, x, y;
    int64_t count;
    if (!old || !with)
        return clb_jfail(r, COLIBRI_E_USAGE, "replace takes two arguments");
    CLB_TRY(clb_jto_str(r, of, &s));
    CLB_TRY(clb_jto_str(r, old, &x));
    CLB_TRY(clb_jto_str(r, with, &y));
    CLB_TRY(int_arg(r, a, 2, "count", -1, &count));
    return clb_jreplace(r, s, x, y, count, out);
}

static int f_safe(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)r, (void)a;
    *out = *of; /* nothing is escaped here */
    return COLIBRI_OK;
}

static int f_items(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    CLB_TRY(clb_jlist_new(r, out));
    if (of->type == J_UNDEFINED)
        return COLIBRI_OK;
    if (of->type != J_DICT)
        return clb_jfail(r, COLIBRI_E_USAGE, "items of %s", clb_jtype_name(of));
    for (size_t i = 0; i < of->as.dict->n; i++) {
        clb_jvalue pair;
        CLB_TRY(clb_jlist_new(r, &pair));
        pair.as.list->tuple = true;
        CLB_TRY(clb_jlist_push(r, pair.as.list, of->as.dict->keys[i]));
        CLB_TRY(clb_jlist_push(r, pair.as.list, of->as.dict->values[i]));
        CLB_TRY(clb_jlist_push(r, out->as.list, pair));
    }
    return COLIBRI_OK;
}

/* What an item is sorted by: itself, or with `pairs` its first part; without case if asked. */
static int sort_key(clb_jrun *r, const clb_jvalue *item, bool pairs, bool caseless, clb_jvalue *out)
{
    *out = pairs ? item->as.list->items[0] : *item;
    return caseless && out->type == J_STR ? clb_jcase(r, out->as.s, 'l', out) : COLIBRI_OK;
}

/* Insertion sort: stable, and lists in templates are short; steps are counted. */
static int sort_list(clb_jrun *r, clb_jlist *l, bool reverse, bool caseless, bool pairs)
{
    for (size_t i = 1; i < l->n; i++) {
        const clb_jvalue item = l->items[i];
        clb_jvalue x, y;
        size_t k = i;
        CLB_TRY(sort_key(r, &item, pairs, caseless, &x));
        for (; k > 0; k--) {
            int order;
            if (++r->steps > CLB_JINJA_MAX_STEPS)
                return clb_jfail(r, COLIBRI_E_LIMIT, "sorting too much");
            CLB_TRY(sort_key(r, &l->items[k - 1], pairs, caseless, &y));
            CLB_TRY(clb_jorder(r, &x, &y, &order));
            if (reverse ? order <= 0 : order >= 0)
                break;
            l->items[k] = l->items[k - 1];
        }
        l->items[k] = item;
    }
    return COLIBRI_OK;
}

static int copy_list(clb_jrun *r, const clb_jvalue *of, clb_jvalue *out)
{
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = 0; i < items.n; i++)
        CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
    return COLIBRI_OK;
}

static int f_list(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    return copy_list(r, of, out);
}

static int f_sort(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    if (clb_jarg(a, 2, "attribute"))
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "sort by attribute");
    CLB_TRY(copy_list(r, of, out));
    return sort_list(r, out->as.list, bool_arg(a, 0, "reverse"), !bool_arg(a, 1, "case_sensitive"), false);
}

static int f_dictsort(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_items(r, of, a, out));
    if (a->list->n || a->named->n)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "dictsort with arguments");
    return sort_list(r, out->as.list, false, true, true);
}

static int f_first(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, of, &items));
    *out = items.n ? items.items[0] : clb_jundefined("first");
    return COLIBRI_OK;
}

static int f_last(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, of, &items));
    *out = items.n ? items.items[items.n - 1] : clb_jundefined("last");
    return COLIBRI_OK;
}

static int f_reverse(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    clb_jlist items;
    clb_jout text = {0};
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = items.n; i-- > 0;) {
        if (of->type == J_STR)
            CLB_TRY(clb_jout_put(r, &text, items.items[i].as.s));
        else
            CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
    }
    if (of->type == J_STR)
        *out = clb_jout_value(&text);
    return COLIBRI_OK;
}

static int f_unique(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = 0; i < items.n; i++) {
        bool seen = false;
        for (size_t k = 0; k < out->as.list->n && !seen; k++)
            seen = clb_jequal(&out->as.list->items[k], &items.items[i]);
        if ((r->steps += out->as.list->n) > CLB_JINJA_MAX_STEPS)
            return clb_jfail(r, COLIBRI_E_LIMIT, "unique over too much");
        if (!seen)
            CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
    }
    return COLIBRI_OK;
}

static int extreme(clb_jrun *r, const clb_jvalue *of, int sign, clb_jvalue *out)
{
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, of, &items));
    *out = items.n ? items.items[0] : clb_jundefined("an empty sequence");
    for (size_t i = 1; i < items.n; i++) {
        int order;
        CLB_TRY(clb_jorder(r, &items.items[i], out, &order));
        if (order * sign > 0)
            *out = items.items[i];
    }
    return COLIBRI_OK;
}

static int f_max(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    return extreme(r, of, 1, out);
}

static int f_min(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    return extreme(r, of, -1, out);
}

static int f_int(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    int64_t value;
    CLB_TRY(int_arg(r, a, 0, "default", 0, &value));
    if (of->type == J_INT || of->type == J_BOOL) {
        value = of->type == J_INT ? of->as.i : of->as.b;
    } else if (of->type == J_FLOAT && fabs(of->as.f) < 9e18) {
        value = (int64_t)of->as.f;
    } else if (of->type == J_STR && of->as.s.n && of->as.s.n < 40) {
        char text[40], *end;
        memcpy(text, of->as.s.p, of->as.s.n);
        text[of->as.s.n] = '\0';
        const double d = strtod(text, &end);
        if (*end == '\0' && end > text && fabs(d) < 9e15)
            value = (int64_t)d;
    }
    *out = clb_jint(value);
    return COLIBRI_OK;
}

static int f_float(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    clb_jvalue whole;
    *out = (clb_jvalue){.type = J_FLOAT};
    if (of->type == J_FLOAT) {
        out->as.f = of->as.f;
    } else if (of->type == J_STR && of->as.s.n < 40) {
        char text[40];
        memcpy(text, of->as.s.p, of->as.s.n);
        text[of->as.s.n] = '\0';
        out->as.f = strtod(text, NULL);
    } else {
        CLB_TRY(f_int(r, of, a, &whole));
        out->as.f = (double)whole.as.i;
    }
    return COLIBRI_OK;
}

static int f_abs(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    (void)a;
    if (of->type == J_FLOAT)
        *out = (clb_jvalue){.type = J_FLOAT, .as.f = fabs(of->as.f)};
    else if (of->type == J_INT && of->as.i != INT64_MIN)
        *out = clb_jint(of->as.i < 0 ? -of->as.i : of->as.i);
    else
        return clb_jfail(r, COLIBRI_E_USAGE, "abs of %s", clb_jtype_name(of));
    return COLIBRI_OK;
}

/* indent(width=4, first=false, blank=false) */
static int f_indent(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *width = clb_jarg(a, 0, "width");
    clb_jstr s, pad = {.p = "                                                                ", .n = 4};
    clb_jout o = {0};
    CLB_TRY(clb_jto_str(r, of, &s));
    if (width && width->type == J_STR)
        pad = width->as.s;
    else if (width && (width->type != J_INT || width->as.i < 0 || width->as.i > 64))
        return clb_jfail(r, COLIBRI_E_USAGE, "indent by 0 to 64");
    else if (width)
        pad.n = (size_t)width->as.i;
    const bool first = bool_arg(a, 1, "first"), blank = bool_arg(a, 2, "blank");
    for (size_t i = 0; i < s.n;) {
        const char *nl = memchr(s.p + i, '\n', s.n - i);
        const size_t end = nl ? (size_t)(nl - s.p) : s.n;
        if ((i ? end > i || blank : first) && (i == 0 || end > i || blank))
            CLB_TRY(clb_jout_put(r, &o, pad));
        CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, i, nl ? end + 1 : end)));
        i = nl ? end + 1 : end;
    }
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

/* "a.b" or a plain attribute of an item */
static int attribute_of(clb_jrun *r, const clb_jvalue *item, const clb_jvalue *name, clb_jvalue *out)
{
    clb_jvalue at = *item;
    if (name->type != J_STR)
        return clb_jget_item(r, item, name, out);
    for (size_t i = 0; i <= name->as.s.n;) {
        const char *dot = memchr(name->as.s.p + i, '.', name->as.s.n - i);
        const size_t end = dot ? (size_t)(dot - name->as.s.p) : name->as.s.n;
        const clb_jvalue key = str(clb_jsub(name->as.s, i, end));
        if (at.type == J_UNDEFINED)
            break;
        CLB_TRY(clb_jget_item(r, &at, &key, &at));
        i = end + 1;
    }
    *out = at;
    return COLIBRI_OK;
}

/* select, reject, selectattr, rejectattr: the items that pass a test, or do not. */
static int select_items(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, bool attr, bool keep, clb_jvalue *out)
{
    const size_t skip = attr ? 1 : 0;
    clb_jlist items, rest = {0};
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    if (attr && a->list->n == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "selectattr takes the name of an attribute");
    if (a->list->n > skip + 1) {
        rest.items = a->list->items + skip + 1;
        rest.n = a->list->n - skip - 1;
    }
    for (size_t i = 0; i < items.n; i++) {
        clb_jvalue v = items.items[i];
        bool holds;
        if (attr)
            CLB_TRY(attribute_of(r, &items.items[i], &a->list->items[0], &v));
        holds = clb_jtrue(&v);
        if (a->list->n > skip) {
            const clb_jargs args = {&rest, a->named};
            clb_jstr name;
            char test[32];
            CLB_TRY(clb_jto_str(r, &a->list->items[skip], &name));
            if (name.n >= sizeof test)
                return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "unknown test \"%.*s\"", 30, name.p);
            memcpy(test, name.p, name.n);
            test[name.n] = '\0';
            CLB_TRY(clb_jtest(r, test, &v, &args, &holds));
        }
        if (holds == keep)
            CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
    }
    return COLIBRI_OK;
}

static int f_select(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return select_items(r, of, a, false, true, out);
}

static int f_reject(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return select_items(r, of, a, false, false, out);
}

static int f_selectattr(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return select_items(r, of, a, true, true, out);
}

static int f_rejectattr(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return select_items(r, of, a, true, false, out);
}

/* map(attribute="x", default=...) or map("filter", arguments...) */
static int f_map(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *attribute = clb_jdict_at(a->named, "attribute"), *def = clb_jdict_at(a->named, "default");
    clb_jlist items, rest = {0};
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    if (!attribute && (a->list->n == 0 || a->list->items[0].type != J_STR || a->list->items[0].as.s.n > 30))
        return clb_jfail(r, COLIBRI_E_USAGE, "map takes an attribute or the name of a filter");
    char name[32] = "";
    if (!attribute) {
        memcpy(name, a->list->items[0].as.s.p, a->list->items[0].as.s.n);
        rest.items = a->list->items + 1;
        rest.n = a->list->n - 1;
    }
    for (size_t i = 0; i < items.n; i++) {
        clb_jvalue v;
        const clb_jargs args = {&rest, a->named};
        CLB_TRY(attribute ? attribute_of(r, &items.items[i], attribute, &v)
                          : clb_jfilter(r, name, &items.items[i], &args, &v));
        if (attribute && def && v.type == J_UNDEFINED)
            v = *def;
        CLB_TRY(clb_jlist_push(r, out->as.list, v));
    }
    return COLIBRI_OK;
}

int clb_jfilter(clb_jrun *r, const char *name, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    static const struct {
        const char *name;
        filter_fn fn;
    } filters[] = {{"trim", f_trim},
                   {"length", f_length},
                   {"count", f_length},
                   {"string", f_string},
                   {"default", f_default},
                   {"d", f_default},
                   {"tojson", f_tojson},
                   {"lower", f_lower},
                   {"upper", f_upper},
                   {"capitalize", f_capitalize},
                   {"title", f_title},
                   {"join", f_join},
                   {"replace", f_replace},
                   {"safe", f_safe},
                   {"items", f_items},
                   {"sort", f_sort},
                   {"list", f_list},
                   {"dictsort", f_dictsort},
                   {"first", f_first},
                   {"last", f_last},
                   {"reverse", f_reverse},
                   {"unique", f_unique},
                   {"max", f_max},
                   {"min", f_min},
                   {"int", f_int},
                   {"float", f_float},
                   {"abs", f_abs},
                   {"indent", f_indent},
                   {"select", f_select},
                   {"reject", f_reject},
                   {"selectattr", f_selectattr},
                   {"rejectattr", f_rejectattr},
                   {"map", f_map}};
    if (++r->depth > 4 * CLB_JINJA_MAX_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "filters are nested too deeply");
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(filters[i].name, name) == 0) {
            CLB_TRY(filters[i].fn(r, of, a, out));
            r->depth--;
            return COLIBRI_OK;
        }
    return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "unknown filter \"%s\"", name);
}
