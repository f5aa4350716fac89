/* The reply of chat completions: chat.completion, or chat.completion.chunk as events. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/openai_chat.h"

/* One choice: what came so far, and the parser that tells answer, thoughts and calls apart. */
struct chat_choice {
    clb_completion *c;
    clb_choice *ch;
    clb_reply_parser *parser; /* NULL: all text is the answer */
    clb_json_buf *out;        /* where pieces go while text is being parsed */
    clb_json_buf reasoning;   /* without a stream; the answer is in ch->text */
    clb_json_buf calls;       /* without a stream: elements of tool_calls */
    clb_json_buf arguments;   /* of the call that is being written */
    bool in_call;
    size_t n_fed; /* bytes of the text that the parser has */
};
#define LOGPROBS(ch) (&(ch)->logprobs[0]) /* elements; in a stream those that no chunk has taken along */

int clb_chat_own_create(clb_prompt *prompt, const clb_prompt_request *request, clb_chat_own **out, clb_refusal *r)
{
    clb_chat_own *const own = calloc(1, sizeof *own);
    *out = own;
    if (!own)
        return clb_refuse_nomem(r);
    own->reply = clb_prompt_take_reply(prompt, request);
    return COLIBRI_OK;
}

static void free_own(void *p)
{
    clb_chat_own *const own = p;
    clb_prompt_reply_free(&own->reply);
    clb_jb_free(&own->head);
    free(own);
}

static void free_choice(clb_choice *ch)
{
    struct chat_choice *const s = ch->own;
    if (!s)
        return;
    clb_reply_parser_free(s->parser);
    clb_jb_free(&s->reasoning);
    clb_jb_free(&s->calls);
    clb_jb_free(&s->arguments);
    free(s);
}

/* ---- chunks ---- */

static void chunk_begin(clb_completion *c, const clb_choice *ch, clb_json_buf *out)
{
    clb_chat_own *const own = clb_completion_own(c);
    if (!own->head.buf.n) {
        clb_jb_raw(&own->head, "data: ");
        clb_openai_head(c, "chatcmpl-", "chat.completion.chunk", &own->head);
    }
    out->failed = out->failed || own->head.failed;
    clb_jb_bytes(out, own->head.buf.data, own->head.buf.n);
    clb_jb_raw(out, "\"choices\":[{\"index\":");
    clb_jb_uint(out, ch->index);
    clb_jb_raw(out, ",\"delta\":{");
}

/* Takes along what there is of log probabilities. */
static void chunk_end(clb_completion *c, clb_choice *ch, const char *finish, bool tail, clb_json_buf *out)
{
    clb_json_buf *const logprobs = LOGPROBS(ch);
    out->failed = out->failed || logprobs->failed;
    clb_jb_raw(out, "},\"logprobs\":");
    if (logprobs->buf.n) {
        clb_jb_raw(out, "{\"content\":[");
        clb_jb_bytes(out, logprobs->buf.data, logprobs->buf.n);
        clb_jb_raw(out, "],\"refusal\":null}");
        logprobs->buf.n = 0;
    } else {
        clb_jb_raw(out, "null");
    }
    clb_openai_chunk_end(c, finish, out);
    if (!tail)
        clb_jb_raw(out, "}\n\n");
}

/* The role comes first, in a chunk of its own. */
static void open_choice(clb_completion *c, clb_choice *ch, clb_json_buf *out)
{
    if (ch->opened)
        return;
    ch->opened = true;
    if (!clb_completion_options(c)->stream)
        return;
    chunk_begin(c, ch, out);
    clb_jb_raw(out, "\"role\":\"assistant\",\"content\":null");
    chunk_end(c, ch, NULL, false, out);
}

static void progress(clb_completion *c, clb_choice *first, const clb_progress_info *p, clb_json_buf *out)
{
    open_choice(c, first, out);
    chunk_begin(c, first, out);
    chunk_end(c, first, NULL, true, out);
    clb_jb_raw(out, ",");
    clb_openai_progress(p, out);
    clb_jb_raw(out, "}\n\n");
}

/* ---- pieces of the text ---- */

/* All of a call but its arguments, which follow as a string, and "}}". */
static void put_call_head(const clb_piece *piece, clb_json_buf *out)
{
    clb_jb_raw(out, "\"id\":");
    clb_jb_text(out, piece->id);
    clb_jb_raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
    clb_jb_text(out, piece->name);
    clb_jb_raw(out, ",\"arguments\":");
}

