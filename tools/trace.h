/* colibri trace: what its files share. */
#ifndef CLB_TOOLS_TRACE_H
#define CLB_TOOLS_TRACE_H

#include "command.h"
#include "replay/trace.h"

int clb_trace_cmd_record(clb_args *args, clb_error *err);
int clb_trace_cmd_import(clb_args *args, const char *file, clb_error *err);
int clb_trace_cmd_export(clb_args *args, const char *file, clb_error *err);
int clb_trace_cmd_info(clb_args *args, const char *file, clb_error *err);

/* A flag's whole number from 1 to `most`; *out stays if the flag is absent. */
int clb_trace_flag(const clb_args *args, const char *flag, uint32_t most, uint32_t *out, clb_error *err);

#endif
