/* truncation "auto" of the Responses API: what of a conversation goes first, and what prompts are made of the rest. */
#include "openai_fake.h"
#include "serve/completion.h"
#include "serve/openai_responses.h"

#define CTX 1024u

/* ---- the order of cuts ---- */

/* One letter a message: s system, d developer, u user, a assistant, c..f an assistant's call and C..F its result
 * (p: two calls, c and d, at once), x a result of no call. */
static json_t *conversation(const char *letters)
{
    json_t *const list = json_array();
    for (; *letters; letters++) {
        const char c = *letters;
        const char *const role = c == 's' ? "system" : c == 'd' ? "developer" : c == 'u' ? "user" : "assistant";
        char id[8] = "c", upper[8] = "d";
        json_t *m;
        if (c == 'x' || (c >= 'C' && c <= 'F')) {
            id[0] = (char)(c == 'x' ? 'x' : c - 'A' + 'a');
            m = json_pack("{s:s, s:s, s:s}", "role", "tool", "content", "r", "tool_call_id", id);
        } else if (c == 'p') {
            m = json_pack("{s:s, s:[{s:s}, {s:s}]}", "role", role, "tool_calls", "id", id, "id", upper);
        } else if (c == 'c' || c == 'e' || c == 'f') {
            id[0] = c;
            m = json_pack("{s:s, s:[{s:s}]}", "role", role, "tool_calls", "id", id);
        } else {
            m = json_pack("{s:s, s:s}", "role", role, "content", "t");
        }
        assert_non_null(m);
        json_array_append_new(list, m);
    }
    return list;
}

/* What is left after each cut. */
static void assert_left(const char *letters, const char *const *left)
{
    json_t *const messages = conversation(letters);
    uint32_t *cut, n_cuts, n_left = 0;
    clb_refusal r = {0};
    while (left[n_left])
        n_left++;
    assert_int_equal(clb_responses_cuts(messages, &cut, &n_cuts, &r), COLIBRI_OK);
    if (n_cuts != n_left)
        fail_msg("'%s': %u cuts instead of %u", letters, n_cuts, n_left);
    for (uint32_t k = 1; k <= n_cuts; k++) {
        char got[64];
        size_t n = 0;
        for (size_t i = 0; letters[i]; i++)
            if (!cut[i] || cut[i] > k)
                got[n++] = letters[i];
        got[n] = '\0';
        if (strcmp(got, left[k - 1]) != 0)
            fail_msg("'%s' after %u cuts: '%s' instead of '%s'", letters, k, got, left[k - 1]);
    }
    free(cut);
    json_decref(messages);
}
#define ASSERT_LEFT(letters, ...) assert_left(letters, (const char *const[]){__VA_ARGS__})

static void what_goes_first(void **state)
{
    (void)state;
    ASSERT_LEFT("u", NULL);
    ASSERT_LEFT("sdu", NULL);
    ASSERT_LEFT("ua", NULL);
    ASSERT_LEFT("uau", "u", NULL);
    ASSERT_LEFT("suauaua", "suaua", "sua", NULL);      /* questions with their answers */
    ASSERT_LEFT("suadua", "sdua", NULL);               /* what the system says later stays */
    ASSERT_LEFT("auau", "uau", "u", NULL);             /* greeted by the assistant */
    ASSERT_LEFT("uuau", "uau", "u", NULL);             /* a user's messages, the older first */
    ASSERT_LEFT("uauu", "uu", "u", NULL);              /* the last turn's, too, but for the last */
    ASSERT_LEFT("ucCeEau", "ueEau", "uau", "u", NULL); /* a call with its result */
    ASSERT_LEFT("ucCeEfF", "ueEfF", "ufF", NULL);      /* the last step is what is to be answered */
    ASSERT_LEFT("uaucCeE", "ucCeE", "ueE", NULL);
    ASSERT_LEFT("upCDau", "uau", "u", NULL);            /* two calls at once */
    ASSERT_LEFT("upDCcCau", "ucCau", "uau", "u", NULL); /* an id that is used again is the later call's */
    ASSERT_LEFT("ucsCau", "usau", "su", NULL);          /* a word of the system's in between */
    ASSERT_LEFT("uxau", "uau", "u", NULL);              /* a result of nothing */
    ASSERT_LEFT("cCeE", "eE", NULL);                    /* no user at all */
    ASSERT_LEFT("s", NULL);
    ASSERT_LEFT("uaucauC", "ucauC", "ucuC", NULL); /* a late result keeps its call, and who asked for it */
}

