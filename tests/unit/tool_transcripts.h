/* For tests of the reply parser: what it gives out as one text, whatever the pieces. */
#ifndef CLB_TESTS_TOOL_TRANSCRIPTS_H
#define CLB_TESTS_TOOL_TRANSCRIPTS_H

#include <string.h>

#include "serve/tool_impl.h"
#include "support.h"

#define BAR       "\xEF\xBD\x9C"
#define LOW       "\xE2\x96\x81"
#define DS(words) "<" BAR "tool" LOW words BAR ">"
#define DSML      "<" BAR "DSML" BAR
#define DSML_END  "</" BAR "DSML" BAR

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"units\":{\"type\":[\"string\",\"null\"]},"
    "\"places\":{\"type\":\"array\"},\"flag\":{\"type\":\"boolean\"},\"any\":{},"
    "\"opt\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"mode\":{\"$ref\":\"#/$defs/m\"},"
    "\"list\":{\"anyOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}},"
    "\"$defs\":{\"m\":{\"enum\":[\"1\",\"2\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";

/* What a parser gave out, as text: "R{thought}C{content}[name id-or-*](arguments)" ... */
typedef struct sink {
    clb_buf log;
    enum clb_piece_kind last;
    bool any, open;
    char ids[32][40];
    uint32_t n;
} sink;

static inline void add(sink *s, const char *text, size_t n)
{
    clb_error err;
    assert_ok(clb_buf_append(&s->log, text, n, &err), &err);
}

static inline int on_piece(void *ctx, const clb_piece *p, clb_error *err)
{
    sink *s = ctx;
    (void)err;
    if (!s->any || s->last != p->kind || p->kind == CLB_PIECE_CALL) {
        static const char *const begin[] = {"\nC:", "\nR:", "\n", "(", ""};
        add(s, begin[p->kind], strlen(begin[p->kind]));
    }
    if (p->kind == CLB_PIECE_CALL) {
        assert_false(s->open);
        assert_int_equal(p->index, s->n);
        assert_true(s->n < 32);
        snprintf(s->ids[s->n++], 40, "%s", p->id);
        add(s, p->name, strlen(p->name));
        s->open = true;
    } else if (p->kind == CLB_PIECE_CALL_END) {
        assert_true(s->open);
        s->open = false;
        add(s, ")", 1);
    } else {
        assert_true(p->n > 0);
        assert_int_equal(s->open, p->kind == CLB_PIECE_ARGUMENTS);
        add(s, p->text, p->n);
    }
    s->last = p->kind;
    s->any = true;
    return COLIBRI_OK;
}

static json_t *tools;

enum { WITH_TOOLS = 1, CUT_OFF = 2, ANSWER = 4 };

static inline void parse_how(const clb_tool_format *f, const char *opened, const char *text, size_t n, size_t cut,
                             size_t step, int how, sink *s)
{
    clb_error err = {0};
    clb_reply_parser *p;
    const clb_reply_parser_options o = {.format = f,
                                        .tools = how & WITH_TOOLS ? tools : NULL,
                                        .reasoning = true,
                                        .answer = how & ANSWER,
                                        .opened = opened,
                                        .on_piece = on_piece,
                                        .ctx = s};
    assert_non_null(f);
    *s = (sink){.any = false};
    assert_ok(clb_reply_parser_create(&o, &p, &err), &err);
    if (step)
        for (size_t i = 0; i < n; i += step)
            assert_ok(clb_reply_parser_feed(p, text + i, n - i < step ? n - i : step, &err), &err);
    else {
        assert_ok(clb_reply_parser_feed(p, text, cut, &err), &err);
        assert_ok(clb_reply_parser_feed(p, text + cut, n - cut, &err), &err);
    }
    if (how & CUT_OFF)
        clb_reply_parser_cut(p);
    assert_ok(clb_reply_parser_finish(p, &err), &err);
    assert_int_equal(clb_reply_parser_calls(p), s->n);
    assert_false(s->open);
    clb_reply_parser_free(p);
}

static inline void parse(const char *format, const char *opened, const char *text, size_t n, size_t cut, size_t step,
                         bool with_tools, bool cut_off, sink *s)
{
    parse_how(clb_tool_format_by_name(format), opened, text, n, cut, step,
              (with_tools ? WITH_TOOLS : 0) | (cut_off ? CUT_OFF : 0), s);
}

/* The whole, and cut at every byte, and byte by byte; ended by the model, or by its length. */
static inline void expect_end(const char *format, const char *opened, const char *text, bool cut_off, const char *want)
{
    const size_t n = strlen(text);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        sink s;
        parse(format, opened, text, n, cut <= n ? cut : 0, cut > n, true, cut_off, &s);
        if (strcmp(s.log.data ? s.log.data : "", want) != 0)
            fail_msg("%s, cut at %zu of %zu:\n%s\ngives\n%s\n---- instead of\n%s", format, cut, n, text,
                     s.log.data ? s.log.data : "", want);
        clb_buf_free(&s.log);
    }
}

/* What is shown of a reply that is cut by its length anywhere is a beginning of what is shown of the whole. */
static inline void expect_beginnings(const char *format, const char *opened, const char *text, const char *want)
{
    for (size_t n = 0; n < strlen(text); n++) {
        sink s;
        parse(format, opened, text, n, 0, 1, true, true, &s);
        size_t k = s.log.n;
        if (k && s.last == CLB_PIECE_CALL_END)
            k--;
        while (k && strchr(" \n(", s.log.data[k - 1]))
            k--;
        if (k >= 3 && memcmp(s.log.data + k - 3, "\nC:", 3) == 0) /* white space that a call may yet follow */
            k -= 3;
        if (k && memcmp(s.log.data, want, k < strlen(want) ? k : strlen(want) + 1) != 0)
            fail_msg("%s, cut off after %zu:\n%s\nshows\n%s\n---- which does not begin\n%s", format, n, text,
                     s.log.data, want);
        clb_buf_free(&s.log);
    }
}

static inline void expect(const char *format, const char *opened, const char *text, const char *want)
{
    expect_end(format, opened, text, false, want);
    expect_beginnings(format, opened, text, want);
}

static inline void expect_cut(const char *format, const char *opened, const char *text, const char *want)
{
    expect_end(format, opened, text, true, want);
}

#define CALL "\nget_weather({\"city\": \"Z\xC3\xBCrich\", \"days\": 2})"
#define ARGS "{\"city\": \"Z\xC3\xBCrich\", \"days\": 2}"

static inline int load(void **state)
{
    (void)state;
    tools = json_loads(tools_json, 0, NULL);
    return tools ? 0 : 1;
}

static inline int unload(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

#endif
