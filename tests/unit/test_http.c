/* The HTTP layer with routes of its own: limits, keys, hosts, streams, clients that vanish. No model is involved. */
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

static void on_gone(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void handle_hello(void *a, clb_exchange *x)
{
    (void)a;
    atomic_fetch_add(&app.n_handled, 1);
    clb_reply(x, 200, "text/plain", "hello", 5);
}

static void handle_echo(void *a, clb_exchange *x)
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

static void handle_json(void *a, clb_exchange *x)
{
    (void)a;
    clb_reply_json(x, 201, json_pack("{s:s, s:s}", "path", clb_exchange_path(x), "id", clb_exchange_id(x)));
}

/* Kept until the test answers. */
static void handle_keep(void *a, clb_exchange *x)
{
    (void)a;
    clb_exchange_on_gone(x, on_gone, &app.n_gone);
    pthread_mutex_lock(&app.lock);
    app.kept = x;
    pthread_mutex_unlock(&app.lock);
    atomic_fetch_add(&app.n_kept, 1);
}

static void *count_slowly(void *ctx)
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

static void *flood(void *ctx)
{
    clb_exchange *const x = ctx;
    static const char block[16384] = {'x'};
    while (clb_stream_write(x, block, sizeof block))
        usleep(200);
    clb_stream_end(x);
    atomic_store(&app.over, true);
    return NULL;
}

static void in_thread(clb_exchange *x, void *(*fn)(void *))
{
    pthread_t t;
    clb_stream_begin(x, "text/event-stream");
    assert_int_equal(pthread_create(&t, NULL, fn, x), 0);
    pthread_detach(t);
}

static void handle_stream(void *a, clb_exchange *x)
{
    (void)a;
    in_thread(x, count_slowly);
}

static void handle_flood(void *a, clb_exchange *x)
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

static bool admit(void *a, clb_exchange *x, const clb_http_route *route)
{
    (void)a;
    if (!atomic_load(&app.refuse) || (route->flags & CLB_ROUTE_EARLY))
        return true;
    clb_reply_refusal(x, 503, "unavailable_error", NULL, "not yet");
    return false;
}

static void on_done(void *a, const clb_http_done *done)
{
    (void)a;
    atomic_fetch_add(&app.n_done, 1);
    atomic_fetch_add(&app.n_gone_done, done->gone);
}

static void log_line(void *a, const char *line, size_t n)
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

static int dial(clb_http *h)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(clb_http_port(h))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void put(int fd, const char *text)
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
static char *take(int fd, const char *until)
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
static char *ask(clb_http *h, const char *head, const char *body)
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

static int status_of(const char *reply)
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

static void wait_for(const atomic_int *what, int value)
{
    for (int i = 0; i < 1000 && atomic_load(what) != value; i++)
        usleep(5000);
    assert_int_equal(atomic_load(what), value);
}

/* The body of a reply in chunks. */
static size_t dechunk(const char *reply, char *out)
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

static clb_http_options options(void)
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

static clb_http *start(const clb_http_options *o)
{
    clb_error err;
    clb_http *h;
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memset(&app, 0, sizeof app);
    memcpy(&app.lock, &fresh, sizeof fresh);
    assert_ok(clb_http_start(o, &h, &err), &err);
    return h;
}

/* ---- tests ---- */

static void test_replies(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    char *r = ask(h, "GET /hello HTTP/1.1" HOST, NULL);
    assert_status(r, 200);
    assert_has(r, "\r\n\r\nhello");
    assert_has(r, "Content-Type: text/plain");
    assert_has(r, "X-Request-Id: ");
    r = ask(h, "POST /echo HTTP/1.1" HOST, "what was sent");
    assert_status(r, 200);
    assert_has(r, "\r\n\r\nwhat was sent");
    assert_has(r, "X-Length: given");
    r = ask(h, "GET /items/a%20b?x=1 HTTP/1.1" HOST, NULL);
    assert_status(r, 201);
    assert_has(r, "\"path\":\"/items/a b\"");
    /* HEAD: the headers of GET, and no body */
    r = ask(h, "HEAD /hello HTTP/1.1" HOST, NULL);
    assert_status(r, 200);
    assert_has(r, "Content-Length: 5");
    assert_string_equal(strstr(r, "\r\n\r\n"), "\r\n\r\n");
    r = ask(h, "GET /none HTTP/1.1" HOST, NULL);
    assert_status(r, 404);
    assert_has(r, "\"code\":\"unknown_url\"");
    r = ask(h, "GET /v1/messages/none HTTP/1.1" HOST, NULL);
    assert_has(r, "{\"type\":\"error\",\"error\":{");
    r = ask(h, "PUT /items/1 HTTP/1.1" HOST, "x");
    assert_status(r, 405);
    assert_has(r, "Allow: GET, HEAD, DELETE, OPTIONS");
    r = ask(h, "POST /hello HTTP/1.1" HOST, "{}");
    assert_status(r, 405);
    r = ask(h, "OPTIONS /echo HTTP/1.1" HOST, NULL);
    assert_status(r, 204);
    assert_has(r, "Allow: POST, OPTIONS");
    assert_false(test_contains(r, "Access-Control"));
    clb_http_stats s;
    clb_http_get_stats(h, &s);
    assert_int_equal(s.requests, 9);
    assert_int_equal(s.refused, 4);
    clb_http_stop(h, 1000);
    assert_int_equal(atomic_load(&app.n_done), 9);
    assert_int_equal(atomic_load(&app.n_gone_done), 0);
    assert_has(app.log, "\"method\":\"POST\",\"path\":\"/echo\",\"status\":200,\"bytes_in\":13,\"bytes_out\":13,");
    assert_false(test_contains(app.log, "what was sent"));
}

static void test_keep_alive(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    const int fd = dial(h);
    for (int i = 0; i < 20; i++) {
        put(fd, i % 2 ? "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
                      : "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
        assert_status(take(fd, "\r\n\r\nhello"), 200);
    }
    /* three at once, one after the other */
    put(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
            "POST /echo?ms=20 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n2"
            "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nend");
    const char *const r = take(fd, "\r\n\r\nend"), *const one = strstr(r, "\r\n\r\n1"),
                      *const two = strstr(r, "\r\n\r\n2");
    assert_true(one && two && one < two);
    clb_http_stats s;
    clb_http_get_stats(h, &s);
    assert_int_equal(s.connections, 1);
    close(fd);
    clb_http_stop(h, 1000);
}

static void test_limits_of_bodies(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    static char big[200002];
    memset(big, 'b', sizeof big - 2);
    char head[256];
    /* exactly the limit, and one byte more */
    for (int more = 0; more < 2; more++) {
        const int fd = dial(h);
        snprintf(head, sizeof head, "POST /echo HTTP/1.1" HOST "\r\nConnection: close\r\nContent-Length: %d\r\n\r\n",
                 100000 + more);
        put(fd, head);
        big[100000 + more] = '\0';
        put(fd, big);
        big[100000 + more] = 'b';
        char *const r = take(fd, NULL);
        assert_status(r, more ? 413 : 200);
        close(fd);
    }
    /* the client asks first: no byte of the body is wanted */
    int fd = dial(h);
    put(fd, "POST /echo HTTP/1.1" HOST "\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n");
    char *r = take(fd, "\r\n\r\n{");
    assert_status(r, 413);
    close(fd);
    fd = dial(h);
    put(fd, "POST /echo HTTP/1.1" HOST "\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n");
    r = take(fd, "\r\n\r\n");
    assert_has(r, "100 Continue");
    put(fd, "ok");
    r = take(fd, NULL);
    assert_has(r, "\r\n\r\nok");
    close(fd);
    /* in chunks, where the size is not known before */
    for (int much = 0; much < 2; much++) {
        fd = dial(h);
        put(fd, "POST /echo HTTP/1.1" HOST "\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (int i = 0; i < (much ? 12 : 3); i++) {
            char chunk[10100];
            snprintf(chunk, sizeof chunk, "2710\r\n%.10000s\r\n", big);
            put(fd, chunk);
        }
        put(fd, "0\r\n\r\n");
        r = take(fd, NULL);
        assert_status(r, much ? 413 : 200);
        assert_has(r, much ? "request_too_large" : "Content-Length: 30000");
        close(fd);
    }
    r = ask(h, "POST /echo HTTP/1.1" HOST "\r\nContent-Encoding: gzip", "x");
    assert_status(r, 415);
    /* heads */
    static char many[60000];
    size_t n = (size_t)snprintf(many, sizeof many, "GET /hello HTTP/1.1" HOST "\r\n");
    while (n < 50000)
        n += (size_t)snprintf(many + n, sizeof many - n, "X-Header-%zu: 0123456789\r\n", n);
    fd = dial(h);
    put(fd, many);
    r = take(fd, NULL);
    assert_status(r, 431);
    close(fd);
    fd = dial(h);
    put(fd, "GET /");
    memset(many, 'u', 50000);
    many[50000] = '\0';
    put(fd, many);
    put(fd, " HTTP/1.1\r\n\r\n");
    r = take(fd, NULL);
    assert_status(r, 414);
    close(fd);
    clb_http_stop(h, 1000);
}

static void test_malformed(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    static const char *const bad[] = {
        "\r\n\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET /hello\r\n\r\n",
        "GET /hello HTTP/9.9\r\n\r\n",
        "GET /hello HTTP/1.1\r\n\r\n", /* no Host */
        "GET /hello HTTP/1.1\r\nHost localhost\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n",
        "\x16\x03\x01\x02\x01\x01\xff\xfe\r\n\r\n", /* TLS */
        "GET /hello HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: localhost:80x\r\nConnection: close\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int fd = dial(h);
        put(fd, bad[i]);
        shutdown(fd, SHUT_WR);
        const int status = status_of(take(fd, NULL));
        if (status && (status < 400 || status > 505))
            fail_msg("'%s' was answered with %d", bad[i], status);
        close(fd);
    }
    test_rand rng = {7};
    for (int round = 0; round < 300; round++) {
        char text[] = "POST /echo?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX: y\r\n\r\nhello";
        for (int k = 0; k < 3; k++)
            text[test_rand_below(&rng, sizeof text - 1)] = (char)test_rand_below(&rng, 256);
        const int fd = dial(h);
        (void)send(fd, text, 1 + test_rand_below(&rng, sizeof text - 1), MSG_NOSIGNAL);
        if (round % 3)
            shutdown(fd, SHUT_WR);
        close(fd);
    }
    assert_status(ask(h, "GET /hello HTTP/1.1" HOST, NULL), 200);
    clb_http_stop(h, 300);
}

static void test_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"sesame", "open-1234567890"};
    clb_http_options o = options();
    o.api_keys = keys;
    o.n_api_keys = 2;
    clb_http *const h = start(&o);
    static const struct {
        const char *header;
        int status;
    } cases[] = {
        {"", 401},
        {"\r\nAuthorization: Bearer sesame", 200},
        {"\r\nauthorization: bearer open-1234567890", 200},
        {"\r\nX-Api-Key: sesame", 200},
        {"\r\nAuthorization: Bearer none\r\nX-Api-Key: sesame", 200},
        {"\r\nAuthorization: Bearer sesam", 401},
        {"\r\nAuthorization: Bearer sesamesesame", 401},
        {"\r\nAuthorization: Bearer sesame ", 200}, /* HTTP: blanks around a value are no part of it */
        {"\r\nAuthorization: Bearer ", 401},
        {"\r\nAuthorization: Basic sesame", 401},
        {"\r\nX-Api-Key: ", 401},
        {"\r\nX-Api-Key: SESAME", 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char head[256];
        snprintf(head, sizeof head, "GET /secret HTTP/1.1" HOST "%s", cases[i].header);
        char *const r = ask(h, head, NULL);
        if (status_of(r) != cases[i].status)
            fail_msg("'%s': %.200s", cases[i].header, r);
        if (cases[i].status == 401)
            assert_has(r, "\"code\":\"invalid_api_key\"");
    }
    assert_status(ask(h, "GET /hello HTTP/1.1" HOST, NULL), 200);
    assert_status(ask(h, "OPTIONS /secret HTTP/1.1" HOST, NULL), 204);
    assert_status(ask(h, "POST /echo HTTP/1.1" HOST, "body"), 401);
    /* other keys from now on */
    static const char *const fresh[] = {"new"};
    clb_error err;
    o.api_keys = fresh;
    o.n_api_keys = 1;
    assert_ok(clb_http_reconfigure(h, &o, &err), &err);
    assert_status(ask(h, "GET /secret HTTP/1.1" HOST "\r\nX-Api-Key: sesame", NULL), 401);
    assert_status(ask(h, "GET /secret HTTP/1.1" HOST "\r\nX-Api-Key: new", NULL), 200);
    clb_http_stop(h, 1000);
    assert_false(test_contains(app.log, "sesame"));
}

static void test_hosts_and_origins(void **state)
{
    (void)state;
    static const char *const hosts[] = {"models.example.org", ".lan"};
    static const char *const origins[] = {"https://chat.example.org"};
    clb_http_options o = options();
    o.allowed_hosts = hosts;
    o.n_allowed_hosts = 2;
    o.cors_origins = origins;
    o.n_cors_origins = 1;
    clb_http *const h = start(&o);
    static const struct {
        const char *host;
        int status;
    } cases[] = {{"localhost", 200},
                 {"LOCALHOST:8080", 200},
                 {"localhost.", 200},
                 {"127.0.0.1:1", 200},
                 {"127.9.9.9", 200},
                 {"[::1]:8080", 200},
                 {"models.example.org", 200},
                 {"a.lan:80", 200},
                 {"lan", 403},
                 {"evil.example.org", 403},
                 {"localhost.evil.org", 403},
                 {"127.0.0.1.evil.org", 403},
                 {"192.168.1.2", 403},
                 {"[::2]", 403},
                 {"[::1", 403},
                 {"localhost:80:80", 403},
                 {"localhost@evil.org", 403}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char head[256];
        snprintf(head, sizeof head, "GET /hello HTTP/1.1\r\nHost: %s", cases[i].host);
        const int status = status_of(ask(h, head, NULL));
        if (status != cases[i].status)
            fail_msg("host '%s': %d", cases[i].host, status);
    }
    /* a page of ours, one that is allowed, and any other */
    static const char post[] = "POST /echo HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: ";
    static const struct {
        const char *origin;
        int status;
        bool cors;
    } pages[] = {{"http://localhost:8080", 200, false},
                 {"https://chat.example.org", 200, true},
                 {"http://localhost:8081", 403, false},
                 {"http://localhost", 403, false},
                 {"https://evil.example.org", 403, false},
                 {"null", 403, false},
                 {"https://chat.example.org.evil.org", 403, false}};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char head[256];
        snprintf(head, sizeof head, "%s%s", post, pages[i].origin);
        char *const r = ask(h, head, "x");
        if (status_of(r) != pages[i].status || test_contains(r, "Access-Control-Allow-Origin") != pages[i].cors)
            fail_msg("origin '%s': %.300s", pages[i].origin, r);
    }
    char *const r =
        ask(h,
            "OPTIONS /echo HTTP/1.1" HOST "\r\nOrigin: https://chat.example.org"
            "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type, x-stainless-os",
            NULL);
    assert_status(r, 204);
    assert_has(r, "Access-Control-Allow-Origin: https://chat.example.org");
    assert_has(r, "Access-Control-Allow-Headers: content-type, x-stainless-os");
    assert_has(r, "Access-Control-Allow-Methods: POST, OPTIONS");
    clb_http_stop(h, 1000);
}

