/* Figures of the weight store for --stats and --json. */
#ifndef CLB_TOOLS_STORE_STATS_H
#define CLB_TOOLS_STORE_STATS_H

#include <jansson.h>
#include <stdio.h>

#include "store/store.h"

void clb_print_store_stats(FILE *f, const clb_store_stats *s);
/* Adds "experts" and "reading" to `out`, as far as they apply. */
void clb_store_stats_json(json_t *out, const clb_store_stats *s);

/* Look-ups of prompts, and of generation (passes that verify guessed tokens included). */
clb_cache_lookups clb_prompt_lookups(const clb_store_stats *s);
clb_cache_lookups clb_generation_lookups(const clb_store_stats *s);
/* In percent; what was on its way is no hit; `none` without any look-up. */
double clb_hit_percent(const clb_cache_lookups *n, double none);

#endif
