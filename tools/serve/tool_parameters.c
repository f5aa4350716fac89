/* Parameters that are written one by one, as rules of a grammar. */
#include "serve/tool_rules.h"

#include <stdio.h>
#include <string.h>

#include "serve/schema_impl.h"
#include "serve/tool_impl.h"

#define DEPTH       16
#define LENGTH_MOST 20000

/* A parameter while its rule is made. */
typedef struct parameter {
    const json_t *root; /* the schema of all parameters */
    const char *name;
    bool strict;
    bool free_text; /* any text may be its value */
} parameter;

/* Not to be followed: an error for strict functions; for others, the value is free. */
static int refuse(clb_call_rules *m, const parameter *p, const char *what)
{
    return clb_fail(m->err, COLIBRI_E_UNSUPPORTED,
                    "#/properties/%s: %s is not supported for parameters that the model writes as text (%s)", p->name,
                    what, m->f->name);
}

/* ---- text ---- */

/* Any text that the parser does not take for the end of the value (tool_xml.c), the same one for all. */
static int text_rule(clb_call_rules *m, char rule[CLB_GBNF_NAME])
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

/* A text of a list, unless the parser would end it early. */
static int one_word(clb_call_rules *m, const json_t *word, clb_buf *out)
{
    const clb_tool_format *f = m->f;
    const char *const s = json_string_value(word);
    const size_t n = json_string_length(word);
    if (strlen(s) != n || strstr(s, f->value_end) || strstr(s, f->call_close) || strstr(s, f->param_open))
        return COLIBRI_OK;
    CLB_TRY(alternative(m, out, ""));
    return clb_gbnf_literal(out, s, n, m->err);
}

/* Any text, as far as lengths and formats leave it. */
static int free_words(clb_call_rules *m, parameter *p, const json_t *schema, clb_buf *out)
{
    static const char *const unknown[] = {"pattern", "allOf", "not"};
    const json_t *const format = json_object_get(schema, "format"), *const least = json_object_get(schema, "minLength"),
                        *const most = json_object_get(schema, "maxLength");
    const char *const grammar = json_is_string(format) ? schema_format(json_string_value(format)) : NULL;
    const json_int_t min = json_is_integer(least) ? json_integer_value(least) : 0,
                     max = json_is_integer(most) ? json_integer_value(most) : -1;
    char rule[CLB_GBNF_NAME];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown && p->strict; i++)
        if (json_object_get(schema, unknown[i]))
            return refuse(m, p, unknown[i]);
    if (grammar)
        return clb_buf_printf(out, m->err, "%s(%s)", out->n ? " | " : "", grammar);
    if (json_is_string(format) && p->strict && !schema_says_nothing(json_string_value(format)))
        return refuse(m, p, "format");
    if (min < 0 || min > LENGTH_MOST || (max >= 0 && max < min))
        return refuse(m, p, "minLength");
    if (max >= 0) /* text that is counted has no begin of a mark */
        return clb_buf_printf(out, m->err, "%s[^<]{%d,%d}", out->n ? " | " : "", (int)min,
                              (int)(max < LENGTH_MOST ? max : LENGTH_MOST));
    CLB_TRY(text_rule(m, rule));
    p->free_text = true;
    if (min)
        return clb_buf_printf(out, m->err, "%s[^<\\n]{%d} %s", out->n ? " | " : "", (int)min, rule);
    return alternative(m, out, rule);
}

/* Texts that the schema takes as strings, as alternatives. */
static int words(clb_call_rules *m, parameter *p, const json_t *schema, int depth, clb_buf *out)
{
    static const char *const choices[] = {"anyOf", "oneOf"};
    const json_t *const s = clb_schema_target(p->root, schema), *const list = json_object_get(s, "enum"),
                        *const only = json_object_get(s, "const"), *item;
    size_t i;
    if (depth > DEPTH || (json_object_get(s, "$ref") && p->strict))
        return refuse(m, p, "$ref");
    if (!(clb_schema_types(p->root, s) & CLB_TYPE_STRING))
        return COLIBRI_OK;
    if (json_is_string(only))
        return one_word(m, only, out);
    if (json_is_array(list)) {
        json_array_foreach(list, i, item) if (json_is_string(item)) CLB_TRY(one_word(m, item, out));
        return COLIBRI_OK;
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *const branches = json_object_get(s, choices[k]);
        if (!json_is_array(branches))
            continue;
        json_array_foreach(branches, i, item) CLB_TRY(words(m, p, item, depth + 1, out));
        return COLIBRI_OK;
    }
    return free_words(m, p, s, out);
}

/* ---- JSON ---- */

