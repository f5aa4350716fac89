/* Methods of strings, lists and dicts, and the global functions, as Python and transformers have them. */
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "text/jinja_impl.h"
#include "text/utf8.h"

static clb_jvalue str(clb_jstr s)
{
    return (clb_jvalue){.type = J_STR, .as.s = s};
}

/* Python's white space in ASCII and the Unicode ones. */
static bool white(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool stripped(const char *p, size_t n, const clb_jvalue *chars)
{
    uint32_t c = 0;
    if (chars)
        return memmem(chars->as.s.p, chars->as.s.n, p, n) != NULL;
    return clb_utf8_decode(p, n, &c) && white(c);
}

int clb_jstrip(const clb_jstr *s, const clb_jvalue *chars, bool left, bool right, clb_jstr *out)
{
    size_t from = 0, to = s->n;
    if (chars && (chars->type != J_STR || chars->as.s.n == 0))
        chars = NULL;
    while (left && from < to) {
        size_t n = clb_utf8_decode(s->p + from, to - from, NULL);
        n = n ? n : 1;
        if (!stripped(s->p + from, n, chars))
            break;
        from += n;
    }
    while (right && to > from) {
        size_t n = 1;
        while (n < to - from && n < 4 && ((uint8_t)s->p[to - n] & 0xC0) == 0x80)
            n++;
        if (!stripped(s->p + to - n, n, chars))
            break;
        to -= n;
    }
    *out = clb_jsub(*s, from, to);
    return COLIBRI_OK;
}

int clb_jreplace(clb_jrun *r, clb_jstr s, clb_jstr old, clb_jstr with, int64_t count, clb_jvalue *out)
{
    clb_jout o = {0};
    size_t i = 0;
    if (old.n == 0)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "replacing nothing");
    for (; count != 0; count--) {
        const char *at = s.n - i >= old.n ? memmem(s.p + i, s.n - i, old.p, old.n) : NULL;
        if (!at)
            break;
        const size_t k = (size_t)(at - s.p);
        CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, i, k)));
        CLB_TRY(clb_jout_put(r, &o, with));
        i = k + old.n;
    }
    CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, i, s.n)));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

