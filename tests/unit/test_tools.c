/* Replies of every family of templates, cut at every byte: thoughts, answer and calls are the same whatever the pieces.
 */
#include <string.h>

#include "serve/tool_impl.h"
#include "support.h"

#define BAR       "\xEF\xBD\x9C"
#define LOW       "\xE2\x96\x81"
#define DS(words) "<" BAR "tool" LOW words BAR ">"
#define DSML      "<" BAR "DSML" BAR
#define DSML_END  "</" BAR "DSML" BAR

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"units\":{\"type\":[\"string\",\"null\"]},"
    "\"places\":{\"type\":\"array\"},\"flag\":{\"type\":\"boolean\"},\"any\":{},"
    "\"opt\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"mode\":{\"$ref\":\"#/$defs/m\"},"
    "\"list\":{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}},"
    "\"$defs\":{\"m\":{\"enum\":[\"1\",\"2\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";

/* What a parser gave out, as text: "R{thought}C{content}[name id-or-*](arguments)" ... */
typedef struct sink {
    clb_buf log;
    enum clb_piece_kind last;
    bool any, open;
    char ids[32][40];
    uint32_t n;
} sink;

static void add(sink *s, const char *text, size_t n)
{
    clb_error err;
    assert_ok(clb_buf_append(&s->log, text, n, &err), &err);
}

static int on_piece(void *ctx, const clb_piece *p, clb_error *err)
{
    sink *s = ctx;
    (void)err;
    if (!s->any || s->last != p->kind || p->kind == CLB_PIECE_CALL) {
        static const char *const begin[] = {"\nC:", "\nR:", "\n", "(", ""};
        add(s, begin[p->kind], strlen(begin[p->kind]));
    }
    if (p->kind == CLB_PIECE_CALL) {
        assert_false(s->open);
        assert_int_equal(p->index, s->n);
        assert_true(s->n < 32);
        snprintf(s->ids[s->n++], 40, "%s", p->id);
        add(s, p->name, strlen(p->name));
        s->open = true;
    } else if (p->kind == CLB_PIECE_CALL_END) {
        assert_true(s->open);
        s->open = false;
        add(s, ")", 1);
    } else {
        assert_true(p->n > 0);
        assert_int_equal(s->open, p->kind == CLB_PIECE_ARGUMENTS);
        add(s, p->text, p->n);
    }
    s->last = p->kind;
    s->any = true;
    return COLIBRI_OK;
}

static json_t *tools;

enum { WITH_TOOLS = 1, CUT_OFF = 2, ANSWER = 4 };

static void parse_how(const clb_tool_format *f, const char *opened, const char *text, size_t n, size_t cut, size_t step,
                      int how, sink *s)
{
    clb_error err = {0};
    clb_reply_parser *p;
    const clb_reply_parser_options o = {.format = f,
                                        .tools = how & WITH_TOOLS ? tools : NULL,
                                        .reasoning = true,
                                        .answer = how & ANSWER,
                                        .opened = opened,
                                        .on_piece = on_piece,
                                        .ctx = s};
    assert_non_null(f);
    *s = (sink){.any = false};
    assert_ok(clb_reply_parser_create(&o, &p, &err), &err);
    if (step)
        for (size_t i = 0; i < n; i += step)
            assert_ok(clb_reply_parser_feed(p, text + i, n - i < step ? n - i : step, &err), &err);
    else {
        assert_ok(clb_reply_parser_feed(p, text, cut, &err), &err);
        assert_ok(clb_reply_parser_feed(p, text + cut, n - cut, &err), &err);
    }
    if (how & CUT_OFF)
        clb_reply_parser_cut(p);
    assert_ok(clb_reply_parser_finish(p, &err), &err);
    assert_int_equal(clb_reply_parser_calls(p), s->n);
    assert_false(s->open);
    clb_reply_parser_free(p);
}

