/* Parameters that are written one by one, as rules of a grammar. */
#include <stdio.h>
#include <string.h>

#include "serve/schema_impl.h"
#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

#define ANY_NAME "[a-zA-Z_] [a-zA-Z0-9_]{0,63}"

/* The name of a parameter as the parser reads it back. */
static bool good_name(const clb_tool_format *f, const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n > 100)
        return false;
    if (f->shape != CLB_SHAPE_XML)
        return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
    return !strpbrk(name, "<>\"\n\t") && name[0] != ' ' && name[n - 1] != ' ';
}

/* ---- one parameter ---- */

/* "<parameter=a>\n" value "\n</parameter>\n"; name NULL: any one. */
static int xml_value(clb_call_rules *m, const char *name, const char *value, bool text)
{
    const clb_tool_format *f = m->f;
    clb_buf head = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_printf(&head, m->err, "%s%s", f->param_open, name ? name : ""));
    if (!name) {
        CLB_GO(clb_rules_literal(m, head.data));
        CLB_GO(clb_buf_printf(&m->body, m->err, " " ANY_NAME));
        head.n = 0;
    }
    if (f->key_end)
        CLB_GO(clb_buf_printf(&head, m->err, "%s\n<arg_value>", f->key_end));
    else if (strstr(f->param_open, "DSML"))
        CLB_GO(clb_buf_printf(&head, m->err, "\" string=\"%s\">", text ? "true" : "false"));
    else
        CLB_GO(clb_buf_printf(&head, m->err, "%s>%s", f->param_open[strlen(f->param_open) - 1] == '"' ? "\"" : "",
                              f->lines ? "\n" : ""));
    CLB_GO(clb_rules_literal(m, head.data));
    CLB_GO(clb_buf_printf(&m->body, m->err, " (%s)", value));
    head.n = 0;
    CLB_GO(clb_buf_printf(&head, m->err, "%s%s\n", f->lines ? "\n" : "", f->value_end));
    CLB_GO(clb_rules_literal(m, head.data));
done:
    clb_buf_free(&head);
    return rc;
}

/* Values that are text or JSON; either may be empty. */
static int xml_values(clb_call_rules *m, const char *name, clb_buf *text, clb_buf *json, char rule[CLB_GBNF_NAME])
{
    m->body.n = 0;
    if (text->n && json->n && !strstr(m->f->param_open, "DSML")) {
        CLB_TRY(clb_buf_printf(text, m->err, " | %s", json->data));
        json->n = 0;
    }
    if (text->n)
        CLB_TRY(xml_value(m, name, text->data, true));
    if (text->n && json->n)
        CLB_TRY(clb_buf_printf(&m->body, m->err, " |"));
    if (json->n)
        CLB_TRY(xml_value(m, name, json->data, false));
    return clb_rules_close(m, rule);
}

static int xml_parameter(clb_call_rules *m, clb_parameter *p, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    clb_buf text = {0}, json = {0};
    int rc = clb_value_rules(m, p, schema, &text, &json);
    if (!rc)
        rc = xml_values(m, p->name, &text, &json, rule);
    clb_buf_free(&text);
    clb_buf_free(&json);
    return rc;
}

/* "a=1", with or without a comma in front. */
static int python_parameter(clb_call_rules *m, clb_parameter *p, const json_t *schema, bool comma,
                            char rule[CLB_GBNF_NAME])
{
    char value[CLB_GBNF_NAME];
    clb_buf key = {0};
    int rc = clb_gbnf_part(m->g, schema, value, m->err);
    if (rc && rc != COLIBRI_E_NOMEM && !p->strict && !clb_rules_spent(m))
        rc = clb_gbnf_part(m->g, json_true(), value, m->err);
    m->body.n = 0;
    CLB_GO(rc);
    CLB_GO(clb_buf_printf(&key, m->err, "%s%s=", comma ? ", " : "", p->name));
    CLB_GO(clb_rules_literal(m, key.data));
    CLB_GO(clb_rules_refer(m, value));
    rc = clb_rules_close(m, rule);
done:
    clb_buf_free(&key);
    return rc;
}

