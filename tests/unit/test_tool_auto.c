/* Grammars under which the model may call: text, thoughts or an answer of a grammar, and calls that fit; in every
 * format, with marks that are words and marks that are control tokens. */
#include "serve/tool_grammar.h"
#include "tool_replies.h"

#define PING "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>"

static clb_buf made; /* the grammar at hand */

static const char *grammar_with(clb_tool_auto o)
{
    clb_error err = {0};
    o.vocab = vocab;
    o.tree = tree;
    o.tools = o.tools ? o.tools : tools;
    made.n = 0;
    if (clb_tool_grammar_auto(&o, &made, &err))
        fail_msg("%s: %s", o.format->name, err.msg);
    return made.data;
}

static const clb_tool_format *format(const char *name)
{
    const clb_tool_format *const f = clb_tool_format_by_name(name);
    assert_non_null(f);
    return f;
}

/* In front of calls, where text may stand. */
static const char *text_before(const clb_tool_format *f)
{
    return f->shape == CLB_SHAPE_HARMONY ? "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant" : "Well. ";
}

static void expect_all(const char *gbnf, const char *const *texts, size_t n, bool good)
{
    for (size_t i = 0; i < n; i++)
        if (follows(gbnf, texts[i]) != good)
            fail_msg("%s: %s", good ? "refuses" : "accepts", texts[i]);
}
#define ACCEPTS(gbnf, texts) expect_all(gbnf, texts, sizeof(texts) / sizeof *(texts), true)
#define REFUSES(gbnf, texts) expect_all(gbnf, texts, sizeof(texts) / sizeof *(texts), false)

/* Text is free up to the mark, calls are not. */
static void free_text(void **state)
{
    (void)state;
    static const char *const good[] = {"",
                                       "Hello <b>world</b> <<<",
                                       "<tool_cal",
                                       "<tool_call",
                                       "<tool_<tool_calls>",
                                       "a <tool> <tool_x> <tool_call x",
                                       "<think>\nhm\n</think>\n\n",
                                       "Text\n" PING,
                                       PING "\n" PING,
                                       "<" PING,
                                       "<tool_call" PING};
    static const char *const bad[] = {
        "<tool_call>", "x <tool_call> y", "<tool_call>\n{\"name\": \"pong\"",
        PING " more",  "<<tool_call>",    "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}\n</tool_call>"};
    const char *const gbnf = grammar_with((clb_tool_auto){.format = format("hermes")});
    ACCEPTS(gbnf, good);
    REFUSES(gbnf, bad);
}

/* A text of n characters more than a grammar's calls may nest. */
static void long_text(void **state)
{
    (void)state;
    clb_buf text = {0};
    clb_error err = {0};
    const char *const gbnf = grammar_with((clb_tool_auto){.format = format("deepseek-v3.2")});
    for (int i = 0; i < 4000; i++)
        assert_ok(clb_buf_append(&text, i % 3 ? "<a" : "\xC3\xBC.", i % 3 ? 2 : 3, &err), &err);
    assert_true(follows(gbnf, text.data));
    clb_buf_free(&text);
}

/* Whatever mark of the format comes first: what follows it is a call that fits. */
static void every_mark(void **state)
{
    (void)state;
    size_t n_formats = 0, n_marks = 0;
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        if (!clb_tool_may_be_constrained(f))
            continue;
        n_formats++;
        const char *const gbnf = grammar_with((clb_tool_auto){.format = f, .one_call = true});
        for (size_t i = 0; i < CLB_MARKS && f->open[i]; i++, n_marks++) {
            char text[128];
            snprintf(text, sizeof text, "some <text>%s", f->open[i]);
            if (follows(gbnf, text))
                fail_msg("%s: accepts %s", f->name, text);
            strcat(text, "x");
            if (follows(gbnf, text))
                fail_msg("%s: accepts %s", f->name, text);
            text[strlen(text) - 2] = '\0';
            if (!follows(gbnf, text))
                fail_msg("%s: refuses %s", f->name, text);
        }
    }
    assert_true(n_formats >= 26 && n_marks >= n_formats + 8);
}

