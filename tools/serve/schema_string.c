/* Strings: lengths, patterns, formats. */
#include <stdio.h>
#include <string.h>

#include "serve/schema_impl.h"

/* Formats as GBNF, without the quotes of the string. All of it is plain ASCII. */
#define DAYS31                                                                                                         \
    "(\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01])"
#define DAYS30   "(\"04\" | \"06\" | \"09\" | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\")"
#define FEBRUARY "\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8])"
#define YEAR     "(\"000\" [1-9] | \"00\" [1-9] [0-9] | \"0\" [1-9] [0-9]{2} | [1-9] [0-9]{3})"
/* Divisible by 4, by 100 only if by 400 too; not 0. */
#define LEAP4 "(\"0\" [48] | [2468] [048] | [13579] [26])"
#define LEAP  "([0-9]{2} " LEAP4 " | " LEAP4 " \"00\")"
#define DATE  "(" YEAR " \"-\" (" DAYS31 " | " DAYS30 " | " FEBRUARY ") | " LEAP " \"-02-29\")"
#define TIME                                                                                                           \
    "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? "                              \
    "(\"Z\" | [+-] ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9])"
#define LABEL    "[a-zA-Z0-9] ([a-zA-Z0-9-]{0,20} [a-zA-Z0-9])?"
#define HOSTNAME LABEL " (\".\" " LABEL "){0,6}"
/* The last label of a name that people write begins with a letter. */
#define DOMAIN_NAME "(" LABEL " \".\"){1,5} [a-zA-Z]{2,20}"
#define BYTE10      "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9] [0-9] | [0-9])"
#define IPV4        BYTE10 " (\".\" " BYTE10 "){3}"
#define H16         "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                                           \
    "(" H16 " (\":\" " H16 "){7} | (" H16 " \":\"){1,7} \":\" | \"::\" (" H16 " (\":\" " H16 "){0,6})? | " H16         \
    " \"::\" " H16 " (\":\" " H16 "){0,5} | " H16 " \":\" " H16 " \"::\" " H16 " (\":\" " H16 "){0,4} | "              \
    "(" H16 " \":\"){2} " H16 " \"::\" " H16 " (\":\" " H16 "){0,3} | "                                                \
    "(" H16 " \":\"){3} " H16 " \"::\" " H16 " (\":\" " H16 "){0,2} | "                                                \
    "(" H16 " \":\"){4} " H16 " \"::\" " H16 " (\":\" " H16 ")? | (" H16 " \":\"){5} " H16 " \"::\" " H16 ")"
#define DIGITS "[0-9]{1,9}"
#define DURATION                                                                                                       \
    "\"P\" (" DIGITS " \"W\" | (" DIGITS " \"Y\" (" DIGITS " \"M\" (" DIGITS " \"D\")?)? | " DIGITS " \"M\" (" DIGITS  \
    " \"D\")? | " DIGITS " \"D\") (\"T\" " CLOCK ")? | \"T\" " CLOCK ")"
#define CLOCK                                                                                                          \
    "(" DIGITS " \"H\" (" DIGITS " \"M\" (" DIGITS " \"S\")?)? | " DIGITS " \"M\" (" DIGITS " \"S\")? | " DIGITS       \
    " \"S\")"
#define ATOM "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define PATH "([a-zA-Z0-9._~!$&'()*+,;=:@-] | \"%\" [0-9a-fA-F]{2})"
#define URI                                                                                                            \
    "[a-zA-Z] [a-zA-Z0-9+.-]{0,20} \":\" (\"//\" " HOSTNAME " (\":\" [0-9]{1,4})? (\"/\" " PATH "*)* | " PATH "+) "    \
    "(\"?\" (" PATH " | [/?])*)? (\"#\" (" PATH " | [/?])*)?"

const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *grammar;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE " \"T\" " TIME},
        {"duration", DURATION},
        {"uuid", "[0-9a-fA-F]{8} (\"-\" [0-9a-fA-F]{4}){3} \"-\" [0-9a-fA-F]{12}"},
        {"email", ATOM " (\".\" " ATOM "){0,2} \"@\" " DOMAIN_NAME},
        {"hostname", HOSTNAME},
        {"ipv4", IPV4},
        {"ipv6", IPV6},
        {"uri", URI},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].grammar;
    return NULL;
}

