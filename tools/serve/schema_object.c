/* Objects: properties in the schema's order, the optional ones there or not, then further ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

#define MOST_PLACES 20000 /* rules of one object */

struct member {
    const char *key;
    bool required;
    char rule[CLB_GBNF_NAME]; /* "key": value */
};

struct object {
    clb_gbnf *g;
    struct member *members;
    size_t n;
    bool more;                /* further properties */
    char rest[CLB_GBNF_NAME]; /* one of them */
    size_t least, most;       /* properties; most SIZE_MAX: any number */
    char space[CLB_GBNF_NAME];
};

/* ---- further properties: their names are none of the known ones ---- */

/* Names in order, one JSON character (an escape is one) after the other. */
struct names {
    clb_gbnf *g;
    char **texts; /* as JSON writes them, without quotes */
    size_t n;
    char character[CLB_GBNF_NAME];
};

static size_t character_length(const char *p)
{
    const unsigned char c = (unsigned char)*p;
    if (c == '\\')
        return p[1] == 'u' ? 6 : 2;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* What may follow `prefix` bytes that texts[from..to) have in common, so that none of them comes out. A name parts from
 * the known ones with a plain character, never with an escape: an escape could spell a known name in another way. */
static int other_name(struct names *s, size_t from, size_t to, size_t prefix, int depth, clb_buf *e, clb_error *err)
{
    clb_buf not_these = {0};
    int rc = COLIBRI_OK;
    size_t i = from;
    if (depth > SCHEMA_MOST_DEPTH)
        return schema_fail(s->g, err, COLIBRI_E_LIMIT,
                           "names of properties that have more than %d characters in common", SCHEMA_MOST_DEPTH);
    const bool is_known = !s->texts[from][prefix];
    CLB_GO(clb_buf_printf(e, err, "("));
    while (i < to && !s->texts[i][prefix]) /* the same name once, sorted first */
        i++;
    while (i < to) {
        const char *p = s->texts[i] + prefix;
        const size_t len = character_length(p);
        size_t end = i + 1;
        while (end < to && strncmp(s->texts[end] + prefix, p, len) == 0)
            end++;
        CLB_GO(clb_gbnf_literal(e, p, len, err));
        CLB_GO(clb_buf_printf(e, err, " "));
        CLB_GO(other_name(s, i, end, prefix + len, depth + 1, e, err));
        CLB_GO(clb_buf_printf(e, err, " | "));
        if (*p == '\\') /* escapes do not part anyway */
            rc = COLIBRI_OK;
        else if (*p == ']' || *p == '^' || *p == '-')
            CLB_GO(clb_buf_printf(&not_these, err, "\\%c", *p));
        else
            CLB_GO(clb_buf_append(&not_these, p, len, err));
        i = end;
    }
    CLB_GO(clb_buf_printf(e, err, "[^\"\\\\\\x00-\\x1F%s] %s*)", not_these.data ? not_these.data : "", s->character));
    if (!is_known)
        CLB_GO(clb_buf_printf(e, err, "?"));
done:
    clb_buf_free(&not_these);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "name" in quotes: any but those of properties. */
static int other_names(clb_gbnf *g, const json_t *properties, clb_buf *e, clb_error *err)
{
    struct names s = {.g = g, .texts = calloc(json_object_size(properties) + 1, sizeof *s.texts)};
    const char *key;
    json_t *ignored;
    int rc = s.texts ? COLIBRI_OK : CLB_NOMEM(err, "a schema");
    if (rc)
        return rc;
    json_object_foreach((json_t *)(uintptr_t)properties, key, ignored)
    {
        json_t *name = json_string(key);
        char *text = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
        json_decref(name);
        if (!text) {
            rc = CLB_NOMEM(err, "a schema");
            goto done;
        }
        const size_t len = strlen(text);
        memmove(text, text + 1, len - 2);
        text[len - 2] = 0;
        s.texts[s.n++] = text;
    }
    if (s.n == 0) {
        char string[CLB_GBNF_NAME];
        CLB_GO(schema_shared(g, "string", string, err));
        CLB_GO(clb_buf_printf(e, err, "%s", string));
        goto done;
    }
    CLB_GO(schema_shared(g, "char", s.character, err));
    qsort(s.texts, s.n, sizeof *s.texts, by_text);
    CLB_GO(clb_buf_printf(e, err, "\"\\\"\" "));
    CLB_GO(other_name(&s, 0, s.n, 0, 0, e, err));
    CLB_GO(clb_buf_printf(e, err, " \"\\\"\""));
done:
    for (size_t i = 0; i < s.n; i++)
        free(s.texts[i]);
    free(s.texts);
    return rc;
}

/* ---- members ---- */

static int add_member(struct object *o, const char *key, const json_t *schema, bool required, clb_error *err)
{
    clb_gbnf *g = o->g;
    char value[CLB_GBNF_NAME];
    clb_buf body = {0};
    struct member *m = &o->members[o->n++];
    m->key = key;
    m->required = required;
    const size_t back = schema_path_add(g, "properties");
    schema_path_add(g, key);
    int rc = schema_rule(g, schema, true, value, err);
    if (!rc)
        rc = schema_key(&body, key, err);
    if (!rc)
        rc = clb_buf_printf(&body, err, " \":\" %s %s", o->space, value);
    if (!rc)
        rc = clb_gbnf_rule(g, body.data, m->rule, err);
    if (!rc)
        schema_path_back(g, back);
    clb_buf_free(&body);
    return rc;
}

static bool listed(const json_t *required, const char *key)
{
    for (size_t i = 0; i < json_array_size(required); i++)
        if (strcmp(json_string_value(json_array_get(required, i)), key) == 0)
            return true;
    return false;
}

static int add_members(struct object *o, const json_t *schema, clb_error *err)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const json_t *rest = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *property;
    if (properties && !json_is_object(properties))
        return schema_fail(o->g, err, COLIBRI_E_USAGE, "\"properties\" must be an object");
    if (required && !json_is_array(required))
        return schema_fail(o->g, err, COLIBRI_E_USAGE, "\"required\" must be an array");
    if (json_object_size(properties) > SCHEMA_MOST_NAMES || json_array_size(required) > SCHEMA_MOST_NAMES)
        return schema_fail(o->g, err, COLIBRI_E_LIMIT, "more than %d properties", SCHEMA_MOST_NAMES);
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_is_string(json_array_get(required, i)))
            return schema_fail(o->g, err, COLIBRI_E_USAGE, "\"required\" must list names");
    o->members = calloc(json_object_size(properties) + json_array_size(required) + 1, sizeof *o->members);
    if (!o->members)
        return CLB_NOMEM(err, "a schema");
    CLB_TRY(schema_spend(o->g, (json_object_size(properties) + (uint64_t)1) * json_array_size(required), err));
    json_object_foreach((json_t *)(uintptr_t)properties, key, property)
    {
        CLB_TRY(add_member(o, key, property, listed(required, key), err));
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        bool there = false;
        for (size_t k = 0; k < o->n && !there; k++)
            there = strcmp(o->members[k].key, name) == 0;
        if (!there)
            CLB_TRY(add_member(o, name, rest ? rest : json_true(), true, err));
    }
    return COLIBRI_OK;
}

