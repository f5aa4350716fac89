/* Methods of strings, as Python has them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
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
    out->as.s.safe = s.safe;
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

/* count, or the first or last place in characters; -1 */
static int find(clb_jstr s, clb_jstr what, char how, clb_jvalue *out)
{
    int64_t n = 0, place = -1;
    if (what.n == 0) {
        const clb_jvalue whole = str(s);
        const int64_t length = (int64_t)clb_jlength(&whole);
        *out = clb_jint(how == 'c' ? length + 1 : how == 'r' ? length : 0);
        return COLIBRI_OK;
    }
    for (size_t i = 0; i < s.n; n++) {
        const char *at = memmem(s.p + i, s.n - i, what.p, what.n);
        if (!at)
            break;
        if (how != 'c') {
            const clb_jvalue before = str(clb_jsub(s, 0, (size_t)(at - s.p)));
            place = (int64_t)clb_jlength(&before);
            if (how != 'r')
                break;
        }
        i = (size_t)(at - s.p) + (how == 'r' ? 1 : what.n);
    }
    *out = clb_jint(how == 'c' ? n : place);
    return COLIBRI_OK;
}

/* partition and rpartition: (before, separator, after) */
static int partition(clb_jrun *r, clb_jstr s, clb_jstr sep, bool last, clb_jvalue *out)
{
    size_t at = s.n, end = s.n;
    bool found = false;
    if (sep.n == 0)
        return clb_jfail(r, COLIBRI_E_USAGE, "partition by an empty string");
    for (size_t i = 0; i < s.n && (last || !found);) {
        const char *p = memmem(s.p + i, s.n - i, sep.p, sep.n);
        if (!p)
            break;
        found = true;
        at = (size_t)(p - s.p);
        end = at + sep.n;
        i = at + 1;
    }
    if (!found && last)
        at = end = 0;
    CLB_TRY(clb_jlist_new(r, out));
    out->as.list->tuple = true;
    CLB_TRY(clb_jlist_push(r, out->as.list, str(clb_jsub(s, 0, at))));
    CLB_TRY(clb_jlist_push(r, out->as.list, str(clb_jsub(s, at, end))));
    return clb_jlist_push(r, out->as.list, str(clb_jsub(s, end, s.n)));
}

#define WIDTH_MAX 10000

