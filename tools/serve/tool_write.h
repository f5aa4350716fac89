/* Calls and tools as text of a prompt. */
#ifndef CLB_SERVE_TOOL_WRITE_H
#define CLB_SERVE_TOOL_WRITE_H

#include "serve/tool_impl.h"

/* Text that knows what came from the request: marks in it are text, those around it are marks. */
typedef struct clb_marked {
    clb_buf text, taint;
} clb_marked;
int clb_marked_add(clb_marked *m, const char *text, size_t n, bool tainted, clb_error *err);
void clb_marked_free(clb_marked *m);

typedef struct clb_written_call {
    const char *name;
    const json_t *arguments; /* an object */
} clb_written_call;

/* Whether the two below can write this format; others are written by their templates. */
bool clb_tool_writes(const clb_tool_format *f);
int clb_tool_write_calls(const clb_tool_format *f, const clb_written_call *calls, size_t n, clb_marked *m,
                         clb_error *err);
/* For the system message: the tools and how to call them. */
int clb_tool_explain(const clb_tool_format *f, const json_t *tools, bool one_call, clb_marked *m, clb_error *err);

#endif
