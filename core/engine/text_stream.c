#include "engine/text_stream.h"

#include <string.h>

#include "text/vocab.h"

void clb_text_stream_free(clb_text_stream *ts)
{
    clb_buf_free(&ts->pending);
}

/* Position of the first stop string in the pending text, or its length if there is none. */
static size_t find_stop(const clb_text_stream *ts, const char **stop)
{
    size_t best = ts->pending.n;
    *stop = NULL;
    for (size_t i = 0; i < ts->n_stops; i++) {
        const char *s = ts->stops[i];
        if (!*s || !ts->pending.n)
            continue;
        const char *at = memmem(ts->pending.data, ts->pending.n, s, strlen(s));
        if (at && (size_t)(at - ts->pending.data) < best) {
            best = (size_t)(at - ts->pending.data);
            *stop = s;
        }
    }
    return best;
}

/* How many of the pending bytes cannot become part of a stop string. */
static size_t safe_prefix(const clb_text_stream *ts)
{
    const size_t n = ts->pending.n;
    size_t safe = n;
    for (size_t i = 0; i < ts->n_stops; i++) {
        const char *s = ts->stops[i];
        const size_t len = strlen(s);
        for (size_t k = len < n ? len : n; k > 0; k--)
            if (memcmp(ts->pending.data + n - k, s, k) == 0) {
                safe = n - k < safe ? n - k : safe;
                break;
            }
    }
    return safe;
}

size_t clb_text_stream_ready(const clb_text_stream *ts, const char **stop)
{
    const size_t at = find_stop(ts, stop);
    return *stop ? at : clb_utf8_complete(ts->pending.data, safe_prefix(ts));
}

void clb_text_stream_take(clb_text_stream *ts, size_t n)
{
    if (!n)
        return;
    memmove(ts->pending.data, ts->pending.data + n, ts->pending.n - n);
    ts->pending.n -= n;
}
