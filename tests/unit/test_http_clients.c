/* The HTTP layer: streams, and clients that vanish, do not read, trickle, come in crowds; the end in the middle of it
 * all. */
#include "serve/http.h"

#include "http_bench.h"

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

static bool is_refused(clb_http *h)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool refused = connect_to(fd, h) && errno == ECONNREFUSED;
    close(fd);
    return refused;
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
    assert_true(is_refused(h));
    clb_http_quiesce(h); /* once more does nothing */
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
        cmocka_unit_test(test_streams),     cmocka_unit_test(test_later),   cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_trickle), cmocka_unit_test(test_connections),
        cmocka_unit_test(test_crowd),       cmocka_unit_test(test_stop),    cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
