/* What the settings say about sharing KV pages between sequences (kv-share, kv-share-memory). */
#ifndef CLB_ENGINE_KV_SHARE_SETTINGS_H
#define CLB_ENGINE_KV_SHARE_SETTINGS_H

#include "engine/engine.h"

/* Memory beyond that of the running sequences for prefixes that nobody uses; 0 without sharing. Part of the plan. */
uint64_t clb_kv_share_memory(const clb_config *config);

/* Turns sharing on for the engine's cache, if it is configured. Call it last when an engine opens, before its first sequence:
 * then it is known which kernels compute. model: n_model bytes that tell models apart, for blocks that outlive the engine;
 * NULL: those of the engine, which has one model, are told apart well enough. */
int clb_kv_share_open(clb_engine *engine, const clb_config *config, const void *model, size_t n_model, clb_error *err);

#endif
