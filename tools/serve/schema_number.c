/* Numbers between bounds, exactly: digit by digit.
 *
 * A range is split by sign into ranges of magnitudes, a range of magnitudes by the digits before the point. Bounds are
 * the shortest decimals that read as the schema's numbers. Numbers with bounds have no exponent, and so few digits
 * behind the point that none is rounded onto an excluded bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

#define MOST_FRACTION 20
#define SAFE_DIGITS   15 /* decimals of so many digits are different doubles */

/* A magnitude: digits before the point (no leading zeros; "0" itself is "0") and behind it (no trailing zeros). */
struct decimal {
    char whole[24], fraction[24];
    bool excluded;
};

struct range {
    bool has_least, has_most;
    struct decimal least, most;
    int most_fraction; /* digits behind the point */
};

struct out {
    clb_buf *e;
    clb_error *err;
    bool first; /* no alternative so far */
};

static int alternative(struct out *o)
{
    const bool first = o->first;
    o->first = false;
    return first ? COLIBRI_OK : clb_buf_printf(o->e, o->err, " | ");
}

/* ---- whole numbers: decimal strings without leading zeros ---- */

static int digit(struct out *o, char lo, char hi)
{
    return lo == hi ? clb_buf_printf(o->e, o->err, "\"%c\" ", lo) : clb_buf_printf(o->e, o->err, "[%c-%c] ", lo, hi);
}

static int any_digits(struct out *o, size_t least, size_t most)
{
    if (most == 0)
        return COLIBRI_OK;
    return least == most ? clb_buf_printf(o->e, o->err, "[0-9]{%zu} ", most)
                         : clb_buf_printf(o->e, o->err, "[0-9]{%zu,%zu} ", least, most);
}

/* Digit strings of the length of both, from lo to hi, in parentheses. */
static int same_length(struct out *o, const char *lo, const char *hi)
{
    const size_t n = strlen(lo);
    if (n == 0)
        return COLIBRI_OK;
    if (strspn(lo, "0") == n && strspn(hi, "9") == n)
        return any_digits(o, n, n);
    if (*lo == *hi) {
        CLB_TRY(digit(o, *lo, *lo));
        return same_length(o, lo + 1, hi + 1);
    }
    char nines[24], zeros[24];
    memset(nines, '9', n);
    memset(zeros, '0', n);
    nines[n - 1] = zeros[n - 1] = 0;
    char first = *lo, last = *hi;
    bool any = false;
    CLB_TRY(clb_buf_printf(o->e, o->err, "("));
    if (strspn(lo + 1, "0") != n - 1) {
        CLB_TRY(digit(o, *lo, *lo));
        CLB_TRY(same_length(o, lo + 1, nines));
        first++;
        any = true;
    }
    if (strspn(hi + 1, "9") != n - 1) {
        CLB_TRY(clb_buf_printf(o->e, o->err, any ? "| " : ""));
        CLB_TRY(digit(o, *hi, *hi));
        CLB_TRY(same_length(o, zeros, hi + 1));
        last--;
        any = true;
    }
    if (first <= last) {
        CLB_TRY(clb_buf_printf(o->e, o->err, any ? "| " : ""));
        CLB_TRY(digit(o, first, last));
        CLB_TRY(any_digits(o, n - 1, n - 1));
    }
    return clb_buf_printf(o->e, o->err, ") ");
}

static int compare(const char *a, const char *b)
{
    const size_t x = strlen(a), y = strlen(b);
    return x != y ? (x < y ? -1 : 1) : strcmp(a, b);
}

