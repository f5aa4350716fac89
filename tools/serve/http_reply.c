/* Replies and streams. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "serve/http_impl.h"
#include "serve/json_memory.h"

#define BLOCK (16u << 10)

const char *clb_exchange_id(const clb_exchange *x)
{
    return x->id;
}

const char *clb_exchange_method(const clb_exchange *x)
{
    return x->method;
}

const char *clb_exchange_path(const clb_exchange *x)
{
    return x->path;
}

static const char *find_field(const clb_exchange *x, enum MHD_ValueKind kind, const char *name)
{
    for (size_t i = 0; i < x->n_fields; i++) {
        const clb_http_field *const f = &x->fields[i];
        if (f->kind == kind && !(kind == MHD_HEADER_KIND ? strcasecmp(f->name, name) : strcmp(f->name, name)))
            return f->value ? f->value : "";
    }
    return NULL;
}

const char *clb_exchange_query(clb_exchange *x, const char *name)
{
    return find_field(x, MHD_GET_ARGUMENT_KIND, name);
}

const char *clb_exchange_header(clb_exchange *x, const char *name)
{
    return find_field(x, MHD_HEADER_KIND, name);
}

clb_str clb_exchange_body(const clb_exchange *x)
{
    return (clb_str){x->body.data ? x->body.data : "", x->body.n};
}

void clb_exchange_resume(clb_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

/* libmicrohttpd's thread, with the exchange locked. */
static void suspend(clb_exchange *x)
{
    MHD_suspend_connection(x->mhd);
    x->suspended = true;
}

enum MHD_Result clb_exchange_go_on(clb_exchange *x)
{
    struct MHD_Response *r = NULL;
    enum MHD_Result ok = MHD_YES;
    pthread_mutex_lock(&x->lock);
    if (x->gone || atomic_load(&x->h->stopping)) {
        ok = MHD_NO;
    } else if (x->response) {
        r = x->response;
        x->response = NULL; /* libmicrohttpd has it from here on: a stream's response holds us */
        x->queued = true;
    } else if (!x->queued) {
        if (x->answered)
            ok = MHD_NO; /* there was no memory for the reply */
        else
            suspend(x);
    }
    const int status = x->status;
    const bool streaming = x->streaming;
    pthread_mutex_unlock(&x->lock);
    if (r) {
        clb_conn_phase(x->h, x->conn, streaming ? CLB_CONN_WORK : CLB_CONN_REPLY, x->reply_bytes);
        ok = MHD_queue_response(x->mhd, (unsigned)status, r);
        MHD_destroy_response(r);
    }
    return ok;
}

void clb_exchange_set_header(clb_exchange *x, const char *name, const char *value)
{
    char *const copy = strdup(value);
    for (size_t i = 0; i < x->n_reply_headers; i++) {
        if (x->reply_headers[i].name && !strcasecmp(x->reply_headers[i].name, name)) {
            free(x->reply_headers[i].value);
            x->reply_headers[i].value = copy;
            return;
        }
    }
    clb_http_field *const grown = realloc(x->reply_headers, (x->n_reply_headers + 1) * sizeof *grown);
    if (!grown) {
        free(copy);
        return;
    }
    x->reply_headers = grown;
    grown[x->n_reply_headers++] = (clb_http_field){MHD_HEADER_KIND, strdup(name), copy};
}

static void set_headers(clb_exchange *x, struct MHD_Response *r, const char *content_type)
{
    (void)MHD_add_response_header(r, "Server", "colibri/" COLIBRI_VERSION);
    (void)MHD_add_response_header(r, "X-Request-Id", x->id);
    if (content_type)
        (void)MHD_add_response_header(r, "Content-Type", content_type);
    if (x->limits->n_origins)
        (void)MHD_add_response_header(r, "Vary", "Origin");
    if (x->cors) {
        (void)MHD_add_response_header(r, "Access-Control-Allow-Origin", x->cors);
        (void)MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    }
    for (size_t i = 0; i < x->n_reply_headers; i++)
        if (x->reply_headers[i].name && x->reply_headers[i].value)
            (void)MHD_add_response_header(r, x->reply_headers[i].name, x->reply_headers[i].value);
    if (x->close)
        (void)MHD_add_response_header(r, "Connection", "close");
}

/* The handler is done with it: whatever the client does from here on is not its business. */
static void finish(clb_exchange *x)
{
    x->answered = true;
    while (x->in_gone && !pthread_equal(x->gone_thread, pthread_self()))
        pthread_cond_wait(&x->gone_over, &x->lock);
    clb_exchange_resume(x);
    pthread_mutex_unlock(&x->lock);
    clb_exchange_release(x);
}

void clb_reply(clb_exchange *x, int status, const char *content_type, const void *data, size_t n)
{
    /* libmicrohttpd's copy needs a pointer that it does not write to; its type is from before const. */
    struct MHD_Response *const r = MHD_create_response_from_buffer(n, (void *)(uintptr_t)data, MHD_RESPMEM_MUST_COPY);
    if (r)
        set_headers(x, r, content_type);
    pthread_mutex_lock(&x->lock);
    x->status = status;
    x->response = r;
    x->reply_bytes = n;
    finish(x);
}

