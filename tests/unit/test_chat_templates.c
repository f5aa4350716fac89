/* Published chat templates against jinja2's renderings of them (tests/oracles/record_chat.py):
 * - COLIBRI_TEST_TEMPLATES: the folder of templates that chat.json was recorded from;
 * - COLIBRI_TEST_SMOLLM2: SmolLM2-135M-Instruct;
 * the example model is always at hand. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "serve/json_values.h"
#include "text/chat_impl.h"

static json_t *recorded;

static size_t messages_of(const json_t *conversation, clb_message *out)
{
    const json_t *list = json_object_get(conversation, "messages"), *m;
    size_t i;
    json_array_foreach(list, i, m)
    {
        out[i].role = json_string_value(json_object_get(m, "role"));
        out[i].content = json_string_value(json_object_get(m, "content"));
    }
    return i;
}

/* As record_chat.py: length and FNV-1a. */
static void digest(const clb_buf *text, char out[48])
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < text->n; i++)
        h = (h ^ (uint8_t)text->data[i]) * 0x100000001b3u;
    snprintf(out, 48, "%zu:%016llx", text->n, (unsigned long long)h);
}

/* Where Python stumbles over its own types, Colibri goes on: a loop over null, a generator as JSON, recursion. */
static bool goes_on(const char *error)
{
    return strstr(error, "NoneType") || strstr(error, "generator") || strstr(error, "recursion");
}

static int render(const clb_chat_format *f, const json_t *conversation, int64_t now, clb_jinja_output *out, clb_error *err)
{
    clb_jdata *d;
    assert_ok(clb_jdata_create((size_t)1 << 20, &d, err), err);
    clb_jvalue *more = clb_jdata_dict(d);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)conversation, key, value)
        clb_jdata_set(d, more, (clb_str){key, strlen(key)}, clb_json_values(d, value));
    const clb_chat_values v = {.messages = clb_json_messages(d, json_object_get(conversation, "messages")),
                               .tools = clb_json_values(d, json_object_get(conversation, "tools")),
                               .documents = clb_json_values(d, json_object_get(conversation, "documents")),
                               .more = more,
                               .add_generation = json_is_true(json_object_get(conversation, "add_generation_prompt")),
                               .now = now};
    int rc = clb_jdata_status(d, err);
    if (!rc)
        rc = clb_chat_render_marked(f, &v, out, err);
    clb_jdata_free(d);
    return rc;
}

/* All conversations of one template; returns how many were compared, and adds to *failed. */
static size_t check(const char *name, const clb_chat_format *f, size_t *failed)
{
    json_t *conversations = json_object_get(recorded, "conversations"), *c;
    const json_t *want_all = json_object_get(json_object_get(json_object_get(recorded, "templates"), name), "rendered");
    const int64_t now = json_integer_value(json_object_get(recorded, "now"));
    const char *key;
    size_t compared = 0, wrong = 0;
    assert_non_null(want_all);
    json_object_foreach(conversations, key, c)
    {
        clb_error err = {0};
        clb_jinja_output got = {0};
        const json_t *want = json_object_get(want_all, key);
        const char *error = json_string_value(json_object_get(want, "error"));
        const int rc = render(f, c, now, &got, &err);
        char has[48];
        digest(&got.text, has);
        compared++;
        if (!error && rc) {
            print_error("%s, %s: %s\n", name, key, err.msg);
            wrong++;
        } else if (!error && strcmp(has, json_string_value(want)) != 0) {
            /* record_chat.py --show TEMPLATE CONVERSATION prints what it should be */
            print_error("%s, %s: %s instead of %s:\n%s\n----\n", name, key, has, json_string_value(want), got.text.data);
            wrong++;
        } else if (error && goes_on(error)) {
            compared--;
        } else if (error && !rc) {
            print_error("%s, %s: no error, but jinja2 says %s\n", name, key, error);
            wrong++;
        }
        if (!rc)
            assert_int_equal(got.taint.n, got.text.n);
        clb_jinja_output_free(&got);
    }
    if (wrong)
        print_error("%s: %zu of %zu conversations are wrong\n", name, wrong, compared);
    *failed += wrong;
    return compared;
}

