#include "serve/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

void clb_jb_bytes(clb_json_buf *b, const void *data, size_t n)
{
    if (!b->failed && clb_buf_append(&b->buf, data, n, NULL))
        b->failed = true;
}

void clb_jb_raw(clb_json_buf *b, const char *text)
{
    clb_jb_bytes(b, text, strlen(text));
}

/* The escape of a character that JSON does not take as it is, into out; NULL: it does. */
static const char *escape(unsigned char c, char out[8])
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        if (c >= 0x20 && c != 0x7f)
            return NULL;
        snprintf(out, 8, "\\u%04x", c);
        return out;
    }
}

void clb_jb_string(clb_json_buf *b, const char *text, size_t n)
{
    clb_jb_bytes(b, "\"", 1);
    size_t done = 0, at = 0; /* what lies between is written in one piece */
    while (at < n) {
        char room[8];
        const size_t len = clb_utf8_decode(text + at, n - at, NULL);
        const char *other = len == 0 ? "\xef\xbf\xbd" : len == 1 ? escape((unsigned char)text[at], room) : NULL;
        if (other) {
            clb_jb_bytes(b, text + done, at - done);
            clb_jb_raw(b, other);
        }
        at += len ? len : 1;
        if (other)
            done = at;
    }
    clb_jb_bytes(b, text + done, n - done);
    clb_jb_bytes(b, "\"", 1);
}

void clb_jb_text(clb_json_buf *b, const char *text)
{
    clb_jb_string(b, text, strlen(text));
}

void clb_jb_uint(clb_json_buf *b, uint64_t value)
{
    char s[24];
    snprintf(s, sizeof s, "%llu", (unsigned long long)value);
    clb_jb_raw(b, s);
}

void clb_jb_real(clb_json_buf *b, double value)
{
    char s[40];
    if (isnan(value))
        snprintf(s, sizeof s, "null");
    else if (isinf(value))
        snprintf(s, sizeof s, "%s", value < 0 ? "-9999.0" : "9999.0");
    else
        snprintf(s, sizeof s, "%.9g", value);
    for (char *comma = s; *comma; comma++) /* whatever the locale says */
        if (*comma == ',')
            *comma = '.';
    clb_jb_raw(b, s);
}

static int dump(const char *data, size_t n, void *ctx)
{
    clb_json_buf *b = ctx;
    clb_jb_bytes(b, data, n);
    return b->failed ? -1 : 0;
}

void clb_jb_json(clb_json_buf *b, const json_t *value)
{
    if (!b->failed && json_dump_callback(value, dump, b, JSON_COMPACT | JSON_ENCODE_ANY))
        b->failed = true;
}

void clb_jb_free(clb_json_buf *b)
{
    clb_buf_free(&b->buf);
    b->failed = false;
}