int clb_jjoin(clb_jrun *r, const clb_jvalue *items, clb_jstr sep, bool strict, clb_jvalue *out)
{
    clb_jlist list;
    clb_jout o = {0};
    CLB_TRY(clb_jiterate(r, items, &list));
    for (size_t i = 0; i < list.n; i++) {
        clb_jstr s;
        if (strict && list.items[i].type != J_STR)
            return clb_jfail(r, COLIBRI_E_USAGE, "join of %s", clb_jtype_name(&list.items[i]));
        CLB_TRY(clb_jto_str(r, &list.items[i], &s));
        if (i)
            CLB_TRY(clb_jout_put(r, &o, sep));
        CLB_TRY(clb_jout_put(r, &o, s));
    }
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

int clb_jcase(clb_jrun *r, clb_jstr s, char how, clb_jvalue *out)
{
    clb_jout o = {0};
    bool word = false; /* the character before belongs to a word */
    for (size_t i = 0; i < s.n;) {
        uint32_t c = 0;
        const size_t len = clb_utf8_decode(s.p + i, s.n - i, &c);
        const size_t n = len ? len : 1;
        char utf8[4];
        const bool up = how == 'u' || (how == 'c' && i == 0) || (how == 't' && !word);
        const utf8proc_int32_t changed =
            up ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_tolower((utf8proc_int32_t)c);
        clb_jstr piece = clb_jsub(s, i, i + n);
        if (len && changed != (utf8proc_int32_t)c) {
            const enum clb_jtaint taint = piece.taint != J_MIXED ? piece.taint : piece.marks[0] ? J_TAINTED : J_CLEAN;
            piece = (clb_jstr){.p = utf8, .n = clb_utf8_encode((uint32_t)changed, utf8), .taint = taint};
        }
        CLB_TRY(clb_jout_put(r, &o, piece));
        word = utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c ||
               utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c;
        i += n;
    }
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

/* split(sep=None, maxsplit=-1) and rsplit */
static int split(clb_jrun *r, clb_jstr s, const clb_jargs *a, bool from_right, clb_jvalue *out)
{
    const clb_jvalue *sep = clb_jarg(a, 0, "sep"), *max = clb_jarg(a, 1, "maxsplit");
    int64_t left = max && max->type == J_INT ? max->as.i : -1;
    CLB_TRY(clb_jlist_new(r, out));
    if (sep && sep->type == J_STR && sep->as.s.n == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "split by an empty string");
    const bool words = !sep || sep->type != J_STR;
    if (from_right && left >= 0) {
        /* only the number of cuts depends on the side: count the parts, then join the first ones */
        if (words)
            return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "rsplit by white space");
        size_t parts = 0;
        for (const char *p = s.p; (p = memmem(p, s.n - (size_t)(p - s.p), sep->as.s.p, sep->as.s.n)); p += sep->as.s.n)
            parts++;
        const size_t whole = parts > (size_t)left ? parts - (size_t)left : 0;
        size_t at = 0;
        for (size_t i = 0; i < whole; i++)
            at = (size_t)((const char *)memmem(s.p + at, s.n - at, sep->as.s.p, sep->as.s.n) - s.p) + sep->as.s.n;
        if (whole) {
            const char *cut = memmem(s.p + at, s.n - at, sep->as.s.p, sep->as.s.n);
            const size_t end = cut ? (size_t)(cut - s.p) : s.n;
            CLB_TRY(clb_jlist_push(r, out->as.list, str(clb_jsub(s, 0, end))));
            if (!cut)
                return COLIBRI_OK;
            s = clb_jsub(s, end + sep->as.s.n, s.n);
        }
        left = -1;
    }
    size_t i = 0;
    for (;;) {
        if (words)
            while (i < s.n && white((uint8_t)s.p[i]))
                i++;
        if (words && i == s.n)
            return COLIBRI_OK;
        size_t end = s.n, next = s.n;
        bool found = false;
        if (left != 0 && words) {
            for (end = i; end < s.n && !white((uint8_t)s.p[end]);)
                end++;
            found = end < s.n;
            next = end;
        } else if (left != 0) {
            const char *cut = memmem(s.p + i, s.n - i, sep->as.s.p, sep->as.s.n);
            found = cut != NULL;
            end = cut ? (size_t)(cut - s.p) : s.n;
            next = end + sep->as.s.n;
        }
        CLB_TRY(clb_jlist_push(r, out->as.list, str(clb_jsub(s, i, end))));
        if (!found)
            return COLIBRI_OK;
        left -= left > 0;
        i = next;
    }
}

static int splitlines(clb_jrun *r, clb_jstr s, clb_jvalue *out)
{
    CLB_TRY(clb_jlist_new(r, out));
    for (size_t i = 0; i < s.n;) {
        size_t end = i;
        while (end < s.n && s.p[end] != '\n' && s.p[end] != '\r')
            end++;
        CLB_TRY(clb_jlist_push(r, out->as.list, str(clb_jsub(s, i, end))));
        i = end + (end + 1 < s.n && s.p[end] == '\r' && s.p[end + 1] == '\n' ? 2 : 1);
    }
    return COLIBRI_OK;
}

/* "{} {0} {name}".format(...) without format specifications */
static int format(clb_jrun *r, clb_jstr s, const clb_jargs *a, clb_jvalue *out)
{
    clb_jout o = {0};
    size_t next = 0;
    for (size_t i = 0; i < s.n;) {
        const char c = s.p[i];
        if ((c == '{' || c == '}') && i + 1 < s.n && s.p[i + 1] == c) {
            CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, i, i + 1)));
            i += 2;
        } else if (c == '{') {
            const char *close = memchr(s.p + i, '}', s.n - i);
            const size_t n = close ? (size_t)(close - s.p) - i - 1 : 0;
            char name[32] = "";
            clb_jstr piece;
            if (!close || n >= sizeof name)
                return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "a format string");
            memcpy(name, s.p + i + 1, n);
            const bool numbered = n == 1 && name[0] >= '0' && name[0] <= '9';
            const clb_jvalue *v = n == 0     ? clb_jarg(a, next++, NULL)
                                  : numbered ? clb_jarg(a, (size_t)(name[0] - '0'), NULL)
                                             : clb_jdict_at(a->named, name);
            if (!v)
                return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "the format field {%s}", name);
            CLB_TRY(clb_jto_str(r, v, &piece));
            CLB_TRY(clb_jout_put(r, &o, piece));
            i = (size_t)(close - s.p) + 1;
        } else {
            CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, i, i + 1)));
            i++;
        }
    }
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

/* startswith and endswith: one string or a tuple of them */
static int affix(clb_jrun *r, clb_jstr s, const clb_jvalue *what, bool end, clb_jvalue *out)
{
    const clb_jvalue *each = what;
    size_t n = 1;
    if (what->type == J_LIST) {
        each = what->as.list->items;
        n = what->as.list->n;
    }
    *out = clb_jbool(false);
    for (size_t i = 0; i < n; i++) {
        if (each[i].type != J_STR)
            return clb_jfail(r, COLIBRI_E_USAGE, "startswith or endswith of %s", clb_jtype_name(&each[i]));
        const clb_jstr x = each[i].as.s;
        if (x.n <= s.n && memcmp(end ? s.p + s.n - x.n : s.p, x.p, x.n) == 0)
            *out = clb_jbool(true);
    }
    return COLIBRI_OK;
}

