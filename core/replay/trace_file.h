/* A whole trace file in memory. */
#ifndef CLB_REPLAY_TRACE_FILE_H
#define CLB_REPLAY_TRACE_FILE_H

#include "base/str.h"

/* NOT_FOUND, IO, LIMIT (16 GiB), NOMEM. */
int clb_trace_read_file(const char *path, clb_buf *out, clb_error *err);

#endif
