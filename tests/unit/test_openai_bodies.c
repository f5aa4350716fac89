/* Bodies that OpenAI's endpoints refuse: the status, the parameter and the code that clients look at. */
#include "openai_fake.h"
#include "serve/completion.h"

#define CHAT(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]," more "}"
#define TEXT(more) "{\"prompt\":\"hi\"," more "}"

static void no_json(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {"", NULL, "invalid_json", NULL},
        {"[]", NULL, "invalid_json", NULL},
        {"{\"messages\":", NULL, "invalid_json", NULL},
        {"{\"stop\":\"a\\u0000b\",\"prompt\":\"x\"}", NULL, "invalid_json", NULL},
        {"{\"prompt\":\"x\",\"prompt\":\"y\"}", NULL, "invalid_json", NULL},
        {"{\"prompt\":\"\xff\"}", NULL, "invalid_json", NULL},
    };
    REFUSES(clb_serve_chat_completions, cases);
    REFUSES(clb_serve_completions, cases);
    REFUSES(clb_serve_embeddings, cases);
}

/* Fields that both kinds of completions have, in the body of one of them. */
static void shared_fields(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {TEXT("\"temperatur\":1"), "temperatur", "unknown_parameter", "'temperature'"},
        {TEXT("\"xyzzy_plugh\":1"), "xyzzy_plugh", "unknown_parameter", NULL},
        {TEXT("\"temperature\":\"hot\""), "temperature", "invalid_type", "expected a number, but got a string"},
        {TEXT("\"temperature\":2.01"), "temperature", "decimal_above_max_value", "<= 2"},
        {TEXT("\"temperature\":-0.1"), "temperature", "decimal_below_min_value", NULL},
        {TEXT("\"temperature\":true"), "temperature", "invalid_type", "a boolean"},
        {TEXT("\"top_p\":1.5"), "top_p", "decimal_above_max_value", NULL},
        {TEXT("\"top_p\":-1"), "top_p", "decimal_below_min_value", NULL},
        {TEXT("\"min_p\":2"), "min_p", "decimal_above_max_value", NULL},
        {TEXT("\"top_k\":1.5"), "top_k", "invalid_type", "a decimal number"},
        {TEXT("\"top_k\":-2"), "top_k", "integer_below_min_value", NULL},
        {TEXT("\"presence_penalty\":2.5"), "presence_penalty", "decimal_above_max_value", NULL},
        {TEXT("\"frequency_penalty\":-2.5"), "frequency_penalty", "decimal_below_min_value", NULL},
        {TEXT("\"repeat_penalty\":0"), "repeat_penalty", "decimal_below_min_value", NULL},
        {TEXT("\"repetition_penalty\":11"), "repetition_penalty", "decimal_above_max_value", NULL},
        {TEXT("\"repeat_last_n\":-2"), "repeat_last_n", "integer_below_min_value", NULL},
        {TEXT("\"seed\":1.5"), "seed", "invalid_type", NULL},
        {TEXT("\"seed\":\"1\""), "seed", "invalid_type", NULL},
        {TEXT("\"n\":0"), "n", "integer_below_min_value", NULL},
        {TEXT("\"n\":129"), "n", "integer_above_max_value", NULL},
        {TEXT("\"n\":5"), "n", "integer_above_max_value", "--parallel"},
        {TEXT("\"stream\":1"), "stream", "invalid_type", "a boolean"},
        {TEXT("\"stream_options\":{\"include_usage\":true}"), "stream_options", "invalid_value", "'stream' is enabled"},
        {TEXT("\"stream\":true,\"stream_options\":true"), "stream_options", "invalid_type", NULL},
        {TEXT("\"stream\":true,\"stream_options\":{\"include_usage\":1}"), "stream_options.include_usage",
         "invalid_type", NULL},
        {TEXT("\"stream\":true,\"stream_options\":{\"include_usages\":true}"), "stream_options.include_usages",
         "unknown_parameter", "include_usage"},
        {TEXT("\"stop\":5"), "stop", "invalid_type", NULL},
        {TEXT("\"stop\":[\"a\",7]"), "stop[1]", "invalid_type", NULL},
        {TEXT("\"logit_bias\":[]"), "logit_bias", "invalid_type", NULL},
        {TEXT("\"logit_bias\":{\"hello\":1}"), "logit_bias", "invalid_value", "hello"},
        {TEXT("\"logit_bias\":{\"-1\":1}"), "logit_bias", "invalid_value", NULL},
        {TEXT("\"logit_bias\":{\"4294967296\":1}"), "logit_bias", "invalid_value", NULL},
        {TEXT("\"logit_bias\":{\"5\":101}"), "logit_bias.5", "decimal_above_max_value", NULL},
        {TEXT("\"logit_bias\":{\"5\":\"1\"}"), "logit_bias.5", "invalid_type", NULL},
        {TEXT("\"logit_bias\":{\"5\":null}"), "logit_bias.5", "invalid_type", NULL},
        {TEXT("\"model\":7"), "model", "invalid_type", NULL},
        {TEXT("\"max_tokens\":-2"), "max_tokens", "integer_below_min_value", NULL},
        {TEXT("\"max_tokens\":4294967296"), "max_tokens", "integer_above_max_value", NULL},
        {TEXT("\"max_tokens\":\"many\""), "max_tokens", "invalid_type", NULL},
        {TEXT("\"ignore_eos\":1"), "ignore_eos", "invalid_type", NULL},
        {TEXT("\"lora\":1"), "lora", "invalid_type", NULL},
        {TEXT("\"lora\":[1]"), "lora[0]", "invalid_type", NULL},
        {TEXT("\"lora\":[{\"scale\":1}]"), "lora[0].id", "missing_required_parameter", NULL},
        {TEXT("\"lora\":[{\"id\":1,\"scale\":1e9}]"), "lora[0].scale", "decimal_above_max_value", NULL},
        {TEXT("\"lora\":[{\"id\":1,\"weight\":1}]"), "lora[0].weight", "unknown_parameter", NULL},
        {TEXT("\"mirostat\":2"), "mirostat", "unsupported_value", "can only be 0"},
        {TEXT("\"typical_p\":0.5"), "typical_p", "unsupported_value", NULL},
        {TEXT("\"min_tokens\":5"), "min_tokens", "unsupported_value", NULL},
        {TEXT("\"samplers\":[\"top_k\"]"), "samplers", "unsupported_parameter", NULL},
        {TEXT("\"grammar\":5"), "grammar", "invalid_type", NULL},
        {TEXT("\"grammar\":\"root ::= \\\"a\""), "grammar", "invalid_value", NULL},
        {TEXT("\"grammar\":\"root ::= root \\\"a\\\" | \\\"b\\\"\""), "grammar", "invalid_value", NULL},
        {TEXT("\"response_format\":\"json\""), "response_format", "invalid_type", NULL},
        {TEXT("\"response_format\":{}"), "response_format.type", "missing_required_parameter", NULL},
        {TEXT("\"response_format\":{\"type\":\"xml\"}"), "response_format.type", "invalid_value", "json_schema"},
        {TEXT("\"response_format\":{\"type\":\"json_schema\"}"), "response_format.json_schema",
         "missing_required_parameter", NULL},
        {TEXT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}"),
         "response_format.json_schema.schema", "missing_required_parameter", NULL},
        {TEXT(
             "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"not\":{}}}}"),
         "response_format.json_schema.schema", "invalid_value", "not"},
        {TEXT("\"response_format\":{\"type\":\"text\",\"kind\":1}"), "response_format.kind", "unknown_parameter", NULL},
        {TEXT("\"response_format\":{\"type\":\"json_object\"},\"grammar\":\"root ::= \\\"a\\\"\""), "grammar",
         "invalid_value", "cannot be combined"},
        {TEXT("\"response_format\":{\"type\":\"json_object\"},\"json_schema\":{}"), "json_schema", "invalid_value",
         NULL},
    };
    REFUSES(clb_serve_completions, cases);
}

