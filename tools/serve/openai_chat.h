/* Chat completions in two files: the request (openai_chat.c) and the reply (openai_chat_reply.c). */
#ifndef CLB_SERVE_OPENAI_CHAT_H
#define CLB_SERVE_OPENAI_CHAT_H

#include "serve/completion.h"
#include "serve/prompt.h"

/* What the reply needs beside the events. */
typedef struct clb_chat_own {
    clb_prompt_reply reply;
    clb_json_buf head;
} clb_chat_own;

/* Takes what it needs out of the prompt. */
int clb_chat_own_create(clb_prompt *prompt, const clb_prompt_request *request, clb_chat_own **out, clb_refusal *r);

extern const clb_completion_shape clb_openai_chat_shape;

#endif
