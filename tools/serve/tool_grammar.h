/* Grammars of tool calls. */
#ifndef CLB_SERVE_TOOL_GRAMMAR_H
#define CLB_SERVE_TOOL_GRAMMAR_H

#include "serve/tools.h"

/* The model must call one of the tools (`only`: this one; `one_call`: once). *prefill: what the prompt ends with, marks
 * that are tokens; *gbnf: a grammar for what follows. Both are appended to. Marks, or parts of them, that are control
 * tokens of the vocabulary (NULL: there are none) are those tokens. UNSUPPORTED: the schema of a strict function cannot
 * be followed; the message names it. */
int clb_tool_grammar(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, const char *only,
                     bool one_call, clb_buf *prefill, clb_buf *gbnf, clb_error *err);

/* The model may call: any text, and if the mark that begins calls comes, calls that fit. Control tokens of
 * thoughts are let through, too. With `answer`, a valid grammar: a text of it or calls, nothing else. For formats whose
 * calls have a mark that cannot begin within itself. */
bool clb_tool_may_be_constrained(const clb_tool_format *f);
int clb_tool_grammar_auto(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, bool one_call,
                          const char *answer, clb_buf *gbnf, clb_error *err);

#endif
