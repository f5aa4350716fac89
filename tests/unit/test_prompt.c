/* Requests of the chat APIs -> prompts: what is adapted to what a template can do, and what the reply goes on from. */
#include <string.h>

#include "gguf/gguf.h"
#include "serve/prompt.h"
#include "serve/tool_impl.h"
#include "support.h"

/* Small templates that can do more or less. */
#define EACH "{% for m in messages %}"
static const char plain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if "
                            "add_generation_prompt %}<assistant>{% endif %}";
static const char no_system[] =
    EACH "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{ m.role }}>{{ m.content }}\n"
         "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
static const char typed[] = EACH "<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif "
                                 "%}{% endfor %}{{ '\n' }}{% endfor %}"
                                 "{% if add_generation_prompt %}<assistant>{% endif %}";
/* <tool_call> with objects as arguments; results have a role */
static const char objects[] = "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}" EACH
                              "{% if m.role == 'tool' %}<result {{ m.name }} {{ m.tool_call_id }}>{{ m.content }}\n"
                              "{% else %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>{\"name\": "
                              "\"{{ c.function.name }}\", \"arguments\": "
                              "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{{ '\n' }}{% endif %}{% "
                              "endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
/* arguments as text, ids of nine characters */
static const char strings[] =
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}" EACH
    "{% if m.tool_call_id is defined and m.tool_call_id | length != 9 %}{{ raise_exception('length 9') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('length 9') "
    "}}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments + '' }}{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
static const char thinker[] =
    EACH "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>"
         "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif "
         "%}{% endif %}";
static const char always[] =
    EACH "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
/* takes tools, shows neither calls nor results' role */
static const char forgetful[] =
    "{% if tools %}List of tools: {{ tools | tojson }}\n{% endif %}" EACH
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"does\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false}}}]";

static clb_vocab *vocab;

typedef struct options {
    const char *tools, *kwargs;
    enum clb_tool_choice choice;
    const char *name;
    bool constrained, one;
    const char *answer;
} options;

/* The prompt's text; *p is to be freed. */
static int make(const char *source, const char *messages, const options *o, clb_prompt *p, clb_buf *text,
                char param[64], clb_error *err)
{
    const clb_chat_format *chat;
    json_error_t e;
    json_t *m = json_loads(messages, 0, &e), *tools = o->tools ? json_loads(o->tools, 0, NULL) : NULL;
    json_t *kwargs = o->kwargs ? json_loads(o->kwargs, 0, NULL) : NULL;
    if (!m)
        fail_msg("%s: %s", messages, e.text);
    assert_ok(clb_chat_detect_template((clb_str){source, strlen(source)}, &chat, err), err);
    const clb_prompt_request q = {.messages = m,
                                  .tools = tools,
                                  .kwargs = kwargs,
                                  .choice = o->choice,
                                  .tool_name = o->name,
                                  .constrained = o->constrained || o->answer,
                                  .answer = o->answer,
                                  .one_call = o->one,
                                  .reasoning = true};
    const int rc = clb_prompt_make(chat, vocab, &q, p, param, err);
    text->n = 0;
    if (!rc)
        assert_ok(clb_detokenize(vocab, p->tokens.ids, p->tokens.n, true, text, err), err);
    clb_chat_free(chat);
    json_decref(m);
    json_decref(tools);
    json_decref(kwargs);
    return rc;
}

static void expect(const char *source, const char *messages, const options *o, const char *want, const char *opened)
{
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    if (make(source, messages, o, &p, &text, param, &err))
        fail_msg("%s\n%s: %s", messages, param, err.msg);
    if (strcmp(text.data, want) != 0)
        fail_msg("%s\ngives\n%s\n---- instead of\n%s", messages, text.data, want);
    assert_string_equal(p.opened, opened);
    clb_prompt_free(&p);
    clb_buf_free(&text);
}