static int find(clb_jrun *r, clb_jstr s, clb_jstr what, bool count, clb_jvalue *out)
{
    int64_t n = 0, first = -1;
    (void)r;
    for (size_t i = 0; what.n && i < s.n; n++) {
        const char *at = memmem(s.p + i, s.n - i, what.p, what.n);
        if (!at)
            break;
        if (first < 0) {
            const clb_jvalue before = str(clb_jsub(s, 0, (size_t)(at - s.p)));
            first = (int64_t)clb_jlength(&before);
            if (!count)
                break;
        }
        i = (size_t)(at - s.p) + what.n;
    }
    *out = clb_jint(count ? n : what.n ? first : 0);
    return COLIBRI_OK;
}

static const char *const str_methods[] = {"strip",        "lstrip",       "rstrip",   "split", "rsplit", "splitlines",
                                          "replace",      "startswith",   "endswith", "lower", "upper",  "title",
                                          "capitalize",   "format",       "find",     "count", "join",   "isdigit",
                                          "removeprefix", "removesuffix", NULL};
static const char *const list_methods[] = {"append", "pop", "insert", "extend", "index", "count", NULL};
static const char *const dict_methods[] = {"get", "items", "keys", "values", "update", "pop", NULL};

bool clb_jhas_method(const clb_jvalue *of, const char *name)
{
    const char *const *m = of->type == J_STR                               ? str_methods
                           : of->type == J_LIST                            ? list_methods
                           : of->type == J_DICT && !of->as.dict->namespace ? dict_methods
                                                                           : NULL;
    for (; m && *m; m++)
        if (strcmp(*m, name) == 0)
            return true;
    return false;
}

static int str_method(clb_jrun *r, clb_jstr s, const char *name, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *x = clb_jarg(a, 0, NULL), *y = clb_jarg(a, 1, NULL);
    clb_jstr part;
    if (strcmp(name, "strip") == 0 || strcmp(name, "lstrip") == 0 || strcmp(name, "rstrip") == 0) {
        CLB_TRY(clb_jstrip(&s, x, name[0] != 'r', name[0] != 'l', &part));
        *out = str(part);
        return COLIBRI_OK;
    }
    if (strcmp(name, "split") == 0 || strcmp(name, "rsplit") == 0)
        return split(r, s, a, name[0] == 'r', out);
    if (strcmp(name, "splitlines") == 0)
        return splitlines(r, s, out);
    if (strcmp(name, "format") == 0)
        return format(r, s, a, out);
    if (strcmp(name, "lower") == 0 || strcmp(name, "upper") == 0 || strcmp(name, "title") == 0 ||
        strcmp(name, "capitalize") == 0)
        return clb_jcase(r, s, name[0], out);
    if (strcmp(name, "isdigit") == 0) {
        bool digits = s.n > 0;
        for (size_t i = 0; i < s.n; i++)
            digits = digits && s.p[i] >= '0' && s.p[i] <= '9';
        *out = clb_jbool(digits);
        return COLIBRI_OK;
    }
    if (!x)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes an argument", name);
    if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
        return affix(r, s, x, name[0] == 'e', out);
    if (strcmp(name, "join") == 0)
        return clb_jjoin(r, x, s, true, out);
    if (x->type != J_STR)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s of %s", name, clb_jtype_name(x));
    if (strcmp(name, "find") == 0 || strcmp(name, "count") == 0)
        return find(r, s, x->as.s, name[0] == 'c', out);
    if (strcmp(name, "replace") == 0) {
        const clb_jvalue *count = clb_jarg(a, 2, "count");
        if (!y || y->type != J_STR)
            return clb_jfail(r, COLIBRI_E_USAGE, "replace takes two strings");
        return clb_jreplace(r, s, x->as.s, y->as.s, count && count->type == J_INT ? count->as.i : -1, out);
    }
    clb_jvalue has; /* removeprefix, removesuffix */
    const bool end = strcmp(name, "removesuffix") == 0;
    CLB_TRY(affix(r, s, x, end, &has));
    *out = str(!has.as.b ? s : end ? clb_jsub(s, 0, s.n - x->as.s.n) : clb_jsub(s, x->as.s.n, s.n));
    return COLIBRI_OK;
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
    if (name[0] == 'i' && first < 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "index of a value that is not in the list");
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
    if (!x)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes a key", name);
    const clb_jvalue *v = clb_jdict_get(d, x);
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
        return str_method(r, self->as.s, name, a, out);
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
