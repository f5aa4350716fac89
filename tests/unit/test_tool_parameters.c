/* Parameters that are written one by one: whatever the grammar of a function lets through is read back as what its
 * schema says, and what cannot be followed is refused for strict functions. */
#include "serve/tool_grammar.h"
#include "tool_replies.h"

static const char *const formats[] = {"qwen3-coder", "seed-oss", "glm", "minimax", "deepseek-v3.2", "deepseek-v4"};
#define N_FORMATS (sizeof formats / sizeof *formats)

static json_t *tools_of(const char *properties, const char *required, const char *defs, bool strict)
{
    clb_buf text = {0};
    clb_error err = {0};
    json_error_t e;
    assert_ok(clb_buf_printf(&text, &err,
                             "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":%s,\"parameters\":{"
                             "\"type\":\"object\",\"properties\":{%s},\"required\":[%s],\"$defs\":{%s},"
                             "\"additionalProperties\":false}}}]",
                             strict ? "true" : "false", properties, required, defs),
              &err);
    json_t *const v = json_loads(text.data, 0, &e);
    if (!v)
        fail_msg("%s: %s", e.text, text.data);
    clb_buf_free(&text);
    return v;
}

/* The arguments of a random call; NULL: it did not come to an end. */
static json_t *random_call(const clb_tool_format *f, const json_t *of, test_rand *rng, clb_buf *whole)
{
    clb_buf gbnf = {0};
    clb_error err = {0};
    reply r;
    json_t *v = NULL;
    json_t *const mine = tools;
    whole->n = 0;
    if (clb_tool_grammar(f, vocab, of, NULL, true, whole, &gbnf, &err))
        fail_msg("%s: %s", f->name, err.msg);
    ending = f->value_end;
    const bool ended = sample(gbnf.data, rng, whole);
    ending = NULL;
    clb_buf_free(&gbnf);
    if (!ended)
        return NULL;
    tools = (json_t *)of;
    read_reply(f, "", false, whole->data, 1 + test_rand_below(rng, 9), &r);
    tools = mine;
    if (r.n == 1 && r.calls[0].ended)
        v = json_loadb(r.calls[0].arguments.data, r.calls[0].arguments.n, 0, NULL);
    if (!json_is_object(v) || *r.content.data)
        fail_msg("%s: %zu calls, \"%s\", %s in %s", f->name, r.n, r.content.data, r.n ? r.calls[0].arguments.data : "",
                 whole->data);
    free_reply(&r);
    return v;
}

static bool one_of(const json_t *v, const char *const *values)
{
    char *const text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    bool found = false;
    for (; *values && text; values++)
        found |= strcmp(text, *values) == 0;
    free(text);
    return found;
}

static bool strings_only(const json_t *v)
{
    const json_t *item;
    size_t i;
    json_array_foreach(v, i, item) if (!json_is_string(item)) return false;
    return json_is_array(v);
}

/* What is wrong with the arguments; NULL: nothing. */
static const char *wrong(const json_t *v)
{
    static const char *const units[] = {"\"c\"", "\"</f>\"", "null", NULL}, *const modes[] = {"\"1\"", "\"2\"", NULL};
    static const char *const consts[] = {"\"7\"", NULL}, *const odds[] = {"5", "true", "[1]", "\"x\"", NULL};
    const char *key;
    const json_t *item;
    json_object_foreach((json_t *)v, key, item)
    {
        const size_t n = json_string_length(item);
        const bool good = strcmp(key, "text") == 0       ? json_is_string(item)
                          : strcmp(key, "nullable") == 0 ? json_is_string(item) || json_is_null(item)
                          : strcmp(key, "optional") == 0 ? json_is_string(item) || json_is_null(item)
                          : strcmp(key, "unit") == 0     ? one_of(item, units)
                          : strcmp(key, "mode") == 0     ? one_of(item, modes)
                          : strcmp(key, "const") == 0    ? one_of(item, consts)
                          : strcmp(key, "odd") == 0      ? one_of(item, odds)
                          : strcmp(key, "day") == 0      ? n == 10 && json_string_value(item)[4] == '-'
                          : strcmp(key, "short") == 0    ? json_is_string(item) && n >= 2 && n <= 12
                          : strcmp(key, "long") == 0     ? json_is_string(item) && n >= 3
                          : strcmp(key, "tags") == 0     ? strings_only(item)
                          : strcmp(key, "count") == 0    ? json_is_integer(item) && json_integer_value(item) <= 9
                          : strcmp(key, "either") == 0   ? json_is_string(item) || json_is_integer(item)
                          : strcmp(key, "flag") == 0     ? json_is_boolean(item)
                          : strcmp(key, "node") == 0
                              ? json_is_object(item) && json_is_integer(json_object_get(item, "n"))
                              : false;
        if (!good)
            return key;
    }
    return json_object_get(v, "text") && json_object_get(v, "mode") ? NULL : "required";
}

