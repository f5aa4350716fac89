/* One matmul and nothing else: the components of plugins whose fault lies elsewhere. */
#ifndef TEST_PLUGIN_COMMON_GET_H
#define TEST_PLUGIN_COMMON_GET_H

#include "common.h"

static const struct colibri_matmul test_only_matmul = TEST_MATMUL("test.q4_0", 50, COLIBRI_EXACT, 1);

static inline const void *test_get(const char *iface, uint32_t index)
{
    return test_pick(iface, index, COLIBRI_IFACE_MATMUL, &test_only_matmul);
}

#define TEST_PLUGIN(ident, initfn, getfn, plugin_id, text)                                                             \
    COLIBRI_PLUGIN_DEFINE(ident, initfn, getfn, .id = plugin_id, .kinds = COLIBRI_KIND_KERNEL, .rank = 50,             \
                          .version = "1.0.0", .summary = text, .license = "MIT")

#endif