/* The schema without strings, NULL if nothing is left; a new reference. */
static json_t *without_strings(const parameter *p, const json_t *schema, int depth)
{
    static const char *const lists[] = {"enum", "anyOf", "oneOf", "type"};
    const json_t *const s = clb_schema_target(p->root, schema), *item;
    size_t i;
    if (depth > DEPTH || clb_schema_types(p->root, s) == CLB_TYPE_STRING)
        return NULL;
    json_t *const copy = json_copy((json_t *)s);
    for (size_t k = 0; copy && k < 4; k++) {
        const json_t *const list = json_object_get(s, lists[k]);
        json_t *const rest = json_is_array(list) ? json_array() : NULL;
        json_array_foreach(rest ? list : NULL, i, item)
        {
            if (k == 1 || k == 2) {
                json_t *const branch = without_strings(p, item, depth + 1);
                if (branch)
                    json_array_append_new(rest, branch);
            } else if (k == 0 ? !json_is_string(item)
                              : !json_is_string(item) || strcmp(json_string_value(item), "string") != 0) {
                json_array_append(rest, (json_t *)item);
            }
        }
        if (rest)
            json_object_set_new(copy, lists[k], rest);
    }
    return copy;
}

/* Each "$ref" leads to what is taken along. */
static bool refs_known(const json_t *v)
{
    const char *const ref = json_string_value(json_object_get(v, "$ref"));
    const char *key;
    const json_t *item;
    size_t i;
    if (ref && strncmp(ref, "#/$defs/", 8) != 0 && strncmp(ref, "#/definitions/", 14) != 0)
        return false;
    json_object_foreach((json_t *)v, key, item) if (!refs_known(item)) return false;
    json_array_foreach(v, i, item) if (!refs_known(item)) return false;
    return true;
}

/* Values of the schema as JSON. It is a part of another one, whose definitions it may need. */
static int json_rule(clb_call_rules *m, const parameter *p, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    static const char *const folders[] = {"$defs", "definitions"};
    if (!json_is_object(schema))
        return clb_gbnf_schema(m->g, schema, rule, m->err);
    json_t *const whole = json_copy((json_t *)schema);
    if (!whole)
        return CLB_NOMEM(m->err, "a grammar");
    for (size_t i = 0; i < 2; i++) {
        json_t *const defs = json_object_get(p->root, folders[i]);
        if (defs)
            json_object_set(whole, folders[i], defs);
    }
    const int rc = refs_known(whole) ? clb_gbnf_schema(m->g, whole, rule, m->err) : refuse(m, p, "this $ref");
    json_decref(whole);
    return rc;
}

static bool constrains(const json_t *v)
{
    static const char *const keywords[] = {"minimum",    "maximum",  "exclusiveMinimum",     "exclusiveMaximum",
                                           "multipleOf", "items",    "prefixItems",          "minItems",
                                           "maxItems",   "required", "additionalProperties", "properties"};
    const char *key;
    const json_t *item;
    size_t i;
    for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++)
        if (json_object_get(v, keywords[k]))
            return true;
    json_object_foreach((json_t *)v, key, item) if (constrains(item)) return true;
    json_array_foreach(v, i, item) if (constrains(item)) return true;
    return false;
}

/* ---- a value ---- */

/* Alternatives of a value that is text (strings) and of one that is JSON (anything else); either may be empty. */
static int value_parts(clb_call_rules *m, parameter *p, const json_t *schema, clb_buf *text, clb_buf *json)
{
    const unsigned types = clb_schema_types(p->root, schema);
    const bool marked = strstr(m->f->param_open, "DSML"); /* each value says which of both it is */
    char rule[CLB_GBNF_NAME];
    if (types == CLB_TYPE_ANY || !(types & CLB_TYPE_STRING)) {
        CLB_TRY(json_rule(m, p, schema, rule));
        return alternative(m, json, rule);
    }
    CLB_TRY(words(m, p, schema, 0, text));
    json_t *const rest = without_strings(p, schema, 0);
    int rc = COLIBRI_OK;
    if (rest && p->strict && p->free_text && !marked && constrains(rest))
        rc = refuse(m, p, "a string beside other values with bounds"); /* it may look like one of them */
    if (rest && !rc)
        rc = json_rule(m, p, rest, rule);
    if (rest && !rc)
        rc = alternative(m, json, rule);
    json_decref(rest);
    return rc || text->n || json->n ? rc : refuse(m, p, "the only value");
}

