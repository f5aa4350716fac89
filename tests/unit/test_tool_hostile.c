/* Parameters of functions whose schemas are odd, contradict themselves or are made to take for ever: each is followed,
 * refused by name or left free, in no time. */
#include <time.h>

#include "serve/tool_grammar.h"
#include "serve/tool_impl.h"
#include "tool_replies.h"

#define SECONDS 10 /* with sanitizers; without such limits it would be minutes to centuries */

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One function `f` with these parameters. */
static json_t *tools_with(const char *parameters, bool strict)
{
    json_error_t e;
    json_t *const schema = json_loads(parameters, 0, &e);
    if (!schema)
        fail_msg("%s: %.200s", e.text, parameters);
    json_t *const v = json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function", "function", "name", "f", "strict",
                                strict, "parameters", schema);
    assert_non_null(v);
    return v;
}

/* The grammar of a call that must be. */
static int grammar_of(const char *format, const char *parameters, bool strict, clb_buf *prefill, clb_buf *gbnf,
                      clb_error *err)
{
    json_t *const of = tools_with(parameters, strict);
    const double begin = cpu();
    const int rc = clb_tool_grammar(clb_tool_format_by_name(format), vocab, of, NULL, true, prefill, gbnf, err);
    if (cpu() - begin > SECONDS)
        fail_msg("%s: %.1f s for %.100s", format, cpu() - begin, parameters);
    json_decref(of);
    return rc;
}

/* Refused for a strict function with these words; followed or left free for others. */
static void refused(const char *format, const char *parameters, const char *words)
{
    clb_buf gbnf = {0}, prefill = {0};
    clb_error err = {0};
    if (!grammar_of(format, parameters, true, &prefill, &gbnf, &err) || !strstr(err.msg, words))
        fail_msg("%s: \"%s\" instead of \"%s\" for %.200s", format, err.msg, words, parameters);
    prefill.n = gbnf.n = 0;
    assert_ok(grammar_of(format, parameters, false, &prefill, &gbnf, &err), &err);
    clb_buf_free(&gbnf);
    clb_buf_free(&prefill);
}

/* ---- what nobody has checked ---- */

static void lists_of_types(void **state)
{
    (void)state;
    refused("qwen3-coder",
            "{\"type\":\"object\",\"properties\":{\"p\":{\"type\":[\"string\",\"integer\",5]}},\"required\":[\"p\"]}",
            "\"type\" must be");
}

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
        text.n = 0;
        assert_ok(clb_buf_printf(&text, &err, "{\"properties\":{\"p\":{\"$ref\":\"#/$defs/d0\"}},\"$defs\":{"), &err);
        for (int i = 0; i < 14; i++)
            assert_ok(clb_buf_printf(&text, &err,
                                     "\"d%d\":{\"%s\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":"
                                     "\"#/$defs/d%d\"}]},",
                                     i, lists[kind % 3], i + 1, i + 1, i + 1),
                      &err);
        assert_ok(clb_buf_printf(&text, &err, "\"d14\":%s}}", last[kind / 3]), &err);
        for (int strict = 0; strict < 2; strict++) {
            clb_buf gbnf = {0}, prefill = {0};
            const int rc = grammar_of("glm", text.data, strict, &prefill, &gbnf, &err);
            assert_true(strict || rc == COLIBRI_OK);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_types),
        cmocka_unit_test(cycles),
        cmocka_unit_test(many_ways),
        cmocka_unit_test(known_types),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
