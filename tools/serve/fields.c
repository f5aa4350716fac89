#include "serve/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "serve/json_memory.h"

/* The end of a cut text is still whole UTF-8. */
static void trim_utf8(char *s)
{
    size_t n = strlen(s), i = n;
    while (i > 0 && n - i < 4 && ((unsigned char)s[i - 1] & 0xc0) == 0x80)
        i--;
    if (i == 0)
        return;
    const unsigned char lead = (unsigned char)s[i - 1];
    const size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (need > 1 && n - (i - 1) < need)
        s[i - 1] = '\0';
}

static void fill(clb_refusal *r, int http, const char *type, const char *code, const char *param)
{
    *r = (clb_refusal){.http = http, .type = type, .code = code};
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    trim_utf8(r->param);
}

int clb_refuse(clb_refusal *r, const char *code, const char *param, const char *fmt, ...)
{
    fill(r, 400, "invalid_request_error", code, param);
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
    trim_utf8(r->message);
    return COLIBRI_E_USAGE;
}

int clb_refuse_status(clb_refusal *r, int status, const char *message)
{
    switch (status) {
    case COLIBRI_E_USAGE:
    case COLIBRI_E_UNSUPPORTED:
    case COLIBRI_E_LIMIT:
    case COLIBRI_E_NOT_FOUND:
        fill(r, 400, "invalid_request_error", NULL, NULL);
        break;
    case COLIBRI_E_NOMEM:
        fill(r, 503, "unavailable_error", NULL, NULL);
        r->retry_after_s = 1;
        break;
    case COLIBRI_E_CANCELLED:
        fill(r, 503, "unavailable_error", "shutting_down", NULL);
        r->retry_after_s = 5;
        break;
    default:
        fill(r, 500, "server_error", NULL, NULL);
    }
    snprintf(r->message, sizeof r->message, "%s", message && *message ? message : clb_status_text(status));
    trim_utf8(r->message);
    return status;
}

int clb_refuse_as(clb_refusal *r, int status, int http, const char *type, const char *code, const char *message)
{
    fill(r, http, type, code, NULL);
    snprintf(r->message, sizeof r->message, "%s", message);
    trim_utf8(r->message);
    return status;
}

int clb_refuse_nomem(clb_refusal *r)
{
    return clb_refuse_status(r, COLIBRI_E_NOMEM, "out of memory: request");
}

const clb_refusal *clb_refusal_truly(const clb_refusal *r, clb_refusal *room)
{
    if (r->http >= 500 || !clb_json_memory_out())
        return r;
    clb_refuse_nomem(room);
    return room;
}

const char *clb_json_type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a decimal number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

int clb_refuse_type(clb_refusal *r, const char *param, const char *expected, const json_t *got)
{
    return clb_refuse(r, "invalid_type", param, "Invalid type for '%s': expected %s, but got %s instead.", param,
                      expected, clb_json_type_name(got));
}

int clb_refuse_missing(clb_refusal *r, const char *param)
{
    return clb_refuse(r, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
}

/* The value of "a.b.name" is the field `name` of the object that is given. */
static json_t *lookup(const json_t *body, const char *name)
{
    const char *dot = strrchr(name, '.');
    json_t *v = json_object_get(body, dot ? dot + 1 : name);
    return json_is_null(v) ? NULL : v;
}

static bool is_neutral(const json_t *value, const char *neutral)
{
    json_t *n = json_loads(neutral, JSON_DECODE_ANY, NULL);
    const bool same = json_is_number(n) && json_is_number(value) ? json_number_value(n) == json_number_value(value)
                                                                 : n && json_equal(n, value);
    json_decref(n);
    return same;
}

static int unknown(const char *path, const char *key, const clb_field *const tables[], size_t n_tables, clb_refusal *r)
{
    const char *names[256];
    size_t n = 0;
    for (size_t t = 0; t < n_tables; t++)
        for (const clb_field *f = tables[t]; f && f->name; f++)
            if (n < sizeof names / sizeof *names && f->kind != CLB_FIELD_REFUSED)
                names[n++] = f->name;
    const long near = clb_nearest(key, names, n);
    if (near >= 0)
        return clb_refuse(r, "unknown_parameter", path, "Unknown parameter: '%s'. Did you mean '%s'?", path,
                          names[near]);
    return clb_refuse(r, "unknown_parameter", path, "Unknown parameter: '%s'.", path);
}

int clb_fields_check(const json_t *object, const char *where, const clb_field *const tables[], size_t n_tables,
                     clb_refusal *r)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char path[128];
        snprintf(path, sizeof path, "%s%s%.80s", where, *where ? "." : "", key);
        trim_utf8(path);
        const clb_field *found = NULL;
        for (size_t t = 0; t < n_tables && !found; t++)
            for (const clb_field *f = tables[t]; f && f->name; f++)
                if (strcmp(f->name, key) == 0) {
                    found = f;
                    break;
                }
        if (!found)
            return unknown(path, key, tables, n_tables, r);
        if (json_is_null(value))
            continue;
        if (found->kind == CLB_FIELD_REFUSED)
            return clb_refuse(r, "unsupported_parameter", path, "Unsupported parameter: '%s'%s%s.", path,
                              found->note ? ": " : "", found->note ? found->note : "");
        if (found->kind == CLB_FIELD_NEUTRAL && !is_neutral(value, found->note))
            return clb_refuse(r, "unsupported_value", path, "Unsupported value: '%s' can only be %s here.", path,
                              found->note);
    }
    return COLIBRI_OK;
}