/* ---- prompts ---- */

/* Tells messages apart: "[17]", and how long they are. */
static json_t *item(size_t i, const char *role, unsigned words)
{
    clb_buf text = {0};
    clb_error err;
    char name[24];
    const int n = snprintf(name, sizeof name, "[%zu]", i);
    assert_ok(clb_buf_append(&text, name, (size_t)n, &err), &err);
    for (unsigned w = 0; w < words; w++)
        assert_ok(clb_buf_append(&text, " the", 4, &err), &err);
    json_t *const content = json_stringn(text.data, text.n);
    clb_buf_free(&text);
    if (strcmp(role, "call") == 0) {
        json_t *const m = json_pack("{s:s, s:s, s:s, s:o}", "type", "function_call", "call_id", name, "name", "f",
                                    "arguments", json_sprintf("{\"x\":\"%s\"}", json_string_value(content)));
        json_decref(content);
        return m;
    }
    if (strcmp(role, "result") == 0) { /* of the item before */
        snprintf(name, sizeof name, "[%zu]", i - 1);
        return json_pack("{s:s, s:s, s:o}", "type", "function_call_output", "call_id", name, "output", content);
    }
    return json_pack("{s:s, s:o}", "role", role, "content", content);
}

static char refused[640]; /* what was said to the last request that was */

/* Asks with these items, and says which of them the prompt has: left[i]; how many tokens it has, 0 if it was refused.
 * *prompt, if wanted: it. */
static size_t ask(const json_t *items, const char *truncation, unsigned max_tokens, bool *left, clb_buf *prompt)
{
    json_t *const body =
        json_pack("{s:O, s:s, s:s, s:i, s:[{s:s, s:s}]}", "input", items, "instructions", "[be kind]", "truncation",
                  truncation, "max_output_tokens", (int)max_tokens, "tools", "type", "function", "name", "f");
    char *const text = json_dumps(body, JSON_COMPACT);
    assert_non_null(text);
    json_decref(body);
    exchange_reset(&x, text);
    clb_serve_responses(&app, &x);
    size_t n = 0;
    if (fake.n) {
        clb_buf all = {0};
        clb_error err;
        n = fake.requests[0]->n_prompt;
        for (size_t i = 0; i < n; i++)
            assert_ok(clb_token_bytes(app.engine->vocab, fake.requests[0]->prompt[i], true, &all, &err), &err);
        if (!test_contains(all.data, "[be kind]"))
            fail_msg("the instructions were cut: %s", all.data);
        for (size_t i = 0; i < json_array_size(items); i++) {
            char name[24];
            snprintf(name, sizeof name, "[%zu]", i);
            left[i] = test_contains(all.data, name);
        }
        fake_choice(0, 0, CLB_FINISH_STOP, 0);
        fake_done(0, COLIBRI_OK, "", 0);
        json_t *const o = answer();
        assert_string_equal(json_string_value(json_object_get(o, "truncation")), truncation);
        json_decref(o);
        if (prompt)
            *prompt = all;
        else
            clb_buf_free(&all);
    } else {
        json_t *const o = answer();
        const json_t *e = json_object_get(o, "error");
        assert_int_equal(x.status, 400);
        assert_string_equal(json_string_value(json_object_get(e, "code")), "context_length_exceeded");
        assert_string_equal(json_string_value(json_object_get(e, "param")), "input");
        snprintf(refused, sizeof refused, "%s", json_string_value(json_object_get(e, "message")));
        assert_non_null(strstr(refused, "maximum context length is"));
        assert_int_equal(json_integer_value(json_object_get(e, "n_ctx")), CTX);
        assert_true(json_integer_value(json_object_get(e, "n_prompt_tokens")) > (json_int_t)CTX);
        json_decref(o);
    }
    reset(NULL);
    free(text);
    return n;
}

