/* The older completions in two files: the request (openai_completions.c) and the reply (openai_completions_reply.c). */
#ifndef CLB_SERVE_OPENAI_COMPLETIONS_H
#define CLB_SERVE_OPENAI_COMPLETIONS_H

#include "serve/openai.h"
#include "serve/openai_prompts.h"

/* One prompt as it is echoed. */
typedef struct clb_echo {
    clb_buf text;
    uint64_t chars;
    clb_json_buf logprobs[4]; /* of its tokens, if they were scored */
} clb_echo;

typedef struct clb_completions_own {
    clb_echo *echo; /* [n]; NULL: no echo */
    size_t n;
    clb_json_buf head;
} clb_completions_own;

/* Takes the texts out of the prompts if they are to be echoed; ids are turned into text. */
int clb_completions_own_create(const clb_vocab *vocab, clb_openai_prompts *prompts, bool echo,
                               clb_completions_own **out, clb_refusal *r);
void clb_completions_own_free(void *own);

extern const clb_completion_shape clb_openai_completions_shape;

#endif