static int add_rest(struct object *o, const json_t *schema, clb_error *err)
{
    const json_t *rest = json_object_get(schema, "additionalProperties");
    json_t *known = json_object();
    char value[CLB_GBNF_NAME];
    clb_buf body = {0};
    int rc = COLIBRI_OK;
    /* An object that says nothing of its properties may have any. */
    o->more = rest ? !json_is_false(rest) : o->n == 0 && !json_object_get(schema, "properties");
    for (size_t i = 0; known && i < o->n; i++)
        json_object_set_new(known, o->members[i].key, json_true());
    if (!known)
        CLB_GO(CLB_NOMEM(err, "a schema"));
    if (!o->more)
        goto done;
    const size_t back = schema_path_add(o->g, "additionalProperties");
    CLB_GO(schema_rule(o->g, rest ? rest : json_true(), true, value, err));
    schema_path_back(o->g, back);
    CLB_GO(other_names(o->g, known, &body, err));
    CLB_GO(clb_buf_printf(&body, err, " \":\" %s %s", o->space, value));
    CLB_GO(clb_gbnf_rule(o->g, body.data, o->rest, err));
done:
    json_decref(known);
    clb_buf_free(&body);
    return rc;
}

/* ---- the order: from the last member back, a rule for what may come from a member on ---- */

/* Rules by (first, how many are still needed, how many still fit), of one member and of the next one. */
struct places {
    size_t need, room; /* room: most + 1 of them, or 1 if any number fits */
    char (*now)[CLB_GBNF_NAME], (*next)[CLB_GBNF_NAME];
};

static size_t place(const struct places *p, bool first, size_t need, size_t room)
{
    return ((first ? 0u : 1u) * (p->need + 1) + need) * p->room + room;
}

