/* Calls as JSON objects. */
#include <string.h>

#include "serve/tool_impl.h"

#define HEADER_MOST 2048 /* bytes before the arguments */

enum { J_BEGIN, J_OBJECT, J_ARGUMENTS, J_REST, J_AFTER };

/* What an object says before its arguments. */
typedef struct header {
    clb_str name, id;
    size_t value, value_end; /* of the arguments, from the object's begin; end 0: not complete */
    size_t end;              /* behind the object; 0: not complete */
    unsigned nest;           /* objects around the arguments */
} header;

static size_t space(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r'))
        i++;
    return i;
}

/* End of the complete value at i, 0 if it is not complete. A plain value counts as complete if something follows. */
static size_t value_end(const char *s, size_t n, size_t i)
{
    clb_value_scan scan = {0};
    const size_t used = clb_value_scan_on(&scan, s + i, n - i);
    return scan.done ? i + used : 0;
}

static bool is(clb_str s, const char *word)
{
    return word && s.n == strlen(word) && memcmp(s.p, word, s.n) == 0;
}

/* Reads keys until the arguments begin and the name is known, or the object ends. BAD: this is no call. */
static enum clb_read read_header(const clb_reply_parser *p, const char *s, size_t n, header *h)
{
    const clb_tool_format *f = p->f;
    size_t i = 1;
    *h = (header){.nest = 1};
    for (;;) {
        i = space(s, n, i);
        while (i < n && s[i] == ',')
            i = space(s, n, i + 1);
        if (i < n && s[i] == '}') {
            i++;
            if (--h->nest > 0)
                continue;
            h->end = i;
            return h->name.n ? CLB_READ_ON : CLB_READ_BAD;
        }
        if (i >= n)
            return CLB_READ_MORE;
        if (s[i] != '"')
            return CLB_READ_BAD;
        const size_t end = value_end(s, n, i);
        if (!end)
            return CLB_READ_MORE;
        const clb_str key = {s + i + 1, end - i - 2};
        i = space(s, n, end);
        if (i >= n)
            return CLB_READ_MORE;
        if (s[i] != ':')
            return CLB_READ_BAD;
        i = space(s, n, i + 1);
        if (i >= n)
            return CLB_READ_MORE;
        const size_t close = value_end(s, n, i);
        if (f->key_is_name && h->nest == 1) {
            h->name = key;
            h->value = i;
            h->value_end = close;
            return CLB_READ_ON;
        }
        if (is(key, "function") && s[i] == '{') { /* as OpenAI's API writes it */
            h->nest++;
            i++;
            continue;
        }
        if (is(key, f->arguments_key) || is(key, "arguments") || is(key, "parameters")) {
            h->value = i;
            h->value_end = close;
            if (h->name.n)
                return CLB_READ_ON;
        }
        if (!close)
            return CLB_READ_MORE;
        if (s[i] == '"' && !h->name.n && (is(key, f->name_key) || is(key, "name") || is(key, "function")))
            h->name = (clb_str){s + i + 1, close - i - 2};
        else if (s[i] == '"' && is(key, "id") && f->short_ids)
            h->id = (clb_str){s + i + 1, close - i - 2};
        if (h->name.n && h->value)
            return CLB_READ_ON;
        i = close;
    }
}

/* A string of JSON is unpacked; one that has no end, as far as its last whole escape. */
static int put_string(clb_reply_parser *p, const char *s, size_t n, clb_error *err)
{
    json_t *text = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    clb_buf closed = {0};
    int rc = COLIBRI_OK;
    for (size_t k = 0; !text && k < 12 && k < n; k++) { /* at most half a pair of \uXXXX */
        closed.n = 0;
        CLB_GO(clb_buf_append(&closed, s, n - k, err));
        CLB_GO(clb_buf_append(&closed, "\"", 1, err));
        text = json_loadb(closed.data, closed.n, JSON_DECODE_ANY, NULL);
    }
    rc = text ? clb_put_arguments(p, json_string_value(text), json_string_length(text), err)
              : clb_put_arguments(p, s, n, err);
done:
    clb_buf_free(&closed);
    json_decref(text);
    return rc;
}

