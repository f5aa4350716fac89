/* How values print: as {{ }} does (Python's str and repr) and as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"
#include "text/utf8.h"

int clb_jout_put(clb_jrun *r, clb_jout *o, clb_jstr s)
{
    if (s.n == 0)
        return COLIBRI_OK;
    if (s.n > o->cap - o->n) {
        size_t cap = o->cap ? o->cap : 256;
        while (cap - o->n < s.n)
            cap *= 2;
        void *p, *m;
        CLB_TRY(clb_jalloc(&r->arena, cap, &p, r->err));
        CLB_TRY(clb_jalloc(&r->arena, cap, &m, r->err));
        if (o->n) {
            memcpy(p, o->p, o->n);
            memcpy(m, o->marks, o->n);
        }
        o->p = p;
        o->marks = m;
        o->cap = cap;
    }
    memcpy(o->p + o->n, s.p, s.n);
    clb_jcopy_marks(o->marks + o->n, s);
    o->n += s.n;
    return COLIBRI_OK;
}

clb_jvalue clb_jout_value(const clb_jout *o)
{
    return (clb_jvalue){
        .type = J_STR,
        .as.s = {.p = o->n ? o->p : "", .marks = o->marks, .n = o->n, .taint = o->n ? J_MIXED : J_CLEAN}};
}

static int put_lit(clb_jrun *r, clb_jout *o, const char *s)
{
    return clb_jout_put(r, o, clb_jstr_lit(s).as.s);
}

int clb_jescape(clb_jrun *r, clb_jstr s, clb_jstr *out)
{
    static const char chars[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    clb_jout o = {0};
    *out = s;
    for (size_t i = 0; !s.safe && i < s.n; i++) {
        const char *at = s.p[i] ? strchr(chars, s.p[i]) : NULL;
        CLB_TRY(at ? put_lit(r, &o, names[at - chars]) : clb_jout_put(r, &o, clb_jsub(s, i, i + 1)));
    }
    if (!s.safe)
        *out = clb_jout_value(&o).as.s;
    out->safe = true;
    return COLIBRI_OK;
}

/* Python's shortest form that reads back as the same number. */
static void float_text(double f, char out[40])
{
    if (isnan(f) || isinf(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, f);
        if (strtod(out, NULL) == f)
            break;
    }
    if (fabs(f) >= 1e16 || (f != 0 && fabs(f) < 1e-4))
        return;
    if (strchr(out, 'e')) /* %g turns to exponents earlier than Python */
        snprintf(out, 40, "%.0f", f);
    if (!strchr(out, '.'))
        strcat(out, ".0");
}

static int put_quoted(clb_jrun *r, clb_jout *o, clb_jstr s)
{
    const bool twice = memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n);
    const char quote = twice ? '"' : '\'';
    const char q[2] = {quote, 0};
    CLB_TRY(put_lit(r, o, q));
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        char esc[8] = "";
        if (c == quote || c == '\\')
            snprintf(esc, sizeof esc, "\\%c", c);
        else if (c == '\n' || c == '\t' || c == '\r')
            snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        else if ((unsigned char)c < 32 || c == 127)
            snprintf(esc, sizeof esc, "\\x%02x", (unsigned)(unsigned char)c);
        CLB_TRY(esc[0] ? put_lit(r, o, esc) : clb_jout_put(r, o, clb_jsub(s, i, i + 1)));
    }
    return put_lit(r, o, q);
}

int clb_jout_repr(clb_jrun *r, clb_jout *o, const clb_jvalue *v)
{
    if (v->type == J_STR)
        return put_quoted(r, o, v->as.s);
    if (v->type != J_LIST && v->type != J_DICT) {
        clb_jstr s;
        CLB_TRY(clb_jto_str(r, v, &s));
        return clb_jout_put(r, o, s);
    }
    if (++r->depth > 4 * CLB_JINJA_MAX_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "a value is nested too deeply");
    const bool dict = v->type == J_DICT, tuple = !dict && v->as.list->tuple;
    const size_t n = dict ? v->as.dict->n : v->as.list->n;
    CLB_TRY(put_lit(r, o, dict ? "{" : tuple ? "(" : "["));
    for (size_t i = 0; i < n; i++) {
        if (i)
            CLB_TRY(put_lit(r, o, ", "));
        if (dict) {
            CLB_TRY(clb_jout_repr(r, o, &v->as.dict->keys[i]));
            CLB_TRY(put_lit(r, o, ": "));
        }
        CLB_TRY(clb_jout_repr(r, o, dict ? &v->as.dict->values[i] : &v->as.list->items[i]));
    }
    if (tuple && n == 1)
        CLB_TRY(put_lit(r, o, ","));
    r->depth--;
    return put_lit(r, o, dict ? "}" : tuple ? ")" : "]");
}

