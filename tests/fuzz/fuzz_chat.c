/* libFuzzer: chat requests and replies. The first byte chooses:
 *   p  a request: the template, a NUL, messages, a NUL, tools, the last two as JSON: a prompt, or an error of one line
 *   r  a reply: a byte for the format, one for the size of the pieces (less than 16; 16: it is cut off; 32: it follows
 * a grammar of answers or calls), and the text: whole and in pieces it must give the same COLIBRI_FUZZ_MODEL names the
 * model whose vocabulary is taken; without it examples/tiny-moe below the current folder. Seeds:
 * tests/fuzz/corpus/chat. */
#include <string.h>

#include "example_vocab.h"
#include "serve/prompt.h"
#include "serve/tool_impl.h"

/* ---- replies ---- */

typedef struct sink {
    clb_buf log;
    bool open;
    enum clb_piece_kind last;
} sink;

static int on_piece(void *ctx, const clb_piece *p, clb_error *err)
{
    sink *s = ctx;
    REQUIRE(s->open == (p->kind == CLB_PIECE_ARGUMENTS || p->kind == CLB_PIECE_CALL_END));
    s->open = s->open ? p->kind == CLB_PIECE_ARGUMENTS : p->kind == CLB_PIECE_CALL;
    if (p->kind != s->last || p->kind == CLB_PIECE_CALL) {
        CLB_TRY(clb_buf_printf(&s->log, err, "\n%d:", (int)p->kind));
        s->last = p->kind;
    }
    if (p->kind == CLB_PIECE_CALL)
        CLB_TRY(clb_buf_printf(&s->log, err, "%s", p->name));
    return clb_buf_append(&s->log, p->text, p->n, err);
}

static void parse(const clb_tool_format *f, const json_t *tools, const char *text, size_t n, size_t piece, unsigned how,
                  sink *s)
{
    clb_error err = {0};
    clb_reply_parser *p;
    const clb_reply_parser_options o = {.format = f,
                                        .tools = tools,
                                        .reasoning = true,
                                        .answer = how & 32,
                                        .opened = "",
                                        .on_piece = on_piece,
                                        .ctx = s};
    REQUIRE(clb_reply_parser_create(&o, &p, &err) == COLIBRI_OK);
    for (size_t i = 0; i < n; i += piece)
        REQUIRE(clb_reply_parser_feed(p, text + i, n - i < piece ? n - i : piece, &err) == COLIBRI_OK);
    if (how & 16)
        clb_reply_parser_cut(p);
    REQUIRE(clb_reply_parser_finish(p, &err) == COLIBRI_OK);
    REQUIRE(!s->open);
    clb_reply_parser_free(p);
}

static void reply(const uint8_t *data, size_t size)
{
    static json_t *tools;
    size_t n = 0;
    if (size < 2 || size > 4096)
        return;
    if (!tools)
        tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":"
                           "{\"type\":\"string\"},"
                           "\"l\":{\"type\":\"array\"}}}}}]",
                           0, NULL);
    while (clb_tool_formats[n].name)
        n++;
    const clb_tool_format *f = &clb_tool_formats[data[0] % n];
    const char *text = (const char *)data + 2;
    sink whole = {.last = CLB_PIECE_CALL_END}, pieces = {.last = CLB_PIECE_CALL_END};
    parse(f, tools, text, size - 2, size, data[1], &whole);
    parse(f, tools, text, size - 2, 1 + data[1] % 16, data[1], &pieces);
    REQUIRE(whole.log.n == pieces.log.n &&
            (whole.log.n == 0 || memcmp(whole.log.data, pieces.log.data, whole.log.n) == 0));
    clb_buf_free(&whole.log);
    clb_buf_free(&pieces.log);
}

/* ---- requests ---- */

static void prompt(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *messages = memchr(text, 0, size);
    const char *tools = messages ? memchr(messages + 1, 0, size - (size_t)(messages + 1 - text)) : NULL;
    const clb_chat_format *chat;
    clb_error err = {0};
    char param[64] = "";
    if (!tools || clb_chat_detect_template((clb_str){text, (size_t)(messages - text)}, &chat, &err))
        return;
    json_t *m = json_loadb(messages + 1, (size_t)(tools - messages - 1), 0, NULL);
    json_t *t = json_loadb(tools + 1, size - (size_t)(tools + 1 - text), 0, NULL);
    for (int i = 0; m && i < 3; i++) {
        clb_prompt p;
        const clb_prompt_request q = {.messages = m,
                                      .tools = t && clb_tools_check(t, NULL, &err) == COLIBRI_OK ? t : NULL,
                                      .choice = i == 0   ? CLB_TOOLS_AUTO
                                                : i == 1 ? CLB_TOOLS_REQUIRED
                                                         : CLB_TOOLS_NONE,
                                      .reasoning = true};
        err.msg[0] = '\0';
        const int rc = clb_prompt_make(chat, example(), &q, &p, param, &err);
        REQUIRE(rc == COLIBRI_OK || (*err.msg && !strchr(err.msg, '\n')));
        REQUIRE(strlen(param) < sizeof param);
        REQUIRE(rc || (p.opened && p.format && p.n_protected <= p.tokens.n));
        if (!rc)
            clb_prompt_free(&p);
    }
    json_decref(m);
    json_decref(t);
    clb_chat_free(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == 'p')
        prompt(data + 1, size - 1);
    else if (size && data[0] == 'r')
        reply(data + 1, size - 1);
    return 0;
}
