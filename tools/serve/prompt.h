/* The prompt of a chat request: messages in OpenAI's JSON, adapted to what the model's template can do, as tokens; and
 * with it what is needed to read the reply (tools.h). Used by /v1/chat/completions and /v1/messages. */
#ifndef CLB_SERVE_PROMPT_H
#define CLB_SERVE_PROMPT_H

#include "grammar/grammar.h"
#include "serve/tools.h"

typedef struct clb_prompt_request {
    const json_t *messages; /* [{"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", ...}] */
    const json_t *tools;    /* checked with clb_tools_check; NULL: none */
    enum clb_tool_choice choice;
    const char *tool_name;   /* CLB_TOOLS_NAMED */
    bool one_call;           /* parallel_tool_calls: false */
    const json_t *documents; /* list; NULL */
    const json_t *kwargs;    /* chat_template_kwargs, an object; NULL */
    const char *answer;      /* with `constrained`: that grammar; the reply may call instead. NULL: it is not needed here */
    const clb_token_tree *tree; /* of the vocabulary; NULL: one is made if it is needed */
    bool constrained;        /* the reply will follow a grammar of the caller's: the prompt leaves no thoughts open */
    bool reasoning;          /* for opened: thoughts are told from the answer */
} clb_prompt_request;

typedef struct clb_prompt {
    clb_tokens tokens;
    uint32_t n_protected;          /* first tokens that are the system prompt's */
    const clb_tool_format *format; /* for the parser */
    char *opened;                  /* for the parser: marks that the prompt ends with */
    char *gbnf;   /* grammar of tool calls (choice required or named, or strict functions), with what else the
                   * reply may be; NULL: none */
    bool special; /* for clb_request_options */
} clb_prompt;

/* What is adapted: content of parts becomes a string (or the other way, if the template wants it), null content "",
 * role developer becomes system if the template has none, arguments of earlier calls become what the template wants,
 * tools of a template without them are explained in the system message, and results are given as a user's message. An
 * assistant's message at the end is gone on with. USAGE: messages that make no sense or that the template refuses;
 * UNSUPPORTED: an answer or calls, where they cannot be told apart. *param (may be NULL) says where, "messages[3].content", or is "". [any-thread] */
int clb_prompt_make(const clb_chat_format *chat, const clb_vocab *vocab, const clb_prompt_request *request,
                    clb_prompt *out, char param[64], clb_error *err);
void clb_prompt_free(clb_prompt *p);

/* How the reply to a prompt is read: what its parsers need, as long as the reply takes. Zeros: nothing to free. */
typedef struct clb_prompt_reply {
    const clb_tool_format *format;
    json_t *tools; /* NULL: none, or none may be called */
    char *opened;  /* marks that the prompt ended with */
    bool reasoning;
    bool answer; /* it follows a grammar */
} clb_prompt_reply;

/* Takes what it needs out of the prompt, and holds the request's tools. */
clb_prompt_reply clb_prompt_take_reply(clb_prompt *p, const clb_prompt_request *request);
void clb_prompt_reply_free(clb_prompt_reply *reply);
/* A parser of one choice. */
int clb_prompt_reply_parser(const clb_prompt_reply *reply,
                            int (*on_piece)(void *ctx, const clb_piece *piece, clb_error *err), void *ctx,
                            clb_reply_parser **out, clb_error *err);

#endif
