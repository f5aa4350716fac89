/* Running the grid of colibri compare --strategies. */
#ifndef CLB_TOOLS_COMPARE_KV_RUN_H
#define CLB_TOOLS_COMPARE_KV_RUN_H

#include "compare_kv.h"

/* Opens the model, runs what is asked for and not there yet (--continue), and keeps every result in --jsonl as it
 * comes. On request it stops between results: c->interrupted, OK. */
int clb_kvc_run(clb_kvc *c, clb_args *args, clb_error *err);

#endif