/* The stand-in for the scheduler refuses nothing: what is too long is known by its size. */
static void what_fits_is_left_alone(void **state)
{
    (void)state;
    bool left[8];
    json_t *const items = json_array();
    json_array_append_new(items, item(0, "user", 200));
    json_array_append_new(items, item(1, "assistant", 200));
    json_array_append_new(items, item(2, "user", 200));
    const size_t n = ask(items, "disabled", 10, left, NULL);
    assert_in_range(n, 600, CTX - 64);
    assert_int_equal(ask(items, "auto", 10, left, NULL), n);
    assert_true(left[0] && left[1] && left[2]);
    /* room for an answer: max_output_tokens, but not more than a sixteenth */
    json_array_set_new(items, 0, item(0, "user", (unsigned)(200 + CTX - n - 20)));
    const size_t tight = ask(items, "disabled", 10, left, NULL);
    assert_int_equal(tight, CTX - 20);
    assert_int_equal(ask(items, "auto", 20, left, NULL), tight);
    assert_true(ask(items, "auto", 21, left, NULL) < tight);
    assert_true(!left[0] && !left[1] && left[2]);
    json_array_set_new(items, 0, item(0, "user", (unsigned)(200 + CTX - n - 64)));
    assert_int_equal(ask(items, "auto", 5000, left, NULL), CTX - 64);
    json_array_set_new(items, 0, item(0, "user", (unsigned)(200 + CTX - n - 63)));
    assert_true(ask(items, "auto", 5000, left, NULL) < CTX - 64);
    /* disabled is as ever */
    json_array_set_new(items, 0, item(0, "user", 1000));
    assert_true(ask(items, "disabled", 10, left, NULL) > CTX);
    json_decref(items);
}

static void what_never_fits_is_refused(void **state)
{
    (void)state;
    bool left[8];
    json_t *const items = json_array();
    json_array_append_new(items, item(0, "user", 200));
    json_array_append_new(items, item(1, "assistant", 200));
    json_array_append_new(items, item(2, "user", 1100));
    assert_int_equal(ask(items, "auto", 10, left, NULL), 0);
    json_array_set_new(items, 2, item(2, "user", 1));
    json_array_append_new(items, item(3, "call", 2));
    json_array_append_new(items, item(4, "result", 1100)); /* what is to be answered */
    assert_int_equal(ask(items, "auto", 10, left, NULL), 0);
    /* it fits without room: as it would with "disabled" */
    json_array_set_new(items, 4, item(4, "result", 1));
    json_array_set_new(items, 2, item(2, "user", 800));
    const size_t less = ask(items, "auto", 10, left, NULL);
    assert_in_range(less, 800, CTX - 10);
    json_array_set_new(items, 2, item(2, "user", (unsigned)(800 + CTX - less - 5)));
    assert_int_equal(ask(items, "auto", 10, left, NULL), CTX - 5);
    assert_true(!left[0] && !left[1] && left[2] && left[3] && left[4]);
    json_decref(items);
}

/* A strategy that drops tokens itself reads prompts of any length. */
static void strategies_that_evict(void **state)
{
    (void)state;
    bool left[8];
    json_t *const items = json_array();
    json_array_append_new(items, item(0, "user", 800));
    json_array_append_new(items, item(1, "assistant", 200));
    json_array_append_new(items, item(2, "user", 300));
    app.engine->kv_choice.traits.evicts = true;
    assert_true(ask(items, "auto", 10, left, NULL) > CTX);
    app.engine->kv_choice.traits.evicts = false;
    assert_true(left[0] && left[1] && left[2]);
    json_decref(items);
}

