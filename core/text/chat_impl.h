/* Inside of the chat formats. */
#ifndef CLB_TEXT_CHAT_IMPL_H
#define CLB_TEXT_CHAT_IMPL_H

#include "text/chat.h"
#include "text/jinja.h"

struct clb_chat_format {
    const char *name;
    const char *source; /* built-in: the template; NULL: jinja below is owned */
    clb_jinja *jinja;
    char *bos, *eos;
};

extern const clb_chat_format clb_chat_builtins[]; /* ends with name == NULL */

/* Rendering at a given time, with the taint of every byte. Nothing is left out. */
int clb_chat_render_at(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                       int64_t now, clb_jinja_output *out, clb_error *err);

#endif
