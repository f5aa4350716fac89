/* JSON schemas that are refused, with their place; schemas made to take for ever; the parts for grammars around values.
 * What is accepted is tested at random in tests/schemas. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"
#include "serve/schema.h"
#include "support/grammar.h"

static json_t *read_json(const char *text)
{
    json_error_t where;
    json_t *j = json_loads(text, JSON_DECODE_ANY, &where);
    if (!j)
        fail_msg("%s: %s", text, where.text);
    return j;
}

static int convert(const json_t *schema, clb_grammar **g, clb_error *err)
{
    clb_buf gbnf = {0};
    *g = NULL;
    int rc = clb_schema_to_gbnf(schema, &gbnf, err);
    if (!rc)
        rc = clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, g, err);
    clb_buf_free(&gbnf);
    return rc;
}

static bool accepts(clb_grammar *g, const char *text)
{
    clb_error err = {0};
    clb_matcher *m;
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    const bool ok = clb_matcher_accept_bytes(m, text, strlen(text), &err) == COLIBRI_OK && clb_matcher_may_end(m);
    clb_matcher_destroy(m);
    return ok;
}

static void what_cannot_be_followed_is_refused_by_name_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        int status;
        const char *message;
    } bad[] = {
        {"5", COLIBRI_E_USAGE, "#: a schema must be an object, true or false"},
        {"{\"not\":{}}", COLIBRI_E_UNSUPPORTED, "#: \"not\" is not supported"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"items\":{\"if\":{}}}}}", COLIBRI_E_UNSUPPORTED,
         "#/properties/a/items: \"if\" is not supported"},
        {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}}}", COLIBRI_E_UNSUPPORTED, "\"patternProperties\""},
        {"{\"type\":\"object\",\"propertyNames\":{}}", COLIBRI_E_UNSUPPORTED, "\"propertyNames\""},
        {"{\"dependentRequired\":{}}", COLIBRI_E_UNSUPPORTED, "\"dependentRequired\""},
        {"{\"type\":\"array\",\"uniqueItems\":true}", COLIBRI_E_UNSUPPORTED, "\"uniqueItems\""},
        {"{\"type\":\"array\",\"contains\":{}}", COLIBRI_E_UNSUPPORTED, "\"contains\""},
        {"{\"type\":\"number\",\"multipleOf\":0.1}", COLIBRI_E_UNSUPPORTED, "\"multipleOf\""},
        {"{\"type\":\"integer\",\"multipleOf\":2}", COLIBRI_E_UNSUPPORTED, "\"multipleOf\""},
        {"{\"type\":\"integer\",\"minimum\":\"a\"}", COLIBRI_E_USAGE, "\"minimum\" must be a number"},
        {"{\"type\":\"integer\",\"minimum\":1e19}", COLIBRI_E_UNSUPPORTED, "so many digits"},
        {"{\"type\":\"text\"}", COLIBRI_E_USAGE, "\"type\" must be"},
        {"{\"type\":[\"string\",3]}", COLIBRI_E_USAGE, "\"type\" must be"},
        {"{\"type\":\"string\",\"format\":\"iri\"}", COLIBRI_E_UNSUPPORTED,
         "\"format\" \"iri\" is not supported: there are date"},
        {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":4}", COLIBRI_E_UNSUPPORTED,
         "\"maxLength\" is not supported beside"},
        {"{\"type\":\"string\",\"minLength\":-1}", COLIBRI_E_USAGE, "\"minLength\" must be a whole number"},
        {"{\"type\":\"string\",\"minLength\":1.5}", COLIBRI_E_USAGE, "\"minLength\" must be a whole number"},
        {"{\"type\":\"string\",\"minLength\":1000000}", COLIBRI_E_LIMIT, "\"minLength\" of more than"},
        {"{\"type\":\"string\",\"pattern\":\"^(?=a)\"}", COLIBRI_E_UNSUPPORTED,
         "\"pattern\": look-around is not supported"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", COLIBRI_E_UNSUPPORTED, "a back reference"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\bword\"}", COLIBRI_E_UNSUPPORTED, "a word boundary"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\p{L}\"}", COLIBRI_E_UNSUPPORTED, "\\p"},
        {"{\"type\":\"string\",\"pattern\":\"(^a)\"}", COLIBRI_E_UNSUPPORTED, "^ within a group"},
        {"{\"type\":\"string\",\"pattern\":\"a$b\"}", COLIBRI_E_UNSUPPORTED, "$ before the end"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", COLIBRI_E_USAGE, "a group is not closed"},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", COLIBRI_E_USAGE, "a class is not closed"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", COLIBRI_E_USAGE, "a parenthesis too many (character 2)"},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", COLIBRI_E_USAGE, "nothing before it"},
        {"{\"type\":\"string\",\"pattern\":\"a{3,2}\"}", COLIBRI_E_USAGE, "less than its least"},
        {"{\"type\":\"string\",\"pattern\":\"^a{2,9}$\",\"maxLength\":5}", COLIBRI_E_UNSUPPORTED, "\"maxLength\""},
        {"{\"$ref\":\"#/$defs/none\"}", COLIBRI_E_USAGE, "leads to nothing"},
        {"{\"$ref\":\"https://example.org/a.json\"}", COLIBRI_E_UNSUPPORTED, "only references into the same schema"},
        {"{\"$ref\":\"#\"}", COLIBRI_E_USAGE, "circle"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", COLIBRI_E_USAGE, "contains itself"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", COLIBRI_E_LIMIT, "circle"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", COLIBRI_E_UNSUPPORTED,
         "\"oneOf\" is not supported where"},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}}},{\"type\":\"object\",\"properties\":{\"b\":{}}}]"
         "}",
         COLIBRI_E_UNSUPPORTED, "(here 0 and 1)"},
        {"{\"anyOf\":[]}", COLIBRI_E_USAGE, "\"anyOf\" must be an array"},
        {"{\"anyOf\":{}}", COLIBRI_E_USAGE, "\"anyOf\" must be an array"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", COLIBRI_E_UNSUPPORTED, "two different \"pattern\""},
        {"{\"enum\":{}}", COLIBRI_E_USAGE, "\"enum\" must be an array"},
        {"{\"enum\":[],\"type\":\"string\"}", COLIBRI_E_USAGE, "no text matches"},
        {"{\"enum\":[{}],\"required\":[\"a\"]}", COLIBRI_E_UNSUPPORTED,
         "\"required\" is not supported beside \"enum\""},
        {"{\"type\":\"object\",\"properties\":[]}", COLIBRI_E_USAGE, "\"properties\" must be an object"},
        {"{\"type\":\"object\",\"required\":\"a\"}", COLIBRI_E_USAGE, "\"required\" must be an array"},
        {"{\"type\":\"object\",\"required\":[1]}", COLIBRI_E_USAGE, "\"required\" must list names"},
        {"{\"type\":\"object\",\"additionalProperties\":3}", COLIBRI_E_USAGE,
         "\"additionalProperties\" must be a schema"},
        {"{\"type\":\"object\",\"minProperties\":5}", COLIBRI_E_UNSUPPORTED, "\"minProperties\""},
        {"{\"type\":\"object\",\"properties\":{\"a\":3}}", COLIBRI_E_USAGE, "#/properties/a: a schema must be"},
        {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", COLIBRI_E_USAGE, "no text matches"},
        {"false", COLIBRI_E_USAGE, "no text matches"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", COLIBRI_E_USAGE, "no text matches"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", COLIBRI_E_USAGE, "no text matches"},
        {"{\"type\":\"array\",\"prefixItems\":{}}", COLIBRI_E_USAGE, "\"prefixItems\" must be an array"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", COLIBRI_E_USAGE, "no text matches"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clb_error err = {0};
        clb_grammar *g;
        json_t *schema = read_json(bad[i].schema);
        const int rc = convert(schema, &g, &err);
        if (rc != bad[i].status || !test_contains(err.msg, bad[i].message))
            fail_msg("%s: %s: %s", bad[i].schema, clb_status_name(rc), rc ? err.msg : "accepted");
        assert_null(strchr(err.msg, '\n'));
        json_decref(schema);
    }
}

static void what_is_allowed_is_what_the_schema_says(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *yes[6], *no[6];
    } good[] = {
        {"true", {"1", "[{}]", "\"\\u00e9\\ud83d\\ude00\""}, {"", "01", "\"\\ud83d\"", "\"\\u0000\"", "[1,]", "1."}},
        {"{\"title\":\"x\",\"unknown\":1}", {"null", "{}"}, {"nul"}},
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":105}",
         {"-3", "0", "9", "105", "99"},
         {"-4", "106", "1.0", "-0", "00", "1e1"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":2.5,\"exclusiveMaximum\":12}", {"3", "11"}, {"2", "12", "2.9"}},
        {"{\"type\":\"integer\",\"minimum\":1000}",
         {"1000", "9999", "10000", "123456789012345678"},
         {"999", "-1000", "1234567890123456789"}},
        {"{\"type\":\"integer\",\"maximum\":-7}", {"-7", "-8", "-10", "-123"}, {"-6", "0", "7", "-0"}},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
         {"0", "0.0", "1", "1.000", "0.999", "0.1"},
         {"1.0001", "-0.1", "2", "1e-3"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":0.25}",
         {"0.2", "0.0001", "0.2499"},
         {"0", "0.0", "0.25", "0.250", "0.3"}},
        {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":10.25}",
         {"-1.5", "-1.50", "-1", "-0.7", "10.25", "9.9"},
         {"-1.51", "-2", "10.26", "11"}},
        {"{\"type\":\"string\",\"maxLength\":2}",
         {"\"\"", "\"\xF0\x9F\x98\x80\\n\"", "\"\\ud83d\\ude00a\""},
         {"\"abc\"", "\"a"}},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\d{3}$\"}", {"\"123\""}, {"\"12\"", "\"1234\"", "\"a123\""}},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\""}, {"\"ac\"", "\"\""}},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         {"\"::1\"", "\"2001:db8::8a2e:370:7334\"", "\"1:2:3:4:5:6:7:8\""},
         {"\"1:2\"", "\":::\"", "\"1:2:3:4:5:6:7:8:9\""}},
        {"{\"type\":\"string\",\"format\":\"duration\"}",
         {"\"P1DT2H\"", "\"P2W\"", "\"PT1M30S\""},
         {"\"P\"", "\"PT\"", "\"1D\""}},
        {"{\"type\":\"string\",\"format\":\"uri\"}",
         {"\"https://example.org/a?b=c#d\"", "\"mailto:a@b.c\""},
         {"\"/a\"", "\"a b:c\""}},
        {"{\"type\":\"string\",\"format\":\"password\"}", {"\"x\""}, {"1"}},
        {"{\"enum\":[\"a\",1,null,{\"k\":[1]}]}",
         {"\"a\"", "1", "null", "{\"k\":[1]}", "{ \"k\": [ 1 ] }"},
         {"\"b\"", "2", "{}"}},
        {"{\"enum\":[\"a\",\"bcd\",7],\"type\":\"string\",\"maxLength\":2}", {"\"a\""}, {"\"bcd\"", "7"}},
        {"{\"type\":[\"integer\",\"null\"]}", {"1", "null"}, {"\"\"", "1.5"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"b\"]}",
         {"{\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"b\":1,\"c\":1}", "{\n  \"b\": 1\n}"},
         {"{}", "{\"a\":1}", "{\"b\":1,\"a\":1}", "{\"b\":1,\"d\":1}", "{\"b\":1,}"}},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", {"{\"x\":1}"}, {"{}", "{\"y\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
         "\"integer\"}}",
         {"{}", "{\"ab\":null,\"a\":1,\"abc\":2,\"\":3}", "{\"b\":1}"},
         {"{\"ab\":1}", "{\"a\":null}", "{\"\\u0061b\":1}", "{\"a\\u0062\":1}"}},
        {"{\"type\":\"object\",\"additionalProperties\":false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[1, 2,3]"},
         {"[]", "[1,2,3,4]", "[\"a\"]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":"
         "\"null\"},\"minItems\":1}",
         {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
         {"[]", "[\"a\"]", "[1,null]"}},
        {"{\"type\":\"array\",\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false}", {"[]", "[1]"}, {"[1,2]"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}]}", {"[]", "[1]"}, {"[1,2]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{"
         "\"properties\":{\"b\":{}}}]}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{\"b\":1}", "{}"}},
        {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{"
         "\"b\":{}}}]}",
         {"{\"a\":1}", "{}"},
         {"{\"b\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"k\":{}},\"anyOf\":[{\"required\":[\"k\"]},{\"properties\":{\"z\":{"
         "\"const\":1}},\"required\":[\"z\"]}]}",
         {"{\"k\":1}", "{\"z\":1}", "{\"k\":2,\"z\":1}"},
         {"{}", "{\"z\":2}"}},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", {"\"a\"", "1"}, {"null"}},
        {"{\"$defs\":{\"a/b\":{\"type\":\"null\"}},\"properties\":{\"x\":{\"$ref\":\"#/$defs/a~1b\"}}}",
         {"{\"x\":null}"},
         {"{\"x\":1}", "1"}},
        {"{\"$ref\":\"#/$defs/a%20b\",\"$defs\":{\"a b\":{\"type\":\"string\"}},\"maxLength\":1}",
         {"\"x\""},
         {"\"xy\""}},
        {"{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
         {"{\"c\":[{\"c\":[]},{}]}"},
         {"{\"c\":[1]}"}},
        {"{\"anyOf\":[{\"type\":\"null\"},false]}", {"null"}, {"1"}},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        clb_error err = {0};
        clb_grammar *g;
        json_t *schema = read_json(good[i].schema);
        if (convert(schema, &g, &err))
            fail_msg("%s: %s", good[i].schema, err.msg);
        for (size_t k = 0; k < 6; k++) {
            if (good[i].yes[k] && !accepts(g, good[i].yes[k]))
                fail_msg("%s does not accept %s", good[i].schema, good[i].yes[k]);
            if (good[i].no[k] && accepts(g, good[i].no[k]))
                fail_msg("%s accepts %s", good[i].schema, good[i].no[k]);
        }
        clb_grammar_release(g);
        json_decref(schema);
    }
}

/* ---- hostile ---- */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check(const char *what, json_t *schema, int expected)
{
    clb_error err = {0};
    clb_grammar *g;
    const double begin = cpu_seconds();
    assert_non_null(schema);
    const int rc = convert(schema, &g, &err);
    const double seconds = cpu_seconds() - begin;
    print_message("%-26s %-11s %.3f s %s\n", what, clb_status_name(rc), seconds, rc ? strrchr(err.msg, ':') + 2 : "");
    assert_int_equal(rc, expected);
    assert_true(seconds < 10); /* sanitizers included; below one without */
    clb_grammar_release(g);
    json_decref(schema);
}