void clb_reply_json(clb_exchange *x, int status, json_t *body)
{
    char *const text = body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    static const char failed[] = "{\"type\":\"error\",\"error\":{\"message\":\"out of memory\",\"type\":"
                                 "\"unavailable_error\",\"param\":null,\"code\":null}}";
    /* Without memory a reply may lack a part, and a request may have been refused as no JSON, or no UTF-8. */
    if (text && (status >= 500 || !clb_json_memory_out())) {
        clb_reply(x, status, "application/json", text, strlen(text));
    } else {
        clb_exchange_set_header(x, "Retry-After", "1");
        clb_reply(x, 503, "application/json", failed, sizeof failed - 1);
    }
    free(text);
    json_decref(body);
}

/* A path or a header in the message may be anything; JSON is UTF-8. */
static json_t *ascii(const char *text)
{
    char clean[1024];
    size_t n = 0;
    for (; *text && n + 1 < sizeof clean; text++)
        clean[n++] = (char)((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f ? '?' : *text);
    return json_stringn(clean, n);
}

void clb_reply_refusal(clb_exchange *x, int status, const char *type, const char *code, const char *message)
{
    json_t *const error =
        json_pack("{s:o, s:s, s:n, s:s?}", "message", ascii(message), "type", type, "param", "code", code);
    json_t *const body = json_object();
    if (!strncmp(x->path, "/v1/messages", 12))
        json_object_set_new(body, "type", json_string("error"));
    json_object_set_new(body, "error", error);
    clb_reply_json(x, status, body);
}

/* ---- streams ---- */

static ssize_t next_bytes(void *ctx, uint64_t position, char *out, size_t most)
{
    (void)position;
    clb_exchange *const x = ctx;
    pthread_mutex_lock(&x->lock);
    size_t n = x->backlog.n - x->backlog_at;
    ssize_t answer;
    const uint64_t patience = (x->limits->idle_s + (uint64_t)n / CLB_HTTP_BYTES_PER_S) * 1000000000u;
    if (x->gone || atomic_load(&x->h->stopping) || (x->ended && n && clb_now_ns() - x->ended_ns > patience)) {
        answer = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n) {
        n = n < most ? n : most;
        memcpy(out, x->backlog.data + x->backlog_at, n);
        x->backlog_at += n;
        x->bytes_out += n;
        if (x->backlog_at == x->backlog.n)
            x->backlog.n = x->backlog_at = 0;
        answer = (ssize_t)n;
    } else if (x->ended) {
        answer = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(x);
        answer = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return answer;
}

static void stream_freed(void *ctx)
{
    clb_exchange_release(ctx);
}

void clb_stream_begin(clb_exchange *x, const char *content_type)
{
    clb_exchange_hold(x);
    if (!strncmp(content_type, "text/event-stream", 17)) {
        clb_exchange_set_header(x, "Cache-Control", "no-cache");
        clb_exchange_set_header(x, "X-Accel-Buffering", "no"); /* nginx would collect events */
    }
    struct MHD_Response *const r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, next_bytes, x, stream_freed);
    if (!r)
        clb_exchange_release(x);
    else
        set_headers(x, r, content_type);
    pthread_mutex_lock(&x->lock);
    x->streaming = true;
    x->status = 200;
    x->response = r;
    if (!x->mhd && r) { /* nobody will send it, and it would hold us */
        x->response = NULL;
        pthread_mutex_unlock(&x->lock);
        MHD_destroy_response(r);
        return;
    }
    if (!r) {
        x->gone = true; /* no memory */
        clb_http_gone_later(x);
    }
    clb_exchange_resume(x);
    pthread_mutex_unlock(&x->lock);
}

/* False: it would be more than the client may lag behind, or there is no memory for it. */
static bool append(clb_exchange *x, const void *data, size_t n)
{
    const size_t waiting = x->backlog.n - x->backlog_at;
    if (n > x->limits->max_backlog || waiting > x->limits->max_backlog - n)
        return false;
    if (x->backlog_at > waiting) { /* less to move than has been sent since */
        memmove(x->backlog.data, x->backlog.data + x->backlog_at, waiting);
        x->backlog.n = waiting;
        x->backlog_at = 0;
    }
    return !clb_buf_append(&x->backlog, data, n, NULL);
}

bool clb_stream_write(clb_exchange *x, const void *data, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone && !x->ended && !append(x, data, n)) {
        x->gone = x->slow = true;
        atomic_fetch_add(&x->h->n_slow, 1);
        clb_http_gone_later(x);
    }
    const bool ok = !x->gone;
    clb_exchange_resume(x);
    pthread_mutex_unlock(&x->lock);
    return ok;
}

void clb_stream_end(clb_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    x->ended_ns = clb_now_ns();
    finish(x);
}

/* ---- clients that went away ---- */

void clb_exchange_on_gone(clb_exchange *x, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&x->lock);
    x->on_gone = fn;
    x->on_gone_ctx = ctx;
    if (x->gone)
        clb_http_gone_later(x);
    pthread_mutex_unlock(&x->lock);
}

bool clb_exchange_gone(clb_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    const bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

void clb_exchange_mark_gone(clb_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    void (*const fn)(void *) = x->answered || x->gone_called ? NULL : x->on_gone;
    if (!x->answered)
        x->gone = true;
    if (fn) {
        x->gone_called = x->in_gone = true;
        x->gone_thread = pthread_self();
    }
    if (x->gone)
        clb_exchange_resume(x); /* so that the connection is closed */
    pthread_mutex_unlock(&x->lock);
    if (!fn)
        return;
    fn(x->on_gone_ctx);
    pthread_mutex_lock(&x->lock);
    x->in_gone = false;
    pthread_cond_broadcast(&x->gone_over);
    pthread_mutex_unlock(&x->lock);
}
