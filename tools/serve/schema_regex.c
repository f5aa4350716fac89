/* A bounded part of ECMAScript's regular expressions -> what a JSON string that they match has between its quotes.
 *
 * Not there, and refused by name: look-around, back references, word boundaries, \p{...}, and ^ and $ other than at the
 * begin and the end of an alternative. Lazy quantifiers match the same strings as greedy ones. A pattern without ^ or $
 * may have anything before or after it, as in JSON Schema. Characters that JSON escapes are written with their shortest
 * escape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

#define MOST_DEPTH 40
#define MOST_COUNT 10000
#define LAST_CHAR  0x10FFFFu

struct range {
    uint32_t lo, hi;
};

struct set {
    struct range ranges[64];
    int n;
};

struct regex {
    clb_gbnf *g;
    const char *all, *p;
    int depth;
    clb_error *err;
    char character[CLB_GBNF_NAME]; /* any one of a JSON string */
};

/* How many characters: most SIZE_MAX: any number. */
struct length {
    size_t least, most;
};

static int refuse(const struct regex *r, const char *what)
{
    return schema_fail(r->g, r->err, COLIBRI_E_UNSUPPORTED, "\"pattern\": %s is not supported (character %zu)", what,
                       (size_t)(r->p - r->all) + 1);
}

static int wrong(const struct regex *r, const char *what)
{
    return schema_fail(r->g, r->err, COLIBRI_E_USAGE, "\"pattern\": %s (character %zu)", what,
                       (size_t)(r->p - r->all) + 1);
}

static size_t capped_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t capped_mul(size_t a, size_t b)
{
    return a && b > SIZE_MAX / a ? SIZE_MAX : a * b;
}

/* ---- sets of characters ---- */

static int set_add(const struct regex *r, struct set *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi)
        return COLIBRI_OK;
    if (s->n == (int)(sizeof s->ranges / sizeof *s->ranges))
        return schema_fail(r->g, r->err, COLIBRI_E_LIMIT, "\"pattern\": a class of more than 64 ranges");
    s->ranges[s->n++] = (struct range){lo, hi};
    return COLIBRI_OK;
}

static int by_lo(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void set_sort(struct set *s)
{
    int k = 0;
    if (s->n == 0)
        return;
    qsort(s->ranges, (size_t)s->n, sizeof *s->ranges, by_lo);
    for (int i = 1; i < s->n; i++)
        if (s->ranges[i].lo <= s->ranges[k].hi + 1)
            s->ranges[k].hi = s->ranges[i].hi > s->ranges[k].hi ? s->ranges[i].hi : s->ranges[k].hi;
        else
            s->ranges[++k] = s->ranges[i];
    s->n = k + 1;
}

static int set_negate(const struct regex *r, struct set *s)
{
    struct set out = {.n = 0};
    uint32_t next = 0;
    set_sort(s);
    for (int i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > next)
            CLB_TRY(set_add(r, &out, next, s->ranges[i].lo - 1));
        next = s->ranges[i].hi + 1;
    }
    CLB_TRY(set_add(r, &out, next, LAST_CHAR));
    *s = out;
    return COLIBRI_OK;
}