/* ---- all of them ---- */

static int refuse(clb_call_rules *m, const char *what, const char *why)
{
    return clb_fail(m->err, COLIBRI_E_UNSUPPORTED,
                    "#: \"%s\"%s is not supported for parameters that the model writes as text (%s)", what, why,
                    m->f->name);
}

/* What the schema of all parameters may be only a reference to, for strict functions: nothing else is said on the way.
 */
static int check_references(clb_call_rules *m, const json_t *root, const json_t *target)
{
    const json_t *s = root;
    const char *key;
    json_t *ignored;
    for (int hops = 0; s != target; hops++) {
        const json_t *const ref = json_object_get(s, "$ref");
        json_object_foreach((json_t *)(uintptr_t)s, key, ignored)
        {
            if (schema_asserts(key) && strcmp(key, "$ref") != 0)
                return refuse(m, key, " beside \"$ref\"");
        }
        if (!json_is_string(ref) || hops == 16)
            return refuse(m, "$ref", "");
        CLB_TRY(schema_resolve(m->g, json_string_value(ref), &s, m->err));
    }
    return COLIBRI_OK;
}

/* For strict functions: nothing is said about all parameters together but what the rule follows. */
static int check_object(clb_call_rules *m, const json_t *object)
{
    static const char *const followed[] = {"type", "properties", "required"}, *const more[] = {"additionalProperties",
                                                                                               "unevaluatedProperties"};
    const json_t *const properties = json_object_get(object, "properties"),
                        *const required = json_object_get(object, "required"), *value;
    const char *key;
    unsigned types;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool known = !schema_asserts(key);
        for (i = 0; i < sizeof followed / sizeof *followed; i++)
            known = known || strcmp(key, followed[i]) == 0;
        for (i = 0; i < sizeof more / sizeof *more; i++)
            known = known || (strcmp(key, more[i]) == 0 && json_is_boolean(value));
        if (!known)
            return refuse(m, key, json_object_get(object, "additionalProperties") == value ? " with a schema" : "");
    }
    if (json_is_false(object))
        return refuse(m, "false", "");
    CLB_TRY(schema_types(m->g, object, &types, m->err));
    if (!(types & TYPE_OBJECT))
        return refuse(m, "type", " without \"object\"");
    if (properties && !json_is_object(properties))
        return refuse(m, "properties", " that is no object");
    if (required && !json_is_array(required))
        return refuse(m, "required", " that is no list");
    json_array_foreach(required, i, value)
    {
        if (!json_is_string(value))
            return refuse(m, "required", " with other things than names");
        if (!json_object_get(properties, json_string_value(value))) {
            char why[120];
            snprintf(why, sizeof why, " of \"%.60s\", which is no property,", json_string_value(value));
            return refuse(m, "required", why);
        }
    }
    return COLIBRI_OK;
}

/* The names of a list as keys; a new reference. */
static int set_of(clb_call_rules *m, const json_t *list, json_t **set)
{
    const json_t *name;
    size_t i;
    *set = json_object();
    if (!*set)
        return CLB_NOMEM(m->err, "a grammar");
    if (json_array_size(list) > SCHEMA_MOST_NAMES)
        return clb_fail(m->err, COLIBRI_E_LIMIT, "#: more than %d names in \"required\"", SCHEMA_MOST_NAMES);
    json_array_foreach(list, i, name)
    {
        if (json_is_string(name) && json_object_set_new(*set, json_string_value(name), json_true()))
            return CLB_NOMEM(m->err, "a grammar");
    }
    return COLIBRI_OK;
}

