/* Interpreter for the part of the Jinja language that chat templates use.
 *
 * Semantics are those of jinja2 with trim_blocks, lstrip_blocks and loop controls, as `transformers` sets it up:
 * Python's truth, comparison, slicing and printing; {% generation %} is transparent. Left out: inheritance, include and
 * import, call blocks, recursive loops, autoescape. A template is untrusted: depth, steps and memory are bounded.
 *
 * Every byte of a string knows whether it came from a message (tainted) or from the template, through all operations.
 */
#ifndef CLB_TEXT_JINJA_H
#define CLB_TEXT_JINJA_H

#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "text/jinja_data.h"

typedef struct clb_jinja clb_jinja;

typedef struct clb_jinja_message {
    clb_str role, content;
} clb_jinja_message;

typedef struct clb_jinja_input {
    const clb_jinja_message *messages;
    size_t n;
    int add_generation_prompt;
    clb_str bos_token, eos_token;
    int64_t now; /* Unix time of strftime_now */
    /* A dict of variables that go before the ones above: messages, tools, documents, whatever the template knows. NULL:
     * none. */
    const clb_jvalue *values;
} clb_jinja_input;

/* The text, and per byte 1 where it came from a message's content. */
typedef struct clb_jinja_output {
    clb_buf text, taint;
} clb_jinja_output;
void clb_jinja_output_free(clb_jinja_output *out);

/* Copies the source. A template that does not parse, or uses a statement that is not known, is UNSUPPORTED. */
int clb_jinja_parse(clb_str source, clb_jinja **out, clb_error *err);
void clb_jinja_free(clb_jinja *t);
/* [any-thread] raise_exception in the template and errors of types are USAGE, unknown filters, tests and functions
 * UNSUPPORTED, too much work LIMIT. */
int clb_jinja_render(const clb_jinja *t, const clb_jinja_input *in, clb_jinja_output *out, clb_error *err);

#endif
