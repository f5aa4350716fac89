/* Schemas of functions' parameters that are odd, contradict themselves, or say more than a grammar of text can follow:
 * what the grammar lets through is read back as what the schema says, and the rest is refused for strict functions. */
#include "serve/tool_grammar.h"
#include "tool_schemas.h"

/* ---- what nobody has checked ---- */

static void lists_of_types(void **state)
{
    (void)state;
    refused("qwen3-coder",
            "{\"type\":\"object\",\"properties\":{\"p\":{\"type\":[\"string\",\"integer\",5]}},\"required\":[\"p\"]}",
            "\"type\" must be");
    refused("glm", "{\"properties\":{\"p\":{\"type\":[\"string\",null,{\"a\":1}]}}}", "\"type\" must be");
}

/* A rule that refers to one that could not be made. */
static void half_made(void **state)
{
    (void)state;
    static const char text[] =
        "{\"properties\":{\"p\":{\"$ref\":\"#/$defs/a\"},\"q\":{\"$ref\":\"#/$defs/a\"}},\"$defs\":{\"a\":{\"type\":"
        "\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/a\"}},\"x\":{\"type\":"
        "\"integer\",\"not\":{}}}}}}";
    refused("qwen3-coder", text, "not");
    refused("hermes", text, "not");
}

/* ---- the schema of all parameters ---- */

static void whole_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *words;
    } c[] = {
        {"{\"allOf\":[{\"properties\":{\"a\":{}}}]}", "allOf"},
        {"{\"properties\":{\"a\":{}},\"anyOf\":[{\"required\":[\"a\"]}]}", "anyOf"},
        {"{\"oneOf\":[{\"properties\":{\"a\":{}}}]}", "oneOf"},
        {"{\"properties\":{},\"additionalProperties\":{\"type\":\"integer\"}}", "additionalProperties"},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":1}", "minProperties"},
        {"{\"properties\":{\"a\":{}},\"required\":[\"a\",\"b\"]}", "of \"b\""},
        {"{\"properties\":{\"a\":{}},\"required\":[5]}", "required"},
        {"{\"properties\":{\"a\":{}},\"required\":true}", "required"},
        {"{\"properties\":[]}", "properties"},
        {"{\"properties\":{\"a\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}", "dependentRequired"},
        {"{\"properties\":{\"a\":{}},\"not\":{\"required\":[\"a\"]}}", "not"},
        {"{\"type\":\"string\"}", "type"},
        {"{\"type\":[\"object\",7]}", "type"},
        {"{\"$ref\":\"#/$defs/x\"}", "$ref"},
        {"{\"$ref\":7}", "$ref"},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":false}}", "false"},
        {"{\"$ref\":\"#/$defs/x\",\"required\":[\"a\"],\"$defs\":{\"x\":{\"properties\":{\"a\":{}}}}}", "required"},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"properties\":{\"a\":{}},\"minProperties\":1}}}", "minProperties"},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"$ref\":\"#/$defs/x\"}}}", "$ref"},
    };
    static const char *const of[] = {"qwen3-coder", "glm", "minimax", "deepseek-v3.2", "lfm2"};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            refused(of[k], c[i].schema, c[i].words);
}

#define END "</function>\n</tool_call>"

static void any_parameters(void **state)
{
    (void)state;
    static const char one[] = "<parameter=any_1>\nwords, <b>\n</parameter>\n<parameter=b>\n[1]\n</parameter>\n" END;
    static const char *const open[] = {"{}", "{\"type\":\"object\"}", "{\"additionalProperties\":true}"},
                             *const closed[] = {"{\"properties\":{}}", "{\"additionalProperties\":false}"},
                             *const odd[] = {"{\"properties\":null}", "{\"allOf\":[{\"properties\":{\"a\":{}}}]}",
                                             "{\"$ref\":\"#/$defs/x\"}"};
    for (size_t i = 0; i < 3; i++)
        for (int strict = 0; strict < 2; strict++) {
            assert_true(takes("qwen3-coder", open[i], strict, one));
            assert_true(takes("qwen3-coder", open[i], strict, END));
        }
    for (size_t i = 0; i < 2; i++) {
        assert_false(takes("qwen3-coder", closed[i], true, one));
        assert_false(takes("qwen3-coder", closed[i], false, one));
        assert_true(takes("qwen3-coder", closed[i], true, END));
    }
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        assert_true(takes("qwen3-coder", odd[i], false, one));
    static const char dsml[] = "<" BAR "DSML" BAR "parameter name=\"a\" string=\"%s\">%s</" BAR "DSML" BAR
                               "parameter>\n</" BAR "DSML" BAR "invoke>\n</" BAR "DSML" BAR "function_calls>";
    char text[400];
    snprintf(text, sizeof text, dsml, "true", "some words");
    assert_true(takes("deepseek-v3.2", "{}", false, text));
    snprintf(text, sizeof text, dsml, "false", "{\"a\": 1}");
    assert_true(takes("deepseek-v3.2", "{}", false, text));
    snprintf(text, sizeof text, dsml, "false", "some words");
    assert_false(takes("deepseek-v3.2", "{}", false, text));
    assert_true(takes("lfm2", "{}", false, "a=1, b=[true])]<|tool_call_end|>"));
    assert_true(takes("lfm2", "{}", false, ")]<|tool_call_end|>"));
}

