/* Log probabilities in both of OpenAI's forms. */
#include <stdio.h>

#include "serve/openai.h"
#include "text/utf8.h"

/* A token's bytes, those of control tokens too. */
static void bytes_of(const clb_vocab *vocab, uint32_t token, clb_json_buf *bytes)
{
    bytes->buf.n = 0;
    if (token < clb_vocab_size(vocab) && clb_token_bytes(vocab, token, true, &bytes->buf, NULL))
        bytes->failed = true;
}

static bool is_utf8(const clb_buf *b)
{
    size_t len = 1;
    for (size_t at = 0; at < b->n && len; at += len)
        len = clb_utf8_decode(b->data + at, b->n - at, NULL);
    return len != 0;
}

/* The text of a token as a string: itself, or for parts of a character `prefix` and its bytes as \xNN. */
static void put_token(const clb_buf *bytes, const char *prefix, clb_json_buf *out)
{
    if (is_utf8(bytes)) {
        clb_jb_string(out, bytes->n ? bytes->data : "", bytes->n);
        return;
    }
    clb_jb_raw(out, "\"");
    clb_jb_raw(out, prefix);
    for (size_t i = 0; i < bytes->n; i++) {
        char hex[8];
        snprintf(hex, sizeof hex, "\\\\x%02x", (unsigned char)bytes->data[i]);
        clb_jb_raw(out, hex);
    }
    clb_jb_raw(out, "\"");
}

static void put_chat_token(const clb_vocab *vocab, const clb_logprob *p, clb_json_buf *bytes, clb_json_buf *out)
{
    bytes_of(vocab, p->token, bytes);
    clb_jb_raw(out, "{\"token\":");
    put_token(&bytes->buf, "", out);
    clb_jb_raw(out, ",\"logprob\":");
    clb_jb_real(out, (double)p->logprob);
    clb_jb_raw(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes->buf.n; i++) {
        if (i)
            clb_jb_raw(out, ",");
        clb_jb_uint(out, (unsigned char)bytes->buf.data[i]);
    }
    clb_jb_raw(out, "]");
}

void clb_openai_chat_logprobs(const clb_vocab *vocab, const clb_token_info *tokens, size_t n, clb_json_buf *out)
{
    clb_json_buf bytes = {0};
    for (size_t i = 0; i < n; i++) {
        if (out->buf.n)
            clb_jb_raw(out, ",");
        put_chat_token(vocab, &tokens[i].self, &bytes, out);
        clb_jb_raw(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < tokens[i].n_top; k++) {
            if (k)
                clb_jb_raw(out, ",");
            put_chat_token(vocab, &tokens[i].top[k], &bytes, out);
            clb_jb_raw(out, "}");
        }
        clb_jb_raw(out, "]}");
    }
    out->failed = out->failed || bytes.failed;
    clb_jb_free(&bytes);
}

static void put_pair(const clb_vocab *vocab, const clb_logprob *p, clb_json_buf *bytes, clb_json_buf *out)
{
    bytes_of(vocab, p->token, bytes);
    put_token(&bytes->buf, "bytes:", out);
    clb_jb_raw(out, ":");
    clb_jb_real(out, (double)p->logprob);
}

/* The best ones and the token itself, as OpenAI does; tokens of equal text would be the same key, so only the first is
 * named. */
static void put_top(const clb_vocab *vocab, const clb_token_info *t, clb_json_buf *bytes, clb_json_buf *out)
{
    bool self = false;
    clb_jb_raw(out, "{");
    for (uint32_t k = 0; k < t->n_top; k++) {
        if (k)
            clb_jb_raw(out, ",");
        put_pair(vocab, &t->top[k], bytes, out);
        self = self || t->top[k].token == t->self.token;
    }
    if (!self) {
        if (t->n_top)
            clb_jb_raw(out, ",");
        put_pair(vocab, &t->self, bytes, out);
    }
    clb_jb_raw(out, "}");
}

void clb_openai_legacy_logprobs(const clb_vocab *vocab, const clb_token_info *tokens, size_t n, const uint64_t *offset,
                                bool first_is_null, clb_json_buf out[4])
{
    clb_json_buf bytes = {0};
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 4 && out[0].buf.n; k++)
            clb_jb_raw(&out[k], ",");
        bytes_of(vocab, tokens[i].token, &bytes);
        put_token(&bytes.buf, "bytes:", &out[0]);
        clb_jb_real(&out[1], (double)tokens[i].self.logprob); /* not a number: null */
        if (tokens[i].n_top && !(first_is_null && i == 0))
            put_top(vocab, &tokens[i], &bytes, &out[2]);
        else
            clb_jb_raw(&out[2], "null");
        clb_jb_uint(&out[3], offset[i]);
    }
    out[0].failed = out[0].failed || bytes.failed;
    clb_jb_free(&bytes);
}
