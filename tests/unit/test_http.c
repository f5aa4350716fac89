/* The HTTP layer: replies, limits of requests, what is malformed, keys, hosts and origins. No model is involved. */
#include "serve/http.h"

#include "http_bench.h"

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
    r = ask(h, "GET /items/a%20b?x=1 HTTP/1.1" HOST "\r\nX-Request-Id: from-the-client", NULL);
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
    assert_has(app.log, "\"client_id\":\"from-the-client\"");
    assert_false(test_contains(app.log, "what was sent"));
    assert_false(test_contains(app.log, "x=1"));
    assert_false(test_contains(app.log, "\"gone\""));
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

/* Heads that are no requests, and what exactly comes back; docs/server.md has the list. */
static void test_malformed(void **state)
{
    (void)state;
#define POST "POST /echo HTTP/1.1\r\nHost: localhost\r\n"
    static const struct {
        const char *text;
        int status;       /* 0: the connection is closed without a word */
        const char *code; /* NULL: libmicrohttpd's own page */
    } bad[] = {
        {"\x16\x03\x01\x02\x01\x01\xff\xfe\r\n\r\n", 0, NULL}, /* TLS */
        {"GET\r\n\r\n", 0, NULL},
        {"GET /hello\r\n\r\n", 400, NULL},
        {"GET /hello FTP/1.1\r\n\r\n", 400, NULL},
        {"GET /hello HTTP/9.9\r\n\r\n", 505, NULL},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, NULL},
        {"GET /hello HTTP/1.1\r\nHost localhost\r\n\r\n", 400, NULL},
        {POST "Content-Length: -1\r\n\r\n", 400, NULL},
        {POST "Content-Length: 1x\r\n\r\n", 400, NULL},
        {POST "Content-Length: 99999999999999999999999\r\n\r\n", 413, NULL},
        {POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400, NULL},
        {POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n", 413, NULL},
        {"GET /hello HTTP/1.1\r\n\r\n", 400, "missing_host"},
        {"GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n", 400, "invalid_header"},
        {"GET /hello HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, "invalid_header"},
        {POST "Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 400, "invalid_content_length"},
        {POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_content_length"},
        {POST "Transfer-Encoding: gzip\r\n\r\nabc", 501, "unsupported_transfer_encoding"},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "unsupported_transfer_encoding"},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501,
         "unsupported_transfer_encoding"},
        {"GET /hello HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n", 403, "host_not_allowed"},
        {"GET /hello HTTP/1.1\r\nHost: localhost:80x\r\nConnection: close\r\n\r\n", 403, "host_not_allowed"},
        {"GET http://localhost/hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404, "unknown_url"},
        {"G@T /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"},
    };
#undef POST
    const clb_http_options o = options();
    clb_http *const h = start(&o);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int fd = dial(h);
        put(fd, bad[i].text);
        const uint64_t began = clb_now_ns();
        const char *const r = take(fd, NULL);
        if (clb_now_ns() - began > 5000000000u)
            fail_msg("'%s' left the connection open", bad[i].text);
        if (status_of(r) != bad[i].status)
            fail_msg("'%s' was answered with %s", bad[i].text, r);
        char code[64] = "<html>";
        if (bad[i].code)
            snprintf(code, sizeof code, "\"code\":\"%s\"}}", bad[i].code);
        if (bad[i].status)
            assert_has(r, code);
        close(fd);
    }
    assert_int_equal(atomic_load(&app.n_handled), 0);
    assert_status(ask(h, "GET /hello HTTP/1.0", NULL), 200); /* which needs no Host */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies),   cmocka_unit_test(test_keep_alive), cmocka_unit_test(test_limits_of_bodies),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_keys),       cmocka_unit_test(test_hosts_and_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
