/* An answer of a grammar or calls, nothing else, in every format: what grammars let through, and that readers tell one
 * from the other whatever is in an answer. */
#include "serve/schema.h"
#include "serve/tool_grammar.h"
#include "tool_replies.h"

/* An answer of a grammar of its own, whose rules have the names of ours. */
static const char words[] = "root ::= r1 (\",\" r1){1,2} # r1 in a comment [\n"
                            "r1 ::= [r1\\]]{2} | \"r1 \\\"root\" | <[7]> |\n  root-2\nroot-2 ::= (\"x\")\n";

static json_t *strict_tools;

static const char *address(const clb_tool_format *f)
{
    return f->shape == CLB_SHAPE_HARMONY              ? "<|channel|>final<|message|>"
           : strcmp(f->name, "functionary-v3.2") == 0 ? "all\n"
                                                      : "";
}

static const char *opened_by(const clb_tool_format *f)
{
    return strcmp(f->name, "functionary-v3.2") == 0 ? ">>>" : "";
}

static int grammar_of(const clb_tool_format *f, const json_t *of, const char *answer, clb_buf *gbnf, clb_error *err)
{
    gbnf->n = 0;
    return clb_tool_grammar_auto(&(clb_tool_auto){.format = f,
                                                  .vocab = vocab,
                                                  .tree = tree,
                                                  .tools = of,
                                                  .answer = answer,
                                                  .opened = opened_by(f),
                                                  .thoughts = true},
                                 gbnf, err);
}

static char *schema_grammar(const char *json)
{
    clb_buf gbnf = {0};
    clb_error err = {0};
    json_t *schema = json_loads(json, 0, NULL);
    assert_non_null(schema);
    assert_ok(clb_schema_to_gbnf(schema, &gbnf, &err), &err);
    json_decref(schema);
    return gbnf.data;
}

static void one_or_the_other(void **state)
{
    (void)state;
    static const char *const good[] = {"rr,11", "r1,]r,r1 \"root", "x,x"};
    static const char *const bad[] = {"", "rr", "rr,rr,rr,rr", "Hi", "answer-r1", "<tool_call>", "<|python_tag|>", "{"};
    clb_buf gbnf = {0};
    clb_error err = {0};
    test_rand rng = {29};
    size_t n_calls = 0;
    for (int with_marks = 0; with_marks < 2; with_marks++) {
        if (with_marks)
            use_marks();
        for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
            char text[8192];
            assert_ok(grammar_of(f, strict_tools, words, &gbnf, &err), &err);
            for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
                snprintf(text, sizeof text, "%s%s", address(f), good[i]);
                if (!follows(gbnf.data, text))
                    fail_msg("%s refuses: %s", f->name, text);
            }
            for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                snprintf(text, sizeof text, "%s%s", address(f), bad[i]);
                if (follows(gbnf.data, text) || follows(gbnf.data, bad[i]))
                    fail_msg("%s accepts: %s", f->name, text);
            }
            for (int round = 0; round < 4; round++) {
                char *one = whole_call(f, true, &rng);
                if (!one)
                    continue;
                const char *const written = one + strlen(opened_by(f));
                n_calls++;
                if (!follows(gbnf.data, written))
                    fail_msg("%s refuses: %s", f->name, written);
                snprintf(text, sizeof text, "%s%s%s", address(f), good[0], written);
                if (follows(gbnf.data, text))
                    fail_msg("%s accepts: %s", f->name, text);
                snprintf(text, sizeof text, "%s%s%s", written, address(f), good[0]);
                if (follows(gbnf.data, text))
                    fail_msg("%s accepts: %s", f->name, text);
                free(one);
            }
        }
        if (with_marks)
            use_plain();
    }
    assert_true(n_calls > 100);
    clb_buf_free(&gbnf);
}

