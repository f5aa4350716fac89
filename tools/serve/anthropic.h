/* Anthropic's Messages API in three files: the request (anthropic.c), its messages and tools in OpenAI's shape
 * (anthropic_messages.c), and the reply (anthropic_reply.c). */
#ifndef CLB_SERVE_ANTHROPIC_H
#define CLB_SERVE_ANTHROPIC_H

#include "serve/completion.h"
#include "serve/prompt.h"

/* messages and system -> a new list of messages in OpenAI's shape; tools -> a new list, NULL if there are none. */
int clb_anthropic_messages(const json_t *body, json_t **out, clb_refusal *r);
int clb_anthropic_tools(const json_t *body, json_t **out, clb_refusal *r);

/* What the reply needs beside the events: takes it out of the prompt. */
int clb_anthropic_own_create(clb_prompt *prompt, const clb_prompt_request *request, clb_prompt_reply **out,
                             clb_refusal *r);
extern const clb_completion_shape clb_anthropic_shape;

/* {"type": "error", "error": {"type", "message"}, "request_id"} */
void clb_anthropic_refuse(clb_exchange *x, const clb_refusal *r);

#endif
