/* Values as Python prints them, or as Gemma writes them between braces, as JSON text; and JSON as Python. Values are
 * read by a machine that stops anywhere and goes on from there: a model writes long ones in thousands of pieces. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "serve/tool_impl.h"

/* What comes next: a value; an item of a list or a dict, with a comma or without; one behind the comma; the rest of a
 * string; ... */
enum { L_VALUE, L_ITEM, L_BEHIND_COMMA, L_KEY, L_COLON, L_QUOTED, L_MARKED, L_DONE };

typedef struct reader {
    clb_literal *l;
    const char *p, *end;
    bool final;
    clb_error *err;
    int status;
} reader;

static const char quote_mark[] = "<|\"|>";

static void put(reader *r, const char *text, size_t n)
{
    if (!r->status)
        r->status = clb_buf_append(&r->l->out, text, n, r->err);
}

static void put_text(reader *r, const char *text, size_t n)
{
    if (!r->status)
        r->status = clb_json_escape(&r->l->out, text, n, r->err);
}

static void skip_space(reader *r)
{
    while (r->p < r->end && strchr(" \n\t\r", *r->p))
        r->p++;
}

static int quote_begins(const reader *r)
{
    return r->l->braces ? clb_begins((clb_str){r->p, (size_t)(r->end - r->p)}, quote_mark) : -1;
}

static enum clb_read value_ended(reader *r)
{
    r->l->phase = r->l->depth ? L_ITEM : L_DONE;
    r->l->first = false;
    return CLB_READ_ON;
}

static enum clb_read string_ended(reader *r)
{
    put(r, "\"", 1);
    if (!r->l->key)
        return value_ended(r);
    r->l->phase = L_COLON;
    return CLB_READ_ON;
}

/* How many of the next four characters are such digits, up to the first other one. */
static size_t hex_digits(const reader *r, const char *from)
{
    size_t n = 0;
    while (n < 4 && from + n < r->end && isxdigit((unsigned char)from[n]))
        n++;
    return n;
}

/* The rest of 'text' or "text", with Python's escapes and those of JSON */
static enum clb_read quoted(reader *r)
{
    while (r->p < r->end && *r->p != r->l->quote) {
        if (*r->p != '\\') {
            put_text(r, r->p++, 1);
            continue;
        }
        if (r->p + 1 >= r->end)
            return CLB_READ_MORE;
        const char c = r->p[1];
        const size_t digits = c == 'u' ? hex_digits(r, r->p + 2) : 0;
        if (c == 'u' && digits < 4 && r->p + 2 + digits == r->end)
            return CLB_READ_MORE;
        if (digits == 4)
            put(r, r->p, 6);
        else if (c && strchr("bfnrt\\\"", c))
            put(r, r->p, 2);
        else if (c == '\'' || c == '/')
            put_text(r, &c, 1);
        else if (c != '\n')
            put_text(r, r->p, 2);
        r->p += digits == 4 ? 6 : 2;
    }
    if (r->p >= r->end)
        return CLB_READ_MORE;
    r->p++;
    return string_ended(r);
}

/* The rest of <|"|>text<|"|> */
static enum clb_read marked(reader *r)
{
    static const char *const marks[] = {quote_mark};
    int which;
    const size_t n = clb_find_mark((clb_str){r->p, (size_t)(r->end - r->p)}, marks, 1, r->final, &which);
    put_text(r, r->p, n);
    r->p += n;
    if (which < 0)
        return CLB_READ_MORE;
    r->p += sizeof quote_mark - 1;
    return string_ended(r);
}

/* Begins a string; `skip`: the bytes of its opening mark. */
static enum clb_read string_begun(reader *r, bool key, int phase, size_t skip)
{
    r->l->key = key;
    r->l->phase = phase;
    r->l->quote = *r->p;
    r->p += skip;
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

/* Up to one of the ends, without blanks in front of it; those bytes that were looked at before are not again. */
static clb_str plain(reader *r, const char *ends)
{
    const char *const from = r->p;
    const char *to = from + r->l->ahead;
    while (to < r->end && !strchr(ends, *to))
        to++;
    r->p = to;
    while (to > from && strchr(" \n\t\r", to[-1]))
        to--;
    return (clb_str){from, (size_t)(to - from)};
}

static enum clb_read goes_on(reader *r, const char *from)
{
    r->l->ahead = (size_t)(r->p - from);
    r->p = from;
    return CLB_READ_MORE;
}

/* True, None, 1.5; another word is a string */
static enum clb_read word(reader *r)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const clb_str text = plain(r, r->l->braces ? ",}]" : ",)]} \n\t\r:=");
    if (r->p >= r->end && !r->final) /* it may go on */
        return goes_on(r, text.p);
    r->l->ahead = 0;
    if (text.n == 0)
        return CLB_READ_BAD;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (text.n == strlen(words[i][0]) && memcmp(text.p, words[i][0], text.n) == 0) {
            put(r, words[i][1], strlen(words[i][1]));
            return value_ended(r);
        }
    if (is_number(text.p, text.n)) {
        put(r, text.p, text.n);
        return value_ended(r);
    }
    if (!r->l->braces && !r->final)
        return CLB_READ_BAD;
    put(r, "\"", 1);
    put_text(r, text.p, text.n);
    put(r, "\"", 1);
    return value_ended(r);
}

