/* Errors in OpenAI's shape, and bodies that must be JSON objects. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "serve/app.h"

#define DEPTH_MOST 100 /* of nested arrays and objects; our own calls go as deep as the text does */

/* Messages quote what a client sent, which may be cut within a character. */
static json_t *text_of(const char *text)
{
    char clean[1024];
    size_t n = 0;
    for (size_t left = strlen(text); left && n + 4 < sizeof clean;) {
        utf8proc_int32_t cp;
        const utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)left, &cp);
        if (len > 0)
            memcpy(clean + n, text, (size_t)len);
        else
            clean[n] = '?';
        n += len > 0 ? (size_t)len : 1;
        text += len > 0 ? len : 1;
        left -= len > 0 ? (size_t)len : 1;
    }
    return json_stringn(clean, n);
}

void clb_reply_error(clb_exchange *x, int http_status, const char *type, const char *param, const char *code,
                     const char *fmt, ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    json_t *const error =
        json_pack("{s:o, s:s, s:s?, s:s?}", "message", text_of(message), "type", type, "param", param, "code", code);
    /* "type" is for Anthropic's clients */
    clb_reply_json(x, http_status, json_pack("{s:s, s:o}", "type", "error", "error", error));
}

void clb_reply_status(clb_exchange *x, int status, const char *message)
{
    if (!message || !*message)
        message = clb_status_text(status);
    switch (status) {
    case COLIBRI_E_USAGE:
    case COLIBRI_E_UNSUPPORTED:
    case COLIBRI_E_FORMAT:
        clb_reply_error(x, 400, "invalid_request_error", NULL, NULL, "%s", message);
        break;
    case COLIBRI_E_NOT_FOUND:
        clb_reply_error(x, 404, "not_found_error", NULL, NULL, "%s", message);
        break;
    case COLIBRI_E_LIMIT:
        clb_reply_error(x, 400, "invalid_request_error", NULL, "context_length_exceeded", "%s", message);
        break;
    case COLIBRI_E_BUSY:
        clb_exchange_set_header(x, "Retry-After", "1");
        clb_reply_error(x, 429, "rate_limit_error", NULL, "queue_full", "%s", message);
        break;
    case COLIBRI_E_NOMEM:
        clb_exchange_set_header(x, "Retry-After", "1");
        clb_reply_error(x, 503, "unavailable_error", NULL, NULL, "%s", message);
        break;
    case COLIBRI_E_CANCELLED:
        clb_exchange_set_header(x, "Retry-After", "5");
        clb_reply_error(x, 503, "unavailable_error", NULL, "shutting_down", "%s", message);
        break;
    default:
        clb_reply_error(x, 500, "server_error", NULL, NULL, "%s", message);
    }
}

static bool too_deep(clb_str s)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        if (quoted) {
            i += c == '\\';
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > DEPTH_MOST)
                return true;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        }
    }
    return false;
}

json_t *clb_exchange_json(clb_exchange *x)
{
    const clb_str body = clb_exchange_body(x);
    json_error_t e;
    if (too_deep(body)) {
        clb_reply_error(x, 400, "invalid_request_error", NULL, "invalid_json",
                        "the body is nested more than %d levels deep", DEPTH_MOST);
        return NULL;
    }
    /* Names given twice would mean what the last one says to us and what the first one says to a proxy that checks
     * them. */
    json_t *const json = json_loadb(body.p, body.n, JSON_REJECT_DUPLICATES, &e);
    if (json && json_is_object(json))
        return json;
    if (json)
        clb_reply_error(x, 400, "invalid_request_error", NULL, "invalid_json", "the body must be a JSON object");
    else if (!body.n)
        clb_reply_error(x, 400, "invalid_request_error", NULL, "invalid_json",
                        "the body is empty, and must be a JSON object");
    else
        clb_reply_error(x, 400, "invalid_request_error", NULL, "invalid_json",
                        "the body is not JSON: %s (line %d, column %d)", e.text, e.line, e.column);
    json_decref(json);
    return NULL;
}
