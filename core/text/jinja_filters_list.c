/* Filters of the Jinja interpreter for lists and dicts. */
#include <string.h>

#include "text/jinja_impl.h"

static clb_jvalue str(clb_jstr s)
{
    return (clb_jvalue){.type = J_STR, .as.s = s};
}

static int count_step(clb_jrun *r, size_t n)
{
    if ((r->steps += n) > CLB_JINJA_MAX_STEPS)
        return clb_jfail(r, COLIBRI_E_LIMIT, "a list that is too long to be sorted or searched");
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

/* "a.b" or a plain attribute of an item; digits are indices */
static int attribute_of(clb_jrun *r, const clb_jvalue *item, const clb_jvalue *name, clb_jvalue *out)
{
    clb_jvalue at = *item;
    if (name->type != J_STR)
        return clb_jget_item(r, item, name, out);
    for (size_t i = 0; i <= name->as.s.n;) {
        const char *dot = memchr(name->as.s.p + i, '.', name->as.s.n - i);
        const size_t end = dot ? (size_t)(dot - name->as.s.p) : name->as.s.n;
        clb_jvalue key = str(clb_jsub(name->as.s, i, end));
        int64_t index = 0;
        bool digits = end > i && end - i < 10;
        for (size_t k = i; k < end && digits; k++) {
            digits = name->as.s.p[k] >= '0' && name->as.s.p[k] <= '9';
            index = index * 10 + (name->as.s.p[k] - '0');
        }
        if (digits)
            key = clb_jint(index);
        if (at.type == J_UNDEFINED)
            break;
        CLB_TRY(clb_jget_item(r, &at, &key, &at));
        i = end + 1;
    }
    *out = at;
    return COLIBRI_OK;
}

static int f_join(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *separator = clb_jarg(a, 0, "d"), *attribute = clb_jarg(a, 1, "attribute");
    clb_jstr sep = {.p = "", .n = 0};
    clb_jvalue list = *of;
    if (separator)
        CLB_TRY(clb_jto_str(r, separator, &sep));
    if (attribute) {
        clb_jlist items;
        CLB_TRY(clb_jiterate(r, of, &items));
        CLB_TRY(clb_jlist_new(r, &list));
        for (size_t i = 0; i < items.n; i++) {
            clb_jvalue v;
            CLB_TRY(attribute_of(r, &items.items[i], attribute, &v));
            CLB_TRY(clb_jlist_push(r, list.as.list, v));
        }
    }
    return clb_jjoin(r, &list, sep, false, out);
}

static int pair_of(clb_jrun *r, clb_jvalue key, clb_jvalue value, clb_jvalue *out)
{
    CLB_TRY(clb_jlist_new(r, out));
    out->as.list->tuple = true;
    CLB_TRY(clb_jlist_push(r, out->as.list, key));
    return clb_jlist_push(r, out->as.list, value);
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
        CLB_TRY(pair_of(r, of->as.dict->keys[i], of->as.dict->values[i], &pair));
        CLB_TRY(clb_jlist_push(r, out->as.list, pair));
    }
    return COLIBRI_OK;
}

/* What an item is sorted by, found once. */
static int sort_key(clb_jrun *r, const clb_jvalue *item, const clb_jvalue *attribute, bool caseless, clb_jvalue *out)
{
    *out = *item;
    if (attribute)
        CLB_TRY(attribute_of(r, item, attribute, out));
    return caseless && out->type == J_STR ? clb_jcase(r, out->as.s, 'l', out) : COLIBRI_OK;
}

/* Insertion sort: stable, and lists in templates are short; steps are counted. */
static int sort_list(clb_jrun *r, clb_jlist *l, bool reverse, bool caseless, const clb_jvalue *attribute)
{
    clb_jvalue keys;
    CLB_TRY(clb_jlist_new(r, &keys));
    for (size_t i = 0; i < l->n; i++) {
        clb_jvalue key;
        CLB_TRY(sort_key(r, &l->items[i], attribute, caseless, &key));
        CLB_TRY(clb_jlist_push(r, keys.as.list, key));
    }
    clb_jvalue *const k = keys.as.list->items;
    for (size_t i = 1; i < l->n; i++) {
        const clb_jvalue item = l->items[i], key = k[i];
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            CLB_TRY(count_step(r, 1));
            CLB_TRY(clb_jorder(r, &key, &k[at - 1], &order));
            if (reverse ? order <= 0 : order >= 0)
                break;
            l->items[at] = l->items[at - 1];
            k[at] = k[at - 1];
        }
        l->items[at] = item;
        k[at] = key;
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
    CLB_TRY(copy_list(r, of, out));
    return sort_list(r, out->as.list, clb_jbool_arg(a, 0, "reverse"), !clb_jbool_arg(a, 1, "case_sensitive"),
                     clb_jarg(a, 2, "attribute"));
}