/* The mark that the model leaves the outer one out for. */
static void second_mark(void **state)
{
    (void)state;
#define CITY  "<parameter=city>\nB</div>\n</parameter>\n"
#define DAYS  "<parameter=days>\n3\n</parameter>\n"
#define CALL  "<function=get_weather>\n" CITY DAYS "</function>"
#define BARE  "<function=ping>\n</function>"
#define OUTER "<tool_call>\n" BARE "\n</tool_call>"
    static const char *const good[] = {
        CALL,  "Text " CALL "\n</tool_call>", OUTER, BARE "\n" OUTER, BARE "\n</tool_call>\n" CALL "\n</tool_call>",
        OUTER, "a <function> <functions>",
    };
    static const char *const bad[] = {
        "<function=",
        "<function=pong>\n</function>",
        "Text <function=ping>",
        "<function=get_weather>\n" CITY "</function>",
        "<function=get_weather>\n" CITY "<parameter=days>\n77\n</parameter>\n</function>",
        "<tool_call>\n<function=pong>\n</function>\n</tool_call>",
        BARE " text",
    };
    const char *gbnf = grammar_with((clb_tool_auto){.format = format("qwen3-coder")});
    ACCEPTS(gbnf, good);
    REFUSES(gbnf, bad);
    gbnf = grammar_with((clb_tool_auto){.format = format("deepseek-v3.2")});
#define D(word) "<" BAR "DSML" BAR word ">"
#define E(word) "</" BAR "DSML" BAR word ">"
    static const char *const both[] = {
        D("tool_calls") "\n" D("invoke name=\"ping\"") "\n" E("invoke") "\n" E("tool_calls"),
        D("function_calls") "\n" D("invoke name=\"ping\"") "\n" E("invoke") "\n" E("function_calls")};
    static const char *const neither[] = {
        D("tool_calls"), D("tool_calls") "\n" D("invoke name=\"pong\"") "\n" E("invoke") "\n" E("tool_calls")};
    ACCEPTS(gbnf, both);
    REFUSES(gbnf, neither);
    gbnf = grammar_with((clb_tool_auto){.format = format("functools")});
    static const char *const words[] = {"import functools\nfunctools.reduce",
                                        "functools[{\"name\": \"ping\", \"arguments\": {}}]",
                                        "x functools[{\"name\": \"ping\", \"arguments\": {}}]"};
    static const char *const calls[] = {"functools[", "x functools[{\"name\": \"pong\", \"arguments\": {}}]"};
    ACCEPTS(gbnf, words);
    REFUSES(gbnf, calls);
}

static void channels(void **state)
{
    (void)state;
#define ANALYSIS "<|channel|>analysis<|message|>hm <|x|><|end|><|start|>assistant"
#define FINAL    "<|channel|>final<|message|>Hello"
#define TO_PING  "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}"
    static const char *const good[] = {FINAL,
                                       ANALYSIS FINAL,
                                       TO_PING,
                                       ANALYSIS TO_PING,
                                       ANALYSIS
                                       "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" TO_PING,
                                       " to=functions.ping<|channel|>commentary json<|message|>{}",
                                       ANALYSIS "<|channel|>commentary to=functions.ping<|message|>{}"};
    static const char *const bad[] = {"<|channel|>commentary to=functions.pong <|constrain|>json<|message|>{}",
                                      "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{\"a\":1}",
                                      " to=python<|channel|>commentary<|message|>x",
                                      FINAL
                                      "<|end|><|start|>assistant<|channel|>commentary to=functions.pong<|message|>{}"};
    for (int i = 0; i < 2; i++) {
        if (i)
            use_marks();
        const char *const gbnf = grammar_with((clb_tool_auto){.format = format("gpt-oss")});
        ACCEPTS(gbnf, good);
        REFUSES(gbnf, bad);
        if (i)
            use_plain();
    }
}

/* Marks within thoughts begin nothing; behind them they do. */
static void thoughts(void **state)
{
    (void)state;
    static const char *const good[] = {"I could say <tool_call>.", "<tool_call></think>\n\nHello", ("x</think>" PING)};
    static const char *const bad[] = {"x</think><tool_call>", "x</think> a <tool_call> b", "x</think>" PING " y"};
    for (int i = 0; i < 2; i++) {
        if (i)
            use_marks();
        const char *gbnf =
            grammar_with((clb_tool_auto){.format = format("qwen3-coder"), .opened = "<think>", .thoughts = true});
        assert_true(follows(gbnf, "I could say <function=x>.</think> Hello"));
        assert_false(follows(gbnf, "I could say <function=x>.</think> <function=x>"));
        if (i) { /* a token of its own, which text does not have */
            gbnf = grammar_with((clb_tool_auto){.format = format("qwen3-coder"), .thoughts = true});
            assert_true(follows(gbnf, "\n<think>I could say <function=x>.</think> Hello"));
            assert_false(follows(gbnf, "\n<think>I could say.</think> <function=x>"));
            gbnf = grammar_with((clb_tool_auto){.format = format("qwen3-coder")});
            assert_false(follows(gbnf, "\n<think>I could say <function=x>.</think> Hello"));
            use_plain();
            break;
        }
        gbnf = grammar_with((clb_tool_auto){.format = format("hermes"), .opened = "<think>", .thoughts = true});
        ACCEPTS(gbnf, good);
        REFUSES(gbnf, bad);
        gbnf = grammar_with((clb_tool_auto){.format = format("hermes"), .opened = "<think>"}); /* they are the answer */
        assert_false(follows(gbnf, good[0]));
    }
}

