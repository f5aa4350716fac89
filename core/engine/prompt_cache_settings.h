/* What the settings say about the prompt cache (prompt-cache, prompt-cache-size), and what tells models apart in it. */
#ifndef CLB_ENGINE_PROMPT_CACHE_SETTINGS_H
#define CLB_ENGINE_PROMPT_CACHE_SETTINGS_H

#include "config/config.h"
#include "gguf/gguf.h"
#include "kv/kv.h"

#define CLB_MODEL_IDENTITY 16
/* A hash over the model's files: lengths, headers (metadata, tensor table), and of the weights the checksums of a
 * packed file, or else samples of every tensor and the times of modification. Reads some megabytes. IO. */
int clb_model_identity(const clb_gguf *g, uint8_t out[CLB_MODEL_IDENTITY], clb_error *err);

/* Whether one is configured. USAGE: without kv-share. */
int clb_prompt_cache_wanted(const clb_config *config, bool *wanted, clb_error *err);
/* Opens it for a cache that shares under a salt with the model's identity. */
int clb_prompt_cache_attach(const clb_config *config, clb_kv_cache *kv, clb_error *err);

#endif
