#include "config/value.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Values in messages are cut: a 4 kB value must not push the rest of the line out. */
#define SHOWN      "'%.60s%s'"
#define SHOW(text) (text), strlen(text) > 60 ? "..." : ""

int clb_parse_u64(const char *text, uint64_t *out, clb_error *err)
{
    uint64_t v = 0;
    if (!*text)
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not a whole number", SHOW(text));
    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9')
            return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not a whole number", SHOW(text));
        const uint64_t digit = (uint64_t)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10)
            return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is too large", SHOW(text));
        v = v * 10 + digit;
    }
    *out = v;
    return COLIBRI_OK;
}

/* "GiB" and "G" are powers of 1024, "GB" is a power of 1000, as in GNU coreutils. */
static bool size_unit(const char *unit, uint64_t *multiplier)
{
    static const char prefixes[] = "kmgtp";
    if (!*unit || !strcasecmp(unit, "b")) {
        *multiplier = 1;
        return true;
    }
    const char *at = strchr(prefixes, tolower((unsigned char)*unit));
    if (!at)
        return false;
    const bool decimal = !strcasecmp(unit + 1, "b");
    if (!decimal && unit[1] && strcasecmp(unit + 1, "ib") != 0)
        return false;
    *multiplier = 1;
    for (const char *p = prefixes; p <= at; p++)
        *multiplier *= decimal ? 1000 : 1024;
    return true;
}

int clb_parse_size(const char *text, uint64_t *out, clb_error *err)
{
    const size_t n_whole = strspn(text, "0123456789");
    const char *fraction = text[n_whole] == '.' ? text + n_whole + 1 : "";
    const size_t n_fraction = strspn(fraction, "0123456789");
    const char *unit = text + n_whole + (text[n_whole] == '.') + n_fraction;
    unit += strspn(unit, " ");
    uint64_t multiplier = 0;
    if (!n_whole || (text[n_whole] == '.' && !n_fraction) || n_fraction > 9 || !size_unit(unit, &multiplier) ||
        (n_fraction && multiplier == 1))
        return clb_fail(err, COLIBRI_E_USAGE,
                        SHOWN " is not a size: write bytes or a number with K, M, G or T (512M, 1.5GiB)", SHOW(text));
    uint64_t whole = 0;
    for (size_t i = 0; i < n_whole; i++) {
        const uint64_t digit = (uint64_t)(text[i] - '0');
        if (whole > (UINT64_MAX / multiplier - digit) / 10)
            return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is too large", SHOW(text));
        whole = whole * 10 + digit;
    }
    /* Exact: multiplier * fraction needs at most 50 + 30 bits. */
    uint64_t part = 0, scale = 1;
    for (size_t i = 0; i < n_fraction; i++) {
        part = part * 10 + (uint64_t)(fraction[i] - '0');
        scale *= 10;
    }
    const uint64_t bytes = whole * multiplier, rest = (uint64_t)((unsigned __int128)part * multiplier / scale);
    if (bytes > UINT64_MAX - rest)
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is too large", SHOW(text));
    *out = bytes + rest;
    return COLIBRI_OK;
}

int clb_parse_f64(const char *text, double *out, clb_error *err)
{
    if (!*text || text[strspn(text, "+-.0123456789eE")])
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not a number", SHOW(text));
    /* An embedding program may run under a locale with a decimal comma. */
    const locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale)
        return CLB_NOMEM(err, "the C locale");
    char *end;
    const double v = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    if (*end || end == text)
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not a number", SHOW(text));
    if (!isfinite(v))
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is too large", SHOW(text));
    *out = v;
    return COLIBRI_OK;
}

int clb_parse_share(const char *text, clb_share *out, clb_error *err)
{
    const size_t n = strlen(text);
    char number[24];
    double percent = 0;
    *out = (clb_share){0};
    if (n == 0 || text[n - 1] != '%') {
        const int rc = clb_parse_u64(text, &out->n, err);
        if (rc == COLIBRI_E_USAGE && (!*text || text[strspn(text, "0123456789")]))
            return clb_fail(err, rc, SHOWN " is neither a whole number nor a share, as 25%%", SHOW(text));
        return rc;
    }
    if (n < 2 || n > sizeof number || text[strspn(text, "0123456789.")] != '%')
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is neither a whole number nor a share, as 25%%", SHOW(text));
    memcpy(number, text, n - 1);
    number[n - 1] = '\0';
    if (clb_parse_f64(number, &percent, err))
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is neither a whole number nor a share, as 25%%", SHOW(text));
    if (!(percent > 0 && percent <= 100))
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is out of range: a share is more than 0%% and at most 100%%",
                        SHOW(text));
    out->part = percent / 100;
    return COLIBRI_OK;
}

uint64_t clb_share_of(clb_share share, uint64_t whole)
{
    const uint64_t n = share.part > 0 ? (uint64_t)round(share.part * (double)whole) : share.n;
    return n < 1 ? 1 : n < whole ? n : whole;
}

