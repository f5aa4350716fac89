/* Values that the model writes as text, as rules of a grammar: what the parser (tool_xml.c) reads back is what the
 * schema says. Strings are text as it is, everything else is JSON. */
#include <string.h>

#include "serve/schema_impl.h"
#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

#define DEPTH       16
#define LENGTH_MOST 20000
#define ONE_OF_MOST 200
#define LOOKED_MOST                                                                                                    \
    50000000u /* of all parameters of all functions, as clb_schema_types_cost counts: a fraction of a second */

int clb_parameter_refuse(clb_call_rules *m, const clb_parameter *p, const char *what)
{
    return clb_fail(m->err, COLIBRI_E_UNSUPPORTED,
                    "#/properties/%s: %s is not supported for parameters that the model writes as text (%s)", p->name,
                    what, m->f->name);
}

bool clb_rules_spent(const clb_call_rules *m)
{
    return m->looked > LOOKED_MOST || m->g->work > SCHEMA_MOST_WORK;
}

static int charge(clb_call_rules *m, uint64_t cost)
{
    m->looked += cost;
    return clb_rules_spent(m)
               ? clb_fail(m->err, COLIBRI_E_LIMIT, "the schemas of the functions' parameters take too much work")
               : COLIBRI_OK;
}

/* The formats that say for each value whether it is text or JSON. */
static bool says_which(const clb_tool_format *f)
{
    return strstr(f->param_open, "DSML");
}

/* ---- text ---- */

int clb_value_text(clb_call_rules *m, char rule[CLB_GBNF_NAME])
{
    const clb_tool_format *f = m->f;
    char call_close[80], param_open[80];
    snprintf(call_close, sizeof call_close, "\n%s", f->call_close);
    snprintf(param_open, sizeof param_open, "\n%s", f->param_open);
    const char *const ends[] = {f->value_end, f->lines ? call_close : NULL, f->lines ? param_open : NULL};
    if (!m->value_text[0])
        CLB_TRY(clb_rules_text(m, ends, sizeof ends / sizeof *ends, m->value_text));
    memcpy(rule, m->value_text, CLB_GBNF_NAME);
    return COLIBRI_OK;
}

static int alternative(clb_call_rules *m, clb_buf *out, const char *rule)
{
    return clb_buf_printf(out, m->err, "%s%s", out->n ? " | " : "", rule);
}

/* Whether the parser takes a string's text for a value of another type that may stand there, or could. */
static bool looks_other(const clb_call_rules *m, const clb_parameter *p, const char *s, size_t n)
{
    static const char *const words[] = {"True", "False", "None"}; /* Python's */
    const unsigned others = p->types & ~(unsigned)CLB_TYPE_STRING;
    if (says_which(m->f) || !others)
        return false;
    for (; n && strchr(" \n\t\r", *s); n--)
        s++;
    while (n && strchr(" \n\t\r", s[n - 1]))
        n--;
    for (size_t i = 0; i < 3; i++)
        if (n == strlen(words[i]) && memcmp(s, words[i], n) == 0)
            return others & (i < 2 ? CLB_TYPE_BOOLEAN : CLB_TYPE_NULL);
    if (n && strchr("[{(", *s)) /* JSON, or a list of Python's */
        return others & (CLB_TYPE_ARRAY | CLB_TYPE_OBJECT);
    json_t *const v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    const unsigned type = v ? clb_type_of(v) : 0;
    json_decref(v);
    return (type & others) || (type == CLB_TYPE_INTEGER && (others & CLB_TYPE_NUMBER));
}

/* A text of a list, unless the parser would end it early or take it for something else. */
static int one_word(clb_call_rules *m, const clb_parameter *p, const json_t *word, clb_buf *out)
{
    const clb_tool_format *f = m->f;
    const char *const s = json_string_value(word);
    const size_t n = json_string_length(word);
    CLB_TRY(charge(m, 20 + n));
    if (strlen(s) != n || strstr(s, f->value_end) || strstr(s, f->call_close) || strstr(s, f->param_open) ||
        looks_other(m, p, s, n))
        return COLIBRI_OK;
    CLB_TRY(alternative(m, out, ""));
    return clb_gbnf_literal(out, s, n, m->err);
}

