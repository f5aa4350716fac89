/* Filters of the Jinja interpreter for texts and numbers; those for lists and dicts are in jinja_filters_list.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

static clb_jvalue str(clb_jstr s)
{
    return (clb_jvalue){.type = J_STR, .as.s = s};
}

/* Argument i as an integer, or the default. */
int clb_jint_arg(clb_jrun *r, const clb_jargs *a, size_t i, const char *name, int64_t def, int64_t *out)
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

bool clb_jbool_arg(const clb_jargs *a, size_t i, const char *name)
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
    const bool missing = of->type == J_UNDEFINED || (clb_jbool_arg(a, 1, "boolean") && !clb_jtrue(of));
    *out = !missing ? *of : v ? *v : clb_jstr_lit("");
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
    CLB_TRY(clb_jint_arg(r, a, 2, "count", -1, &count));
    return clb_jreplace(r, s, x, y, count, out);
}

static int f_safe(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    CLB_TRY(f_string(r, of, a, out));
    out->as.s.safe = true;
    return COLIBRI_OK;
}

static int f_int(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    int64_t value;
    CLB_TRY(clb_jint_arg(r, a, 0, "default", 0, &value));
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
    const bool first = clb_jbool_arg(a, 1, "first"), blank = clb_jbool_arg(a, 2, "blank");
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

/* round(precision=0, method="common") */
static int f_round(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jvalue *method = clb_jarg(a, 1, "method");
    int64_t digits;
    clb_jvalue f;
    CLB_TRY(clb_jint_arg(r, a, 0, "precision", 0, &digits));
    if (of->type != J_INT && of->type != J_FLOAT && of->type != J_BOOL)
        return clb_jfail(r, COLIBRI_E_USAGE, "round of %s", clb_jtype_name(of));
    CLB_TRY(f_float(r, of, a, &f));
    if (digits < -15 || digits > 15)
        return clb_jfail(r, COLIBRI_E_USAGE, "round to %lld digits", (long long)digits);
    double scaled = f.as.f * pow(10, (double)digits);
    if (method && clb_jstr_is(method, "ceil"))
        scaled = ceil(scaled);
    else if (method && clb_jstr_is(method, "floor"))
        scaled = floor(scaled);
    else
        scaled = nearbyint(scaled); /* halves to even, as Python */
    if (!method && of->type == J_INT && digits >= 0) {
        *out = *of;
        return COLIBRI_OK;
    }
    *out = (clb_jvalue){.type = J_FLOAT, .as.f = scaled / pow(10, (double)digits)};
    return COLIBRI_OK;
}

static int f_escape(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    clb_jstr s;
    (void)a;
    CLB_TRY(clb_jto_str(r, of, &s));
    out->type = J_STR;
    return clb_jescape(r, s, &out->as.s);
}

static int f_wordcount(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    bool word = false;
    int64_t n = 0;
    CLB_TRY(f_string(r, of, a, out));
    for (size_t i = 0; i < out->as.s.n; i++) {
        const unsigned char c = (unsigned char)out->as.s.p[i];
        const bool letter = c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        n += letter && !word;
        word = letter;
    }
    *out = clb_jint(n);
    return COLIBRI_OK;
}

/* "%s and %d"|format(a, b) */
static int f_format(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    clb_jstr s;
    CLB_TRY(clb_jto_str(r, of, &s));
    return clb_jpercent(r, s, a->list, out);
}

static int f_tojson(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    /* as transformers defines it: ensure_ascii, indent, separators, sort_keys */
    static const char blanks[] = "                                ";
    const clb_jvalue *indent = clb_jarg(a, 1, "indent"), *separators = clb_jarg(a, 2, "separators");
    clb_jjson j = {.ascii = clb_jbool_arg(a, 0, "ensure_ascii"), .sort_keys = clb_jbool_arg(a, 3, "sort_keys")};
    clb_jout o = {0};
    j.pretty = indent && indent->type != J_NONE;
    j.comma = clb_jstr_lit(j.pretty ? "," : ", ").as.s;
    j.colon = clb_jstr_lit(": ").as.s;
    if (j.pretty && indent->type == J_STR) {
        j.indent = indent->as.s;
    } else if (j.pretty) {
        int64_t width;
        CLB_TRY(clb_jint_arg(r, a, 1, "indent", 0, &width));
        if (width > (int64_t)sizeof blanks - 1)
            return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "tojson with a wide indent");
        j.indent = (clb_jstr){.p = blanks, .n = width > 0 ? (size_t)width : 0};
    }
    if (separators && separators->type != J_NONE) {
        const clb_jlist *l = separators->type == J_LIST ? separators->as.list : NULL;
        if (!l || l->n != 2 || l->items[0].type != J_STR || l->items[1].type != J_STR)
            return clb_jfail(r, COLIBRI_E_USAGE, "separators of tojson are two strings");
        j.comma = l->items[0].as.s;
        j.colon = l->items[1].as.s;
    }
    CLB_TRY(clb_jout_json(r, &o, &j, of, 0));
    *out = clb_jout_value(&o);
    return COLIBRI_OK;
}

static const clb_jfilter_entry filters[] = {
    {"trim", f_trim},     {"string", f_string},   {"default", f_default},     {"d", f_default},
    {"tojson", f_tojson}, {"lower", f_lower},     {"upper", f_upper},         {"capitalize", f_capitalize},
    {"title", f_title},   {"replace", f_replace}, {"safe", f_safe},           {"int", f_int},
    {"float", f_float},   {"abs", f_abs},         {"round", f_round},         {"indent", f_indent},
    {"escape", f_escape}, {"e", f_escape},        {"wordcount", f_wordcount}, {"format", f_format},
    {NULL, NULL},
};

int clb_jfilter(clb_jrun *r, const char *name, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out)
{
    const clb_jfilter_entry *const tables[] = {filters, clb_jlist_filters};
    if (++r->depth > 4 * CLB_JINJA_MAX_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "filters are nested too deeply");
    for (size_t t = 0; t < 2; t++)
        for (const clb_jfilter_entry *f = tables[t]; f->name; f++)
            if (strcmp(f->name, name) == 0) {
                CLB_TRY(f->fn(r, of, a, out));
                r->depth--;
                return COLIBRI_OK;
            }
    return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "unknown filter \"%s\"", name);
}