static size_t check_gguf(const char *name, const char *path)
{
    clb_error err;
    clb_gguf *g;
    const clb_chat_format *f;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_chat_detect(g, &f, &err), &err);
    clb_gguf_close(g);
    assert_string_equal(clb_chat_name(f), "chatml");
    size_t failed = 0;
    const size_t n = check(name, f, &failed);
    clb_chat_free(f);
    assert_int_equal(failed, 0);
    return n;
}

static void example_model(void **state)
{
    (void)state;
    assert_int_equal(check_gguf("tiny-moe-q4_k_m.gguf", TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")), 23);
}

/* Chats of smollm2.json: the ids of the whole prompt. */
static void recorded_prompts(const char *path)
{
    json_t *all = json_load_file(TEST_DATA("smollm2.json"), 0, NULL), *c, *id;
    clb_error err;
    clb_gguf *g;
    clb_vocab *v;
    const clb_chat_format *f;
    size_t i, k;
    assert_non_null(all);
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_vocab_load(g, &v, &err), &err);
    assert_ok(clb_chat_detect(g, &f, &err), &err);
    clb_gguf_close(g);
    json_array_foreach(json_object_get(all, "chats"), i, c)
    {
        clb_message messages[16];
        clb_tokens ids = {0};
        const size_t n = messages_of(c, messages);
        assert_ok(clb_chat_tokenize(f, v, messages, n, 1, &ids, &err), &err);
        assert_int_equal(ids.n, json_array_size(json_object_get(c, "prompt_ids")));
        json_array_foreach(json_object_get(c, "prompt_ids"), k, id)
            assert_int_equal(ids.ids[k], json_integer_value(id));
        clb_tokens_free(&ids);
    }
    assert_true(i >= 3);
    clb_chat_free(f);
    clb_vocab_free(v);
    json_decref(all);
}

static void smollm2(void **state)
{
    (void)state;
    const char *path = getenv("COLIBRI_TEST_SMOLLM2");
    if (!path) {
        print_message("COLIBRI_TEST_SMOLLM2 is unset\n");
        skip();
    }
    assert_int_equal(check_gguf("smollm2-135m-instruct-q4_1.gguf", path), 23);
    recorded_prompts(path);
}

static void published_templates(void **state)
{
    (void)state;
    const char *dir = getenv("COLIBRI_TEST_TEMPLATES"), *name;
    json_t *of;
    size_t files = 0, compared = 0, failed = 0;
    if (!dir) {
        print_message("COLIBRI_TEST_TEMPLATES is unset\n");
        skip();
    }
    json_object_foreach(json_object_get(recorded, "templates"), name, of)
    {
        char path[PATH_MAX];
        size_t n;
        if (!strstr(name, ".jinja"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, name);
        char *text = test_read_file(path, &n);
        clb_error err;
        const clb_chat_format *f;
        if (clb_chat_detect_template((clb_str){text, n}, &f, &err))
            fail_msg("%s: %s", name, err.msg);
        compared += check(name, f, &failed);
        files++;
        clb_chat_free(f);
        free(text);
    }
    print_message("%zu templates, %zu conversations\n", files, compared);
    assert_int_equal(failed, 0);
    assert_true(files >= 20);
}

static int load(void **state)
{
    (void)state;
    const char *other = getenv("COLIBRI_TEST_CHAT_JSON");
    recorded = json_load_file(other ? other : TEST_DATA("chat.json"), 0, NULL);
    assert_non_null(recorded);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    json_decref(recorded);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_model),
        cmocka_unit_test(smollm2),
        cmocka_unit_test(published_templates),
    };
    setenv("TZ", "UTC", 1); /* strftime_now is local time */
    return cmocka_run_group_tests(tests, load, unload);
}
