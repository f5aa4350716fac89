/* Grammars of tool calls. */
#ifndef CLB_SERVE_TOOL_GRAMMAR_H
#define CLB_SERVE_TOOL_GRAMMAR_H

#include "grammar/grammar.h"
#include "serve/tools.h"

/* The model must call one of the tools (`only`: this one; `one_call`: once). *prefill: what the prompt ends with, marks
 * that are tokens; *gbnf: a grammar for what follows. Both are appended to. Marks, or parts of them, that are control
 * tokens of the vocabulary (NULL: there are none) are those tokens. UNSUPPORTED: the schema of a strict function cannot
 * be followed; the message names it. */
int clb_tool_grammar(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, const char *only,
                     bool one_call, clb_buf *prefill, clb_buf *gbnf, clb_error *err);

typedef struct clb_tool_auto {
    const clb_tool_format *format;
    const clb_vocab *vocab;     /* NULL: without control tokens */
    const clb_token_tree *tree; /* of the vocabulary; NULL: one is made where it is needed */
    const json_t *tools;
    bool one_call;
    const char *answer; /* a valid grammar: the reply is a text of it or calls, nothing else. NULL: any text */
    const char *opened; /* what the prompt ends with, clb_prompt.opened; NULL: "" */
    bool thoughts;      /* the reply's parser tells thoughts from the answer: what is within them is free */
} clb_tool_auto;

/* The model may call: any text, and if one of the marks that begin calls comes, calls that fit. Control tokens of
 * thoughts are let through, too. UNSUPPORTED: as above; or with `answer`, if strict functions are called by what the
 * answer may begin with. Without `answer` only for formats that may be constrained: those with a mark of their own. */
bool clb_tool_may_be_constrained(const clb_tool_format *f);
int clb_tool_grammar_auto(const clb_tool_auto *options, clb_buf *gbnf, clb_error *err);

#endif