/* An agent's work: as it grows, what is cut must be whole, and mostly the same as the time before. */
static void long_conversations(void **state)
{
    (void)state;
    enum { ROUNDS = 3, STEPS = 120 };
    static const char *const kinds[] = {"user", "assistant", "call"};
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        test_rand rng = {seed};
        json_t *const items = json_array();
        const char *roles[3 * STEPS];
        bool left[3 * STEPS], left_before[3 * STEPS];
        size_t n_before = 0;
        unsigned asked = 0, same = 0;
        clb_buf before = {0};
        json_array_append_new(items, item(0, roles[0] = "user", 5));
        for (unsigned step = 0; step < STEPS; step++) {
            size_t n = json_array_size(items);
            const char *const kind = kinds[test_rand_below(&rng, 3)];
            if (strcmp(kind, "call") == 0) {
                json_array_append_new(items, item(n, roles[n] = "call", test_rand_below(&rng, 20)));
                n++;
                json_array_append_new(items, item(n, roles[n] = "result", test_rand_below(&rng, 16)));
            } else {
                json_array_append_new(items, item(n, roles[n] = kind, test_rand_below(&rng, 16)));
            }
            n = json_array_size(items);
            if (strcmp(roles[n - 1], "assistant") == 0)
                continue;
            clb_buf prompt = {0};
            const size_t n_tokens = ask(items, "auto", 20, left, &prompt);
            if (!n_tokens || n_tokens > CTX - 20)
                fail_msg("seed %d, %zu items: %zu tokens", (int)seed, n, n_tokens);
            size_t first = 0, last_user = n;
            while (first < n && !left[first])
                first++;
            for (size_t i = 0; i < n; i++)
                last_user = strcmp(roles[i], "user") == 0 ? i : last_user;
            if (strcmp(roles[first], "user") != 0 || !left[last_user] || !left[n - 1])
                fail_msg("seed %d, %zu items: begins with a message of the %s's", (int)seed, n, roles[first]);
            for (size_t i = 1; i < n; i++)
                if (strcmp(roles[i], "result") == 0 && left[i] != left[i - 1])
                    fail_msg("seed %d: call %zu without its result", (int)seed, i - 1);
            if (first) {
                asked++;
                const bool alike = memcmp(left, left_before, n_before * sizeof *left) == 0;
                same += alike;
                /* but for the mark of whose turn it is */
                if (alike && (prompt.n < before.n || memcmp(prompt.data, before.data, before.n - 40) != 0))
                    fail_msg("seed %d, %zu items: another prefix:\n%s\n---\n%s", (int)seed, n, before.data,
                             prompt.data);
            }
            memcpy(left_before, left, n * sizeof *left);
            n_before = n;
            clb_buf_free(&before);
            before = prompt;
        }
        if (asked < 10 || same * 2 < asked)
            fail_msg("seed %d: %u prompts were shortened, %u of them at the same place as before", (int)seed, asked,
                     same);
        clb_buf_free(&before);
        json_decref(items);
    }
}

/* A template that wants users and assistants in turn gets them so. */
static void strict_templates(void **state)
{
    (void)state;
    static const char source[] =
        "{%- for m in messages -%}"
        "{%- set nth = loop.index0 - (1 if messages[0].role == 'system' else 0) -%}"
        "{%- if m.role != 'system' and (m.role == 'user') != (nth % 2 == 0) -%}"
        "{{ raise_exception('roles must alternate') }}{%- endif -%}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}<|im_start|>assistant\n";
    clb_error err;
    const clb_chat_format *const own = app.chat;
    bool left[41];
    json_t *const items = json_array();
    for (size_t i = 0; i < 41; i++)
        json_array_append_new(items, item(i, i % 2 ? "assistant" : "user", 40));
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_write_text(test_dir_file(&dir, "strict.jinja", path), source);
    assert_ok(clb_chat_open(path, app.engine->gguf, &app.chat, &err), &err);
    const size_t n = ask(items, "auto", 20, left, NULL);
    clb_chat_free(app.chat);
    app.chat = own;
    test_dir_remove(&dir);
    assert_in_range(n, CTX / 2, CTX - 20);
    size_t first = 0;
    while (!left[first])
        first++;
    assert_int_equal(first % 2, 0);
    json_decref(items);
}

/* What it says to the shortest conversation is told. */
static void refused_by_the_template(void **state)
{
    (void)state;
    static const char source[] =
        "{%- if messages|length < 4 -%}{{ raise_exception('where is the example?') }}{%- endif -%}"
        "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}"
        "<|im_start|>assistant\n";
    clb_error err;
    const clb_chat_format *const own = app.chat;
    bool left[9];
    json_t *const items = json_array();
    for (size_t i = 0; i < 9; i++)
        json_array_append_new(items, item(i, i % 2 ? "assistant" : "user", 200));
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_write_text(test_dir_file(&dir, "few.jinja", path), source);
    assert_ok(clb_chat_open(path, app.engine->gguf, &app.chat, &err), &err);
    assert_int_equal(ask(items, "auto", 20, left, NULL), 0);
    clb_chat_free(app.chat);
    app.chat = own;
    test_dir_remove(&dir);
    if (!strstr(refused, "where is the example?"))
        fail_msg("%s", refused);
    json_decref(items);
}

static int open_small(void **state)
{
    open_app(state);
    app.engine->ctx = CTX;
    return 0;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, reset)
    const struct CMUnitTest tests[] = {
        TEST(what_goes_first),         TEST(what_fits_is_left_alone), TEST(what_never_fits_is_refused),
        TEST(strategies_that_evict),   TEST(long_conversations),      TEST(strict_templates),
        TEST(refused_by_the_template),
    };
    return cmocka_run_group_tests(tests, open_small, close_app);
}
