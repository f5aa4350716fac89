/* Schemas of functions' parameters that are made to take for ever: each is followed, refused by name or left free, in
 * no time. */
#include "serve/tool_grammar.h"
#include "tool_schemas.h"

/* ---- references to each other ---- */

static void cycles(void **state)
{
    (void)state;
    static const char branch[] = "{\"$ref\":\"#/$defs/a\"}";
    clb_buf text = {0};
    clb_error err = {0};
    for (int kind = 0; kind < 3; kind++) {
        static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
        text.n = 0;
        assert_ok(
            clb_buf_printf(&text, &err, "{\"properties\":{\"p\":%s},\"$defs\":{\"a\":{\"%s\":[{}", branch, lists[kind]),
            &err);
        text.n -= 2; /* without the {} */
        for (int i = 0; i < 10; i++)
            assert_ok(clb_buf_printf(&text, &err, "%s%s", i ? "," : "", branch), &err);
        assert_ok(clb_buf_printf(&text, &err, "]}}}"), &err);
        json_t *const root = json_loads(text.data, 0, NULL);
        assert_non_null(root);
        const double begin = cpu();
        assert_int_equal(clb_schema_types(root, json_object_get(json_object_get(root, "properties"), "p")),
                         CLB_TYPE_ANY);
        assert_true(cpu() - begin < SECONDS);
        json_decref(root);
        refused("minimax", text.data, "");
    }
    clb_buf_free(&text);
}

/* Each definition three times the next one. */
static void many_ways(void **state)
{
    (void)state;
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    static const char *const last[] = {"{\"type\":\"string\"}", "{\"enum\":[\"some word\",7]}", "{\"type\":\"array\"}"};
    clb_buf text = {0};
    clb_error err = {0};
    for (int kind = 0; kind < 9; kind++) {
        if (kind % 3 == 2 && kind > 2) /* the same work each time */
            continue;
        text.n = 0;
        assert_ok(clb_buf_printf(&text, &err, "{\"properties\":{\"p\":{\"$ref\":\"#/$defs/d0\"}},\"$defs\":{"), &err);
        for (int i = 0; i < 14; i++)
            assert_ok(clb_buf_printf(&text, &err,
                                     "\"d%d\":{\"%s\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":"
                                     "\"#/$defs/d%d\"}]},",
                                     i, lists[kind % 3], i + 1, i + 1, i + 1),
                      &err);
        assert_ok(clb_buf_printf(&text, &err, "\"d14\":%s}}", last[kind / 3]), &err);
        for (int strict = kind == 2; strict < 2; strict++) {
            clb_buf gbnf = {0}, prefill = {0};
            const int rc = grammar_of("glm", text.data, strict, &prefill, &gbnf, &err);
            if (!strict)
                assert_ok(rc, &err);
            clb_buf_free(&gbnf);
            clb_buf_free(&prefill);
        }
    }
    clb_buf_free(&text);
}

/* Few lines of alternatives are followed: the types of both. */
static void known_types(void **state)
{
    (void)state;
    json_t *const root =
        json_loads("{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/b\"},{\"type\":\"null\"}]},\"b\":{\"oneOf\":[{"
                   "\"const\":\"x\"},{\"type\":\"integer\"}]}}}",
                   0, NULL);
    json_t *const p = json_loads("{\"$ref\":\"#/$defs/a\"}", 0, NULL);
    assert_int_equal(clb_schema_types(root, p), CLB_TYPE_STRING | CLB_TYPE_INTEGER | CLB_TYPE_NULL);
    json_decref(root);
    json_decref(p);
    json_t *const words = json_array(), *const of = json_pack("{s:O}", "enum", words);
    for (int i = 0; i < 50000; i++)
        json_array_append_new(words, json_string("word"));
    assert_int_equal(clb_schema_types(of, of), CLB_TYPE_STRING); /* many, but not many schemas */
    json_decref(words);
    json_decref(of);
}

/* ---- many of everything ---- */

static void add(clb_buf *text, const char *item, size_t n)
{
    clb_error err = {0};
    for (size_t i = 0; i < n; i++) {
        assert_ok(clb_buf_printf(text, &err, i ? "," : ""), &err);
        assert_ok(clb_buf_printf(text, &err, item, i), &err);
    }
}