/* dictsort(case_sensitive=False, by="key", reverse=False) */
static int f_dictsort(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *by = clb_jarg(a, 1, "by");
    const clb_jvalue part = clb_jint(by && clb_jstr_is(by, "value"));
    CLB_TRY(f_items(r, of, a, out));
    return sort_list(r, out->as.list, clb_jbool_arg(a, 2, "reverse"), !clb_jbool_arg(a, 0, "case_sensitive"), &part);
}

int clb_jsorted(clb_jrun *r, const clb_jdict *d, clb_jdict *out)
{
    const clb_jvalue of = {.type = J_DICT, .as.dict = (clb_jdict *)d}, first = clb_jint(0);
    clb_jvalue pairs;
    CLB_TRY(f_items(r, &of, NULL, &pairs));
    CLB_TRY(sort_list(r, pairs.as.list, false, false, &first));
    for (size_t i = 0; i < pairs.as.list->n; i++) {
        const clb_jvalue *pair = pairs.as.list->items[i].as.list->items;
        CLB_TRY(clb_jdict_set(r, out, pair[0], pair[1]));
    }
    return COLIBRI_OK;
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

/* unique(case_sensitive=False, attribute=None): the first of each */
static int f_unique(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const bool caseless = !clb_jbool_arg(a, 0, "case_sensitive");
    clb_jlist items;
    clb_jvalue seen;
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    CLB_TRY(clb_jlist_new(r, &seen));
    for (size_t i = 0; i < items.n; i++) {
        bool known = false;
        clb_jvalue key;
        CLB_TRY(sort_key(r, &items.items[i], clb_jarg(a, 1, "attribute"), caseless, &key));
        CLB_TRY(count_step(r, seen.as.list->n));
        for (size_t k = 0; k < seen.as.list->n && !known; k++)
            known = clb_jequal(&seen.as.list->items[k], &key);
        if (known)
            continue;
        CLB_TRY(clb_jlist_push(r, seen.as.list, key));
        CLB_TRY(clb_jlist_push(r, out->as.list, items.items[i]));
    }
    return COLIBRI_OK;
}

/* max and min(case_sensitive=False, attribute=None) */
static int extreme(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, int sign, clb_jvalue *out)
{
    const bool caseless = !clb_jbool_arg(a, 0, "case_sensitive");
    clb_jlist items;
    clb_jvalue best = {.type = J_NONE};
    CLB_TRY(clb_jiterate(r, of, &items));
    *out = clb_jundefined("an empty sequence");
    for (size_t i = 0; i < items.n; i++) {
        clb_jvalue key;
        int order = sign;
        CLB_TRY(sort_key(r, &items.items[i], clb_jarg(a, 1, "attribute"), caseless, &key));
        if (i)
            CLB_TRY(clb_jorder(r, &key, &best, &order));
        if (order * sign <= 0)
            continue;
        best = key;
        *out = items.items[i];
    }
    return COLIBRI_OK;
}

static int f_max(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return extreme(r, of, a, 1, out);
}

static int f_min(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    return extreme(r, of, a, -1, out);
}

/* sum(attribute=None, start=0) */
static int f_sum(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *attribute = clb_jarg(a, 0, "attribute"), *start = clb_jarg(a, 1, "start");
    clb_jlist items;
    clb_jvalue sum = start ? *start : clb_jint(0);
    CLB_TRY(clb_jiterate(r, of, &items));
    for (size_t i = 0; i < items.n; i++) {
        clb_jvalue v = items.items[i], next;
        if (attribute && attribute->type != J_NONE)
            CLB_TRY(attribute_of(r, &items.items[i], attribute, &v));
        CLB_TRY(clb_jbinary(r, JO_ADD, &sum, &v, &next));
        sum = next;
    }
    *out = sum;
    return COLIBRI_OK;
}

static int f_attr(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *name = clb_jarg(a, 0, "name");
    if (!name || name->type != J_STR)
        return clb_jfail(r, COLIBRI_E_USAGE, "attr takes a name");
    /* attributes are methods or set on namespaces: keys of a dict are none */
    *out = clb_jundefined("attr");
    return of->type == J_DICT && of->as.dict->namespace ? clb_jget_item(r, of, name, out) : COLIBRI_OK;
}

/* batch(linecount, fill_with=None): lists of so many items */
static int f_batch(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *fill = clb_jarg(a, 1, "fill_with");
    clb_jlist items;
    int64_t size;
    CLB_TRY(clb_jint_arg(r, a, 0, "linecount", 0, &size));
    if (size < 1 || size > 1000)
        return clb_jfail(r, COLIBRI_E_USAGE, "batches of 1 to 1000");
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = 0; i < items.n; i += (size_t)size) {
        clb_jvalue batch;
        CLB_TRY(clb_jlist_new(r, &batch));
        for (size_t k = i; k < i + (size_t)size; k++) {
            if (k < items.n)
                CLB_TRY(clb_jlist_push(r, batch.as.list, items.items[k]));
            else if (fill && fill->type != J_NONE)
                CLB_TRY(clb_jlist_push(r, batch.as.list, *fill));
        }
        CLB_TRY(clb_jlist_push(r, out->as.list, batch));
    }
    return COLIBRI_OK;
}

