/* Generated text on its way out: held back while it may end in half a character or in the start of a stop string. */
#ifndef CLB_ENGINE_TEXT_STREAM_H
#define CLB_ENGINE_TEXT_STREAM_H

#include "base/str.h"

typedef struct clb_text_stream {
    const char *const *stops; /* borrowed; empty ones never match */
    size_t n_stops;
    clb_buf pending; /* append a token's bytes here */
} clb_text_stream;

void clb_text_stream_free(clb_text_stream *ts);
/* How many pending bytes may go out now. *stop: the stop string that is complete behind them (the text ends there), or
 * NULL. */
size_t clb_text_stream_ready(const clb_text_stream *ts, const char **stop);
/* They have gone out. */
void clb_text_stream_take(clb_text_stream *ts, size_t n);

#endif
