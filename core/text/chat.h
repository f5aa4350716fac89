/* Chat prompts: messages rendered in the format that the model was trained on.
 *
 * The family is recognised from tokenizer.chat_template; an unknown template is UNSUPPORTED and the message names
 * it (its first line) and the way round (--raw). */
#ifndef CLB_TEXT_CHAT_H
#define CLB_TEXT_CHAT_H

#include "base/error.h"
#include "base/str.h"
#include "gguf/gguf.h"

typedef struct clb_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} clb_message;

/* A family: ChatML, Llama-3, Gemma, Mistral, DeepSeek, GLM-4, gpt-oss, ... */
typedef struct clb_chat_format clb_chat_format;

/* From the GGUF's template. No template at all: NOT_FOUND. */
int clb_chat_detect(const clb_gguf *g, const clb_chat_format **out, clb_error *err);
/* The same from a template's text. */
int clb_chat_detect_template(clb_str jinja, const clb_chat_format **out, clb_error *err);
const clb_chat_format *clb_chat_by_name(const char *name); /* "chatml", ...; NULL if unknown */
const char *clb_chat_name(const clb_chat_format *format);
/* Appends the prompt; with add_generation the opening of the assistant's turn. Roles that the family cannot express
 * are an error. Special tokens appear as text: tokenize with CLB_TOKENIZE_SPECIAL. */
int clb_chat_render(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                    clb_buf *out, clb_error *err);

#endif
