/* Grammars of tool calls: whatever they let through is read back as calls with arguments of the schema, in every
 * format. */
#include "serve/tool_grammar.h"
#include "tool_replies.h"

/* Random replies under one choice; returns how many came to an end. */
static int check(const clb_tool_format *f, const char *only, bool one, test_rand *rng)
{
    clb_buf prefill = {0}, gbnf = {0};
    clb_error err = {0};
    int complete = 0;
    if (clb_tool_grammar(f, vocab, tools, only, one, &prefill, &gbnf, &err))
        fail_msg("%s: %s", f->name, err.msg);
    for (int round = 0; round < 3; round++) {
        clb_buf text = {0};
        reply r;
        if (!sample(gbnf.data, rng, &text)) {
            clb_buf_free(&text);
            continue;
        }
        complete++;
        read_reply(f, prefill.n ? prefill.data : "", false, text.data, 3, &r);
        if (r.n == 0 || r.content.n > 1 || r.thought.n > 1 || (one && r.n != 1))
            fail_msg("%s: %zu calls and content \"%s\" from\n%s\n----\n%s", f->name, r.n, r.content.data,
                     prefill.data ? prefill.data : "", text.data);
        for (size_t i = 0; i < r.n; i++) {
            if (only)
                assert_string_equal(r.calls[i].name, only);
            check_arguments(f, &r.calls[i], text.data);
        }
        free_reply(&r);
        clb_buf_free(&text);
    }
    clb_buf_free(&prefill);
    clb_buf_free(&gbnf);
    return complete;
}

static void check_every_format(void)
{
    test_rand rng = {3};
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        int complete = check(f, "get_weather", true, &rng);
        complete += check(f, "ping", false, &rng);
        complete += check(f, NULL, true, &rng);
        complete += check(f, NULL, false, &rng);
        if (complete < 3)
            fail_msg("%s: only %d of 12 texts came to an end", f->name, complete);
    }
}

static void every_format(void **state)
{
    (void)state;
    check_every_format();
}

/* The same where the marks are control tokens. */
static void marks_that_are_tokens(void **state)
{
    (void)state;
    use_marks();
    check_every_format();
    use_plain();
}

static void refusals(void **state)
{
    (void)state;
    clb_buf prefill = {0}, gbnf = {0};
    clb_error err = {0};
    assert_fails(
        clb_tool_grammar(clb_tool_format_by_name("hermes"), vocab, tools, "nobody", true, &prefill, &gbnf, &err), &err,
        COLIBRI_E_USAGE, "nobody");
    clb_buf_free(&prefill);
    clb_buf_free(&gbnf);
    /* a schema that no grammar can follow: an error for strict functions, any object for others */
    for (int strict = 0; strict < 2; strict++) {
        json_t *odd =
            json_pack("[{s:s, s:{s:s, s:b, s:{s:s, s:{s:{s:{s:s}}}}}}]", "type", "function", "function", "name", "f",
                      "strict", strict, "parameters", "type", "object", "properties", "a", "not", "type", "string");
        assert_non_null(odd);
        const int rc =
            clb_tool_grammar(clb_tool_format_by_name("hermes"), vocab, odd, NULL, true, &prefill, &gbnf, &err);
        assert_int_equal(rc != COLIBRI_OK, strict);
        json_decref(odd);
        clb_buf_free(&prefill);
        clb_buf_free(&gbnf);
        prefill = gbnf = (clb_buf){0};
    }
}

static void tools_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *json, *param, *part;
    } c[] = {
        {"{}", "tools", "list"},
        {"[1]", "tools[0].type", "function"},
        {"[{\"type\":\"web\"}]", "tools[0].type", "function"},
        {"[{\"type\":\"function\"}]", "tools[0].function", "a function"},
        {"[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", "tools[0].function.parameters",
         "object"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":1}}]", "tools[0].function.description",
         "string"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]", "tools[0].function.strict",
         "true or false"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{\"name\":\"a\"}}"
         "]",
         "tools[1].function.name", "same name"},
    };
    clb_error err = {0};
    char param[64];
    assert_ok(clb_tools_check(tools, param, &err), &err);
    assert_string_equal(param, "");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        json_t *v = json_loads(c[i].json, 0, NULL);
        assert_non_null(v);
        assert_fails(clb_tools_check(v, param, &err), &err, COLIBRI_E_USAGE, c[i].part);
        assert_string_equal(param, c[i].param);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format),
        cmocka_unit_test(marks_that_are_tokens),
        cmocka_unit_test(refusals),
        cmocka_unit_test(tools_are_checked),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