/* Arguments that are complete, or that go no further: null is none. */
static int put_whole(clb_reply_parser *p, const char *s, size_t n, clb_error *err)
{
    if (n && s[0] == '"')
        return put_string(p, s, n, err);
    if (n == 0 || (n == 4 && memcmp(s, "null", 4) == 0))
        return clb_put_arguments(p, "{}", 2, err);
    return clb_put_arguments(p, s, n, err);
}

/* More of the value at p->at. Strings and plain values are given out once they are complete. */
int clb_read_json_value(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    *out = CLB_READ_MORE;
    if (p->value_kind) {
        clb_value_scan scan = {0};
        const size_t n = clb_value_scan_on(&scan, rest.p, rest.n);
        if (!scan.done && !p->final)
            return COLIBRI_OK;
        if (scan.done || !p->cut || rest.p[0] == '"') /* half a word may be anything */
            CLB_TRY(put_whole(p, rest.p, n, err));
        p->at += n;
        *out = CLB_READ_ON;
        return COLIBRI_OK;
    }
    const size_t n = clb_value_scan_on(&p->scan, rest.p, rest.n);
    CLB_TRY(clb_put_arguments(p, rest.p, n, err));
    p->at += n;
    *out = p->scan.done ? CLB_READ_ON : CLB_READ_MORE;
    return COLIBRI_OK;
}

void clb_begin_json_value(clb_reply_parser *p)
{
    const char c = p->at < p->buf.n ? p->buf.data[p->at] : '{';
    p->scan = (clb_value_scan){0};
    p->value_kind = c != '{' && c != '[';
}

/* Names are in quotes, and may have escapes. */
static int put_call(clb_reply_parser *p, const header *h, clb_error *err)
{
    json_t *const plain =
        memchr(h->name.p, '\\', h->name.n) ? json_loadb(h->name.p - 1, h->name.n + 2, JSON_DECODE_ANY, NULL) : NULL;
    const clb_str name = plain ? (clb_str){json_string_value(plain), json_string_length(plain)} : h->name;
    const int rc = clb_put_call(p, name, h->id, err);
    json_decref(plain);
    return rc;
}

static int read_object(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    header h;
    const clb_str rest = clb_rest(p);
    *out = read_header(p, rest.p, rest.n, &h);
    const bool unknown = h.name.n && p->unmarked && !p->any_in_section && !clb_tool_known(p, h.name);
    if (*out == CLB_READ_MORE && (p->final || rest.n > HEADER_MOST) && !h.value)
        *out = CLB_READ_BAD;
    if (h.value > HEADER_MOST || (!h.value && h.end > HEADER_MOST)) /* whatever the pieces that it came in */
        *out = CLB_READ_BAD;
    if (*out == CLB_READ_MORE && p->final && h.name.n == 0)
        *out = CLB_READ_BAD;
    if (unknown || (*out == CLB_READ_BAD && !(p->final && h.name.n && !unknown))) {
        *out = CLB_READ_BAD;
        return COLIBRI_OK;
    }
    if (*out == CLB_READ_MORE)
        return COLIBRI_OK;
    *out = CLB_READ_ON;
    CLB_TRY(put_call(p, &h, err));
    if (!h.value) { /* no arguments; or the text ends before them */
        if (h.end)
            CLB_TRY(clb_put_arguments(p, "{}", 2, err));
        CLB_TRY(clb_put_call_end(p, err));
        p->at = h.end ? p->at + h.end : p->buf.n;
        p->phase = J_AFTER;
        return COLIBRI_OK;
    }
    p->nest = h.nest;
    if (h.name.p > rest.p + h.value) { /* arguments first: they are complete, and so is the name */
        CLB_TRY(put_whole(p, rest.p + h.value, h.value_end - h.value, err));
        p->at += (size_t)(h.name.p - rest.p) + h.name.n + 1;
        p->phase = J_REST;
        return COLIBRI_OK;
    }
    p->at += h.value;
    p->phase = J_ARGUMENTS;
    clb_begin_json_value(p);
    return COLIBRI_OK;
}

