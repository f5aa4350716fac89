/* streaming: the first few positions ("attention sinks") and the last ones stay, and count as 0, 1, 2, ... for the
 * rotation, so that a text of any length stays within the positions that the model was trained for.
 *
 * Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453: 4 sinks; the
 * window is what the memory allows (2000 in its code). sliding-window is the same with the original positions.
 *
 * The host cuts a page of positions at a time, so the window is between `window` and `window` + one page long. */
#include "window.h"

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_DETERMINISTIC,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
    .positions = COLIBRI_KV_POS_COMPACT,
    .n_params = sizeof params / sizeof params[0],
    .name = "streaming",
    .summary = "keeps the first few tokens and the last ones, renumbered from 0 (lossy)",
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

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_streaming, NULL, get, .id = "colibri.kv-strategy.streaming",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps the first tokens and the last ones, renumbered (lossy)");
