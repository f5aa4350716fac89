/* Inside of the chat formats. */
#ifndef CLB_TEXT_CHAT_IMPL_H
#define CLB_TEXT_CHAT_IMPL_H

#include <pthread.h>

#include "text/chat.h"
#include "text/jinja.h"

struct clb_chat_format {
    const char *name;
    const char *source; /* built-in: the template; NULL: what follows is owned */
    clb_jinja *jinja;
    char *text; /* of the template */
    size_t n_text;
    char *bos, *eos;
    char *note; /* why `stand_in` is used */
    const clb_chat_format *stand_in;
    pthread_mutex_t lock; /* of the caps */
    bool has_caps;
    clb_chat_caps caps;
};

extern const clb_chat_format clb_chat_builtins[]; /* ends with name == NULL */

/* Rendering at a given time, with the taint of every byte. Nothing is left out. */
int clb_chat_render_at(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                       int64_t now, clb_jinja_output *out, clb_error *err);

/* The template, or the one that stands in for it. */
int clb_chat_run(const clb_chat_format *format, clb_jinja_input *in, clb_jinja_output *out, clb_error *err);
/* chat_caps.c: tries it out. */
void clb_chat_probe(const clb_chat_format *format, clb_chat_caps *out);

#endif