static json_t *nested(const char *keyword, int depth, bool array)
{
    json_t *s = json_pack("{s:s}", "type", "null");
    for (int i = 0; i < depth; i++)
        s = array ? json_pack("{s:[o]}", keyword, s) : json_pack("{s:o}", keyword, s);
    return s;
}

static json_t *many(const char *keyword, int n, const char *part)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, read_json(part));
    return json_pack("{s:o}", keyword, list);
}

static void hostile_schemas_end(void **state)
{
    (void)state;
    check("deep items", nested("items", 5000, false), COLIBRI_E_LIMIT);
    check("deep allOf", nested("allOf", 5000, true), COLIBRI_E_LIMIT);
    check("deep anyOf", nested("anyOf", 5000, true), COLIBRI_E_LIMIT);
    check("allowed depth", nested("items", 40, false), COLIBRI_OK);
    check("anyOf squared",
          json_pack("{s:[o,o,o]}", "allOf", many("anyOf", 16, "{\"minimum\":1}"), many("anyOf", 16, "{\"maximum\":7}"),
                    many("anyOf", 16, "{\"type\":\"integer\"}")),
          COLIBRI_E_LIMIT);
    check("many oneOf", many("oneOf", 5000, "{\"type\":\"null\"}"), COLIBRI_E_LIMIT);
    check("exponential pattern", read_json("{\"type\":\"string\",\"pattern\":\"^((a+)+)+(b|a+)*$\"}"), COLIBRI_OK);
    check("counts of counts",
          read_json("{\"type\":\"string\",\"pattern\":\"((((a{1000}){1000}){1000}){1000}){1000}\"}"), COLIBRI_OK);
    check("large count", read_json("{\"type\":\"string\",\"pattern\":\"a{100000000}\"}"), COLIBRI_E_LIMIT);
    check("large maxLength", read_json("{\"type\":\"string\",\"maxLength\":100000000}"), COLIBRI_OK);
    check("large maxItems", read_json("{\"type\":\"array\",\"items\":{},\"maxItems\":1000000000000}"), COLIBRI_OK);
    check("large minItems", read_json("{\"type\":\"array\",\"items\":{},\"minItems\":1000000}"), COLIBRI_E_LIMIT);
    check("counted in counted",
          read_json("{\"type\":\"array\",\"minItems\":9000,\"items\":{\"type\":\"array\",\"minItems\":9000,"
                    "\"items\":{\"type\":\"string\",\"minLength\":9000}}}"),
          COLIBRI_OK);
    check("references and siblings",
          read_json("{\"$defs\":{\"a\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\",\"required\":[\"x\"]},"
                    "\"y\":{\"$ref\":\"#/$defs/a\",\"required\":[\"y\"]}}}},\"$ref\":\"#/$defs/a\","
                    "\"required\":[\"x\"]}"),
          COLIBRI_E_USAGE);
    json_t *properties = json_object(), *required = json_array(), *branches = json_array();
    for (int i = 0; i < 3000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_pack("{s:s}", "type", "integer"));
        json_array_append_new(required, json_string(name));
    }
    check("many properties", json_pack("{s:s, s:O}", "type", "object", "properties", properties), COLIBRI_OK);
    check("many combinations",
          json_pack("{s:s, s:O, s:i}", "type", "object", "properties", properties, "minProperties", 100),
          COLIBRI_E_LIMIT);
    for (int i = 0; i < 150; i++)
        json_array_append_new(branches, json_pack("{s:s}", "$ref", "#/$defs/a"));
    check("the same large branch",
          json_pack("{s:o, s:{s:{s:s, s:o, s:o}}}", "oneOf", branches, "$defs", "a", "type", "object", "properties",
                    properties, "required", required),
          COLIBRI_E_UNSUPPORTED);
    json_t *defs = json_object();
    for (int i = 0; i < 60; i++) {
        char name[16], next[32];
        snprintf(name, sizeof name, "d%d", i);
        snprintf(next, sizeof next, "#/$defs/d%d", i + 1);
        json_object_set_new(defs, name,
                            json_pack("{s:[{s:s},{s:s,s:s}]}", "allOf", "$ref", next, "$ref", next, "title", name));
    }
    json_object_set_new(defs, "d60", json_pack("{s:s}", "type", "null"));
    check("two to the sixty", json_pack("{s:o, s:s}", "$defs", defs, "$ref", "#/$defs/d0"), COLIBRI_E_LIMIT);
}