/* \d \w \s and their opposites. */
static int set_add_named(const struct regex *r, struct set *s, char name)
{
    static const struct range digits[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                              blank[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const char kind = (char)(name | 0x20);
    const struct range *ranges = kind == 'd' ? digits : kind == 'w' ? word : blank;
    const int n = kind == 'd' ? 1 : kind == 'w' ? 4 : 10;
    struct set own = {.n = 0};
    for (int i = 0; i < n; i++)
        CLB_TRY(set_add(r, &own, ranges[i].lo, ranges[i].hi));
    if (kind != name)
        CLB_TRY(set_negate(r, &own));
    for (int i = 0; i < own.n; i++)
        CLB_TRY(set_add(r, s, own.ranges[i].lo, own.ranges[i].hi));
    return COLIBRI_OK;
}

static bool in_set(const struct set *s, uint32_t c)
{
    for (int i = 0; i < s->n; i++)
        if (c >= s->ranges[i].lo && c <= s->ranges[i].hi)
            return true;
    return false;
}

/* One character of the set, as JSON writes it in a string. NUL is left out: many readers cannot take it. */
static int emit_set(const struct regex *r, struct set *s, clb_buf *e)
{
    static const char short_escapes[] = "\bb\ff\nn\rr\tt";
    clb_error *err = r->err;
    bool first = true;
    set_sort(s);
    CLB_TRY(clb_buf_printf(e, err, "("));
    for (int i = 0; i < s->n; i++) {
        /* The plain ones: apart from ", \ and control characters. */
        uint32_t lo = s->ranges[i].lo < 0x20 ? 0x20 : s->ranges[i].lo;
        const uint32_t hi = s->ranges[i].hi;
        static const uint32_t special[] = {'"', '\\', LAST_CHAR + 1};
        for (int k = 0; k < 3 && lo <= hi; k++) {
            if (special[k] < lo)
                continue;
            const uint32_t end = special[k] - 1 < hi ? special[k] - 1 : hi;
            if (lo <= end && !(lo >= 0xD800 && end <= 0xDFFF)) {
                CLB_TRY(clb_buf_printf(e, err, "%s", first ? "[" : ""));
                lo = lo >= 0xD800 && lo <= 0xDFFF ? 0xE000 : lo;
                CLB_TRY(clb_buf_printf(e, err, "\\U%08X-\\U%08X", (unsigned)lo,
                                       (unsigned)(end >= 0xD800 && end <= 0xDFFF ? 0xD7FF : end)));
                first = false;
            }
            lo = special[k] + 1;
        }
    }
    if (!first)
        CLB_TRY(clb_buf_printf(e, err, "]"));
    for (uint32_t c = 1; c < 0x20; c++) {
        if (!in_set(s, c))
            continue;
        CLB_TRY(clb_buf_printf(e, err, "%s", first ? "" : " | "));
        first = false;
        const char *known = NULL;
        for (const char *k = short_escapes; *k; k += 2)
            if ((uint32_t)*k == c)
                known = k + 1;
        CLB_TRY(known ? clb_buf_printf(e, err, "\"\\\\%c\"", *known)
                      : clb_buf_printf(e, err, "\"\\\\u%04x\"", (unsigned)c));
    }
    for (int i = 0; i < 2; i++)
        if (in_set(s, i ? '\\' : '"')) {
            CLB_TRY(clb_buf_printf(e, err, "%s\"\\\\%s\"", first ? "" : " | ", i ? "\\\\" : "\\\""));
            first = false;
        }
    if (first) { /* nothing left */
        char none[CLB_GBNF_NAME];
        CLB_TRY(schema_shared(r->g, "none", none, err));
        CLB_TRY(clb_buf_printf(e, err, "%s", none));
    }
    return clb_buf_printf(e, err, ")");
}

/* ---- characters ---- */

static int hex(struct regex *r, int least, int most, uint32_t *out)
{
    uint32_t v = 0;
    int n = 0;
    for (; n < most; n++, r->p++) {
        const char c = *r->p;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            break;
    }
    if (n < least)
        return wrong(r, "an escape lacks hexadecimal digits");
    *out = v;
    return COLIBRI_OK;
}

static uint32_t utf8(const char **p)
{
    const unsigned char *s = (const unsigned char *)*p; /* jansson has checked it */
    const int n = *s < 0x80 ? 0 : *s < 0xE0 ? 1 : *s < 0xF0 ? 2 : 3;
    uint32_t c = n == 0 ? *s : *s & (0x3Fu >> n);
    for (int i = 1; i <= n; i++)
        c = c << 6 | (s[i] & 0x3Fu);
    *p += n + 1;
    return c;
}

/* After the backslash: one character (*one), or a class put into s. */
static int escape(struct regex *r, bool in_class, struct set *s, uint32_t *c, bool *one)
{
    const char e = *r->p;
    *one = true;
    if (!e)
        return wrong(r, "it ends with a backslash");
    if (strchr("dDwWsS", e)) {
        r->p++;
        *one = false;
        return set_add_named(r, s, e);
    }
    if (e == 'p' || e == 'P')
        return refuse(r, "\\p");
    if (e == 'k' || (e >= '1' && e <= '9'))
        return refuse(r, "a back reference");
    if (!in_class && (e == 'b' || e == 'B'))
        return refuse(r, "a word boundary");
    if (e == 'x') {
        r->p++;
        return hex(r, 2, 2, c);
    }
    if (e == 'c') {
        if (!((r->p[1] | 0x20) >= 'a' && (r->p[1] | 0x20) <= 'z'))
            return wrong(r, "\\c needs a letter");
        *c = (uint32_t)r->p[1] & 31u;
        r->p += 2;
        return COLIBRI_OK;
    }
    if (e == 'u') {
        r->p++;
        if (*r->p == '{') {
            r->p++;
            CLB_TRY(hex(r, 1, 6, c));
            if (*r->p++ != '}' || *c > LAST_CHAR)
                return wrong(r, "\\u{...} is no character");
            return COLIBRI_OK;
        }
        CLB_TRY(hex(r, 4, 4, c));
        if (*c >= 0xD800 && *c < 0xDC00 && r->p[0] == '\\' && r->p[1] == 'u') {
            uint32_t low;
            r->p += 2;
            CLB_TRY(hex(r, 4, 4, &low));
            if (low < 0xDC00 || low > 0xDFFF)
                return wrong(r, "half a surrogate pair");
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        }
        return COLIBRI_OK;
    }
    static const char names[] = "t\tn\nr\rf\fv\vb\b";
    for (const char *k = names; *k; k += 2)
        if (e == *k) {
            r->p++;
            *c = (uint32_t)k[1];
            return COLIBRI_OK;
        }
    if (e == '0') {
        r->p++;
        *c = 0;
        return COLIBRI_OK;
    }
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z'))
        return refuse(r, "this escape");
    *c = utf8(&r->p);
    return COLIBRI_OK;
}

/* After the opening bracket. */
static int class(struct regex *r, struct set *s)
{
    const bool negated = *r->p == '^';
    r->p += negated;
    while (*r->p != ']') {
        uint32_t lo = 0, hi = 0;
        bool one = true;
        if (!*r->p)
            return wrong(r, "a class is not closed");
        if (*r->p == '\\') {
            r->p++;
            CLB_TRY(escape(r, true, s, &lo, &one));
        } else {
            lo = utf8(&r->p);
        }
        if (!one)
            continue;
        hi = lo;
        if (r->p[0] == '-' && r->p[1] != ']' && r->p[1]) {
            const char *dash = r->p++;
            if (*r->p == '\\') {
                r->p++;
                CLB_TRY(escape(r, true, s, &hi, &one));
            } else {
                hi = utf8(&r->p);
            }
            if (!one) { /* a-\d: the dash is a character */
                (void)dash;
                hi = lo;
                CLB_TRY(set_add(r, s, '-', '-'));
            } else if (hi < lo) {
                return wrong(r, "a range ends before it begins");
            }
        }
        CLB_TRY(set_add(r, s, lo, hi));
    }
    r->p++;
    if (negated)
        CLB_TRY(set_negate(r, s));
    return COLIBRI_OK;
}

/* ---- expressions ---- */

static int alternatives(struct regex *r, bool outermost, clb_buf *e, struct length *len);

static int group(struct regex *r, clb_buf *e, struct length *len)
{
    r->p++;
    if (*r->p == '?') {
        if (r->p[1] == ':') {
            r->p += 2;
        } else if (r->p[1] == '<' && r->p[2] != '=' && r->p[2] != '!') {
            const char *end = strchr(r->p, '>');
            if (!end)
                return wrong(r, "the name of a group is not closed");
            r->p = end + 1;
        } else {
            return refuse(r, r->p[1] == '=' || r->p[1] == '!' || r->p[1] == '<' ? "look-around" : "this kind of group");
        }
    }
    if (++r->depth > MOST_DEPTH)
        return schema_fail(r->g, r->err, COLIBRI_E_LIMIT, "\"pattern\": groups more than %d deep", MOST_DEPTH);
    CLB_TRY(alternatives(r, false, e, len));
    if (*r->p != ')')
        return wrong(r, "a group is not closed");
    r->p++;
    r->depth--;
    return COLIBRI_OK;
}

static int atom(struct regex *r, clb_buf *e, struct length *len)
{
    struct set s = {.n = 0};
    uint32_t c = 0;
    bool one = true;
    *len = (struct length){1, 1};
    switch (*r->p) {
    case '(':
        return group(r, e, len);
    case '[':
        r->p++;
        CLB_TRY(class(r, &s));
        return emit_set(r, &s, e);
    case '.':
        r->p++;
        CLB_TRY(set_add(r, &s, '\n', '\n'));
        CLB_TRY(set_add(r, &s, '\r', '\r'));
        CLB_TRY(set_add(r, &s, 0x2028, 0x2029));
        CLB_TRY(set_negate(r, &s));
        return emit_set(r, &s, e);
    case '\\':
        r->p++;
        CLB_TRY(escape(r, false, &s, &c, &one));
        break;
    case '*':
    case '+':
    case '?':
        return wrong(r, "a quantifier has nothing before it");
    default:
        c = utf8(&r->p);
    }
    if (one)
        CLB_TRY(set_add(r, &s, c, c));
    return emit_set(r, &s, e);
}

/* {n}, {n,}, {n,m}; false: the brace is a character like others. */
static bool read_counts(const char **p, size_t *least, size_t *most)
{
    const char *q = *p + 1;
    char *end;
    if (*q < '0' || *q > '9')
        return false;
    *least = *most = strtoul(q, &end, 10);
    q = end;
    if (*q == ',') {
        q++;
        *most = SIZE_MAX;
        if (*q >= '0' && *q <= '9') {
            *most = strtoul(q, &end, 10);
            q = end;
        }
    }
    if (*q != '}')
        return false;
    *p = q + 1;
    return true;
}

static int quantifier(struct regex *r, clb_buf *e, struct length *len)
{
    size_t least = 1, most = 1;
    if (*r->p == '*' || *r->p == '+' || *r->p == '?') {
        least = *r->p == '+';
        most = *r->p == '?' ? 1 : SIZE_MAX;
        r->p++;
    } else if (*r->p != '{' || !read_counts(&r->p, &least, &most)) {
        return COLIBRI_OK;
    }
    if (*r->p == '?')
        r->p++;
    if (least > most)
        return wrong(r, "a quantifier of less than its least");
    if (least > MOST_COUNT || (most != SIZE_MAX && most > MOST_COUNT))
        return schema_fail(r->g, r->err, COLIBRI_E_LIMIT, "\"pattern\": a count of more than %d", MOST_COUNT);
    len->least = capped_mul(len->least, least);
    len->most = len->most == 0 ? 0 : capped_mul(len->most, most);
    if (most == SIZE_MAX)
        return clb_buf_printf(e, r->err, "{%zu,}", least);
    return clb_buf_printf(e, r->err, "{%zu,%zu}", least, most);
}

/* One alternative. At the outermost level ^ and $ say whether anything may stand around it. */
static int sequence(struct regex *r, bool outermost, clb_buf *e, struct length *len)
{
    bool from_begin = !outermost, to_end = !outermost;
    *len = (struct length){0, 0};
    if (*r->p == '^') {
        if (!outermost)
            return refuse(r, "^ within a group");
        from_begin = true;
        r->p++;
    }
    if (!from_begin)
        CLB_TRY(clb_buf_printf(e, r->err, "%s* ", r->character));
    while (*r->p && *r->p != '|' && *r->p != ')') {
        struct length one;
        if (*r->p == '$') {
            if (!outermost || (r->p[1] && r->p[1] != '|'))
                return refuse(r, "$ before the end");
            to_end = true;
            r->p++;
            break;
        }
        if (*r->p == '^')
            return refuse(r, "^ after the begin");
        CLB_TRY(atom(r, e, &one));
        CLB_TRY(quantifier(r, e, &one));
        CLB_TRY(clb_buf_printf(e, r->err, " "));
        len->least = capped_add(len->least, one.least);
        len->most = capped_add(len->most, one.most);
    }
    if (!to_end)
        CLB_TRY(clb_buf_printf(e, r->err, "%s*", r->character));
    if (!from_begin || !to_end)
        len->most = SIZE_MAX;
    return clb_buf_printf(e, r->err, "\"\"");
}

static int alternatives(struct regex *r, bool outermost, clb_buf *e, struct length *len)
{
    *len = (struct length){SIZE_MAX, 0};
    CLB_TRY(clb_buf_printf(e, r->err, "("));
    for (bool first = true;; first = false) {
        struct length one;
        if (e->n > SCHEMA_MOST_TEXT)
            return schema_fail(r->g, r->err, COLIBRI_E_LIMIT, "\"pattern\" is too large");
        if (!first)
            CLB_TRY(clb_buf_printf(e, r->err, " | "));
        CLB_TRY(sequence(r, outermost, e, &one));
        len->least = one.least < len->least ? one.least : len->least;
        len->most = one.most > len->most ? one.most : len->most;
        if (*r->p != '|')
            break;
        r->p++;
    }
    return clb_buf_printf(e, r->err, ")");
}

/* ^(a|b)$ with nothing else: the anchors hold for the group's alternatives, as sequence() has them. */
int schema_pattern(clb_gbnf *g, const char *pattern, clb_buf *e, size_t *least, size_t *most, clb_error *err)
{
    struct regex r = {.g = g, .all = pattern, .p = pattern, .err = err};
    struct length len;
    CLB_TRY(schema_shared(g, "char", r.character, err));
    CLB_TRY(alternatives(&r, true, e, &len));
    if (*r.p)
        return wrong(&r, "a parenthesis too many");
    *least = len.least;
    *most = len.most;
    return COLIBRI_OK;
}
