/* Grammars of tool calls: whatever they let through is read back as calls with arguments of the schema, in every
 * format. */
#include <string.h>

#include "gguf/gguf.h"
#include "grammar/grammar.h"
#include "serve/tool_grammar.h"
#include "serve/tool_impl.h"
#include "serve/tools.h"
#include "support.h"
#include "support/vocab_image.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"
    "\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]}},\"required\":[\"city\",\"days\"],\"additionalProperties\":"
    "false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
    "\"additionalProperties\":false}}}]";

static clb_vocab *vocab;
static clb_token_tree *tree;
static json_t *tools;

typedef struct call {
    char name[32];
    clb_buf arguments;
    bool ended;
} call;

typedef struct reply {
    call calls[32];
    size_t n;
    clb_buf content;
} reply;

static int on_piece(void *ctx, const clb_piece *p, clb_error *err)
{
    reply *r = ctx;
    if (p->kind == CLB_PIECE_CONTENT || p->kind == CLB_PIECE_REASONING)
        return clb_buf_append(&r->content, p->text, p->n, err);
    assert_true(p->index < 32);
    if (p->kind == CLB_PIECE_CALL) {
        assert_int_equal(p->index, r->n);
        snprintf(r->calls[r->n++].name, sizeof r->calls->name, "%s", p->name);
    }
    if (p->kind == CLB_PIECE_CALL_END)
        r->calls[p->index].ended = true;
    return p->kind == CLB_PIECE_ARGUMENTS ? clb_buf_append(&r->calls[p->index].arguments, p->text, p->n, err)
                                          : COLIBRI_OK;
}

/* A token that may come next; those that close something are taken more often, so that texts come to an end. */
static uint32_t choose(const uint64_t *allowed, test_rand *rng)
{
    const uint32_t n = clb_vocab_size(vocab);
    uint32_t closing[4096], any[4096];
    uint32_t n_closing = 0, n_any = 0;
    const uint32_t from = (uint32_t)test_rand_below(rng, n);
    clb_buf bytes = {0};
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t id = (from + k) % n;
        if (!(allowed[id / 64] >> id % 64 & 1))
            continue;
        clb_error err;
        if (clb_vocab_is_eog(vocab, id)) { /* the end, wherever it may be */
            clb_buf_free(&bytes);
            return id;
        }
        bytes.n = 0;
        assert_ok(clb_token_bytes(vocab, id, true, &bytes, &err), &err);
        if (n_any < 4096 && (!bytes.n || bytes.data[0])) /* texts are C strings here */
            any[n_any++] = id;
        if (bytes.n && n_closing < 4096 && bytes.data[0] && strchr("\"}])<,:", bytes.data[0]))
            closing[n_closing++] = id;
    }
    clb_buf_free(&bytes);
    assert_true(n_any > 0);
    return n_closing && test_rand_below(rng, 3) ? closing[(uint32_t)test_rand_below(rng, n_closing)]
                                                : any[(uint32_t)test_rand_below(rng, n_any)];
}

/* A random text of the grammar; false if it does not come to an end. */
static bool sample(const char *gbnf, test_rand *rng, clb_buf *out)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    uint64_t *allowed = calloc((clb_vocab_size(vocab) + 63) / 64, sizeof *allowed);
    bool over = false;
    assert_non_null(allowed);
    if (clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &g, &err))
        fail_msg("%s\n%s", err.msg, gbnf);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    for (int i = 0; i < 500 && !over; i++) {
        assert_ok(clb_matcher_mask(m, allowed, &err), &err);
        const uint32_t id = choose(allowed, rng);
        over = clb_vocab_is_eog(vocab, id);
        assert_ok(clb_matcher_accept(m, id, &err), &err);
        if (!over)
            assert_ok(clb_token_bytes(vocab, id, true, out, &err), &err);
    }
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    free(allowed);
    return over;
}