/* Whole numbers from lo to hi (NULL: any larger one), each followed by `tail`. */
static int whole_numbers(struct out *o, const char *lo, const char *hi, const char *tail)
{
    char nines[24], first[24];
    for (size_t n = strlen(lo); n <= (hi ? strlen(hi) : SCHEMA_MOST_DIGITS); n++) {
        memset(nines, '9', n);
        nines[n] = 0;
        memset(first, '0', n);
        first[0] = '1';
        first[n] = 0;
        const char *begin = n == strlen(lo) ? lo : first, *end = hi && n == strlen(hi) ? hi : nines;
        if (compare(begin, end) > 0)
            continue;
        CLB_TRY(alternative(o));
        if (n > strlen(lo) && !hi) { /* all longer ones at once */
            CLB_TRY(clb_buf_printf(o->e, o->err, "[1-9] "));
            CLB_TRY(any_digits(o, n - 1, SCHEMA_MOST_DIGITS - 1));
            return clb_buf_printf(o->e, o->err, "%s", tail);
        }
        CLB_TRY(same_length(o, begin, end));
        CLB_TRY(clb_buf_printf(o->e, o->err, "%s", tail));
    }
    return COLIBRI_OK;
}

/* s + 1 or s - 1 in place. */
static void step(char *s, int by)
{
    size_t i = strlen(s);
    while (i > 0 && s[i - 1] == (by > 0 ? '9' : '0')) {
        s[i - 1] = by > 0 ? '0' : '9';
        i--;
    }
    if (i > 0) {
        s[i - 1] = (char)(s[i - 1] + by);
    } else if (by > 0) {
        memmove(s + 1, s, strlen(s) + 1);
        s[0] = '1';
    }
    if (s[0] == '0' && s[1])
        memmove(s, s + 1, strlen(s));
}

/* ---- fractions: digit strings behind the point; there is room for `room` digits ---- */

/* Strings s with 0.s >= 0.lo. `some`: not the empty one. */
static int at_least(struct out *o, const char *lo, bool excluded, bool some, int room)
{
    if (room <= 0)
        return clb_buf_printf(o->e, o->err, *lo || excluded || some ? "[^\\x00-\\U0010FFFF] " : "\"\" ");
    if (!*lo && !excluded)
        return any_digits(o, some, (size_t)room);
    if (!*lo) { /* more than nothing: a digit that is not 0 somewhere */
        CLB_TRY(clb_buf_printf(o->e, o->err, "("));
        for (int zeros = 0; zeros < room; zeros++) {
            CLB_TRY(clb_buf_printf(o->e, o->err, zeros ? "| \"0\"{%d} [1-9] " : "[1-9] ", zeros));
            CLB_TRY(any_digits(o, 0, (size_t)(room - zeros - 1)));
        }
        return clb_buf_printf(o->e, o->err, ") ");
    }
    CLB_TRY(clb_buf_printf(o->e, o->err, "("));
    if (*lo < '9') {
        CLB_TRY(digit(o, (char)(*lo + 1), '9'));
        CLB_TRY(any_digits(o, 0, (size_t)room - 1));
        CLB_TRY(clb_buf_printf(o->e, o->err, "| "));
    }
    CLB_TRY(digit(o, *lo, *lo));
    CLB_TRY(at_least(o, lo + 1, excluded, false, room - 1));
    return clb_buf_printf(o->e, o->err, ") ");
}

/* Strings s with 0.s <= 0.hi. */
static int at_most(struct out *o, const char *hi, bool excluded, bool some, int room)
{
    if (!*hi && excluded)
        return clb_buf_printf(o->e, o->err, "[^\\x00-\\U0010FFFF] ");
    if (room <= 0)
        return clb_buf_printf(o->e, o->err, some ? "[^\\x00-\\U0010FFFF] " : "\"\" ");
    if (!*hi)
        return clb_buf_printf(o->e, o->err, "\"0\"{%d,%d} ", some, room);
    CLB_TRY(clb_buf_printf(o->e, o->err, some ? "(" : "(\"\" | "));
    if (*hi > '0') {
        CLB_TRY(digit(o, '0', (char)(*hi - 1)));
        CLB_TRY(any_digits(o, 0, (size_t)room - 1));
        CLB_TRY(clb_buf_printf(o->e, o->err, "| "));
    }
    CLB_TRY(digit(o, *hi, *hi));
    CLB_TRY(at_most(o, hi + 1, excluded, false, room - 1));
    return clb_buf_printf(o->e, o->err, ") ");
}

