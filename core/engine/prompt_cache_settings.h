/* What the settings say about the prompt cache (prompt-cache, prompt-cache-size). */
#ifndef CLB_ENGINE_PROMPT_CACHE_SETTINGS_H
#define CLB_ENGINE_PROMPT_CACHE_SETTINGS_H

#include "engine/kv_strategy_settings.h"

/* Whether one is configured. USAGE: without kv-share, or in a folder called "~". */
int clb_prompt_cache_wanted(const clb_config *config, bool *wanted, clb_error *err);
/* Opens it for a cache that shares under a salt with the model's identity; warns if the strategy shares nothing. */
int clb_prompt_cache_attach(const clb_config *config, const clb_kv_choice *choice, const clb_log *log, clb_kv_cache *kv,
                            clb_error *err);

#endif
