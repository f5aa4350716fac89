/* Types of schemas, and which schemas no value can meet together. */
#include <string.h>

#include "serve/schema_impl.h"

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        {"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
        {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_FRACTION},
        {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
        {"object", TYPE_OBJECT},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].bits;
    return 0;
}

int schema_types(const clb_gbnf *g, const json_t *schema, unsigned *types, clb_error *err)
{
    const json_t *type = json_object_get(schema, "type");
    *types = TYPE_ANY;
    if (!type)
        return COLIBRI_OK;
    *types = 0;
    const size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        const unsigned bits = json_is_string(one) ? type_named(json_string_value(one)) : 0;
        if (!bits)
            return schema_fail(
                g, err, COLIBRI_E_USAGE,
                "\"type\" must be null, boolean, integer, number, string, array or object, or a list of these");
        *types |= bits;
    }
    return COLIBRI_OK;
}

/* What a keyword says something about. */
static unsigned type_of_keyword(const char *keyword)
{
    static const struct {
        const char *name;
        unsigned bits;
    } keywords[] = {
        {"properties", TYPE_OBJECT},
        {"required", TYPE_OBJECT},
        {"additionalProperties", TYPE_OBJECT},
        {"unevaluatedProperties", TYPE_OBJECT},
        {"minProperties", TYPE_OBJECT},
        {"maxProperties", TYPE_OBJECT},
        {"items", TYPE_ARRAY},
        {"prefixItems", TYPE_ARRAY},
        {"additionalItems", TYPE_ARRAY},
        {"minItems", TYPE_ARRAY},
        {"maxItems", TYPE_ARRAY},
        {"uniqueItems", TYPE_ARRAY},
        {"minLength", TYPE_STRING},
        {"maxLength", TYPE_STRING},
        {"pattern", TYPE_STRING},
        {"format", TYPE_STRING},
        {"minimum", TYPE_INTEGER | TYPE_FRACTION},
        {"maximum", TYPE_INTEGER | TYPE_FRACTION},
        {"exclusiveMinimum", TYPE_INTEGER | TYPE_FRACTION},
        {"exclusiveMaximum", TYPE_INTEGER | TYPE_FRACTION},
        {"multipleOf", TYPE_INTEGER | TYPE_FRACTION},
    };
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, keyword) == 0)
            return keywords[i].bits;
    return 0;
}

int schema_made_types(const clb_gbnf *g, const json_t *schema, unsigned *types, clb_error *err)
{
    unsigned named = 0;
    const char *keyword;
    json_t *ignored;
    CLB_TRY(schema_types(g, schema, types, err));
    if (json_object_get(schema, "type"))
        return COLIBRI_OK;
    json_object_foreach((json_t *)(uintptr_t)schema, keyword, ignored)
    {
        named |= type_of_keyword(keyword);
    }
    if (named)
        *types = named;
    return COLIBRI_OK;
}

unsigned schema_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL: {
        const double d = json_real_value(value);
        return d > -9e15 && d < 9e15 && (double)(long long)d == d ? TYPE_INTEGER : TYPE_FRACTION;
    }
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    }
    return 0;
}

/* ---- apart ---- */

static const json_t *constants(const json_t *schema)
{
    const json_t *list = json_object_get(schema, "enum");
    return json_is_array(list) ? list : NULL;
}

static size_t n_constants(const json_t *schema)
{
    return constants(schema) ? json_array_size(constants(schema)) : json_object_get(schema, "const") ? 1 : 0;
}

static const json_t *constant(const json_t *schema, size_t i)
{
    return constants(schema) ? json_array_get(constants(schema), i) : json_object_get(schema, "const");
}

/* 1 and 1.0 are the same number. */
static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Types of the values that are made, or that are valid. */
static int all_types(const clb_gbnf *g, const json_t *schema, bool made, unsigned *types, clb_error *err)
{
    CLB_TRY(made ? schema_made_types(g, schema, types, err) : schema_types(g, schema, types, err));
    if (n_constants(schema)) {
        unsigned of_constants = 0;
        for (size_t i = 0; i < n_constants(schema); i++)
            of_constants |= schema_type_of(constant(schema, i));
        if (of_constants & TYPE_ARRAY || of_constants & TYPE_OBJECT)
            of_constants |= TYPE_ARRAY | TYPE_OBJECT;
        *types &= of_constants;
    }
    return COLIBRI_OK;
}

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *name = json_array_get(list, i);
        if (json_is_string(name) && strcmp(json_string_value(name), key) == 0)
            return true;
    }
    return false;
}