static void stream_piece(struct chat_choice *s, const clb_piece *piece)
{
    clb_json_buf *const out = s->out;
    chunk_begin(s->c, s->ch, out);
    switch (piece->kind) {
    case CLB_PIECE_CONTENT:
        clb_jb_raw(out, "\"content\":");
        clb_jb_string(out, piece->text, piece->n);
        break;
    case CLB_PIECE_REASONING:
        clb_jb_raw(out, "\"reasoning_content\":");
        clb_jb_string(out, piece->text, piece->n);
        break;
    case CLB_PIECE_CALL:
        clb_jb_raw(out, "\"tool_calls\":[{\"index\":");
        clb_jb_uint(out, piece->index);
        clb_jb_raw(out, ",");
        put_call_head(piece, out);
        clb_jb_raw(out, "\"\"}}]");
        break;
    case CLB_PIECE_ARGUMENTS:
        clb_jb_raw(out, "\"tool_calls\":[{\"index\":");
        clb_jb_uint(out, piece->index);
        clb_jb_raw(out, ",\"function\":{\"arguments\":");
        clb_jb_string(out, piece->text, piece->n);
        clb_jb_raw(out, "}}]");
        break;
    case CLB_PIECE_CALL_END:
        break;
    }
    chunk_end(s->c, s->ch, NULL, false, out);
}

static void close_call(struct chat_choice *s)
{
    if (!s->in_call)
        return;
    s->in_call = false;
    clb_jb_string(&s->calls, s->arguments.buf.n ? s->arguments.buf.data : "", s->arguments.buf.n);
    clb_jb_raw(&s->calls, "}}");
    s->arguments.buf.n = 0;
}

static void gather_piece(struct chat_choice *s, const clb_piece *piece)
{
    switch (piece->kind) {
    case CLB_PIECE_CONTENT:
        clb_jb_bytes(&s->ch->text, piece->text, piece->n);
        break;
    case CLB_PIECE_REASONING:
        clb_jb_bytes(&s->reasoning, piece->text, piece->n);
        break;
    case CLB_PIECE_CALL:
        close_call(s);
        s->in_call = true;
        clb_jb_raw(&s->calls, s->calls.buf.n ? ",{" : "{");
        put_call_head(piece, &s->calls);
        break;
    case CLB_PIECE_ARGUMENTS:
        clb_jb_bytes(&s->arguments, piece->text, piece->n);
        break;
    case CLB_PIECE_CALL_END:
        close_call(s);
        break;
    }
}

static int on_piece(void *ctx, const clb_piece *piece, clb_error *err)
{
    struct chat_choice *const s = ctx;
    (void)err;
    if (!clb_completion_options(s->c)->stream)
        gather_piece(s, piece);
    else if (piece->kind != CLB_PIECE_CALL_END && (piece->n || piece->kind == CLB_PIECE_CALL))
        stream_piece(s, piece);
    return COLIBRI_OK;
}

static int choice_state(clb_completion *c, clb_choice *ch, struct chat_choice **out, clb_error *err)
{
    const clb_chat_own *own = clb_completion_own(c);
    if (ch->own) {
        *out = ch->own;
        return COLIBRI_OK;
    }
    struct chat_choice *const s = calloc(1, sizeof *s);
    if (!s)
        return CLB_NOMEM(err, "the reply");
    *out = ch->own = s;
    s->c = c;
    s->ch = ch;
    if (!own->reply.tools && !own->reply.reasoning)
        return COLIBRI_OK;
    return clb_prompt_reply_parser(&own->reply, on_piece, s, &s->parser, err);
}

static int text(clb_completion *c, clb_choice *ch, const char *t, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err)
{
    struct chat_choice *s;
    CLB_TRY(choice_state(c, ch, &s, err));
    open_choice(c, ch, out);
    if (clb_completion_options(c)->n_logprobs >= 0)
        clb_openai_chat_logprobs(clb_completion_app(c)->engine->vocab, tokens, n_tokens, LOGPROBS(ch));
    s->out = out;
    if (s->parser)
        return clb_openai_feed(c, s->parser, t, n, tokens, n_tokens, &s->n_fed, err);
    const clb_piece all = {.kind = CLB_PIECE_CONTENT, .text = t, .n = n};
    return on_piece(s, &all, err);
}

