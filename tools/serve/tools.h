/* Tool calls and reasoning in what a model writes: the format of its family, a parser for text that comes in pieces,
 * and a grammar that makes it call.
 *
 * A format is a property of the chat template. Templates that show no tools get the generic one: the tools and how to
 * call them are explained in the system message, and a call is <tool_call>{"name": ..., "arguments":
 * {...}}</tool_call>. */
#ifndef CLB_SERVE_TOOLS_H
#define CLB_SERVE_TOOLS_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/str.h"
#include "text/chat.h"

typedef struct clb_tool_format clb_tool_format; /* a row of the table in tool_formats.c */

/* Never NULL. */
const clb_tool_format *clb_tool_format_of(const clb_chat_format *chat);
const clb_tool_format *clb_tool_format_by_name(const char *name); /* NULL: unknown */
const char *clb_tool_format_name(const clb_tool_format *f);       /* "hermes", "mistral", ... */

enum clb_tool_choice { CLB_TOOLS_AUTO, CLB_TOOLS_NONE, CLB_TOOLS_REQUIRED, CLB_TOOLS_NAMED };

/* Checks `tools` in OpenAI's shape: a list of {"type": "function", "function": {"name", "description", "parameters",
 * "strict"}}, names [A-Za-z0-9_.-]{1,64}, each once, at most 256. *param (may be NULL): where the mistake is,
 * "tools[2].function". */
int clb_tools_check(const json_t *tools, char param[64], clb_error *err);
/* The one of this name; NULL: none. */
json_t *clb_tools_find(const json_t *tools, const char *name);

/* ---- the parser: one choice of one request; one thread at a time ---- */

enum clb_piece_kind {
    CLB_PIECE_CONTENT,   /* text of the answer */
    CLB_PIECE_REASONING, /* text of the thoughts (reasoning_content) */
    CLB_PIECE_CALL,      /* a call begins: id and name */
    CLB_PIECE_ARGUMENTS, /* more of the JSON text of its arguments: together one object, unless the model stopped within
                            it */
    CLB_PIECE_CALL_END
};

typedef struct clb_piece {
    enum clb_piece_kind kind;
    const char *text; /* not terminated, whole UTF-8 characters if what is fed is */
    size_t n;
    uint32_t index; /* of the call, from 0 */
    const char *id, *name;
} clb_piece;

typedef struct clb_reply_parser_options {
    const clb_tool_format *format;
    const json_t *tools; /* borrowed; NULL: no tools, everything that looks like a call is content */
    bool reasoning;      /* tell thoughts from the answer; otherwise they are content as they come */
    bool answer;         /* the text follows a grammar: it is calls from the first byte on, written as grammars of calls
                          * have them (tool_grammar.h), or an answer that is content to its last byte, whatever is in it */
    const char *opened;  /* what the prompt ended with, clb_prompt.opened: "", or marks that the text goes on from */
    /* Not an error: a nonzero status stops the parser and is returned by feed and finish. */
    int (*on_piece)(void *ctx, const clb_piece *piece, clb_error *err);
    void *ctx;
} clb_reply_parser_options;

typedef struct clb_reply_parser clb_reply_parser;
int clb_reply_parser_create(const clb_reply_parser_options *options, clb_reply_parser **out, clb_error *err);
void clb_reply_parser_free(clb_reply_parser *p);
/* More of the text. Half marks are held back. */
int clb_reply_parser_feed(clb_reply_parser *p, const char *text, size_t n, clb_error *err);
/* Before finish: the text that was fed was cut by its length, the model did not end it. The begin of a call whose name is
 * not complete, or of a mark, at its end is not given out then: the reply is as if it had been cut in front of that. */
void clb_reply_parser_cut(clb_reply_parser *p);
/* The text has ended: gives out what was held back. A call that is not closed is given as far as it was understood;
 * what was not understood at all is content. Nothing is dropped but marks, and the begin of a parameter's name. */
int clb_reply_parser_finish(clb_reply_parser *p, clb_error *err);
/* The last of what was fed belongs to thoughts. */
bool clb_reply_parser_thinks(const clb_reply_parser *p);
/* Calls so far: with any, finish_reason is tool_calls rather than stop. */
uint32_t clb_reply_parser_calls(const clb_reply_parser *p);

#endif
