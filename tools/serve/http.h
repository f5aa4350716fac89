/* The HTTP side of `colibri serve`: connections, limits, keys, replies and streams. Knows nothing about models.
 *
 * libmicrohttpd's threads call a route's handler once the whole body is there. The handler answers at once, or keeps the exchange
 * and answers later from any thread; a stream is written to at any time and never blocks: what a slow client has not read yet is
 * kept, up to a bound, beyond which the client counts as gone. */
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
};

typedef struct clb_http_route {
    const char *method, *path;
    /* [http-thread] Must end in a reply, now or later. */
    void (*handle)(void *app, clb_exchange *x);
    unsigned flags;
} clb_http_route;

typedef struct clb_http_options {
    const char *host; /* address to bind to */
    uint16_t port;    /* 0: any free one */
    const clb_http_route *routes; /* ends with method NULL; borrowed */
    void *app;
    const clb_log *log;
    const char *const *api_keys; /* borrowed; compared in constant time; none: no key is asked for */
    size_t n_api_keys;
    const char *const *allowed_hosts; /* Host header values (without port) beside localhost, the loopback addresses and the bound one */
    size_t n_allowed_hosts;
    const char *const *cors_origins; /* exact origins, or "*"; none: no CORS headers */
    size_t n_cors_origins;
    size_t max_body, max_stream_backlog;
    uint32_t max_connections, idle_timeout_s;
    bool log_requests; /* one JSON line per request: time, method, path, status, bytes, ms, id; never bodies */
} clb_http_options;

int clb_http_start(const clb_http_options *options, clb_http **out, clb_error *err);
uint16_t clb_http_port(const clb_http *h);
/* No new connections; those that are open go on. */
void clb_http_quiesce(clb_http *h);
/* Ends connections after at most `grace_ms`. All exchanges are over when it returns. */
void clb_http_stop(clb_http *h, uint32_t grace_ms);
typedef struct clb_http_stats {
    uint64_t requests, refused, disconnects, bytes_out;
    uint32_t connections;
} clb_http_stats;
void clb_http_get_stats(clb_http *h, clb_http_stats *out);

/* ---- the request ---- */
const char *clb_exchange_id(const clb_exchange *x); /* "a1b2..."; also the header X-Request-Id */
const char *clb_exchange_path(const clb_exchange *x);
const char *clb_exchange_query(clb_exchange *x, const char *name);  /* NULL: not given */
const char *clb_exchange_header(clb_exchange *x, const char *name); /* NULL: not given */
clb_str clb_exchange_body(const clb_exchange *x);

/* ---- the reply: exactly one of these, once ---- */
void clb_reply(clb_exchange *x, int status, const char *content_type, const void *data, size_t n); /* copied */
/* Takes the reference. */
void clb_reply_json(clb_exchange *x, int status, json_t *body);
/* One more header, before the reply. */
void clb_exchange_set_header(clb_exchange *x, const char *name, const char *value);
void clb_stream_begin(clb_exchange *x, const char *content_type);

/* ---- a stream [any-thread] ---- */
/* Copied. False: the client is gone, further writes are dropped. */
bool clb_stream_write(clb_exchange *x, const void *data, size_t n);
/* The end. The exchange must not be used afterwards. After clb_reply* neither. */
void clb_stream_end(clb_exchange *x);
/* fn is called once from an http thread if the client goes away before the reply is complete, never after it. It must not
 * block. Set before the handler returns. An exchange whose client is gone still wants its reply or clb_stream_end. */
void clb_exchange_on_gone(clb_exchange *x, void (*fn)(void *ctx), void *ctx);

#endif
