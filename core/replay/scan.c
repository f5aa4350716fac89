#include "replay/scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void clb_numbers_free(clb_numbers *n)
{
    free(n->v);
    *n = (clb_numbers){0};
}

static int add(clb_numbers *n, double v, clb_error *err)
{
    if (n->n == n->cap) {
        const size_t cap = n->cap ? 2 * n->cap : 16;
        double *const p = realloc(n->v, cap * sizeof *p);
        if (!p)
            return CLB_NOMEM(err, "a line of numbers");
        n->v = p;
        n->cap = cap;
    }
    n->v[n->n++] = v;
    return COLIBRI_OK;
}

static bool number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* A decimal number at the cursor; the buffer keeps strtod inside the line and from hexadecimal and names. */
static int number(clb_scan *c, double *out, clb_error *err)
{
    char text[48];
    size_t n = 0;
    while (c->at + n < c->end && n < sizeof text - 1 && number_char(c->at[n])) {
        text[n] = c->at[n];
        n++;
    }
    text[n] = '\0';
    char *end;
    *out = strtod(text, &end);
    if (n == 0 || *end || !isfinite(*out))
        return clb_fail(err, COLIBRI_E_FORMAT, "a number is expected at '%.*s'",
                        c->end - c->at > 20 ? 20 : (int)(c->end - c->at), c->at);
    c->at += n;
    return COLIBRI_OK;
}

/* ---- CSV ---- */

static int comma(clb_scan *c, clb_error *err)
{
    if (c->at == c->end)
        return COLIBRI_OK;
    if (*c->at != ',')
        return clb_fail(err, COLIBRI_E_FORMAT, "a comma is expected at '%.*s'",
                        c->end - c->at > 20 ? 20 : (int)(c->end - c->at), c->at);
    c->at++;
    return COLIBRI_OK;
}

int clb_scan_csv_text(clb_scan *c, char *out, size_t size, clb_error *err)
{
    const bool quoted = c->at < c->end && *c->at == '"';
    size_t n = 0;
    c->at += quoted;
    for (;; c->at++) {
        if (c->at == c->end) {
            if (quoted)
                return clb_fail(err, COLIBRI_E_FORMAT, "a quoted field does not end");
            break;
        }
        if (quoted && *c->at == '"' && !(c->end - c->at > 1 && c->at[1] == '"'))
            break;
        if (!quoted && *c->at == ',')
            break;
        c->at += quoted && *c->at == '"';
        if (*c->at == '\0' || n + 1 >= size)
            return clb_fail(err, COLIBRI_E_FORMAT, "a text of more than %zu bytes, or with a NUL", size - 1);
        out[n++] = *c->at;
    }
    c->at += quoted;
    out[n] = '\0';
    return comma(c, err);
}

int clb_scan_csv_number(clb_scan *c, double *out, clb_error *err)
{
    *out = NAN;
    if (c->at < c->end && *c->at != ',')
        CLB_TRY(number(c, out, err));
    return comma(c, err);
}

int clb_scan_csv_list(clb_scan *c, clb_numbers *out, clb_error *err)
{
    out->n = 0;
    while (c->at < c->end && *c->at != ',') {
        double v;
        CLB_TRY(number(c, &v, err));
        CLB_TRY(add(out, v, err));
        if (c->at < c->end && *c->at == ' ')
            c->at++;
    }
    return comma(c, err);
}

/* ---- JSON ---- */

static void blanks(clb_scan *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
        c->at++;
}

static int expect(clb_scan *c, char what, clb_error *err)
{
    blanks(c);
    if (c->at == c->end || *c->at != what)
        return clb_fail(err, COLIBRI_E_FORMAT, "'%c' is expected at '%.*s'", what,
                        c->end - c->at > 20 ? 20 : (int)(c->end - c->at), c->at);
    c->at++;
    return COLIBRI_OK;
}