static void check_arguments(const clb_tool_format *f, const call *c, const char *text)
{
    json_error_t e;
    json_t *v = json_loadb(c->arguments.n ? c->arguments.data : "", c->arguments.n, 0, &e);
    if (!json_is_object(v))
        fail_msg("%s: the arguments of %s are \"%s\" (%s) in\n%s", f->name, c->name,
                 c->arguments.data ? c->arguments.data : "", e.text, text);
    assert_true(c->ended);
    if (strcmp(c->name, "ping") == 0) {
        assert_int_equal(json_object_size(v), 0);
    } else {
        assert_string_equal(c->name, "get_weather");
        const json_t *days = json_object_get(v, "days"), *unit = json_object_get(v, "unit");
        assert_true(json_is_string(json_object_get(v, "city")));
        if (!json_is_integer(days) || json_integer_value(days) < 1 || json_integer_value(days) > 9)
            fail_msg("%s: days of %s", f->name, text);
        if (unit && (!json_is_string(unit) ||
                     (strcmp(json_string_value(unit), "c") != 0 && strcmp(json_string_value(unit), "f") != 0)))
            fail_msg("%s: unit of %s", f->name, text);
    }
    json_decref(v);
}

/* Random replies under one choice; returns how many came to an end. */
static int check(const clb_tool_format *f, const char *only, bool one, test_rand *rng)
{
    clb_buf prefill = {0}, gbnf = {0};
    clb_error err = {0};
    int complete = 0;
    if (clb_tool_grammar(f, vocab, tools, only, one, &prefill, &gbnf, &err))
        fail_msg("%s: %s", f->name, err.msg);
    for (int round = 0; round < 3; round++) {
        clb_buf text = {0};
        reply r = {.n = 0};
        clb_reply_parser *p;
        if (!sample(gbnf.data, rng, &text)) {
            clb_buf_free(&text);
            continue;
        }
        complete++;
        const clb_reply_parser_options o = {.format = f,
                                            .tools = tools,
                                            .reasoning = true,
                                            .opened = prefill.n ? prefill.data : "",
                                            .on_piece = on_piece,
                                            .ctx = &r};
        assert_ok(clb_reply_parser_create(&o, &p, &err), &err);
        for (size_t i = 0; i < text.n; i += 3)
            assert_ok(clb_reply_parser_feed(p, text.data + i, text.n - i < 3 ? text.n - i : 3, &err), &err);
        assert_ok(clb_reply_parser_finish(p, &err), &err);
        clb_reply_parser_free(p);
        if (r.n == 0 || r.content.n || (one && r.n != 1))
            fail_msg("%s: %zu calls and content \"%s\" from\n%s\n----\n%s", f->name, r.n,
                     r.content.data ? r.content.data : "", prefill.data ? prefill.data : "", text.data);
        for (size_t i = 0; i < r.n; i++) {
            if (only)
                assert_string_equal(r.calls[i].name, only);
            check_arguments(f, &r.calls[i], text.data);
            clb_buf_free(&r.calls[i].arguments);
        }
        clb_buf_free(&r.content);
        clb_buf_free(&text);
    }
    clb_buf_free(&prefill);
    clb_buf_free(&gbnf);
    return complete;
}

static void check_every_format(void)
{
    test_rand rng = {3};
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        int complete = check(f, "get_weather", true, &rng);
        complete += check(f, "ping", false, &rng);
        complete += check(f, NULL, true, &rng);
        complete += check(f, NULL, false, &rng);
        if (complete < 3)
            fail_msg("%s: only %d of 12 texts came to an end", f->name, complete);
    }
}

static void every_format(void **state)
{
    (void)state;
    check_every_format();
}

/* ---- a vocabulary in which the marks are control tokens ---- */

#define BAR "\xEF\xBD\x9C"
#define LOW "\xE2\x96\x81"

