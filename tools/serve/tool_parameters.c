/* Parameters that are written one by one, as rules of a grammar. */
#include "serve/tool_rules.h"

#include <stdio.h>
#include <string.h>

#include "serve/tool_impl.h"

static bool string_schema(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

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

/* Text; an enum's words as they are. */
static int string_rule(clb_call_rules *m, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    const json_t *words = json_object_get(schema, "enum"), *w;
    clb_buf body = {0};
    size_t i;
    int rc = COLIBRI_OK;
    if (!json_array_size(words))
        return text_rule(m, rule);
    json_array_foreach(words, i, w)
    {
        if (!json_is_string(w))
            continue;
        if (body.n)
            CLB_GO(clb_buf_append(&body, " | ", 3, m->err));
        CLB_GO(clb_gbnf_literal(&body, json_string_value(w), json_string_length(w), m->err));
    }
    rc = clb_gbnf_rule(m->g, body.n ? body.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&body);
    return rc;
}

static int value_rule(clb_call_rules *m, const json_t *function, const json_t *schema, char rule[CLB_GBNF_NAME])
{
    if (m->f->shape == CLB_SHAPE_XML && string_schema(schema))
        return string_rule(m, schema, rule);
    const int rc = clb_gbnf_schema(m->g, schema, rule, m->err);
    if (rc == COLIBRI_OK || rc == COLIBRI_E_NOMEM || json_is_true(json_object_get(function, "strict")))
        return rc;
    return clb_gbnf_schema(m->g, NULL, rule, m->err);
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
static int xml_parameter(clb_call_rules *m, const char *name, const char *value, bool text)
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
    CLB_GO(clb_rules_refer(m, value));
    head.n = 0;
    CLB_GO(clb_buf_printf(&head, m->err, "%s%s\n", f->lines ? "\n" : "", f->value_end));
    CLB_GO(clb_rules_literal(m, head.data));
done:
    clb_buf_free(&head);
    return rc;
}

/* Parameters in the schema's order; those that are not required may be left out. */
int clb_parameters_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME])
{
    const json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    const bool xml = m->f->shape == CLB_SHAPE_XML;
    clb_buf all = {0};
    const char *name;
    json_t *schema;
    bool certain = false; /* a parameter is there for sure: the next one begins with a comma */
    int rc = COLIBRI_OK;
    json_object_foreach((json_t *)properties, name, schema)
    {
        char value[CLB_GBNF_NAME], parameter[CLB_GBNF_NAME];
        const bool required = is_required(function, name);
        if (!xml && !required) /* Python: only what must be said, so that commas are simple */
            continue;
        CLB_GO(value_rule(m, function, schema, value));
        m->body.n = 0;
        if (xml) {
            CLB_GO(xml_parameter(m, name, value, string_schema(schema)));
        } else {
            clb_buf key = {0};
            rc = clb_buf_printf(&key, m->err, "%s%s=", certain ? ", " : "", name);
            if (!rc)
                rc = clb_rules_literal(m, key.data);
            clb_buf_free(&key);
            CLB_GO(rc);
            CLB_GO(clb_rules_refer(m, value));
            certain = true;
        }
        CLB_GO(clb_rules_close(m, parameter));
        CLB_GO(clb_buf_printf(&all, m->err, " %s%s", parameter, required ? "" : "?"));
    }
    m->body.n = 0;
    if (xml)
        CLB_GO(clb_put_literal(m, &all, m->f->call_close));
    rc = clb_gbnf_rule(m->g, all.n ? all.data : "\"\"", rule, m->err);
done:
    clb_buf_free(&all);
    return rc;
}
