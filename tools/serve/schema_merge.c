/* References, and several schemas for one value as one schema. */
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

bool schema_asserts(const char *keyword)
{
    static const char *const names[] = {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "multipleOf",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "propertyNames",
        "$dynamicRef",
        "$recursiveRef",
        "patternProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], keyword) == 0)
            return true;
    return false;
}

/* ---- $ref ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a JSON pointer in a URI fragment, decoded. */
static int decode_step(const char **p, char *out, size_t cap)
{
    size_t n = 0;
    for (; **p && **p != '/'; ++*p) {
        char c = **p;
        if (c == '%') {
            const int high = hex_digit((*p)[1]), low = high < 0 ? -1 : hex_digit((*p)[2]);
            if (low < 0)
                return -1;
            c = (char)(high << 4 | low);
            *p += 2;
        }
        if (n + 1 >= cap || c == 0)
            return -1;
        out[n++] = c;
    }
    out[n] = 0;
    char *to = out;
    for (const char *from = out; *from; from++) {
        const bool escaped = from[0] == '~' && (from[1] == '0' || from[1] == '1');
        from += escaped;
        *to++ = !escaped ? *from : *from == '0' ? (char)'~' : (char)'/';
    }
    *to = 0;
    return 0;
}

int schema_resolve(const clb_gbnf *g, const char *ref, const json_t **out, clb_error *err)
{
    char step[512];
    const json_t *at = g->root;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/'))
        return schema_fail(g, err, COLIBRI_E_UNSUPPORTED,
                           "\"$ref\" \"%.100s\" is not supported: only references into the same schema (#/...)", ref);
    for (const char *p = ref + 1; at && *p;) {
        p++; /* the slash */
        if (decode_step(&p, step, sizeof step))
            return schema_fail(g, err, COLIBRI_E_USAGE, "\"$ref\" \"%.100s\" is no pointer", ref);
        if (json_is_array(at)) {
            char *end;
            const unsigned long i = strtoul(step, &end, 10);
            at = *step >= '0' && *step <= '9' && !*end ? json_array_get(at, i) : NULL;
        } else {
            at = json_object_get(at, step);
        }
    }
    if (!at)
        return schema_fail(g, err, COLIBRI_E_USAGE, "\"$ref\" \"%.100s\" leads to nothing", ref);
    *out = at;
    return COLIBRI_OK;
}

/* ---- flattening ---- */

static int merge_into(clb_gbnf *g, json_t **flat, const json_t *more, clb_error *err)
{
    json_t *other = NULL, *merged = NULL;
    int rc = schema_flatten(g, more, &other, err);
    if (!rc)
        rc = schema_merge(g, *flat, other, &merged, err);
    json_decref(other);
    CLB_TRY(rc);
    json_decref(*flat);
    *flat = merged;
    return COLIBRI_OK;
}

static int flatten_object(clb_gbnf *g, const json_t *schema, json_t **out, clb_error *err)
{
    const json_t *ref = json_object_get(schema, "$ref"), *list = json_object_get(schema, "allOf");
    if (!ref && !list) {
        *out = json_incref((json_t *)(uintptr_t)schema);
        return COLIBRI_OK;
    }
    json_t *flat = json_copy((json_t *)(uintptr_t)schema);
    int rc = COLIBRI_OK;
    if (!flat)
        return CLB_NOMEM(err, "a schema");
    json_object_del(flat, "$ref");
    json_object_del(flat, "allOf");
    if (ref) {
        const json_t *target;
        if (!json_is_string(ref))
            CLB_GO(schema_fail(g, err, COLIBRI_E_USAGE, "\"$ref\" must be a string"));
        CLB_GO(schema_resolve(g, json_string_value(ref), &target, err));
        CLB_GO(merge_into(g, &flat, target, err));
    }
    if (list && (!json_is_array(list) || json_array_size(list) == 0))
        CLB_GO(schema_fail(g, err, COLIBRI_E_USAGE, "\"allOf\" must be an array of schemas"));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const size_t back = schema_path_index(g, "allOf", i);
        CLB_GO(merge_into(g, &flat, json_array_get(list, i), err));
        schema_path_back(g, back);
    }
    *out = flat;
    flat = NULL;
done:
    json_decref(flat);
    return rc;
}

