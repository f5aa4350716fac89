/* Rules of a grammar that grows: names, literals, what all schemas share. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema_impl.h"

/* ---- messages ---- */

void schema_say(const clb_gbnf *g, clb_error *err, int code, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    clb_error_set(err, code, "#%s: %s", g->path.n ? g->path.data : "", text);
}

int schema_spend(clb_gbnf *g, uint64_t work, clb_error *err)
{
    g->work += work;
    return g->work > SCHEMA_MOST_WORK ? schema_fail(g, err, COLIBRI_E_LIMIT, "the schema takes too much work")
                                      : COLIBRI_OK;
}

int schema_refuse(const clb_gbnf *g, clb_error *err, const char *keyword, const char *why)
{
    return why ? schema_fail(g, err, COLIBRI_E_UNSUPPORTED, "\"%s\" is not supported: %s", keyword, why)
               : schema_fail(g, err, COLIBRI_E_UNSUPPORTED, "\"%s\" is not supported", keyword);
}

size_t schema_path_add(clb_gbnf *g, const char *step)
{
    const size_t before = g->path.n;
    /* The path is for messages: one that finds no room is shorter. */
    if (before < 400 && clb_buf_append(&g->path, "/", 1, NULL) == COLIBRI_OK)
        for (const char *p = step; *p && g->path.n < 480; p++) {
            const bool special = *p == '~' || *p == '/';
            const char *escaped = *p == '~' ? "~0" : "~1";
            const char c = (unsigned char)*p < 0x20 ? '?' : *p;
            if (clb_buf_append(&g->path, special ? escaped : &c, special ? 2 : 1, NULL))
                break;
        }
    return before;
}

size_t schema_path_index(clb_gbnf *g, const char *step, size_t index)
{
    char number[24];
    const size_t before = schema_path_add(g, step);
    snprintf(number, sizeof number, "%zu", index);
    schema_path_add(g, number);
    return before;
}

void schema_path_back(clb_gbnf *g, size_t n)
{
    g->path.n = n;
    if (g->path.data)
        g->path.data[n] = 0;
}

/* ---- rules ---- */

int schema_new_name(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err)
{
    if (g->n_rules == SCHEMA_MOST_RULES)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "the schema is too large: more than %d rules", SCHEMA_MOST_RULES);
    snprintf(rule, CLB_GBNF_NAME, "r%u", ++g->n_rules);
    return COLIBRI_OK;
}

int schema_define(clb_gbnf *g, const char *rule, const char *body, clb_error *err)
{
    if (g->out.n + strlen(body) > SCHEMA_MOST_TEXT)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "the schema is too large: its grammar has more than %u MiB",
                           SCHEMA_MOST_TEXT >> 20);
    CLB_TRY(clb_buf_printf(&g->out, err, "%s ::= ", rule));
    CLB_TRY(clb_buf_append(&g->out, body, strlen(body), err));
    return clb_buf_append(&g->out, "\n", 1, err);
}

int clb_gbnf_rule(clb_gbnf *g, const char *body, char rule[CLB_GBNF_NAME], clb_error *err)
{
    const json_t *known = json_object_get(g->bodies, body);
    if (known) {
        snprintf(rule, CLB_GBNF_NAME, "%s", json_string_value(known));
        return COLIBRI_OK;
    }
    CLB_TRY(schema_new_name(g, rule, err));
    CLB_TRY(schema_define(g, rule, body, err));
    /* Patterns may hold bytes that jansson takes for text only if they are UTF-8: they are. */
    if (json_object_set_new(g->bodies, body, json_string(rule)))
        return CLB_NOMEM(err, "a grammar");
    return COLIBRI_OK;
}

int clb_gbnf_create(clb_gbnf **out, clb_error *err)
{
    clb_gbnf *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return CLB_NOMEM(err, "a grammar");
    g->bodies = json_object();
    g->made = json_object();
    g->chain = json_array();
    if (!g->bodies || !g->made || !g->chain) {
        clb_gbnf_destroy(g);
        return CLB_NOMEM(err, "a grammar");
    }
    *out = g;
    return COLIBRI_OK;
}

