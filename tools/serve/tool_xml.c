/* Calls whose parameters are written one by one between marks. Values are text: the tool's schema says what they are.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/tool_impl.h"

enum { X_BEGIN, X_NAME, X_PARAMETERS, X_KEY, X_VALUE, X_AFTER };
enum { KIND_ANY, KIND_STRING, KIND_JSON };

#define MARKS_MOST 64 /* closing marks within strings of one value */

/* "city", "city\" string=\"true", "city" with blanks around: name and kind. */
static void read_key(clb_reply_parser *p, clb_str text)
{
    const char *quote = memchr(text.p, '"', text.n);
    const size_t n = quote ? (size_t)(quote - text.p) : text.n;
    clb_str key = {text.p, n < sizeof p->key - 1 ? n : sizeof p->key - 1};
    while (key.n && strchr(" \n\t", key.p[0])) {
        key.p++;
        key.n--;
    }
    while (key.n && strchr(" \n\t", key.p[key.n - 1]))
        key.n--;
    memcpy(p->key, key.p, key.n);
    p->key[key.n] = '\0';
    p->value_kind = KIND_ANY;
    if (memmem(text.p, text.n, "string=\"true\"", 13) || memmem(text.p, text.n, "string=\"true", 12))
        p->value_kind = KIND_STRING;
    else if (memmem(text.p, text.n, "string=\"false", 13))
        p->value_kind = KIND_JSON;
    else if (clb_parameter_types(p, p->tool, p->key) == CLB_TYPE_STRING)
        p->value_kind = KIND_STRING;
}

static int begin_parameter(clb_reply_parser *p, clb_error *err)
{
    clb_buf head = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_append(&head, p->first_param ? "{\"" : ", \"", p->first_param ? 2 : 3, err));
    CLB_GO(clb_json_escape(&head, p->key, strlen(p->key), err));
    CLB_GO(clb_buf_append(&head, p->value_kind == KIND_STRING ? "\": \"" : "\": ", p->value_kind == KIND_STRING ? 4 : 3,
                          err));
    p->first_param = false;
    rc = clb_put_arguments(p, head.data, head.n, err);
done:
    clb_buf_free(&head);
    return rc;
}

static int put_escaped(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    clb_buf out = {0};
    int rc = clb_json_escape(&out, text, n, err);
    if (!rc && out.n)
        rc = clb_put_arguments(p, out.data, out.n, err);
    clb_buf_free(&out);
    return rc;
}

/* A value as JSON: whether the text is some that the schema takes. Quotes around a text are a part of it where the
 * schema says that it may be a string; where it says nothing, they are not. */
static bool is_json(const clb_reply_parser *p, clb_str text, unsigned types)
{
    json_t *const v = json_loadb(text.p, text.n, JSON_DECODE_ANY, NULL);
    const unsigned type = v ? clb_type_of(v) : 0;
    json_decref(v);
    if (!type || p->value_kind == KIND_JSON || types == CLB_TYPE_ANY || !(types & CLB_TYPE_STRING))
        return type != 0;
    return (type & types & ~(unsigned)CLB_TYPE_STRING) || (type == CLB_TYPE_INTEGER && (types & CLB_TYPE_NUMBER));
}

static clb_str as_json_word(const clb_reply_parser *p, clb_str text)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < 3; i++) /* as Python prints them; templates do so with earlier calls */
        if (text.n == strlen(words[i][0]) && memcmp(text.p, words[i][0], text.n) == 0 && p->value_kind != KIND_JSON)
            return (clb_str){words[i][1], strlen(words[i][1])};
    return text;
}

static clb_str trimmed(clb_str text)
{
    while (text.n && strchr(" \n\t\r", text.p[0])) {
        text.p++;
        text.n--;
    }
    while (text.n && strchr(" \n\t\r", text.p[text.n - 1]))
        text.n--;
    return text;
}