static const char *finish_reason(const clb_choice *ch)
{
    const struct chat_choice *s = ch->own;
    if (ch->finish == CLB_FINISH_STOP && s && s->parser && clb_reply_parser_calls(s->parser))
        return "tool_calls";
    return clb_openai_finish(ch->finish);
}

static int choice_end(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err)
{
    struct chat_choice *s;
    CLB_TRY(choice_state(c, ch, &s, err));
    open_choice(c, ch, out);
    s->out = out;
    if (s->parser && ch->finish != CLB_FINISH_STOP)
        clb_reply_parser_cut(s->parser);
    if (s->parser)
        CLB_TRY(clb_reply_parser_finish(s->parser, err));
    close_call(s);
    if (!clb_completion_options(c)->stream)
        return s->reasoning.failed || s->calls.failed || s->arguments.failed ? CLB_NOMEM(err, "the reply") : COLIBRI_OK;
    chunk_begin(c, ch, out);
    chunk_end(c, ch, finish_reason(ch), false, out);
    return COLIBRI_OK;
}

/* ---- the end ---- */

static void stream_end(clb_completion *c, clb_json_buf *out)
{
    clb_chat_own *const own = clb_completion_own(c);
    if (clb_completion_options(c)->include_usage) {
        clb_jb_bytes(out, own->head.buf.data, own->head.buf.n);
        clb_jb_raw(out, "\"choices\":[],");
        clb_openai_usage(c, out);
        clb_jb_raw(out, ",");
        clb_openai_timings(c, out);
        clb_jb_raw(out, "}\n\n");
    }
    clb_jb_raw(out, "data: [DONE]\n\n");
}

static void put_choice(clb_completion *c, clb_choice *ch, clb_json_buf *out)
{
    const struct chat_choice *s = ch->own;
    clb_jb_raw(out, "{\"index\":");
    clb_jb_uint(out, ch->index);
    clb_jb_raw(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (s->calls.buf.n && !ch->text.buf.n)
        clb_jb_raw(out, "null");
    else
        clb_jb_string(out, ch->text.buf.n ? ch->text.buf.data : "", ch->text.buf.n);
    if (s->reasoning.buf.n) {
        clb_jb_raw(out, ",\"reasoning_content\":");
        clb_jb_string(out, s->reasoning.buf.data, s->reasoning.buf.n);
    }
    clb_jb_raw(out, ",\"refusal\":null");
    if (s->calls.buf.n) {
        clb_jb_raw(out, ",\"tool_calls\":[");
        clb_jb_bytes(out, s->calls.buf.data, s->calls.buf.n);
        clb_jb_raw(out, "]");
    }
    clb_jb_raw(out, "},\"logprobs\":");
    if (clb_completion_options(c)->n_logprobs >= 0) {
        clb_jb_raw(out, "{\"content\":[");
        clb_jb_bytes(out, LOGPROBS(ch)->buf.data, LOGPROBS(ch)->buf.n);
        clb_jb_raw(out, "],\"refusal\":null}");
    } else {
        clb_jb_raw(out, "null");
    }
    clb_jb_raw(out, ",\"finish_reason\":");
    clb_jb_text(out, finish_reason(ch));
    clb_jb_raw(out, "}");
    out->failed = out->failed || ch->text.failed || LOGPROBS(ch)->failed;
}

static int end(clb_completion *c, clb_json_buf *out, clb_error *err)
{
    (void)err;
    if (clb_completion_options(c)->stream) {
        stream_end(c, out);
        return COLIBRI_OK;
    }
    clb_openai_head(c, "chatcmpl-", "chat.completion", out);
    clb_jb_raw(out, "\"choices\":[");
    for (size_t i = 0; i < clb_completion_n_choices(c); i++) {
        if (i)
            clb_jb_raw(out, ",");
        put_choice(c, clb_completion_choice(c, i), out);
    }
    clb_jb_raw(out, "],");
    clb_openai_usage(c, out);
    clb_jb_raw(out, ",");
    clb_openai_timings(c, out);
    clb_jb_raw(out, "}");
    return COLIBRI_OK;
}

const clb_completion_shape clb_openai_chat_shape = {
    .prompt_param = "messages",
    .refuse = clb_openai_refuse,
    .error = clb_openai_stream_error,
    .progress = progress,
    .text = text,
    .choice_end = choice_end,
    .end = end,
    .free_choice = free_choice,
    .free_own = free_own,
};