void clb_gbnf_destroy(clb_gbnf *g)
{
    if (!g)
        return;
    json_decref(g->bodies);
    json_decref(g->made);
    json_decref(g->chain);
    clb_buf_free(&g->out);
    clb_buf_free(&g->path);
    free(g);
}

int clb_gbnf_finish(clb_gbnf *g, const char *root_body, clb_buf *out, clb_error *err)
{
    CLB_TRY(schema_define(g, "root", root_body, err));
    return clb_buf_append(out, g->out.data, g->out.n, err);
}

/* ---- literals ---- */

int clb_gbnf_literal(clb_buf *out, const char *text, size_t n, clb_error *err)
{
    json_t *check = json_stringn(text, n); /* jansson checks UTF-8 */
    if (!check)
        return clb_fail(err, COLIBRI_E_USAGE, "a text for a grammar is not UTF-8");
    json_decref(check);
    CLB_TRY(clb_buf_append(out, "\"", 1, err));
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            CLB_TRY(clb_buf_printf(out, err, "\\%c", c));
        else if (c == '\n')
            CLB_TRY(clb_buf_append(out, "\\n", 2, err));
        else if (c < 0x20 || c == 0x7F)
            CLB_TRY(clb_buf_printf(out, err, "\\x%02X", c));
        else
            CLB_TRY(clb_buf_append(out, text + i, 1, err));
    }
    return clb_buf_append(out, "\"", 1, err);
}

static int dumped(clb_buf *e, const json_t *value, clb_error *err)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text)
        return CLB_NOMEM(err, "a grammar");
    const int rc = clb_gbnf_literal(e, text, strlen(text), err);
    free(text);
    return rc;
}

int schema_key(clb_buf *e, const char *key, clb_error *err)
{
    json_t *text = json_string(key);
    if (!text)
        return CLB_NOMEM(err, "a grammar");
    const int rc = dumped(e, text, err);
    json_decref(text);
    return rc;
}

/* The shortest text that reads as the same number. */
static int real(clb_buf *e, double v, clb_error *err)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    return clb_gbnf_literal(e, text, strlen(text), err);
}

int schema_constant(clb_gbnf *g, const json_t *value, clb_buf *e, clb_error *err)
{
    char space[CLB_GBNF_NAME];
    if (json_is_real(value))
        return real(e, json_real_value(value), err);
    if (!json_is_object(value) && !json_is_array(value))
        return dumped(e, value, err);
    if (++g->depth > SCHEMA_MOST_DEPTH)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "more than %d deep", SCHEMA_MOST_DEPTH);
    CLB_TRY(clb_gbnf_space(g, space, err));
    const bool object = json_is_object(value);
    bool first = true;
    CLB_TRY(clb_buf_printf(e, err, "\"%c\" %s ", object ? '{' : '[', space));
    if (object) {
        const char *key;
        json_t *member;
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            CLB_TRY(first ? COLIBRI_OK : clb_buf_printf(e, err, "\",\" %s ", space));
            CLB_TRY(schema_key(e, key, err));
            CLB_TRY(clb_buf_printf(e, err, " \":\" %s ", space));
            CLB_TRY(schema_constant(g, member, e, err));
            first = false;
        }
    } else {
        for (size_t i = 0; i < json_array_size(value); i++) {
            CLB_TRY(first ? COLIBRI_OK : clb_buf_printf(e, err, "\",\" %s ", space));
            CLB_TRY(schema_constant(g, json_array_get(value, i), e, err));
            first = false;
        }
    }
    g->depth--;
    return clb_buf_printf(e, err, " %s \"%c\"", first ? "" : space, object ? '}' : ']');
}

/* ---- what all schemas share ---- */