/* Strings s with 0.lo <= 0.s <= 0.hi, where lo <= hi. */
static int between(struct out *o, const struct decimal *a, const char *lo, const struct decimal *b, const char *hi,
                   bool some, int room)
{
    if (!*lo && !a->excluded)
        return at_most(o, hi, b->excluded, some, room);
    if (!*lo && !*hi) /* lo is excluded, nothing is left */
        return clb_buf_printf(o->e, o->err, "[^\\x00-\\U0010FFFF] ");
    if (room <= 0)
        return clb_buf_printf(o->e, o->err, "[^\\x00-\\U0010FFFF] ");
    const char l = *lo ? *lo : '0', h = *hi ? *hi : '0';
    const char *lo_rest = *lo ? lo + 1 : lo, *hi_rest = *hi ? hi + 1 : hi;
    CLB_TRY(clb_buf_printf(o->e, o->err, "("));
    if (l == h) {
        CLB_TRY(digit(o, l, l));
        CLB_TRY(between(o, a, lo_rest, b, hi_rest, false, room - 1));
        return clb_buf_printf(o->e, o->err, ") ");
    }
    CLB_TRY(digit(o, l, l));
    CLB_TRY(at_least(o, lo_rest, a->excluded, false, room - 1));
    CLB_TRY(clb_buf_printf(o->e, o->err, "| "));
    if (l + 1 < h) {
        CLB_TRY(digit(o, (char)(l + 1), (char)(h - 1)));
        CLB_TRY(any_digits(o, 0, (size_t)room - 1));
        CLB_TRY(clb_buf_printf(o->e, o->err, "| "));
    }
    CLB_TRY(digit(o, h, h));
    CLB_TRY(at_most(o, hi_rest, b->excluded, false, room - 1));
    return clb_buf_printf(o->e, o->err, ") ");
}

/* ---- magnitudes ---- */

/* One alternative: the whole part, then nothing (if 0 behind the point is in range) or a point and digits. */
static int edge(struct out *o, const char *whole)
{
    CLB_TRY(alternative(o));
    return clb_buf_printf(o->e, o->err, "\"%s\" (\".\" ", whole);
}

static int edge_end(struct out *o, bool bare)
{
    return clb_buf_printf(o->e, o->err, bare ? ")? " : ") ");
}

/* Magnitudes with digits behind the point. */
static int fractions(struct out *o, const struct range *r)
{
    const struct decimal *a = &r->least, *b = &r->most;
    char tail[32], lo[26], hi[26];
    snprintf(tail, sizeof tail, "(\".\" [0-9]{1,%d})? ", r->most_fraction);
    if (r->has_most && strcmp(a->whole, b->whole) == 0) {
        const bool bare = !*a->fraction && !a->excluded && (*b->fraction || !b->excluded);
        CLB_TRY(edge(o, a->whole));
        CLB_TRY(between(o, a, a->fraction, b, b->fraction, true, r->most_fraction));
        return edge_end(o, bare);
    }
    const bool bare = !*a->fraction && !a->excluded;
    CLB_TRY(edge(o, a->whole));
    CLB_TRY(at_least(o, a->fraction, a->excluded, true, r->most_fraction));
    CLB_TRY(edge_end(o, bare));
    snprintf(lo, sizeof lo, "%s", a->whole);
    step(lo, 1);
    if (!r->has_most)
        return strlen(lo) > SCHEMA_MOST_DIGITS ? COLIBRI_OK : whole_numbers(o, lo, NULL, tail);
    snprintf(hi, sizeof hi, "%s", b->whole);
    step(hi, -1);
    if (compare(lo, hi) <= 0)
        CLB_TRY(whole_numbers(o, lo, hi, tail));
    if (!*b->fraction && b->excluded)
        return COLIBRI_OK;
    CLB_TRY(edge(o, b->whole));
    CLB_TRY(at_most(o, b->fraction, b->excluded, true, r->most_fraction));
    return edge_end(o, true);
}