/* ---- parts ---- */

static void parts_go_together(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gbnf *b;
    clb_grammar *g;
    char one[CLB_GBNF_NAME], two[CLB_GBNF_NAME], any[CLB_GBNF_NAME], same[CLB_GBNF_NAME], space[CLB_GBNF_NAME];
    clb_buf body = {0}, gbnf = {0};
    static const char open[] = "<call>\n{\"name\": \"f\\\x01\x7F\", \"arguments\": ";
    json_t *first =
        read_json("{\"properties\":{\"x\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":\"integer\"}}}");
    json_t *second =
        read_json("{\"properties\":{\"x\":{\"$ref\":\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":\"null\"}}}");
    assert_ok(clb_gbnf_create(&b, &err), &err);
    assert_ok(clb_gbnf_schema(b, first, one, &err), &err);
    assert_ok(clb_gbnf_schema(b, second, two, &err), &err); /* its own $defs */
    assert_ok(clb_gbnf_schema(b, NULL, any, &err), &err);
    assert_ok(clb_gbnf_object(b, same, &err), &err);
    assert_ok(clb_gbnf_space(b, space, &err), &err);
    assert_ok(clb_gbnf_literal(&body, open, sizeof open - 1, &err), &err);
    assert_ok(
        clb_buf_printf(&body, &err, " %s \"}\" | \"2\" %s | \"3\" %s | \"4\" %s %s \"!\"", one, two, any, same, space),
        &err);
    assert_fails(clb_gbnf_literal(&gbnf, "\xFF", 1, &err), &err, COLIBRI_E_USAGE, "UTF-8");
    assert_ok(clb_gbnf_finish(b, body.data, &gbnf, &err), &err);
    assert_ok(clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &g, &err), &err);
    clb_gbnf_destroy(b);
    assert_true(accepts(g, "<call>\n{\"name\": \"f\\\x01\x7F\", \"arguments\": {\"x\": 5}}"));
    assert_false(accepts(g, "<call>\n{\"name\": \"f\\\x01\x7F\", \"arguments\": {\"x\": null}}"));
    assert_true(accepts(g, "2{\"x\":null}"));
    assert_false(accepts(g, "2{\"x\":5}"));
    assert_true(accepts(g, "3[true]"));
    assert_true(accepts(g, "4{\"a\":{}}\n  !"));
    assert_false(accepts(g, "4[] !"));
    clb_grammar_release(g);
    clb_buf_free(&body);
    gbnf.n = 0;
    assert_ok(clb_json_object_gbnf(&gbnf, &err), &err);
    assert_ok(clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &g, &err), &err);
    assert_true(accepts(g, "{\"a\": [1, {\"b\": null}]}"));
    assert_false(accepts(g, "[]"));
    clb_grammar_release(g);
    clb_buf_free(&gbnf);
    json_decref(first);
    json_decref(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_followed_is_refused_by_name_and_place),
        cmocka_unit_test(what_is_allowed_is_what_the_schema_says),
        cmocka_unit_test(hostile_schemas_end),
        cmocka_unit_test(parts_go_together),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