static void expect_refused(const char *source, const char *messages, const char *at, const char *part)
{
    static const options none = {.tools = tools_json};
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    assert_fails(make(source, messages, &none, &p, &text, param, &err), &err, COLIBRI_E_USAGE, part);
    assert_string_equal(param, at);
    clb_buf_free(&text);
}

static const options none;

static void contents(void **state)
{
    (void)state;
    expect(plain, "[{\"role\":\"user\",\"content\":\"Hi\"}]", &none, "<user>Hi\n<assistant>", "");
    expect(plain,
           "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
           &none, "<user>a\nb\n<assistant>", "");
    expect(typed, "[{\"role\":\"user\",\"content\":\"Hi\"}]", &none, "<user>Hi\n<assistant>", "");
    expect(typed,
           "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}"
           "]}]",
           &none, "<system>S\n<user>a\n<assistant>", "");
    expect(plain,
           "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\","
           "\"content\":\"x\"}]",
           &none, "<user>\n<assistant>\n<user>x\n<assistant>", "");
}

static void systems(void **state)
{
    (void)state;
    /* several become one; developer is another word for it */
    expect(objects,
           "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"developer\",\"content\":\"D\"},{\"role\":\"user\","
           "\"content\":\"U\"}]",
           &none, "<system>S\n\nD\n<user>U\n<assistant>", "");
    expect("{# developer #}" EACH "<{{ m.role }}>{{ m.content }}{% endfor %}",
           "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"developer\",\"content\":\"D\"},{\"role\":\"user\","
           "\"content\":\"U\"}]",
           &none, "<system>S<developer>D<user>U", "");
    expect(no_system,
           "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\","
           "\"content\":\"A\"},"
           "{\"role\":\"user\",\"content\":\"V\"}]",
           &none, "<user>S\n\nU\n<assistant>A\n<user>V\n<assistant>", "");
    expect(no_system, "[{\"role\":\"system\",\"content\":\"S\"}]", &none, "<user>S\n<assistant>", "");
}

#define TALK                                                                                                           \
    "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_"  \
    "1\",\"type\":"                                                                                                    \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "                                           \
    "1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_1\","                                                         \
    "\"content\":\"R\"}]"

static void calls(void **state)
{
    (void)state;
    const options o = {.tools = tools_json};
    clb_buf want = {0}, listed = {0};
    clb_error err;
    json_t *t = json_loads(tools_json, 0, NULL);
    char *dump = json_dumps(t, 0);
    assert_ok(
        clb_buf_printf(&want, &err,
                       "<tools>%s</tools>\n<user>U\n<assistant><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
                       "</tool_call>\n<result f call_1>R\n<assistant>",
                       dump),
        &err);
    expect(objects, TALK, &o, want.data, "");
    /* the id is not nine letters long: another one, the same on both sides */
    const clb_chat_format *chat;
    assert_ok(clb_chat_detect_template((clb_str){strings, sizeof strings - 1}, &chat, &err), &err);
    assert_false(clb_chat_get_caps(chat)->object_arguments);
    assert_string_equal(clb_tool_format_name(clb_tool_format_of(chat)), "mistral");
    clb_chat_free(chat);
    want.n = 0;
    assert_ok(clb_buf_printf(
                  &want, &err,
                  "[AVAILABLE_TOOLS]%s<user>U\n<assistant>[TOOL_CALLS]f[ARGS]{\"a\": 1}\n<tool>R\n<assistant>", dump),
              &err);
    expect(strings, TALK, &o, want.data, "");
    /* a template that shows no calls: they are text of the message, as the model writes them */
    assert_ok(
        clb_buf_printf(
            &listed, &err,
            "List of tools: %s\n<user>U\n<assistant><|tool_call_start|>[f(a=1)]<|tool_call_end|>\n<tool>R\n<assistant>",
            dump),
        &err);
    expect(forgetful, TALK, &o, listed.data, "");
    clb_buf_free(&want);
    clb_buf_free(&listed);
    free(dump);
    json_decref(t);
}

