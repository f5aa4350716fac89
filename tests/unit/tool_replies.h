/* For tests of grammars of tool calls: random texts of a grammar, and what the reply parser makes of them. */
#ifndef CLB_TESTS_TOOL_REPLIES_H
#define CLB_TESTS_TOOL_REPLIES_H

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
    clb_buf content, thought;
} reply;

static inline int on_piece(void *ctx, const clb_piece *p, clb_error *err)
{
    reply *r = ctx;
    if (p->kind == CLB_PIECE_CONTENT || p->kind == CLB_PIECE_REASONING)
        return clb_buf_append(p->kind == CLB_PIECE_CONTENT ? &r->content : &r->thought, p->text, p->n, err);
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

static bool marked; /* the vocabulary is that of make_marked */

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
                                    "<|channel|>",
                                    "<|start|>",
                                    "<|message|>",
                                    "<|end|>",
                                    "<|constrain|>",
                                    "<|call|>",
                                    "<|return|>",
                                    "<|message_sep|>",
                                    "<|role_sep|>",
                                    "<other>"};
#define N_MARKS (sizeof marks / sizeof *marks)

static inline clb_vocab *make_marked(void)
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

/* A token that may come next; those that close something are taken more often, so that texts come to an end. */
static inline uint32_t choose(const uint64_t *allowed, char want, test_rand *rng)
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
        if (want && bytes.n == 1 && bytes.data[0] == want) {
            clb_buf_free(&bytes);
            return id;
        }
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

/* A text as tokens, marks as themselves; false: one is not allowed. */
static inline bool follow_text(clb_matcher *m, const char *text)
{
    clb_error err = {0};
    if (!marked)
        return clb_matcher_accept_bytes(m, text, strlen(text), &err) == COLIBRI_OK;
    for (size_t n; *text; text += n) {
        uint32_t id = 2u + (unsigned char)*text;
        n = 1;
        for (uint32_t i = 0; i < N_MARKS; i++)
            if (strlen(marks[i]) > n && strncmp(text, marks[i], strlen(marks[i])) == 0) {
                n = strlen(marks[i]);
                id = 2u + 256u + i;
            }
        if (clb_matcher_accept(m, id, &err))
            return false;
    }
    return true;
}

static const char *ending; /* a mark that is mostly completed once it has begun, so that texts come to an end; NULL */

/* The next character of that mark, or 0. */
static inline char wanted(const clb_buf *text, test_rand *rng)
{
    for (size_t k = ending ? strlen(ending) - 1 : 0; k > 0; k--)
        if (k <= text->n && memcmp(text->data + text->n - k, ending, k) == 0)
            return k > 1 || test_rand_below(rng, 4) ? ending[k] : 0;
    return 0;
}

/* A random text of the grammar that begins like that; false if it does not come to an end, or cannot begin so. */
static inline bool sample_from(const char *gbnf, const char *begin, test_rand *rng, clb_buf *out)
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
    const bool begins = follow_text(m, begin);
    assert_ok(clb_buf_append(out, begin, strlen(begin), &err), &err);
    for (int i = 0; i < 500 && !over && begins; i++) {
        assert_ok(clb_matcher_mask(m, allowed, &err), &err);
        const uint32_t id = choose(allowed, wanted(out, rng), rng);
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

static inline bool sample(const char *gbnf, test_rand *rng, clb_buf *out)
{
    return sample_from(gbnf, "", rng, out);
}

static inline void check_arguments(const clb_tool_format *f, const call *c, const char *text)
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

/* The text is one of the grammar's. */
static inline bool follows(const char *gbnf, const char *text)
{
    clb_error err = {0};
    clb_grammar *g;
    clb_matcher *m;
    if (clb_grammar_parse((clb_str){gbnf, strlen(gbnf)}, &g, &err))
        fail_msg("%s\n%s", err.msg, gbnf);
    assert_ok(clb_matcher_create(g, tree, &m, &err), &err);
    const bool fits = follow_text(m, text) && clb_matcher_may_end(m);
    clb_matcher_destroy(m);
    clb_grammar_release(g);
    return fits;
}

/* A call that must be, as a text; NULL: it did not come to an end. */
static inline char *whole_call(const clb_tool_format *f, bool one, test_rand *rng)
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

static clb_vocab *plain_vocab;
static clb_token_tree *plain_tree;

/* Takes the vocabulary in which marks are control tokens, and gives it back. */
static inline void use_marks(void)
{
    clb_error err = {0};
    plain_vocab = vocab;
    plain_tree = tree;
    vocab = make_marked();
    assert_ok(clb_token_tree_create(vocab, &tree, &err), &err);
    marked = true;
}

static inline void use_plain(void)
{
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    vocab = plain_vocab;
    tree = plain_tree;
    marked = false;
}

/* What the parser makes of a reply, fed in pieces; free_reply. */
static inline void read_reply(const clb_tool_format *f, const char *prompt_end, bool answer, const char *text,
                              size_t step, reply *r)
{
    clb_error err = {0};
    clb_reply_parser *p;
    const size_t n = strlen(text);
    *r = (reply){.n = 0};
    const clb_reply_parser_options o = {.format = f,
                                        .tools = tools,
                                        .reasoning = true,
                                        .answer = answer,
                                        .opened = prompt_end,
                                        .on_piece = on_piece,
                                        .ctx = r};
    assert_ok(clb_reply_parser_create(&o, &p, &err), &err);
    for (size_t i = 0; i < n; i += step)
        assert_ok(clb_reply_parser_feed(p, text + i, n - i < step ? n - i : step, &err), &err);
    assert_ok(clb_reply_parser_finish(p, &err), &err);
    clb_reply_parser_free(p);
    assert_ok(clb_buf_append(&r->content, "", 1, &err), &err);
    assert_ok(clb_buf_append(&r->thought, "", 1, &err), &err);
}

static inline void free_reply(reply *r)
{
    for (size_t i = 0; i < r->n; i++)
        clb_buf_free(&r->calls[i].arguments);
    clb_buf_free(&r->content);
    clb_buf_free(&r->thought);
}

static inline int load(void **state)
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

static inline int unload(void **state)
{
    (void)state;
    clb_token_tree_destroy(tree);
    clb_vocab_free(vocab);
    json_decref(tools);
    return 0;
}

#endif
