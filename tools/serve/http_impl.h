/* Inside the HTTP layer only.
 *
 * Locks: `lock` of the server (lists, counts, settings) and `lock` of an exchange. Nothing of libmicrohttpd is called
 * under the server's, except where said; under an exchange's only suspend and resume, which do not call back. An
 * exchange's lock is taken first where both are needed.
 *
 * Who holds an exchange: libmicrohttpd's side until notify_completed, the handler's side until it has answered, the
 * response of a stream, and whoever looks at it for a moment. The connection behind it may be touched only while it is
 * suspended, under the exchange's lock: libmicrohttpd frees no suspended connection. */
#ifndef CLB_SERVE_HTTP_IMPL_H
#define CLB_SERVE_HTTP_IMPL_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "serve/http.h"

#define CLB_HTTP_HEAD_MOST   (32u << 10) /* memory per connection: request line, headers, and the buffer of a reply */
#define CLB_HTTP_SPARE       32u         /* connections beyond the limit, which are told so */
#define CLB_HTTP_BYTES_PER_S 8192u       /* slower bodies and readers are given up, after the idle timeout */
#define CLB_HTTP_ID          25          /* an exchange's id: 24 digits */
#define CLB_HTTP_ADDRESS     INET6_ADDRSTRLEN

/* What may change while the server runs; counted, so that a request keeps what it began with. */
typedef struct clb_http_limits {
    atomic_uint refs;
    char **api_keys, **hosts, **origins;
    size_t n_api_keys, n_hosts, n_origins;
    size_t max_body, max_backlog;
    uint32_t max_connections, max_per_address, idle_s;
    bool log_requests;
} clb_http_limits;

/* What the connection is waited for, and since when. */
enum clb_conn_phase {
    CLB_CONN_HEAD,  /* a request's head; the time runs from the start, or from the end of the last reply */
    CLB_CONN_BODY,  /* `bytes` of it are there */
    CLB_CONN_WORK,  /* a handler or a stream: no limit of ours */
    CLB_CONN_REPLY, /* a reply of `bytes` bytes has to leave */
};

typedef struct clb_conn {
    struct clb_conn *prev, *next;
    int fd;
    struct in6_addr address;
    char remote[CLB_HTTP_ADDRESS];
    bool local; /* from this machine */
    bool surplus, timed_out;
    enum clb_conn_phase phase;
    uint64_t since_ns, bytes, n_requests;
    uint64_t serial;
    uint64_t hup_ns;        /* the client sends nothing more, since then; 0: as far as is known it may */
    struct clb_exchange *x; /* under the server's lock; NULL: between requests */
} clb_conn;

typedef struct clb_http_field {
    enum MHD_ValueKind kind;
    char *name, *value; /* value NULL: a query's argument without "=" */
} clb_http_field;

struct clb_exchange {
    struct clb_http *h;
    atomic_uint refs;
    struct clb_exchange *prev, *next; /* the server's list, under its lock, while `listed` */
    bool listed;
    struct clb_exchange *next_work, *next_gone;
    bool in_gone_queue;

    /* The request. Written by libmicrohttpd's thread before the handler is called. */
    uint64_t serial, start_ns; /* serial: its place in the list */
    char id[CLB_HTTP_ID];
    char *method, *path;
    clb_http_field *fields;
    size_t n_fields;
    clb_buf body;
    const clb_http_route *route;
    clb_http_limits *limits;
    clb_conn *conn; /* of libmicrohttpd's thread */
    char remote[CLB_HTTP_ADDRESS];
    const char *cors; /* the origin that may read the reply; NULL: no header */
    bool http10;       /* a request of HTTP/1.0 */
    bool cut;          /* where its body ends cannot be known: the reply comes at once, and the connection ends */
    bool close, discard, dispatched;
    uint64_t bytes_in;

    pthread_mutex_t lock;
    pthread_cond_t gone_over;
    struct MHD_Connection *mhd; /* NULL: libmicrohttpd is done with it */
    bool suspended;
    bool answered; /* the handler's part is over */
    bool gone, slow, gone_called, in_gone;
    pthread_t gone_thread;
    void (*on_gone)(void *ctx);
    void *on_gone_ctx;
    int status;
    struct MHD_Response *response;
    bool queued, streaming, ended;
    uint64_t ended_ns, bytes_out, reply_bytes;
    clb_http_field *reply_headers;
    size_t n_reply_headers;
    clb_buf backlog;
    size_t backlog_at; /* what of it is sent */
};

struct clb_http {
    atomic_uint refs;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an exchange is over; work is there */
    const clb_log *log;
    const clb_http_route *routes;
    void *app;
    bool (*admit)(void *app, clb_exchange *x, const clb_http_route *route);
    void (*on_done)(void *app, const clb_http_done *done);
    void (*log_line)(void *app, const char *line, size_t n);
    clb_http_limits *limits; /* under lock */

