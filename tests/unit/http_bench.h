/* For tests of the HTTP layer: an application of a few routes that need no model, and a client of plain sockets. */
#ifndef CLB_TESTS_HTTP_BENCH_H
#define CLB_TESTS_HTTP_BENCH_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/http.h"
#include "support.h"

typedef struct test_app {
    pthread_mutex_t lock;
    clb_exchange *kept;
    atomic_int n_gone, n_done, n_gone_done, n_kept, n_handled;
    atomic_bool over; /* the writer of /flood has stopped */
    atomic_bool refuse;
    size_t n_log;
    char log[8192];
} test_app;

static test_app app;

static inline void on_gone(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static inline void handle_hello(void *a, clb_exchange *x)
{
    (void)a;
    atomic_fetch_add(&app.n_handled, 1);
    clb_reply(x, 200, "text/plain", "hello", 5);
}

static inline void handle_echo(void *a, clb_exchange *x)
{
    (void)a;
    const clb_str body = clb_exchange_body(x);
    const char *const wait = clb_exchange_query(x, "ms");
    atomic_fetch_add(&app.n_handled, 1);
    if (wait)
        usleep((useconds_t)atoi(wait) * 1000);
    clb_exchange_set_header(x, "X-Length", clb_exchange_header(x, "Content-Length") ? "given" : "none");
    clb_reply(x, 200, "application/octet-stream", body.p, body.n);
}

static inline void handle_json(void *a, clb_exchange *x)
{
    (void)a;
    clb_reply_json(x, 201, json_pack("{s:s, s:s}", "path", clb_exchange_path(x), "id", clb_exchange_id(x)));
}

/* Kept until the test answers. */
static inline void handle_keep(void *a, clb_exchange *x)
{
    (void)a;
    clb_exchange_on_gone(x, on_gone, &app.n_gone);
    pthread_mutex_lock(&app.lock);
    app.kept = x;
    pthread_mutex_unlock(&app.lock);
    atomic_fetch_add(&app.n_kept, 1);
}

static inline void *count_slowly(void *ctx)
{
    clb_exchange *const x = ctx;
    for (int i = 0; i < 20; i++) {
        char text[32];
        const int n = snprintf(text, sizeof text, "data: %d\n\n", i);
        clb_stream_write(x, text, (size_t)n);
        usleep(2000);
    }
    clb_stream_end(x);
    return NULL;
}

static inline void *flood(void *ctx)
{
    clb_exchange *const x = ctx;
    static const char block[16384] = {'x'};
    while (clb_stream_write(x, block, sizeof block))
        usleep(200);
    clb_stream_end(x);
    atomic_store(&app.over, true);
    return NULL;
}

static inline void in_thread(clb_exchange *x, void *(*fn)(void *))
{
    pthread_t t;
    clb_stream_begin(x, "text/event-stream");
    assert_int_equal(pthread_create(&t, NULL, fn, x), 0);
    pthread_detach(t);
}

static inline void handle_stream(void *a, clb_exchange *x)
{
    (void)a;
    in_thread(x, count_slowly);
}

static inline void handle_flood(void *a, clb_exchange *x)
{
    (void)a;
    clb_exchange_on_gone(x, on_gone, &app.n_gone);
    in_thread(x, flood);
}

static const clb_http_route routes[] = {
    {"GET", "/hello", handle_hello, CLB_ROUTE_PUBLIC | CLB_ROUTE_QUICK},
    {"GET", "/secret", handle_hello, 0},
    {"POST", "/echo", handle_echo, 0},
    {"GET", "/items/", handle_json, CLB_ROUTE_PREFIX},
    {"DELETE", "/items/", handle_json, CLB_ROUTE_PREFIX},
    {"POST", "/keep", handle_keep, 0},
    {"POST", "/keep-quick", handle_keep, CLB_ROUTE_QUICK},
    {"GET", "/stream", handle_stream, 0},
    {"GET", "/stream-quick", handle_stream, CLB_ROUTE_QUICK},
    {"GET", "/flood", handle_flood, 0},
    {0},
};

static inline bool admit(void *a, clb_exchange *x, const clb_http_route *route)
{
    (void)a;
    if (!atomic_load(&app.refuse) || (route->flags & CLB_ROUTE_EARLY))
        return true;
    clb_reply_refusal(x, 503, "unavailable_error", NULL, "not yet");
    return false;
}

static inline void on_done(void *a, const clb_http_done *done)
{
    (void)a;
    atomic_fetch_add(&app.n_done, 1);
    atomic_fetch_add(&app.n_gone_done, done->gone);
}

static inline void log_line(void *a, const char *line, size_t n)
{
    (void)a;
    pthread_mutex_lock(&app.lock);
    if (app.n_log + n + 2 < sizeof app.log) {
        memcpy(app.log + app.n_log, line, n);
        app.n_log += n;
        app.log[app.n_log++] = '\n';
        app.log[app.n_log] = '\0';
    }
    pthread_mutex_unlock(&app.lock);
}

/* ---- a client ---- */

static inline int connect_to(int fd, clb_http *h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(clb_http_port(h))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, (struct sockaddr *)&a, sizeof a);
}