static void test_streams(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    char want[512] = "", got[4096];
    for (int i = 0; i < 20; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "data: %d\n\n", i);
    for (int quick = 0; quick < 2; quick++) {
        char *const r = ask(h, quick ? "GET /stream-quick HTTP/1.1" HOST : "GET /stream HTTP/1.1" HOST, NULL);
        assert_status(r, 200);
        assert_has(r, "Content-Type: text/event-stream");
        assert_has(r, "Cache-Control: no-cache");
        dechunk(r, got);
        assert_string_equal(got, want);
    }
    /* HTTP/1.0 has no chunks: the end is the end of the connection */
    char *const r = ask(h, "GET /stream HTTP/1.0" HOST, NULL);
    assert_has(r, want);
    clb_http_stop(h, 1000);
    assert_int_equal(atomic_load(&app.n_gone_done), 0);
}

/* A reply that comes later, from another thread. */
static void test_later(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    for (int quick = 0; quick < 2; quick++) {
        const int fd = dial(h);
        put(fd, quick ? "POST /keep-quick HTTP/1.1" HOST "\r\nContent-Length: 0\r\n\r\n"
                      : "POST /keep HTTP/1.1" HOST "\r\nContent-Length: 0\r\n\r\n");
        wait_for(&app.n_kept, quick + 1);
        usleep(20000);
        assert_false(clb_exchange_gone(app.kept));
        clb_reply(app.kept, 418, "text/plain", "late", 4);
        assert_has(take(fd, "late"), "418");
        close(fd);
    }
    clb_http_stop(h, 1000);
    assert_int_equal(atomic_load(&app.n_gone), 0);
}

