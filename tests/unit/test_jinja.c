/* The template interpreter: every feature against jinja2 (tests/oracles/record_jinja.py), taint, limits. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "text/jinja.h"

#define NOW 1735689600

static int render(const char *source, const clb_jinja_message *messages, size_t n, clb_jinja_output *out,
                  clb_error *err)
{
    clb_jinja *t;
    const clb_jinja_input in = {.messages = messages,
                                .n = n,
                                .add_generation_prompt = 1,
                                .bos_token = {"<s>", 3},
                                .eos_token = {"</s>", 4},
                                .now = NOW};
    const int parsed = clb_jinja_parse((clb_str){source, strlen(source)}, &t, err);
    if (parsed)
        return parsed;
    const int rc = clb_jinja_render(t, &in, out, err);
    clb_jinja_free(t);
    return rc;
}

static clb_str str_of(const json_t *m, const char *key)
{
    const json_t *s = json_object_get(m, key);
    return (clb_str){json_string_value(s), json_string_length(s)};
}

static void recorded(void **state)
{
    (void)state;
    json_t *all = json_load_file(TEST_DATA("jinja.json"), 0, NULL), *item, *m;
    clb_jinja_message messages[8];
    size_t n, i, right = 0;
    assert_non_null(all);
    json_array_foreach(json_object_get(all, "messages"), n, m) messages[n] =
        (clb_jinja_message){str_of(m, "role"), str_of(m, "content")};
    json_array_foreach(json_object_get(all, "cases"), i, item)
    {
        const char *source = json_string_value(json_object_get(item, "template"));
        const char *want = json_string_value(json_object_get(item, "text"));
        clb_jinja_output got = {0};
        clb_error err;
        const int rc = render(source, messages, n, &got, &err);
        if (want && rc)
            print_error("%s\n%s\n", source, err.msg);
        else if (want && strcmp(got.text.data, want) != 0)
            print_error("%s\n%s\n---- instead of\n%s\n", source, got.text.data, want);
        else if (!want && !rc)
            print_error("%s\nno error, but jinja2 says: %s\n", source, json_string_value(json_object_get(item, "error")));
        else
            right++;
        clb_jinja_output_free(&got);
    }
    assert_int_equal(right, i);
    assert_true(i > 100);
    json_decref(all);
}

/* 'x' where the output came from the message, '.' where it did not */
static void expect_taint(const char *source, const char *content, const char *want)
{
    const clb_jinja_message m = {{"user", 4}, {content, strlen(content)}};
    clb_jinja_output got = {0};
    clb_error err;
    assert_ok(render(source, &m, 1, &got, &err), &err);
    assert_int_equal(got.text.n, got.taint.n);
    for (size_t i = 0; i < got.taint.n; i++)
        got.taint.data[i] = got.taint.data[i] ? 'x' : '.';
    if (strcmp(got.taint.data, want) != 0)
        fail_msg("%s: %s has taint %s, not %s", source, got.text.data, got.taint.data, want);
    clb_jinja_output_free(&got);
}

static void taint_follows_the_text(void **state)
{
    (void)state;
    expect_taint("ab{{ messages[0].content }}c", "XY", "..xx.");
    expect_taint("{{ '<' + messages[0].content + '>' }}", "XY", ".xx.");
    expect_taint("{{ '<' ~ messages[0].content|trim ~ '>' }}", " XY ", ".xx.");
    expect_taint("{{ ('<' + messages[0].content + '>')[1:] }}", "XY", "xx.");
    expect_taint("{{ ('-' + messages[0].content)|upper }}", "xy", ".xx");
    expect_taint("{{ messages[0].content|replace('X', '--') }}", "aXb", "x..x");
    expect_taint("{{ messages[0].content.split(',')|join('+') }}", "a,b", "x.x");
    expect_taint("{{ ('a' + messages[0].content).split('b')[0] }}", "XbY", ".x");
    expect_taint("{{ messages[0].content|tojson }}", "a\"b", ".x..x."); /* what escapes is new */
    expect_taint("{% set s = 'p' + messages[0].content %}{% set t %}[{{ s }}]{% endset %}{{ t * 2 }}", "X", "..x...x.");
    expect_taint("{% macro m(x) %}({{ x }}){% endmacro %}{{ m(messages[0].content) }}", "X", ".x.");
    expect_taint("{{ messages[0].content[::-1] ~ 'a' }}", "XY", "xx.");
    expect_taint("{% for c in messages[0].content %}{{ c }}-{% endfor %}", "XY", "x.x.");
    expect_taint("{{ [messages[0].content, 'a'] }}", "X", "..x.......");
    expect_taint("{{ '<|' + messages[0].role + '|>' }}", "X", "........"); /* roles are the caller's own words */
    expect_taint("{{ '{}!'.format(messages[0].content) }}", "XY", "xx.");
    expect_taint("{{ messages[0].content|indent(2) }}", "a\nb", "xx..x");
}

