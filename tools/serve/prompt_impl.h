/* Inside of prompt.c: the messages of a request as the template's values. */
#ifndef CLB_SERVE_PROMPT_IMPL_H
#define CLB_SERVE_PROMPT_IMPL_H

#include "serve/prompt.h"
#include "serve/tool_write.h"

typedef struct clb_adapter {
    const clb_prompt_request *request;
    const clb_chat_caps *caps;
    const clb_tool_format *format;
    clb_jdata *d;
    char *param;
    bool tools;        /* the template gets them */
    bool any_system;   /* the prompt says something before the first user's message */
    bool continued;    /* the last message is the assistant's */
    json_t *callers;   /* of the calls so far: id -> name of the latest one */
    clb_marked system; /* what no message has said yet: for the system message, or the next user's */
} clb_adapter;

/* A list of messages. */
int clb_adapt_messages(clb_adapter *a, clb_jvalue **out, clb_error *err);

#endif