static const char *const marks[] = {"<|tool_call_start|>",
                                    "<|tool_call_end|>",
                                    "[TOOL_CALLS]",
                                    "[ARGS]",
                                    "[THINK]",
                                    "[/THINK]",
                                    "<think>",
                                    "</think>",
                                    "<|START_ACTION|>",
                                    "<|END_ACTION|>",
                                    "<|START_RESPONSE|>",
                                    "<|START_THINKING|>",
                                    "<|END_THINKING|>",
                                    "<|tool_call>",
                                    "<tool_call|>",
                                    "<|channel>",
                                    "<channel|>",
                                    "<|tool_call|>",
                                    "<|/tool_call|>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<|python_tag|>",
                                    "<|tool_calls_section_begin|>",
                                    "<|tool_calls_section_end|>",
                                    "<|tool_call_begin|>",
                                    "<|tool_call_argument_begin|>",
                                    "<" BAR "tool" LOW "calls" LOW "begin" BAR ">",
                                    "<" BAR "tool" LOW "calls" LOW "end" BAR ">",
                                    "<" BAR "tool" LOW "call" LOW "begin" BAR ">",
                                    "<" BAR "tool" LOW "call" LOW "end" BAR ">",
                                    "<" BAR "tool" LOW "sep" BAR ">",
                                    BAR "DSML" BAR,
                                    "<arg_key>",
                                    "</arg_value>",
                                    "<minimax:tool_call>",
                                    "<|tools_prefix|>",
                                    "<TOOLCALL>",
                                    "<other>"};
#define N_MARKS (sizeof marks / sizeof *marks)

static clb_vocab *make_marked(void)
{
    static small_token tokens[2 + 256 + N_MARKS + 1];
    static char bytes[256][8];
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id=1", "tokenizer.ggml.unknown_token_id=0", NULL};
    size_t n = 0;
    tokens[n++] = (small_token){"<unk>", T_UNKNOWN, 0};
    tokens[n++] = (small_token){"</s>", T_CONTROL, 0};
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[n++] = (small_token){bytes[i], T_BYTE, 0};
    }
    for (size_t i = 0; i < N_MARKS; i++)
        tokens[n++] = (small_token){marks[i], T_CONTROL, 0};
    const small_vocab v = {"llama", NULL, NULL, tokens, NULL, keys, false, false};
    return small_vocab_load(&v);
}

/* The text as tokens, marks as themselves; false: a token was not allowed, or the text may not end. */
static bool follows(const char *gbnf, const char *text)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    bool fits = true;
    if (clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &g, &err))
        fail_msg("%s\n%s", err.msg, gbnf);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    while (*text && fits) {
        uint32_t id = 2u + (unsigned char)*text;
        size_t n = 1;
        for (uint32_t i = 0; i < N_MARKS; i++)
            if (strlen(marks[i]) > n && strncmp(text, marks[i], strlen(marks[i])) == 0) {
                n = strlen(marks[i]);
                id = 2u + 256u + i;
            }
        fits = clb_matcher_accept(m, id, &err) == COLIBRI_OK;
        text += n;
    }
    fits = fits && clb_matcher_may_end(m);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    return fits;
}

/* A call that must be, as a text; NULL: it did not come to an end. */
static char *whole_call(const clb_tool_format *f, bool one, test_rand *rng)
{
    clb_buf whole = {0}, gbnf = {0};
    clb_error err = {0};
    assert_ok(clb_tool_grammar(f, vocab, tools, NULL, one, &whole, &gbnf, &err), &err);
    const bool ended = sample(gbnf.data, rng, &whole);
    clb_buf_free(&gbnf);
    if (ended)
        return whole.data;
    clb_buf_free(&whole);
    return NULL;
}

