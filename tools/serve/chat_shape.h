/* Messages and tools in the shape of chat, which prompts are made of, out of another API's. */
#ifndef CLB_SERVE_CHAT_SHAPE_H
#define CLB_SERVE_CHAT_SHAPE_H

#include "serve/fields.h"

/* A string of an object; "" if there is none. */
const char *clb_shape_text(const json_t *object, const char *key);
/* Its type is this one. */
bool clb_shape_is(const json_t *object, const char *type);

/* A new list of messages, which `read` fills. */
int clb_shape_messages(const json_t *body, int (*read)(const json_t *body, json_t *list, clb_refusal *r), json_t **out,
                       clb_refusal *r);
/* A call at the end of the message's. Takes `arguments`. */
int clb_shape_call(json_t *message, const char *id, const char *name, json_t *arguments, clb_refusal *r);
/* The body's tools as a new list, which `read` puts each into; NULL if there are none. What clb_tools_check says of
 * them is refused by `refuse`. */
int clb_shape_tools(const json_t *body, int (*read)(const json_t *tool, size_t i, json_t *list, clb_refusal *r),
                    int (*refuse)(clb_refusal *r, const char *param, const char *message), json_t **out,
                    clb_refusal *r);

#endif