/* Clients that go away are noticed while nothing is sent to them, each one once, and no other with them. */
static void test_vanished(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    for (int quick = 0; quick < 2; quick++) {
        const char *const text = quick ? "POST /keep-quick HTTP/1.1" HOST "\r\nContent-Length: 1\r\n\r\nx"
                                       : "POST /keep HTTP/1.1" HOST "\r\nContent-Length: 1\r\n\r\nx";
        const int base = 3 * quick;
        clb_exchange *kept[3];
        int fds[3];
        for (int i = 0; i < 3; i++) {
            fds[i] = dial(h);
            put(fds[i], text);
            wait_for(&app.n_kept, base + i + 1);
            kept[i] = app.kept;
        }
        const int before = atomic_load(&app.n_gone);
        close(fds[1]);
        wait_for(&app.n_gone, before + 1);
        assert_true(clb_exchange_gone(kept[1]));
        const struct linger hard = {1, 0};
        setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &hard, sizeof hard); /* by a reset */
        close(fds[0]);
        wait_for(&app.n_gone, before + 2);
        usleep(50000);
        assert_false(clb_exchange_gone(kept[2]));
        clb_reply(kept[0], 200, NULL, "x", 1);
        clb_stream_begin(kept[1], "text/event-stream"); /* nobody hears it */
        assert_false(clb_stream_write(kept[1], "x", 1));
        clb_stream_end(kept[1]);
        clb_reply(kept[2], 200, NULL, "there", 5);
        assert_has(take(fds[2], "there"), "200");
        close(fds[2]);
        assert_int_equal(atomic_load(&app.n_gone), before + 2);
    }
    clb_http_stop(h, 1000);
    assert_int_equal(atomic_load(&app.n_gone), 4);
    assert_int_equal(atomic_load(&app.n_gone_done), 4);
}

