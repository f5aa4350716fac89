/* Grammars of tool calls. */
#ifndef CLB_SERVE_TOOL_GRAMMAR_H
#define CLB_SERVE_TOOL_GRAMMAR_H

#include "serve/tools.h"

/* The model must call one of the tools (`only`: this one; `one_call`: once). *prefill: what the prompt ends with, marks
 * that are tokens; *gbnf: a grammar for what follows. Both are appended to. UNSUPPORTED: the schema of a strict
 * function cannot be followed; the message names it. */
int clb_tool_grammar(const clb_tool_format *f, const json_t *tools, const char *only, bool one_call, clb_buf *prefill,
                     clb_buf *gbnf, clb_error *err);

#endif