/* Any text, as far as lengths and formats leave it. */
static int free_words(clb_call_rules *m, clb_parameter *p, const json_t *schema, clb_buf *out)
{
    const json_t *const format = json_object_get(schema, "format");
    const char *const grammar = json_is_string(format) ? schema_format(json_string_value(format)) : NULL;
    const bool lengths = json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
    char rule[CLB_GBNF_NAME];
    size_t min = 0, max = SIZE_MAX;
    p->free_text = true;
    CLB_TRY(schema_count(m->g, schema, "minLength", &min, m->err));
    CLB_TRY(schema_count(m->g, schema, "maxLength", &max, m->err));
    if (grammar && lengths && p->strict)
        return clb_parameter_refuse(m, p, "a length beside \"format\"");
    if (grammar)
        return clb_buf_printf(out, m->err, "%s(%s)", out->n ? " | " : "", grammar);
    if (format && p->strict && !(json_is_string(format) && schema_says_nothing(json_string_value(format))))
        return clb_parameter_refuse(m, p, "format");
    if (min > LENGTH_MOST || max < min)
        return clb_parameter_refuse(m, p, "minLength");
    if (max != SIZE_MAX) /* text that is counted has no begin of a mark */
        return clb_buf_printf(out, m->err, "%s[^<]{%zu,%zu}", out->n ? " | " : "", min,
                              max < LENGTH_MOST ? max : (size_t)LENGTH_MOST);
    CLB_TRY(clb_value_text(m, rule));
    if (min)
        return clb_buf_printf(out, m->err, "%s[^<\\n]{%zu} %s", out->n ? " | " : "", min, rule);
    return alternative(m, out, rule);
}

/* What else a schema says about strings than what is followed: an error for strict functions. */
static int nothing_beside(clb_call_rules *m, const clb_parameter *p, const json_t *schema, const char *followed)
{
    static const char *const keywords[] = {"pattern", "minLength", "maxLength",   "format",
                                           "enum",    "const",     "anyOf",       "oneOf",
                                           "not",     "if",        "$dynamicRef", "$recursiveRef"};
    char what[80];
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords && p->strict; i++) {
        if (!json_object_get(schema, keywords[i]) || (followed && strcmp(followed, keywords[i]) == 0) ||
            (!followed && i >= 1 && i <= 3)) /* what free_words follows */
            continue;
        if (followed)
            snprintf(what, sizeof what, "\"%s\" beside \"%s\"", keywords[i], followed);
        else
            snprintf(what, sizeof what, "\"%s\"", keywords[i]);
        return clb_parameter_refuse(m, p, what);
    }
    return COLIBRI_OK;
}

/* No string may meet two of the branches. */
static int strings_apart(clb_call_rules *m, const clb_parameter *p, const json_t *branches)
{
    const size_t n = json_array_size(branches);
    bool apart = n <= ONE_OF_MOST;
    for (size_t i = 0; i < n && apart; i++) {
        const json_t *const a = json_array_get(branches, i);
        if (!(clb_schema_types_cost(p->root, a, &m->looked) & CLB_TYPE_STRING))
            continue;
        for (size_t k = i + 1; k < n && apart; k++) {
            const json_t *const b = json_array_get(branches, k);
            CLB_TRY(charge(m, 100));
            if (clb_schema_types_cost(p->root, b, &m->looked) & CLB_TYPE_STRING)
                CLB_TRY(schema_apart(m->g, a, b, 0, &apart, m->err));
        }
    }
    return apart ? COLIBRI_OK : clb_parameter_refuse(m, p, "\"oneOf\" where a string may meet two branches");
}

/* The schema without $ref and allOf; a new reference. */
static int flatten(clb_call_rules *m, const clb_parameter *p, const json_t *schema, json_t **flat)
{
    *flat = NULL;
    CLB_TRY(charge(m, 50 + 50 * (uint64_t)json_object_size(clb_schema_target(p->root, schema))));
    m->g->depth = 0;
    return schema_flatten(m->g, schema, flat, m->err);
}