/* ljust, rjust, center, zfill */
static int justify(clb_jrun *r, clb_jstr s, const char *name, const clb_jvalue *width, const clb_jvalue *with,
                   clb_jvalue *out)
{
    const clb_jvalue whole = str(s);
    const int64_t n = (int64_t)clb_jlength(&whole);
    clb_jstr pad = clb_jstr_lit(name[0] == 'z' ? "0" : " ").as.s;
    clb_jout o = {0};
    if (width->type != J_INT || width->as.i > WIDTH_MAX)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes a width of at most %d", name, WIDTH_MAX);
    if (with && with->type == J_STR && name[0] != 'z')
        pad = with->as.s;
    const int64_t more = width->as.i > n ? width->as.i - n : 0;
    /* center puts the odd one to the right, unless the width is odd too: Python's own way */
    const int64_t left = name[0] == 'l' ? 0 : name[0] == 'c' ? more / 2 + (more & width->as.i & 1) : more;
    if (name[0] == 'z' && s.n && (s.p[0] == '-' || s.p[0] == '+')) {
        CLB_TRY(clb_jout_put(r, &o, clb_jsub(s, 0, 1)));
        s = clb_jsub(s, 1, s.n);
    }
    for (int64_t i = 0; i < left; i++)
        CLB_TRY(clb_jout_put(r, &o, pad));
    CLB_TRY(clb_jout_put(r, &o, s));
    for (int64_t i = left; i < more; i++)
        CLB_TRY(clb_jout_put(r, &o, pad));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

/* One conversion of "..." % (...): s, r, d, i, f with a precision, %. Returns how long the specification is, 0 if it is
 * another one. */
static size_t conversion(const char *p, size_t n, char *kind, int *precision)
{
    size_t i = 1;
    *precision = 6;
    if (i + 1 < n && p[i] == '.' && p[i + 1] >= '0' && p[i + 1] <= '9') {
        *precision = p[i + 1] - '0';
        i += 2;
    }
    if (i >= n || !memchr("srdif%", p[i], 6))
        return 0;
    *kind = p[i];
    return i + 1;
}

int clb_jpercent(clb_jrun *r, clb_jstr format, const clb_jlist *args, clb_jvalue *out)
{
    clb_jout o = {0};
    size_t next = 0;
    for (size_t i = 0; i < format.n;) {
        const char *at = memchr(format.p + i, '%', format.n - i);
        const size_t end = at ? (size_t)(at - format.p) : format.n;
        char kind = 0, text[400];
        int precision;
        CLB_TRY(clb_jout_put(r, &o, clb_jsub(format, i, end)));
        if (!at)
            break;
        const size_t n = conversion(at, format.n - end, &kind, &precision);
        if (n == 0)
            return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "a conversion in a format string");
        i = end + n;
        if (kind == '%') {
            CLB_TRY(clb_jout_put(r, &o, clb_jstr_lit("%").as.s));
            continue;
        }
        if (next >= args->n)
            return clb_jfail(r, COLIBRI_E_USAGE, "not enough arguments for a format string");
        const clb_jvalue *v = &args->items[next++];
        const bool number = v->type == J_INT || v->type == J_FLOAT || v->type == J_BOOL;
        const double f = v->type == J_FLOAT ? v->as.f : v->type == J_INT ? (double)v->as.i : number && v->as.b;
        if (kind == 's' || kind == 'r') {
            clb_jstr s;
            if (kind == 'r') {
                CLB_TRY(clb_jout_repr(r, &o, v));
                continue;
            }
            CLB_TRY(clb_jto_str(r, v, &s));
            CLB_TRY(clb_jout_put(r, &o, s));
            continue;
        }
        if (!number || (kind != 'f' && v->type == J_FLOAT && !(f > -9e18 && f < 9e18)))
            return clb_jfail(r, COLIBRI_E_USAGE, "%%%c of %s", kind, clb_jtype_name(v));
        if (kind == 'f')
            snprintf(text, sizeof text, "%.*f", precision, f);
        else
            snprintf(text, sizeof text, "%" PRId64,
                     v->type == J_FLOAT ? (int64_t)f
                     : v->type == J_INT ? v->as.i
                                        : v->as.b);
        CLB_TRY(clb_jout_put(r, &o, clb_jstr_lit(text).as.s));
    }
    if (next < args->n)
        return clb_jfail(r, COLIBRI_E_USAGE, "too many arguments for a format string");
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

/* isdigit, isalpha, isalnum, isspace, isupper, islower, isnumeric, isdecimal; Unicode categories as utf8proc has them
 */
static bool all_of(clb_jstr s, const char *name)
{
    bool cased = false;
    for (size_t i = 0; i < s.n;) {
        uint32_t c = 0;
        const size_t len = clb_utf8_decode(s.p + i, s.n - i, &c);
        const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        const bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
        const bool digit = k == UTF8PROC_CATEGORY_ND;
        const bool number = k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
        if (strcmp(name, "isalpha") == 0                                     ? !letter
            : strcmp(name, "isalnum") == 0                                   ? !letter && !number
            : strcmp(name, "isspace") == 0                                   ? !white(c)
            : strcmp(name, "isnumeric") == 0                                 ? !number
            : strcmp(name, "isdigit") == 0 || strcmp(name, "isdecimal") == 0 ? !digit
            : strcmp(name, "isupper") == 0 ? k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT
                                           : k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT)
            return false;
        cased |= k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL;
        i += len ? len : 1;
    }
    return s.n > 0 && (cased || (strcmp(name, "isupper") != 0 && strcmp(name, "islower") != 0));
}

const char *const clb_jstr_methods[] = {
    "strip",        "lstrip",    "rstrip",    "split",      "rsplit",     "splitlines", "replace", "startswith",
    "endswith",     "lower",     "upper",     "title",      "capitalize", "format",     "find",    "rfind",
    "index",        "count",     "join",      "isdigit",    "isalpha",    "isalnum",    "isspace", "isupper",
    "islower",      "isnumeric", "isdecimal", "zfill",      "ljust",      "rjust",      "center",  "removeprefix",
    "removesuffix", "casefold",  "partition", "rpartition", NULL};

int clb_jstr_method(clb_jrun *r, clb_jstr s, const char *name, const clb_jargs *a, clb_jvalue *out)
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
    if (strcmp(name, "casefold") == 0)
        return clb_jcase(r, s, 'l', out);
    if (strncmp(name, "is", 2) == 0) {
        *out = clb_jbool(all_of(s, name));
        return COLIBRI_OK;
    }
    if (!x)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s takes an argument", name);
    if (strcmp(name, "startswith") == 0 || strcmp(name, "endswith") == 0)
        return affix(r, s, x, name[0] == 'e', out);
    if (strcmp(name, "join") == 0)
        return clb_jjoin(r, x, s, true, out);
    if (strcmp(name, "zfill") == 0 || strcmp(name, "ljust") == 0 || strcmp(name, "rjust") == 0 ||
        strcmp(name, "center") == 0)
        return justify(r, s, name, x, y, out);
    if (x->type != J_STR)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s of %s", name, clb_jtype_name(x));
    if (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0 || strcmp(name, "count") == 0)
        return find(s, x->as.s, name[0], out);
    if (strcmp(name, "index") == 0) {
        CLB_TRY(find(s, x->as.s, 'f', out));
        return out->as.i < 0 ? clb_jfail(r, COLIBRI_E_USAGE, "substring not found") : COLIBRI_OK;
    }
    if (strcmp(name, "partition") == 0 || strcmp(name, "rpartition") == 0)
        return partition(r, s, x->as.s, name[0] == 'r', out);
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