/* The key of a dict: quoted, or plain. */
static enum clb_read key(reader *r)
{
    if (*r->p == '\'' || *r->p == '"')
        return string_begun(r, true, L_QUOTED, 1);
    const int begins = quote_begins(r);
    if (begins == 0 && !r->final)
        return CLB_READ_MORE;
    if (begins > 0)
        return string_begun(r, true, L_MARKED, sizeof quote_mark - 1);
    const clb_str text = plain(r, ":,}");
    if (r->p >= r->end)
        return goes_on(r, text.p);
    r->l->ahead = 0;
    put(r, "\"", 1);
    put_text(r, text.p, text.n);
    put(r, "\"", 1);
    r->l->phase = L_COLON;
    return text.n ? CLB_READ_ON : CLB_READ_BAD;
}

static enum clb_read item(reader *r)
{
    clb_literal *const l = r->l;
    const char open = l->open[l->depth - 1], close = open == '{' ? '}' : open == '[' ? ']' : ')';
    if (l->phase == L_ITEM && *r->p == ',' && !l->first) {
        r->p++;
        l->phase = L_BEHIND_COMMA;
        return CLB_READ_ON;
    }
    if (*r->p == close) {
        r->p++;
        put(r, open == '{' ? "}" : "]", 1);
        l->depth--;
        return value_ended(r);
    }
    if (!l->first)
        put(r, ", ", 2);
    l->phase = open == '{' ? L_KEY : L_VALUE;
    return CLB_READ_ON;
}

static enum clb_read value(reader *r)
{
    clb_literal *const l = r->l;
    if (l->depth > CLB_LITERAL_DEPTH)
        return CLB_READ_BAD;
    if (*r->p == '{' || *r->p == '[' || *r->p == '(') {
        put(r, *r->p == '{' ? "{" : "[", 1);
        l->open[l->depth++] = *r->p++;
        l->phase = L_ITEM;
        l->first = true;
        return CLB_READ_ON;
    }
    if (*r->p == '\'' || *r->p == '"')
        return string_begun(r, false, L_QUOTED, 1);
    const int begins = quote_begins(r);
    if (begins == 0 && !r->final)
        return CLB_READ_MORE;
    return begins > 0 ? string_begun(r, false, L_MARKED, sizeof quote_mark - 1) : word(r);
}

static enum clb_read step(reader *r)
{
    if (r->l->phase == L_QUOTED)
        return quoted(r);
    if (r->l->phase == L_MARKED)
        return marked(r);
    skip_space(r);
    if (r->p >= r->end)
        return CLB_READ_MORE;
    switch (r->l->phase) {
    case L_VALUE:
        return value(r);
    case L_KEY:
        return key(r);
    case L_COLON:
        if (*r->p != ':')
            return CLB_READ_BAD;
        r->p++;
        put(r, ": ", 2);
        r->l->phase = L_VALUE;
        return CLB_READ_ON;
    default:
        return item(r);
    }
}

void clb_literal_begin(clb_literal *l, bool braces)
{
    const clb_buf out = {.data = l->out.data, .cap = l->out.cap};
    *l = (clb_literal){.out = out, .braces = braces, .phase = L_VALUE};
}

enum clb_read clb_literal_read(clb_literal *l, clb_str s, bool final, clb_error *err)
{
    if (l->used > s.n) /* a reply that was cut: what it ended with is not counted */
        l->used = s.n;
    if (l->ahead > s.n - l->used)
        l->ahead = s.n - l->used;
    reader r = {.l = l, .p = s.p + l->used, .end = s.p + s.n, .final = final, .err = err};
    enum clb_read read = CLB_READ_ON;
    while (read == CLB_READ_ON && l->phase != L_DONE && !r.status)
        read = step(&r);
    l->used = (size_t)(r.p - s.p);
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