int clb_jto_str(clb_jrun *r, const clb_jvalue *v, clb_jstr *out)
{
    char text[48] = "";
    clb_jout o = {0};
    switch (v->type) {
    case J_STR:
        *out = v->as.s;
        return COLIBRI_OK;
    case J_UNDEFINED:
        *out = (clb_jstr){.p = "", .n = 0};
        return COLIBRI_OK;
    case J_LIST:
    case J_DICT:
        CLB_TRY(clb_jout_repr(r, &o, v));
        *out = clb_jout_value(&o).as.s;
        return COLIBRI_OK;
    case J_NONE:
        strcpy(text, "None");
        break;
    case J_BOOL:
        strcpy(text, v->as.b ? "True" : "False");
        break;
    case J_INT:
        snprintf(text, sizeof text, "%" PRId64, v->as.i);
        break;
    case J_FLOAT:
        float_text(v->as.f, text);
        break;
    default:
        snprintf(text, sizeof text, "<%s>", clb_jtype_name(v));
        break;
    }
    CLB_TRY(put_lit(r, &o, text));
    *out = clb_jout_value(&o).as.s;
    out->taint = J_CLEAN;
    out->marks = NULL;
    return COLIBRI_OK;
}

static int put_json_str(clb_jrun *r, clb_jout *o, clb_jstr s, bool ascii)
{
    CLB_TRY(put_lit(r, o, "\""));
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = 0xFFFD;
        size_t len = clb_utf8_decode(s.p + i, s.n - i, &cp);
        len = len ? len : 1;
        const char *const named = cp < 0x80 ? strchr("\"\"\\\\\bb\ff\nn\rr\tt", (int)cp) : NULL;
        char esc[16] = "";
        if (cp && named && (named - "\"\"\\\\\bb\ff\nn\rr\tt") % 2 == 0)
            snprintf(esc, sizeof esc, "\\%c", named[1]);
        else if (cp < 0x20 || (ascii && cp >= 0x7F && cp < 0x10000))
            snprintf(esc, sizeof esc, "\\u%04x", (unsigned)cp);
        else if (ascii && cp >= 0x10000)
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (cp >> 10)),
                     (unsigned)(0xDC00 + (cp & 0x3FF)));
        CLB_TRY(esc[0] ? put_lit(r, o, esc) : clb_jout_put(r, o, clb_jsub(s, i, i + len)));
        i += len;
    }
    return put_lit(r, o, "\"");
}

static int put_break(clb_jrun *r, clb_jout *o, const clb_jjson *j, unsigned level)
{
    if (!j->pretty)
        return COLIBRI_OK;
    CLB_TRY(put_lit(r, o, "\n"));
    for (unsigned i = 0; i < level; i++)
        CLB_TRY(clb_jout_put(r, o, j->indent));
    return COLIBRI_OK;
}

/* Keys as json.dumps writes them. */
static int put_key(clb_jrun *r, clb_jout *o, const clb_jjson *j, const clb_jvalue *key)
{
    clb_jstr s;
    if (key->type == J_BOOL)
        s = clb_jstr_lit(key->as.b ? "true" : "false").as.s;
    else if (key->type == J_NONE)
        s = clb_jstr_lit("null").as.s;
    else
        CLB_TRY(clb_jto_str(r, key, &s));
    CLB_TRY(put_json_str(r, o, s, j->ascii));
    return clb_jout_put(r, o, j->colon);
}

static int put_number(clb_jrun *r, clb_jout *o, const clb_jvalue *v)
{
    if (v->type == J_FLOAT && isnan(v->as.f))
        return put_lit(r, o, "NaN");
    if (v->type == J_FLOAT && isinf(v->as.f))
        return put_lit(r, o, v->as.f > 0 ? "Infinity" : "-Infinity");
    return clb_jout_repr(r, o, v);
}

int clb_jout_json(clb_jrun *r, clb_jout *o, const clb_jjson *j, const clb_jvalue *v, unsigned level)
{
    if (level > CLB_JINJA_MAX_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "a value is nested too deeply");
    if (v->type == J_STR)
        return put_json_str(r, o, v->as.s, j->ascii);
    if (v->type == J_NONE)
        return put_lit(r, o, "null");
    if (v->type == J_BOOL)
        return put_lit(r, o, v->as.b ? "true" : "false");
    if (v->type == J_INT || v->type == J_FLOAT)
        return put_number(r, o, v);
    if (v->type != J_LIST && v->type != J_DICT)
        return clb_jfail(r, COLIBRI_E_USAGE, "%s cannot be written as JSON", clb_jtype_name(v));
    clb_jdict sorted = {0};
    const bool dict = v->type == J_DICT;
    const clb_jdict *d = dict ? v->as.dict : NULL;
    if (dict && j->sort_keys) {
        CLB_TRY(clb_jsorted(r, d, &sorted));
        d = &sorted;
    }
    const size_t n = dict ? d->n : v->as.list->n;
    CLB_TRY(put_lit(r, o, dict ? "{" : "["));
    for (size_t i = 0; i < n; i++) {
        if (i)
            CLB_TRY(clb_jout_put(r, o, j->comma));
        CLB_TRY(put_break(r, o, j, level + 1));
        if (dict)
            CLB_TRY(put_key(r, o, j, &d->keys[i]));
        CLB_TRY(clb_jout_json(r, o, j, dict ? &d->values[i] : &v->as.list->items[i], level + 1));
    }
    if (n)
        CLB_TRY(put_break(r, o, j, level));
    return put_lit(r, o, dict ? "}" : "]");
}
