/* GBNF's characters: literals, classes, escapes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/gbnf.h"
#include "text/utf8.h"

#define LAST_CHAR       0x10FFFFu
#define FIRST_SURROGATE 0xD800u
#define LAST_SURROGATE  0xDFFFu

static int hex(clb_gbnf_reader *r, int digits, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < digits; i++) {
        const int c = clb_gbnf_peek(r);
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0)
            return clb_gbnf_fail(r, COLIBRI_E_USAGE, "an escape needs %d hexadecimal digits", digits);
        v = v << 4 | (uint32_t)d;
        r->at++;
    }
    *out = v;
    return COLIBRI_OK;
}

/* One character, escaped or not. */
static int character(clb_gbnf_reader *r, uint32_t *out)
{
    const int c = clb_gbnf_peek(r);
    if (c < 0 || c == '\n')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a literal or class is not closed on its line");
    if (c != '\\') {
        const size_t n = clb_utf8_decode(r->in.p + r->at, r->in.n - r->at, out);
        if (n == 0)
            return clb_gbnf_fail(r, COLIBRI_E_USAGE, "not UTF-8");
        r->at += n;
        return COLIBRI_OK;
    }
    r->at++;
    const int e = clb_gbnf_peek(r);
    r->at++;
    switch (e) {
    case 'x':
        return hex(r, 2, out);
    case 'u':
    case 'U':
        CLB_TRY(hex(r, e == 'u' ? 4 : 8, out));
        if (*out > LAST_CHAR || (*out >= FIRST_SURROGATE && *out <= LAST_SURROGATE))
            return clb_gbnf_fail(r, COLIBRI_E_USAGE, "U+%04X is no character", (unsigned)*out);
        return COLIBRI_OK;
    case 't':
        *out = '\t';
        return COLIBRI_OK;
    case 'r':
        *out = '\r';
        return COLIBRI_OK;
    case 'n':
        *out = '\n';
        return COLIBRI_OK;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
    case '/':
    case '\'':
        *out = (uint32_t)e;
        return COLIBRI_OK;
    default:
        r->at -= 2;
        return clb_gbnf_fail(
            r, COLIBRI_E_USAGE,
            "unknown escape: there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xNN \\uNNNN \\UNNNNNNNN");
    }
}

int clb_gbnf_literal_node(clb_gbnf_reader *r, uint32_t *node)
{
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_TEXT, node));
    const uint32_t begin = r->t->n_text;
    r->at++;
    while (clb_gbnf_peek(r) != '"') {
        uint32_t c;
        char bytes[4];
        CLB_TRY(character(r, &c));
        CLB_TRY(clb_gbnf_text_add(r, bytes, clb_utf8_encode(c, bytes)));
    }
    r->at++;
    r->t->nodes[*node].a = begin;
    r->t->nodes[*node].b = r->t->n_text - begin;
    return COLIBRI_OK;
}

static int range_add(clb_gbnf_reader *r, uint32_t lo, uint32_t hi)
{
    clb_gbnf_tree *t = r->t;
    if (lo > hi)
        return COLIBRI_OK;
    CLB_TRY(clb_grow(&t->ranges, t->n_ranges, &t->cap_ranges, sizeof *t->ranges, r->err));
    t->ranges[t->n_ranges++] = (clb_gbnf_range){lo, hi};
    return COLIBRI_OK;
}

/* Surrogates are no characters of a text. */
static int range_add_chars(clb_gbnf_reader *r, uint32_t lo, uint32_t hi)
{
    if (hi < FIRST_SURROGATE || lo > LAST_SURROGATE)
        return range_add(r, lo, hi);
    if (lo < FIRST_SURROGATE)
        CLB_TRY(range_add(r, lo, FIRST_SURROGATE - 1));
    return hi > LAST_SURROGATE ? range_add(r, LAST_SURROGATE + 1, hi) : COLIBRI_OK;
}

static int by_lo(const void *a, const void *b)
{
    const clb_gbnf_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorted, joined where they touch. */
static uint32_t normalize(clb_gbnf_range *ranges, uint32_t n)
{
    uint32_t k = 0;
    if (n == 0)
        return 0;
    qsort(ranges, n, sizeof *ranges, by_lo);
    for (uint32_t i = 1; i < n; i++)
        if (ranges[i].lo <= ranges[k].hi + 1)
            ranges[k].hi = ranges[i].hi > ranges[k].hi ? ranges[i].hi : ranges[k].hi;
        else
            ranges[++k] = ranges[i];
    return k + 1;
}

/* The ranges from `begin` to the end of the list are those of a new class. */
static int finish_class(clb_gbnf_reader *r, uint32_t begin, bool negated, uint32_t node)
{
    clb_gbnf_tree *t = r->t;
    if (t->n_ranges > begin)
        t->n_ranges = begin + normalize(t->ranges + begin, t->n_ranges - begin);
    if (negated) {
        const uint32_t end = t->n_ranges;
        uint32_t next = 0;
        for (uint32_t i = begin; i < end; i++) {
            if (t->ranges[i].lo > next)
                CLB_TRY(range_add_chars(r, next, t->ranges[i].lo - 1));
            next = t->ranges[i].hi + 1;
        }
        CLB_TRY(range_add_chars(r, next, LAST_CHAR));
        const uint32_t n = t->n_ranges - end;
        if (n)
            memmove(t->ranges + begin, t->ranges + end, n * sizeof *t->ranges);
        t->n_ranges = begin + n;
    }
    t->nodes[node].a = begin;
    t->nodes[node].b = t->n_ranges - begin;
    return COLIBRI_OK;
}

int clb_gbnf_class_node(clb_gbnf_reader *r, uint32_t *node)
{
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_SET, node));
    const uint32_t begin = r->t->n_ranges;
    r->at++;
    const bool negated = clb_gbnf_peek(r) == '^';
    if (negated)
        r->at++;
    if (clb_gbnf_peek(r) == ']')
        return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a class without characters");
    while (clb_gbnf_peek(r) != ']') {
        uint32_t lo, hi;
        CLB_TRY(character(r, &lo));
        hi = lo;
        if (clb_gbnf_peek(r) == '-' && r->at + 1 < r->in.n && r->in.p[r->at + 1] != ']') {
            r->at++;
            CLB_TRY(character(r, &hi));
            if (hi < lo)
                return clb_gbnf_fail(r, COLIBRI_E_USAGE, "a range of characters ends before it begins");
        }
        /* Negated: surrogates fall away with the complement. */
        CLB_TRY(negated ? range_add(r, lo, hi) : range_add_chars(r, lo, hi));
    }
    r->at++;
    return finish_class(r, begin, negated, *node);
}

int clb_gbnf_any_node(clb_gbnf_reader *r, uint32_t *node)
{
    CLB_TRY(clb_gbnf_node_new(r, CLB_GBNF_SET, node));
    const uint32_t begin = r->t->n_ranges;
    r->at++;
    CLB_TRY(range_add_chars(r, 0, LAST_CHAR));
    return finish_class(r, begin, false, *node);
}