static void marks_that_are_tokens(void **state)
{
    (void)state;
    clb_vocab *const plain = vocab;
    clb_token_tree *const plain_tree = tree;
    clb_error err = {0};
    test_rand rng = {5};
    size_t n_formats = 0, n_calls = 0;
    vocab = make_marked();
    assert_ok(clb_token_tree_create(vocab, &tree, &err), &err);
    check_every_format();
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        if (!clb_tool_may_be_constrained(f))
            continue;
        n_formats++;
        clb_buf gbnf = {0};
        assert_ok(clb_tool_grammar_auto(f, vocab, tools, false, NULL, &gbnf, &err), &err);
        if (!follows(gbnf.data,
                     "Hi <b>there</b> [1] <think>hm</think> [THINK]x[/THINK]y <|channel>thought\nz<channel|>"))
            fail_msg("%s: text and thoughts are refused", f->name);
        assert_true(follows(gbnf.data, ""));
        assert_false(follows(gbnf.data, "a <other> b")); /* a token that is nobody's mark */
        for (int round = 0; round < 4; round++) {
            char text[8192], *one = whole_call(f, round % 2, &rng);
            if (!one)
                continue;
            n_calls++;
            snprintf(text, sizeof text, "Well. <think>hm</think>%s", one);
            if (!follows(gbnf.data, text))
                fail_msg("%s: refused: %s", f->name, text);
            snprintf(text, sizeof text, "%s more", one);
            if (follows(gbnf.data, text) && f->shape != CLB_SHAPE_XML)
                fail_msg("%s: text after the call: %s", f->name, text);
            char *name = strstr(text, "get_weather");
            if (name || (name = strstr(text, "ping")) != NULL) {
                name[3] = 'X';
                if (follows(gbnf.data, text))
                    fail_msg("%s: another function is called: %s", f->name, text);
            }
            free(one);
        }
        clb_buf_free(&gbnf);
    }
    assert_true(n_formats > 18 && n_calls > 2 * n_formats);
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    vocab = plain;
    tree = plain_tree;
}

static bool accepts(const char *gbnf, const char *text)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    if (clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &g, &err))
        fail_msg("%s\n%s", err.msg, gbnf);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    const bool fits = clb_matcher_accept_bytes(m, text, strlen(text), &err) == COLIBRI_OK && clb_matcher_may_end(m);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    return fits;
}

/* A grammar that lets the model choose: text is free up to the mark, calls are not. */
static void free_text(void **state)
{
    (void)state;
    clb_buf gbnf = {0};
    clb_error err = {0};
    size_t constrained = 0;
    assert_ok(clb_tool_grammar_auto(clb_tool_format_by_name("hermes"), vocab, tools, false, NULL, &gbnf, &err), &err);
#define PING "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>"
    static const char *const good[] = {"",
                                       "Hello <b>world</b> <<<",
                                       "<tool_cal",
                                       "<tool_call",
                                       "<tool_<tool_calls>",
                                       "a <tool> <tool_x> <tool_call x",
                                       "<think>\nhm\n</think>\n\n",
                                       "Text\n" PING,
                                       PING "\n" PING,
                                       "<" PING,
                                       "<tool_call" PING};
    static const char *const bad[] = {
        "<tool_call>", "x <tool_call> y", "<tool_call>\n{\"name\": \"pong\"",
        PING " more",  "<<tool_call>",    "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}\n</tool_call>"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!accepts(gbnf.data, good[i]))
            fail_msg("refuses: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (accepts(gbnf.data, bad[i]))
            fail_msg("accepts: %s", bad[i]);
    clb_buf_free(&gbnf);
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        if (!clb_tool_may_be_constrained(f))
            continue;
        char text[128];
        clb_buf own = {0};
        assert_ok(clb_tool_grammar_auto(f, vocab, tools, true, NULL, &own, &err), &err);
        snprintf(text, sizeof text, "some <text> %s", f->open[0]);
        assert_false(accepts(own.data, text));
        text[strlen(text) - 1] = '\0';
        assert_true(accepts(own.data, text));
        clb_buf_free(&own);
        constrained++;
    }
    assert_true(constrained >= 18);
}

