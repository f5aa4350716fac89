/* One request as libmicrohttpd sees it: head, body, the handler's turn, the end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/http_impl.h"
#include "serve/json_memory.h"

#define DISCARD_MOST (64u << 20) /* of a body that is refused; after it the connection is cut */

clb_exchange *clb_exchange_hold(clb_exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

static void free_fields(clb_http_field *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(fields[i].name);
        free(fields[i].value);
    }
    free(fields);
}

static void free_body(clb_exchange *x)
{
    atomic_fetch_sub(&x->h->body_bytes, x->body.n);
    clb_buf_free(&x->body);
    x->body = (clb_buf){0};
}

void clb_exchange_release(clb_exchange *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    clb_http *const h = x->h;
    if (x->response)
        MHD_destroy_response(x->response);
    free_body(x);
    free_fields(x->fields, x->n_fields);
    free_fields(x->reply_headers, x->n_reply_headers);
    clb_buf_free(&x->backlog);
    clb_http_limits_release(x->limits);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->gone_over);
    free(x->method);
    free(x->path);
    free(x);
    clb_http_release(h);
}

static enum MHD_Result add_field(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
    clb_exchange *const x = ctx;
    clb_http_field *const grown = realloc(x->fields, (x->n_fields + 1) * sizeof *grown);
    if (!grown)
        return MHD_NO;
    x->fields = grown;
    const clb_http_field f = {kind, strdup(name), value ? strdup(value) : NULL};
    if (!f.name || (value && !f.value)) {
        free(f.name);
        free(f.value);
        return MHD_NO;
    }
    grown[x->n_fields++] = f;
    return MHD_YES;
}