/* Random calls with any parameters are calls in each format. */
static void random_parameters(void **state)
{
    (void)state;
    static const char *const of[] = {"qwen3-coder",   "seed-oss",    "glm", "minimax",
                                     "deepseek-v3.2", "deepseek-v4", "lfm2"};
    json_t *const mine = tools, *const free_ones = tools_with("{\"type\":\"object\"}", false);
    test_rand rng = {7};
    size_t members = 0, ended = 0;
    clb_buf whole = {0};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int round = 0; round < 12; round++) {
            const clb_tool_format *const f = clb_tool_format_by_name(of[i]);
            clb_buf gbnf = {0};
            clb_error err = {0};
            reply r;
            whole.n = 0;
            assert_ok(clb_tool_grammar(f, vocab, free_ones, NULL, true, &whole, &gbnf, &err), &err);
            ending = f->value_end;
            const bool over = sample(gbnf.data, &rng, &whole);
            ending = NULL;
            clb_buf_free(&gbnf);
            if (!over)
                continue;
            tools = free_ones;
            read_reply(f, "", false, whole.data, 5, &r);
            tools = mine;
            json_t *const v = r.n ? json_loadb(r.calls[0].arguments.data, r.calls[0].arguments.n, 0, NULL) : NULL;
            if (r.n != 1 || !r.calls[0].ended || !json_is_object(v) || *r.content.data)
                fail_msg("%s: %zu calls, \"%s\" in %s", of[i], r.n, r.content.data, whole.data);
            members += json_object_size(v);
            ended++;
            json_decref(v);
            free_reply(&r);
        }
    assert_true(ended > 20 && members > 10);
    clb_buf_free(&whole);
    json_decref(free_ones);
}

/* What the parser makes of the value; the caller's. */
static char *read_back(const char *parameters, const char *value)
{
    char text[600];
    reply r;
    json_t *const mine = tools;
    tools = tools_with(parameters, true);
    snprintf(text, sizeof text, "<tool_call>\n<function=f>\n<parameter=p>\n%s\n</parameter>\n" END, value);
    read_reply(clb_tool_format_by_name("qwen3-coder"), "", false, text, 7, &r);
    json_decref(tools);
    tools = mine;
    assert_int_equal(r.n, 1);
    json_t *const v = json_loadb(r.calls[0].arguments.data, r.calls[0].arguments.n, 0, NULL);
    char *const out = json_dumps(json_object_get(v, "p"), JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(v);
    free_reply(&r);
    return out;
}

/* All parameters as a reference, which the parser follows, too. */
static void whole_reference(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"$ref\":\"#/$defs/all\",\"$defs\":{\"all\":{\"type\":\"object\",\"properties\":{\"p\":{"
        "\"type\":\"integer\"}},\"required\":[\"p\"],\"additionalProperties\":false}}}";
    assert_true(takes("qwen3-coder", schema, true, "<parameter=p>\n5\n</parameter>\n" END));
    assert_false(takes("qwen3-coder", schema, true, "<parameter=p>\nx\n</parameter>\n" END));
    assert_false(takes("qwen3-coder", schema, true, END));
    static const char words[] =
        "{\"$ref\":\"#/$defs/all\",\"$defs\":{\"all\":{\"properties\":{\"p\":{\"type\":\"string\"}},"
        "\"required\":[\"p\"]}}}";
    char *const read = read_back(words, "5");
    assert_string_equal(read, "\"5\"");
    free(read);
}

/* ---- strings beside other things ---- */

static void strings(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *value, *read; /* NULL: the grammar does not take it */
    } c[] = {
        {"{\"enum\":[\"1\",2]}", "1", NULL}, /* would be a number */
        {"{\"enum\":[\"1\",2]}", "2", "2"},
        {"{\"enum\":[\"1\",\"2\"]}", "1", "\"1\""},
        {"{\"enum\":[\" true \",\"x\",false]}", " true ", NULL},
        {"{\"enum\":[\" true \",\"x\",null]}", " true ", "\" true \""},
        {"{\"enum\":[\"None\",\"x\",null]}", "None", NULL},
        {"{\"enum\":[\"[a]\",\"x\",[1]]}", "[a]", NULL},
        {"{\"enum\":[\"[a]\",\"x\",1]}", "[a]", "\"[a]\""},
        {"{\"type\":[\"string\",\"array\"]}", "5", "\"5\""}, /* no list */
        {"{\"type\":[\"string\",\"object\"]}", "True", "\"True\""},
        {"{}", "\"a</parameter>b\"", "\"a</parameter>b\""},
        {"{}", "\"a\"", "\"a\""},
        {"{\"anyOf\":[{\"enum\":[\"5\",\"b\"]},{\"type\":\"number\"}]}", "b", "\"b\""},
        {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3.0},{\"type\":\"null\"}]}", "abc", "\"abc\""},
        {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3.0},{\"type\":\"null\"}]}", "abcd", NULL},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"const\":null}]}", "null", "null"},
        {"{\"type\":[\"string\",\"integer\"],\"maxLength\":5}", "3", "3"},
        {"{\"type\":[\"string\",\"integer\"],\"maxLength\":5}", "3a", "\"3a\""},
        {"{\"$ref\":\"#/$defs/word\",\"maxLength\":2}", "ab", "\"ab\""},
        {"{\"$ref\":\"#/$defs/word\",\"maxLength\":2}", "abc", NULL},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/color\"}]}", "red", "\"red\""},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/color\"}]}", "blue", NULL},
        {"{\"oneOf\":[{\"const\":\"a\",\"title\":\"A\"},{\"const\":\"b\"}]}", "b", "\"b\""},
        {"{\"type\":\"string\",\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"x\"}]}", "x", "\"x\""},
        {"{\"type\":\"string\",\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"x\"}]}", "y", NULL},
        {"{\"anyOf\":[{\"type\":\"string\",\"const\":5},{\"type\":\"null\"},{\"const\":\"k\"}]}", "k", NULL},
        {"{\"type\":[\"string\",\"null\"],\"anyOf\":[{\"const\":\"k\"},{}]}", "null", "null"},
        {"{\"type\":[\"string\",\"null\"],\"anyOf\":[{\"const\":\"k\"},{}]}", "m", "\"m\""},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char schema[600], text[600];
        snprintf(schema, sizeof schema,
                 "{\"properties\":{\"p\":%s},\"required\":[\"p\"],\"$defs\":{\"word\":{\"type\":\"string\"},\"color\":{"
                 "\"type\":\"string\",\"enum\":[\"red\",\"green\"]}}}",
                 c[i].schema);
        snprintf(text, sizeof text, "<parameter=p>\n%s\n</parameter>\n" END, c[i].value);
        if (takes("qwen3-coder", schema, true, text) != (c[i].read != NULL))
            fail_msg("%s %s %s", c[i].schema, c[i].read ? "does not take" : "takes", c[i].value);
        char *const read = c[i].read ? read_back(schema, c[i].value) : NULL;
        if (read && strcmp(read, c[i].read) != 0)
            fail_msg("%s: %s is read as %s", c[i].schema, c[i].value, read);
        free(read);
    }
}

