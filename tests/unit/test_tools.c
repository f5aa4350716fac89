/* Replies of every family of templates, cut at every byte: thoughts, answer and calls are the same whatever the pieces.
 */
#include "serve/tools.h"
#include "tool_transcripts.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes),  cmocka_unit_test(xml),      cmocka_unit_test(named),
        cmocka_unit_test(lists),   cmocka_unit_test(bare),     cmocka_unit_test(python),
        cmocka_unit_test(harmony), cmocka_unit_test(no_tools), cmocka_unit_test(ids),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