/* Objects that are made for a are not valid for b. */
static int objects_apart(clb_gbnf *g, const json_t *a, const json_t *b, int depth, bool *apart, clb_error *err)
{
    const json_t *mine = json_object_get(a, "properties"), *theirs = json_object_get(b, "properties");
    const char *key;
    json_t *property;
    *apart = false;
    CLB_TRY(schema_spend(g,
                         (json_object_size(mine) + (uint64_t)1) * (json_array_size(json_object_get(a, "required")) +
                                                                   json_array_size(json_object_get(b, "required")) + 1),
                         err));
    if (!json_is_object(mine))
        return COLIBRI_OK;
    json_object_foreach((json_t *)(uintptr_t)mine, key, property)
    {
        const json_t *other = json_object_get(theirs, key);
        if (other && (is_required(a, key) || is_required(b, key))) {
            CLB_TRY(schema_apart(g, property, other, depth + 1, apart, err));
            if (*apart)
                return COLIBRI_OK;
        }
        if (!other && is_required(a, key) && json_is_false(json_object_get(b, "additionalProperties"))) {
            *apart = true;
            return COLIBRI_OK;
        }
    }
    /* b wants a property that is never made for a. */
    CLB_TRY(schema_spend(
        g, (uint64_t)json_array_size(json_object_get(a, "required")) * json_array_size(json_object_get(b, "required")),
        err));
    const json_t *wanted = json_object_get(b, "required"), *more = json_object_get(a, "additionalProperties");
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const json_t *name = json_array_get(wanted, i);
        if (json_is_string(name) && !json_object_get(mine, json_string_value(name)) && (!more || json_is_false(more)) &&
            !is_required(a, json_string_value(name))) {
            *apart = true;
            return COLIBRI_OK;
        }
    }
    return COLIBRI_OK;
}

static int branches_apart(clb_gbnf *g, const json_t *a, const json_t *b, int depth, bool *apart, clb_error *err)
{
    const json_t *branches = json_object_get(a, "anyOf");
    if (!branches)
        branches = json_object_get(a, "oneOf");
    *apart = json_array_size(branches) > 0 && json_array_size(branches) <= 64;
    for (size_t i = 0; *apart && i < json_array_size(branches); i++)
        CLB_TRY(schema_apart(g, json_array_get(branches, i), b, depth + 1, apart, err));
    return COLIBRI_OK;
}

static int flat_apart(clb_gbnf *g, const json_t *a, const json_t *b, int depth, bool *apart, clb_error *err)
{
    unsigned made_a, made_b, valid_a, valid_b;
    *apart = json_is_false(a) || json_is_false(b);
    if (*apart || !json_is_object(a) || !json_is_object(b))
        return COLIBRI_OK;
    CLB_TRY(all_types(g, a, true, &made_a, err));
    CLB_TRY(all_types(g, b, true, &made_b, err));
    CLB_TRY(all_types(g, a, false, &valid_a, err));
    CLB_TRY(all_types(g, b, false, &valid_b, err));
    if (!(made_a & valid_b) && !(made_b & valid_a)) {
        *apart = true;
        return COLIBRI_OK;
    }
    if (n_constants(a) && n_constants(b)) {
        CLB_TRY(schema_spend(g, 16 * (uint64_t)n_constants(a) * n_constants(b), err));
        *apart = true;
        for (size_t i = 0; *apart && i < n_constants(a); i++)
            for (size_t k = 0; *apart && k < n_constants(b); k++)
                *apart = !equal(constant(a, i), constant(b, k));
        return COLIBRI_OK;
    }
    if (made_a == TYPE_OBJECT && made_b == TYPE_OBJECT) {
        CLB_TRY(objects_apart(g, a, b, depth, apart, err));
        if (*apart)
            CLB_TRY(objects_apart(g, b, a, depth, apart, err));
    }
    if (!*apart)
        CLB_TRY(branches_apart(g, a, b, depth, apart, err));
    if (!*apart)
        CLB_TRY(branches_apart(g, b, a, depth, apart, err));
    return COLIBRI_OK;
}

int schema_apart(clb_gbnf *g, const json_t *a, const json_t *b, int depth, bool *apart, clb_error *err)
{
    json_t *flat_a = NULL, *flat_b = NULL;
    *apart = false;
    if (depth > 8)
        return COLIBRI_OK;
    CLB_TRY(schema_spend(g, 1000, err)); /* alternatives of alternatives */
    int rc = schema_flatten(g, a, &flat_a, err);
    if (!rc)
        rc = schema_flatten(g, b, &flat_b, err);
    if (!rc)
        rc = flat_apart(g, flat_a, flat_b, depth, apart, err);
    json_decref(flat_a);
    json_decref(flat_b);
    return rc;
}