/* Behind the arguments, up to the object's end. */
static int read_object_rest(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    const clb_str rest = clb_rest(p);
    size_t i = 0;
    *out = CLB_READ_MORE;
    while (i < rest.n) {
        const char c = rest.p[i];
        if (c == '}' && --p->nest == 0) {
            p->at += i + 1;
            p->phase = J_AFTER;
            *out = CLB_READ_ON;
            return clb_put_call_end(p, err);
        }
        if (c == '"' || c == '{' || c == '[') { /* a further key or value */
            const size_t end = value_end(rest.p, rest.n, i);
            if (!end)
                break;
            i = end;
            continue;
        }
        if (c == '<' || c == ']') { /* the object is not closed, but the calls are */
            p->at += i;
            p->phase = J_AFTER;
            *out = CLB_READ_ON;
            return clb_put_call_end(p, err);
        }
        i++;
    }
    p->at += i;
    if (p->final) {
        p->at = p->buf.n;
        p->phase = J_AFTER;
        return clb_put_call_end(p, err);
    }
    return COLIBRI_OK;
}

static int read_after(clb_reply_parser *p, enum clb_read *out)
{
    *out = CLB_READ_ON;
    for (;;) {
        clb_skip_space(p);
        if (p->at >= p->buf.n) {
            *out = CLB_READ_MORE;
            return COLIBRI_OK;
        }
        const char c = p->buf.data[p->at];
        if (c == '{') {
            p->phase = J_OBJECT;
            return COLIBRI_OK;
        }
        const int closed = clb_take_close(p);
        if (closed > 0)
            p->mode = CLB_MODE_TEXT;
        if (closed == 0)
            *out = CLB_READ_MORE;
        if (closed >= 0)
            return COLIBRI_OK;
        /* a brace too many is a mistake that models make */
        if (c != ',' && c != ';' && c != ']' && c != '}')
            break;
        p->at++;
    }
    p->mode = CLB_MODE_TEXT;
    return COLIBRI_OK;
}

int clb_read_json(clb_reply_parser *p, enum clb_read *out, clb_error *err)
{
    switch (p->phase) {
    case J_BEGIN:
        clb_skip_space(p);
        *out = p->final ? CLB_READ_BAD : CLB_READ_MORE;
        if (p->at >= p->buf.n)
            return COLIBRI_OK;
        *out = CLB_READ_ON;
        if (p->buf.data[p->at] == '[' && !p->in_list) {
            p->in_list = true;
            p->at++;
        } else if (p->buf.data[p->at] == '{') {
            p->phase = J_OBJECT;
        } else {
            *out = CLB_READ_BAD;
            if (p->f->shape == CLB_SHAPE_JSON && p->buf.data[p->at] == '<' && p->f->open[0] &&
                strcmp(p->f->open[0], "<tool_call>") == 0) {
                const int xml = clb_begins(clb_rest(p), "<function=");
                if (xml > 0)
                    p->f = clb_tool_format_by_name("qwen3-coder");
                *out = xml > 0 ? CLB_READ_ON : xml == 0 && !p->final ? CLB_READ_MORE : CLB_READ_BAD;
            }
        }
        return COLIBRI_OK;
    case J_OBJECT:
        return read_object(p, out, err);
    case J_ARGUMENTS:
        CLB_TRY(clb_read_json_value(p, out, err));
        if (*out == CLB_READ_ON)
            p->phase = J_REST;
        return COLIBRI_OK;
    case J_REST:
        return read_object_rest(p, out, err);
    default:
        return read_after(p, out);
    }
}