static void test_slow_reader(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    const int fd = dial(h), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    put(fd, "GET /flood HTTP/1.1" HOST "\r\n\r\n");
    for (int i = 0; i < 1000 && !atomic_load(&app.over); i++)
        usleep(5000);
    assert_true(atomic_load(&app.over));
    clb_http_stats s;
    clb_http_get_stats(h, &s);
    assert_int_equal(s.slow, 1);
    close(fd);
    /* one that reads until it has had enough */
    clb_error err;
    clb_http_options patient = o;
    patient.max_stream_backlog = (size_t)256 << 20;
    assert_ok(clb_http_reconfigure(h, &patient, &err), &err);
    atomic_store(&app.over, false);
    const int other = dial(h);
    put(other, "GET /flood HTTP/1.1" HOST "\r\n\r\n");
    char block[32768];
    size_t n = 0;
    while (n < 1u << 20) {
        const ssize_t k = recv(other, block, sizeof block, 0);
        assert_true(k > 0);
        n += (size_t)k;
    }
    close(other);
    for (int i = 0; i < 1000 && !atomic_load(&app.over); i++)
        usleep(5000);
    assert_true(atomic_load(&app.over));
    clb_http_get_stats(h, &s);
    assert_int_equal(s.slow, 1);
    clb_http_stop(h, 1000);
}