/* Text goes to out (may be NULL); escapes other than \" \\ \/ become '?', for they cannot be in a label. */
static int text(clb_scan *c, char *out, size_t size, clb_error *err)
{
    size_t n = 0;
    CLB_TRY(expect(c, '"', err));
    for (; c->at < c->end && *c->at != '"'; c->at++) {
        char v = *c->at;
        if (v == '\\') {
            if (++c->at == c->end)
                break;
            v = *c->at == '"' || *c->at == '\\' || *c->at == '/' ? *c->at : '?';
        }
        if (out && (v == '\0' || n + 1 >= size))
            return clb_fail(err, COLIBRI_E_FORMAT, "a text of more than %zu bytes, or with a NUL", size - 1);
        if (out)
            out[n++] = v;
    }
    if (out)
        out[n] = '\0';
    return expect(c, '"', err);
}

int clb_scan_json_open(clb_scan *c, bool *more, clb_error *err)
{
    CLB_TRY(expect(c, '{', err));
    blanks(c);
    *more = !(c->at < c->end && *c->at == '}');
    return COLIBRI_OK;
}

int clb_scan_json_key(clb_scan *c, char *out, size_t size, clb_error *err)
{
    CLB_TRY(text(c, out, size, err));
    return expect(c, ':', err);
}

int clb_scan_json_text(clb_scan *c, char *out, size_t size, clb_error *err)
{
    return text(c, out, size, err);
}

static bool word(clb_scan *c, const char *w)
{
    const size_t n = strlen(w);
    blanks(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, w, n) != 0)
        return false;
    c->at += n;
    return true;
}

int clb_scan_json_number(clb_scan *c, double *out, clb_error *err)
{
    *out = NAN;
    return word(c, "null") ? COLIBRI_OK : number(c, out, err);
}

int clb_scan_json_list(clb_scan *c, clb_numbers *out, clb_error *err)
{
    out->n = 0;
    CLB_TRY(expect(c, '[', err));
    blanks(c);
    while (c->at < c->end && *c->at != ']') {
        double v;
        blanks(c);
        CLB_TRY(number(c, &v, err));
        CLB_TRY(add(out, v, err));
        blanks(c);
        if (c->at < c->end && *c->at == ']')
            break;
        CLB_TRY(expect(c, ',', err));
        blanks(c);
        if (c->at < c->end && *c->at == ']')
            return clb_fail(err, COLIBRI_E_FORMAT, "a list ends with a comma");
    }
    return expect(c, ']', err);
}

/* Any value of an unknown key: brackets are counted, text is read over. */
int clb_scan_json_skip(clb_scan *c, clb_error *err)
{
    size_t depth = 0;
    do {
        blanks(c);
        if (c->at == c->end)
            return clb_fail(err, COLIBRI_E_FORMAT, "the line ends inside a value");
        const char v = *c->at;
        if (v == '"') {
            CLB_TRY(text(c, NULL, 0, err));
        } else if (v == '[' || v == '{') {
            depth++;
            c->at++;
        } else if (v == ']' || v == '}') {
            if (!depth)
                return clb_fail(err, COLIBRI_E_FORMAT, "a value is expected");
            depth--;
            c->at++;
        } else {
            const char *const from = c->at;
            while (c->at < c->end && !strchr(",]}", *c->at))
                c->at++;
            c->at += depth && c->at < c->end && *c->at == ',';
            if (c->at == from)
                return clb_fail(err, COLIBRI_E_FORMAT, "a value is expected");
        }
        if (depth) {
            blanks(c);
            if (c->at < c->end && (*c->at == ',' || *c->at == ':'))
                c->at++;
        }
    } while (depth);
    return COLIBRI_OK;
}

int clb_scan_json_next(clb_scan *c, bool *more, clb_error *err)
{
    blanks(c);
    *more = c->at < c->end && *c->at == ',';
    if (*more)
        c->at++;
    else if (c->at == c->end || *c->at != '}')
        return clb_fail(err, COLIBRI_E_FORMAT, "',' or '}' is expected");
    return COLIBRI_OK;
}

int clb_scan_json_end(clb_scan *c, clb_error *err)
{
    CLB_TRY(expect(c, '}', err));
    blanks(c);
    return c->at == c->end ? COLIBRI_OK : clb_fail(err, COLIBRI_E_FORMAT, "there is text behind the object");
}
