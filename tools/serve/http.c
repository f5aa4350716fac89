/* The HTTP server as a whole: start, settings, figures, end. */
#include "serve/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/http_impl.h"

static void mhd_says(void *ctx, const char *fmt, va_list args)
{
    const clb_http *const h = ctx;
    char line[512];
    vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\n")] = '\0';
    clb_logf(h->log, COLIBRI_LOG_DEBUG, "http: %s", line);
}

void clb_http_release(clb_http *h)
{
    if (atomic_fetch_sub(&h->refs, 1) != 1)
        return;
    clb_http_limits_release(h->limits);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    free(h->host);
    free(h);
}

static void init_condition(pthread_cond_t *c)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
}

static int start_daemon(clb_http *h, clb_error *err)
{
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    /* clang-format off */
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, clb_http_on_request, h,
        MHD_OPTION_EXTERNAL_LOGGER, mhd_says, (void *)h,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(2 * h->limits->max_connections + CLB_HTTP_SPARE),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CLB_HTTP_HEAD_MOST,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->limits->idle_s,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, /* its own refusal of a request without Host is malformed */
        MHD_OPTION_NOTIFY_CONNECTION, clb_http_on_connection, (void *)h,
        MHD_OPTION_NOTIFY_COMPLETED, clb_http_on_completed, (void *)h,
        MHD_OPTION_END);
    /* clang-format on */
    return h->daemon ? COLIBRI_OK
                     : clb_fail(err, COLIBRI_E_IO, "cannot start the HTTP server (a limit on threads or files?)");
}

int clb_http_start(const clb_http_options *o, clb_http **out, clb_error *err)
{
    *out = NULL;
    int rc = COLIBRI_OK;
    clb_http *const h = calloc(1, sizeof *h);
    if (!h)
        return CLB_NOMEM(err, "the HTTP server");
    atomic_init(&h->refs, 1);
    pthread_mutex_init(&h->lock, NULL);
    init_condition(&h->changed);
    h->log = o->log;
    h->routes = o->routes;
    h->app = o->app;
    h->admit = o->admit;
    h->on_done = o->on_done;
    h->log_line = o->log_line;
    h->listen_fd = h->watch_epoll = h->watch_event = -1;
    h->host = strdup(o->host ? o->host : "127.0.0.1");
    if (!h->host)
        CLB_GO(CLB_NOMEM(err, "the HTTP server"));
    CLB_GO(clb_http_limits_create(o, &h->limits, err));
    CLB_GO(clb_http_listen(h->host, o->port, &h->listen_fd, &h->port, &h->loopback_only, err));
    CLB_GO(clb_http_watch_start(h, err));
    CLB_GO(clb_http_work_start(h, o->workers ? o->workers : 4, err));
    *out = h; /* before the first request can come: handlers find the server there */
    CLB_GO(start_daemon(h, err));
    return COLIBRI_OK;
done:
    *out = NULL;
    clb_http_work_stop(h);
    clb_http_watch_stop(h);
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    clb_http_release(h);
    return rc;
}

int clb_http_reconfigure(clb_http *h, const clb_http_options *options, clb_error *err)
{
    clb_http_limits *fresh;
    CLB_TRY(clb_http_limits_create(options, &fresh, err));
    pthread_mutex_lock(&h->lock);
    clb_http_limits *const old = h->limits;
    h->limits = fresh;
    pthread_mutex_unlock(&h->lock);
    clb_http_limits_release(old);
    return COLIBRI_OK;
}

uint16_t clb_http_port(const clb_http *h)
{
    return h->port;
}

void clb_http_quiesce(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    const bool first = !h->quiesced;
    h->quiesced = true;
    pthread_mutex_unlock(&h->lock);
    if (!first)
        return;
    /* The daemon's thread takes the socket out of its epoll set later, so its number may not go to another file before
     * that thread has ended. New clients are refused from here on, not left waiting. */
    (void)MHD_quiesce_daemon(h->daemon);
    (void)shutdown(h->listen_fd, SHUT_RDWR);
}

/* Until `count` is 0, at most until `until_ns`; with the server locked. */
static void wait_for(clb_http *h, const uint32_t *count, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    while (*count && pthread_cond_timedwait(&h->changed, &h->lock, &until) != ETIMEDOUT)
        continue;
}

/* Each exchange in turn is told that its client is gone. One whose client really goes meanwhile may change the list, so
 * the walk is by serial number, from the latest down. */
static void end_exchanges(clb_http *h)
{
    for (uint64_t below = UINT64_MAX;;) {
        pthread_mutex_lock(&h->lock);
        clb_exchange *x = h->exchanges;
        while (x && x->serial >= below)
            x = x->next;
        if (x)
            clb_exchange_hold(x);
        pthread_mutex_unlock(&h->lock);
        if (!x)
            return;
        below = x->serial;
        clb_exchange_mark_gone(x);
        pthread_mutex_lock(&x->lock);
        clb_exchange_resume(x); /* one that has its answer, too */
        pthread_mutex_unlock(&x->lock);
        clb_exchange_release(x);
    }
}

void clb_http_stop(clb_http *h, uint32_t grace_ms)
{
    if (!h)
        return;
    clb_http_quiesce(h);
    pthread_mutex_lock(&h->lock);
    wait_for(h, &h->n_exchanges, clb_now_ns() + (uint64_t)grace_ms * 1000000u);
    pthread_mutex_unlock(&h->lock);
    atomic_store(&h->stopping, true);
    end_exchanges(h);
    clb_http_close_all(h);
    MHD_stop_daemon(h->daemon);
    close(h->listen_fd);
    clb_http_work_stop(h);
    clb_http_watch_stop(h);
    clb_http_release(h);
}

void clb_http_get_stats(clb_http *h, clb_http_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = (clb_http_stats){.requests = atomic_load(&h->n_requests),
                            .refused = atomic_load(&h->n_refused),
                            .disconnects = atomic_load(&h->n_disconnects),
                            .bytes_out = atomic_load(&h->bytes_out),
                            .connections = h->n_conns,
                            .slow = atomic_load(&h->n_slow),
                            .timeouts = atomic_load(&h->n_timeouts),
                            .pending = h->n_exchanges};
    pthread_mutex_unlock(&h->lock);
}
