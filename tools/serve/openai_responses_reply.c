/* The reply of /v1/responses: a response, or the events of one. Its output is a list of items: thoughts, messages,
 * calls. Each is written as it comes and kept, for the last event repeats them all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/openai_responses.h"

enum item { ITEM_NONE, ITEM_MESSAGE, ITEM_REASONING, ITEM_CALL };

struct clb_responses_own {
    clb_prompt_reply reply;
    clb_json_buf echo; /* what the response repeats of the request */

    clb_completion *c;
    clb_json_buf *out; /* where events go */
    clb_reply_parser *parser;
    size_t n_fed; /* bytes of the text that the parser has */
    uint64_t n_events;
    uint32_t n_items;
    clb_json_buf items; /* those that are complete */
    enum item open;
    clb_json_buf text;     /* of the open item */
    clb_json_buf call;     /* "call_id":...,"name":... of the open call */
    clb_json_buf logprobs; /* of the open message */
    clb_json_buf pending;  /* log probabilities that no text has taken along */
    bool cut;              /* the end came by a limit: what is still open is incomplete */
};
typedef clb_responses_own state;

/* ---- what is repeated ---- */

static void echo_json(const json_t *body, const char *name, const char *otherwise, clb_json_buf *out)
{
    const json_t *v = json_object_get(body, name);
    clb_jb_raw(out, ",\"");
    clb_jb_raw(out, name);
    clb_jb_raw(out, "\":");
    if (v && !json_is_null(v))
        clb_jb_json(out, v);
    else
        clb_jb_raw(out, otherwise);
}

static void echo_number(const char *name, double value, clb_json_buf *out)
{
    clb_jb_raw(out, ",\"");
    clb_jb_raw(out, name);
    clb_jb_raw(out, "\":");
    clb_jb_real(out, value);
}

static void put_echo(const json_t *body, const clb_text_options *o, clb_json_buf *out)
{
    const json_t *reasoning = json_object_get(body, "reasoning"), *text = json_object_get(body, "text");
    const json_t *format = json_object_get(text, "format");
    echo_json(body, "instructions", "null", out);
    echo_json(body, "max_output_tokens", "null", out);
    echo_json(body, "metadata", "{}", out);
    echo_json(body, "parallel_tool_calls", "true", out);
    clb_jb_raw(out, ",\"reasoning\":{\"summary\":null");
    echo_json(reasoning, "effort", "null", out);
    clb_jb_raw(out, "}");
    echo_number("temperature", o->sampling.temperature, out);
    clb_jb_raw(out, ",\"text\":{\"verbosity\":\"medium\"");
    echo_json(format ? text : NULL, "format", "{\"type\":\"text\"}", out);
    clb_jb_raw(out, "}");
    echo_json(body, "tool_choice", "\"auto\"", out);
    echo_json(body, "tools", "[]", out);
    echo_number("top_logprobs", o->n_logprobs > 0 ? o->n_logprobs : 0, out);
    echo_number("top_p", o->sampling.top_p, out);
    echo_json(body, "truncation", "\"disabled\"", out);
    echo_json(body, "user", "null", out);
    clb_jb_raw(out, ",\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\",\"store\":false");
}

int clb_responses_own_create(const json_t *body, const clb_text_options *o, clb_prompt *prompt,
                             const clb_prompt_request *request, clb_responses_own **out, clb_refusal *r)
{
    state *const own = calloc(1, sizeof *own);
    *out = own;
    if (!own)
        return clb_refuse_nomem(r);
    own->reply = clb_prompt_take_reply(prompt, request);
    put_echo(body, o, &own->echo);
    return COLIBRI_OK;
}

static void free_own(void *p)
{
    state *const own = p;
    clb_prompt_reply_free(&own->reply);
    clb_reply_parser_free(own->parser);
    clb_jb_free(&own->echo);
    clb_jb_free(&own->items);
    clb_jb_free(&own->text);
    clb_jb_free(&own->call);
    clb_jb_free(&own->logprobs);
    clb_jb_free(&own->pending);
    free(own);
}

static bool streams(const state *s)
{
    return clb_completion_options(s->c)->stream;
}

/* ---- the response ---- */

static const char *status_of(const clb_choice *ch)
{
    return ch->finish == CLB_FINISH_STOP ? "completed" : "incomplete";
}