/* Formats that say how a string is shown or kept, not which strings there are. */
bool schema_says_nothing(const char *format)
{
    static const char *const names[] = {"password", "binary", "textarea", "markdown"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], format) == 0)
            return true;
    return false;
}

static int add_format(clb_gbnf *g, const json_t *schema, const char *format, clb_buf *e, clb_error *err)
{
    const char *grammar = schema_format(format);
    static const char *const others[] = {"pattern", "minLength", "maxLength"};
    char rule[CLB_GBNF_NAME];
    clb_buf body = {0};
    if (!grammar)
        return schema_fail(
            g, err, COLIBRI_E_UNSUPPORTED,
            "\"format\" \"%.60s\" is not supported: there are date, time, date-time, duration, uuid, email, "
            "hostname, ipv4, ipv6, uri",
            format);
    for (int i = 0; i < 3; i++)
        if (json_object_get(schema, others[i]))
            return schema_fail(g, err, COLIBRI_E_UNSUPPORTED, "\"%s\" is not supported beside \"format\"", others[i]);
    int rc = clb_buf_printf(&body, err, "\"\\\"\" (%s) \"\\\"\"", grammar);
    if (!rc)
        rc = clb_gbnf_rule(g, body.data, rule, err);
    if (!rc)
        rc = clb_buf_printf(e, err, "%s", rule);
    clb_buf_free(&body);
    return rc;
}

/* Lengths beside a pattern must hold for all that the pattern allows. */
static int add_pattern(clb_gbnf *g, const char *pattern, size_t least, size_t most, clb_buf *e, clb_error *err)
{
    size_t shortest, longest;
    CLB_TRY(clb_buf_printf(e, err, "\"\\\"\" ("));
    CLB_TRY(schema_pattern(g, pattern, e, &shortest, &longest, err));
    if (shortest < least || longest > most)
        return schema_fail(g, err, COLIBRI_E_UNSUPPORTED,
                           "\"%s\" is not supported beside a \"pattern\" that allows other lengths",
                           shortest < least ? "minLength" : "maxLength");
    return clb_buf_printf(e, err, ") \"\\\"\"");
}

int schema_string(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err)
{
    size_t least = 0, most = SIZE_MAX;
    char rule[CLB_GBNF_NAME];
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    CLB_TRY(schema_count(g, schema, "minLength", &least, err));
    CLB_TRY(schema_count(g, schema, "maxLength", &most, err));
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return schema_fail(g, err, COLIBRI_E_USAGE, "\"%s\" must be a string",
                           pattern && !json_is_string(pattern) ? "pattern" : "format");
    if (format && !schema_says_nothing(json_string_value(format)))
        return add_format(g, schema, json_string_value(format), e, err);
    if (pattern)
        return add_pattern(g, json_string_value(pattern), least, most, e, err);
    if (least == 0 && most == SIZE_MAX) {
        CLB_TRY(schema_shared(g, "string", rule, err));
        return clb_buf_printf(e, err, "%s", rule);
    }
    if (least > most) {
        CLB_TRY(schema_shared(g, "none", rule, err));
        return clb_buf_printf(e, err, "%s", rule);
    }
    if (least > SCHEMA_MOST_COUNT)
        return schema_fail(g, err, COLIBRI_E_LIMIT, "\"minLength\" of more than %d", SCHEMA_MOST_COUNT);
    CLB_TRY(schema_shared(g, "char", rule, err));
    if (most == SIZE_MAX)
        return clb_buf_printf(e, err, "\"\\\"\" %s{%zu,} \"\\\"\"", rule, least);
    return clb_buf_printf(e, err, "\"\\\"\" %s{%zu,%zu} \"\\\"\"", rule, least,
                          most > SCHEMA_MOST_COUNT ? (size_t)SCHEMA_MOST_COUNT : most);
}
