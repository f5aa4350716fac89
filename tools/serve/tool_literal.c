/* Values as Python prints them, or as Gemma writes them between braces, as JSON text; and JSON as Python. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "serve/tool_impl.h"

#define DEPTH 64

typedef struct reader {
    const char *p, *end;
    bool braces, final;
    clb_buf *out;
    clb_error *err;
    int status;
} reader;

static const char quote_mark[] = "<|\"|>";

static void put(reader *r, const char *text, size_t n)
{
    if (!r->status)
        r->status = clb_buf_append(r->out, text, n, r->err);
}

static void put_text(reader *r, const char *text, size_t n)
{
    if (!r->status)
        r->status = clb_json_escape(r->out, text, n, r->err);
}

static void skip_space(reader *r)
{
    while (r->p < r->end && strchr(" \n\t\r", *r->p))
        r->p++;
}

static enum clb_read value(reader *r, unsigned depth);

/* How many of the next four characters are such digits, up to the first other one. */
static size_t hex_digits(const reader *r)
{
    size_t n = 0;
    while (n < 4 && r->p + n < r->end && isxdigit((unsigned char)r->p[n]))
        n++;
    return n;
}

/* 'text' or "text", with Python's escapes */
static enum clb_read quoted(reader *r)
{
    const char quote = *r->p++;
    put(r, "\"", 1);
    while (r->p < r->end && *r->p != quote) {
        if (*r->p != '\\') {
            put_text(r, r->p++, 1);
            continue;
        }
        if (r->p + 1 >= r->end)
            return CLB_READ_MORE;
        const char c = r->p[1];
        r->p += 2;
        if (c && strchr("bfnrt\\\"", c)) {
            const char escape[2] = {'\\', c};
            put(r, escape, 2);
        } else if (c == 'u' && hex_digits(r) == 4) {
            put(r, r->p - 2, 6);
            r->p += 4;
        } else if (c == 'u' && r->p + hex_digits(r) == r->end) {
            return CLB_READ_MORE;
        } else if (c == '\'' || c == '/') {
            put_text(r, &c, 1);
        } else if (c != '\n') {
            put_text(r, r->p - 2, 2);
        }
    }
    if (r->p >= r->end)
        return CLB_READ_MORE;
    r->p++;
    put(r, "\"", 1);
    return CLB_READ_ON;
}

/* <|"|>text<|"|> */
static enum clb_read marked(reader *r)
{
    const size_t n = sizeof quote_mark - 1;
    r->p += n;
    const char *close = memmem(r->p, (size_t)(r->end - r->p), quote_mark, n);
    put(r, "\"", 1);
    put_text(r, r->p, (size_t)((close ? close : r->end) - r->p));
    r->p = close ? close + n : r->end;
    if (!close)
        return CLB_READ_MORE;
    put(r, "\"", 1);
    return CLB_READ_ON;
}

static bool is_number(const char *s, size_t n)
{
    char text[64];
    if (n == 0 || n >= sizeof text || !strchr("-0123456789", s[0]))
        return false;
    memcpy(text, s, n);
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    const bool number = json_is_number(v);
    json_decref(v);
    return number;
}

/* How long the text is without blanks at its end. */
static size_t unblanked(const char *from, const char *to)
{
    while (to > from && strchr(" \n\t\r", to[-1]))
        to--;
    return (size_t)(to - from);
}

/* True, None, 1.5; another word is a string */
static enum clb_read word(reader *r)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *from = r->p;
    while (r->p < r->end && !strchr(r->braces ? ",}]" : ",)]} \n\t:=", *r->p))
        r->p++;
    if (r->p >= r->end && !r->final) /* it may go on */
        return CLB_READ_MORE;
    const size_t n = unblanked(from, r->p);
    if (n == 0)
        return CLB_READ_BAD;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n == strlen(words[i][0]) && memcmp(from, words[i][0], n) == 0) {
            put(r, words[i][1], strlen(words[i][1]));
            return CLB_READ_ON;
        }
    if (is_number(from, n)) {
        put(r, from, n);
        return CLB_READ_ON;
    }
    if (!r->braces && !r->final)
        return CLB_READ_BAD;
    put(r, "\"", 1);
    put_text(r, from, n);
    put(r, "\"", 1);
    return CLB_READ_ON;
}

