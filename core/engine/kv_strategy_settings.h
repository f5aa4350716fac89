/* What the settings, or a spec like "ada:floor=8/snapkv:window=32", say about the KV strategy: the chain of components with
 * their parameters, positions, protection and budget. */
#ifndef CLB_ENGINE_KV_STRATEGY_SETTINGS_H
#define CLB_ENGINE_KV_STRATEGY_SETTINGS_H

#include "config/config.h"
#include "kv/kv.h"
#include "plugin/registry.h"

#define CLB_KV_CHAIN_MOST 4u /* strategies of a chain, the innermost included */

/* Zero-initialised: nothing chosen. May be copied while the original lives; one of them is freed. */
typedef struct clb_kv_choice {
    const struct colibri_kv_strategy *strategy; /* the outermost */
    double *params;                             /* of it */
    struct colibri_kv_child *child;             /* what it wraps; NULL: nothing */
    enum clb_kv_renumber positions;
    uint32_t n_protected;
    clb_share budget; /* positions per (layer, head) as configured, or a part of the context length; 0: all of it */
    clb_kv_traits traits;
    bool picks_pages; /* drops nothing, but new tokens look at `budget` positions only */
    const struct clb_kv_future *future; /* what COLIBRI_KV_NEED_FUTURE asks; NULL: unknown. Set by whoever knows */
    char *name;       /* the chain: "ada/snapkv" */
    char *text;       /* with the parameters that differ from the declared defaults: "ada/snapkv:window=32" */
} clb_kv_choice;

/* spec NULL: the configured chain. Parameters are those of the sections [kv-strategy.NAME], then those of the spec;
 * positions, protection and budget are the configured ones. NOT_FOUND (an unknown name: the nearest and all), USAGE
 * (parameters, what wraps what, a budget for a strategy that has no use for it; messages start with where it was said). */
int clb_kv_choice_parse(clb_registry *registry, const clb_config *config, const char *spec, clb_kv_choice *out,
                        clb_error *err);
void clb_kv_choice_free(clb_kv_choice *choice);

bool clb_kv_choice_bounded(const clb_kv_choice *choice); /* a budget is configured */
/* Budget in positions for a context of `ctx` tokens; at most ctx, at least 1. */
uint32_t clb_kv_choice_budget(const clb_kv_choice *choice, uint32_t ctx);
/* Results may differ from those of the full cache. */
bool clb_kv_choice_lossy(const clb_kv_choice *choice);
/* "original" or "compact": what applies. */
const char *clb_kv_choice_positions(const clb_kv_choice *choice);

#endif