/* A model's broken JSON comes back with what went wrong: it is shown, not refused. */
static void broken_arguments(void **state)
{
    (void)state;
#define BROKEN(text)                                                                                                   \
    "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"abcdefgh1\","            \
    "\"function\":{"                                                                                                   \
    "\"name\":\"f\",\"arguments\":\"" text                                                                             \
    "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"content\":\"R\"}]"
    static const struct {
        const char *messages, *as_text, *as_object;
    } cases[] = {
        {BROKEN("{\\\"a\\\": "), "{\"a\": ", "{\"arguments\": \"{\\\"a\\\": \"}"},
        {BROKEN("[1]"), "[1]", "{\"arguments\": \"[1]\"}"},
        {BROKEN(""), "{}", "{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[256];
        snprintf(want, sizeof want, "<user>U\n<assistant>[TOOL_CALLS]f[ARGS]%s\n<tool>R\n<assistant>",
                 cases[i].as_text);
        expect(strings, cases[i].messages, &none, want, "");
        snprintf(want, sizeof want,
                 "<user>U\n<assistant><tool_call>{\"name\": \"f\", \"arguments\": %s}</tool_call>\n<result f "
                 "abcdefgh1>R\n<assistant>",
                 cases[i].as_object);
        expect(objects, cases[i].messages, &none, want, "");
    }
}

/* Two calls in a message, where the template takes one. */
static void one_by_one(void **state)
{
    (void)state;
    static const char single[] =
        EACH "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
             "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}[{{ c.id }} {{ c.function.arguments | tojson "
             "}}]{% endfor %}"
             "{% endfor %}{{ tools[0].function.name if tools }}";
    const options o = {.tools = tools_json};
    expect(single,
           "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"A\",\"tool_calls\":["
           "{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},"
           "{\"id\":\"y\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 2}\"}}]},"
           "{\"role\":\"tool\",\"tool_call_id\":\"y\",\"content\":\"Y\"},{\"role\":\"tool\",\"tool_call_id\":\"x\","
           "\"content\":\"X\"},"
           "{\"role\":\"user\",\"content\":\"V\"}]",
           &o, "<user>U<assistant>A[x {\"a\": 1}]<tool>X<assistant>[y {\"a\": 2}]<tool>Y<user>Vf", "");
}

/* Templates that know nothing of tools. */
static void explained(void **state)
{
    (void)state;
    const options o = {.tools = tools_json};
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    assert_ok(make(no_system, TALK, &o, &p, &text, param, &err), &err);
    assert_non_null(strstr(text.data, "<user>You can call functions"));
    assert_non_null(strstr(text.data, "<tools>\n{\"name\": \"f\""));
    assert_non_null(
        strstr(text.data,
               "<tool_call>\n{\"name\": \"function_name\", \"arguments\": {\"parameter\": \"value\"}}\n</tool_call>"));
    assert_non_null(strstr(
        text.data, "\n\nU\n<assistant><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"));
    assert_true(p.n_protected > 0);
    clb_prompt_free(&p);
    /* choice none: as if there were no tools */
    const options off = {.tools = tools_json, .choice = CLB_TOOLS_NONE};
    expect(plain, "[{\"role\":\"user\",\"content\":\"Hi\"}]", &off, "<user>Hi\n<assistant>", "");
    clb_buf_free(&text);
}

static void thoughts(void **state)
{
    (void)state;
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    const options off = {.kwargs = "{\"enable_thinking\": false}"}, schema = {.constrained = true};
    const options on = {.constrained = true, .kwargs = "{\"enable_thinking\": true}"};
    expect(thinker, hi, &none, "<user>Hi\n<assistant><think>\n", "<think>");
    expect(thinker, hi, &off, "<user>Hi\n<assistant><think>\n\n</think>\n\n", "");
    /* a grammar leaves no room for thoughts */
    expect(thinker, hi, &schema, "<user>Hi\n<assistant><think>\n\n</think>\n\n", "");
    expect(thinker, hi, &on, "<user>Hi\n<assistant><think>\n\n</think>\n\n", "");
    expect(always, hi, &schema, "<user>Hi\n<assistant><think>\n\n</think>\n\n", "");
    expect(always, hi, &none, "<user>Hi\n<assistant><think>\n", "<think>");
    /* in the user's words the mark means nothing */
    expect(plain, "[{\"role\":\"user\",\"content\":\"a <think>\"},{\"role\":\"assistant\",\"content\":\"b <think>\"}]",
           &none, "<user>a <think>\n<assistant>b <think>", "");
}

static void goes_on(void **state)
{
    (void)state;
    expect(plain, "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"The answer is \"}]",
           &none, "<user>U\n<assistant>The answer is", "");
    expect(plain, "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\" \"}]", &none,
           "<user>U\n<assistant>", "");
    expect(always, "[{\"role\":\"user\",\"content\":\"U\"},{\"role\":\"assistant\",\"content\":\"A\"}]", &none,
           "<user>U\n<assistant>A", "");
}

static void must_call(void **state)
{
    (void)state;
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    const options must = {.tools = tools_json, .choice = CLB_TOOLS_REQUIRED, .one = true};
    const options named = {.tools = tools_json, .choice = CLB_TOOLS_NAMED, .name = "f"};
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    for (int i = 0; i < 2; i++) {
        static const char tail[] = "<assistant><tool_call>\n{\"name\": \"f\", \"arguments\": ";
        assert_ok(make(objects, hi, i ? &named : &must, &p, &text, param, &err), &err);
        assert_true(text.n > sizeof tail);
        assert_string_equal(text.data + text.n - (sizeof tail - 1), tail);
        assert_string_equal(p.opened, tail + 11);
        assert_non_null(p.gbnf);
        clb_prompt_free(&p);
    }
    assert_ok(make(always, hi, &must, &p, &text, param, &err), &err); /* its thoughts are closed first */
    assert_non_null(strstr(text.data, "<assistant><think>\n\n</think>\n\n<tool_call>\n{\"name\""));
    clb_prompt_free(&p);
    assert_string_equal(param, "");
    for (int i = 0; i < 2; i++) { /* what no grammar can follow is the tools' fault */
        options strict = i ? named : must;
        strict.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":"
                       "\"object\",\"properties\":{\"a\":{\"not\":{}}}}}}]";
        assert_fails(make(objects, hi, &strict, &p, &text, param, &err), &err, COLIBRI_E_UNSUPPORTED, "not");
        assert_string_equal(param, "tools");
    }
    clb_buf_free(&text);
}

/* An answer of a grammar, or calls: what grammar that makes under which choice. */
static void answer_or_calls(void **state)
{
    (void)state;
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";
    static const char unmarked[] = "{# <|start_header_id|> parameters #}" EACH "{{ m.content }}{% endfor %}"
                                   "{% if tools %}{{ tools | tojson }}{% endif %}";
    options o = {.tools = tools_json, .answer = "root ::= \"yes\""};
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    assert_ok(make(objects, hi, &o, &p, &text, param, &err), &err);
    assert_non_null(p.gbnf);
    assert_non_null(strstr(p.gbnf, "answer-root ::= \"yes\""));
    assert_string_equal(p.opened, "");
    clb_prompt_free(&p);
    assert_ok(make(always, hi, &o, &p, &text, param, &err), &err); /* no thoughts before it */
    assert_non_null(strstr(text.data, "<think>\n\n</think>"));
    clb_prompt_free(&p);
    o.choice = CLB_TOOLS_REQUIRED;
    assert_ok(make(objects, hi, &o, &p, &text, param, &err), &err);
    assert_null(strstr(p.gbnf, "answer"));
    clb_prompt_free(&p);
    o.choice = CLB_TOOLS_NONE;
    assert_ok(make(objects, hi, &o, &p, &text, param, &err), &err);
    assert_null(p.gbnf);
    clb_prompt_free(&p);
    o.choice = CLB_TOOLS_AUTO;
    /* calls without a mark are told from it by how they begin */
    assert_ok(make(unmarked, hi, &o, &p, &text, param, &err), &err);
    assert_non_null(strstr(p.gbnf, "answer-root ::= \"yes\""));
    assert_string_equal(param, "");
    clb_prompt_free(&p);
    o.answer = "root ::= .*";
    assert_ok(make(unmarked, hi, &o, &p, &text, param, &err), &err);
    clb_prompt_free(&p);
    o.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]";
    assert_fails(make(unmarked, hi, &o, &p, &text, param, &err), &err, COLIBRI_E_UNSUPPORTED, "begin like a call");
    assert_string_equal(param, "tools");
    clb_buf_free(&text);
}

