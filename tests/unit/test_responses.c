/* The Responses API: bodies that are refused, items as the prompt's messages, and the events of a reply in their order.
 */
#include <time.h>

#include "openai_fake.h"
#include "serve/completion.h"
#include "serve/openai_responses.h"

static void respond(const char *body)
{
    exchange_reset(&x, body);
    clb_serve_responses(&app, &x);
}

#define BODY(more)  "{\"input\":\"hi\"," more "}"
#define ITEMS(more) "{\"input\":[" more "]}"
#define TOOL        "{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}"

static void bad_bodies(void **state)
{
    (void)state;
    static const struct bad cases[] = {
        {"{}", "input", "missing_required_parameter", NULL},
        {"{\"input\":[]}", "input", "empty_array", NULL},
        {"{\"input\":5}", "input", "invalid_type", NULL},
        {ITEMS("5"), "input[0]", "invalid_type", NULL},
        {ITEMS("{\"content\":\"a\"}"), "input[0].type", "missing_required_parameter", NULL},
        {ITEMS("{\"role\":\"pirate\",\"content\":\"a\"}"), "input[0].role", "invalid_value", "developer"},
        {ITEMS("{\"type\":\"message\",\"content\":\"a\"}"), "input[0].role", "missing_required_parameter", NULL},
        {ITEMS("{\"role\":\"user\"}"), "input[0].content", "missing_required_parameter", NULL},
        {ITEMS("{\"role\":\"user\",\"content\":7}"), "input[0].content", "invalid_type", NULL},
        {ITEMS("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}"),
         "input[0].content[0]", "invalid_value", "input_image"},
        {ITEMS("{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}"), "input[0].content[0]", "invalid_type",
         NULL},
        {ITEMS("{\"role\":\"user\",\"content\":[7]}"), "input[0].content[0]", "invalid_type", NULL},
        {ITEMS("{\"type\":\"function_call\",\"name\":\"f\",\"arguments\":\"{}\"}"), "input[0]",
         "missing_required_parameter", "call_id"},
        {ITEMS("{\"type\":\"function_call_output\",\"output\":\"a\"}"), "input[0].call_id",
         "missing_required_parameter", NULL},
        {ITEMS("{\"type\":\"function_call_output\",\"call_id\":\"a\"}"), "input[0].output", "invalid_type", NULL},
        {ITEMS("{\"type\":\"reasoning\",\"content\":[{\"type\":\"poem\",\"text\":\"a\"}]}"), "input[0].content[0]",
         "invalid_value", "poem"},
        {ITEMS("{\"type\":\"item_reference\",\"id\":\"msg_1\"}"), "input[0].type", "unsupported_value",
         "stores nothing"},
        {ITEMS("{\"type\":\"computer_call\"}"), "input[0].type", "unsupported_value", "computer_call"},
        {BODY("\"instructions\":5"), "instructions", "invalid_type", NULL},
        {BODY("\"previous_response_id\":\"resp_1\""), "previous_response_id", "unsupported_parameter",
         "whole conversation"},
        {BODY("\"conversation\":\"conv_1\""), "conversation", "unsupported_parameter", "whole conversation"},
        {BODY("\"prompt\":{\"id\":\"p\"}"), "prompt", "unsupported_parameter", NULL},
        {BODY("\"background\":true"), "background", "unsupported_value", "stream"},
        {BODY("\"store\":1"), "store", "invalid_type", NULL},
        {BODY("\"metadata\":[]"), "metadata", "invalid_type", NULL},
        {BODY("\"truncation\":\"left\""), "truncation", "invalid_value", "disabled"},
        {BODY("\"max_tokens\":5"), "max_tokens", "unknown_parameter", NULL},
        {BODY("\"max_output_token\":5"), "max_output_token", "unknown_parameter", "'max_output_tokens'"},
        {BODY("\"max_output_tokens\":0"), "max_output_tokens", "integer_below_min_value", NULL},
        {BODY("\"temperature\":3"), "temperature", "decimal_above_max_value", NULL},
        {BODY("\"n\":2"), "n", "unknown_parameter", NULL},
        {BODY("\"top_logprobs\":21"), "top_logprobs", "integer_above_max_value", NULL},
        {BODY("\"include\":[\"all\"]"), "include[0]", "invalid_value", "'all'"},
        {BODY("\"include\":[5]"), "include[0]", "invalid_type", NULL},
        {BODY("\"text\":{\"verbosity\":\"low\"}"), "text.verbosity", "unsupported_value", NULL},
        {BODY("\"text\":{\"format\":{}}"), "text.format.type", "missing_required_parameter", NULL},
        {BODY("\"text\":{\"format\":{\"type\":\"xml\"}}"), "text.format.type", "invalid_value", NULL},
        {BODY("\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\"}}"), "text.format.schema",
         "missing_required_parameter", NULL},
        {BODY("\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\",\"schema\":{\"not\":{}}}}"),
         "text.format.schema", "invalid_value", "not"},
        {BODY("\"text\":{\"format\":{\"type\":\"text\",\"schema\":{}}}"), "text.format", "invalid_value", NULL},
        {BODY("\"text\":{\"format\":{\"type\":\"text\",\"json_schema\":{}}}"), "text.format.json_schema",
         "unknown_parameter", NULL},
        {BODY("\"tools\":[{\"type\":\"web_search\"}]"), "tools[0].type", "unsupported_value", "'web_search'"},
        {BODY("\"tools\":[{\"name\":\"f\"}]"), "tools[0].type", "missing_required_parameter", NULL},
        {BODY("\"tools\":[{\"type\":\"function\"}]"), "tools[0].name", "invalid_value", NULL},
        {BODY("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"), "tools[0].function",
         "unknown_parameter", NULL},
        {BODY("\"tools\":[" TOOL "," TOOL "]"), "tools[1].name", "invalid_value", "same name"},
        {BODY("\"tool_choice\":\"required\""), "tool_choice", "invalid_value", "'tools'"},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":\"perhaps\""), "tool_choice", "invalid_value", NULL},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\"}"), "tool_choice.name",
         "missing_required_parameter", NULL},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}"), "tool_choice",
         "invalid_value", "'g'"},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"web_search\"}"), "tool_choice.type", "invalid_value",
         NULL},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"}"), "tool_choice",
         "missing_required_parameter", NULL},
        {BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":"
              "\"function\",\"name\":\"g\"}]}"),
         "tool_choice", "invalid_value", "'g'"},
        {BODY("\"reasoning\":{\"effort\":\"some\"}"), "reasoning.effort", "invalid_value", "'low'"},
        {BODY("\"reasoning\":{\"budget\":5}"), "reasoning.budget", "unknown_parameter", NULL},
    };
    REFUSES(clb_serve_responses, cases);
}