static int words(clb_call_rules *m, clb_parameter *p, const json_t *schema, int depth, clb_buf *out);

/* s is flat. */
static int flat_words(clb_call_rules *m, clb_parameter *p, const json_t *s, int depth, clb_buf *out)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const json_t *const list = json_object_get(s, "enum"), *const only = json_object_get(s, "const"), *item;
    unsigned types;
    size_t i;
    if (json_is_false(s))
        return COLIBRI_OK;
    CLB_TRY(schema_types(m->g, s, &types, m->err));
    if (!(types & TYPE_STRING))
        return COLIBRI_OK;
    if (only) {
        CLB_TRY(nothing_beside(m, p, s, "const"));
        return json_is_string(only) ? one_word(m, p, only, out) : COLIBRI_OK;
    }
    if (json_is_array(list)) {
        CLB_TRY(nothing_beside(m, p, s, "enum"));
        json_array_foreach(list, i, item) if (json_is_string(item)) CLB_TRY(one_word(m, p, item, out));
        return COLIBRI_OK;
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *const branches = json_object_get(s, choices[k]);
        if (!json_is_array(branches))
            continue;
        CLB_TRY(nothing_beside(m, p, s, choices[k]));
        if (k == 1 && p->strict)
            CLB_TRY(strings_apart(m, p, branches));
        json_array_foreach(branches, i, item) CLB_TRY(words(m, p, item, depth + 1, out));
        return COLIBRI_OK;
    }
    CLB_TRY(nothing_beside(m, p, s, NULL));
    return free_words(m, p, s, out);
}

/* Texts that the schema takes as strings, as alternatives. */
static int words(clb_call_rules *m, clb_parameter *p, const json_t *schema, int depth, clb_buf *out)
{
    json_t *flat;
    if (depth > DEPTH)
        return clb_parameter_refuse(m, p, "a \"$ref\" in a circle, or alternatives so deep,");
    if (out->n > SCHEMA_MOST_TEXT)
        return clb_parameter_refuse(m, p, "so much text");
    int rc = flatten(m, p, schema, &flat);
    if (!rc)
        rc = flat_words(m, p, flat, depth, out);
    json_decref(flat);
    return rc;
}

/* ---- JSON ---- */

/* The schema without strings, NULL if nothing is left; a new reference. */
static int without_strings(clb_call_rules *m, const clb_parameter *p, const json_t *schema, int depth, json_t **out)
{
    static const char *const lists[] = {"enum", "anyOf", "oneOf", "type"};
    json_t *flat, *copy = NULL, *rest = NULL;
    const json_t *item;
    size_t i;
    int rc;
    *out = NULL;
    if (depth > DEPTH)
        return clb_parameter_refuse(m, p, "a \"$ref\" in a circle, or alternatives so deep,");
    CLB_TRY(flatten(m, p, schema, &flat));
    if (json_is_false(flat) || clb_schema_types_cost(p->root, flat, &m->looked) == CLB_TYPE_STRING ||
        json_is_string(json_object_get(flat, "const"))) {
        json_decref(flat);
        return COLIBRI_OK;
    }
    rc = (copy = json_copy(flat)) ? COLIBRI_OK : CLB_NOMEM(m->err, "a schema");
    for (size_t k = 0; !rc && k < 4; k++) {
        const json_t *const list = json_object_get(flat, lists[k]);
        if (!json_is_array(list))
            continue;
        if (!(rest = json_array()))
            CLB_GO(CLB_NOMEM(m->err, "a schema"));
        json_array_foreach(list, i, item)
        {
            if (k == 1 || k == 2) {
                json_t *branch;
                CLB_GO(without_strings(m, p, item, depth + 1, &branch));
                if (branch)
                    json_array_append_new(rest, branch);
            } else if (k == 0 ? !json_is_string(item)
                              : !json_is_string(item) || strcmp(json_string_value(item), "string") != 0) {
                json_array_append(rest, (json_t *)(uintptr_t)item);
            }
        }
        if (json_array_size(rest) == 0) /* only strings */
            goto done;
        json_object_set(copy, lists[k], rest);
        json_decref(rest);
        rest = NULL;
    }
    *out = copy;
    copy = NULL;
done:
    json_decref(rest);
    json_decref(copy);
    json_decref(flat);
    return rc;
}