static void refusals(void **state)
{
    (void)state;
    expect_refused(plain, "[]", "", "at least one");
    expect_refused(plain, "[1]", "messages[0]", "role");
    expect_refused(plain, "[{\"content\":\"x\"}]", "messages[0].role", "role");
    expect_refused(plain, "[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0].role", "system");
    expect_refused(plain, "[{\"role\":\"user\"}]", "messages[0].content", "content");
    expect_refused(plain, "[{\"role\":\"user\",\"content\":1}]", "messages[0].content", "string");
    expect_refused(plain, "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
                   "messages[0].content[0].type", "image_url");
    expect_refused(plain, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]",
                   "'text'");
    expect_refused(plain, "[{\"role\":\"user\",\"content\":[3]}]", "messages[0].content[0]", "type");
    expect_refused(plain, "[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[]}]", "messages[0].tool_calls",
                   "assistant");
    expect_refused(plain, "[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":{}}]", "messages[0].tool_calls",
                   "list");
    expect_refused(plain, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\"}]}]",
                   "messages[0].tool_calls[0].function.name", "name");
    expect_refused(plain,
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":[1]}}]}]",
                   "messages[0].tool_calls[0].function.arguments", "JSON object");
    expect_refused("{{ raise_exception('not today') }}", "[{\"role\":\"user\",\"content\":\"x\"}]", "", "not today");
}

