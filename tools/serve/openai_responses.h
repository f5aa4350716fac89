/* OpenAI's Responses API, without memory, in four files: the request (openai_responses.c), its items and tools in the
 * shape of chat (openai_responses_input.c), conversations that are too long (openai_responses_shorten.c), and the reply
 * (openai_responses_reply.c). */
#ifndef CLB_SERVE_OPENAI_RESPONSES_H
#define CLB_SERVE_OPENAI_RESPONSES_H

#include "serve/completion.h"
#include "serve/prompt.h"

/* instructions and input -> a new list of messages in chat's shape. */
int clb_responses_messages(const json_t *body, json_t **out, clb_refusal *r);
/* tools -> a new list in chat's shape, NULL if there are none. */
int clb_responses_tools(const json_t *body, json_t **out, clb_refusal *r);

/* How a conversation may be shortened, a cut at a time: message i is gone after (*cut)[i] cuts of *n_cuts, or stays (0).
 * *cut is the caller's to free. */
int clb_responses_cuts(const json_t *messages, uint32_t **cut, uint32_t *n_cuts, clb_refusal *r);
/* truncation "auto": a prompt that leaves no room in the context for max_tokens (0: as many as there is room for), or a
 * sixteenth of the context where that is less, is made again of a shorter conversation. Refused if even the shortest
 * one does not fit. */
int clb_responses_shorten(const clb_app *app, const clb_prompt_request *request, uint32_t max_tokens,
                          clb_prompt *prompt, clb_refusal *r);

/* What the reply needs beside the events, and the reply as far as it is written. */
typedef struct clb_responses_own clb_responses_own;

/* Takes what it needs out of the prompt. `body` is looked at for what the reply repeats. */
int clb_responses_own_create(const json_t *body, const clb_text_options *o, clb_prompt *prompt,
                             const clb_prompt_request *request, clb_responses_own **out, clb_refusal *r);
extern const clb_completion_shape clb_responses_shape;

#endif