int clb_parse_bool(const char *text, bool *out, clb_error *err)
{
    static const char *const yes[] = {"yes", "true", "on", "1"}, *const no[] = {"no", "false", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (!strcasecmp(text, yes[i]) || !strcasecmp(text, no[i])) {
            *out = !strcasecmp(text, yes[i]);
            return COLIBRI_OK;
        }
    }
    return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not yes or no", SHOW(text));
}

static bool is_choice(const char *choices, const char *text)
{
    const size_t n = strlen(text);
    for (const char *p = choices; *p;) {
        const size_t len = strcspn(p, "|");
        if (len == n && !strncmp(p, text, n))
            return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static int parse_enum(const char *choices, const char *text, clb_error *err)
{
    if (is_choice(choices, text))
        return COLIBRI_OK;
    char copy[256];
    const char *names[32];
    size_t n = 0;
    snprintf(copy, sizeof copy, "%s", choices);
    char *save = NULL;
    for (char *p = strtok_r(copy, "|", &save); p && n < 32; p = strtok_r(NULL, "|", &save))
        names[n++] = p;
    const long at = clb_nearest(text, names, n);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is none of %s; did you mean '%s'?", SHOW(text), choices,
                        names[at]);
    return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is none of %s", SHOW(text), choices);
}

static int parse_list(const clb_setting_info *info, const char *text, clb_value *out, clb_error *err)
{
    if (!*text)
        return COLIBRI_OK;
    const char separator = info->type == CLB_TYPE_PATHS ? ':' : ',';
    size_t n = 1;
    for (const char *p = text; *p; p++)
        n += *p == separator;
    out->joined = strdup(text);
    out->items = calloc(n, sizeof *out->items);
    if (!out->joined || !out->items)
        return CLB_NOMEM(err, "a setting's list");
    char *p = out->joined;
    for (size_t i = 0; i < n; i++) {
        char *end = strchr(p, separator);
        if (!end)
            end = p + strlen(p);
        char *next = end + 1;
        *end = '\0';
        p += strspn(p, " \t");
        for (end = p + strlen(p); end > p && (end[-1] == ' ' || end[-1] == '\t');)
            *--end = '\0';
        if (!*p)
            return clb_fail(err, COLIBRI_E_USAGE, SHOWN " has an empty item (items are separated by '%c')", SHOW(text),
                            separator);
        if (info->type == CLB_TYPE_PATHS && *p != '/')
            return clb_fail(err, COLIBRI_E_USAGE, SHOWN " is not an absolute folder", SHOW(p));
        out->items[out->n_items++] = p;
        p = next;
    }
    return COLIBRI_OK;
}

static int check_range(const clb_setting_info *info, double v, clb_error *err)
{
    if ((info->min != 0 || info->max != 0) && !(v >= info->min && v <= info->max)) {
        char allowed[80];
        return clb_fail(err, COLIBRI_E_USAGE, "%.15g is out of range; allowed: %s", v,
                        clb_setting_allowed(info, allowed, sizeof allowed));
    }
    return COLIBRI_OK;
}

static int parse_typed(const clb_setting_info *info, clb_value *v, clb_error *err)
{
    switch (info->type) {
    case CLB_TYPE_INT: {
        char allowed[80];
        const int rc = clb_parse_u64(v->text, &v->u, err);
        if (rc == COLIBRI_E_USAGE && err) {
            const clb_error why = *err;
            return clb_fail(err, rc, "%.200s; allowed: %s", why.msg,
                            clb_setting_allowed(info, allowed, sizeof allowed));
        }
        CLB_TRY(rc);
        return check_range(info, (double)v->u, err);
    }
    case CLB_TYPE_SHARE: {
        clb_share share;
        CLB_TRY(clb_parse_share(v->text, &share, err));
        v->u = share.n;
        v->f = share.part;
        return check_range(info, (double)v->u, err);
    }
    case CLB_TYPE_SIZE:
        CLB_TRY(clb_parse_size(v->text, &v->u, err));
        return check_range(info, (double)v->u, err);
    case CLB_TYPE_REAL:
        CLB_TRY(clb_parse_f64(v->text, &v->f, err));
        return check_range(info, v->f, err);
    case CLB_TYPE_BOOL: {
        bool b = false;
        CLB_TRY(clb_parse_bool(v->text, &b, err));
        v->u = b;
        return COLIBRI_OK;
    }
    case CLB_TYPE_ENUM:
        return parse_enum(info->value_name, v->text, err);
    case CLB_TYPE_LIST:
    case CLB_TYPE_PATHS:
        return parse_list(info, v->text, v, err);
    default:
        return COLIBRI_OK;
    }
}

int clb_value_parse(const clb_setting_info *info, const char *text, clb_value *out, clb_error *err)
{
    *out = (clb_value){0};
    for (const char *p = text; *p; p++) {
        /* Would end up in messages and terminals. */
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return clb_fail(err, COLIBRI_E_USAGE, "control character 0x%02x in the value", (unsigned char)*p);
    }
    out->text = strdup(text);
    if (!out->text)
        return CLB_NOMEM(err, "a setting's value");
    const int rc = parse_typed(info, out, err);
    if (rc)
        clb_value_free(out);
    return rc;
}

void clb_value_free(clb_value *value)
{
    free(value->text);
    free(value->items);
    free(value->joined);
    *value = (clb_value){0};
}