static void parse(const char *format, const char *opened, const char *text, size_t n, size_t cut, size_t step,
                  bool with_tools, bool cut_off, sink *s)
{
    parse_how(clb_tool_format_by_name(format), opened, text, n, cut, step,
              (with_tools ? WITH_TOOLS : 0) | (cut_off ? CUT_OFF : 0), s);
}

/* The whole, and cut at every byte, and byte by byte; ended by the model, or by its length. */
static void expect_end(const char *format, const char *opened, const char *text, bool cut_off, const char *want)
{
    const size_t n = strlen(text);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        sink s;
        parse(format, opened, text, n, cut <= n ? cut : 0, cut > n, true, cut_off, &s);
        if (strcmp(s.log.data ? s.log.data : "", want) != 0)
            fail_msg("%s, cut at %zu of %zu:\n%s\ngives\n%s\n---- instead of\n%s", format, cut, n, text,
                     s.log.data ? s.log.data : "", want);
        clb_buf_free(&s.log);
    }
}

/* What is shown of a reply that is cut by its length anywhere is a beginning of what is shown of the whole. */
static void expect_beginnings(const char *format, const char *opened, const char *text, const char *want)
{
    for (size_t n = 0; n < strlen(text); n++) {
        sink s;
        parse(format, opened, text, n, 0, 1, true, true, &s);
        size_t k = s.log.n;
        if (k && s.last == CLB_PIECE_CALL_END)
            k--;
        while (k && strchr(" \n(", s.log.data[k - 1]))
            k--;
        if (k >= 3 && memcmp(s.log.data + k - 3, "\nC:", 3) == 0) /* white space that a call may yet follow */
            k -= 3;
        if (k && memcmp(s.log.data, want, k < strlen(want) ? k : strlen(want) + 1) != 0)
            fail_msg("%s, cut off after %zu:\n%s\nshows\n%s\n---- which does not begin\n%s", format, n, text,
                     s.log.data, want);
        clb_buf_free(&s.log);
    }
}

static void expect(const char *format, const char *opened, const char *text, const char *want)
{
    expect_end(format, opened, text, false, want);
    expect_beginnings(format, opened, text, want);
}

static void expect_cut(const char *format, const char *opened, const char *text, const char *want)
{
    expect_end(format, opened, text, true, want);
}

#define CALL "\nget_weather({\"city\": \"Z\xC3\xBCrich\", \"days\": 2})"
#define ARGS "{\"city\": \"Z\xC3\xBCrich\", \"days\": 2}"