/* A list or an object in Python's words, as JSON in `json` if it is one. */
static bool is_python(clb_str text, unsigned types, clb_buf *json, clb_error *err)
{
    clb_literal l = {.braces = false};
    if (types == CLB_TYPE_ANY || !(types & (CLB_TYPE_ARRAY | CLB_TYPE_OBJECT)) || !text.n || !strchr("[{(", text.p[0]))
        return false; /* numbers and words are other types */
    clb_literal_begin(&l, false);
    const bool is = clb_literal_read(&l, text, true, err) == CLB_READ_ON && l.used == text.n;
    *json = l.out;
    return is;
}

/* A value that is not known to be a string: as JSON if it is some that the schema takes, else as a string. */
static int put_any(clb_reply_parser *p, clb_str s, clb_error *err)
{
    const unsigned types = clb_parameter_types(p, p->tool, p->key);
    const clb_str text = as_json_word(p, trimmed(s));
    clb_buf json = {0};
    int rc = COLIBRI_OK;
    if (is_json(p, text, types)) {
        rc = clb_put_arguments(p, text.p, text.n, err);
    } else if (is_python(text, types, &json, err)) {
        rc = clb_put_arguments(p, json.data, json.n, err);
    } else {
        CLB_GO(clb_put_arguments(p, "\"", 1, err));
        CLB_GO(put_escaped(p, s.p, s.n, err));
        rc = clb_put_arguments(p, "\"", 1, err);
    }
done:
    clb_buf_free(&json);
    return rc;
}

/* ---- the end of a value ---- */

/* Whether the text ends where a closing mark stands. 1: yes; 0: the mark is a part of a string of JSON, or of Python,
 * that goes on; -1: neither is it either of both, so that it ended with its first closing mark. */
static int ends_at(const clb_text_end *e, clb_str s)
{
    const clb_str text = trimmed(s);
    bool python = false, json = false;
    if (e->kind != CLB_TEXT_JSON || (e->marks == 0 && !e->scan.in_string))
        return 1;
    if (text.p[text.n - 1] == (text.p[0] == '[' ? ']' : '}')) {
        clb_buf as_json = {0};
        python = is_python(text, CLB_TYPE_ARRAY, &as_json, NULL);
        clb_buf_free(&as_json);
    }
    if (!python && !e->scan.in_string) {
        json_t *const v = json_loadb(text.p, text.n, JSON_DECODE_ANY, NULL);
        json = v != NULL;
        json_decref(v);
    }
    return python || json ? 1 : e->scan.in_string ? 0 : -1;
}

/* Whether a quote at the begin is one of JSON, not of the text. */
static bool quotes_are_json(const clb_reply_parser *p)
{
    const unsigned types = clb_parameter_types(p, p->tool, p->key);
    return p->value_kind == KIND_JSON || types == CLB_TYPE_ANY || !(types & CLB_TYPE_STRING);
}

static size_t end_found(int *which, int mark, size_t at)
{
    *which = mark;
    return at;
}

/* Whether one of the two marks begins behind a line, as clb_begins says it. */
static int forgotten(const clb_reply_parser *p, clb_str behind)
{
    const int a = clb_begins(behind, p->f->call_close), b = clb_begins(behind, p->f->param_open);
    return a > b ? a : b;
}

/* Where the value ends, *which: 0 at a closing mark, 1 at a line behind which the next mark comes: the model forgot it;
 * -1: not within the text, of which so much belongs to the value for sure. The closing mark is the first one that is
 * not a part of a string of the value's JSON; the first one of all, if there is no such. Each byte is looked at once,
 * by what there is in front of it, whatever the pieces. */
