/* full: every past token stays. The lossless baseline, and what the host falls back to.
 *
 * Source: folklore (plain attention over the whole context). */
#include <string.h>

#include "colibri/kv_strategy.h"

/* Stateless; the host wants a non-NULL instance. */
static const char instance[] = "full";

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    return (void *)(uintptr_t)instance;
}

static void destroy(void *self)
{
    (void)self;
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_KEEPS_ALL | COLIBRI_KV_FLAG_DETERMINISTIC,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .name = "full",
    .summary = "keeps every past token (lossless)",
    .source = "folklore",
    .create = create,
    .destroy = destroy,
    .reset = destroy,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_full, NULL, get, .id = "colibri.kv-strategy.full",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps every past token (lossless)");