static inline int dial(clb_http *h)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect_to(fd, h), 0);
    return fd;
}

static inline void put(int fd, const char *text)
{
    size_t n = strlen(text);
    while (n) {
        const ssize_t k = send(fd, text, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server has hung up; what it said before is read next */
        text += k;
        n -= (size_t)k;
    }
}

/* Until the end, or until `until` has come; at most 10 s. */
static inline char *take(int fd, const char *until)
{
    static char out[1 << 20];
    size_t n = 0;
    const uint64_t end = clb_now_ns() + 10000000000u;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        out[n] = '\0';
        if ((until && strstr(out, until)) || clb_now_ns() > end)
            return out;
        if (poll(&p, 1, 100) != 1)
            continue;
        const ssize_t k = recv(fd, out + n, sizeof out - 1 - n, 0);
        if (k <= 0)
            return out;
        n += (size_t)k;
    }
}

/* One request on a connection of its own. */
static inline char *ask(clb_http *h, const char *head, const char *body)
{
    char text[4096];
    const int fd = dial(h);
    if (body)
        snprintf(text, sizeof text, "%s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", head, strlen(body),
                 body);
    else
        snprintf(text, sizeof text, "%s\r\nConnection: close\r\n\r\n", head);
    put(fd, text);
    char *const out = take(fd, NULL);
    close(fd);
    return out;
}

#define HOST "\r\nHost: localhost"

static inline int status_of(const char *reply)
{
    return strncmp(reply, "HTTP/1.1 ", 9) ? 0 : atoi(reply + 9);
}

#define assert_status(reply, status)                                                                                   \
    do {                                                                                                               \
        if (status_of(reply) != (status))                                                                              \
            fail_msg("%d expected: %.400s", status, reply);                                                            \
    } while (0)
#define assert_has(text, part)                                                                                         \
    do {                                                                                                               \
        if (!test_contains(text, part))                                                                                \
            fail_msg("'%s' is missing: %.600s", part, text);                                                           \
    } while (0)

static inline void wait_for(const atomic_int *what, int value)
{
    for (int i = 0; i < 1000 && atomic_load(what) != value; i++)
        usleep(5000);
    assert_int_equal(atomic_load(what), value);
}

/* The body of a reply in chunks. */
static inline size_t dechunk(const char *reply, char *out)
{
    const char *p = strstr(reply, "\r\n\r\n");
    size_t n = 0;
    assert_non_null(p);
    for (p += 4;;) {
        char *end;
        const unsigned long size = strtoul(p, &end, 16);
        assert_true(end != p && !strncmp(end, "\r\n", 2));
        if (!size)
            break;
        memcpy(out + n, end + 2, size);
        n += size;
        p = end + 2 + size + 2;
    }
    out[n] = '\0';
    return n;
}

static inline clb_http_options options(void)
{
    static clb_log silent;
    return (clb_http_options){.host = "127.0.0.1",
                              .routes = routes,
                              .app = &app,
                              .log = &silent,
                              .max_body = 100000,
                              .max_stream_backlog = 65536,
                              .max_connections = 64,
                              .idle_timeout_s = 20,
                              .log_requests = true,
                              .admit = admit,
                              .on_done = on_done,
                              .log_line = log_line};
}

static inline clb_http *start(const clb_http_options *o)
{
    clb_error err;
    clb_http *h;
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memset(&app, 0, sizeof app);
    memcpy(&app.lock, &fresh, sizeof fresh);
    assert_ok(clb_http_start(o, &h, &err), &err);
    return h;
}

#endif