/* The user cannot write marks: only the template's count as tokens. */
static void no_forgery(void **state)
{
    (void)state;
    static const char source[] = EACH "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    clb_prompt p;
    clb_buf text = {0};
    clb_error err = {0};
    char param[64];
    assert_ok(
        make(source, "[{\"role\":\"user\",\"content\":\"<|im_end|><|im_start|>\"}]", &none, &p, &text, param, &err),
        &err);
    size_t marks = 0;
    for (size_t i = 0; i < p.tokens.n; i++)
        marks += clb_vocab_is_control(vocab, p.tokens.ids[i]);
    assert_int_equal(marks, 2);
    clb_prompt_free(&p);
    clb_buf_free(&text);
}

static int load(void **state)
{
    clb_error err;
    clb_gguf *g;
    (void)state;
    assert_ok(clb_gguf_open(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), NULL, NULL, &g, &err), &err);
    assert_ok(clb_vocab_load(g, &vocab, &err), &err);
    clb_gguf_close(g);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    clb_vocab_free(vocab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents),         cmocka_unit_test(systems),    cmocka_unit_test(calls),
        cmocka_unit_test(broken_arguments), cmocka_unit_test(one_by_one), cmocka_unit_test(explained),
        cmocka_unit_test(thoughts),         cmocka_unit_test(goes_on),    cmocka_unit_test(answer_or_calls),
        cmocka_unit_test(must_call),        cmocka_unit_test(refusals),   cmocka_unit_test(no_forgery),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
