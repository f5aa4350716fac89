/* Chat prompts: messages rendered in the format that the model was trained on.
 *
 * The model's own template (tokenizer.chat_template, Jinja) is interpreted, with the values that `transformers` passes:
 * messages, add_generation_prompt, bos_token, eos_token, and with the _values functions tools, documents and more. What
 * the interpreter does not know is UNSUPPORTED: the message names the line and the way round (--raw); where the
 * template's family has a built-in format, that one is used instead (clb_chat_note says so). What the template itself
 * refuses (raise_exception: a role or an order of roles) is USAGE. */
#ifndef CLB_TEXT_CHAT_H
#define CLB_TEXT_CHAT_H

#include "base/error.h"
#include "base/str.h"
#include "gguf/gguf.h"
#include "text/jinja.h"
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

/* ---- whole conversations ---- */

/* A conversation as the template gets it. Values as JSON has them; NULL: not given. */
typedef struct clb_chat_values {
    const clb_jvalue *messages;  /* list of dicts: role, content, tool_calls, ... */
    const clb_jvalue *tools;     /* list of {"type": "function", "function": {...}} */
    const clb_jvalue *documents; /* list */
    const clb_jvalue *more;      /* dict of further variables: enable_thinking, ... */
    bool add_generation;
    bool continue_last; /* instead: the prompt ends within the last message, which the model goes on with */
    int64_t now;        /* Unix time of strftime_now; 0: the clock */
} clb_chat_values;

/* As above. Nothing is adapted to what the template can do: see clb_chat_caps. */
int clb_chat_render_values(const clb_chat_format *format, const clb_chat_values *values, clb_buf *out, clb_error *err);
int clb_chat_tokenize_values(const clb_chat_format *format, const clb_vocab *vocab, const clb_chat_values *values,
                             clb_tokens *out, clb_error *err);

/* The same in two steps, for a caller that looks at the text, or writes more behind it (taint 0 for marks of its own, 1
 * for what is not). */
int clb_chat_render_marked(const clb_chat_format *format, const clb_chat_values *values, clb_jinja_output *out,
                           clb_error *err);
int clb_chat_tokenize_marked(const clb_chat_format *format, const clb_vocab *vocab, const clb_jinja_output *text,
                             clb_tokens *out, clb_error *err);

/* What a template makes use of, found by rendering small conversations and looking for what went in. */
typedef struct clb_chat_caps {
    bool system;           /* a system message shows in the prompt */
    bool developer;        /* so does one of role "developer" */
    bool tools;            /* `tools` show */
    bool tool_calls;       /* an assistant message's tool_calls show */
    bool tool_results;     /* a message of role "tool" shows */
    bool object_arguments; /* the arguments of a call as an object; otherwise as a string of JSON */
    bool null_content;     /* content may be null beside tool_calls; otherwise "" */
    bool typed_content;    /* content must be a list of parts: as a string it does not show */
    bool thinking;         /* enable_thinking changes the prompt */
    bool parallel_calls;   /* a message may have several calls */
} clb_chat_caps;
/* A property of the format; found at the first call. [any-thread] */
const clb_chat_caps *clb_chat_get_caps(const clb_chat_format *format);

/* The template's text. */
clb_str clb_chat_source(const clb_chat_format *format);
/* Why a built-in format stands in for the model's own template; NULL if it does not. One line, for a warning. */
const char *clb_chat_note(const clb_chat_format *format);
/* The format of a setting: the name of a built-in one, or else a file with a Jinja template, with BOS and EOS of the
 * model (NULL: "<s>", "</s>"). */
int clb_chat_open(const char *name_or_path, const clb_gguf *g, const clb_chat_format **out, clb_error *err);

#endif
