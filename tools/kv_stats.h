/* What was kept of a text, and why: lines of --stats and members of its "kv" object. */
#ifndef CLB_TOOLS_KV_STATS_H
#define CLB_TOOLS_KV_STATS_H

#include <jansson.h>
#include <stdio.h>

#include "engine/session.h"

/* Nothing if nothing can have been dropped. */
void clb_kv_stats_print(FILE *f, const clb_engine *engine, const clb_session *session);
/* Adds to the object; "lossy" becomes true where it was not already. */
void clb_kv_stats_json(json_t *kv, const clb_engine *engine, const clb_session *session);

/* Where the prompt's tokens came from, and what is shared (g may be NULL). */
void clb_kv_share_print(FILE *f, const clb_engine *engine, const clb_generation *g);
json_t *clb_kv_share_json(const clb_engine *engine, const clb_generation *g);

#endif