/* After the last known member. */
static int last_body(struct object *o, bool first, size_t need, size_t room, bool bounded, clb_buf *e, clb_error *err)
{
    char none[CLB_GBNF_NAME];
    /* Names of further ones may repeat: they count once where some are needed. */
    if (need > (o->more && (room || !bounded) ? 1u : 0u)) {
        CLB_TRY(schema_shared(o->g, "none", none, err));
        return clb_buf_printf(e, err, "%s", none);
    }
    const char *after = first ? "" : o->space;
    if (!o->more || (bounded && room == 0))
        return clb_buf_printf(e, err, "%s", *after ? after : "\"\"");
    char again[32] = "*";
    if (bounded)
        snprintf(again, sizeof again, "{0,%zu}", room - 1);
    if (first)
        return clb_buf_printf(e, err, "(%s (\",\" %s %s)%s %s)%s", o->rest, o->space, o->rest, again, o->space,
                              need ? "" : "?");
    return clb_buf_printf(e, err, "(\",\" %s %s (\",\" %s %s)%s)%s %s", o->space, o->rest, o->space, o->rest, again,
                          need ? "" : "?", o->space);
}

static int member_body(struct object *o, const struct places *p, const struct member *m, bool first, size_t need,
                       size_t room, bool bounded, clb_buf *e, clb_error *err)
{
    char none[CLB_GBNF_NAME];
    const bool fits = !bounded || room > 0;
    if (fits) {
        CLB_TRY(first ? COLIBRI_OK : clb_buf_printf(e, err, "\",\" %s ", o->space));
        CLB_TRY(clb_buf_printf(e, err, "%s %s", m->rule,
                               p->next[place(p, false, need ? need - 1 : 0, bounded ? room - 1 : 0)]));
    }
    if (!m->required)
        return clb_buf_printf(e, err, "%s%s", fits ? " | " : "", p->next[place(p, first, need, room)]);
    if (fits)
        return COLIBRI_OK;
    CLB_TRY(schema_shared(o->g, "none", none, err));
    return clb_buf_printf(e, err, "%s", none);
}

/* The rule of what follows "{". */
static int order(struct object *o, char rule[CLB_GBNF_NAME], clb_error *err)
{
    const bool bounded = o->most < o->n || (o->more && o->most <= SCHEMA_MOST_COUNT);
    const size_t least = o->least;
    struct places p = {.need = least, .room = bounded ? o->most + 1 : 1};
    const size_t n = 2 * (p.need + 1) * p.room;
    clb_buf e = {0};
    int rc = COLIBRI_OK;
    if (least > o->n + 1 || (bounded && o->most > SCHEMA_MOST_COUNT) || n * (o->n + 1) > MOST_PLACES)
        return least > o->n + 1 ? schema_refuse(o->g, err, "minProperties", "more than the named properties and one")
                                : schema_fail(o->g, err, COLIBRI_E_LIMIT, "too many combinations of properties");
    p.now = calloc(n, sizeof *p.now);
    p.next = calloc(n, sizeof *p.next);
    if (!p.now || !p.next)
        CLB_GO(CLB_NOMEM(err, "a schema"));
    for (size_t i = o->n + 1; i-- > 0;) {
        for (int first = 0; first < 2; first++)
            for (size_t need = 0; need <= p.need; need++)
                for (size_t room = 0; room < p.room; room++) {
                    e.n = 0;
                    CLB_GO(i == o->n ? last_body(o, first, need, room, bounded, &e, err)
                                     : member_body(o, &p, &o->members[i], first, need, room, bounded, &e, err));
                    CLB_GO(clb_gbnf_rule(o->g, e.data, p.now[place(&p, first, need, room)], err));
                }
        char(*swap)[CLB_GBNF_NAME] = p.now;
        p.now = p.next;
        p.next = swap;
    }
    memcpy(rule, p.next[place(&p, true, least, bounded ? o->most : 0)], CLB_GBNF_NAME);
done:
    free(p.now);
    free(p.next);
    clb_buf_free(&e);
    return rc;
}

int schema_object(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    struct object o = {.g = g, .most = SIZE_MAX};
    char rule[CLB_GBNF_NAME];
    const json_t *rest = json_object_get(schema, "additionalProperties");
    int rc = COLIBRI_OK;
    if (rest && !json_is_object(rest) && !json_is_boolean(rest))
        return schema_fail(g, err, COLIBRI_E_USAGE, "\"additionalProperties\" must be a schema");
    CLB_GO(schema_count(g, schema, "minProperties", &o.least, err));
    CLB_GO(schema_count(g, schema, "maxProperties", &o.most, err));
    CLB_GO(clb_gbnf_space(g, o.space, err));
    CLB_GO(add_members(&o, schema, err));
    CLB_GO(add_rest(&o, schema, err));
    if (o.least > o.most) {
        CLB_GO(schema_shared(g, "none", rule, err));
    } else {
        CLB_GO(order(&o, rule, err));
    }
    rc = clb_buf_printf(e, err, "\"{\" %s %s \"}\"", o.space, rule);
done:
    free(o.members);
    return rc;
}