int clb_field_number(const json_t *body, const char *name, double least, double most, double *value, clb_refusal *r)
{
    const json_t *v = lookup(body, name);
    if (!v)
        return COLIBRI_OK;
    if (!json_is_number(v))
        return clb_refuse_type(r, name, "a number", v);
    const double x = json_number_value(v);
    if (!(x >= least))
        return clb_refuse(r, "decimal_below_min_value", name,
                          "Invalid '%s': decimal below minimum value. Expected a value >= %g, but got %g instead.",
                          name, least, x);
    if (!(x <= most))
        return clb_refuse(r, "decimal_above_max_value", name,
                          "Invalid '%s': decimal above maximum value. Expected a value <= %g, but got %g instead.",
                          name, most, x);
    *value = x;
    return COLIBRI_OK;
}

int clb_field_integer(const json_t *body, const char *name, int64_t least, int64_t most, int64_t *value, clb_refusal *r)
{
    const json_t *v = lookup(body, name);
    if (!v)
        return COLIBRI_OK;
    if (!json_is_integer(v))
        return clb_refuse_type(r, name, "an integer", v);
    const int64_t x = (int64_t)json_integer_value(v);
    if (x < least)
        return clb_refuse(r, "integer_below_min_value", name,
                          "Invalid '%s': integer below minimum value. Expected a value >= %lld, but got %lld instead.",
                          name, (long long)least, (long long)x);
    if (x > most)
        return clb_refuse(r, "integer_above_max_value", name,
                          "Invalid '%s': integer above maximum value. Expected a value <= %lld, but got %lld instead.",
                          name, (long long)most, (long long)x);
    *value = x;
    return COLIBRI_OK;
}

int clb_field_bool(const json_t *body, const char *name, bool *value, clb_refusal *r)
{
    const json_t *v = lookup(body, name);
    if (!v)
        return COLIBRI_OK;
    if (!json_is_boolean(v))
        return clb_refuse_type(r, name, "a boolean", v);
    *value = json_is_true(v);
    return COLIBRI_OK;
}

int clb_field_string(const json_t *body, const char *name, const char **value, clb_refusal *r)
{
    const json_t *v = lookup(body, name);
    if (!v)
        return COLIBRI_OK;
    if (!json_is_string(v))
        return clb_refuse_type(r, name, "a string", v);
    *value = json_string_value(v);
    return COLIBRI_OK;
}

int clb_field_choice(const json_t *body, const char *name, const char *const *names, size_t *value, clb_refusal *r)
{
    const char *s = NULL;
    CLB_TRY(clb_field_string(body, name, &s, r));
    if (!s)
        return COLIBRI_OK;
    char list[256] = "";
    size_t n = 0;
    for (size_t i = 0; names[i]; i++) {
        if (strcmp(names[i], s) == 0) {
            *value = i;
            return COLIBRI_OK;
        }
        const int w = snprintf(list + n, sizeof list - n, "%s'%s'", i ? ", " : "", names[i]);
        n += w > 0 && (size_t)w < sizeof list - n ? (size_t)w : 0;
    }
    return clb_refuse(r, "invalid_value", name, "Invalid value: '%.80s'. Supported values of '%s' are: %s.", s, name,
                      list);
}

int clb_field_object(const json_t *body, const char *name, json_t **value, clb_refusal *r)
{
    json_t *v = lookup(body, name);
    *value = NULL;
    if (v && !json_is_object(v))
        return clb_refuse_type(r, name, "an object", v);
    *value = v;
    return COLIBRI_OK;
}

int clb_field_array(const json_t *body, const char *name, json_t **value, clb_refusal *r)
{
    json_t *v = lookup(body, name);
    *value = NULL;
    if (v && !json_is_array(v))
        return clb_refuse_type(r, name, "an array", v);
    *value = v;
    return COLIBRI_OK;
}
