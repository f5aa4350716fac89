/* What the request of chat and that of responses share on the way to a prompt. */
#ifndef CLB_SERVE_OPENAI_PROMPT_H
#define CLB_SERVE_OPENAI_PROMPT_H

#include "serve/openai.h"
#include "serve/prompt.h"

/* tool_choice of a request that has its tools: *allowed is a new list where only some of them may be called. */
int clb_openai_chat_tool_choice(const json_t *body, clb_prompt_request *p, json_t **allowed, clb_refusal *r);
int clb_openai_responses_tool_choice(const json_t *body, clb_prompt_request *p, json_t **allowed, clb_refusal *r);
/* The model has a chat template. */
int clb_openai_needs_chat(const clb_app *app, clb_refusal *r);

#endif