/* Whole magnitudes: bounds rounded inwards. */
static int wholes(struct out *o, const struct range *r)
{
    char lo[26], hi[26];
    snprintf(lo, sizeof lo, "%s", r->least.whole);
    snprintf(hi, sizeof hi, "%s", r->most.whole);
    if (*r->least.fraction || r->least.excluded)
        step(lo, 1);
    if (r->has_most && r->most.excluded && !*r->most.fraction) {
        if (strcmp(hi, "0") == 0)
            return COLIBRI_OK;
        step(hi, -1);
    }
    if (strlen(lo) > SCHEMA_MOST_DIGITS || (r->has_most && compare(lo, hi) > 0))
        return COLIBRI_OK;
    return whole_numbers(o, lo, r->has_most ? hi : NULL, "");
}

/* ---- bounds ---- */

/* Non-negative v. False if it has more digits than numbers here have. */
static bool to_decimal(const json_t *v, struct decimal *d)
{
    char text[64];
    if (json_is_integer(v)) {
        const json_int_t i = json_integer_value(v);
        snprintf(text, sizeof text, "%llu", i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i);
    } else {
        const double x = fabs(json_real_value(v));
        int digits = 1;
        char shortest[40];
        if (!(x < 1e18) || (x != 0 && x < 1e-14))
            return false;
        do
            snprintf(shortest, sizeof shortest, "%.*e", digits - 1, x);
        while (strtod(shortest, NULL) != x && ++digits <= 17);
        const int exponent = atoi(strchr(shortest, 'e') + 1);
        const int behind = digits - 1 - exponent > 0 ? digits - 1 - exponent : 0;
        if (behind > 20)
            return false;
        snprintf(text, sizeof text, "%.*f", behind, x);
    }
    char *point = strchr(text, '.');
    *d = (struct decimal){.excluded = d->excluded};
    if (point) {
        *point = 0;
        size_t n = strlen(point + 1);
        while (n && point[n] == '0')
            point[n--] = 0;
        snprintf(d->fraction, sizeof d->fraction, "%.20s", point + 1);
    }
    if (strlen(text) > 20)
        return false;
    snprintf(d->whole, sizeof d->whole, "%.20s", text);
    return true;
}

struct bounds {
    const json_t *least, *most;
    bool least_excluded, most_excluded;
};