/* A mark that no text has ends a thought, and what follows it is a call that fits. */
static void calls_in_thoughts(void **state)
{
    (void)state;
#define KIMI(name)                                                                                                     \
    "<|tool_calls_section_begin|><|tool_call_begin|>functions." name ":0<|tool_call_argument_begin|>{}"                \
    "<|tool_call_end|><|tool_calls_section_end|>"
    static const char *const good[] = {"hm", "hm</think>Hello", "hm" KIMI("ping"), "hm</think>" KIMI("ping")};
    static const char *const bad[] = {"hm<|tool_calls_section_begin|>", "hm" KIMI("pong"), "hm</think>" KIMI("pong"),
                                      "hm<|tool_calls_section_begin|> is a mark</think>Hello"};
    for (int i = 0; i < 2; i++) {
        if (i)
            use_marks();
        const char *const gbnf =
            grammar_with((clb_tool_auto){.format = format("kimi-k2"), .opened = "<think>", .thoughts = true});
        ACCEPTS(gbnf, good);
        REFUSES(gbnf, bad);
        if (i)
            use_plain();
    }
}

/* Where marks are tokens, text has others, too. */
static void marks_that_are_tokens(void **state)
{
    (void)state;
    test_rand rng = {5};
    size_t n_formats = 0, n_calls = 0;
    use_marks();
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        if (!clb_tool_may_be_constrained(f))
            continue;
        n_formats++;
        const char *const gbnf = grammar_with((clb_tool_auto){.format = f});
        if (f->shape != CLB_SHAPE_HARMONY) {
            if (!follows(gbnf,
                         "Hi <b>there</b> [1] <think>hm</think> [THINK]x[/THINK]y <|channel>thought\nz<channel|>"))
                fail_msg("%s: text and thoughts are refused", f->name);
            assert_true(follows(gbnf, ""));
            assert_false(follows(gbnf, "a <other> b")); /* a token that is nobody's mark */
        }
        for (int round = 0; round < 4; round++) {
            char text[8192], *one = whole_call(f, round % 2, &rng);
            if (!one)
                continue;
            n_calls++;
            snprintf(text, sizeof text, "%s%s", text_before(f), one);
            if (!follows(gbnf, text))
                fail_msg("%s: refused: %s", f->name, text);
            snprintf(text, sizeof text, "%s more", one);
            if (follows(gbnf, text))
                fail_msg("%s: text after the call: %s", f->name, text);
            char *name = strstr(text, "get_weather");
            if (name || (name = strstr(text, "ping")) != NULL) {
                text[strlen(text) - 5] = '\0';
                name[3] = 'X';
                if (follows(gbnf, text))
                    fail_msg("%s: another function is called: %s", f->name, text);
            }
            free(one);
        }
    }
    assert_true(n_formats >= 26 && n_calls > 2 * n_formats);
    use_plain();
}

/* Random texts, some of which begin with a mark: calls in them fit. */
static void calls_fit(void **state)
{
    (void)state;
    test_rand rng = {23};
    size_t n_calls = 0;
    for (int with_marks = 0; with_marks < 2; with_marks++) {
        if (with_marks)
            use_marks();
        for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
            if (!clb_tool_may_be_constrained(f))
                continue;
            clb_buf begin = {0};
            const char *const gbnf = grammar_with((clb_tool_auto){.format = f});
            for (size_t i = 0; i < CLB_MARKS; i++) {
                clb_error err = {0};
                clb_buf text = {0};
                begin.n = 0;
                if (i > 0 && !f->open[i])
                    continue;
                assert_ok(clb_buf_printf(&begin, &err, "%s%s", text_before(f),
                                         f->open[i] ? f->open[i] : "<|channel|>commentary to="),
                          &err);
                if (sample_from(gbnf, begin.data, &rng, &text)) {
                    reply r;
                    read_reply(f, "", false, text.data, 1 + test_rand_below(&rng, 4), &r);
                    n_calls += r.n;
                    if (!r.n || strcmp(r.content.data, "Well.") != 0)
                        fail_msg("%s: %zu calls and \"%s\" in %s", f->name, r.n, r.content.data, text.data);
                    for (size_t k = 0; k < r.n; k++)
                        check_arguments(f, &r.calls[k], text.data);
                    free_reply(&r);
                }
                clb_buf_free(&text);
            }
            clb_buf_free(&begin);
        }
        if (with_marks)
            use_plain();
    }
    assert_true(n_calls > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_text),         cmocka_unit_test(long_text), cmocka_unit_test(every_mark),
        cmocka_unit_test(second_mark),       cmocka_unit_test(channels),  cmocka_unit_test(thoughts),
        cmocka_unit_test(calls_in_thoughts), cmocka_unit_test(calls_fit), cmocka_unit_test(marks_that_are_tokens),
    };
    const int failed = cmocka_run_group_tests(tests, load, unload);
    clb_buf_free(&made);
    return failed;
}
