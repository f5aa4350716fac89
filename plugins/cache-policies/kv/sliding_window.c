/* sliding-window: the first few positions ("attention sinks") and the last ones stay.
 *
 * Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453. There the kept
 * tokens are renumbered, as `streaming` does; here they keep their original positions, so a model still must not run
 * past the positions that it was trained for.
 *
 * The host cuts a page of positions at a time, so the window is between `window` and `window` + one page long. */
#include "window.h"

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_DETERMINISTIC,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "sliding-window",
    .summary = "keeps the first few tokens and the last ones (lossy)",
    .source = "StreamingLLM, arXiv:2309.17453",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .budget = budget,
    .select = select_positions,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_sliding_window, NULL, get, .id = "colibri.kv-strategy.sliding-window",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the first few tokens and the last ones (lossy)");