    struct MHD_Daemon *daemon;
    int listen_fd; /* open until the daemon's thread has ended */
    bool quiesced;
    uint16_t port;
    char *host;
    bool loopback_only; /* bound to a loopback address */

    clb_conn *conns;
    uint32_t n_conns;
    clb_exchange *exchanges; /* those that libmicrohttpd knows */
    uint32_t n_exchanges;
    uint64_t next_serial;
    atomic_bool stopping;
    atomic_ullong body_bytes; /* bodies in memory */
    atomic_ullong n_requests, n_refused, n_disconnects, n_slow, n_timeouts, bytes_out;

    uint64_t n_log_lost; /* lines that could not be written; of libmicrohttpd's thread */

    pthread_t watcher, *workers;
    uint32_t n_workers;
    bool watcher_runs, watcher_over; /* over: under lock */
    int watch_epoll, watch_event;
    clb_exchange *gone_queue;
    clb_exchange *work_first, *work_last;
    bool work_over;
};

/* http_limits.c */
int clb_http_limits_create(const clb_http_options *options, clb_http_limits **out, clb_error *err);
clb_http_limits *clb_http_limits_hold(clb_http *h); /* the present ones */
void clb_http_limits_release(clb_http_limits *l);

/* http_guard.c: pure questions about headers. */
bool clb_http_host_allowed(const clb_http_limits *l, const char *bound_host, bool loopback_only, const char *host);
/* The origin is that of the page at `host` itself. */
bool clb_http_same_origin(const char *origin, const char *host);
/* What Access-Control-Allow-Origin says; NULL: not allowed. Lives as long as the limits and `origin`. */
const char *clb_http_cors_origin(const clb_http_limits *l, const char *origin);
/* Takes the same time whatever is wrong with it. */
bool clb_http_key_valid(const clb_http_limits *l, const char *key);
/* The key in a header "Authorization"; NULL: none. */
const char *clb_http_bearer(const char *authorization);

/* http_listen.c */
int clb_http_listen(const char *host, uint16_t port, int *fd, uint16_t *bound, bool *loopback, clb_error *err);

/* http_conn.c. libmicrohttpd's thread, except sweep. */
void clb_http_on_connection(void *h, struct MHD_Connection *c, void **socket_context,
                            enum MHD_ConnectionNotificationCode what);
clb_conn *clb_http_conn_of(struct MHD_Connection *c);
void clb_conn_phase(clb_http *h, clb_conn *c, enum clb_conn_phase phase, uint64_t bytes);
void clb_conn_set_exchange(clb_http *h, clb_conn *c, clb_exchange *x);
void clb_http_sweep(clb_http *h);
void clb_http_close_all(clb_http *h);

/* http_request.c */
enum MHD_Result clb_http_on_request(void *h, struct MHD_Connection *c, const char *url, const char *method,
                                    const char *version, const char *upload, size_t *upload_size, void **context);
void clb_http_on_completed(void *h, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode why);
void clb_exchange_release(clb_exchange *x);
clb_exchange *clb_exchange_hold(clb_exchange *x);
void clb_exchange_handle(clb_exchange *x); /* admit and handle */

/* http_judge.c: everything that can be said of a request by its head. Answers it, and sets route, cors and discard. */
void clb_http_judge(clb_exchange *x);
uint64_t clb_http_content_length(clb_exchange *x, bool *chunked); /* UINT64_MAX: not a number */

/* http_reply.c */
/* libmicrohttpd's thread: what it does next. MHD_YES: the reply is queued, or it waits (suspended). */
enum MHD_Result clb_exchange_go_on(clb_exchange *x);
void clb_exchange_mark_gone(clb_exchange *x);
/* With the exchange locked. */
void clb_exchange_resume(clb_exchange *x);

/* http_watch.c */
int clb_http_watch_start(clb_http *h, clb_error *err);
void clb_http_watch_stop(clb_http *h);
void clb_http_watch_add(clb_http *h, const clb_conn *c);
void clb_http_watch_again(clb_http *h, const clb_conn *c); /* told again, if it is so still */
void clb_http_watch_remove(clb_http *h, const clb_conn *c);
void clb_http_gone_later(clb_exchange *x); /* mark_gone by the watcher's thread */

/* http_work.c */
int clb_http_work_start(clb_http *h, uint32_t n, clb_error *err);
void clb_http_work_stop(clb_http *h);
void clb_http_work_add(clb_exchange *x);

/* http_log.c */
void clb_http_log_done(clb_exchange *x, int status, bool gone, uint64_t ns);

void clb_http_release(clb_http *h);

#endif
