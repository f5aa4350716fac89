#include "base/escape.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at p, 0 if there is none; *cp its code point. Overlong forms, surrogates and
 * code points above U+10FFFF are invalid (Unicode 15, table 3-7). */
static size_t utf8_char(const unsigned char *p, size_t n, uint32_t *cp)
{
    const unsigned char c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    const size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || n < len)
        return 0;
    uint32_t v = c & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (p[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return 0;
    *cp = v;
    return len;
}

/* Code points that move the cursor, start a line or reorder text. */
static bool is_unsafe(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

static size_t put(char out[CLB_ESCAPE_MAX], const char *fmt, unsigned v)
{
    return (size_t)snprintf(out, CLB_ESCAPE_MAX, fmt, v);
}

size_t clb_escape_step(const char *p, size_t n, char out[CLB_ESCAPE_MAX], size_t *out_n, bool *valid)
{
    uint32_t cp = 0;
    const size_t len = utf8_char((const unsigned char *)p, n, &cp);
    if (valid)
        *valid = len > 0;
    if (!len) {
        *out_n = put(out, "\\x%02x", (unsigned char)*p);
        return 1;
    }
    if (cp == '\n' || cp == '\t' || cp == '\r' || cp == '\\')
        *out_n = put(out, "\\%c", cp == '\n' ? 'n' : cp == '\t' ? 't' : cp == '\r' ? 'r' : '\\');
    else if (is_unsafe(cp))
        *out_n = cp < 0x100 ? put(out, "\\x%02x", cp) : put(out, "\\u%04x", cp);
    else
        memcpy(out, p, *out_n = len);
    return len;
}

char *clb_escape(clb_str s, char *out, size_t cap)
{
    size_t used = 0, keep = 0; /* keep: where to cut so that "..." fits */
    for (size_t i = 0; i < s.n;) {
        char piece[CLB_ESCAPE_MAX];
        size_t n = 0;
        i += clb_escape_step(s.p + i, s.n - i, piece, &n, NULL);
        if (used + n + 1 > cap) {
            memcpy(out + keep, "...", 4);
            return out;
        }
        memcpy(out + used, piece, n);
        used += n;
        if (used + 4 <= cap)
            keep = used;
    }
    out[used] = '\0';
    return out;
}

char *clb_escape_message(const char *text, char *out, size_t cap)
{
    const size_t n = strlen(text);
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        char piece[CLB_ESCAPE_MAX];
        size_t n_piece = 0;
        const size_t len = clb_escape_step(text + i, n - i, piece, &n_piece, NULL);
        if (text[i] == '\\')
            n_piece = 1;
        if (used + n_piece + 1 > cap)
            break;
        memcpy(out + used, piece, n_piece);
        used += n_piece;
        i += len;
    }
    out[used] = '\0';
    return out;
}

bool clb_is_utf8(clb_str s)
{
    uint32_t cp = 0;
    for (size_t i = 0, n = 0; i < s.n; i += n) {
        n = utf8_char((const unsigned char *)s.p + i, s.n - i, &cp);
        if (!n)
            return false;
    }
    return true;
}