static const struct shared {
    const char *name, *body; /* %name%: that rule */
} shared[] = {
    {"none", "[^\\x00-\\U0010FFFF]"},
    {"space", "(\" \" | \"\\n\" [ \\t]{0,32})?"},
    /* Escapes without NUL and without lone surrogates: every reader takes them. */
    {"hex", "[0-9a-fA-F]"},
    {"unit", "\"000\" [1-9a-fA-F] | \"00\" [1-9a-fA-F] %hex% | \"0\" [1-9a-fA-F] %hex% %hex% | "
             "[1-9a-cA-Ce-fE-F] %hex% %hex% %hex% | [dD] [0-7] %hex% %hex% | "
             "[dD] [89abAB] %hex% %hex% \"\\\\u\" [dD] [c-fC-F] %hex% %hex%"},
    {"char", "[^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" %unit%)"},
    {"string", "\"\\\"\" %char%* \"\\\"\""},
    {"digits", "(\"0\" | [1-9] [0-9]{0,17})"},
    {"integer", "\"-\"? %digits%"},
    {"number", "\"-\"? %digits% (\".\" [0-9]{1,20})? ([eE] [-+]? [0-9]{1,2})?"},
};

static int shared_rule(clb_gbnf *g, const struct shared *s, char rule[CLB_GBNF_NAME], clb_error *err)
{
    clb_buf body = {0};
    int rc = COLIBRI_OK;
    for (const char *p = s->body; *p;) {
        const size_t n = strcspn(p, "%");
        CLB_GO(clb_buf_append(&body, p, n, err));
        p += n;
        if (*p) {
            char name[CLB_GBNF_NAME], inner[CLB_GBNF_NAME];
            const size_t len = strcspn(p + 1, "%");
            snprintf(name, sizeof name, "%.*s", (int)len, p + 1);
            CLB_GO(schema_shared(g, name, inner, err));
            CLB_GO(clb_buf_printf(&body, err, "%s", inner));
            p += len + 2;
        }
    }
    rc = clb_gbnf_rule(g, body.data, rule, err);
done:
    clb_buf_free(&body);
    return rc;
}

/* Values, objects and arrays of any kind contain each other: made at once. */
static int any_rules(clb_gbnf *g, const char *what, char rule[CLB_GBNF_NAME], clb_error *err)
{
    char names[3][CLB_GBNF_NAME], space[CLB_GBNF_NAME], string[CLB_GBNF_NAME], number[CLB_GBNF_NAME], body[400];
    static const char *const kinds[3] = {"value", "object", "array"};
    CLB_TRY(schema_shared(g, "space", space, err));
    CLB_TRY(schema_shared(g, "string", string, err));
    CLB_TRY(schema_shared(g, "number", number, err));
    for (int i = 0; i < 3; i++) {
        char key[16];
        CLB_TRY(schema_new_name(g, names[i], err));
        snprintf(key, sizeof key, " %s", kinds[i]); /* no body begins with a blank */
        if (json_object_set_new(g->bodies, key, json_string(names[i])))
            return CLB_NOMEM(err, "a grammar");
        if (strcmp(what, kinds[i]) == 0)
            memcpy(rule, names[i], CLB_GBNF_NAME);
    }
    snprintf(body, sizeof body, "%s | %s | %s | %s | \"true\" | \"false\" | \"null\"", names[1], names[2], string,
             number);
    CLB_TRY(schema_define(g, names[0], body, err));
    snprintf(body, sizeof body, "\"{\" %s (%s \":\" %s %s (\",\" %s %s \":\" %s %s)* %s)? \"}\"", space, string, space,
             names[0], space, string, space, names[0], space);
    CLB_TRY(schema_define(g, names[1], body, err));
    snprintf(body, sizeof body, "\"[\" %s (%s (\",\" %s %s)* %s)? \"]\"", space, names[0], space, names[0], space);
    return schema_define(g, names[2], body, err);
}

int schema_shared(clb_gbnf *g, const char *what, char rule[CLB_GBNF_NAME], clb_error *err)
{
    char key[16];
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (strcmp(shared[i].name, what) == 0)
            return shared_rule(g, &shared[i], rule, err);
    snprintf(key, sizeof key, " %s", what);
    const json_t *known = json_object_get(g->bodies, key);
    if (!known)
        return any_rules(g, what, rule, err);
    snprintf(rule, CLB_GBNF_NAME, "%s", json_string_value(known));
    return COLIBRI_OK;
}

int clb_gbnf_object(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err)
{
    return schema_shared(g, "object", rule, err);
}

int clb_gbnf_space(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err)
{
    return schema_shared(g, "space", rule, err);
}