int schema_flatten(clb_gbnf *g, const json_t *schema, json_t **out, clb_error *err)
{
    *out = NULL;
    if (json_is_boolean(schema)) {
        *out = json_incref((json_t *)(uintptr_t)schema);
        return COLIBRI_OK;
    }
    if (!json_is_object(schema))
        return schema_fail(g, err, COLIBRI_E_USAGE, "a schema must be an object, true or false");
    if (++g->depth > SCHEMA_MOST_DEPTH)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "schemas more than %d deep, or a \"$ref\" in a circle",
                           SCHEMA_MOST_DEPTH);
    CLB_TRY(schema_spend(g, 100, err));
    CLB_TRY(flatten_object(g, schema, out, err));
    g->depth--;
    return COLIBRI_OK;
}

/* ---- merging; `to` is a copy of a that becomes what both mean ---- */

static int set(json_t *to, const char *key, json_t *value, clb_error *err)
{
    return json_object_set_new(to, key, value) ? CLB_NOMEM(err, "a schema") : COLIBRI_OK;
}

/* {"allOf": [a, b]}, to be flattened when it is its turn. */
static json_t *both(const json_t *a, const json_t *b)
{
    if (json_equal(a, b) || json_is_true(b))
        return json_incref((json_t *)(uintptr_t)a);
    if (json_is_true(a))
        return json_incref((json_t *)(uintptr_t)b);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

/* Properties of both; one that only one side names must be what the other side allows of further ones. */
static int merge_properties(clb_gbnf *g, json_t *to, const json_t *a, const json_t *b, clb_error *err)
{
    const json_t *mine = json_object_get(a, "properties"), *theirs = json_object_get(b, "properties");
    const json_t *my_rest = json_object_get(a, "additionalProperties"),
                 *their_rest = json_object_get(b, "additionalProperties");
    json_t *merged = json_object(), *property;
    const char *key;
    const uint64_t n = json_object_size(mine) + (uint64_t)json_object_size(theirs);
    if (!merged)
        return CLB_NOMEM(err, "a schema");
    /* Where both name something, its text may be compared. */
    int rc = schema_spend(g, 1000 + 200 * n + (mine && theirs ? g->root_size : 0), err);
    if (rc) {
        json_decref(merged);
        return rc;
    }
    json_object_foreach((json_t *)(uintptr_t)mine, key, property)
    {
        const json_t *other = json_object_get(theirs, key);
        other = other ? other : their_rest;
        json_object_set_new(merged, key, other ? both(property, other) : json_incref(property));
    }
    json_object_foreach((json_t *)(uintptr_t)theirs, key, property)
    {
        if (!json_object_get(mine, key))
            json_object_set_new(merged, key, my_rest ? both(my_rest, property) : json_incref(property));
    }
    if (my_rest && their_rest)
        CLB_TRY(set(to, "additionalProperties", both(my_rest, their_rest), err));
    else if (their_rest)
        CLB_TRY(set(to, "additionalProperties", json_incref((json_t *)(uintptr_t)their_rest), err));
    if (json_object_size(merged) || mine || theirs)
        return set(to, "properties", merged, err);
    json_decref(merged);
    return COLIBRI_OK;
}

static int merge_types(const clb_gbnf *g, json_t *to, const json_t *a, const json_t *b, clb_error *err)
{
    static const struct {
        unsigned bits;
        const char *name;
    } names[] = {{TYPE_NULL, "null"},     {TYPE_BOOLEAN, "boolean"}, {TYPE_INTEGER | TYPE_FRACTION, "number"},
                 {TYPE_STRING, "string"}, {TYPE_ARRAY, "array"},     {TYPE_OBJECT, "object"}};
    unsigned x, y;
    CLB_TRY(schema_types(g, a, &x, err));
    CLB_TRY(schema_types(g, b, &y, err));
    x &= y;
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((x & names[i].bits) == names[i].bits)
            json_array_append_new(list, json_string(names[i].name));
    if ((x & (TYPE_INTEGER | TYPE_FRACTION)) == TYPE_INTEGER)
        json_array_append_new(list, json_string("integer"));
    return set(to, "type", list, err);
}

static int merge_required(json_t *to, const json_t *a, const json_t *b, clb_error *err)
{
    json_t *list = json_copy((json_t *)(uintptr_t)a);
    for (size_t i = 0; i < json_array_size(b); i++)
        json_array_append(list, json_array_get(b, i));
    return set(to, "required", list, err);
}

/* Constants of both. */
static int merge_enums(clb_gbnf *g, json_t *to, const json_t *a, const json_t *b, clb_error *err)
{
    CLB_TRY(schema_spend(g, 16 * (uint64_t)json_array_size(a) * json_array_size(b), err));
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (json_equal(json_array_get(a, i), json_array_get(b, k))) {
                json_array_append(list, json_array_get(a, i));
                break;
            }
    return set(to, "enum", list, err);
}

/* Alternatives of both: every pair. */
static int merge_alternatives(const clb_gbnf *g, json_t *to, const json_t *a, const json_t *b, clb_error *err)
{
    if (json_array_size(a) * json_array_size(b) > 256)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "more than 256 combinations of \"anyOf\"");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            json_array_append_new(list, both(json_array_get(a, i), json_array_get(b, k)));
    return set(to, "anyOf", list, err);
}