/* Says which types are left, so that no string in quotes comes out of what says nothing about types. */
static int name_types(clb_call_rules *m, const clb_parameter *p, json_t *rest)
{
    static const struct {
        unsigned bits;
        const char *name;
    } names[] = {{CLB_TYPE_NUMBER, "number"}, {CLB_TYPE_INTEGER, "integer"}, {CLB_TYPE_BOOLEAN, "boolean"},
                 {CLB_TYPE_NULL, "null"},     {CLB_TYPE_ARRAY, "array"},     {CLB_TYPE_OBJECT, "object"}};
    if (!json_is_object(rest) || json_object_get(rest, "type"))
        return COLIBRI_OK;
    json_t *const list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (p->types & names[i].bits)
            json_array_append_new(list, json_string(names[i].name));
    return json_object_set_new(rest, "type", list) ? CLB_NOMEM(m->err, "a schema") : COLIBRI_OK;
}

static bool only_null(const json_t *values)
{
    const json_t *item;
    size_t i;
    json_array_foreach(values, i, item) if (!json_is_null(item)) return false;
    return json_is_array(values) || json_is_null(values);
}

/* Whether more is said about values that are no strings than their types. It went through without_strings. */
static bool constrains(const json_t *v)
{
    static const char *const known[] = {"type",      "anyOf",     "oneOf",   "allOf",
                                        "minLength", "maxLength", "pattern", "format"};
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const char *key;
    const json_t *item;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        bool says = schema_asserts(key);
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            says = says && strcmp(known[k], key) != 0;
        if (says && !((strcmp(key, "enum") == 0 || strcmp(key, "const") == 0) && only_null(item)))
            return true;
    }
    for (size_t k = 0; k < 3; k++)
        json_array_foreach(json_object_get(v, lists[k]), i, item) if (constrains(item)) return true;
    return json_is_false(v);
}

/* ---- both ---- */

static int value_parts(clb_call_rules *m, clb_parameter *p, const json_t *schema, clb_buf *text, clb_buf *json)
{
    char rule[CLB_GBNF_NAME];
    json_t *rest;
    CLB_TRY(charge(m, 0));
    if (p->types == CLB_TYPE_ANY || !(p->types & CLB_TYPE_STRING)) {
        CLB_TRY(clb_gbnf_part(m->g, schema, rule, m->err));
        return alternative(m, json, rule);
    }
    CLB_TRY(words(m, p, schema, 0, text));
    CLB_TRY(without_strings(m, p, schema, 0, &rest));
    int rc = name_types(m, p, rest);
    if (!rc && rest && p->strict && p->free_text && !says_which(m->f) && constrains(rest))
        rc = clb_parameter_refuse(m, p, "a string beside other values with bounds"); /* it may look like one of them */
    if (rest && !rc)
        rc = clb_gbnf_part(m->g, rest, rule, m->err);
    if (rest && !rc)
        rc = alternative(m, json, rule);
    json_decref(rest);
    return rc || text->n || json->n ? rc : clb_parameter_refuse(m, p, "the only value");
}

int clb_value_rules(clb_call_rules *m, clb_parameter *p, const json_t *schema, clb_buf *text, clb_buf *json)
{
    char rule[CLB_GBNF_NAME];
    p->types = clb_schema_types_cost(p->root, schema, &m->looked);
    const int rc = value_parts(m, p, schema, text, json);
    if (rc == COLIBRI_OK || rc == COLIBRI_E_NOMEM || p->strict || clb_rules_spent(m))
        return rc;
    text->n = json->n = 0;
    if (p->types != CLB_TYPE_ANY && (p->types & CLB_TYPE_STRING)) {
        CLB_TRY(clb_value_text(m, rule));
        CLB_TRY(alternative(m, text, rule));
        if (p->types == CLB_TYPE_STRING || !says_which(m->f)) /* any text is read as what may be there */
            return COLIBRI_OK;
    }
    CLB_TRY(clb_gbnf_part(m->g, json_true(), rule, m->err));
    return alternative(m, json, rule);
}