static void hermes(void **state)
{
    (void)state;
    expect("hermes", "", "Hello <b> world </tool_call> {\"a\": 1}", "\nC:Hello <b> world </tool_call> {\"a\": 1}");
    expect("hermes", "", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS "}\n</tool_call>", CALL);
    expect("hermes", "",
           "<think>\nwell\n</think>\n\nI look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS
           "}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
           "\nR:well\nC:I look." CALL "\nping({})");
    expect("hermes", "<think>", "well\n</think>\n\nDone \n", "\nR:well\nC:Done \n");
    expect("hermes", "", "<tool_call>{\"arguments\": " ARGS ", \"name\": \"get_weather\"}</tool_call>", CALL);
    expect("hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call> after", "\nping({})\nC: after");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": null}</tool_call>", "\nping({})");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
           "\nping({\"a\": 1})");
    expect("hermes", "",
           "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"arguments\": {}}}</tool_call>",
           "\nping({})");
    /* braces, marks and quotes within strings */
    expect("hermes", "",
           "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": \"}\\\"</tool_call>{\", \"b\": [{}]}}</tool_call>",
           "\nping({\"a\": \"}\\\"</tool_call>{\", \"b\": [{}]})");
    /* mistakes */
    expect("hermes", "", "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}}\n</tool_call>", "\nping({})");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": {\"a\": [1, ", "\nping({\"a\": [1, )");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"argu", "\nping)");
    expect("hermes", "", "<tool_call>{\"na", "\nC:<tool_call>{\"na");
    expect("hermes", "", "a <tool_call> b", "\nC:a <tool_call> b");
    expect("hermes", "", "a <tool_ca", "\nC:a <tool_ca");
    /* cut in the mark of one more call: nothing was said */
    expect("hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call>\n<t", "\nping({})");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call><tool_call", "\nping({})");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call>\n<tx", "\nping({})\nC:\n<tx");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\"}</tool_call> a <t", "\nping({})\nC: a");
    expect("hermes", "", "<tool_call>\n{\"city\": 1}\n</tool_call>", "\nC:<tool_call>\n{\"city\": 1}\n</tool_call>");
    expect("hermes", "", "<tool_call>{\"name\": \"ping\", \"arguments\": {}}\n{\"name\": \"ping\", \"arguments\": {}}",
           "\nping({})\nping({})");
    /* the other way of the same marks */
    expect("hermes", "", "<tool_call>\n<function=ping>\n</function>\n</tool_call>", "\nping({})");
    expect("qwen3-coder", "", "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "\nping({})");
    /* within a grammar the prompt holds the beginning */
    expect("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ", ARGS "}\n</tool_call>", CALL);
    expect("generic", "", "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "\nping({})");
    expect("hermes", "<think>", "no end", "\nR:no end");
    expect("hermes", "", "<think>no end ", "\nR:no end");
    expect("hermes", "", " <thi", "\nC: <thi");
    expect("hermes", "", " text", "\nC: text");
    expect("hermes", "", "", "");
    expect("hermes", "", " \n", "\nC: \n");
}

static void xml(void **state)
{
    (void)state;
    expect("qwen3-coder", "",
           "I "
           "look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZ\xC3\xBCrich\n</"
           "parameter>\n<parameter=days>\n2\n"
           "</parameter>\n</function>\n</tool_call>",
           "\nC:I look." CALL);
    expect("qwen3-coder", "",
           "<function=get_weather>\n<parameter=city>\n  a\nb\"\\ "
           "<c>\n\n</parameter>\n<parameter=units>\nnull\n</parameter>\n"
           "<parameter=places>\n[1, 'x', "
           "True]\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n<parameter=any>\nhello\n</parameter>"
           "\n</function>\n</tool_call>",
           "\nget_weather({\"city\": \"  a\\nb\\\"\\\\ <c>\\n\", \"units\": null, \"places\": [1, \"x\", true], "
           "\"flag\": true, "
           "\"any\": \"hello\"})");
    /* the model forgot to close a parameter */
    expect(
        "qwen3-coder", "",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n<parameter=days>\n3\n</function>\n</tool_call>",
        "\nget_weather({\"city\": \"Bern\", \"days\": 3})");
    expect("qwen3-coder", "", "<tool_call>\n<function=get_weather>\n<parameter=city>\nBer",
           "\nget_weather({\"city\": \"Ber)");
    expect("qwen3-coder", "", "<tool_call>\n<function=get_wea", "\nC:<tool_call>\n<function=get_wea");
    expect("seed-oss", "",
           "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Z\xC3\xBCrich</"
           "parameter>\n"
           "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>",
           "\nR:hm" CALL);
    expect("glm", "<think>",
           "hm</think>\nI "
           "look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Z\xC3\xBCrich</"
           "arg_value>\n<arg_key>days</arg_key>"
           "\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
           "\nR:hm\nC:I look." CALL "\nping({})");
    expect("glm", "",
           "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Z\xC3\xBCrich</arg_value><arg_key>days</"
           "arg_key><arg_value>2"
           "</arg_value></tool_call><tool_call>ping</tool_call>",
           CALL "\nping({})");
    expect("minimax", "<think>",
           "hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
           "name=\"city\">Z\xC3\xBCrich</parameter>\n"
           "<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>",
           "\nR:hm" CALL "\nping({})");
    expect("deepseek-v3.2", "",
           "Text\n\n" DSML "function_calls>\n" DSML "invoke name=\"get_weather\">\n" DSML
           "parameter name=\"city\" string=\"true\">Z\xC3\xBCrich" DSML_END "parameter>\n" DSML
           "parameter name=\"days\" string=\"false\">2" DSML_END "parameter>\n" DSML_END "invoke>\n" DSML_END
           "function_calls>",
           "\nC:Text" CALL);
    expect("deepseek-v4", "",
           DSML "tool_calls>\n" DSML "invoke name=\"get_weather\">\n" DSML
                "parameter name=\"any\" string=\"true\">2" DSML_END "parameter>\n" DSML_END "invoke>\n" DSML_END
                "tool_calls>",
           "\nget_weather({\"any\": \"2\"})");
}

static void named(void **state)
{
    (void)state;
    expect("deepseek-v3", "<think>",
           "hm</think>I look." DS("calls" LOW "begin") DS("call" LOW "begin") "function" DS(
               "sep") "get_weather\n```json\n" ARGS
                      "\n```" DS("call" LOW "end") "\n" DS("call" LOW "begin") "function" DS(
                          "sep") "ping\n```json\n{}\n```" DS("call" LOW "end") DS("calls" LOW "end"),
           "\nR:hm\nC:I look." CALL "\nping({})");
    expect("deepseek-v3.1", "",
           DS("calls" LOW "begin") DS("call" LOW "begin") "get_weather" DS("sep") ARGS DS("call" LOW "end")
               DS("call" LOW "begin") "ping" DS("sep") "{}" DS("call" LOW "end") DS("calls" LOW "end") "after",
           CALL "\nping({})\nC:after");
    expect(
        "kimi-k2", "",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" ARGS
        "<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_"
        "calls_section_end|>",
        "\nC:I look." CALL "\nping({})");
    expect("mistral", "", "Text[TOOL_CALLS]get_weather[ARGS]" ARGS "[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}",
           "\nC:Text" CALL "\nping({})");
    expect("mistral", "", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " ARGS ", \"id\": \"abcdefghi\"}]",
           CALL);
    expect("mistral", "[THINK]", "hm[/THINK]Text", "\nR:hm\nC:Text");
    expect("mistral-v3", "",
           "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " ARGS
           "}, {\"name\": \"ping\", \"arguments\": {}, \"id\": \"123456789\"}]",
           CALL "\nping({})");
    expect("mistral-v3", "", " [TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": " ARGS "}]", CALL);
    expect("functionary-v3.1", "", "<function=get_weather>" ARGS "</function>", CALL);
    expect("functionary-v3.2", ">>>", "all\nHello\n>>>get_weather\n" ARGS, "\nC:Hello" CALL);
    expect("functionary-v3.2", ">>>", "get_weather\n" ARGS, CALL);
    expect("hunyuan", "", "<tool_calls>\n<tool_call>get_weather\n```json\n" ARGS "\n```\n</tool_call>\n</tool_calls>",
           CALL);
    expect("kimi-k2", "",
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{\"a\"",
           "\nping({\"a\")");
    expect("kimi-k2", "", "<|tool_calls_section_begin|>what", "\nC:<|tool_calls_section_begin|>what");
    sink s;
    static const char kimi[] = "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:3<|tool_call_argument_"
                               "begin|>{}<|tool_call_end|>";
    parse("kimi-k2", "", kimi, sizeof kimi - 1, 0, 0, true, false, &s);
    assert_string_equal(s.ids[0], "functions.ping:3");
    clb_buf_free(&s.log);
}

static void lists(void **state)
{
    (void)state;
    expect("granite", "",
           "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": " ARGS
           "}, {\"name\": \"ping\", \"arguments\": {}}]",
           CALL "\nping({})");
    expect("command-r7b", "<|START_THINKING|>",
           "hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
           "\"parameters\": " ARGS "}\n]"
           "<|END_ACTION|>",
           "\nR:hm" CALL);
    expect("command-r7b", "", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>",
           "\nR:hm\nC:Hello");
    expect("command-r", "",
           "Action: ```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": " ARGS
           "\n    }\n]```",
           CALL);
    expect("apertus", "",
           "<|inner_prefix|>hm<|inner_suffix|>I look.<|tools_prefix|>[{\"get_weather\": " ARGS
           "}, {\"ping\": {}}]<|tools_suffix|>",
           "\nR:hm\nC:I look." CALL "\nping({})");
    expect("apriel", "",
           "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": " ARGS ", \"id\": \"1\"}]</tool_calls>", CALL);
    expect("apriel", "Here are my reasoning steps:\n", "hm\n[BEGIN FINAL RESPONSE]\nHello", "\nR:hm\nC:Hello");
    expect("nemotron", "", "<TOOLCALL>[{\"name\": \"ping\", \"arguments\": {}}]</TOOLCALL>", "\nping({})");
    expect("phi-4", "", "<|tool_call|>[{\"name\": \"ping\", \"arguments\": {}}]<|/tool_call|>", "\nping({})");
    expect("gigachat", "", "I look.<|function_call|>{\"name\": \"get_weather\", \"arguments\": " ARGS "}",
           "\nC:I look." CALL);
    expect("functools", "", " functools[{\"name\": \"ping\", \"arguments\": {}}]", "\nping({})");
}

static void bare(void **state)
{
    (void)state;
    expect("llama3", "", "{\"name\": \"get_weather\", \"parameters\": " ARGS "}", CALL);
    expect("llama3", "", "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": " ARGS "}", CALL);
    expect("llama3", "",
           "{\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}; {\"name\": \"ping\", \"parameters\": {}}",
           "\nping({})\nping({})");
    /* JSON that is an answer */
    expect("llama3", "", "{\"name\": \"Anna\", \"parameters\": {}}", "\nC:{\"name\": \"Anna\", \"parameters\": {}}");
    expect("llama3", "", "{\"city\": \"Bern\"}", "\nC:{\"city\": \"Bern\"}");
    expect("llama3", "", "  {1, 2}", "\nC:  {1, 2}");
    expect("llama3", "", "Text {\"name\": \"ping\", \"parameters\": {}}",
           "\nC:Text {\"name\": \"ping\", \"parameters\": {}}");
    expect("llama3", "", "<|python_tag|>print(1)", "\nC:<|python_tag|>print(1)");
    expect("llama3", "", "{\"name", "\nC:{\"name");
    expect("llama4", "", "{\"name\": \"ping\", \"parameters\": {}}", "\nping({})");
}

static void python(void **state)
{
    (void)state;
    expect("lfm2", "",
           "<|tool_call_start|>[get_weather(city=\"Z\xC3\xBCrich\", days=2), ping()]<|tool_call_end|>Checking.",
           CALL "\nping({})\nC:Checking.");
    expect("lfm2", "",
           "<|tool_call_start|>[get_weather(city='it\\'s \"x\"', flag=True, units=None, places=['a', (1, 2.5)], "
           "any={'k': -3})]"
           "<|tool_call_end|>",
           "\nget_weather({\"city\": \"it's \\\"x\\\"\", \"flag\": true, \"units\": null, \"places\": [\"a\", [1, "
           "2.5]], \"any\": {\"k\": -3}})");
    expect("lfm2", "", "<|tool_call_start|>[get_weather(city=\"Zu", "\nget_weather({\"city\": \"Zu)");
    expect("lfm2", "", "<|tool_call_start|>nothing", "\nC:<|tool_call_start|>nothing");
    expect("gemma4", "",
           "<|tool_call>call:get_weather{city:<|\"|>Z\xC3\xBCrich<|\"|>,days:2}<tool_call|><|tool_call>call:ping{}<"
           "tool_call|><|tool_response>",
           CALL "\nping({})");
    expect("gemma4", "",
           "<|channel>thought\nhm\n<channel|>I "
           "look.<|tool_call>call:get_weather{places:[{a:true,b:<|\"|>x,}\"<|\"|>}],any:None}<tool_call|>",
           "\nR:hm\nC:I look.\nget_weather({\"places\": [{\"a\": true, \"b\": \"x,}\\\"\"}], \"any\": null})");
    expect("gemma4", "", "<|tool_call>call:get_weather{<x:1}<tool_call|>", "\nget_weather({\"<x\": 1})");
    expect("gemma4", "", "<|tool_call>call:get_weather{<|", "\nget_weather({)");
    expect("gemma4", "", "<|tool_call>call:get_weather{city:<|\"|>Zu", "\nget_weather({\"city\": \"Zu)");
}

static void harmony(void **state)
{
    (void)state;
    expect("gpt-oss", "", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello",
           "\nR:hm\nC:Hello");
    expect("gpt-oss", "",
           "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
           "<|constrain|>json<|message|>" ARGS "<|call|>",
           "\nR:hm" CALL);
    expect("gpt-oss", "", " to=functions.get_weather<|channel|>commentary json<|message|>" ARGS, CALL);
    expect("gpt-oss", "",
           "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
           "to=functions.ping<|message|>",
           "\nC:I look.\nping({})");
    expect("gpt-oss", "", "Hello <|en", "\nC:Hello <|en");
    expect("gpt-oss", "", "<|channel|>ana", "\nC:<|channel|>ana");
    expect("gpt-oss", "<|channel|>commentary to=functions.", "ping <|constrain|>json<|message|>{}", "\nping({})");
}

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

/* Without tools every byte is text. */
static void no_tools(void **state)
{
    (void)state;
    static const char *const texts[] = {"<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\n",
                                        "{\"name\": \"ping\", ", "[TOOL_CALLS]x", "  \n", ""};
    static const char *const formats[] = {"hermes", "llama3", "mistral", "qwen3-coder"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t k = 0; k < 4; k++) {
            sink s;
            char want[128];
            snprintf(want, sizeof want, "%s%s", *texts[i] ? "\nC:" : "", texts[i]);
            parse(formats[k], "", texts[i], strlen(texts[i]), 0, 1, false, false, &s);
            assert_string_equal(s.log.data ? s.log.data : "", want);
            clb_buf_free(&s.log);
        }
}

static void ids(void **state)
{
    (void)state;
    static const char two[] = "<tool_call>{\"name\": \"ping\"}</tool_call><tool_call>{\"name\": \"ping\"}</tool_call>";
    static const char mistral[] = "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}";
    sink s;
    parse("hermes", "", two, sizeof two - 1, 0, 0, true, false, &s);
    assert_int_equal(s.n, 2);
    assert_memory_equal(s.ids[0], "call_", 5);
    assert_int_equal(strlen(s.ids[0]), 29);
    assert_string_not_equal(s.ids[0], s.ids[1]);
    clb_buf_free(&s.log);
    parse("mistral", "", mistral, sizeof mistral - 1, 0, 0, true, false, &s);
    assert_int_equal(strlen(s.ids[0]), 9);
    assert_string_equal(s.ids[1], "abcdefghi");
    clb_buf_free(&s.log);
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
        sink whole, cut;
        parse_how(f, "", text.data, text.n, 0, 0, how, &whole);
        parse_how(f, "", text.data, text.n, 0, 1 + test_rand_below(&rng, 5), how, &cut);
        if (strcmp(whole.log.data ? whole.log.data : "", cut.log.data ? cut.log.data : "") != 0)
            fail_msg("%s (%d): %s\ngives%s\n---- and in pieces%s", f->name, how, text.data, whole.log.data,
                     cut.log.data);
        clb_buf_free(&whole.log);
        clb_buf_free(&cut.log);
        clb_buf_free(&text);
    }
}

static int load(void **state)
{
    (void)state;
    tools = json_loads(tools_json, 0, NULL);
    return tools ? 0 : 1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes),      cmocka_unit_test(xml),           cmocka_unit_test(named),
        cmocka_unit_test(lists),       cmocka_unit_test(bare),          cmocka_unit_test(python),
        cmocka_unit_test(harmony),     cmocka_unit_test(no_tools),      cmocka_unit_test(ids),
        cmocka_unit_test(noise),       cmocka_unit_test(cut_by_length), cmocka_unit_test(typed_text),
        cmocka_unit_test(in_thoughts), cmocka_unit_test(odd_calls),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