static void completions(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {"{}", "prompt", "missing_required_parameter", NULL},
        {"{\"prompt\":null}", "prompt", "missing_required_parameter", NULL},
        {"{\"prompt\":5}", "prompt", "invalid_type", NULL},
        {"{\"prompt\":[]}", "prompt", "empty_array", NULL},
        {"{\"prompt\":[[]]}", "prompt[0]", "empty_array", NULL},
        {"{\"prompt\":[\"a\",5]}", "prompt[1]", "invalid_type", NULL},
        {"{\"prompt\":[5,\"a\"]}", "prompt[1]", "invalid_type", NULL},
        {"{\"prompt\":[[5],6]}", "prompt[1]", "invalid_type", NULL},
        {"{\"prompt\":[5,-1]}", "prompt[1]", "invalid_value", NULL},
        {"{\"prompt\":[[5,99999999]]}", "prompt[0][1]", "invalid_value", NULL},
        {"{\"prompt\":[5,1e3]}", "prompt[1]", "invalid_type", NULL},
        {"{\"prompt\":[true]}", "prompt[0]", "invalid_type", NULL},
        {TEXT("\"messages\":[]"), "messages", "unsupported_parameter", "/v1/chat/completions"},
        {TEXT("\"logprobs\":true"), "logprobs", "invalid_type", NULL},
        {TEXT("\"logprobs\":21"), "logprobs", "integer_above_max_value", NULL},
        {TEXT("\"logprobs\":-1"), "logprobs", "integer_below_min_value", NULL},
        {TEXT("\"best_of\":2"), "best_of", "unsupported_value", NULL},
        {TEXT("\"n\":2,\"best_of\":1"), "best_of", "unsupported_value", NULL},
        {TEXT("\"echo\":\"yes\""), "echo", "invalid_type", NULL},
        {TEXT("\"suffix\":\"end\""), "suffix", "unsupported_parameter", "filling in"},
        {"{\"prompt\":[1,2],\"suffix\":\"end\"}", "suffix", "invalid_value", NULL},
        {TEXT("\"suffix\":\"end\",\"echo\":true"), "echo", "invalid_value", NULL},
        {TEXT("\"tools\":[]"), "tools", "unknown_parameter", NULL},
    };
    REFUSES(clb_serve_completions, cases);
}

