/* JSON schemas -> rules: references, alternatives, constants, types. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

/* Keywords about values that no grammar here can follow. */
static const char *const refused[] = {
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
};

static int refuse_keywords(const clb_gbnf *g, const json_t *schema, clb_error *err)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(schema, refused[i]))
            return schema_refuse(g, err, refused[i], NULL);
    /* Nothing is left unevaluated: an object has no property that no schema named. */
    const json_t *rest = json_object_get(schema, "unevaluatedProperties");
    if (rest && !json_is_boolean(rest))
        return schema_refuse(g, err, "unevaluatedProperties", "with a schema");
    return COLIBRI_OK;
}

int schema_count(const clb_gbnf *g, const json_t *schema, const char *keyword, size_t *out, clb_error *err)
{
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return COLIBRI_OK;
    const double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d != (double)(json_int_t)(d < 1e15 ? d : 1e15))
        return schema_fail(g, err, COLIBRI_E_USAGE, "\"%s\" must be a whole number, 0 or more", keyword);
    *out = d >= 1e15 ? (size_t)1e15 : (size_t)d;
    return COLIBRI_OK;
}

/* ---- one type ---- */

static int add_rule(clb_gbnf *g, const char *shared, clb_buf *e, clb_error *err)
{
    char rule[CLB_GBNF_NAME];
    CLB_TRY(schema_shared(g, shared, rule, err));
    return clb_buf_printf(e, err, "%s", rule);
}

static int add_type(clb_gbnf *g, const json_t *schema, unsigned type, clb_buf *e, clb_error *err)
{
    switch (type) {
    case TYPE_NULL:
        return clb_buf_printf(e, err, "\"null\"");
    case TYPE_BOOLEAN:
        return clb_buf_printf(e, err, "\"true\" | \"false\"");
    case TYPE_STRING:
        return schema_string(g, schema, e, err);
    case TYPE_ARRAY:
        return schema_array(g, schema, e, err);
    case TYPE_OBJECT:
        return schema_object(g, schema, e, err);
    default:
        return schema_number(g, schema, type == TYPE_INTEGER, e, err);
    }
}

static int add_types(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    unsigned types;
    bool first = true;
    CLB_TRY(schema_made_types(g, schema, &types, err));
    if (types == 0)
        return add_rule(g, "none", e, err);
    if (types & TYPE_FRACTION)
        types &= ~(unsigned)TYPE_INTEGER; /* among the numbers */
    for (unsigned type = 1; type < TYPE_ANY; type <<= 1) {
        if (!(types & type))
            continue;
        CLB_TRY(first ? COLIBRI_OK : clb_buf_printf(e, err, " | "));
        CLB_TRY(clb_buf_printf(e, err, "("));
        CLB_TRY(add_type(g, schema, type, e, err));
        CLB_TRY(clb_buf_printf(e, err, ")"));
        first = false;
    }
    return COLIBRI_OK;
}

/* ---- enum and const ---- */

