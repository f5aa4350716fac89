/* Errors, heads, usage and times in OpenAI's words. */
#include <stdio.h>
#include <string.h>

#include "serve/openai.h"

static void put_error(const clb_refusal *r, clb_json_buf *out)
{
    clb_jb_raw(out, "{\"error\":{\"message\":");
    clb_jb_text(out, r->message);
    clb_jb_raw(out, ",\"type\":");
    clb_jb_text(out, r->type);
    clb_jb_raw(out, ",\"param\":");
    if (r->param[0])
        clb_jb_text(out, r->param);
    else
        clb_jb_raw(out, "null");
    clb_jb_raw(out, ",\"code\":");
    if (r->code)
        clb_jb_text(out, r->code);
    else
        clb_jb_raw(out, "null");
    if (r->n_ctx) {
        clb_jb_raw(out, ",\"n_prompt_tokens\":");
        clb_jb_uint(out, r->n_prompt);
        clb_jb_raw(out, ",\"n_ctx\":");
        clb_jb_uint(out, r->n_ctx);
    }
    clb_jb_raw(out, "}}");
}

void clb_openai_refuse(clb_exchange *x, const clb_refusal *r)
{
    clb_json_buf out = {0};
    clb_refusal memory;
    r = clb_refusal_truly(r, &memory);
    put_error(r, &out);
    if (r->retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", r->retry_after_s);
        clb_exchange_set_header(x, "Retry-After", seconds);
    }
    static const char last_resort[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    if (out.failed)
        clb_reply(x, 503, "application/json", last_resort, sizeof last_resort - 1);
    else
        clb_reply(x, r->http, "application/json", out.buf.data, out.buf.n);
    clb_jb_free(&out);
}

void clb_openai_stream_error(clb_completion *c, const clb_refusal *r, clb_json_buf *out)
{
    (void)c;
    clb_jb_raw(out, "data: ");
    put_error(r, out);
    clb_jb_raw(out, "\n\n");
}

void clb_openai_head(const clb_completion *c, const char *prefix, const char *object, clb_json_buf *out)
{
    clb_jb_raw(out, "{\"id\":\"");
    clb_jb_raw(out, prefix);
    clb_jb_raw(out, clb_exchange_id(clb_completion_exchange(c)));
    clb_jb_raw(out, "\",\"object\":\"");
    clb_jb_raw(out, object);
    clb_jb_raw(out, "\",\"created\":");
    clb_jb_uint(out, clb_completion_created(c));
    clb_jb_raw(out, ",\"model\":");
    clb_jb_text(out, clb_completion_app(c)->model_name);
    clb_jb_raw(out, ",\"system_fingerprint\":\"colibri-" COLIBRI_VERSION "\",");
}

int clb_openai_feed(clb_completion *c, clb_reply_parser *parser, const char *text, size_t n,
                    const clb_token_info *tokens, size_t n_tokens, size_t *n_fed, clb_error *err)
{
    uint64_t n_thoughts = 0, n_waiting = 0; /* tokens that end within a character go with the next one */
    size_t at = 0;
    for (size_t i = 0; i <= n_tokens; i++) {
        size_t end = n; /* what follows the last token is the beginning of one that is not complete */
        if (i < n_tokens) {
            n_waiting++;
            const size_t upto = (size_t)tokens[i].text_offset + tokens[i].n_bytes;
            end = upto > *n_fed + n ? n : upto > *n_fed + at ? upto - *n_fed : at;
            if (end < n && ((unsigned char)text[end] & 0xc0) == 0x80)
                continue;
        }
        const bool before = clb_reply_parser_thinks(parser);
        if (end > at)
            CLB_TRY(clb_reply_parser_feed(parser, text + at, end - at, err));
        if (before || clb_reply_parser_thinks(parser))
            n_thoughts += n_waiting;
        n_waiting = 0;
        at = end;
    }
    *n_fed += n;
    clb_completion_add_thoughts(c, n_thoughts);
    return COLIBRI_OK;
}

void clb_openai_usage(const clb_completion *c, clb_json_buf *out)
{
    const clb_usage *u = clb_completion_usage(c);
    clb_jb_raw(out, "\"usage\":{\"prompt_tokens\":");
    clb_jb_uint(out, u->n_prompt);
    clb_jb_raw(out, ",\"completion_tokens\":");
    clb_jb_uint(out, u->n_generated);
    clb_jb_raw(out, ",\"total_tokens\":");
    clb_jb_uint(out, u->n_prompt + u->n_generated);
    clb_jb_raw(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    clb_jb_uint(out, u->n_reused);
    clb_jb_raw(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    clb_jb_uint(out, u->n_thoughts);
    clb_jb_raw(out, "}}");
}

static void put_rate(clb_json_buf *out, const char *what, uint64_t n, uint64_t ns)
{
    char text[160];
    const double ms = (double)ns / 1e6;
    snprintf(text, sizeof text, "\"%s_n\":%llu,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", what,
             (unsigned long long)n, what, ms, what, n ? ms / (double)n : 0.0, what,
             ms > 0 ? 1e3 * (double)n / ms : 0.0);
    clb_jb_raw(out, text);
}

void clb_openai_timings(const clb_completion *c, clb_json_buf *out)
{
    const clb_usage *u = clb_completion_usage(c);
    clb_jb_raw(out, "\"timings\":{\"cache_n\":");
    clb_jb_uint(out, u->n_reused);
    clb_jb_raw(out, ",");
    put_rate(out, "prompt", u->n_prompt - u->n_reused, u->prompt_ns);
    clb_jb_raw(out, ",");
    put_rate(out, "predicted", u->n_generated, u->decode_ns);
    char text[48];
    snprintf(text, sizeof text, ",\"queued_ms\":%.3f}", (double)u->queued_ns / 1e6);
    clb_jb_raw(out, text);
}

void clb_openai_progress(const clb_progress_info *p, clb_json_buf *out)
{
    clb_jb_raw(out, "\"prompt_progress\":{\"total\":");
    clb_jb_uint(out, p->n_prompt);
    clb_jb_raw(out, ",\"cache\":");
    clb_jb_uint(out, p->n_reused);
    clb_jb_raw(out, ",\"processed\":");
    clb_jb_uint(out, p->n_done);
    clb_jb_raw(out, ",\"time_ms\":");
    clb_jb_uint(out, p->ns / 1000000u);
    clb_jb_raw(out, "}");
}

const char *clb_openai_finish(enum clb_finish finish)
{
    return finish == CLB_FINISH_STOP ? "stop" : "length";
}

void clb_openai_chunk_end(clb_completion *c, const char *finish, clb_json_buf *out)
{
    const clb_text_options *const o = clb_completion_options(c);
    clb_jb_raw(out, ",\"finish_reason\":");
    if (finish)
        clb_jb_text(out, finish);
    else
        clb_jb_raw(out, "null");
    clb_jb_raw(out, "}]");
    if (o->include_usage)
        clb_jb_raw(out, ",\"usage\":null");
    const bool last = finish && clb_completion_done(c);
    if ((last && !o->include_usage) || (o->timings_per_token && !last)) {
        clb_jb_raw(out, ",");
        clb_openai_timings(c, out);
    }
}