/* As many thoughts as a body has room for are one text, each byte of which is copied once. */
static void many_thoughts(void **state)
{
    (void)state;
    enum { N = 57000 };
    static const char long_one[] = "This is what I thought of the matter.";
    json_t *const input = json_array(), *const body = json_pack("{s:o}", "input", input);
    json_t *messages = NULL;
    clb_refusal r = {0};
    for (int i = 0; i < N; i++) {
        const char *const text = i % 3 == 2 ? "" : i % 3 ? "b" : long_one;
        json_array_append_new(input, json_pack("{s:s, s:[{s:s, s:s}]}", "type", "reasoning", "content", "type",
                                               "reasoning_text", "text", text));
    }
    json_array_append_new(input, json_pack("{s:s, s:s}", "role", "assistant", "content", "c"));
    json_array_append(input, json_array_get(input, 0));
    const clock_t before = clock();
    assert_int_equal(clb_responses_messages(body, &messages, &r), COLIBRI_OK);
    const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_int_equal(json_array_size(messages), 2);
    const json_t *const first = json_array_get(messages, 0), *const all = json_object_get(first, "reasoning_content");
    assert_string_equal(json_string_value(json_object_get(first, "content")), "c");
    assert_int_equal(json_string_length(all), N / 3 * (strlen(long_one) + strlen("\nb\n")) - 1);
    assert_memory_equal(json_string_value(all), "This is what I thought of the matter.\nb\nThis is", 47);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 1), "reasoning_content")), long_one);
    if (seconds > 5) /* 0.03 s */
        fail_msg("%d items took %.1f s", (int)N, seconds);
    json_decref(messages);
    json_decref(body);
}

