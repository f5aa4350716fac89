/* The log of requests: one JSON object per line, in one write. What was asked and answered is never in it. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "serve/http_impl.h"

#define TEXT_MOST 200

/* Of what came from outside: printable ASCII only, cut. */
static json_t *clean(const char *text)
{
    char out[TEXT_MOST];
    size_t n = 0;
    for (; *text && n < sizeof out; text++)
        out[n++] = (char)((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f ? '?' : *text);
    return json_stringn(out, n);
}

/* Whoever reads standard error may have stopped: all clients would wait for it. A pipe that can be written to takes a
 * line without waiting. */
static bool write_line(const char *line, size_t n)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) && write(STDERR_FILENO, line, n) == (ssize_t)n;
}

void clb_http_log_done(clb_exchange *x, int status, bool gone, uint64_t ns)
{
    struct timespec now;
    struct tm utc;
    char date[32], stamp[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp, sizeof stamp, "%s.%03ldZ", date, now.tv_nsec / 1000000);
    const char *const theirs = clb_exchange_header(x, "X-Request-Id");
    json_t *const o = json_pack("{s:s, s:s, s:s, s:o, s:o, s:i, s:I, s:I, s:f}", "time", stamp, "id", x->id, "remote",
                                x->remote, "method", clean(x->method ? x->method : ""), "path",
                                clean(x->path ? x->path : ""), "status", status, "bytes_in", (json_int_t)x->bytes_in,
                                "bytes_out", (json_int_t)x->bytes_out, "ms", (double)(ns / 1000) / 1e3);
    if (theirs)
        json_object_set_new(o, "client_id", clean(theirs));
    if (gone)
        json_object_set_new(o, "gone", json_true());
    if (x->h->n_log_lost)
        json_object_set_new(o, "lines_lost", json_integer((json_int_t)x->h->n_log_lost));
    char *const text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!text)
        return;
    const size_t n = strlen(text);
    if (x->h->log_line) {
        x->h->log_line(x->h->app, text, n);
    } else {
        text[n] = '\n'; /* where the terminator was */
        x->h->n_log_lost = write_line(text, n + 1) ? 0 : x->h->n_log_lost + 1;
    }
    free(text);
}
