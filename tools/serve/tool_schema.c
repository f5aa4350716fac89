/* What a parameter's schema says about its type, where values are written as text and the type decides what they are.
 */
#include <string.h>

#include "serve/tool_impl.h"

#define DEPTH 16

static const char *const names[] = {"string", "number", "integer", "boolean", "null", "array", "object"};
static const unsigned bits[] = {CLB_TYPE_STRING, CLB_TYPE_NUMBER, CLB_TYPE_INTEGER, CLB_TYPE_BOOLEAN,
                                CLB_TYPE_NULL,   CLB_TYPE_ARRAY,  CLB_TYPE_OBJECT};

unsigned clb_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return CLB_TYPE_STRING;
    case JSON_INTEGER:
        return CLB_TYPE_INTEGER;
    case JSON_REAL:
        return CLB_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return CLB_TYPE_BOOLEAN;
    case JSON_NULL:
        return CLB_TYPE_NULL;
    case JSON_ARRAY:
        return CLB_TYPE_ARRAY;
    default:
        return CLB_TYPE_OBJECT;
    }
}

static unsigned named(const json_t *name)
{
    const char *const s = json_string_value(name);
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (strcmp(s, names[i]) == 0)
            return bits[i] | (bits[i] == CLB_TYPE_NUMBER ? CLB_TYPE_INTEGER : 0);
    return 0;
}

const json_t *clb_schema_target(const json_t *root, const json_t *schema)
{
    static const char *const folders[] = {"$defs", "definitions"};
    for (int hops = 0; hops < DEPTH; hops++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const json_t *next = NULL;
        if (!ref)
            return schema;
        for (size_t i = 0; i < 2; i++) {
            const size_t n = strlen(folders[i]);
            if (strncmp(ref, "#/", 2) == 0 && strncmp(ref + 2, folders[i], n) == 0 && ref[2 + n] == '/' &&
                !strpbrk(ref + 3 + n, "/~%"))
                next = json_object_get(json_object_get(root, folders[i]), ref + 3 + n);
        }
        if (!next)
            return schema;
        schema = next;
    }
    return schema;
}

static unsigned types(const json_t *root, const json_t *schema, int depth)
{
    static const char *const choices[] = {"anyOf", "oneOf", "enum"};
    const json_t *const s = clb_schema_target(root, schema), *type = json_object_get(s, "type"), *item;
    unsigned all = CLB_TYPE_ANY;
    size_t i;
    if (depth == 0 || !json_is_object(s) || json_object_get(s, "$ref"))
        return all;
    if (json_is_string(type) || json_array_size(type)) {
        all = named(type);
        json_array_foreach(type, i, item) all |= named(item);
    }
    if (json_object_get(s, "const"))
        all &= clb_type_of(json_object_get(s, "const"));
    for (size_t k = 0; k < 3; k++) {
        unsigned some = 0;
        const json_t *const list = json_object_get(s, choices[k]);
        json_array_foreach(list, i, item) some |= k == 2 ? clb_type_of(item) : types(root, item, depth - 1);
        if (json_array_size(list))
            all &= some;
    }
    json_array_foreach(json_object_get(s, "allOf"), i, item) all &= types(root, item, depth - 1);
    return all ? all : CLB_TYPE_ANY; /* one that contradicts itself, or is none, says nothing */
}

unsigned clb_schema_types(const json_t *root, const json_t *schema)
{
    return types(root, schema, DEPTH);
}
