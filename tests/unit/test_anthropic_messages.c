/* Messages of Anthropic's API in the shape of chat. */
#include <string.h>
#include <time.h>

#include "serve/anthropic.h"
#include "support.h"

static void expect(const char *messages, const char *want)
{
    json_t *const body = json_pack("{s:o}", "messages", json_loads(messages, 0, NULL));
    json_t *const expected = json_loads(want, 0, NULL);
    json_t *got = NULL;
    clb_refusal r = {0};
    assert_non_null(body);
    assert_non_null(expected);
    if (clb_anthropic_messages(body, &got, &r))
        fail_msg("%s", r.message);
    if (!json_equal(got, expected))
        fail_msg("%s\nbecomes\n%s", messages, json_dumps(got, 0));
    json_decref(body);
    json_decref(expected);
    json_decref(got);
}

#define TEXT(t)    "{\"type\":\"text\",\"text\":\"" t "\"}"
#define THOUGHT(t) "{\"type\":\"thinking\",\"thinking\":\"" t "\",\"signature\":\"\"}"

/* Texts of one role that follow each other are one, with a line for each. */
static void texts_are_joined(void **state)
{
    (void)state;
    expect("[{\"role\":\"user\",\"content\":\"a\"}]", "[{\"role\":\"user\",\"content\":\"a\"}]");
    expect("[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":[" TEXT("b") "," TEXT("c") "]}]",
           "[{\"role\":\"user\",\"content\":\"\\nb\\nc\"}]");
    expect("[{\"role\":\"user\",\"content\":\"\"}]", "[{\"role\":\"user\",\"content\":\"\"}]");
    expect("[{\"role\":\"user\",\"content\":[]},{\"role\":\"assistant\",\"content\":[]}]",
           "[{\"role\":\"assistant\",\"content\":null}]");
    expect("[{\"role\":\"assistant\",\"content\":[" THOUGHT("") "," THOUGHT("t") "," TEXT("") "," TEXT("a") "," THOUGHT(
               "u") "," TEXT("") "]},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]",
           "[{\"role\":\"assistant\",\"reasoning_content\":\"t\\nu\",\"content\":\"a\\n\\nb\"},"
           "{\"role\":\"user\",\"content\":\"c\"}]");
    expect("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[" TEXT(
               "b") ",{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":\"r\"}]},"
                    "{\"role\":\"user\",\"content\":\"c\"}]",
           "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"i\"},"
           "{\"role\":\"user\",\"content\":\"b\\nc\"}]");
}

/* As many blocks as there may be: each is copied once. */
static void many_blocks(void **state)
{
    (void)state;
    enum { N = 200000 };
    for (int kind = 0; kind < 3; kind++) {
        const char *const type = kind == 1 ? "thinking" : "text";
        json_t *const blocks = json_array();
        json_t *const body =
            json_pack("{s:[{s:s, s:o}]}", "messages", "role", kind ? "assistant" : "user", "content", blocks);
        json_t *got = NULL;
        clb_refusal r = {0};
        for (int i = 0; i < N; i++)
            json_array_append_new(blocks, json_pack("{s:s, s:s}", "type", type, type, "a"));
        const clock_t before = clock();
        assert_int_equal(clb_anthropic_messages(body, &got, &r), COLIBRI_OK);
        const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
        const json_t *const m = json_array_get(got, 0);
        assert_int_equal(json_string_length(json_object_get(m, kind == 1 ? "reasoning_content" : "content")),
                         2 * N - 1);
        if (seconds > 5) /* 0.05 s */
            fail_msg("%d blocks took %.1f s", (int)N, seconds);
        json_decref(got);
        json_decref(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_are_joined), cmocka_unit_test(many_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
