/* Grows a trace in memory, pass by pass: what the reader and the imports share. */
#ifndef CLB_REPLAY_TRACE_BUILD_H
#define CLB_REPLAY_TRACE_BUILD_H

#include "replay/trace.h"

typedef struct clb_trace_builder {
    clb_trace *trace;
    uint64_t cap_units, cap_passes, cap_rows;
    size_t n_labels, cap_labels;
    uint32_t *seen; /* [n_experts]: number of the last row that had it */
    uint32_t row_mark;
    int status; /* of what is found wrong in passes: FORMAT for files, USAGE for callers */
} clb_trace_builder;

/* info is copied. */
int clb_trace_builder_open(clb_trace_builder *b, const clb_trace_info *info, int status, clb_error *err);
int clb_trace_builder_unit(clb_trace_builder *b, const char *label, size_t n, clb_error *err);
/* Checks and copies; a unit of no name is begun if there is none. */
int clb_trace_builder_pass(clb_trace_builder *b, const clb_trace_put *pass, clb_error *err);
/* Hands over the trace. */
clb_trace *clb_trace_builder_done(clb_trace_builder *b);
void clb_trace_builder_close(clb_trace_builder *b);

/* The checks alone, for the writer: seen is [n_experts], *mark counts rows. */
int clb_trace_check_pass(const clb_trace_info *info, const clb_trace_put *pass, uint32_t *seen, uint32_t *mark,
                         int status, clb_error *err);

#endif
