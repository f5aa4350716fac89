/* Prompts as the older completions and embeddings take them: a string, strings, token ids, or arrays of token ids. */
#ifndef CLB_SERVE_OPENAI_PROMPTS_H
#define CLB_SERVE_OPENAI_PROMPTS_H

#include "serve/completion.h"

#define CLB_PROMPTS_MOST 2048

typedef struct clb_openai_prompts {
    clb_tokens *tokens; /* [n] */
    clb_buf *texts;     /* [n] the strings; empty where ids were given */
    size_t n;
    bool are_texts;
} clb_openai_prompts;

/* flags: those of clb_tokenize. `suffix` (may be NULL): what comes behind the text, if the model knows how to fill in.
 */
int clb_openai_prompts_read(const clb_vocab *vocab, const json_t *body, const char *name, const char *suffix,
                            uint32_t flags, clb_openai_prompts *out, clb_refusal *r);
void clb_openai_prompts_free(clb_openai_prompts *p);

/* The vocabulary's tokens for filling in: {prefix} text {suffix} text {middle}. False: it has none. */
bool clb_fim_tokens(const clb_vocab *vocab, uint32_t ids[3]);

#endif