static void every_type(void **state)
{
    (void)state;
    static const char properties[] =
        "\"text\":{\"type\":\"string\"},\"nullable\":{\"type\":[\"string\",\"null\"]},"
        "\"optional\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}],\"default\":null},"
        "\"unit\":{\"type\":[\"string\",\"null\"],\"enum\":[\"c\",\"</f>\",\"a</parameter></arg_value>"
        "</" BAR "DSML" BAR "parameter>\",null]},"
        "\"mode\":{\"$ref\":\"#/$defs/mode\"},\"const\":{\"const\":\"7\"},"
        "\"odd\":{\"enum\":[5,true,[1],\"x\"]},\"day\":{\"type\":\"string\",\"format\":\"date\"},"
        "\"short\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3},"
        "\"long\":{\"type\":\"string\",\"minLength\":3},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
        "\"count\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9},"
        "\"either\":{\"type\":[\"string\",\"integer\"]},\"flag\":{\"type\":\"boolean\"},"
        "\"node\":{\"$ref\":\"#/$defs/node\"},\"a>b\":{\"type\":\"string\"}";
    static const char defs[] =
        "\"mode\":{\"type\":\"string\",\"enum\":[\"1\",\"2\"]},\"node\":{\"type\":\"object\",\"properties\":{\"n\":{"
        "\"type\":\"integer\"},\"next\":{\"$ref\":\"#/$defs/"
        "node\"}},\"required\":[\"n\"],\"additionalProperties\":false}";
    json_t *const of = tools_of(properties, "\"text\",\"mode\"", defs, true);
    test_rand rng = {41};
    clb_buf whole = {0};
    size_t n = 0;
    for (int with_marks = 0; with_marks < 2; with_marks++) {
        if (with_marks)
            use_marks();
        for (size_t i = 0; i < N_FORMATS; i++)
            for (int round = 0; round < 14; round++) {
                json_t *const v = random_call(clb_tool_format_by_name(formats[i]), of, &rng, &whole);
                if (v && wrong(v))
                    fail_msg("%s: %s in %s", formats[i], wrong(v), whole.data);
                n += json_object_size(v);
                json_decref(v);
            }
        if (with_marks)
            use_plain();
    }
    assert_true(n > 200);
    clb_buf_free(&whole);
    json_decref(of);
}