static void chat(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {"{}", "messages", "missing_required_parameter", NULL},
        {"{\"messages\":\"hi\"}", "messages", "invalid_type", NULL},
        {"{\"messages\":[]}", "messages", "empty_array", NULL},
        {CHAT("\"prompt\":\"hi\""), "prompt", "unknown_parameter", NULL},
        {CHAT("\"temperature\":3"), "temperature", "decimal_above_max_value", NULL},
        {CHAT("\"max_tokens\":0"), "max_tokens", "integer_below_min_value", NULL},
        {CHAT("\"max_completion_tokens\":0"), "max_completion_tokens", "integer_below_min_value", NULL},
        {CHAT("\"max_completion_tokens\":5,\"max_tokens\":\"x\""), "max_tokens", "invalid_type", NULL},
        {CHAT("\"logprobs\":1"), "logprobs", "invalid_type", NULL},
        {CHAT("\"top_logprobs\":2"), "top_logprobs", "invalid_value", "'logprobs' is enabled"},
        {CHAT("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "integer_above_max_value", NULL},
        {CHAT("\"functions\":[]"), "functions", "unsupported_parameter", "'tools'"},
        {CHAT("\"function_call\":\"auto\""), "function_call", "unsupported_parameter", NULL},
        {CHAT("\"audio\":{}"), "audio", "unsupported_parameter", NULL},
        {CHAT("\"modalities\":[\"text\",\"audio\"]"), "modalities", "unsupported_value", NULL},
        {CHAT("\"web_search_options\":{}"), "web_search_options", "unsupported_parameter", NULL},
        {CHAT("\"verbosity\":\"low\""), "verbosity", "unsupported_value", NULL},
        {CHAT("\"tools\":{}"), "tools", "invalid_type", NULL},
        {CHAT("\"tool_choice\":\"required\""), "tool_choice", "invalid_value", NULL},
        {CHAT("\"tool_choice\":\"maybe\""), "tool_choice", "invalid_value", "'required'"},
        {CHAT("\"tool_choice\":5"), "tool_choice", "invalid_type", NULL},
        {CHAT("\"parallel_tool_calls\":\"no\""), "parallel_tool_calls", "invalid_type", NULL},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":"
              "\"function\"}"),
         "tool_choice.function.name", "missing_required_parameter", NULL},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":"
              "\"function\",\"function\":"
              "{\"name\":\"g\"}}"),
         "tool_choice", "invalid_value", "'g'"},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"function\":{"
              "\"name\":\"f\"}}"),
         "tool_choice.type", "missing_required_parameter", NULL},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"allowed_"
              "tools\",\"allowed_"
              "tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}}"),
         "tool_choice", "invalid_value", "'g'"},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"allowed_"
              "tools\"}"),
         "tool_choice.allowed_tools", "missing_required_parameter", NULL},
        {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"grammar\":\"root ::= r1\""),
         "grammar", "invalid_value", "r1"},
        {CHAT("\"reasoning_effort\":\"huge\""), "reasoning_effort", "invalid_value", NULL},
        {CHAT("\"reasoning_format\":\"html\""), "reasoning_format", "invalid_value", NULL},
        {CHAT("\"chat_template_kwargs\":[]"), "chat_template_kwargs", "invalid_type", NULL},
        {CHAT("\"documents\":{}"), "documents", "invalid_type", NULL},
    };
    REFUSES(clb_serve_chat_completions, cases);
}

