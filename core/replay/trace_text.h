/* CSV and JSONL: one line per row and layer. */
#ifndef CLB_REPLAY_TRACE_TEXT_H
#define CLB_REPLAY_TRACE_TEXT_H

#include "replay/trace.h"

int clb_trace_import_text(const char *data, size_t size, bool jsonl, const clb_trace_import_options *options,
                          clb_trace **out, clb_error *err);

/* Names and order of the columns. */
#define CLB_TRACE_CSV_HEAD "unit,pass,phase,row,sequence,token,layer,experts,gates"

#endif