static void put_usage(const clb_usage *u, clb_json_buf *out)
{
    clb_jb_raw(out, "{\"input_tokens\":");
    clb_jb_uint(out, u->n_prompt);
    clb_jb_raw(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    clb_jb_uint(out, u->n_reused);
    clb_jb_raw(out, ",\"cache_write_tokens\":0},\"output_tokens\":");
    clb_jb_uint(out, u->n_generated);
    clb_jb_raw(out, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    clb_jb_uint(out, u->n_thoughts);
    clb_jb_raw(out, "},\"total_tokens\":");
    clb_jb_uint(out, u->n_prompt + u->n_generated);
    clb_jb_raw(out, "}");
}

/* failure: of a response that has failed, else NULL. */
static void put_response(state *s, const char *status, const clb_refusal *failure, clb_json_buf *out)
{
    const bool over = strcmp(status, "completed") == 0 || strcmp(status, "incomplete") == 0;
    clb_jb_raw(out, "{\"id\":\"resp_");
    clb_jb_raw(out, clb_exchange_id(clb_completion_exchange(s->c)));
    clb_jb_raw(out, "\",\"object\":\"response\",\"created_at\":");
    clb_jb_uint(out, clb_completion_created(s->c));
    clb_jb_raw(out, ",\"status\":");
    clb_jb_text(out, status);
    clb_jb_raw(out, ",\"error\":");
    if (failure) {
        clb_jb_raw(out, "{\"code\":\"server_error\",\"message\":");
        clb_jb_text(out, failure->message);
        clb_jb_raw(out, "}");
    } else {
        clb_jb_raw(out, "null");
    }
    clb_jb_raw(out, ",\"incomplete_details\":");
    clb_jb_raw(out, strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    clb_jb_raw(out, ",\"model\":");
    clb_jb_text(out, clb_completion_app(s->c)->model_name);
    clb_jb_raw(out, ",\"output\":[");
    clb_jb_bytes(out, s->items.buf.data, s->items.buf.n);
    clb_jb_raw(out, "]");
    clb_jb_bytes(out, s->echo.buf.data, s->echo.buf.n);
    clb_jb_raw(out, ",\"usage\":");
    if (over)
        put_usage(clb_completion_usage(s->c), out);
    else
        clb_jb_raw(out, "null");
    clb_jb_raw(out, "}");
}

/* ---- events ---- */

static void event(state *s, const char *type, clb_json_buf *out)
{
    clb_jb_raw(out, "event: ");
    clb_jb_raw(out, type);
    clb_jb_raw(out, "\ndata: {\"type\":\"");
    clb_jb_raw(out, type);
    clb_jb_raw(out, "\",\"sequence_number\":");
    clb_jb_uint(out, s->n_events++);
}

static void event_end(clb_json_buf *out)
{
    clb_jb_raw(out, "}\n\n");
}

static void response_event(state *s, const char *type, const char *status, const clb_refusal *failure,
                           clb_json_buf *out)
{
    event(s, type, out);
    clb_jb_raw(out, ",\"response\":");
    put_response(s, status, failure, out);
    event_end(out);
}

static void put_id(const state *s, clb_json_buf *out)
{
    static const char *const prefixes[] = {"", "msg_", "rs_", "fc_"};
    char number[24];
    snprintf(number, sizeof number, "_%u\"", (unsigned)s->n_items);
    clb_jb_raw(out, "\"");
    clb_jb_raw(out, prefixes[s->open]);
    clb_jb_raw(out, clb_exchange_id(clb_completion_exchange(s->c)));
    clb_jb_raw(out, number);
}

/* An event about the open item. */
static void item_event(state *s, const char *type)
{
    event(s, type, s->out);
    clb_jb_raw(s->out, ",\"item_id\":");
    put_id(s, s->out);
    clb_jb_raw(s->out, ",\"output_index\":");
    clb_jb_uint(s->out, s->n_items);
    if (s->open != ITEM_CALL)
        clb_jb_raw(s->out, ",\"content_index\":0");
}

static void put_text(const state *s, clb_json_buf *out)
{
    clb_jb_string(out, s->text.buf.n ? s->text.buf.data : "", s->text.buf.n);
}

static void put_logprobs(const clb_json_buf *logprobs, clb_json_buf *out)
{
    clb_jb_raw(out, ",\"logprobs\":[");
    clb_jb_bytes(out, logprobs->buf.data, logprobs->buf.n);
    clb_jb_raw(out, "]");
}

/* The one part of a message or a thought, as far as it is written. */
static void put_part(const state *s, clb_json_buf *out)
{
    clb_jb_raw(out, s->open == ITEM_MESSAGE ? "{\"type\":\"output_text\",\"annotations\":[]"
                                            : "{\"type\":\"reasoning_text\"");
    if (s->open == ITEM_MESSAGE)
        put_logprobs(&s->logprobs, out);
    clb_jb_raw(out, ",\"text\":");
    put_text(s, out);
    clb_jb_raw(out, "}");
}

static void put_item(const state *s, const char *status, bool part, clb_json_buf *out)
{
    static const char *const types[] = {"", "message", "reasoning", "function_call"};
    clb_jb_raw(out, "{\"id\":");
    put_id(s, out);
    clb_jb_raw(out, ",\"type\":\"");
    clb_jb_raw(out, types[s->open]);
    clb_jb_raw(out, "\",\"status\":\"");
    clb_jb_raw(out, status);
    clb_jb_raw(out, "\"");
    if (s->open == ITEM_CALL) {
        clb_jb_raw(out, ",");
        clb_jb_bytes(out, s->call.buf.data, s->call.buf.n);
        clb_jb_raw(out, ",\"arguments\":");
        put_text(s, out);
    } else {
        clb_jb_raw(out,
                   s->open == ITEM_MESSAGE ? ",\"role\":\"assistant\",\"content\":[" : ",\"summary\":[],\"content\":[");
        if (part)
            put_part(s, out);
        clb_jb_raw(out, "]");
    }
    clb_jb_raw(out, "}");
}

/* ---- items ---- */

static void close_item(state *s)
{
    static const char *const done[] = {"", "response.output_text.done", "response.reasoning_text.done",
                                       "response.function_call_arguments.done"};
    const char *const status = s->cut ? "incomplete" : "completed";
    if (s->open == ITEM_NONE)
        return;
    if (streams(s)) {
        item_event(s, done[s->open]);
        if (s->open == ITEM_CALL) {
            clb_jb_raw(s->out, ",");
            clb_jb_bytes(s->out, s->call.buf.data, s->call.buf.n);
        }
        if (s->open == ITEM_MESSAGE)
            put_logprobs(&s->logprobs, s->out);
        clb_jb_raw(s->out, s->open == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
        put_text(s, s->out);
        event_end(s->out);
        if (s->open != ITEM_CALL) {
            item_event(s, "response.content_part.done");
            clb_jb_raw(s->out, ",\"part\":");
            put_part(s, s->out);
            event_end(s->out);
        }
        event(s, "response.output_item.done", s->out);
        clb_jb_raw(s->out, ",\"output_index\":");
        clb_jb_uint(s->out, s->n_items);
        clb_jb_raw(s->out, ",\"item\":");
        put_item(s, status, true, s->out);
        event_end(s->out);
    }
    if (s->n_items)
        clb_jb_raw(&s->items, ",");
    put_item(s, status, true, &s->items);
    s->n_items++;
    s->open = ITEM_NONE;
    s->text.buf.n = s->call.buf.n = s->logprobs.buf.n = 0;
}

static void open_item(state *s, enum item kind, const clb_piece *piece)
{
    close_item(s);
    s->open = kind;
    if (kind == ITEM_CALL) {
        clb_jb_raw(&s->call, "\"call_id\":");
        clb_jb_text(&s->call, piece->id);
        clb_jb_raw(&s->call, ",\"name\":");
        clb_jb_text(&s->call, piece->name);
    }
    if (!streams(s))
        return;
    event(s, "response.output_item.added", s->out);
    clb_jb_raw(s->out, ",\"output_index\":");
    clb_jb_uint(s->out, s->n_items);
    clb_jb_raw(s->out, ",\"item\":");
    put_item(s, "in_progress", false, s->out);
    event_end(s->out);
    if (kind == ITEM_CALL)
        return;
    item_event(s, "response.content_part.added");
    clb_jb_raw(s->out, ",\"part\":");
    put_part(s, s->out);
    event_end(s->out);
}

static void put_delta(state *s, const clb_piece *piece)
{
    static const char *const deltas[] = {"", "response.output_text.delta", "response.reasoning_text.delta",
                                         "response.function_call_arguments.delta"};
    clb_jb_bytes(&s->text, piece->text, piece->n);
    if (streams(s)) {
        item_event(s, deltas[s->open]);
        clb_jb_raw(s->out, ",\"delta\":");
        clb_jb_string(s->out, piece->text, piece->n);
        if (s->open == ITEM_MESSAGE)
            put_logprobs(&s->pending, s->out);
        event_end(s->out);
    }
    if (s->open == ITEM_MESSAGE && s->pending.buf.n) {
        clb_jb_raw(&s->logprobs, s->logprobs.buf.n ? "," : "");
        clb_jb_bytes(&s->logprobs, s->pending.buf.data, s->pending.buf.n);
    }
    s->pending.buf.n = 0; /* those of thoughts and calls are nobody's */
}

static int on_piece(void *ctx, const clb_piece *piece, clb_error *err)
{
    state *const s = ctx;
    (void)err;
    switch (piece->kind) {
    case CLB_PIECE_CALL:
        open_item(s, ITEM_CALL, piece);
        s->pending.buf.n = 0;
        break;
    case CLB_PIECE_CALL_END:
        close_item(s);
        break;
    default: {
        const enum item kind = piece->kind == CLB_PIECE_ARGUMENTS   ? ITEM_CALL
                               : piece->kind == CLB_PIECE_REASONING ? ITEM_REASONING
                                                                    : ITEM_MESSAGE;
        if (!piece->n)
            break;
        if (s->open != kind)
            open_item(s, kind, piece);
        put_delta(s, piece);
    }
    }
    return COLIBRI_OK;
}

/* ---- the shape ---- */

static state *state_of(clb_completion *c, clb_json_buf *out)
{
    state *const s = clb_completion_own(c);
    s->c = c;
    s->out = out;
    return s;
}

static int parser_of(state *s, clb_error *err)
{
    return s->parser ? COLIBRI_OK : clb_prompt_reply_parser(&s->reply, on_piece, s, &s->parser, err);
}

static void begin(clb_completion *c, clb_json_buf *out)
{
    state *const s = state_of(c, out);
    if (!streams(s))
        return;
    response_event(s, "response.created", "in_progress", NULL, out);
    response_event(s, "response.in_progress", "in_progress", NULL, out);
}

static void stream_error(clb_completion *c, const clb_refusal *r, clb_json_buf *out)
{
    state *const s = state_of(c, out);
    event(s, "error", out);
    clb_jb_raw(out, ",\"code\":");
    clb_jb_text(out, r->code ? r->code : r->type);
    clb_jb_raw(out, ",\"message\":");
    clb_jb_text(out, r->message);
    clb_jb_raw(out, ",\"param\":null");
    event_end(out);
    s->cut = true;
    close_item(s);
    response_event(s, "response.failed", "failed", r, out);
}

/* Token by token where log probabilities are wanted, so that each goes with its own text. */
static int text(clb_completion *c, clb_choice *ch, const char *t, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err)
{
    state *const s = state_of(c, out);
    size_t at = 0, first = 0;
    (void)ch;
    CLB_TRY(parser_of(s, err));
    const size_t before = s->n_fed;
    for (size_t i = 0; i < n_tokens && clb_completion_options(c)->n_logprobs >= 0; i++) {
        const size_t upto = (size_t)tokens[i].text_offset + tokens[i].n_bytes;
        const size_t end = upto >= before + n ? n : upto > before + at ? upto - before : at;
        clb_openai_chat_logprobs(clb_completion_app(c)->engine->vocab, &tokens[i], 1, &s->pending);
        if (i + 1 == n_tokens || (end < n && ((unsigned char)t[end] & 0xc0) == 0x80))
            continue;
        CLB_TRY(clb_openai_feed(c, s->parser, t + at, end - at, tokens + first, i + 1 - first, &s->n_fed, err));
        at = end;
        first = i + 1;
    }
    const clb_token_info *rest = first < n_tokens ? tokens + first : NULL; /* text may come without any */
    return clb_openai_feed(c, s->parser, t + at, n - at, rest, n_tokens - first, &s->n_fed, err);
}

static int choice_end(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    static const clb_piece nothing = {.kind = CLB_PIECE_CONTENT};
    state *const s = state_of(c, out);
    CLB_TRY(parser_of(s, err));
    s->cut = ch->finish != CLB_FINISH_STOP;
    if (s->cut)
        clb_reply_parser_cut(s->parser);
    CLB_TRY(clb_reply_parser_finish(s->parser, err));
    if (!s->n_items && s->open == ITEM_NONE) /* clients look for a text */
        open_item(s, ITEM_MESSAGE, &nothing);
    close_item(s);
    const bool failed = s->echo.failed || s->items.failed || s->text.failed || s->call.failed || s->logprobs.failed ||
                        s->pending.failed;
    return failed ? CLB_NOMEM(err, "the reply") : COLIBRI_OK;
}

static int end(clb_completion *c, clb_json_buf *out, clb_error *err)
{
    state *const s = state_of(c, out);
    const char *status = status_of(clb_completion_choice(c, 0));
    (void)err;
    if (streams(s))
        response_event(s, strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete", status, NULL,
                       out);
    else
        put_response(s, status, NULL, out);
    return COLIBRI_OK;
}

const clb_completion_shape clb_responses_shape = {
    .prompt_param = "input",
    .refuse = clb_openai_refuse,
    .error = stream_error,
    .begin = begin,
    .text = text,
    .choice_end = choice_end,
    .end = end,
    .free_own = free_own,
};
