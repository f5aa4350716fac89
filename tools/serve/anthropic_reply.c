/* The reply of /v1/messages: a message, or the events of one. Content is a list of blocks: text, thinking, tool_use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/anthropic.h"

/* ---- errors ---- */

static const char *error_type(int http)
{
    switch (http) {
    case 400:
        return "invalid_request_error";
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return http < 500 ? "invalid_request_error" : "api_error";
    }
}

static void put_error(const clb_exchange *x, const clb_refusal *r, clb_json_buf *out)
{
    char text[sizeof r->message + sizeof r->param + 8];
    if (r->n_ctx && r->n_prompt) /* the words by which agents know that they must shorten the conversation */
        snprintf(text, sizeof text, "prompt is too long: %u tokens > %u maximum", r->n_prompt, r->n_ctx);
    else if (r->param[0] && !strstr(r->message, r->param))
        snprintf(text, sizeof text, "%s: %s", r->param, r->message);
    else
        snprintf(text, sizeof text, "%s", r->message);
    clb_jb_raw(out, "{\"type\":\"error\",\"error\":{\"type\":");
    clb_jb_text(out, error_type(r->http));
    clb_jb_raw(out, ",\"message\":");
    clb_jb_text(out, text);
    clb_jb_raw(out, "},\"request_id\":");
    clb_jb_text(out, clb_exchange_id(x));
    clb_jb_raw(out, "}");
}

void clb_anthropic_refuse(clb_exchange *x, const clb_refusal *r)
{
    static const char last_resort[] =
        "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"out of memory\"}}";
    clb_json_buf out = {0};
    clb_refusal memory;
    r = clb_refusal_truly(r, &memory);
    put_error(x, r, &out);
    if (r->retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", r->retry_after_s);
        clb_exchange_set_header(x, "Retry-After", seconds);
    }
    if (out.failed)
        clb_reply(x, 503, "application/json", last_resort, sizeof last_resort - 1);
    else
        clb_reply(x, r->http, "application/json", out.buf.data, out.buf.n);
    clb_jb_free(&out);
}

static void stream_error(clb_completion *c, const clb_refusal *r, clb_json_buf *out)
{
    clb_jb_raw(out, "event: error\ndata: ");
    put_error(clb_completion_exchange(c), r, out);
    clb_jb_raw(out, "\n\n");
}

