/* Chat prompts: messages rendered in the format that the model was trained on.
 *
 * The model's own template (tokenizer.chat_template, Jinja) is interpreted, with the values that `transformers` passes:
 * messages, add_generation_prompt, bos_token, eos_token; no tools, no documents. What the interpreter does not know is
 * UNSUPPORTED: the message names the line and the way round (--raw). What the template itself refuses
 * (raise_exception: a role or an order of roles) is USAGE. */
#ifndef CLB_TEXT_CHAT_H
#define CLB_TEXT_CHAT_H

#include "base/error.h"
#include "base/str.h"
#include "gguf/gguf.h"
#include "text/vocab.h"

typedef struct clb_message {
    const char *role; /* "system", "user", "assistant"; others if the template takes them */
    const char *content;
} clb_message;

/* A template, ready to render. Immutable: [any-thread]. */
typedef struct clb_chat_format clb_chat_format;

/* From the GGUF's template. No template at all: NOT_FOUND. */
int clb_chat_detect(const clb_gguf *g, const clb_chat_format **out, clb_error *err);
/* The same from a template's text, with "<s>" and "</s>" for bos_token and eos_token. */
int clb_chat_detect_template(clb_str jinja, const clb_chat_format **out, clb_error *err);
/* Templates that Colibri has itself: "chatml", "llama3", ...; NULL if unknown. clb_chat_builtin lists them. */
const clb_chat_format *clb_chat_by_name(const char *name);
const char *clb_chat_builtin(size_t i); /* NULL after the last */
/* Frees what detect made; NULL and built-in formats are fine. */
void clb_chat_free(const clb_chat_format *format);
/* The family, told by the marks in the template: "chatml", "llama3", "gemma", ...; "custom" if it is none of them. */
const char *clb_chat_name(const clb_chat_format *format);

/* Appends the prompt; with add_generation the opening of the assistant's turn. Special tokens appear as text: prefer
 * clb_chat_tokenize, because CLB_TOKENIZE_SPECIAL would also find those that a message contains. A BOS token at the
 * very beginning is left out: tokenizing adds it. */
int clb_chat_render(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                    clb_buf *out, clb_error *err);

/* Appends the ids of the prompt. Special tokens are recognised only where the template wrote them, never inside what
 * came from a message, so that text cannot forge the marks of a turn. BOS comes first if the template writes it or the
 * vocabulary adds it. */
int clb_chat_tokenize(const clb_chat_format *format, const clb_vocab *vocab, const clb_message *messages, size_t n,
                      int add_generation, clb_tokens *out, clb_error *err);

#endif
