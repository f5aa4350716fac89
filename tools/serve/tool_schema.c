/* What a parameter's schema says about its type, where values are written as text and the type decides what they are.
 */
#include <string.h>

#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

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

/* What one question may cost: alternatives that lead to each other have more ways than anybody can go. */
#define LOOKS_MOST 100000u
#define LOOK_COST  50u /* of a schema; a constant of a list costs 1 */

typedef struct looks {
    const json_t *root;
    unsigned left;
} looks;

static bool spend(looks *l, unsigned n)
{
    l->left = l->left > n ? l->left - n : 0;
    return l->left != 0;
}

static unsigned types(looks *l, const json_t *schema, int depth);

/* Types that any of the branches, or of the constants, has. */
static unsigned union_of(looks *l, const json_t *list, bool constants, int depth)
{
    const json_t *item;
    unsigned all = 0;
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (all == CLB_TYPE_ANY || !spend(l, 1))
            return CLB_TYPE_ANY;
        all |= constants ? clb_type_of(item) : types(l, item, depth - 1);
    }
    return all;
}

static unsigned types(looks *l, const json_t *schema, int depth)
{
    static const char *const choices[] = {"anyOf", "oneOf", "enum"};
    const json_t *const s = clb_schema_target(l->root, schema), *const type = json_object_get(s, "type"), *item;
    unsigned all = CLB_TYPE_ANY;
    size_t i;
    if (!spend(l, LOOK_COST) || depth == 0 || !json_is_object(s) || json_object_get(s, "$ref"))
        return all;
    if (json_is_string(type) || json_array_size(type)) {
        all = named(type);
        json_array_foreach(type, i, item) all |= spend(l, 1) ? named(item) : CLB_TYPE_ANY;
    }
    if (json_object_get(s, "const"))
        all &= clb_type_of(json_object_get(s, "const"));
    for (size_t k = 0; k < 3; k++) {
        const json_t *const list = json_object_get(s, choices[k]);
        if (json_array_size(list))
            all &= union_of(l, list, k == 2, depth);
    }
    json_array_foreach(json_object_get(s, "allOf"), i, item)
    {
        if (!spend(l, 1))
            break;
        all &= types(l, item, depth - 1);
    }
    return all ? all : CLB_TYPE_ANY; /* one that contradicts itself, or is none, says nothing */
}

unsigned clb_schema_types_cost(const json_t *root, const json_t *schema, uint64_t *cost)
{
    looks l = {root, LOOKS_MOST};
    const unsigned all = types(&l, schema, DEPTH);
    *cost += LOOKS_MOST - l.left;
    return l.left ? all : CLB_TYPE_ANY;
}

unsigned clb_schema_types(const json_t *root, const json_t *schema)
{
    uint64_t cost = 0;
    return clb_schema_types_cost(root, schema, &cost);
}
