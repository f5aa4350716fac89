/* What the settings say about the prompt cache (prompt-cache, prompt-cache-size). */
#ifndef CLB_ENGINE_PROMPT_CACHE_SETTINGS_H
#define CLB_ENGINE_PROMPT_CACHE_SETTINGS_H

#include "config/config.h"
#include "kv/kv.h"

/* Whether one is configured. USAGE: without kv-share. */
int clb_prompt_cache_wanted(const clb_config *config, bool *wanted, clb_error *err);
/* Opens it for a cache that shares under a salt with the model's identity. */
int clb_prompt_cache_attach(const clb_config *config, clb_kv_cache *kv, clb_error *err);

#endif