/* Items -> chat's messages. */
static void items_become_messages(void **state)
{
    (void)state;
    static const char input[] =
        "{\"instructions\":\"be kind\",\"input\":["
        "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
        "{\"type\":\"input_text\",\"text\":\"b\"}]},"
        "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
        "\"hm\"}],\"encrypted_content\":\"zzz\"},"
        "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{\"type\":"
        "\"output_text\",\"text\":\"c\",\"annotations\":[]}]},"
        "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"call_1\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"call_2\",\"name\":\"g\",\"arguments\":\"{\\\"x\\\":1}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"call_1\",\"output\":\"one\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"call_2\",\"output\":[{\"type\":\"input_text\",\"text\":"
        "\"two\"}]},"
        "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"call_3\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"role\":\"developer\",\"content\":\"d\"}]}";
    static const char want[] =
        "[{\"role\":\"system\",\"content\":\"be kind\"},{\"role\":\"user\",\"content\":\"a\\nb\"},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"content\":\"c\",\"tool_calls\":["
        "{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
        "{\"id\":\"call_2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"x\\\":1}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"one\",\"tool_call_id\":\"call_1\"},"
        "{\"role\":\"tool\",\"content\":\"two\",\"tool_call_id\":\"call_2\"},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"s\",\"tool_calls\":["
        "{\"id\":\"call_3\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"developer\",\"content\":\"d\"}]";
    json_t *body = json_loads(input, 0, NULL), *expected = json_loads(want, 0, NULL), *got = NULL;
    clb_refusal r = {0};
    assert_non_null(body);
    assert_non_null(expected);
    if (clb_responses_messages(body, &got, &r))
        fail_msg("%s", r.message);
    if (!json_equal(got, expected))
        fail_msg("%s", json_dumps(got, 0));
    json_decref(body);
    json_decref(expected);
    json_decref(got);
}

/* ---- replies ---- */