static size_t find_value_end(clb_reply_parser *p, clb_str rest, int *which)
{
    clb_text_end *const e = &p->value_end;
    const size_t n_mark = strlen(p->f->value_end);
    while (e->seen < rest.n) {
        const size_t at = e->seen;
        const clb_str here = {rest.p + at, rest.n - at};
        const int mark = *here.p == *p->f->value_end ? clb_begins(here, p->f->value_end) : -1;
        size_t n = 1;
        if (mark == 0 && !p->final)
            return end_found(which, -1, at);
        if (mark > 0) {
            const int ends = ends_at(e, (clb_str){rest.p, at});
            e->first = e->marks ? e->first : at;
            if (ends > 0)
                return end_found(which, 0, at);
            if (ends < 0 || ++e->marks == MARKS_MOST)
                return end_found(which, 0, e->first);
            n = n_mark;
        }
        if (e->kind == CLB_TEXT_JSON && e->scan.in_string && (unsigned char)*here.p < 0x20) { /* no JSON */
            e->kind = CLB_TEXT_PLAIN;
            if (e->marks)
                return end_found(which, 0, e->first);
        }
        if (p->f->lines && *here.p == '\n') {
            const int next = forgotten(p, (clb_str){here.p + 1, here.n - 1});
            if (next > 0)
                return end_found(which, 1, at);
            if (next == 0 && !p->final)
                return end_found(which, -1, at);
        }
        if (e->kind == CLB_TEXT_BLANK && !strchr(" \n\t\r", *here.p))
            e->kind = strchr("[{", *here.p) || (*here.p == '"' && quotes_are_json(p)) ? CLB_TEXT_JSON : CLB_TEXT_PLAIN;
        if (e->kind == CLB_TEXT_JSON)
            clb_value_scan_on(&e->scan, here.p, n);
        e->seen += n;
    }
    if (p->final && !p->cut && e->marks)
        return end_found(which, 0, e->first);
    return end_found(which, -1, rest.n);
}

static void begin_value(clb_reply_parser *p)
{
    p->value_begun = true;
    p->value_end = (clb_text_end){.kind = p->value_kind == KIND_STRING ? CLB_TEXT_PLAIN : CLB_TEXT_BLANK};
}

/* The text of a value up to its closing mark; strings come in pieces. */
static int read_value(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    int which;
    clb_str rest = clb_rest(p);
    *out = CLB_READ_MORE;
    if (!p->value_begun) { /* a newline in front of it */
        if (p->f->lines && rest.n == 0 && !p->final)
            return COLIBRI_OK;
        if (p->f->lines && rest.n && rest.p[0] == '\n')
            p->at++;
        rest = clb_rest(p);
        begin_value(p);
    }
    size_t end = find_value_end(p, rest, &which);
    const bool known = which >= 0;
    size_t text = end;
    if (p->f->lines && text && rest.p[text - 1] == '\n' && which != 1)
        text--;
    if (p->value_kind == KIND_STRING) {
        CLB_TRY(put_escaped(p, rest.p, text, err));
        p->at += text;
        p->value_end.seen = 0;
        end -= text;
        if (p->final && !known) {
            p->at = p->buf.n;
            p->phase = X_AFTER;
        }
        if (!known)
            return COLIBRI_OK;
        CLB_TRY(clb_put_arguments(p, "\"", 1, err));
    } else {
        if (!known && !p->final)
            return COLIBRI_OK;
        if (known || !p->cut) /* half a value may be anything */
            CLB_TRY(put_any(p, (clb_str){rest.p, text}, err));
        if (!known) {
            p->at = p->buf.n;
            p->phase = X_AFTER;
            return COLIBRI_OK;
        }
    }
    p->at += end + (which == 0 ? strlen(p->f->value_end) : 0);
    p->phase = X_PARAMETERS;
    *out = CLB_READ_ON;
    return COLIBRI_OK;
}

/* The name up to what ends it: '>' of a mark, or where marks are around values only, a line or the next mark. */
static int read_name(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    const bool plain = p->f->call_open[0] == '\0';
    size_t n = 0;
    while (n < rest.n && (plain ? !strchr("\n<", rest.p[n]) : rest.p[n] != '>'))
        n++;
    const bool complete = n < rest.n;
    *out = CLB_READ_MORE;
    if (!complete && !p->final && n < 256)
        return COLIBRI_OK;
    clb_str name = {rest.p, n};
    while (name.n && strchr(" \t\"", name.p[name.n - 1]))
        name.n--;
    while (name.n && strchr(" \t\"", name.p[0])) {
        name.p++;
        name.n--;
    }
    *out = CLB_READ_BAD;
    if (!complete || name.n == 0 || name.n >= sizeof p->tool || memchr(name.p, '{', name.n))
        return COLIBRI_OK;
    memcpy(p->tool, name.p, name.n);
    p->tool[name.n] = '\0';
    CLB_TRY(clb_put_call(p, name, (clb_str){"", 0}, err));
    p->at += n + !plain;
    p->first_param = true;
    p->phase = X_PARAMETERS;
    *out = CLB_READ_ON;
    return COLIBRI_OK;
}