static void refused_strings(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *words;
    } c[] = {
        {"{\"type\":[\"string\",\"integer\"],\"maxLength\":5,\"minimum\":10}", "bounds"},
        {"{\"type\":[\"string\",\"integer\"],\"format\":\"date\",\"minimum\":10}", "bounds"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"const\":0}]}", "bounds"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"enum\":[true]}]}", "bounds"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"minProperties\":1}]}", "bounds"},
        {"{\"enum\":[\"a\",\"bb\"],\"minLength\":2}", "minLength"},
        {"{\"enum\":[\"a\",\"bb\"],\"const\":\"a\"}", "enum"},
        {"{\"const\":\"a\",\"pattern\":\"b\"}", "pattern"},
        {"{\"type\":\"string\",\"minLength\":2,\"anyOf\":[{\"const\":\"a\"}]}", "minLength"},
        {"{\"type\":\"string\",\"anyOf\":[{\"const\":\"a\"}],\"oneOf\":[{\"const\":\"b\"}]}", "oneOf"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"maxLength\":3}]}", "oneOf"},
        {"{\"type\":\"string\",\"not\":{\"const\":\"a\"}}", "not"},
        {"{\"type\":\"string\",\"if\":{\"const\":\"a\"},\"then\":false}", "if"},
        {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":3}", "format"},
        {"{\"type\":\"string\",\"format\":7}", "format"},
        {"{\"type\":\"string\",\"maxLength\":\"3\"}", "maxLength"},
        {"{\"type\":\"string\",\"minLength\":30000}", "minLength"},
        {"{\"allOf\":[{\"type\":\"string\",\"pattern\":\"a\"}]}", "pattern"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char schema[400];
        snprintf(schema, sizeof schema, "{\"properties\":{\"p\":%s},\"required\":[\"p\"]}", c[i].schema);
        refused("qwen3-coder", schema, c[i].words);
        if (strcmp(c[i].words, "bounds") != 0)
            refused("deepseek-v4", schema, c[i].words);
    }
    /* Others than strict functions: any text, which is read as what may be there. */
    assert_true(takes("qwen3-coder", "{\"properties\":{\"p\":{\"type\":[\"string\",\"integer\"],\"pattern\":\"a\"}}}",
                      false, "<parameter=p>\nany \"words\"\n</parameter>\n" END));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_types), cmocka_unit_test(half_made),         cmocka_unit_test(whole_schemas),
        cmocka_unit_test(any_parameters), cmocka_unit_test(random_parameters), cmocka_unit_test(whole_reference),
        cmocka_unit_test(strings),        cmocka_unit_test(refused_strings),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