/* Random replies of the grammar, one half of which begin as calls: calls that fit, or an answer of its format. */
static void random_replies(void **state)
{
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":"
                                 "\"string\"}},\"required\":[\"n\"],\"additionalProperties\":false}";
    char *const answer = schema_grammar(schema);
    clb_buf gbnf = {0};
    clb_error err = {0};
    test_rand rng = {31};
    size_t n_answers = 0, n_calls = 0;
    for (int with_marks = 0; with_marks < 2; with_marks++) {
        if (with_marks)
            use_marks();
        for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
            assert_ok(grammar_of(f, strict_tools, answer, &gbnf, &err), &err);
            for (int round = 0; round < 4; round++) {
                clb_buf text = {0};
                char begin[64];
                snprintf(begin, sizeof begin, "%s%s", round % 2 ? address(f) : "",
                         round % 2                                      ? "{\"n\":"
                         : f->bare                                      ? "{\"name\": \""
                         : round == 0 && f->open[0] && !opened_by(f)[0] ? f->open[0]
                                                                        : "");
                if (sample_from(gbnf.data, begin, &rng, &text)) {
                    reply r, pieces;
                    read_reply(f, opened_by(f), true, text.data, text.n + 1, &r);
                    read_reply(f, opened_by(f), true, text.data, 1, &pieces);
                    if (r.n != pieces.n || strcmp(r.content.data, pieces.content.data) != 0)
                        fail_msg("%s: other in pieces: %s", f->name, text.data);
                    if (r.n ? *r.content.data != '\0' : !follows(answer, r.content.data))
                        fail_msg("%s: %zu calls and \"%s\" in %s", f->name, r.n, r.content.data, text.data);
                    for (size_t k = 0; k < r.n; k++)
                        check_arguments(f, &r.calls[k], text.data);
                    n_calls += r.n > 0;
                    n_answers += r.n == 0;
                    free_reply(&r);
                    free_reply(&pieces);
                }
                clb_buf_free(&text);
            }
        }
        if (with_marks)
            use_plain();
    }
    assert_true(n_answers > 60 && n_calls > 60);
    clb_buf_free(&gbnf);
    free(answer);
}

/* Whole calls, thoughts and every mark within the answer are the answer's. */
static void marks_in_answers(void **state)
{
    (void)state;
    char *const answer =
        schema_grammar("{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}},\"required\":[\"s\"]}");
    clb_buf gbnf = {0};
    clb_error err = {0};
    test_rand rng = {37};
    size_t n = 0;
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        assert_ok(grammar_of(f, strict_tools, answer, &gbnf, &err), &err);
        for (const clb_tool_format *of = clb_tool_formats; of->name; of++) {
            char *one = of == f || test_rand_below(&rng, 6) == 0 ? whole_call(of, false, &rng) : NULL, text[16384];
            if (!one)
                continue;
            json_t *value = json_pack("{s:s+++}", "s", "<think>x</think><|END_RESPONSE|>", one, "<|end|>x",
                                      of->close[0] ? of->close[0] : "<|call|>");
            assert_non_null(value);
            char *json = json_dumps(value, JSON_COMPACT);
            assert_non_null(json);
            snprintf(text, sizeof text, "%s%s", address(f), json);
            if (!follows(gbnf.data, text))
                fail_msg("%s refuses: %s", f->name, text);
            for (size_t step = 1; step < 400; step *= 7) {
                reply r;
                read_reply(f, opened_by(f), true, text, step, &r);
                if (r.n || strcmp(r.content.data, json) != 0 || *r.thought.data)
                    fail_msg("%s: %zu calls and \"%s\" in %s", f->name, r.n, r.content.data, text);
                free_reply(&r);
            }
            n++;
            free(json);
            json_decref(value);
            free(one);
        }
    }
    assert_true(n > 60);
    clb_buf_free(&gbnf);
    free(answer);
}