static char *field(const json_t *o, const char *name)
{
    return json_dumps(json_object_get(o, name), JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
}

static void assert_field(const json_t *o, const char *name, const char *want)
{
    char *got = field(o, name);
    if (!got || strcmp(got, want))
        fail_msg("%s is %s, not %s", name, got ? got : "missing", want);
    free(got);
}

/* The data of the i-th event; checks that all are numbered, and named as their data says. NULL: there are no more. */
static json_t *event(size_t i, const char *type)
{
    const char *at = event_at(i);
    char name[64];
    if (!at)
        return NULL;
    assert_int_equal(sscanf(at, "event: %63s\ndata: ", name), 1);
    json_t *o = event_data(at);
    if (type && strcmp(name, type))
        fail_msg("event %zu is %s, not %s: %s", i, name, type, x.out.data);
    assert_string_equal(json_string_value(json_object_get(o, "type")), name);
    assert_int_equal(json_integer_value(json_object_get(o, "sequence_number")), i);
    return o;
}

static void a_whole_response(void **state)
{
    (void)state;
    respond("{\"input\":\"hi\",\"instructions\":\"be \\\"kind\\\"\",\"max_output_tokens\":7,\"temperature\":0.5,"
            "\"top_p\":0.25,\"metadata\":{\"a\":\"b\"},\"store\":true,\"truncation\":\"auto\",\"user\":\"me\","
            "\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},\"seed\":9,\"stop\":\"X\","
            "\"include\":[\"reasoning.encrypted_content\"]}");
    assert_int_equal(fake.n, 1);
    const clb_request_options *o = &fake.requests[0]->o;
    assert_int_equal(o->max_tokens, 7);
    assert_int_equal(o->sampling.seed, 9);
    assert_int_equal(o->n_stops, 1);
    assert_int_equal(o->n_logprobs, -1);
    assert_true(o->n_protected > 0);
    fake_text(0, 0, "Hel");
    fake_text(0, 0, "lo \"you\"");
    fake_choice(0, 0, CLB_FINISH_STOP, 2);
    fake_done(0, COLIBRI_OK, "", 2);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.type, "application/json");
    json_t *r = answer();
    assert_field(r, "id", "\"resp_0123\"");
    assert_field(r, "object", "\"response\"");
    assert_field(r, "status", "\"completed\"");
    assert_field(r, "error", "null");
    assert_field(r, "incomplete_details", "null");
    assert_field(r, "instructions", "\"be \\\"kind\\\"\"");
    assert_field(r, "max_output_tokens", "7");
    assert_field(r, "metadata", "{\"a\":\"b\"}");
    assert_field(r, "temperature", "0.5");
    assert_field(r, "top_p", "0.25");
    assert_field(r, "store", "false");
    assert_field(r, "truncation", "\"auto\"");
    assert_field(r, "parallel_tool_calls", "true");
    assert_field(r, "tool_choice", "\"auto\"");
    assert_field(r, "tools", "[]");
    assert_field(r, "text", "{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"}");
    assert_field(r, "reasoning", "{\"effort\":\"low\",\"summary\":null}");
    assert_field(r, "user", "\"me\"");
    assert_field(r, "output",
                 "[{\"content\":[{\"annotations\":[],\"logprobs\":[],\"text\":\"Hello \\\"you\\\"\",\"type\":\"output_"
                 "text\"}],\"id\":\"msg_0123_0\",\"role\":\"assistant\",\"status\":\"completed\",\"type\":\"message\"}"
                 "]");
    const json_t *u = json_object_get(r, "usage");
    assert_field(u, "output_tokens", "2");
    assert_int_equal(json_integer_value(json_object_get(u, "input_tokens")), (json_int_t)fake.requests[0]->n_prompt);
    assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")),
                     (json_int_t)fake.requests[0]->n_prompt + 2);
    assert_field(u, "output_tokens_details", "{\"reasoning_tokens\":0}");
    json_decref(r);
}

static void assert_events(const char *const *types)
{
    for (size_t i = 0; types[i]; i++)
        json_decref(event(i, types[i]));
    size_t n = 0;
    while (types[n])
        n++;
    json_t *more = event(n, NULL);
    if (more)
        fail_msg("more than %zu events: %s", n, x.out.data);
}