static int value_of(clb_call_rules *m, parameter *p, const json_t *schema, clb_buf *text, clb_buf *json)
{
    char rule[CLB_GBNF_NAME];
    const int rc = value_parts(m, p, schema, text, json);
    if (rc == COLIBRI_OK || rc == COLIBRI_E_NOMEM || p->strict)
        return rc;
    text->n = json->n = 0;
    if (clb_schema_types(p->root, schema) == CLB_TYPE_STRING) {
        CLB_TRY(text_rule(m, rule));
        return alternative(m, text, rule);
    }
    CLB_TRY(clb_gbnf_schema(m->g, NULL, rule, m->err));
    return alternative(m, json, rule);
}

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

static bool is_required(const json_t *function, const char *name)
{
    const json_t *r;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(function, "parameters"), "required"), i,
                       r) if (json_is_string(r) && strcmp(json_string_value(r), name) == 0) return true;
    return false;
}

/* "<parameter=a>\n" value "\n</parameter>\n" */
static int xml_value(clb_call_rules *m, const char *name, const char *value, bool text)
{
    const clb_tool_format *f = m->f;
    clb_buf head = {0};
    int rc = COLIBRI_OK;
    if (f->key_end)
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s%s\n<arg_value>", f->param_open, name, f->key_end));
    else if (strstr(f->param_open, "DSML"))
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s\" string=\"%s\">", f->param_open, name, text ? "true" : "false"));
    else
        CLB_GO(clb_buf_printf(&head, m->err, "%s%s%s>%s", f->param_open, name,
                              f->param_open[strlen(f->param_open) - 1] == '"' ? "\"" : "", f->lines ? "\n" : ""));
    CLB_GO(clb_rules_literal(m, head.data));
    CLB_GO(clb_buf_printf(&m->body, m->err, " (%s)", value));
    head.n = 0;
    CLB_GO(clb_buf_printf(&head, m->err, "%s%s\n", f->lines ? "\n" : "", f->value_end));
    CLB_GO(clb_rules_literal(m, head.data));
done:
    clb_buf_free(&head);
    return rc;
}

static int xml_parameter(clb_call_rules *m, parameter *p, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    clb_buf text = {0}, json = {0};
    int rc = COLIBRI_OK;
    CLB_GO(value_of(m, p, schema, &text, &json));
    m->body.n = 0;
    if (text.n && json.n && !strstr(m->f->param_open, "DSML")) {
        CLB_GO(alternative(m, &text, json.data));
        json.n = 0;
    }
    if (text.n)
        CLB_GO(xml_value(m, p->name, text.data, true));
    if (text.n && json.n)
        CLB_GO(clb_buf_printf(&m->body, m->err, " |"));
    if (json.n)
        CLB_GO(xml_value(m, p->name, json.data, false));
    rc = clb_rules_close(m, rule);
done:
    clb_buf_free(&text);
    clb_buf_free(&json);
    return rc;
}

/* "a=1", with or without a comma in front. */
static int python_parameter(clb_call_rules *m, parameter *p, const json_t *schema, bool comma, char rule[CLB_GBNF_NAME])
{
    char value[CLB_GBNF_NAME];
    clb_buf key = {0};
    int rc = json_rule(m, p, schema, value);
    if (rc && rc != COLIBRI_E_NOMEM && !p->strict)
        rc = clb_gbnf_schema(m->g, NULL, value, m->err);
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

/* Parameters in the schema's order; those that are not required may be left out. */
int clb_parameters_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME])
{
    const json_t *const root = json_object_get(function, "parameters");
    const bool xml = m->f->shape == CLB_SHAPE_XML;
    clb_buf all = {0};
    const char *name;
    json_t *schema;
    bool certain = false; /* a parameter is there for sure: the next one begins with a comma */
    int rc = COLIBRI_OK;
    json_object_foreach(json_object_get(root, "properties"), name, schema)
    {
        char one[CLB_GBNF_NAME];
        parameter p = {.root = root, .name = name, .strict = json_is_true(json_object_get(function, "strict"))};
        const bool required = is_required(function, name);
        if (!xml && !required) /* Python: only what must be said, so that commas are simple */
            continue;
        if (!good_name(m->f, name)) { /* it could not be read back */
            if (p.strict && required)
                CLB_GO(refuse(m, &p, "this name"));
            continue;
        }
        CLB_GO(xml ? xml_parameter(m, &p, schema, one) : python_parameter(m, &p, schema, certain, one));
        certain = true;
        CLB_GO(clb_buf_printf(&all, m->err, " %s%s", one, required ? "" : "?"));
    }
    m->body.n = 0;
    if (xml)
        CLB_GO(clb_put_literal(m, &all, m->f->call_close));
    rc = clb_gbnf_rule(m->g, all.n ? all.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&all);
    return rc;
}