/* 1: the larger bound counts, -1: the smaller one. */
static int bound_direction(const char *keyword)
{
    static const char *const most[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    static const char *const least[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        if (strcmp(keyword, most[i]) == 0)
            return -1;
        if (strcmp(keyword, least[i]) == 0)
            return 1;
    }
    return 0;
}

static int merge_keyword(clb_gbnf *g, json_t *to, const char *keyword, const json_t *a, const json_t *b, clb_error *err)
{
    const int direction = bound_direction(keyword);
    if (direction && json_is_number(a) && json_is_number(b)) {
        const double x = json_number_value(a), y = json_number_value(b);
        if (direction > 0 ? y > x : y < x)
            return set(to, keyword, json_incref((json_t *)(uintptr_t)b), err);
        return COLIBRI_OK;
    }
    if (json_equal(a, b) || !schema_asserts(keyword))
        return COLIBRI_OK;
    if (strcmp(keyword, "required") == 0)
        return merge_required(to, a, b, err);
    if (strcmp(keyword, "enum") == 0)
        return merge_enums(g, to, a, b, err);
    if (strcmp(keyword, "const") == 0)
        return set(to, "enum", json_array(), err); /* two values at once */
    if (strcmp(keyword, "anyOf") == 0)
        return merge_alternatives(g, to, a, b, err);
    if (strcmp(keyword, "items") == 0 && !json_is_array(a) && !json_is_array(b) && !json_object_get(to, "prefixItems"))
        return set(to, "items", both(a, b), err);
    if (strcmp(keyword, "uniqueItems") == 0)
        return set(to, keyword, json_true(), err);
    return schema_fail(g, err, COLIBRI_E_UNSUPPORTED, "two different \"%s\" for one value are not supported", keyword);
}

static bool has_items(const json_t *schema)
{
    return json_object_get(schema, "items") || json_object_get(schema, "prefixItems");
}

int schema_merge(clb_gbnf *g, const json_t *a, const json_t *b, json_t **out, clb_error *err)
{
    const char *keyword;
    json_t *value;
    *out = NULL;
    if (json_is_boolean(a) || json_is_boolean(b)) {
        const json_t *result = json_is_false(a) || json_is_true(b) ? a : b;
        *out = json_incref((json_t *)(uintptr_t)result);
        return COLIBRI_OK;
    }
    if (has_items(a) && has_items(b) && (json_object_get(a, "prefixItems") || json_object_get(b, "prefixItems")) &&
        !(json_equal(json_object_get(a, "prefixItems"), json_object_get(b, "prefixItems")) &&
          json_equal(json_object_get(a, "items"), json_object_get(b, "items"))))
        return schema_fail(g, err, COLIBRI_E_UNSUPPORTED,
                           "two different \"prefixItems\" for one value are not supported");
    json_t *to = json_copy((json_t *)(uintptr_t)a);
    int rc = to ? COLIBRI_OK : CLB_NOMEM(err, "a schema");
    if (!rc && json_object_get(a, "type") && json_object_get(b, "type"))
        rc = merge_types(g, to, a, b, err);
    if (!rc)
        rc = merge_properties(g, to, a, b, err);
    json_object_foreach((json_t *)(uintptr_t)b, keyword, value)
    {
        const json_t *mine = json_object_get(a, keyword);
        if (rc || strcmp(keyword, "properties") == 0 || strcmp(keyword, "additionalProperties") == 0)
            continue;
        if (!mine)
            rc = set(to, keyword, json_incref(value), err);
        else if (strcmp(keyword, "type") != 0)
            rc = merge_keyword(g, to, keyword, mine, value, err);
    }
    if (!rc && json_is_array(json_object_get(to, "type")) && json_array_size(json_object_get(to, "type")) == 0) {
        json_decref(to); /* no type meets both */
        to = json_false();
    }
    if (rc)
        json_decref(to);
    else
        *out = to;
    return rc;
}