/* Thoughts, an answer and a call, cut in the middle of the second call: what is complete is said to be. */
static void all_kinds_of_items(void **state)
{
    (void)state;
    static const char *const types[] = {
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.incomplete",
        NULL,
    };
    static const char *const pieces[] = {
        "<think>hm</think>",
        "Let ",
        "me see.",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": \"lo",
    };
    for (int stream = 1; stream >= 0; stream--) {
        respond(stream ? BODY("\"stream\":true,\"tools\":[" TOOL "]") : BODY("\"tools\":[" TOOL "]"));
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            fake_text(0, 0, pieces[i]);
        fake_choice(0, 0, CLB_FINISH_LENGTH, 20);
        fake_done(0, COLIBRI_OK, "", 20);
        json_t *r;
        if (stream) {
            assert_string_equal(x.type, "text/event-stream");
            assert_events(types);
            json_t *last = event(23, "response.incomplete");
            r = json_incref(json_object_get(last, "response"));
            json_decref(last);
            json_t *delta = event(10, NULL), *done = event(12, NULL), *call = event(15, NULL), *args = event(17, NULL);
            assert_field(delta, "delta", "\"Let\"");
            assert_field(delta, "output_index", "1");
            assert_field(delta, "content_index", "0");
            assert_field(delta, "item_id", "\"msg_0123_1\"");
            assert_field(done, "text", "\"Let me see.\"");
            assert_field(json_object_get(call, "item"), "arguments", "\"\"");
            assert_field(json_object_get(call, "item"), "status", "\"in_progress\"");
            assert_field(args, "arguments", "\"{\\\"a\\\": 1}\"");
            assert_field(args, "name", "\"f\"");
            assert_field(args, "item_id", "\"fc_0123_2\"");
            json_decref(delta);
            json_decref(done);
            json_decref(call);
            json_decref(args);
        } else {
            r = answer();
        }
        assert_field(r, "status", "\"incomplete\"");
        assert_field(r, "incomplete_details", "{\"reason\":\"max_output_tokens\"}");
        const json_t *output = json_object_get(r, "output");
        assert_int_equal(json_array_size(output), 4);
        assert_field(json_array_get(output, 0), "type", "\"reasoning\"");
        assert_field(json_array_get(output, 0), "content", "[{\"text\":\"hm\",\"type\":\"reasoning_text\"}]");
        assert_field(json_array_get(output, 0), "summary", "[]");
        assert_field(json_array_get(output, 1), "status", "\"completed\"");
        assert_field(json_array_get(output, 2), "status", "\"completed\"");
        assert_field(json_array_get(output, 3), "status", "\"incomplete\"");
        assert_field(json_array_get(output, 3), "id", "\"fc_0123_3\"");
        for (size_t i = 2; i < 4; i++) /* new for each reply */
            assert_int_equal(json_string_length(json_object_get(json_array_get(output, i), "call_id")), 29);
        json_decref(r);
        reset(NULL);
    }
}

/* A model that says nothing: clients still find a text. */
static void an_empty_reply(void **state)
{
    (void)state;
    static const char *const types[] = {"response.created",
                                        "response.in_progress",
                                        "response.output_item.added",
                                        "response.content_part.added",
                                        "response.output_text.done",
                                        "response.content_part.done",
                                        "response.output_item.done",
                                        "response.completed",
                                        NULL};
    respond(BODY("\"stream\":true"));
    fake_choice(0, 0, CLB_FINISH_STOP, 1);
    fake_done(0, COLIBRI_OK, "", 1);
    assert_events(types);
}

static void errors_before_and_after_the_beginning(void **state)
{
    (void)state;
    respond(BODY("\"stream\":true"));
    fake_done(0, COLIBRI_E_INTERNAL, "a bug", 0);
    assert_int_equal(x.status, 500);
    assert_false(x.streams);
    reset(NULL);
    respond(BODY("\"stream\":true"));
    fake_text(0, 0, "half");
    fake_done(0, COLIBRI_E_INTERNAL, "a bug", 1);
    assert_int_equal(x.status, 200);
    assert_true(x.ended);
    json_t *error = event(5, "error"), *failed = event(9, "response.failed");
    assert_field(error, "message", "\"a bug\"");
    const json_t *r = json_object_get(failed, "response");
    assert_field(r, "status", "\"failed\"");
    assert_field(r, "error", "{\"code\":\"server_error\",\"message\":\"a bug\"}");
    assert_field(r, "usage", "null");
    assert_null(event(10, NULL));
    json_decref(error);
    json_decref(failed);
}