static void make_id(clb_exchange *x)
{
    unsigned char bytes[(CLB_HTTP_ID - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        for (size_t i = 0; i < sizeof bytes; i++) /* unique will do */
            bytes[i] = (unsigned char)((i < 8 ? x->start_ns >> 8 * i : x->serial >> 8 * (i - 8)) & 0xff);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(x->id + 2 * i, 3, "%02x", bytes[i]);
}

/* libmicrohttpd frees head and connection while a handler may still look at them: everything is copied. */
static clb_exchange *create(clb_http *h, struct MHD_Connection *m, const char *method, const char *path,
                            const char *version)
{
    clb_exchange *const x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->gone_over, NULL);
    x->h = h;
    x->mhd = m;
    x->start_ns = clb_now_ns();
    x->conn = clb_http_conn_of(m);
    if (x->conn)
        memcpy(x->remote, x->conn->remote, sizeof x->remote);
    x->limits = clb_http_limits_hold(h);
    x->method = strdup(method);
    x->path = strdup(path);
    x->http10 = !strcmp(version, "HTTP/1.0");
    const int n_head = MHD_get_connection_values(m, MHD_HEADER_KIND, NULL, NULL),
              n_query = MHD_get_connection_values(m, MHD_GET_ARGUMENT_KIND, NULL, NULL);
    (void)MHD_get_connection_values(m, MHD_HEADER_KIND, add_field, x);
    (void)MHD_get_connection_values(m, MHD_GET_ARGUMENT_KIND, add_field, x);
    pthread_mutex_lock(&h->lock);
    atomic_fetch_add(&h->refs, 1);
    x->serial = ++h->next_serial;
    x->next = h->exchanges;
    if (x->next)
        x->next->prev = x;
    h->exchanges = x;
    h->n_exchanges++;
    x->listed = true;
    pthread_mutex_unlock(&h->lock);
    make_id(x);
    if (!x->method || !x->path || x->n_fields != (size_t)(n_head + n_query))
        x->close = true; /* out of memory: without its head it cannot be judged */
    return x;
}

static void unlist(clb_exchange *x)
{
    clb_http *const h = x->h;
    pthread_mutex_lock(&h->lock);
    if (x->prev)
        x->prev->next = x->next;
    else
        h->exchanges = x->next;
    if (x->next)
        x->next->prev = x->prev;
    x->listed = false;
    h->n_exchanges--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static int fd_of(struct MHD_Connection *m)
{
    const union MHD_ConnectionInfo *const info = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static enum MHD_Result begin(clb_http *h, struct MHD_Connection *m, const char *path, const char *method,
                             const char *version, void **context)
{
    if (atomic_load(&h->stopping))
        return MHD_NO;
    clb_json_memory_forget();
    clb_exchange *const x = create(h, m, method, path, version);
    *context = x;
    if (!x)
        return MHD_NO;
    atomic_fetch_add(&h->n_requests, 1);
    clb_exchange_hold(x); /* the handler's, which judging ends if it answers */
    if (x->close) { /* see create */
        if (x->path && x->method)
            clb_reply_refusal(x, 503, "unavailable_error", NULL, "out of memory: the head of a request");
        return x->answered ? clb_exchange_go_on(x) : MHD_NO;
    }
    (void)MHD_set_connection_option(m, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)x->limits->idle_s);
    clb_conn_phase(h, x->conn, CLB_CONN_BODY, 0);
    clb_conn_set_exchange(h, x->conn, x);
    clb_http_judge(x);
    bool chunked;
    const char *const expect = clb_exchange_header(x, "Expect");
    const uint64_t length = clb_http_content_length(x, &chunked);
    /* A client that sends its body first and reads the answer then would see a broken connection only: the body is read
     * to its end, unless the client waits for our word, or it is huge. */
    if (x->answered && (x->cut || (expect && !strcasecmp(expect, "100-continue")) || length > DISCARD_MOST))
        return clb_exchange_go_on(x);
    return MHD_YES;
}

/* The refusal of a body without end: by hand, because libmicrohttpd takes replies at its beginning and at its end only.
 */
static void cut(clb_exchange *x)
{
    static const char text[] =
        "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        "{\"error\":{\"message\":\"the request's body is too large\",\"type\":\"invalid_request_error\","
        "\"param\":null,\"code\":\"request_too_large\"}}";
    (void)!send(fd_of(x->mhd), text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static enum MHD_Result more_body(clb_exchange *x, const char *data, size_t n)
{
    clb_http *const h = x->h;
    x->bytes_in += n;
    clb_conn_phase(h, x->conn, CLB_CONN_BODY, x->bytes_in);
    if (x->discard) {
        if (x->bytes_in <= DISCARD_MOST)
            return MHD_YES;
        cut(x);
        return MHD_NO;
    }
    const size_t most = x->limits->max_body, budget = most < (size_t)16 << 20 ? (size_t)64 << 20 : 4 * most;
    int refused = 0;
    if (n > most - x->body.n)
        refused = 413;
    else if (atomic_fetch_add(&h->body_bytes, n) + n > budget)
        refused = 503;
    if (!refused && clb_buf_append(&x->body, data, n, NULL)) {
        atomic_fetch_sub(&h->body_bytes, n);
        return MHD_NO;
    }
    if (!refused)
        return MHD_YES;
    if (refused == 503)
        atomic_fetch_sub(&h->body_bytes, n);
    free_body(x);
    x->discard = true;
    atomic_fetch_add(&h->n_refused, 1);
    if (refused == 413)
        clb_reply_refusal(x, 413, "invalid_request_error", "request_too_large",
                          "the request's body is too large (--max-body)");
    else
        clb_reply_refusal(x, 503, "unavailable_error", "too_many_requests",
                          "too many large requests at once: try again later");
    return MHD_YES;
}

void clb_exchange_handle(clb_exchange *x)
{
    clb_http *const h = x->h;
    clb_exchange_hold(x); /* the handler may end it */
    clb_json_memory_forget();
    if (!h->admit || h->admit(h->app, x, x->route))
        x->route->handle(h->app, x);
    free_body(x); /* not for as long as a text is generated */
    clb_exchange_release(x);
}

static enum MHD_Result dispatch(clb_exchange *x)
{
    x->dispatched = true;
    if (x->answered) /* refused */
        return clb_exchange_go_on(x);
    /* From here on the end of the connection is the end of the request, also one that was seen before. */
    clb_conn_phase(x->h, x->conn, CLB_CONN_WORK, 0);
    if (x->route->flags & CLB_ROUTE_QUICK) {
        clb_exchange_handle(x); /* may keep it, or end it: our own hold lives on */
        const enum MHD_Result ok = clb_exchange_go_on(x);
        clb_http_watch_again(x->h, x->conn);
        return ok;
    }
    pthread_mutex_lock(&x->lock);
    MHD_suspend_connection(x->mhd);
    x->suspended = true;
    pthread_mutex_unlock(&x->lock);
    clb_http_watch_again(x->h, x->conn);
    clb_http_work_add(x);
    return MHD_YES;
}

enum MHD_Result clb_http_on_request(void *h, struct MHD_Connection *m, const char *url, const char *method,
                                    const char *version, const char *upload, size_t *upload_size, void **context)
{
    clb_exchange *const x = *context;
    if (!x)
        return begin(h, m, url, method, version, context);
    if (*upload_size) {
        const size_t n = *upload_size;
        *upload_size = 0;
        return more_body(x, upload, n);
    }
    if (!x->dispatched)
        return dispatch(x);
    return clb_exchange_go_on(x);
}

void clb_http_on_completed(void *ctx, struct MHD_Connection *m, void **context, enum MHD_RequestTerminationCode why)
{
    (void)ctx, (void)m;
    clb_exchange *const x = *context;
    *context = NULL;
    if (!x)
        return;
    clb_http *const h = x->h;
    clb_conn_set_exchange(h, x->conn, NULL);
    pthread_mutex_lock(&x->lock);
    /* A client that closes after the last event, before the end of the chunks, has had all of it. */
    const bool all_sent = x->streaming && x->ended && !x->gone && x->backlog_at == x->backlog.n;
    const bool complete = x->queued && (why == MHD_REQUEST_TERMINATED_COMPLETED_OK || all_sent);
    struct MHD_Response *const unsent = x->response; /* a stream's holds us */
    x->response = NULL;
    const int status = x->queued ? x->status : 0;
    const uint64_t out = x->streaming ? x->bytes_out : complete ? x->reply_bytes : 0;
    x->bytes_out = out;
    x->mhd = NULL;
    x->suspended = false;
    pthread_mutex_unlock(&x->lock);
    if (unsent)
        MHD_destroy_response(unsent);
    clb_exchange_mark_gone(x);
    if (!x->dispatched && !x->answered)
        clb_exchange_release(x); /* the handler's part, which never was */
    atomic_fetch_add(&h->n_disconnects, !complete);
    atomic_fetch_add(&h->bytes_out, out);
    const uint64_t ns = clb_now_ns() - x->start_ns;
    clb_conn_phase(h, x->conn, CLB_CONN_HEAD, 0);
    x->conn = NULL;
    if (x->limits->log_requests)
        clb_http_log_done(x, status, !complete, ns);
    if (h->on_done)
        h->on_done(h->app, &(clb_http_done){x->route, status, !complete, ns, x->bytes_in, out});
    unlist(x);
    clb_exchange_release(x);
}
