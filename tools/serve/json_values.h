/* JSON as a chat template's data. */
#ifndef CLB_SERVE_JSON_VALUES_H
#define CLB_SERVE_JSON_VALUES_H

#include <jansson.h>

#include "text/jinja_data.h"

/* NULL if d has failed (clb_jdata_status) or j is NULL. All strings are tainted. */
clb_jvalue *clb_json_values(clb_jdata *d, const json_t *j);
/* A list of messages: the same, but for roles that are words, which templates make marks of. */
clb_jvalue *clb_json_messages(clb_jdata *d, const json_t *messages);

#endif