/* Each token's goes with its own text; those of thoughts and marks are left out. */
static void log_probabilities(void **state)
{
    (void)state;
    static const char *const words[] = {"<think>", "hm", "</think>", "yes", "!"};
    char all[64] = "";
    clb_token_info t[5];
    memset(t, 0, sizeof t);
    for (uint32_t i = 0; i < 5; i++) {
        t[i] = (clb_token_info){.token = i + 10,
                                .text_offset = (uint32_t)strlen(all),
                                .n_bytes = (uint32_t)strlen(words[i]),
                                .self = {i + 10, -(float)i / 4}};
        strcat(all, words[i]);
    }
    respond(BODY("\"stream\":true,\"include\":[\"message.output_text.logprobs\"]"));
    assert_int_equal(fake.requests[0]->o.n_logprobs, 0);
    fake_event(
        0, (clb_request_event){.kind = CLB_EVENT_TEXT, .text = all, .n_text = strlen(all), .tokens = t, .n_tokens = 5});
    fake_choice(0, 0, CLB_FINISH_STOP, 5);
    fake_done(0, COLIBRI_OK, "", 5);
    const json_t *p = NULL;
    size_t n = 0;
    json_t *o;
    for (size_t i = 0; (o = event(i, NULL)); i++) {
        if (strcmp(json_string_value(json_object_get(o, "type")), "response.output_text.delta") == 0)
            n += json_array_size(json_object_get(o, "logprobs"));
        if (strcmp(json_string_value(json_object_get(o, "type")), "response.completed") == 0) {
            const json_t *message = json_array_get(json_object_get(json_object_get(o, "response"), "output"), 1);
            p = json_object_get(json_array_get(json_object_get(message, "content"), 0), "logprobs");
            if (json_array_size(p) < 2)
                fail_msg("%s", x.out.data);
            const size_t k = json_array_size(p);
            assert_true(json_number_value(json_object_get(json_array_get(p, k - 1), "logprob")) == -1);
            assert_true(json_number_value(json_object_get(json_array_get(p, k - 2), "logprob")) == -0.75);
            assert_int_equal(n, k);
            const json_t *u = json_object_get(json_object_get(o, "response"), "usage");
            assert_field(u, "output_tokens_details", "{\"reasoning_tokens\":3}");
        }
        json_decref(o);
    }
    assert_non_null(p);
    reset(NULL);
    respond(BODY("\"top_logprobs\":4"));
    assert_int_equal(fake.requests[0]->o.n_logprobs, 4);
    fake_choice(0, 0, CLB_FINISH_STOP, 0);
    fake_done(0, COLIBRI_OK, "", 0);
}

/* What constrains: a schema, a call that must be made; and that its marks are not repeated. */
static void grammars(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        BODY("\"text\":{\"format\":{\"type\":\"json_object\"}}"),
        BODY("\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\",\"strict\":true,\"schema\":{\"type\":"
             "\"object\"}}}"),
        BODY("\"tools\":[" TOOL "],\"tool_choice\":\"required\""),
        BODY("\"tools\":[" TOOL "],\"text\":{\"format\":{\"type\":\"json_object\"}}"),
        BODY("\"tools\":[" TOOL "],\"tool_choice\":\"required\",\"text\":{\"format\":{\"type\":\"json_object\"}}"),
        BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}"),
        BODY("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{"
             "\"type\":\"function\",\"name\":\"f\"}]}"),
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        respond(bodies[i]);
        if (fake.n != 1)
            fail_msg("%s: %s", bodies[i], x.out.data);
        assert_non_null(fake.requests[0]->o.grammar);
        fake_choice(0, 0, CLB_FINISH_STOP, 0);
        fake_done(0, COLIBRI_OK, "", 0);
        reset(NULL);
    }
    respond(BODY("\"tools\":[" TOOL "],\"tool_choice\":\"none\""));
    assert_null(fake.requests[0]->o.grammar);
    fake_text(0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    fake_choice(0, 0, CLB_FINISH_STOP, 0);
    fake_done(0, COLIBRI_OK, "", 0);
    assert_non_null(strstr(x.out.data, "\"type\":\"message\"")); /* none may be called: it is text */
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, reset)
    const struct CMUnitTest tests[] = {
        TEST(bad_bodies),
        TEST(items_become_messages),
        TEST(many_thoughts),
        TEST(a_whole_response),
        TEST(all_kinds_of_items),
        TEST(an_empty_reply),
        TEST(errors_before_and_after_the_beginning),
        TEST(log_probabilities),
        TEST(grammars),
    };
    return cmocka_run_group_tests(tests, open_app, close_app);
}
