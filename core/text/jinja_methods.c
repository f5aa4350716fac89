/* Methods of lists and dicts, and the global functions, as Python and transformers have them. */
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja_impl.h"

static const char *const list_methods[] = {"append", "pop",     "insert", "extend", "index", "count",
                                           "remove", "reverse", "clear",  "copy",   NULL};
static const char *const dict_methods[] = {"get", "items", "keys",  "values",     "update",
                                           "pop", "copy",  "clear", "setdefault", NULL};

bool clb_jhas_method(const clb_jvalue *of, const char *name)
{
    const char *const *m = of->type == J_STR                               ? clb_jstr_methods
                           : of->type == J_LIST                            ? list_methods
                           : of->type == J_DICT && !of->as.dict->namespace ? dict_methods
                                                                           : NULL;
    for (; m && *m; m++)
        if (strcmp(*m, name) == 0)
            return true;
    return false;
}

static int list_method(clb_jrun *r, clb_jlist *l, const char *name, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *x = clb_jarg(a, 0, NULL), *y = clb_jarg(a, 1, NULL);
    *out = (clb_jvalue){.type = J_NONE};
    if (strcmp(name, "pop") == 0) {
        const int64_t i = x && x->type == J_INT ? x->as.i : -1;
        const int64_t at = i < 0 ? i + (int64_t)l->n : i;
        if (at < 0 || (uint64_t)at >= l->n)
            return clb_jfail(r, COLIBRI_E_USAGE, "pop outside the list");
        *out = l->items[at];
        memmove(l->items + at, l->items + at + 1, (l->n - (size_t)at - 1) * sizeof *l->items);
        l->n--;
        return COLIBRI_OK;
    }
    if (strcmp(name, "reverse") == 0) {
        for (size_t i = 0; i + 1 < l->n - i; i++) {
            const clb_jvalue v = l->items[i];
            l->items[i] = l->items[l->n - 1 - i];
            l->items[l->n - 1 - i] = v;
        }
        return COLIBRI_OK;
    }
    if (strcmp(name, "clear") == 0) {
        l->n = 0;
        return COLIBRI_OK;
    }
    if (strcmp(name, "copy") == 0) {
        const clb_jvalue self = {.type = J_LIST, .as.list = l};
        return clb_jfilter(r, "list", &self, a, out);
    }
    if (!x)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes an argument", name);
    if (strcmp(name, "append") == 0)
        return clb_jlist_push(r, l, *x);
    if (strcmp(name, "extend") == 0) {
        clb_jlist more;
        CLB_TRY(clb_jiterate(r, x, &more));
        for (size_t i = 0, n = more.n; i < n; i++)
            CLB_TRY(clb_jlist_push(r, l, more.items[i]));
        return COLIBRI_OK;
    }
    if (strcmp(name, "insert") == 0) {
        if (x->type != J_INT || !y || x->as.i < 0)
            return clb_jfail(r, COLIBRI_E_USAGE, "insert takes a place and a value");
        const size_t at = (uint64_t)x->as.i > l->n ? l->n : (size_t)x->as.i;
        CLB_TRY(clb_jlist_push(r, l, *y));
        memmove(l->items + at + 1, l->items + at, (l->n - 1 - at) * sizeof *l->items);
        l->items[at] = *y;
        return COLIBRI_OK;
    }
    int64_t n = 0, first = -1;
    for (size_t i = 0; i < l->n; i++)
        if (clb_jequal(&l->items[i], x)) {
            first = first < 0 ? (int64_t)i : first;
            n++;
        }
    if (name[0] != 'c' && first < 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s of a value that is not in the list", name);
    if (name[0] == 'r') {
        memmove(l->items + first, l->items + first + 1, (l->n - (size_t)first - 1) * sizeof *l->items);
        l->n--;
        return COLIBRI_OK;
    }
    *out = clb_jint(name[0] == 'i' ? first : n);
    return COLIBRI_OK;
}

static int dict_method(clb_jrun *r, clb_jvalue *self, const char *name, const clb_jargs *a, clb_jvalue *out)
{
    clb_jdict *d = self->as.dict;
    const clb_jvalue *x = clb_jarg(a, 0, NULL), *def = clb_jarg(a, 1, "default");
    if (strcmp(name, "items") == 0)
        return clb_jfilter(r, "items", self, a, out);
    if (strcmp(name, "keys") == 0 || strcmp(name, "values") == 0) {
        CLB_TRY(clb_jlist_new(r, out));
        for (size_t i = 0; i < d->n; i++)
            CLB_TRY(clb_jlist_push(r, out->as.list, name[0] == 'k' ? d->keys[i] : d->values[i]));
        return COLIBRI_OK;
    }
    *out = (clb_jvalue){.type = J_NONE};
    if (strcmp(name, "update") == 0) {
        if (x && x->type == J_DICT)
            for (size_t i = 0; i < x->as.dict->n; i++)
                CLB_TRY(clb_jdict_set(r, d, x->as.dict->keys[i], x->as.dict->values[i]));
        for (size_t i = 0; i < a->named->n; i++)
            CLB_TRY(clb_jdict_set(r, d, a->named->keys[i], a->named->values[i]));
        return COLIBRI_OK;
    }
    if (strcmp(name, "clear") == 0) {
        d->n = 0;
        return COLIBRI_OK;
    }
    if (strcmp(name, "copy") == 0) {
        CLB_TRY(clb_jdict_new(r, out));
        for (size_t i = 0; i < d->n; i++)
            CLB_TRY(clb_jdict_set(r, out->as.dict, d->keys[i], d->values[i]));
        return COLIBRI_OK;
    }
    if (!x)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes a key", name);
    const clb_jvalue *v = clb_jdict_get(d, x);
    if (!v && !def && name[0] == 'p')
        return clb_jfail(r, COLIBRI_E_USAGE, "pop of a key that is not in the dict");
    if (!v && name[0] == 's')
        CLB_TRY(clb_jdict_set(r, d, *x, def ? *def : *out));
    *out = v ? *v : def ? *def : (clb_jvalue){.type = J_NONE};
    if (v && strcmp(name, "pop") == 0) {
        const size_t i = (size_t)(v - d->values);
        memmove(d->keys + i, d->keys + i + 1, (d->n - i - 1) * sizeof *d->keys);
        memmove(d->values + i, d->values + i + 1, (d->n - i - 1) * sizeof *d->values);
        d->n--;
    }
    return COLIBRI_OK;
}

int clb_jcall_method(clb_jrun *r, clb_jvalue *self, const char *name, const clb_jargs *a, clb_jvalue *out)
{
    if (self->type == J_STR)
        return clb_jstr_method(r, self->as.s, name, a, out);
    return self->type == J_LIST ? list_method(r, self->as.list, name, a, out) : dict_method(r, self, name, a, out);
}

bool clb_jhas_function(const char *name)
{
    static const char *const names[] = {"namespace", "raise_exception", "range", "dict", "strftime_now"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

#define RANGE_MAX 100000

static int range(clb_jrun *r, const clb_jargs *a, clb_jvalue *out)
{
    int64_t v[3] = {0, 0, 1};
    const size_t n = a->list->n;
    if (n == 0 || n > 3)
        return clb_jfail(r, COLIBRI_E_USAGE, "range takes one to three numbers");
    for (size_t i = 0; i < n; i++) {
        if (a->list->items[i].type != J_INT)
            return clb_jfail(r, COLIBRI_E_USAGE, "range of %s", clb_jtype_name(&a->list->items[i]));
        v[n == 1 ? 1 : i] = a->list->items[i].as.i;
    }
    if (v[2] == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "range with step 0");
    CLB_TRY(clb_jlist_new(r, out));
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
        if (out->as.list->n >= RANGE_MAX)
            return clb_jfail(r, COLIBRI_E_LIMIT, "a range of more than %d", RANGE_MAX);
        CLB_TRY(clb_jlist_push(r, out->as.list, clb_jint(i)));
        if (__builtin_add_overflow(i, v[2], &i))
            break;
    }
    return COLIBRI_OK;
}

/* English names whatever the locale: that is what the models saw. */
static int strftime_now(clb_jrun *r, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *f = clb_jarg(a, 0, "format");
    char fmt[64], text[256];
    struct tm tm;
    const time_t now = (time_t)r->now;
    if (!f || f->type != J_STR || f->as.s.n >= sizeof fmt)
        return clb_jfail(r, COLIBRI_E_USAGE, "strftime_now takes a short format");
    memcpy(fmt, f->as.s.p, f->as.s.n);
    fmt[f->as.s.n] = '\0';
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c || !localtime_r(&now, &tm))
        return clb_jfail(r, COLIBRI_E_INTERNAL, "no local time");
    const size_t n = strftime_l(text, sizeof text, fmt, &tm, c);
    freelocale(c);
    clb_jout o = {0};
    CLB_TRY(clb_jout_put(r, &o, (clb_jstr){.p = text, .n = n}));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

int clb_jcall_function(clb_jrun *r, const char *name, const clb_jargs *a, clb_jvalue *out)
{
    if (strcmp(name, "raise_exception") == 0) {
        clb_jstr s = {.p = "", .n = 0};
        if (clb_jarg(a, 0, NULL))
            CLB_TRY(clb_jto_str(r, clb_jarg(a, 0, NULL), &s));
        char text[400];
        snprintf(text, sizeof text, "%.*s", s.n < 390 ? (int)s.n : 390, s.p);
        return clb_fail(r->err, COLIBRI_E_USAGE, "the model's chat template refuses these messages: %s",
                        clb_jone_line(text));
    }
    if (strcmp(name, "range") == 0)
        return range(r, a, out);
    if (strcmp(name, "strftime_now") == 0)
        return strftime_now(r, a, out);
    CLB_TRY(clb_jdict_new(r, out)); /* namespace, dict */
    const clb_jvalue *from = clb_jarg(a, 0, NULL);
    if (from && from->type != J_DICT)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "%s of %s", name, clb_jtype_name(from));
    for (size_t i = 0; from && i < from->as.dict->n; i++)
        CLB_TRY(clb_jdict_set(r, out->as.dict, from->as.dict->keys[i], from->as.dict->values[i]));
    for (size_t i = 0; i < a->named->n; i++)
        CLB_TRY(clb_jdict_set(r, out->as.dict, a->named->keys[i], a->named->values[i]));
    out->as.dict->namespace = name[0] == 'n';
    return COLIBRI_OK;
}