/* n properties, m required names, k bytes of definitions. */
static void sized(const char *property, size_t n, size_t m, size_t k, const char *words)
{
    clb_buf text = {0};
    clb_error err = {0};
    assert_ok(clb_buf_printf(&text, &err, "{\"properties\":{"), &err);
    add(&text, property, n);
    assert_ok(clb_buf_printf(&text, &err, "},\"required\":["), &err);
    add(&text, "\"p%zu\"", m);
    assert_ok(clb_buf_printf(&text, &err, "],\"$defs\":{\"a\":{\"enum\":["), &err);
    add(&text, "\"word%zu\"", k / 12);
    assert_ok(clb_buf_printf(&text, &err, "]},\"b\":{\"type\":\"string\"}}}"), &err);
    static const char *const of[] = {"deepseek-v4", "lfm2"};
    for (size_t i = 0; i < 2; i++) {
        if (*words)
            refused(of[i], text.data, words);
        clb_buf gbnf = {0}, prefill = {0};
        if (!*words)
            (void)grammar_of(of[i], text.data, i == 0, &prefill, &gbnf, &err);
        clb_buf_free(&gbnf);
        clb_buf_free(&prefill);
    }
    clb_buf_free(&text);
}

static void many(void **state)
{
    (void)state;
    sized("\"p%zu\":{}", 10000, 0, 500000, "more than 5000 properties");
    sized("\"p%zu\":{}", 40000, 0, 0, "more than 5000 properties");
    sized("\"p%zu\":{\"type\":\"string\"}", 4000, 40000, 0, "");
    sized("\"p%zu\":{}", 4000, 4000, 500000, "");
    sized("\"p%zu\":{\"$ref\":\"#/$defs/a\"}", 4000, 4000, 500000, "");
    sized("\"p%zu\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}", 4000, 0, 500000, "");
    sized("\"p%zu\":{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}", 4000, 0, 500000, "");
    sized("\"p%zu\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/a\"}}", 4000, 0, 500000, "");
}

/* What one function may cost, all of them together do. */
static void many_functions(void **state)
{
    (void)state;
    static const char *const of[] = {"qwen3-coder", "hermes"};
    clb_buf text = {0};
    clb_error err = {0};
    assert_ok(clb_buf_printf(&text, &err,
                             "{\"properties\":{\"p\":{\"$ref\":\"#/$defs/d0\"}},\"required\":[\"p\"],\"$defs\":{"),
              &err);
    for (int i = 0; i < 14; i++)
        assert_ok(
            clb_buf_printf(&text, &err,
                           "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/"
                           "$defs/d%d\"}]},",
                           i, i + 1, i + 1, i + 1),
            &err);
    assert_ok(clb_buf_printf(&text, &err, "\"d14\":{\"type\":\"string\"}}}"), &err);
    json_t *const all = json_array();
    for (int i = 0; i < 100; i++) {
        json_t *const one = tools_with(text.data, false);
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        json_object_set_new(json_object_get(json_array_get(one, 0), "function"), "name", json_string(name));
        json_array_extend(all, one);
        json_decref(one);
    }
    for (size_t i = 0; i < 2; i++) {
        clb_buf gbnf = {0}, prefill = {0};
        const double begin = cpu();
        assert_ok(clb_tool_grammar(clb_tool_format_by_name(of[i]), vocab, all, NULL, true, &prefill, &gbnf, &err),
                  &err);
        assert_true(cpu() - begin < SECONDS);
        clb_buf_free(&gbnf);
        clb_buf_free(&prefill);
    }
    json_decref(all);
    clb_buf_free(&text);
}

/* Alternatives of alternatives that have nothing in common: schema_apart. */
static void apart(void **state)
{
    (void)state;
    clb_buf text = {0};
    clb_error err = {0};
    assert_ok(
        clb_buf_printf(&text, &err,
                       "{\"properties\":{\"p\":{\"oneOf\":[{\"$ref\":\"#/$defs/d0\"},{\"const\":1}]}},\"$defs\":{"),
        &err);
    for (int i = 0; i < 8; i++) {
        assert_ok(clb_buf_printf(&text, &err, "\"d%d\":{\"anyOf\":[", i), &err);
        for (int k = 0; k < 60; k++)
            assert_ok(clb_buf_printf(&text, &err, "%s{\"$ref\":\"#/$defs/d%d\"}", k ? "," : "", i + 1), &err);
        assert_ok(clb_buf_printf(&text, &err, "]},"), &err);
    }
    assert_ok(clb_buf_printf(&text, &err, "\"d8\":{\"const\":2}}}"), &err);
    clb_buf gbnf = {0}, prefill = {0};
    assert_int_equal(grammar_of("glm", text.data, true, &prefill, &gbnf, &err), COLIBRI_E_LIMIT);
    clb_buf_free(&gbnf);
    clb_buf_free(&prefill);
    clb_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cycles), cmocka_unit_test(many_ways),      cmocka_unit_test(known_types),
        cmocka_unit_test(many),   cmocka_unit_test(many_functions), cmocka_unit_test(apart),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