/* Texts that a value may be, and may not. */
static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *value;
        bool good;
    } c[] = {
        {"{\"type\":\"string\"}", "<html>\n</div>\n</parameter\n\n</p>", true},
        {"{\"type\":\"string\"}", "\n<functions>", true},
        {"{\"type\":\"string\"}", "a</parameter>b", false},
        {"{\"type\":\"string\"}", "a\n</function>b", false},
        {"{\"type\":\"string\"}", "a\n<parameter=x", false},
        {"{\"type\":\"string\"}", "a</function>b", true},
        {"{\"type\":[\"null\",\"string\"]}", "any words", true},
        {"{\"type\":[\"null\",\"integer\"]}", "words", false},
        {"{\"enum\":[\"a b\",\"c\"]}", "a b", true},
        {"{\"enum\":[\"a b\",\"c\"]}", "\"c\"", false},
        {"{\"type\":[\"string\",\"null\"],\"enum\":[\"a\",null]}", "null", true},
        {"{\"type\":[\"string\",\"null\"],\"enum\":[\"a\",null]}", "b", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "2024-02-29", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "soon", false},
        {"{\"type\":\"string\",\"format\":\"password\"}", "soon", true},
        {"{\"type\":\"string\",\"maxLength\":3}", "abcd", false},
        {"{\"type\":\"string\",\"maxLength\":3}", "", true},
        {"{\"type\":\"string\",\"minLength\":3}", "ab", false},
        {"{\"type\":\"string\",\"minLength\":3}", "abc <d>", true},
        {"{\"anyOf\":[{\"const\":\"x\"},{\"type\":\"integer\",\"maximum\":5}]}", "x", true},
        {"{\"anyOf\":[{\"const\":\"x\"},{\"type\":\"integer\",\"maximum\":5}]}", "5", true},
        {"{\"anyOf\":[{\"const\":\"x\"},{\"type\":\"integer\",\"maximum\":5}]}", "6", false},
        {"{}", "{\"a\":[1]}", true},
        {"{}", "words", false},
    };
    const clb_tool_format *const f = clb_tool_format_by_name("qwen3-coder");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char property[256], text[512];
        clb_buf gbnf = {0};
        clb_error err = {0};
        snprintf(property, sizeof property, "\"p\":%s", c[i].schema);
        json_t *const of = tools_of(property, "\"p\"", "", true);
        assert_ok(clb_tool_grammar_auto(&(clb_tool_auto){.format = f, .vocab = vocab, .tools = of}, &gbnf, &err), &err);
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=p>\n%s\n</parameter>\n</function>\n</tool_call>", c[i].value);
        if (follows(gbnf.data, text) != c[i].good)
            fail_msg("%s %s %s", c[i].schema, c[i].good ? "refuses" : "accepts", c[i].value);
        clb_buf_free(&gbnf);
        json_decref(of);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *format, *name, *schema, *message;
    } c[] = {
        {"qwen3-coder", "p", "{\"type\":\"string\",\"pattern\":\"^a\"}", "pattern"},
        {"qwen3-coder", "p", "{\"type\":\"string\",\"format\":\"iban\"}", "format"},
        {"qwen3-coder", "p", "{\"type\":\"string\",\"minLength\":5,\"maxLength\":2}", "minLength"},
        {"qwen3-coder", "a>b", "{\"type\":\"string\"}", "this name"},
        {"minimax", "a\\\"b", "{\"type\":\"string\"}", "this name"},
        {"lfm2", "a b", "{\"type\":\"string\"}", "this name"},
        {"glm", "p", "{\"$ref\":\"other.json\"}", "$ref"},
        {"glm", "p", "{\"type\":\"string\",\"enum\":[\"</arg_value>\"]}", "the only value"},
        {"seed-oss", "p", "{\"type\":[\"string\",\"integer\"],\"maximum\":5}", "bounds"},
        {"seed-oss", "p", "{\"type\":\"integer\",\"not\":{}}", "not"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int strict = 0; strict < 2; strict++) {
            char property[256], required[64];
            clb_buf gbnf = {0}, prefill = {0};
            clb_error err = {0};
            snprintf(property, sizeof property, "\"%s\":%s", c[i].name, c[i].schema);
            snprintf(required, sizeof required, "\"%s\"", c[i].name);
            json_t *const of = tools_of(property, required, "", strict);
            const int rc =
                clb_tool_grammar(clb_tool_format_by_name(c[i].format), vocab, of, NULL, true, &prefill, &gbnf, &err);
            if (!strict && rc)
                fail_msg("%s: %s", c[i].schema, err.msg);
            if (strict && (rc != COLIBRI_E_UNSUPPORTED || !strstr(err.msg, c[i].message)))
                fail_msg("%s: %d %s", c[i].schema, rc, err.msg);
            clb_buf_free(&gbnf);
            clb_buf_free(&prefill);
            json_decref(of);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),
        cmocka_unit_test(texts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