/* Heads and bodies that trickle in, each byte well within any timeout between bytes. */
static void test_trickle(void **state)
{
    (void)state;
    clb_http_options o = options();
    o.idle_timeout_s = 1;
    clb_http *const h = start(&o);
    static const char *const begins[] = {"GET /hel", "POST /echo HTTP/1.1" HOST "\r\nContent-Length: 50\r\n\r\n"};
    /* a handler may take longer than that */
    const int patient = dial(h);
    put(patient, "POST /keep HTTP/1.1" HOST "\r\nContent-Length: 0\r\n\r\n");
    wait_for(&app.n_kept, 1);
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = dial(h);
        put(fds[i], begins[i]);
    }
    const uint64_t start_ns = clb_now_ns();
    bool over[2] = {false, false};
    while (!(over[0] && over[1]) && clb_now_ns() - start_ns < 6000000000u) {
        for (int i = 0; i < 2; i++) {
            struct pollfd p = {.fd = fds[i], .events = POLLIN};
            over[i] = over[i] || poll(&p, 1, 50) == 1;
            if (!over[i])
                put(fds[i], "x");
        }
    }
    assert_true(over[0] && over[1]);
    clb_http_stats s;
    clb_http_get_stats(h, &s);
    assert_int_equal(s.timeouts, 2);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    clb_reply(app.kept, 200, NULL, "there", 5);
    assert_has(take(patient, "there"), "200");
    close(patient);
    clb_http_stop(h, 1000);
}

