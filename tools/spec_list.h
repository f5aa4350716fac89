/* Lists of components with parameters: "lru,lfu:half-life=16,k=2,ada:floor=8/snapkv". */
#ifndef CLB_TOOLS_SPEC_LIST_H
#define CLB_TOOLS_SPEC_LIST_H

#include "base/error.h"

typedef int (*clb_spec_fn)(void *ctx, const char *item, clb_error *err);

/* Calls add for each item. A comma starts a new one unless a key and '=' follow an item with parameters. USAGE for
 * empty and for very long items; a status of add ends it. */
int clb_each_spec(const char *list, clb_spec_fn add, void *ctx, clb_error *err);

#endif
