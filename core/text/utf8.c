#include "text/utf8.h"

#include <string.h>

#include "text/vocab.h"

/* Bytes that a lead byte announces; 0 for a continuation or an impossible byte. */
static size_t announced(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2)
        return 0;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
}

/* May `b` be the second byte after `lead`? Rules out overlong forms, surrogates and values above U+10FFFF. */
static int second_ok(uint8_t lead, uint8_t b)
{
    const uint8_t lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return b >= lo && b <= hi;
}

size_t clb_utf8_decode(const char *p, size_t n, uint32_t *cp)
{
    const uint8_t *s = (const uint8_t *)p;
    const size_t len = announced(s[0]);
    if (len == 0 || len > n)
        return 0;
    uint32_t c = s[0];
    if (len > 1) {
        if (!second_ok(s[0], s[1]))
            return 0;
        c &= 0x7Fu >> len;
        for (size_t i = 1; i < len; i++) {
            if ((s[i] & 0xC0) != 0x80)
                return 0;
            c = c << 6 | (s[i] & 0x3Fu);
        }
    }
    if (cp)
        *cp = c;
    return len;
}

size_t clb_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    const size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)((0xF00u >> len & 0xFFu) | cp);
    return len;
}

/* Latin-1 characters that print stand for themselves; the other 68 bytes follow in order from U+0100. */
static int prints(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t clb_char_of_byte(uint8_t byte)
{
    if (prints(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte <= 0xA0 ? 0x121u + (byte - 0x7Fu) : 0x143u;
}

int clb_byte_of_char(uint32_t cp)
{
    if (cp < 0x100)
        return prints(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

size_t clb_utf8_complete(const char *data, size_t n)
{
    /* Only the last three bytes can be the beginning of something longer. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const uint8_t lead = (uint8_t)data[n - back];
        if ((lead & 0xC0) == 0x80)
            continue;
        if (announced(lead) <= back || (back > 1 && !second_ok(lead, (uint8_t)data[n - back + 1])))
            return n;
        return n - back;
    }
    return n;
}

bool clb_alphabet_decode(const char *p, size_t n, char *out, uint32_t *out_n)
{
    bool all = true;
    *out_n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        const size_t found = clb_utf8_decode(p + i, n - i, &cp), len = found ? found : 1;
        const int byte = found ? clb_byte_of_char(cp) : -1;
        if (byte >= 0) {
            out[(*out_n)++] = (char)byte;
        } else {
            all = false;
            memcpy(out + *out_n, p + i, len);
            *out_n += (uint32_t)len;
        }
        i += len;
    }
    return all;
}