static void limits(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        int status;
        const char *part;
    } c[] = {
        {"{% set r = range(5000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", COLIBRI_E_LIMIT, "end"},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", COLIBRI_E_LIMIT, "MiB"},
        {"{{ range(1000000) }}", COLIBRI_E_LIMIT, "a range of more"},
        {"{{ 'x' * 999999999999 }}", COLIBRI_E_LIMIT, "MiB"},
        {"{% set n = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
         COLIBRI_E_LIMIT, "MiB"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", COLIBRI_E_LIMIT, "nested too deeply"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", COLIBRI_E_LIMIT, "nested too deeply"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", COLIBRI_E_LIMIT, "nested too deeply"},
        {"{{ 999999999999999999 * 999999999999999999 }}", COLIBRI_E_LIMIT, "64 bits"},
        {"{{ 2 ** 100 }}", COLIBRI_E_LIMIT, "64 bits"},
        {"{{ 99999999999999999999 }}", COLIBRI_E_UNSUPPORTED, "18 digits"},
        {"line one\n{{ 'a'|no_such }}", COLIBRI_E_UNSUPPORTED,
         "template \"line one\", line 2: unknown filter \"no_such\""},
        {"{% include 'x' %}", COLIBRI_E_UNSUPPORTED, "--raw"},
        {"{{ raise_exception('no thanks') }}", COLIBRI_E_USAGE, "refuses these messages: no thanks"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        clb_jinja_output got = {0};
        clb_error err;
        assert_fails(render(c[i].source, NULL, 0, &got, &err), &err, c[i].status, c[i].part);
        clb_jinja_output_free(&got);
    }
}

/* Deep nesting must be refused, not overflow the stack. */
static void nesting(void **state)
{
    (void)state;
    static const char *const open[] = {"(",
                                       "[",
                                       "{'a':",
                                       "not ",
                                       "-",
                                       "{% if 1 %}",
                                       "{% for a in [1] %}",
                                       "a.",
                                       "a|b|",
                                       "1+",
                                       "1 if 1 else ",
                                       "{% macro m() %}",
                                       "{{",
                                       "{#",
                                       "'",
                                       "x is y is "};
    for (size_t k = 0; k < sizeof open / sizeof *open; k++) {
        clb_buf source = {0};
        clb_error err;
        clb_jinja_output got = {0};
        if (open[k][0] != '{' || open[k][1] == '\'')
            assert_ok(clb_buf_append(&source, "{{ ", 3, &err), &err);
        for (int i = 0; i < 20000; i++)
            assert_ok(clb_buf_append(&source, open[k], strlen(open[k]), &err), &err);
        assert_int_not_equal(render(source.data, NULL, 0, &got, &err), COLIBRI_OK);
        clb_jinja_output_free(&got);
        clb_buf_free(&source);
    }
}

/* Every prefix of a template, and the template with each byte changed: an error or a text, never more. */
static void damaged_templates(void **state)
{
    (void)state;
    static const char source[] =
        "{%- macro m(x, y=2) -%}{{ x ~ y }}{%- endmacro -%}{# c #}{% set ns = namespace(a=1) %}"
        "{% for m in messages if m.role != 'x' %}{% if loop.first and m.content is string %}{{ m['content'][1:-1]|trim|"
        "replace('a', \"b\") }}{% elif not m.x %}{{ {'k': [1, 2.5]}|tojson(indent=1) }}{% else %}{% set ns.a = ns.a + "
        "1 %}"
        "{% endif %}{% endfor %}{% raw %}{{{% endraw %}{{- m(1, y='z') if ns.a > 0 else none -}}\n";
    const clb_jinja_message m[2] = {{{"user", 4}, {"hello", 5}}, {{"assistant", 9}, {"banana", 6}}};
    test_rand rng = {5};
    for (size_t i = 0; i < 3 * sizeof source; i++) {
        char text[sizeof source];
        memcpy(text, source, sizeof source);
        if (i < sizeof source)
            text[i] = '\0';
        else
            text[i % sizeof source] = "{}%#()[]'\"|.-+\n ,=:x"[test_rand_below(&rng, 20)];
        text[sizeof source - 1] = '\0';
        clb_jinja_output got = {0};
        clb_error err;
        (void)render(text, m, 2, &got, &err);
        clb_jinja_output_free(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded), cmocka_unit_test(taint_follows_the_text), cmocka_unit_test(limits),
        cmocka_unit_test(nesting),  cmocka_unit_test(damaged_templates),
    };
    setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