static void embeddings(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {"{}", "input", "missing_required_parameter", NULL},
        {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format", "invalid_value", "'base64'"},
        {"{\"input\":\"a\",\"dimensions\":4}", "dimensions", "unsupported_value", "8"},
        {"{\"input\":\"a\",\"dimensions\":\"4\"}", "dimensions", "invalid_type", NULL},
        {"{\"input\":{}}", "input", "invalid_type", NULL},
        {"{\"input\":\"a\",\"temperature\":1}", "temperature", "unknown_parameter", NULL},
        {"{\"input\":[\"a\",[1]]}", "input[1]", "invalid_type", NULL},
    };
    REFUSES(clb_serve_embeddings, cases);
}

static void too_many(void **state)
{
    (void)state;
    clb_buf body = {0};
    clb_error err;
    assert_ok(clb_buf_printf(&body, &err, "{\"prompt\":\"a\",\"stop\":["), &err);
    for (int i = 0; i <= CLB_STOPS_MOST; i++)
        assert_ok(clb_buf_printf(&body, &err, "%s\"s%d\"", i ? "," : "", i), &err);
    assert_ok(clb_buf_printf(&body, &err, "]}"), &err);
    const struct bad stops = {body.data, "stop", "array_above_max_length", NULL};
    refuses(clb_serve_completions, &stops, 1);

    body.n = 0;
    assert_ok(clb_buf_printf(&body, &err, "{\"prompt\":\"a\",\"stop\":\"%01025d\"}", 0), &err);
    const struct bad long_stop = {body.data, "stop", "string_above_max_length", NULL};
    refuses(clb_serve_completions, &long_stop, 1);

    body.n = 0;
    assert_ok(clb_buf_printf(&body, &err, "{\"input\":["), &err);
    for (int i = 0; i <= 2048; i++)
        assert_ok(clb_buf_printf(&body, &err, "%s\"a\"", i ? "," : ""), &err);
    assert_ok(clb_buf_printf(&body, &err, "]}"), &err);
    const struct bad inputs = {body.data, "input", "array_above_max_length", NULL};
    refuses(clb_serve_embeddings, &inputs, 1);
    clb_buf_free(&body);
}

static void without_a_template(void **state)
{
    (void)state;
    const clb_chat_format *const chat_format = app.chat;
    app.chat = NULL;
    const struct bad bare = {CHAT("\"n\":1"), "model", "unsupported_model", "/v1/completions"};
    refuses(clb_serve_chat_completions, &bare, 1);
    app.chat = chat_format;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_json),
        cmocka_unit_test(shared_fields),
        cmocka_unit_test(completions),
        cmocka_unit_test(chat),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(too_many),
        cmocka_unit_test(without_a_template),
    };
    return cmocka_run_group_tests(tests, open_app, close_app);
}