static int end_call(clb_reply_parser *p, clb_error *err)
{
    CLB_TRY(clb_put_arguments(p, p->first_param ? "{}" : "}", p->first_param ? 2 : 1, err));
    p->phase = X_AFTER;
    return clb_put_call_end(p, err);
}

static int read_parameters(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    clb_skip_space(p);
    const clb_str rest = clb_rest(p);
    const int open = clb_begins(rest, p->f->param_open), close = clb_begins(rest, p->f->call_close);
    *out = CLB_READ_ON;
    if (open > 0) {
        p->at += strlen(p->f->param_open);
        p->phase = X_KEY;
        return COLIBRI_OK;
    }
    if (close > 0) {
        p->at += strlen(p->f->call_close);
        return end_call(p, err);
    }
    if ((open == 0 || close == 0) && !p->final) {
        *out = CLB_READ_MORE;
        return COLIBRI_OK;
    }
    if (p->final && rest.n == 0) { /* the model stopped */
        *out = CLB_READ_MORE;
        p->phase = X_AFTER;
        return COLIBRI_OK;
    }
    return end_call(p, err); /* something else: the call is over */
}

static int read_key_part(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    const char *end =
        p->f->key_end ? memmem(rest.p, rest.n, p->f->key_end, strlen(p->f->key_end)) : memchr(rest.p, '>', rest.n);
    size_t n = end ? (size_t)(end - rest.p) + (p->f->key_end ? strlen(p->f->key_end) : 1) : 0;
    *out = CLB_READ_MORE;
    if (!end)
        return COLIBRI_OK;
    if (p->f->key_end) { /* the value has a mark of its own */
        static const char mark[] = "<arg_value>";
        while (n < rest.n && strchr(" \n\t", rest.p[n]))
            n++;
        const int begins = clb_begins((clb_str){rest.p + n, rest.n - n}, mark);
        if (begins == 0 && !p->final)
            return COLIBRI_OK;
        if (begins > 0)
            n += sizeof mark - 1;
    }
    read_key(p, (clb_str){rest.p, (size_t)(end - rest.p)});
    CLB_TRY(begin_parameter(p, err));
    p->at += n;
    p->phase = X_VALUE;
    p->value_begun = false;
    *out = CLB_READ_ON;
    return COLIBRI_OK;
}

int clb_read_xml(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    int begins;
    *out = CLB_READ_ON;
    switch (p->phase) {
    case X_BEGIN:
        clb_skip_space(p);
        begins = p->at < p->buf.n ? clb_begins(clb_rest(p), p->f->call_open) : 0;
        if (begins > 0 && p->buf.data[p->at] == '{') /* JSON after all */
            begins = -1;
        if (begins < 0 && p->buf.data[p->at] == '{' && strcmp(p->f->open[0], "<tool_call>") == 0) {
            p->f = clb_tool_format_by_name("hermes");
            return COLIBRI_OK;
        }
        if (begins > 0) {
            p->at += strlen(p->f->call_open);
            p->phase = X_NAME;
        } else {
            *out = begins == 0 && !p->final ? CLB_READ_MORE : CLB_READ_BAD;
        }
        return COLIBRI_OK;
    case X_NAME:
        return read_name(p, out, err);
    case X_PARAMETERS:
        return read_parameters(p, out, err);
    case X_KEY:
        return read_key_part(p, out, err);
    case X_VALUE:
        return read_value(p, out, err);
    default:
        return clb_read_after(p, X_NAME, out);
    }
}
