/* The HTTP side of `colibri serve`: connections, limits, keys, replies and streams. Knows nothing about models.
 *
 * An http thread calls a route's handler once the whole body is there. The handler answers at once, or keeps the
 * exchange and answers later from any thread; a stream is written to at any time and never blocks: what a slow client
 * has not read yet is kept, up to a bound, beyond which the client counts as gone.
 *
 * Threads: libmicrohttpd's one moves bytes and waits for nobody; a few workers call handlers, so that a handler may
 * compute (tokenize, render a template) or wait (for the engine's thread) without holding up other clients' streams;
 * one watches for clients that went away and for those that take too long. */
#ifndef CLB_SERVE_HTTP_H
#define CLB_SERVE_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "base/str.h"

typedef struct clb_http clb_http;
typedef struct clb_exchange clb_exchange;

enum clb_route_flags {
    CLB_ROUTE_PUBLIC = 1, /* answered without a key */
    CLB_ROUTE_PREFIX = 2, /* path is a prefix */
    CLB_ROUTE_QUICK = 4,  /* answers at once and waits for nothing: called without a worker */
    CLB_ROUTE_EARLY = 8,  /* for `admit`: answered while the model is being loaded */
};

typedef struct clb_http_route {
    const char *method, *path;
    /* [http-thread] Must end in a reply, now or later. */
    void (*handle)(void *app, clb_exchange *x);
    unsigned flags;
} clb_http_route;

/* localhost, or a loopback address. */
bool clb_http_is_loopback(const char *host);

typedef struct clb_http_done {
    const clb_http_route *route; /* NULL: none fits */
    int status;                  /* 0: the client went away before there was one */
    bool gone;                   /* before the reply was complete */
    uint64_t ns, bytes_in, bytes_out;
} clb_http_done;

typedef struct clb_http_options {
    const char *host;             /* address to bind to */
    uint16_t port;                /* 0: any free one */
    const clb_http_route *routes; /* ends with method NULL; borrowed */
    void *app;
    const clb_log *log; /* lives as long as the server; NULL: silent */
    const char *const *api_keys; /* borrowed; compared in constant time; none: no key is asked for */
    size_t n_api_keys;
    const char *const *allowed_hosts; /* Host header values (without port) beside localhost, the loopback addresses and
                                         the bound one */
    size_t n_allowed_hosts;
    const char *const *cors_origins; /* exact origins, or "*"; none: no CORS headers */
    size_t n_cors_origins;
    size_t max_body, max_stream_backlog;
    uint32_t max_connections, idle_timeout_s;
    bool log_requests;        /* one JSON line per request: time, method, path, status, bytes, ms, id; never bodies */
    uint32_t max_per_address; /* connections from one address that is not this machine's own; 0: as many as there are */
    uint32_t workers;         /* threads that call handlers; 0: 4 */
    /* Before a route's handler: false if it has answered instead. [http-thread] May be NULL. */
    bool (*admit)(void *app, clb_exchange *x, const clb_http_route *route);
    /* A request is over, with or without a reply that arrived. [http-thread] May be NULL. */
    void (*on_done)(void *app, const clb_http_done *done);
    /* One line of the log of requests; NULL: to standard error. [http-thread] */
    void (*log_line)(void *app, const char *line, size_t n);
} clb_http_options;

/* Everything in options is copied, except the routes. *out is set before the first request can come. IO: the port is
 * taken, or the address is not this machine's. */
int clb_http_start(const clb_http_options *options, clb_http **out, clb_error *err);
/* Takes over keys, hosts, origins, limits, timeouts and log_requests, for requests that come from now on; the rest
 * stays as it was. Up to twice the connections that there were places for at the start are served. [any-thread] */
int clb_http_reconfigure(clb_http *h, const clb_http_options *options, clb_error *err);
uint16_t clb_http_port(const clb_http *h);
/* New connections are refused; those that are open go on. */
void clb_http_quiesce(clb_http *h);
/* Ends connections after at most `grace_ms`; exchanges without a reply are told that their client is gone. All are over
 * for their clients when it returns; those that were kept may still be answered, into the void. */
void clb_http_stop(clb_http *h, uint32_t grace_ms);
typedef struct clb_http_stats {
    uint64_t requests, refused, disconnects, bytes_out;
    uint32_t connections;
    uint64_t slow;     /* of `disconnects`: streams whose client read too slowly */
    uint64_t timeouts; /* connections ended because a request came too slowly */
    uint32_t pending;  /* requests whose reply is not complete */
} clb_http_stats;
void clb_http_get_stats(clb_http *h, clb_http_stats *out);

/* ---- the request ---- */
const char *clb_exchange_id(const clb_exchange *x); /* "a1b2..."; also the header X-Request-Id */
const char *clb_exchange_method(const clb_exchange *x);
const char *clb_exchange_path(const clb_exchange *x);
const char *clb_exchange_query(clb_exchange *x, const char *name);  /* NULL: not given */
const char *clb_exchange_header(clb_exchange *x, const char *name); /* NULL: not given */
clb_str clb_exchange_body(const clb_exchange *x);                   /* until the handler returns */

/* ---- the reply: exactly one of these, once ---- */
void clb_reply(clb_exchange *x, int status, const char *content_type, const void *data, size_t n); /* copied */
/* Takes the reference. */
void clb_reply_json(clb_exchange *x, int status, json_t *body);
/* One more header, or another value for it, before the reply. */
void clb_exchange_set_header(clb_exchange *x, const char *name, const char *value);
void clb_stream_begin(clb_exchange *x, const char *content_type);

/* ---- a stream [any-thread] ---- */
/* Copied. False: the client is gone, further writes are dropped. */
bool clb_stream_write(clb_exchange *x, const void *data, size_t n);
/* The end. The exchange must not be used afterwards. After clb_reply* neither. */
void clb_stream_end(clb_exchange *x);
/* fn is called once from an http thread if the client goes away before the reply is complete, never after it, and
 * possibly not at all if a write has told of it and the exchange is ended at once. It must not block, and not take a
 * lock under which the exchange is answered: clb_reply* and clb_stream_end wait for an fn that is running. Set it
 * before the handler returns; if the client is gone already, fn is called soon after. An exchange whose client is gone
 * still wants its reply or clb_stream_end, which fn may call. */
void clb_exchange_on_gone(clb_exchange *x, void (*fn)(void *ctx), void *ctx);
bool clb_exchange_gone(clb_exchange *x);
/* {"error":{"message","type","param":null,"code"}}, as the HTTP layer itself refuses a request; for Anthropic's paths
 * with the outer "type":"error" that their clients look for. code may be NULL. */
void clb_reply_refusal(clb_exchange *x, int status, const char *type, const char *code, const char *message);

#endif
