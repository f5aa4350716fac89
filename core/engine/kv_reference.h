/* Another KV cache over the same weights: full F16 rows, for what an evaluation compares lossy settings with.
 *
 * [engine-thread] */
#ifndef CLB_ENGINE_KV_REFERENCE_H
#define CLB_ENGINE_KV_REFERENCE_H

#include "engine/engine.h"

/* An engine for clb_kv_trial_run alone: everything but the cache and the buffers of the pass is borrowed from the one
 * that was opened. */
typedef struct clb_kv_reference {
    clb_engine engine;
    bool own; /* the cache and the pass; else they are the opened engine's, which holds F16 rows itself */
} clb_kv_reference;

/* Sequences that an engine with rows of these types must be planned for, so that one full F16 sequence fits beside one
 * of its own: what the reference takes is then part of the plan. */
uint32_t clb_kv_reference_sequences(uint32_t k_type, uint32_t v_type);

/* cancelled: as in clb_engine_options. Close it before the engine, also after an error. */
int clb_kv_reference_open(const clb_engine *engine, bool (*cancelled)(void *ctx), void *ctx, clb_kv_reference *out,
                          clb_error *err);
void clb_kv_reference_close(clb_kv_reference *reference);

#endif
