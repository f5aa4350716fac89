/* What was planned and predicted, beside what came of it. */
#ifndef CLB_TOOLS_PLAN_STATS_H
#define CLB_TOOLS_PLAN_STATS_H

#include <jansson.h>
#include <stdio.h>

#include "engine/session.h"

/* g may be NULL: nothing was generated. */
void clb_plan_stats_print(FILE *f, const clb_engine *engine, const clb_generation *g);
json_t *clb_plan_stats_json(const clb_engine *engine, const clb_generation *g);

#endif