/* What else may stand beside constants and be looked at here. */
static bool simple_beside_constants(const char *keyword)
{
    static const char *const names[] = {
        "type",      "enum",     "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "minLength", "maxLength"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], keyword) == 0)
            return true;
    return !schema_asserts(keyword);
}

static size_t n_characters(const json_t *string)
{
    size_t n = 0;
    const char *s = json_string_value(string);
    for (size_t i = 0; i < json_string_length(string); i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static int meets(const clb_gbnf *g, const json_t *schema, const json_t *value, bool *ok, clb_error *err)
{
    unsigned types;
    CLB_TRY(schema_types(g, schema, &types, err));
    *ok = types & schema_type_of(value);
    if (json_is_string(value)) {
        size_t least = 0, most = SIZE_MAX;
        CLB_TRY(schema_count(g, schema, "minLength", &least, err));
        CLB_TRY(schema_count(g, schema, "maxLength", &most, err));
        *ok = *ok && n_characters(value) >= least && n_characters(value) <= most;
    } else if (json_is_number(value)) {
        static const char *const names[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
        for (int i = 0; i < 4; i++) {
            const json_t *bound = json_object_get(schema, names[i]);
            const double v = json_number_value(value), b = json_number_value(bound);
            if (bound && !json_is_number(bound))
                return schema_fail(g, err, COLIBRI_E_USAGE, "\"%s\" must be a number", names[i]);
            *ok = *ok && (!bound || (i == 0 ? v >= b : i == 1 ? v > b : i == 2 ? v <= b : v < b));
        }
    }
    return COLIBRI_OK;
}

static int add_constants(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    const char *keyword;
    json_t *ignored;
    bool first = true;
    if (list && !json_is_array(list))
        return schema_fail(g, err, COLIBRI_E_USAGE, "\"enum\" must be an array");
    json_object_foreach((json_t *)(uintptr_t)schema, keyword, ignored)
    {
        if (!simple_beside_constants(keyword))
            return schema_fail(g, err, COLIBRI_E_UNSUPPORTED, "\"%s\" is not supported beside \"%s\"", keyword,
                               list ? "enum" : "const");
    }
    for (size_t i = 0; i < (list ? json_array_size(list) : 1); i++) {
        const json_t *value = list ? json_array_get(list, i) : only;
        bool ok;
        CLB_TRY(meets(g, schema, value, &ok, err));
        if (!ok || (only && !json_equal(only, value)))
            continue;
        CLB_TRY(first ? COLIBRI_OK : clb_buf_printf(e, err, " | "));
        CLB_TRY(schema_constant(g, value, e, err));
        first = false;
    }
    return first ? add_rule(g, "none", e, err) : COLIBRI_OK;
}

/* ---- alternatives ---- */

/* No two branches of oneOf may both accept what one of them makes. */
static int check_apart(clb_gbnf *g, const json_t *branches, clb_error *err)
{
    const size_t n = json_array_size(branches);
    if (n > 200)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "\"oneOf\" of more than 200");
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++) {
            bool apart;
            CLB_TRY(schema_apart(g, json_array_get(branches, i), json_array_get(branches, k), 0, &apart, err));
            if (!apart)
                return schema_fail(
                    g, err, COLIBRI_E_UNSUPPORTED,
                    "\"oneOf\" is not supported where a value may meet two branches (here %zu and %zu): use "
                    "anyOf, or a required property with another const in each",
                    i, k);
        }
    return COLIBRI_OK;
}

static int add_branches(clb_gbnf *g, const json_t *schema, const char *keyword, clb_buf *e, clb_error *err)
{
    const json_t *branches = json_object_get(schema, keyword);
    json_t *base = json_copy((json_t *)(uintptr_t)schema), *whole = json_array();
    int rc = COLIBRI_OK;
    if (!base || !whole || json_object_del(base, keyword))
        CLB_GO(CLB_NOMEM(err, "a schema"));
    if (!json_is_array(branches) || json_array_size(branches) == 0)
        CLB_GO(schema_fail(g, err, COLIBRI_E_USAGE, "\"%s\" must be an array of schemas", keyword));
    for (size_t i = 0; i < json_array_size(branches); i++) {
        json_t *flat = NULL, *merged = NULL;
        const size_t back = schema_path_index(g, keyword, i);
        rc = schema_flatten(g, json_array_get(branches, i), &flat, err);
        if (!rc)
            rc = schema_merge(g, base, flat, &merged, err);
        json_decref(flat);
        if (!rc && json_array_append_new(whole, merged))
            rc = CLB_NOMEM(err, "a schema");
        if (rc)
            goto done;
        schema_path_back(g, back);
    }
    if (strcmp(keyword, "oneOf") == 0)
        CLB_GO(check_apart(g, whole, err));
    for (size_t i = 0; i < json_array_size(whole); i++) {
        char rule[CLB_GBNF_NAME];
        const size_t back = schema_path_index(g, keyword, i);
        CLB_GO(schema_rule(g, json_array_get(whole, i), false, rule, err));
        CLB_GO(clb_buf_printf(e, err, "%s%s", i ? " | " : "", rule));
        schema_path_back(g, back);
    }
done:
    json_decref(base);
    json_decref(whole);
    return rc;
}

/* ---- a schema ---- */

/* schema is flat. */
static int add_flat(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    if (!json_is_object(schema))
        return add_rule(g, json_is_false(schema) ? "none" : "value", e, err);
    CLB_TRY(refuse_keywords(g, schema, err));
    const char *const alternatives[] = {"anyOf", "oneOf"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(schema, alternatives[i]))
            return add_branches(g, schema, alternatives[i], e, err);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return add_constants(g, schema, e, err);
    const char *keyword;
    json_t *ignored;
    json_object_foreach((json_t *)(uintptr_t)schema, keyword, ignored)
    {
        if (schema_asserts(keyword))
            return add_types(g, schema, e, err);
    }
    return add_rule(g, "value", e, err);
}

static int make(clb_gbnf *g, const json_t *schema, const char *rule, clb_error *err)
{
    clb_buf e = {0};
    json_t *flat = NULL;
    int rc = schema_flatten(g, schema, &flat, err);
    if (!rc)
        rc = add_flat(g, flat, &e, err);
    if (!rc)
        rc = schema_define(g, rule, e.data, err);
    json_decref(flat);
    clb_buf_free(&e);
    return rc;
}

/* Where a schema is only a reference, that to which it leads. */
static int follow_reference(const clb_gbnf *g, const json_t **schema, clb_error *err)
{
    for (int i = 0;; i++) {
        const char *keyword;
        json_t *ignored;
        const json_t *ref = json_object_get(*schema, "$ref");
        if (!ref)
            return COLIBRI_OK;
        if (!json_is_string(ref))
            return schema_fail(g, err, COLIBRI_E_USAGE, "\"$ref\" must be a string");
        json_object_foreach((json_t *)(uintptr_t)*schema, keyword, ignored)
        {
            if (schema_asserts(keyword) && strcmp(keyword, "$ref") != 0)
                return COLIBRI_OK;
        }
        if (i == SCHEMA_MOST_DEPTH)
            return schema_fail(g, err, COLIBRI_E_USAGE, "\"$ref\" leads in a circle");
        CLB_TRY(schema_resolve(g, json_string_value(ref), schema, err));
    }
}

static bool in_chain(const clb_gbnf *g, const char *text)
{
    for (size_t i = 0; i < json_array_size(g->chain); i++)
        if (strcmp(json_string_value(json_array_get(g->chain, i)), text) == 0)
            return true;
    return false;
}

static int known_or_made(clb_gbnf *g, const json_t *schema, const char *text, char rule[CLB_GBNF_NAME], clb_error *err)
{
    const json_t *made = json_object_get(g->made, text);
    if (made) {
        if (in_chain(g, text))
            return schema_fail(g, err, COLIBRI_E_USAGE, "the schema contains itself as the same value, without end");
        snprintf(rule, CLB_GBNF_NAME, "%s", json_string_value(made));
        return COLIBRI_OK;
    }
    CLB_TRY(schema_new_name(g, rule, err));
    if (json_object_set_new(g->made, text, json_string(rule)) || json_array_append_new(g->chain, json_string(text)))
        return CLB_NOMEM(err, "a schema");
    const int rc = make(g, schema, rule, err);
    if (rc) { /* parts of it are rules already, and may refer to it: the grammar goes on without the whole */
        clb_error ignored;
        (void)schema_define(g, rule, "[^\\x00-\\U0010FFFF]", &ignored);
    }
    json_array_remove(g->chain, json_array_size(g->chain) - 1);
    return rc;
}

int schema_rule(clb_gbnf *g, const json_t *schema, bool part, char rule[CLB_GBNF_NAME], clb_error *err)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return schema_fail(g, err, COLIBRI_E_USAGE, "a schema must be an object, true or false");
    CLB_TRY(follow_reference(g, &schema, err));
    if (json_is_boolean(schema))
        return schema_shared(g, json_is_true(schema) ? "value" : "none", rule, err);
    if (++g->depth > SCHEMA_MOST_DEPTH)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "schemas more than %d deep", SCHEMA_MOST_DEPTH);
    char *text = json_dumps(schema, JSON_COMPACT);
    json_t *outer = g->chain;
    int rc = COLIBRI_OK;
    if (part)
        g->chain = json_array();
    if (!text || !g->chain)
        rc = CLB_NOMEM(err, "a schema");
    if (!rc)
        rc = schema_spend(g, 8 * (uint64_t)strlen(text), err); /* to write it and to find it */
    if (!rc)
        rc = known_or_made(g, schema, text, rule, err);
    if (part) {
        json_decref(g->chain);
        g->chain = outer;
    }
    free(text);
    g->depth--;
    return rc;
}