/* In the schema's order, appended to all; those that are not required may be left out. */
static int put_properties(clb_call_rules *m, const json_t *root, const json_t *object, bool strict, clb_buf *all)
{
    const json_t *const properties = json_object_get(object, "properties");
    const bool xml = m->f->shape == CLB_SHAPE_XML;
    const char *name;
    json_t *schema, *required = NULL;
    bool certain = false; /* a parameter is there for sure: the next one begins with a comma */
    int rc = set_of(m, json_object_get(object, "required"), &required);
    if (!rc && json_object_size(properties) > SCHEMA_MOST_NAMES)
        rc = clb_fail(m->err, COLIBRI_E_LIMIT, "#: more than %d properties", SCHEMA_MOST_NAMES);
    CLB_GO(rc);
    json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
    {
        char one[CLB_GBNF_NAME];
        clb_parameter p = {.root = root, .name = name, .strict = strict};
        const bool must = json_object_get(required, name);
        if (!xml && !must) /* Python: only what must be said, so that commas are simple */
            continue;
        if (!good_name(m->f, name)) { /* it could not be read back */
            if (strict && must)
                CLB_GO(clb_parameter_refuse(m, &p, "this name"));
            continue;
        }
        schema_path_back(m->g, 0);
        schema_path_add(m->g, "properties");
        schema_path_add(m->g, name);
        CLB_GO(xml ? xml_parameter(m, &p, schema, one) : python_parameter(m, &p, schema, certain, one));
        certain = true;
        CLB_GO(clb_buf_printf(all, m->err, " %s%s", one, must ? "" : "?"));
    }
done:
    json_decref(required);
    return rc;
}

/* Any parameters, appended to all: where a schema says nothing about them, or nothing that can be followed. */
static int put_any(clb_call_rules *m, clb_buf *all)
{
    char rule[CLB_GBNF_NAME], value[CLB_GBNF_NAME];
    clb_buf text = {0}, json = {0};
    int rc = schema_shared(m->g, "value", value, m->err);
    if (!rc && m->f->shape != CLB_SHAPE_XML)
        return clb_buf_printf(all, m->err, " (" ANY_NAME " \"=\" %s (\", \" " ANY_NAME " \"=\" %s)*)?", value, value);
    CLB_GO(rc);
    CLB_GO(clb_buf_printf(&json, m->err, "%s", value));
    CLB_GO(clb_value_text(m, value));
    CLB_GO(clb_buf_printf(&text, m->err, "%s", value));
    if (!strstr(m->f->param_open, "DSML")) /* any text is read as what it looks like */
        json.n = 0;
    CLB_GO(xml_values(m, NULL, &text, &json, rule));
    rc = clb_buf_printf(all, m->err, " %s*", rule);
done:
    clb_buf_free(&text);
    clb_buf_free(&json);
    return rc;
}

/* All parameters, as far as the schema can be followed. */
static int put_followed(clb_call_rules *m, const json_t *root, bool strict, clb_buf *all)
{
    if (clb_rules_spent(m))
        return clb_fail(m->err, COLIBRI_E_LIMIT, "the schemas of the functions' parameters take too much work");
    CLB_TRY(clb_gbnf_begin(m->g, root, m->err));
    const json_t *const object = clb_schema_target(root, root);
    if (strict)
        CLB_TRY(check_references(m, root, object));
    if (strict)
        CLB_TRY(check_object(m, object));
    if (!json_is_object(json_object_get(object, "properties")) &&
        !json_is_false(json_object_get(object, "additionalProperties")))
        return put_any(m, all);
    return put_properties(m, root, object, strict, all);
}

int clb_parameters_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME])
{
    const json_t *const root = json_object_get(function, "parameters");
    const bool strict = json_is_true(json_object_get(function, "strict"));
    clb_buf all = {0};
    int rc = COLIBRI_OK;
    if (json_is_object(root)) { /* without, there are none */
        rc = put_followed(m, root, strict, &all);
        if (rc && rc != COLIBRI_E_NOMEM && !strict) {
            all.n = 0;
            rc = put_any(m, &all);
        }
    }
    m->body.n = 0;
    CLB_GO(rc);
    if (m->f->shape == CLB_SHAPE_XML)
        CLB_GO(clb_put_literal(m, &all, m->f->call_close));
    rc = clb_gbnf_rule(m->g, all.n ? all.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&all);
    return rc;
}