/* groupby(attribute): (value, items) in order of the values */
static int f_groupby(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *attribute = clb_jarg(a, 0, "attribute");
    const bool caseless = !clb_jbool_arg(a, 2, "case_sensitive");
    clb_jvalue sorted, last = {.type = J_NONE};
    if (!attribute)
        return clb_jfail(r, COLIBRI_E_USAGE, "groupby takes the name of an attribute");
    CLB_TRY(copy_list(r, of, &sorted));
    CLB_TRY(sort_list(r, sorted.as.list, false, caseless, attribute));
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = 0; i < sorted.as.list->n; i++) {
        const clb_jvalue item = sorted.as.list->items[i];
        clb_jvalue key, value, group;
        CLB_TRY(sort_key(r, &item, attribute, caseless, &key));
        if (i == 0 || !clb_jequal(&key, &last)) {
            clb_jvalue pair;
            CLB_TRY(attribute_of(r, &item, attribute, &value));
            CLB_TRY(clb_jlist_new(r, &group));
            CLB_TRY(pair_of(r, value, group, &pair));
            CLB_TRY(clb_jlist_push(r, out->as.list, pair));
            last = key;
        }
        group = out->as.list->items[out->as.list->n - 1].as.list->items[1];
        CLB_TRY(clb_jlist_push(r, group.as.list, item));
    }
    return COLIBRI_OK;
}

/* A value's text as the name of a filter or test. */
static int name_of(clb_jrun *r, const clb_jvalue *v, char out[32])
{
    if (v->type != J_STR || v->as.s.n >= 32)
        return clb_jfail(r, COLIBRI_E_USAGE, "expected the name of a filter or test");
    memcpy(out, v->as.s.p, v->as.s.n);
    out[v->as.s.n] = '\0';
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
        CLB_TRY(count_step(r, 1));
        if (attr)
            CLB_TRY(attribute_of(r, &items.items[i], &a->list->items[0], &v));
        holds = clb_jtrue(&v);
        if (a->list->n > skip) {
            const clb_jargs args = {&rest, a->named};
            char test[32];
            CLB_TRY(name_of(r, &a->list->items[skip], test));
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
    char name[32] = "";
    CLB_TRY(clb_jiterate(r, of, &items));
    CLB_TRY(clb_jlist_new(r, out));
    if (!attribute && a->list->n == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "map takes an attribute or the name of a filter");
    if (!attribute) {
        CLB_TRY(name_of(r, &a->list->items[0], name));
        rest.items = a->list->items + 1;
        rest.n = a->list->n - 1;
    }
    for (size_t i = 0; i < items.n; i++) {
        clb_jvalue v;
        const clb_jargs args = {&rest, a->named};
        CLB_TRY(count_step(r, 1));
        CLB_TRY(attribute ? attribute_of(r, &items.items[i], attribute, &v)
                          : clb_jfilter(r, name, &items.items[i], &args, &v));
        if (attribute && def && v.type == J_UNDEFINED)
            v = *def;
        CLB_TRY(clb_jlist_push(r, out->as.list, v));
    }
    return COLIBRI_OK;
}

const clb_jfilter_entry clb_jlist_filters[] = {
    {"length", f_length},
    {"count", f_length},
    {"join", f_join},
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
    {"sum", f_sum},
    {"attr", f_attr},
    {"batch", f_batch},
    {"groupby", f_groupby},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {"map", f_map},
    {NULL, NULL},
};