/* An answer of a grammar of its own, whose rules have the names of ours, or calls; nothing else. */
static void answer_or_calls(void **state)
{
    (void)state;
    static const char answer[] = "root ::= r1 (\",\" r1){1,2} # r1 in a comment [\n"
                                 "r1 ::= [r1\\]]{2} | \"r1 \\\"root\" | <[7]> |\n  root-2\nroot-2 ::= (\"x\")\n";
    static const char *const good[] = {"rr,11", "r1,]r,r1 \"root", "x,x", PING, PING "\n" PING};
    static const char *const bad[] = {"",           "rr",          "rr,rr,rr,rr", "Hi",
                                      "rr,rr" PING, PING " rr,rr", "<tool_call>", "answer-r1"};
    clb_error err = {0};
    for (const clb_tool_format *f = clb_tool_formats; f->name; f++) {
        if (!clb_tool_may_be_constrained(f))
            continue;
        clb_buf gbnf = {0};
        const bool hermes = strcmp(f->name, "hermes") == 0;
        assert_ok(clb_tool_grammar_auto(f, NULL, tools, false, answer, &gbnf, &err), &err);
        for (size_t i = 0; i < (hermes ? sizeof good / sizeof *good : 3); i++)
            if (!accepts(gbnf.data, good[i]))
                fail_msg("%s refuses: %s", f->name, good[i]);
        for (size_t i = 0; i < (hermes ? sizeof bad / sizeof *bad : 4); i++)
            if (accepts(gbnf.data, bad[i]))
                fail_msg("%s accepts: %s", f->name, bad[i]);
        clb_buf_free(&gbnf);
    }
}

static void refusals(void **state)
{
    (void)state;
    clb_buf prefill = {0}, gbnf = {0};
    clb_error err = {0};
    assert_fails(
        clb_tool_grammar(clb_tool_format_by_name("hermes"), vocab, tools, "nobody", true, &prefill, &gbnf, &err), &err,
        COLIBRI_E_USAGE, "nobody");
    clb_buf_free(&prefill);
    clb_buf_free(&gbnf);
    /* a schema that no grammar can follow: an error for strict functions, any object for others */
    for (int strict = 0; strict < 2; strict++) {
        json_t *odd =
            json_pack("[{s:s, s:{s:s, s:b, s:{s:s, s:{s:{s:{s:s}}}}}}]", "type", "function", "function", "name", "f",
                      "strict", strict, "parameters", "type", "object", "properties", "a", "not", "type", "string");
        assert_non_null(odd);
        const int rc =
            clb_tool_grammar(clb_tool_format_by_name("hermes"), vocab, odd, NULL, true, &prefill, &gbnf, &err);
        assert_int_equal(rc != COLIBRI_OK, strict);
        json_decref(odd);
        clb_buf_free(&prefill);
        clb_buf_free(&gbnf);
        prefill = gbnf = (clb_buf){0};
    }
}

static void tools_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *json, *param, *part;
    } c[] = {
        {"{}", "tools", "list"},
        {"[1]", "tools[0].type", "function"},
        {"[{\"type\":\"web\"}]", "tools[0].type", "function"},
        {"[{\"type\":\"function\"}]", "tools[0].function", "a function"},
        {"[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name", "letters"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", "tools[0].function.parameters",
         "object"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":1}}]", "tools[0].function.description",
         "string"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]", "tools[0].function.strict",
         "true or false"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{\"name\":\"a\"}}"
         "]",
         "tools[1].function.name", "same name"},
    };
    clb_error err = {0};
    char param[64];
    assert_ok(clb_tools_check(tools, param, &err), &err);
    assert_string_equal(param, "");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        json_t *v = json_loads(c[i].json, 0, NULL);
        assert_non_null(v);
        assert_fails(clb_tools_check(v, param, &err), &err, COLIBRI_E_USAGE, c[i].part);
        assert_string_equal(param, c[i].param);
        json_decref(v);
    }
}

static int load(void **state)
{
    clb_error err;
    clb_gguf *g;
    (void)state;
    tools = json_loads(tools_json, 0, NULL);
    assert_non_null(tools);
    assert_ok(clb_gguf_open(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), NULL, NULL, &g, &err), &err);
    assert_ok(clb_vocab_load(g, &vocab, &err), &err);
    clb_gguf_close(g);
    assert_ok(clb_token_tree_create(vocab, &tree, &err), &err);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    json_decref(tools);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format), cmocka_unit_test(marks_that_are_tokens),
        cmocka_unit_test(free_text),    cmocka_unit_test(answer_or_calls),
        cmocka_unit_test(refusals),     cmocka_unit_test(tools_are_checked),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
