/* Replies that are cut short, typed by a schema, in the wrong place, of odd names, or nothing but marks. */
#include <time.h>

#include "serve/tools.h"
#include "tool_transcripts.h"

/* Replies that were cut by their length: half a call is not shown, and what was understood is not lost. */
static void cut_by_length(void **state)
{
    (void)state;
    static const struct {
        const char *format, *opened, *text, *want;
    } c[] = {
        {"hermes", "", "I look.\n\n<tool_call>{\"na", "\nC:I look."},
        {"hermes", "", "I look.\n\n<tool_call>", "\nC:I look."},
        {"hermes", "", "I look.<tool_ca", "\nC:I look."},
        {"hermes", "", "<tool_call>\n{\"name\": \"pi", ""},
        {"hermes", "<tool_call>\n", "{\"name\": \"pi", ""},
        {"hermes", "", "<tool_call>{\"name\": \"ping\", \"argu", "\nping)"},
        {"hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"<", "\nping({\"a\": \"<)"},
        {"hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": \"{\\\"a\\", "\nping({\"a)"},
        {"hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_c", "\nping({})"},
        {"hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call> a <t", "\nping({})\nC: a"},
        {"hermes", "", "<tool_call>{\"name\": \"ping\"}\n{\"na", "\nping({})"},
        {"hermes", "", "<tool_call> not a", "\nC:<tool_call> not a"}, /* it was none before the cut */
        {"hermes", "", "Hi <b", "\nC:Hi <b"},
        {"hermes", "", "Hi ", "\nC:Hi "},
        {"hermes", "", " <thi", "\nC: "},
        {"hermes", "<think>", "hm</thi", "\nR:hm"},
        {"hermes", "<think>", "hm <b", "\nR:hm <b"},
        {"qwen3-coder", "", "Hi\n<tool_call>\n<function=get_wea", "\nC:Hi"},
        {"qwen3-coder", "", "Hi\n<func", "\nC:Hi\n"},
        {"qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<par", "\nget_weather)"},
        {"qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<parameter=ci", "\nget_weather)"},
        {"qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</para",
         "\nget_weather({\"city\": \"Bern)"},
        {"qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</para",
         "\nget_weather({\"days\": )"},
        {"qwen3-coder", "", "<tool_call>\n<function=ping>\n</function>\n</tool", "\nping({})"},
        {"glm", "", "<tool_call>get_wea", ""},
        {"glm", "", "<tool_call>get_weather\n<arg_key>city</arg", "\nget_weather)"},
        {"glm", "", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_val", "\nget_weather({\"city\": \")"},
        {"minimax", "", "<minimax:tool_call>\n<invoke name=\"get", ""},
        {"deepseek-v3.2", "", "Hi" DSML "function_ca", "\nC:Hi"},
        {"deepseek-v3.1", "", "Hi" DS("calls" LOW "begin") DS("call" LOW "begin") "get_wea", "\nC:Hi"},
        {"deepseek-v3.1", "", DS("calls" LOW "begin") DS("call" LOW "begin") "ping" DS("sep") "{}<", "\nping({})"},
        {"kimi-k2", "", "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_arg", ""},
        {"mistral", "", "Text[TOOL_CALLS]get_wea", "\nC:Text"},
        {"mistral-v3", "", "[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}, {\"na", "\nping({})"},
        {"functionary-v3.2", ">>>", "all\nHello\n>>>get_wea", "\nC:Hello"},
        {"functionary-v3.2", ">>>", "all\nPython says >>> print(1) and then ",
         "\nC:Python says >>> print(1) and then "},
        {"functionary-v3.1", "", "<function=get_weather", ""},
        {"hunyuan", "", "<tool_calls>\n<tool_call>ping\n```js", ""},
        {"granite", "", "<|tool_call|>[{\"name\": \"pi", ""},
        {"apertus", "", "Hi<|tools_prefix|>[{\"get_wea", "\nC:Hi"},
        {"command-r", "", "Action: ```json\n[\n    {\n        \"tool_na", ""},
        {"command-r7b", "", "<|START_RESPONSE|>Hello<|END_RES", "\nC:Hello"},
        {"llama3", "", "{\"name\": \"get_wea", ""},
        {"llama3", "", "{\"na", ""},
        {"llama3", "", "{\"name\": \"Anna", "\nC:{\"name\": \"Anna"},
        {"llama3", "", "{\"city\": \"Be", "\nC:{\"city\": \"Be"},
        {"llama3", "", "<|python_tag|>{\"name\": \"get_wea", ""},
        {"lfm2", "", "Hi<|tool_call_start|>[get_wea", "\nC:Hi"},
        {"lfm2", "", "<|tool_call_start|>[get_weather(ci", "\nget_weather)"},
        {"gemma4", "", "<|tool_call>call:get_wea", ""},
        {"gemma4", "", "<|tool_call>call:get_weather{city:<|\"|>Zu<|\"", "\nget_weather({\"city\": \"Zu)"},
        {"gpt-oss", "", "<|channel|>analysis<|message|>hm<|end|><|start|>assi", "\nR:hm"},
        {"gpt-oss", "", "<|channel|>commentary to=functions.get_wea", ""},
        {"gpt-oss", "", "<|channel|>final<|message|>Hello <|en", "\nC:Hello "},
        {"gpt-oss", "", "Hello", "\nC:Hello"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        expect_cut(c[i].format, c[i].opened, c[i].text, c[i].want);
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": \"{\\\"a\\", "\nping({\"a)");
    expect("qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<parameter=ci", "\nget_weather)");
    expect("lfm2", "", "<|tool_call_start|>[get_weather(ci", "\nget_weather)");
}

/* Calls within thoughts: text where the mark may be quoted, calls where it is a token of its own. */
static void in_thoughts(void **state)
{
    (void)state;
#define HERMES_PING "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>"
#define KIMI_PING                                                                                                      \
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"   \
    "<|tool_calls_section_end|>"
    expect("hermes", "<think>", "I could write " HERMES_PING ".</think>Hello",
           "\nR:I could write " HERMES_PING ".\nC:Hello");
    expect("hermes", "<think>", "x</think>" HERMES_PING, "\nR:x\nping({})");
    expect("kimi-k2", "<think>", "I call.\n" KIMI_PING, "\nR:I call.\nping({})");
    expect("kimi-k2", "<think>", "I know <|tool_calls_section_begin|> as a mark.</think>Hello",
           "\nR:I know <|tool_calls_section_begin|> as a mark.\nC:Hello");
    expect("deepseek-v3.1", "<think>",
           "hm" DS("calls" LOW "begin") DS("call" LOW "begin") "ping" DS("sep") "{}" DS("call" LOW "end")
               DS("calls" LOW "end"),
           "\nR:hm\nping({})");
    expect("mistral", "[THINK]", "hm[TOOL_CALLS]ping[ARGS]{}", "\nR:hm\nping({})");
    expect("kimi-k2", "<think>", "hm" KIMI_PING KIMI_PING "\n</think>\nHello", "\nR:hm\nping({})\nping({})\nC:Hello");
    expect_cut("kimi-k2", "<think>", "hm <|tool_calls_sec", "\nR:hm");
    expect_cut("kimi-k2", "<think>", "hm<|tool_calls_section_begin|><|tool_call_begin|>functions.pi", "\nR:hm");
}

/* Names that are odd, and marks of the family in strings of arguments. */
static void odd_calls(void **state)
{
    (void)state;
    expect("hermes", "", "<tool_call>{\"name\": \"p\\u0069ng\", \"arguments\": {}}</tool_call>", "\nping({})");
    expect("hermes", "", "<tool_call>{\"name\": \"a\\\"b\\u0000\", \"arguments\": {}}</tool_call>",
           "\na\\\"b\\u0000({})");
    expect("hermes", "", "<tool_call>{\"name\": \"f.g-h_1\", \"arguments\": {}}</tool_call>", "\nf.g-h_1({})");
    expect("hermes", "", "<tool_call>{\"name\": \"</tool_call>\", \"arguments\": {}}</tool_call>",
           "\n</tool_call>({})");
    expect("hermes", "", "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
           "\nC:<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>");
    expect("apertus", "", "<|tools_prefix|>[{\"p\\u0069ng\": {}}]<|tools_suffix|>", "\nping({})");
    expect("kimi-k2", "",
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b-c:12<|tool_call_argument_begin|>{}",
           "\na.b-c({})");
    expect("lfm2", "", "<|tool_call_start|>[f.g-h_1(a=\")]<|tool_call_end|>\")]<|tool_call_end|>",
           "\nf.g-h_1({\"a\": \")]<|tool_call_end|>\"})");
    expect("gemma4", "", "<|tool_call>call:f.g-1{a:<|\"|>}<tool_call|>{<|\"|>}<tool_call|>",
           "\nf.g-1({\"a\": \"}<tool_call|>{\"})");
    expect("mistral", "", "[TOOL_CALLS]f.g-1[ARGS]{\"a\": \"[TOOL_CALLS]x[ARGS]{}\"}",
           "\nf.g-1({\"a\": \"[TOOL_CALLS]x[ARGS]{}\"})");
    expect("gpt-oss", "",
           "<|channel|>commentary to=functions.f.g-1 <|constrain|>json<|message|>{\"a\": \"<|end|><|call|>\"}<|call|>",
           "\nf.g-1({\"a\": \"<|end|><|call|>\"})");
    expect("deepseek-v3", "",
           DS("calls" LOW "begin")
               DS("call" LOW "begin") "function" DS("sep") "f\n```json\n{\"a\": \"```\"}\n```" DS("call" LOW "end")
                   DS("calls" LOW "end"),
           "\nf({\"a\": \"```\"})");
}

#define GIVEN(name, text, json)                                                                                        \
    expect("qwen3-coder", "", "<function=get_weather>\n<parameter=" name ">\n" text "\n</parameter>\n</function>",     \
           "\nget_weather({\"" name "\": " json "})")

/* What text means where the schema says the type, in whatever words. */
static void typed_text(void **state)
{
    (void)state;
    GIVEN("city", "5", "\"5\"");
    GIVEN("units", "5", "\"5\"");
    GIVEN("units", "\"5\"", "\"\\\"5\\\"\"");
    GIVEN("units", "null", "null");
    GIVEN("opt", "true", "\"true\"");
    GIVEN("opt", "None", "null");
    GIVEN("opt", "Bern", "\"Bern\"");
    GIVEN("mode", "1", "\"1\"");
    GIVEN("list", "[1]", "[1]");
    GIVEN("list", "['a']", "[\"a\"]");
    GIVEN("list", "a, b", "\"a, b\"");
    GIVEN("any", "\"5\"", "\"5\"");
    GIVEN("any", "5", "5");
    GIVEN("days", "2.0", "2.0");
    /* closing marks in strings of JSON, and what only looks like such a string */
    GIVEN("places", "[\"</parameter>\", 1]", "[\"</parameter>\", 1]");
    GIVEN("any", "{\"a\": \"</parameter></function>\\\"</parameter>\"}",
          "{\"a\": \"</parameter></function>\\\"</parameter>\"}");
    GIVEN("places", "['6\" pipe']", "[\"6\\\" pipe\"]");
    GIVEN("places", "[6\" pipe", "\"[6\\\" pipe\"");
    GIVEN("city", "[\"</div>", "\"[\\\"</div>\"");
    expect("glm", "", "<tool_call>ping\n<arg_key>x</arg_key>\n<arg_value>[\"</arg_value>\"]</arg_value>\n</tool_call>",
           "\nping({\"x\": [\"</arg_value>\"]})");
    expect_cut("qwen3-coder", "", "<function=get_weather>\n<parameter=places>\n[\"</parameter>\", 1",
               "\nget_weather({\"places\": )");
}

#define MINIMAX(values)     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n" values "</invoke>\n</minimax:tool_call>"
#define M_VALUE(name, text) "<parameter name=\"" name "\">" text "</parameter>\n"
#define GLM(values)         "<tool_call>get_weather\n" values "</tool_call>"
#define G_VALUE(name, text) "<arg_key>" name "</arg_key>\n<arg_value>" text "</arg_value>\n"
#define TWO(a, b)           "\nget_weather({\"units\": " a ", \"any\": " b "})"

/* What begins like JSON and is none ends at its own closing mark, not at that of the next parameter. */
static void no_json(void **state)
{
    (void)state;
    static const struct {
        const char *minimax, *glm, *want;
    } c[] = {
#define BOTH(a, b, want)                                                                                               \
    {MINIMAX(M_VALUE("units", a) M_VALUE("any", b)), GLM(G_VALUE("units", a) G_VALUE("any", b)), want}
        BOTH("[5\" disk", "x", TWO("\"[5\\\" disk\"", "\"x\"")),
        BOTH("{5\" disk", "6\" x", TWO("\"{5\\\" disk\"", "\"6\\\" x\"")),
        BOTH("x", "[5\" disk", TWO("\"x\"", "\"[5\\\" disk\"")),
#undef BOTH
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        expect("minimax", "", c[i].minimax, c[i].want);
        expect("glm", "", c[i].glm, c[i].want);
    }
    /* without a line between them: whether what there is up to a later mark is JSON decides */
    expect("glm", "",
           "<tool_call>get_weather<arg_key>units</arg_key><arg_value>[5\" disk</arg_value><arg_key>any</arg_key>"
           "<arg_value>6\" x</arg_value></tool_call>",
           TWO("\"[5\\\" disk\"", "\"6\\\" x\""));
    expect("glm", "",
           "<tool_call>get_weather<arg_key>any</arg_key><arg_value>['5\" </arg_value> 6\" x']</arg_value></tool_call>",
           "\nget_weather({\"any\": \"['5\\\" </arg_value> 6\\\" x']\"})");
    expect("glm", "",
           "<tool_call>get_weather<arg_key>places</arg_key><arg_value>['5\" </arg_value> x']</arg_value></tool_call>",
           "\nget_weather({\"places\": [\"5\\\" </arg_value> x\"]})");
}

/* Each byte of a long value is looked at once, though it is given out as a whole and comes in small pieces. */
static void long_value(void **state)
{
    (void)state;
    enum { N_MARKS = 63, N_BYTES = 400000 };
    static const char begin[] =
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"any\">{\"a\": \"";
    clb_buf text = {0};
    clb_error err = {0};
    sink s;
    assert_ok(clb_buf_append(&text, begin, strlen(begin), &err), &err);
    for (int i = 0; i < N_MARKS; i++)
        assert_ok(clb_buf_append(&text, "</parameter>", 12, &err), &err);
    for (int i = 0; i < N_BYTES; i++)
        assert_ok(clb_buf_append(&text, &"abcdefgh"[i % 8], 1, &err), &err);
    assert_ok(clb_buf_printf(&text, &err, "\"}</parameter>\n</invoke>\n</minimax:tool_call>"), &err);
    const clock_t before = clock();
    parse("minimax", "", text.data, text.n, 0, 4, true, false, &s);
    const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_int_equal(s.log.n, strlen("\nget_weather({\"any\": {\"a\": \"\"}})") + 12 * N_MARKS + N_BYTES);
    if (seconds > 5) /* 0.01 s; each byte for each piece: minutes */
        fail_msg("%d bytes took %.1f s", N_BYTES, seconds);
    clb_buf_free(&s.log);
    clb_buf_free(&text);
}

/* The same where values are Python's or stand in braces: strings, words and lists. */
static void long_literals(void **state)
{
    (void)state;
    enum { N_BYTES = 400000 };
    static const struct {
        const char *format, *begin, *part, *end;
    } c[] = {
        {"gemma4", "<|tool_call>call:ping{a:<|\"|>", "abcdefgh", "<|\"|>}<tool_call|>"},
        {"gemma4", "<|tool_call>call:ping{a:", "abcd efg", "}<tool_call|>"},
        {"gemma4", "<|tool_call>call:ping{\"a\":\"", "abcd\\\"fg", "\"}<tool_call|>"},
        {"lfm2", "<|tool_call_start|>[ping(a='", "abcdefgh", "')]<|tool_call_end|>"},
        {"lfm2", "<|tool_call_start|>[ping(a=[", "[1, 2], ", "])]<|tool_call_end|>"},
        {"lfm2", "<|tool_call_start|>[ping(a={'b': 'x'}, b={\"", "abcdefgh", "\": None})]<|tool_call_end|>"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        clb_buf text = {0};
        clb_error err = {0};
        sink s;
        assert_ok(clb_buf_append(&text, c[i].begin, strlen(c[i].begin), &err), &err);
        for (int k = 0; k < N_BYTES; k += 8)
            assert_ok(clb_buf_append(&text, c[i].part, 8, &err), &err);
        assert_ok(clb_buf_append(&text, c[i].end, strlen(c[i].end), &err), &err);
        const clock_t before = clock();
        parse(c[i].format, "", text.data, text.n, 0, 4, true, false, &s);
        const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
        const char *const json = strchr(s.log.data, '{');
        json_t *const v = json ? json_loadb(json, strlen(json) - 1, 0, NULL) : NULL;
        if (!v || s.log.n < N_BYTES)
            fail_msg("%s: %.80s...", c[i].format, s.log.data);
        if (seconds > 5) /* 0.02 s */
            fail_msg("%s: %d bytes took %.1f s", c[i].format, (int)N_BYTES, seconds);
        json_decref(v);
        clb_buf_free(&s.log);
        clb_buf_free(&text);
    }
}

/* Words between blanks, and escapes of JSON: the model writes the arguments as JSON where a grammar makes it. */
static void pretty_printed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } c[] = {
        {"{\"a\": true }", "{\"a\": true}"},
        {"{\"a\": null\n}", "{\"a\": null}"},
        {"{\n  \"a\": false\n, \"b\": 5\r\n,\t\"c\": -1.5e3\t\n}", "{\"a\": false, \"b\": 5, \"c\": -1.5e3}"},
        {"{\"a\": [ 1 , 2\n, null ] , \"b\": { \"c\": True } }", "{\"a\": [1, 2, null], \"b\": {\"c\": true}}"},
        {"{a : New York , b : 1 }", "{\"a\": \"New York\", \"b\": 1}"},
        {"{\"a\": \"\\b\\f\\n\\r\\t\\/\\\"\\\\\\u0041\"}", "{\"a\": \"\\b\\f\\n\\r\\t/\\\"\\\\\\u0041\"}"},
        {"{\"a\": \"\\u12x4\"}", "{\"a\": \"\\\\u12x4\"}"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char text[256], want[256];
        snprintf(text, sizeof text, "<|tool_call>call:ping%s<tool_call|>", c[i].text);
        snprintf(want, sizeof want, "\nping(%s)", c[i].want);
        expect("gemma4", "", text, want);
    }
    expect("lfm2", "", "<|tool_call_start|>[ping(a=\"\\b\\f\", b=[true , null\n])]<|tool_call_end|>",
           "\nping({\"a\": \"\\b\\f\", \"b\": [true, null]})");
}

/* The schema of all parameters is somewhere else. */
static void root_ref(void **state)
{
    (void)state;
    json_t *const before = tools;
    tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$ref\":\"#/$defs/all\",\"$defs\":{"
        "\"all\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"t\":{\"$ref\":\"#/$defs/"
        "text\"},\"n\":{\"type\":\"integer\"}}},\"text\":{\"type\":\"string\"}}}}}]",
        0, NULL);
    assert_non_null(tools);
    expect("qwen3-coder", "",
           "<function=f>\n<parameter=s>\n5\n</parameter>\n<parameter=t>\ntrue\n</parameter>\n<parameter=n>\n5\n"
           "</parameter>\n</function>",
           "\nf({\"s\": \"5\", \"t\": \"true\", \"n\": 5})");
    json_decref(tools);
    tools = before;
}

/* Any bytes: no crash, every byte of the answer or of arguments given out at most once, the end is reached. */
static void noise(void **state)
{
    (void)state;
    static const char *const words[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "\"name\"",
                                        ": ",
                                        "\"ping\"",
                                        "\"arguments\"",
                                        ",",
                                        "\n",
                                        " ",
                                        "<function=",
                                        "ping",
                                        ">",
                                        "<parameter=",
                                        "city",
                                        "</parameter>",
                                        "</function>",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "<think>",
                                        "</think>",
                                        "<|tool_calls_section_begin|>",
                                        "<|tool_call_begin|>",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call_end|>",
                                        "<|channel|>",
                                        "<|message|>",
                                        "<|start|>",
                                        "<|end|>",
                                        "to=functions.ping",
                                        "commentary",
                                        "call:",
                                        "<|tool_call>",
                                        "<|\"|>",
                                        "(",
                                        ")",
                                        "=",
                                        "'",
                                        "<|tool_call_start|>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "\\",
                                        "<",
                                        "null",
                                        "1",
                                        "\"parameters\"",
                                        "\"tool_name\"",
                                        "```json\n",
                                        "```",
                                        "True",
                                        "\"",
                                        ">>>",
                                        "all\n",
                                        " functools[",
                                        "Action: ",
                                        "<invoke name=\"ping\">",
                                        "</invoke>",
                                        "<parameter name=\"days\">",
                                        "\xC3\xBC",
                                        "get_weather"};
    test_rand rng = {11};
    uint32_t n_formats = 0;
    while (clb_tool_formats[n_formats].name)
        n_formats++;
    for (int round = 0; round < 20000; round++) {
        clb_buf text = {0};
        clb_error err;
        const size_t n = 1 + test_rand_below(&rng, 8);
        for (size_t i = 0; i < n; i++) {
            const char *w = words[test_rand_below(&rng, sizeof words / sizeof *words)];
            assert_ok(clb_buf_append(&text, w, strlen(w), &err), &err);
        }
        const clb_tool_format *const f = &clb_tool_formats[test_rand_below(&rng, n_formats)];
        const int how = (int)test_rand_below(&rng, 8);
        for (size_t i = 0; i < CLB_MARKS; i++) { /* marks of its own are more telling */
            const char *const own[] = {f->open[i], f->close[i], i ? f->call_close : f->call_open,
                                       i ? f->sep : f->key_end};
            const char *const w = own[test_rand_below(&rng, 4)];
            if (w && test_rand_below(&rng, 2))
                assert_ok(clb_buf_append(&text, w, strlen(w), &err), &err);
            for (size_t k = test_rand_below(&rng, 8); k > 0; k--) {
                const char *more = words[test_rand_below(&rng, sizeof words / sizeof *words)];
                assert_ok(clb_buf_append(&text, more, strlen(more), &err), &err);
            }
        }
        const char *const opened = test_rand_below(&rng, 3) ? "" : "<think>";
        sink whole, cut;
        parse_how(f, opened, text.data, text.n, 0, 0, how, &whole);
        parse_how(f, opened, text.data, text.n, 0, 1 + test_rand_below(&rng, 5), how, &cut);
        if (strcmp(whole.log.data ? whole.log.data : "", cut.log.data ? cut.log.data : "") != 0)
            fail_msg("%s (%d): %s\ngives%s\n---- and in pieces%s", f->name, how, text.data, whole.log.data,
                     cut.log.data);
        clb_buf_free(&whole.log);
        clb_buf_free(&cut.log);
        clb_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_by_length), cmocka_unit_test(typed_text),    cmocka_unit_test(in_thoughts),
        cmocka_unit_test(odd_calls),     cmocka_unit_test(no_json),       cmocka_unit_test(root_ref),
        cmocka_unit_test(long_value),    cmocka_unit_test(long_literals), cmocka_unit_test(pretty_printed),
        cmocka_unit_test(noise),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
