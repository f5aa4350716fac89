/* A reply that is cut by max_tokens within a call, over every API: half a call is not shown as the answer, whole and as
 * a stream, and what ended it is the length. */
#include "openai_fake.h"
#include "serve/app.h"

#define SCHEMA "{\"type\":\"object\"}"
#define CHAT                                                                                                           \
    "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"  \
    "\"f\",\"parameters\":" SCHEMA "}}]"
#define MESSAGES                                                                                                       \
    "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":9,\"model\":\"m\",\"tools\":[{\"name\":"     \
    "\"f\",\"input_schema\":" SCHEMA "}]"
#define RESPONSES "\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":" SCHEMA "}]"

static const struct api {
    void (*handle)(void *app, clb_exchange *x);
    const char *fields, *cut, *ended;
} apis[] = {
    {clb_serve_chat_completions, CHAT, "\"finish_reason\":\"length\"", "\"finish_reason\":\"stop\""},
    {clb_serve_messages, MESSAGES, "\"stop_reason\":\"max_tokens\"", "\"stop_reason\":\"end_turn\""},
    {clb_serve_responses, RESPONSES, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}",
     "\"status\":\"completed\""},
};

/* What was sent for a reply of these words, one letter a piece or all at once. */
static void reply(const struct api *api, bool stream, bool by_letter, const char *words, enum clb_finish finish)
{
    static char body[1024];
    snprintf(body, sizeof body, "{\"stream\":%s,%s}", stream ? "true" : "false", api->fields);
    exchange_reset(&x, body);
    api->handle(&app, &x);
    if (x.status != 0 && x.status != 200)
        fail_msg("%s", x.out.data);
    if (!by_letter)
        fake_text(0, 0, words);
    for (const char *c = words; by_letter && *c; c++)
        fake_text(0, 0, (char[]){*c, '\0'});
    fake_choice(0, 0, finish, 9);
    fake_done(0, COLIBRI_OK, "", 9);
    assert_true(x.ended);
    assert_ok(clb_buf_append(&x.out, "", 1, NULL), &(clb_error){0});
}

static void half_a_call(void **state)
{
    (void)state;
    static const char *const words[] = {
        "<tool_call>",
        "<tool_call>\n{\"na",
        "<tool_call>\n{\"name\": \"f",
        "I look.\n<tool_call>\n{\"name\": \"f",
        "I look.\n<tool_ca",
    };
    for (size_t a = 0; a < sizeof apis / sizeof *apis; a++)
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            for (int how = 0; how < 4; how++) {
                reply(&apis[a], how & 1, how & 2, words[w], CLB_FINISH_LENGTH);
                const bool says = words[w][0] == 'I';
                if (!strstr(x.out.data, apis[a].cut) || strstr(x.out.data, "<tool"))
                    fail_msg("%zu: %s\n%s", a, words[w], x.out.data);
                if (!(how & 1) && says != !!strstr(x.out.data, "I look."))
                    fail_msg("%zu: %s\n%s", a, words[w], x.out.data);
                reset(NULL);
                /* the same words, said to be all: nothing is left out */
                reply(&apis[a], how & 1, how & 2, words[w], CLB_FINISH_STOP);
                if (!strstr(x.out.data, apis[a].ended) || (how == 0 && !strstr(x.out.data, "<tool_ca")))
                    fail_msg("%zu: %s\n%s", a, words[w], x.out.data);
                reset(NULL);
            }
}

/* A call whose name is known is given as far as it came. */
static void a_begun_call(void **state)
{
    (void)state;
    for (size_t a = 0; a < sizeof apis / sizeof *apis; a++)
        for (int how = 0; how < 4; how++) {
            reply(&apis[a], how & 1, how & 2, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
                  CLB_FINISH_LENGTH);
            if (!strstr(x.out.data, apis[a].cut) || !strstr(x.out.data, "\"name\":\"f\"") ||
                strstr(x.out.data, "tool_call>"))
                fail_msg("%zu: %s", a, x.out.data);
            reset(NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(half_a_call, reset),
        cmocka_unit_test_teardown(a_begun_call, reset),
    };
    return cmocka_run_group_tests(tests, open_app, close_app);
}