/* Whether values lie within values more than `left` deep. */
static bool deeper(const json_t *value, int left)
{
    const char *key;
    json_t *member;
    if (left == 0)
        return true;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (deeper(json_array_get(value, i), left - 1))
            return true;
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (deeper(member, left - 1))
            return true;
    }
    return false;
}

int clb_gbnf_begin(clb_gbnf *g, const json_t *root, clb_error *err)
{
    g->root = root;
    schema_path_back(g, 0);
    json_object_clear(g->made);
    if (deeper(g->root, 5 * SCHEMA_MOST_DEPTH))
        return schema_fail(g, err, COLIBRI_E_LIMIT, "schemas more than %d deep", SCHEMA_MOST_DEPTH);
    g->root_size = json_dumpb(g->root, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    if (g->root_size > SCHEMA_MOST_SIZE)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "a schema of %zu bytes; at most %u are read", g->root_size,
                           SCHEMA_MOST_SIZE);
    return COLIBRI_OK;
}

int clb_gbnf_part(clb_gbnf *g, const json_t *part, char rule[CLB_GBNF_NAME], clb_error *err)
{
    g->depth = 0;
    json_array_clear(g->chain);
    CLB_TRY(schema_spend(g, 0, err)); /* before the text of a part is made */
    const int rc = schema_rule(g, part, true, rule, err);
    if (rc) /* names of rules that there will not be */
        json_object_clear(g->made);
    return rc;
}

int clb_gbnf_schema(clb_gbnf *g, const json_t *schema, char rule[CLB_GBNF_NAME], clb_error *err)
{
    const json_t *const root = schema ? schema : json_true();
    CLB_TRY(clb_gbnf_begin(g, root, err));
    return clb_gbnf_part(g, root, rule, err);
}

static int whole(const json_t *schema, bool object, clb_buf *out, clb_error *err)
{
    clb_gbnf *g;
    char rule[CLB_GBNF_NAME];
    CLB_TRY(clb_gbnf_create(&g, err));
    int rc = object ? clb_gbnf_object(g, rule, err) : clb_gbnf_schema(g, schema, rule, err);
    if (!rc)
        rc = clb_gbnf_finish(g, rule, out, err);
    clb_gbnf_destroy(g);
    return rc;
}

int clb_schema_to_gbnf(const json_t *schema, clb_buf *out, clb_error *err)
{
    return whole(schema, false, out, err);
}

int clb_json_object_gbnf(clb_buf *out, clb_error *err)
{
    return whole(NULL, true, out, err);
}