/* An answer that may begin like a call. */
static void ambiguous(void **state)
{
    (void)state;
    static const char *const bare[] = {"llama3", "llama4"};
    static const char *const calls[] = {"{\"name\": \"ping\", \"parameters\": {}}",
                                        "{\"name\": \"get_weather\", \"parameters\": {\"city\":\"B\",\"days\":2}}"};
    clb_buf gbnf = {0}, object = {0};
    clb_error err = {0};
    assert_ok(clb_json_object_gbnf(&object, &err), &err);
    for (size_t i = 0; i < 2; i++) {
        const clb_tool_format *const f = clb_tool_format_by_name(bare[i]);
        assert_fails(grammar_of(f, strict_tools, object.data, &gbnf, &err), &err, COLIBRI_E_UNSUPPORTED,
                     "begin like a call");
        assert_ok(grammar_of(f, tools, object.data, &gbnf, &err), &err); /* nobody said strict */
        for (size_t k = 0; k < 2; k++) {
            reply r;
            assert_true(follows(gbnf.data, calls[k]));
            read_reply(f, "", true, calls[k], 5, &r);
            assert_int_equal(r.n, 1);
            free_reply(&r);
        }
        reply r;
        static const char other[] = "{\"name\": \"pong\", \"parameters\": {}}";
        assert_true(follows(gbnf.data, other));
        read_reply(f, "", true, other, 5, &r);
        assert_int_equal(r.n, 0);
        assert_string_equal(r.content.data, other);
        free_reply(&r);
    }
    assert_fails(grammar_of(clb_tool_format_by_name("hermes"), strict_tools, "root ::= .*", &gbnf, &err), &err,
                 COLIBRI_E_UNSUPPORTED, "begin like a call");
    assert_ok(grammar_of(clb_tool_format_by_name("hermes"), tools, "root ::= .*", &gbnf, &err), &err);
    assert_ok(grammar_of(clb_tool_format_by_name("hermes"), strict_tools, "root ::= [a-z]*", &gbnf, &err), &err);
    json_t *all = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"all\"}}]", 0, NULL);
    assert_fails(grammar_of(clb_tool_format_by_name("functionary-v3.2"), all, words, &gbnf, &err), &err,
                 COLIBRI_E_UNSUPPORTED, "\"all\"");
    json_decref(all);
    clb_buf_free(&gbnf);
    clb_buf_free(&object);
}

static void channels(void **state)
{
    (void)state;
    static const char thought[] = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    static const char *const ends[] = {"<|channel|>final<|message|>rr,11",
                                       "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}"};
    const clb_tool_format *const f = clb_tool_format_by_name("gpt-oss");
    clb_error err = {0};
    for (int thoughts = 0; thoughts < 2; thoughts++) {
        clb_buf gbnf = {0};
        assert_ok(
            clb_tool_grammar_auto(
                &(clb_tool_auto){.format = f, .vocab = vocab, .tools = tools, .answer = words, .thoughts = thoughts},
                &gbnf, &err),
            &err);
        for (size_t i = 0; i < 2; i++) {
            char text[256];
            snprintf(text, sizeof text, "%s%s", thought, ends[i]);
            assert_true(follows(gbnf.data, ends[i]));
            assert_int_equal(follows(gbnf.data, text), thoughts);
        }
        assert_false(follows(gbnf.data, "<|channel|>final<|message|>Hi"));
        assert_false(follows(gbnf.data, "rr,11"));
        clb_buf_free(&gbnf);
    }
}

static int load_both(void **state)
{
    size_t i;
    json_t *tool;
    if (load(state))
        return 1;
    strict_tools = json_deep_copy(tools);
    json_array_foreach(strict_tools, i, tool)
        json_object_set_new(json_object_get(tool, "function"), "strict", json_true());
    return 0;
}

static int unload_both(void **state)
{
    json_decref(strict_tools);
    return unload(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_or_the_other), cmocka_unit_test(random_replies), cmocka_unit_test(marks_in_answers),
        cmocka_unit_test(ambiguous),        cmocka_unit_test(channels),
    };
    return cmocka_run_group_tests(tests, load_both, unload_both);
}