static void test_connections(void **state)
{
    (void)state;
    clb_http_options o = options();
    o.max_connections = 8;
    clb_http *const h = start(&o);
    int fds[8];
    clb_exchange *kept[8];
    for (int i = 0; i < 8; i++) {
        fds[i] = dial(h);
        put(fds[i], "POST /keep HTTP/1.1" HOST "\r\nContent-Length: 0\r\n\r\n");
        wait_for(&app.n_kept, i + 1);
        kept[i] = app.kept;
    }
    char *r = ask(h, "GET /hello HTTP/1.1" HOST, NULL);
    assert_status(r, 503);
    assert_has(r, "too_many_connections");
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    wait_for(&app.n_gone, 8);
    for (int i = 0; i < 8; i++)
        clb_reply(kept[i], 200, NULL, "x", 1);
    for (int i = 0; i < 200; i++) {
        r = ask(h, "GET /hello HTTP/1.1" HOST, NULL);
        if (status_of(r) == 200)
            break;
        usleep(10000);
    }
    assert_status(r, 200);
    clb_http_stop(h, 0);
}

struct crowd {
    clb_http *h;
    int n_good;
};

static void *in_crowd(void *ctx)
{
    struct crowd *const c = ctx;
    char text[256], want[64], got[4096];
    for (int i = 0; i < 10; i++) {
        const int fd = dial(c->h);
        snprintf(want, sizeof want, "\r\n\r\n%p-%d;", ctx, i);
        snprintf(text, sizeof text, "POST /echo?ms=3 HTTP/1.1" HOST "\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(want) - 4, want + 4);
        put(fd, text);
        if (i % 4 == 3) { /* some do not wait */
            close(fd);
            continue;
        }
        size_t n = 0;
        for (ssize_t k = 1; k > 0 && (got[n] = '\0', !strstr(got, want));) {
            k = recv(fd, got + n, sizeof got - 1 - n, 0);
            n += k > 0 ? (size_t)k : 0;
        }
        c->n_good += strstr(got, want) != NULL;
        close(fd);
    }
    return NULL;
}

static void test_crowd(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    enum { N = 24 };
    pthread_t threads[N];
    struct crowd crowd[N];
    for (int i = 0; i < N; i++) {
        crowd[i] = (struct crowd){h, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, in_crowd, &crowd[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(crowd[i].n_good, 8);
    }
    clb_http_stop(h, 3000);
    assert_int_equal(atomic_load(&app.n_done), 10 * N);
}

/* An end in the middle of everything: who waits is told, and nothing is left. */
static void test_stop(void **state)
{
    (void)state;
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    int fds[4];
    clb_exchange *kept[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = dial(h);
        put(fds[i], "POST /keep HTTP/1.1" HOST "\r\nContent-Length: 0\r\n\r\n");
        wait_for(&app.n_kept, i + 1);
        kept[i] = app.kept;
    }
    clb_stream_begin(kept[1], "text/event-stream");
    clb_stream_write(kept[1], "data: 1\n\n", 9);
    assert_has(take(fds[1], "data: 1"), "200");
    fds[2] = dial(h); /* in the middle of a head */
    put(fds[2], "GET /he");
    fds[3] = dial(h); /* and of a body */
    put(fds[3], "POST /echo HTTP/1.1" HOST "\r\nContent-Length: 10\r\n\r\nhalf");
    usleep(20000);
    atomic_store(&app.refuse, true);
    assert_status(ask(h, "POST /echo HTTP/1.1" HOST, "x"), 503);
    clb_http_quiesce(h);
    const uint64_t before = clb_now_ns();
    clb_http_stop(h, 300);
    assert_true(clb_now_ns() - before < 3000000000u);
    assert_int_equal(atomic_load(&app.n_gone), 2);
    clb_reply(kept[0], 200, NULL, "x", 1);
    assert_false(clb_stream_write(kept[1], "x", 1));
    clb_stream_end(kept[1]);
    for (int i = 0; i < 4; i++) {
        take(fds[i], NULL); /* ends */
        close(fds[i]);
    }
}

static void test_addresses(void **state)
{
    (void)state;
    clb_error err;
    clb_http *h, *other;
    clb_http_options o = options();
    h = start(&o);
    o.port = clb_http_port(h);
    assert_fails(clb_http_start(&o, &other, &err), &err, COLIBRI_E_IO, "is in use by another program");
    o.host = "192.0.2.1"; /* for documentation: nobody has it */
    assert_fails(clb_http_start(&o, &other, &err), &err, COLIBRI_E_IO, "no address of this machine");
    o.host = "not a name";
    assert_fails(clb_http_start(&o, &other, &err), &err, COLIBRI_E_IO, "cannot find the address of 'not a name'");
    clb_http_stop(h, 0);
    o.host = "localhost"; /* the place is free at once */
    assert_ok(clb_http_start(&o, &h, &err), &err);
    assert_status(ask(h, "GET /hello HTTP/1.1" HOST, NULL), 200);
    clb_http_stop(h, 0);
    /* everywhere: addresses are taken as hosts, foreign names are not */
    o.host = "0.0.0.0";
    o.port = 0;
    assert_ok(clb_http_start(&o, &h, &err), &err);
    assert_status(ask(h, "GET /hello HTTP/1.1\r\nHost: 10.1.2.3:99", NULL), 200);
    assert_status(ask(h, "GET /hello HTTP/1.1\r\nHost: evil.example.org", NULL), 403);
    clb_http_stop(h, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies),     cmocka_unit_test(test_keep_alive), cmocka_unit_test(test_limits_of_bodies),
        cmocka_unit_test(test_malformed),   cmocka_unit_test(test_keys),       cmocka_unit_test(test_hosts_and_origins),
        cmocka_unit_test(test_streams),     cmocka_unit_test(test_later),      cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_trickle),    cmocka_unit_test(test_connections),
        cmocka_unit_test(test_crowd),       cmocka_unit_test(test_stop),       cmocka_unit_test(test_addresses),
    };
    if (getenv("FILTER"))
        cmocka_set_test_filter(getenv("FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