static void ping(clb_completion *c, clb_json_buf *out)
{
    (void)c;
    clb_jb_raw(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

/* ---- the state of the message ---- */

enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };

typedef struct state {
    clb_completion *c;
    clb_reply_parser *parser;
    clb_json_buf *out;    /* where events go while text is being parsed */
    clb_json_buf content; /* without a stream: the blocks that are closed */
    clb_json_buf block;   /* and the text of the open one */
    enum block open;
    uint32_t n_blocks;
} state;

int clb_anthropic_own_create(clb_prompt *prompt, const clb_prompt_request *request, clb_prompt_reply **out,
                             clb_refusal *r)
{
    *out = malloc(sizeof **out);
    if (!*out)
        return clb_refuse_nomem(r);
    **out = clb_prompt_take_reply(prompt, request);
    return COLIBRI_OK;
}

static void free_own(void *own)
{
    clb_prompt_reply_free(own);
    free(own);
}

static void free_choice(clb_choice *ch)
{
    state *const s = ch->own;
    if (!s)
        return;
    clb_reply_parser_free(s->parser);
    clb_jb_free(&s->content);
    clb_jb_free(&s->block);
    free(s);
}

static bool streams(const state *s)
{
    return clb_completion_options(s->c)->stream;
}

/* ---- blocks ---- */

static void close_block(state *s)
{
    if (s->open == BLOCK_NONE)
        return;
    if (streams(s)) {
        if (s->open == BLOCK_THINKING) { /* clients hand it back with the thought; here it means nothing */
            clb_jb_raw(s->out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
            clb_jb_uint(s->out, s->n_blocks);
            clb_jb_raw(s->out, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n");
        }
        clb_jb_raw(s->out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
        clb_jb_uint(s->out, s->n_blocks);
        clb_jb_raw(s->out, "}\n\n");
    } else {
        const char *text = s->block.buf.n ? s->block.buf.data : "";
        if (s->open == BLOCK_TOOL) { /* an object, unless the model stopped within it */
            json_t *input = json_loadb(text, s->block.buf.n, 0, NULL);
            if (json_is_object(input))
                clb_jb_json(&s->content, input);
            else
                clb_jb_raw(&s->content, "{}");
            json_decref(input);
            clb_jb_raw(&s->content, "}");
        } else {
            clb_jb_string(&s->content, text, s->block.buf.n);
            clb_jb_raw(&s->content, s->open == BLOCK_THINKING ? ",\"signature\":\"\"}" : "}");
        }
        s->block.buf.n = 0;
    }
    s->n_blocks++;
    s->open = BLOCK_NONE;
}

/* Ids begin with toolu_ here. */
static void put_id(const char *id, clb_json_buf *out)
{
    char text[80];
    if (strncmp(id, "call_", 5) == 0)
        snprintf(text, sizeof text, "toolu_%s", id + 5);
    else
        snprintf(text, sizeof text, "%s", id);
    clb_jb_text(out, text);
}

static void open_block(state *s, enum block kind, const clb_piece *piece)
{
    close_block(s);
    s->open = kind;
    clb_json_buf *const out = streams(s) ? s->out : &s->content;
    if (streams(s)) {
        clb_jb_raw(out, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        clb_jb_uint(out, s->n_blocks);
        clb_jb_raw(out, ",\"content_block\":");
    } else if (s->n_blocks) {
        clb_jb_raw(out, ",");
    }
    if (kind == BLOCK_TOOL) {
        clb_jb_raw(out, "{\"type\":\"tool_use\",\"id\":");
        put_id(piece->id, out);
        clb_jb_raw(out, ",\"name\":");
        clb_jb_text(out, piece->name);
        clb_jb_raw(out, ",\"input\":");
    } else {
        clb_jb_raw(out, kind == BLOCK_TEXT ? "{\"type\":\"text\",\"text\":" : "{\"type\":\"thinking\",\"thinking\":");
    }
    if (streams(s))
        clb_jb_raw(out, kind == BLOCK_TOOL   ? "{}}}\n\n"
                        : kind == BLOCK_TEXT ? "\"\"}}\n\n"
                                             : "\"\",\"signature\":\"\"}}\n\n");
}

static void put_delta(state *s, const clb_piece *piece)
{
    static const char *const deltas[] = {
        "", "{\"type\":\"text_delta\",\"text\":", "{\"type\":\"thinking_delta\",\"thinking\":",
        "{\"type\":\"input_json_delta\",\"partial_json\":"};
    if (!streams(s)) {
        clb_jb_bytes(&s->block, piece->text, piece->n);
        return;
    }
    clb_jb_raw(s->out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    clb_jb_uint(s->out, s->n_blocks);
    clb_jb_raw(s->out, ",\"delta\":");
    clb_jb_raw(s->out, deltas[s->open]);
    clb_jb_string(s->out, piece->text, piece->n);
    clb_jb_raw(s->out, "}}\n\n");
}

static int on_piece(void *ctx, const clb_piece *piece, clb_error *err)
{
    state *const s = ctx;
    (void)err;
    switch (piece->kind) {
    case CLB_PIECE_CALL:
        open_block(s, BLOCK_TOOL, piece);
        break;
    case CLB_PIECE_CALL_END:
        close_block(s);
        break;
    default: {
        const enum block kind = piece->kind == CLB_PIECE_ARGUMENTS   ? BLOCK_TOOL
                                : piece->kind == CLB_PIECE_REASONING ? BLOCK_THINKING
                                                                     : BLOCK_TEXT;
        if (s->open != kind)
            open_block(s, kind, piece);
        put_delta(s, piece);
    }
    }
    return COLIBRI_OK;
}

/* ---- the message ---- */

static void put_usage(const clb_completion *c, clb_json_buf *out)
{
    const clb_usage *u = clb_completion_usage(c);
    clb_jb_raw(out, "{\"input_tokens\":");
    clb_jb_uint(out, u->n_prompt - u->n_reused);
    clb_jb_raw(out, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    clb_jb_uint(out, u->n_reused);
    clb_jb_raw(out, ",\"output_tokens\":");
    clb_jb_uint(out, u->n_generated);
    clb_jb_raw(out, "}");
}

static void put_head(const clb_completion *c, clb_json_buf *out)
{
    clb_jb_raw(out, "{\"id\":\"msg_");
    clb_jb_raw(out, clb_exchange_id(clb_completion_exchange(c)));
    clb_jb_raw(out, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    clb_jb_text(out, clb_completion_app(c)->model_name);
    clb_jb_raw(out, ",\"content\":[");
}

/* "stop_reason":...,"stop_sequence":... */
static void put_stop(const clb_choice *ch, clb_json_buf *out)
{
    const state *s = ch->own;
    const bool calls = s->parser && clb_reply_parser_calls(s->parser) > 0;
    clb_jb_raw(out, "\"stop_reason\":");
    if (ch->finish == CLB_FINISH_CONTEXT)
        clb_jb_text(out, "model_context_window_exceeded");
    else if (ch->finish != CLB_FINISH_STOP)
        clb_jb_text(out, "max_tokens");
    else
        clb_jb_text(out, ch->stop ? "stop_sequence" : calls ? "tool_use" : "end_turn");
    clb_jb_raw(out, ",\"stop_sequence\":");
    if (ch->finish == CLB_FINISH_STOP && ch->stop)
        clb_jb_text(out, ch->stop);
    else
        clb_jb_raw(out, "null");
}

static void begin(clb_completion *c, clb_json_buf *out)
{
    if (!clb_completion_options(c)->stream)
        return;
    clb_jb_raw(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_head(c, out);
    clb_jb_raw(out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(c, out);
    clb_jb_raw(out, "}}\n\n");
    ping(c, out);
}

static int state_of(clb_completion *c, clb_choice *ch, clb_json_buf *out, state **got, clb_error *err)
{
    if (!ch->own) {
        ch->own = calloc(1, sizeof(state));
        if (!ch->own)
            return CLB_NOMEM(err, "the reply");
        state *const s = ch->own;
        s->c = c;
        s->out = out;
        CLB_TRY(clb_prompt_reply_parser(clb_completion_own(c), on_piece, s, &s->parser, err));
    }
    *got = ch->own;
    (*got)->out = out;
    return COLIBRI_OK;
}

static int text(clb_completion *c, clb_choice *ch, const char *t, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err)
{
    state *s;
    (void)tokens, (void)n_tokens;
    CLB_TRY(state_of(c, ch, out, &s, err));
    return n ? clb_reply_parser_feed(s->parser, t, n, err) : COLIBRI_OK;
}

static int choice_end(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    state *s;
    CLB_TRY(state_of(c, ch, out, &s, err));
    if (ch->finish != CLB_FINISH_STOP)
        clb_reply_parser_cut(s->parser);
    CLB_TRY(clb_reply_parser_finish(s->parser, err));
    close_block(s);
    return s->content.failed || s->block.failed ? CLB_NOMEM(err, "the reply") : COLIBRI_OK;
}

static int end(clb_completion *c, clb_json_buf *out, clb_error *err)
{
    const clb_choice *ch = clb_completion_choice(c, 0);
    const state *s = ch->own;
    (void)err;
    if (!s)
        return clb_fail(err, COLIBRI_E_INTERNAL, "a reply without an end");
    if (streams(s)) {
        clb_jb_raw(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        put_stop(ch, out);
        clb_jb_raw(out, "},\"usage\":");
        put_usage(c, out);
        clb_jb_raw(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
        return COLIBRI_OK;
    }
    put_head(c, out);
    clb_jb_bytes(out, s->content.buf.data, s->content.buf.n);
    clb_jb_raw(out, "],");
    put_stop(ch, out);
    clb_jb_raw(out, ",\"usage\":");
    put_usage(c, out);
    clb_jb_raw(out, "}");
    return COLIBRI_OK;
}

const clb_completion_shape clb_anthropic_shape = {
    .prompt_param = "messages",
    .refuse = clb_anthropic_refuse,
    .error = stream_error,
    .begin = begin,
    .text = text,
    .choice_end = choice_end,
    .end = end,
    .ping = ping,
    .free_choice = free_choice,
    .free_own = free_own,
};