/* The key of a dict: quoted, or in braces plain. */
static enum clb_read key(reader *r)
{
    if (*r->p == '\'' || *r->p == '"')
        return quoted(r);
    const int begins = r->braces ? clb_begins((clb_str){r->p, (size_t)(r->end - r->p)}, quote_mark) : -1;
    if (begins == 0 && !r->final)
        return CLB_READ_MORE;
    if (begins > 0)
        return marked(r);
    const char *from = r->p;
    while (r->p < r->end && !strchr(":,}", *r->p))
        r->p++;
    if (r->p >= r->end)
        return CLB_READ_MORE;
    put(r, "\"", 1);
    put_text(r, from, unblanked(from, r->p));
    put(r, "\"", 1);
    return r->p > from ? CLB_READ_ON : CLB_READ_BAD;
}

static enum clb_read collection(reader *r, unsigned depth)
{
    const char open = *r->p++, close = open == '{' ? '}' : open == '[' ? ']' : ')';
    put(r, open == '{' ? "{" : "[", 1);
    for (bool first = true;; first = false) {
        skip_space(r);
        if (r->p < r->end && *r->p == ',' && !first) {
            r->p++;
            skip_space(r);
        }
        if (r->p >= r->end)
            return CLB_READ_MORE;
        if (*r->p == close) {
            r->p++;
            put(r, open == '{' ? "}" : "]", 1);
            return CLB_READ_ON;
        }
        if (!first)
            put(r, ", ", 2);
        if (open == '{') {
            const enum clb_read k = key(r);
            if (k != CLB_READ_ON)
                return k;
            skip_space(r);
            if (r->p >= r->end)
                return CLB_READ_MORE;
            if (*r->p++ != ':')
                return CLB_READ_BAD;
            put(r, ": ", 2);
        }
        const enum clb_read v = value(r, depth + 1);
        if (v != CLB_READ_ON)
            return v;
    }
}

static enum clb_read value(reader *r, unsigned depth)
{
    skip_space(r);
    if (depth > DEPTH)
        return CLB_READ_BAD;
    if (r->p >= r->end)
        return CLB_READ_MORE;
    if (*r->p == '{' || *r->p == '[' || *r->p == '(')
        return collection(r, depth);
    if (*r->p == '\'' || *r->p == '"')
        return quoted(r);
    const int begins = r->braces ? clb_begins((clb_str){r->p, (size_t)(r->end - r->p)}, quote_mark) : -1;
    if (begins == 0 && !r->final)
        return CLB_READ_MORE;
    return begins > 0 ? marked(r) : word(r);
}

enum clb_read clb_literal_to_json(clb_str s, bool braces, bool final, size_t *used, clb_buf *out, clb_error *err)
{
    reader r = {.p = s.p, .end = s.p + s.n, .braces = braces, .final = final, .out = out, .err = err};
    const enum clb_read read = value(&r, 0);
    *used = (size_t)(r.p - s.p);
    return r.status ? CLB_READ_BAD : read;
}

int clb_json_to_python(const json_t *v, clb_buf *out, clb_error *err)
{
    const char *key_text;
    json_t *item;
    size_t i;
    int rc = COLIBRI_OK;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        CLB_TRY(clb_buf_append(out, "{", 1, err));
        i = 0;
        json_object_foreach((json_t *)v, key_text, item)
        {
            CLB_TRY(clb_buf_printf(out, err, "%s\"", i++ ? ", " : ""));
            CLB_TRY(clb_json_escape(out, key_text, strlen(key_text), err));
            CLB_TRY(clb_buf_append(out, "\": ", 3, err));
            CLB_TRY(clb_json_to_python(item, out, err));
        }
        return clb_buf_append(out, "}", 1, err);
    case JSON_ARRAY:
        CLB_TRY(clb_buf_append(out, "[", 1, err));
        json_array_foreach(v, i, item)
        {
            if (i)
                CLB_TRY(clb_buf_append(out, ", ", 2, err));
            CLB_TRY(clb_json_to_python(item, out, err));
        }
        return clb_buf_append(out, "]", 1, err);
    case JSON_STRING:
        CLB_TRY(clb_buf_append(out, "\"", 1, err));
        CLB_TRY(clb_json_escape(out, json_string_value(v), json_string_length(v), err));
        return clb_buf_append(out, "\"", 1, err);
    case JSON_TRUE:
    case JSON_FALSE:
        return clb_buf_printf(out, err, "%s", json_is_true(v) ? "True" : "False");
    case JSON_NULL:
        return clb_buf_append(out, "None", 4, err);
    default: {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        rc = text ? clb_buf_append(out, text, strlen(text), err) : CLB_NOMEM(err, "arguments");
        free(text);
        return rc;
    }
    }
}
