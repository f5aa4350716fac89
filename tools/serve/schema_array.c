/* Arrays: the first items with schemas of their own, then items of one schema. */
#include <stdio.h>
#include <string.h>

#include "serve/schema_impl.h"

struct array {
    clb_gbnf *g;
    const json_t *first; /* prefixItems, or NULL */
    size_t n_first;
    bool more;
    char rest[CLB_GBNF_NAME], space[CLB_GBNF_NAME];
    size_t least, most;
};

/* Draft 7 wrote prefixItems and items as items and additionalItems. */
static int find_parts(struct array *a, const json_t *schema, const json_t **rest, clb_error *err)
{
    a->first = json_object_get(schema, "prefixItems");
    *rest = json_object_get(schema, "items");
    if (json_is_array(*rest)) {
        if (a->first)
            return schema_fail(a->g, err, COLIBRI_E_USAGE, "\"items\" must be a schema");
        a->first = *rest;
        *rest = json_object_get(schema, "additionalItems");
    }
    if (a->first && !json_is_array(a->first))
        return schema_fail(a->g, err, COLIBRI_E_USAGE, "\"prefixItems\" must be an array of schemas");
    a->n_first = json_array_size(a->first);
    /* An array that says nothing of its items may have any; after first items there are more only if it says so. */
    a->more = *rest ? !json_is_false(*rest) : !a->first;
    return COLIBRI_OK;
}

/* Items of the common schema, after others or as the first ones. */
static int add_rest(const struct array *a, bool after, size_t least, size_t most, clb_buf *e, clb_error *err)
{
    const bool endless = most > SCHEMA_MOST_COUNT;
    char count[64];
    if (!a->more || most == 0)
        return clb_buf_printf(e, err, "\"\"");
    if (after) {
        if (endless)
            snprintf(count, sizeof count, "{%zu,}", least);
        else
            snprintf(count, sizeof count, "{%zu,%zu}", least, most);
        return clb_buf_printf(e, err, "(\",\" %s %s)%s", a->space, a->rest, count);
    }
    if (endless)
        snprintf(count, sizeof count, "{%zu,}", least ? least - 1 : 0);
    else
        snprintf(count, sizeof count, "{%zu,%zu}", least ? least - 1 : 0, most - 1);
    return clb_buf_printf(e, err, "(%s (\",\" %s %s)%s %s)%s", a->rest, a->space, a->rest, count, a->space,
                          least ? "" : "?");
}

/* Items from number i on, as a rule: what was before is there. */
static int from_item(const struct array *a, size_t i, char rule[CLB_GBNF_NAME], clb_error *err)
{
    clb_gbnf *g = a->g;
    clb_buf body = {0};
    char item[CLB_GBNF_NAME], next[CLB_GBNF_NAME];
    int rc = COLIBRI_OK;
    if (i == a->n_first) {
        const size_t least = a->least > i ? a->least - i : 0, most = a->most == SIZE_MAX ? SIZE_MAX : a->most - i;
        CLB_GO(add_rest(a, true, least, most, &body, err));
        CLB_GO(clb_buf_printf(&body, err, " %s", a->space));
    } else {
        CLB_GO(from_item(a, i + 1, next, err));
        const size_t back = schema_path_index(g, "prefixItems", i);
        CLB_GO(schema_rule(g, json_array_get(a->first, i), true, item, err));
        schema_path_back(g, back);
        if (i)
            CLB_GO(clb_buf_printf(&body, err, "\",\" %s ", a->space));
        CLB_GO(clb_buf_printf(&body, err, "%s %s", item, next));
        if (i >= a->least)
            CLB_GO(clb_buf_printf(&body, err, " | %s", i ? a->space : "\"\""));
    }
    rc = clb_gbnf_rule(g, body.data, rule, err);
done:
    clb_buf_free(&body);
    return rc;
}

int schema_array(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    struct array a = {.g = g, .most = SIZE_MAX};
    const json_t *rest, *unique = json_object_get(schema, "uniqueItems");
    if (unique && !json_is_false(unique))
        return schema_refuse(g, err, "uniqueItems", NULL);
    CLB_TRY(find_parts(&a, schema, &rest, err));
    CLB_TRY(schema_count(g, schema, "minItems", &a.least, err));
    CLB_TRY(schema_count(g, schema, "maxItems", &a.most, err));
    CLB_TRY(clb_gbnf_space(g, a.space, err));
    if (a.least > SCHEMA_MOST_COUNT || a.n_first > SCHEMA_MOST_DEPTH)
        return schema_fail(g, err, COLIBRI_E_LIMIT,
                           "an array of so many items: at least %d, or %d of their own schemas", SCHEMA_MOST_COUNT,
                           SCHEMA_MOST_DEPTH);
    if (a.most != SIZE_MAX && a.most > SCHEMA_MOST_COUNT)
        a.most = SCHEMA_MOST_COUNT;
    if (a.more) {
        const size_t back = schema_path_add(g, "items");
        CLB_TRY(schema_rule(g, rest ? rest : json_true(), true, a.rest, err));
        schema_path_back(g, back);
    }
    if (a.n_first > a.most)
        a.n_first = a.most;
    if (a.least > a.most || (!a.more && a.least > a.n_first)) {
        char none[CLB_GBNF_NAME];
        CLB_TRY(schema_shared(g, "none", none, err));
        return clb_buf_printf(e, err, "%s", none);
    }
    CLB_TRY(clb_buf_printf(e, err, "\"[\" %s ", a.space));
    if (a.n_first == 0) {
        CLB_TRY(add_rest(&a, false, a.least, a.most, e, err));
    } else {
        char items[CLB_GBNF_NAME];
        CLB_TRY(from_item(&a, 0, items, err));
        CLB_TRY(clb_buf_printf(e, err, "%s", items));
    }
    return clb_buf_printf(e, err, " \"]\"");
}