/* The tighter of minimum and exclusiveMinimum, and of the maxima. */
static int read_bounds(const clb_gbnf *g, const json_t *schema, struct bounds *b, clb_error *err)
{
    static const char *const names[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
    for (int i = 0; i < 4; i++) {
        const json_t *v = json_object_get(schema, names[i]);
        const json_t **bound = i % 2 ? &b->most : &b->least;
        bool *excluded = i % 2 ? &b->most_excluded : &b->least_excluded;
        if (!v)
            continue;
        if (!json_is_number(v))
            return schema_fail(g, err, COLIBRI_E_USAGE, "\"%s\" must be a number", names[i]);
        const double x = json_number_value(v), y = json_number_value(*bound);
        if (!*bound || (i % 2 ? x <= y : x >= y)) {
            *bound = v;
            *excluded = i >= 2;
        }
    }
    return COLIBRI_OK;
}

static bool is_negative(const json_t *v)
{
    return json_number_value(v) < 0;
}

static bool is_excluded(const struct decimal *d)
{
    return d->excluded && (strcmp(d->whole, "0") != 0 || *d->fraction);
}

/* Digits behind the point. Beside an excluded bound so few that the neighbours of the bound stay apart from it as
 * doubles (0 has neighbours as close as one likes). */
static int fraction_room(const struct range *r)
{
    size_t n = strlen(r->least.whole);
    if (r->has_most && strlen(r->most.whole) > n)
        n = strlen(r->most.whole);
    if (!is_excluded(&r->least) && !(r->has_most && is_excluded(&r->most)))
        return MOST_FRACTION;
    return n >= SAFE_DIGITS ? 0 : SAFE_DIGITS - (int)n + 1;
}

/* Magnitudes from a to b (NULL: any), an alternative group after `sign`. */
static int magnitudes(const clb_gbnf *g, const json_t *a, bool a_excluded, const json_t *b, bool b_excluded,
                      bool integer, const char *sign, struct out *all)
{
    struct range r = {.has_most = b != NULL, .least = {.whole = "0", .excluded = a_excluded}};
    clb_buf inner = {0};
    struct out o = {.e = &inner, .err = all->err, .first = true};
    r.most.excluded = b_excluded;
    if ((a && !to_decimal(a, &r.least)) || (b && !to_decimal(b, &r.most)))
        return schema_fail(g, all->err, COLIBRI_E_UNSUPPORTED,
                           "a bound of so many digits is not supported: numbers have at most %d before the point",
                           SCHEMA_MOST_DIGITS);
    if (r.has_most && strlen(r.most.whole) > SCHEMA_MOST_DIGITS)
        r.has_most = false; /* no number here is as large */
    if (strlen(r.least.whole) > SCHEMA_MOST_DIGITS)
        return schema_fail(g, all->err, COLIBRI_E_LIMIT, "numbers of more than %d digits", SCHEMA_MOST_DIGITS);
    r.most_fraction = fraction_room(&r);
    int rc = integer || r.most_fraction == 0 ? wholes(&o, &r) : fractions(&o, &r);
    if (!rc && !o.first) {
        rc = alternative(all);
        if (!rc)
            rc = clb_buf_printf(all->e, all->err, "%s(", sign);
        if (!rc)
            rc = clb_buf_append(all->e, inner.data, inner.n, all->err);
        if (!rc)
            rc = clb_buf_printf(all->e, all->err, ")");
    }
    clb_buf_free(&inner);
    return rc;
}

static int between_bounds(const clb_gbnf *g, const struct bounds *b, bool integer, struct out *o)
{
    const json_t *least = b->least, *most = b->most;
    if (least && most) {
        const double x = json_number_value(least), y = json_number_value(most);
        if (x > y || (x == y && (b->least_excluded || b->most_excluded)))
            return COLIBRI_OK;
    }
    if (!least || is_negative(least)) {
        /* Below 0: magnitudes from that of the upper bound to that of the lower one. */
        const bool ends_below = most && is_negative(most);
        CLB_TRY(magnitudes(g, ends_below ? most : NULL, ends_below ? b->most_excluded : true, least, b->least_excluded,
                           integer, "\"-\" ", o));
        if (ends_below || (most && json_number_value(most) == 0 && b->most_excluded))
            return COLIBRI_OK;
        least = NULL;
    }
    return magnitudes(g, least, least ? b->least_excluded : false, most, b->most_excluded, integer, "", o);
}

int schema_number(clb_gbnf *g, const json_t *schema, bool integer, clb_buf *e, clb_error *err)
{
    struct bounds b = {0};
    struct out o = {.e = e, .err = err, .first = true};
    char rule[CLB_GBNF_NAME];
    const json_t *step_of = json_object_get(schema, "multipleOf");
    if (step_of && !(integer && json_number_value(step_of) == 1))
        return schema_refuse(g, err, "multipleOf", NULL);
    CLB_TRY(read_bounds(g, schema, &b, err));
    if (!b.least && !b.most) {
        CLB_TRY(schema_shared(g, integer ? "integer" : "number", rule, err));
        return clb_buf_printf(e, err, "%s", rule);
    }
    CLB_TRY(between_bounds(g, &b, integer, &o));
    if (!o.first)
        return COLIBRI_OK;
    CLB_TRY(schema_shared(g, "none", rule, err));
    return clb_buf_printf(e, err, "%s", rule);
}
