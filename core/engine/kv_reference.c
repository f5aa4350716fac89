#include "engine/kv_reference.h"

#include <string.h>

#define ELEMENTS 4096u /* whole blocks of every type */

uint32_t clb_kv_reference_sequences(uint32_t k_type, uint32_t v_type)
{
    const size_t full = 2 * clb_kv_row_bytes(COLIBRI_TYPE_F16, ELEMENTS);
    const size_t own = clb_kv_row_bytes(k_type, ELEMENTS) + clb_kv_row_bytes(v_type, ELEMENTS);
    if (k_type == COLIBRI_TYPE_F16 && v_type == COLIBRI_TYPE_F16)
        return 1; /* one cache, whose sequences take turns */
    return 1 + (uint32_t)((full + own - 1) / own);
}

int clb_kv_reference_open(const clb_engine *engine, bool (*cancelled)(void *ctx), void *ctx, clb_kv_reference *out,
                          clb_error *err)
{
    const clb_kv_layout *const l = &engine->kv_layout;
    *out = (clb_kv_reference){.engine = *engine};
    if (l->k_type == COLIBRI_TYPE_F16 && l->v_type == COLIBRI_TYPE_F16 && !l->turn_k && !l->turn_v)
        return COLIBRI_OK;
    clb_engine *const e = &out->engine;
    out->own = true;
    e->kv = NULL;
    e->forward = NULL;
    e->kv_layout.k_type = e->kv_layout.v_type = COLIBRI_TYPE_F16;
    e->kv_layout.turn_k = e->kv_layout.turn_v = false;
    e->kv_layout.recent = 0;
    e->kv_layout.recent_bytes = 0;
    CLB_TRY(clb_kv_cache_create(&e->kv_layout, clb_kv_bytes(&e->kv_layout, e->ctx), e->log, &e->kv, err));
    const clb_forward_options forward = {
        .model = e->model,
        .pool = e->pool,
        .kv_layout = e->kv_layout,
        .max_rows = e->batch,
        .cancelled = cancelled,
        .cancelled_ctx = ctx,
    };
    return clb_forward_create(&forward, &e->forward, err);
}

void clb_kv_reference_close(clb_kv_reference *r)
{
    if (r->own) {
        clb_forward_destroy(r->engine.forward);
        if (r->engine.kv)
            clb_kv_cache_destroy(r->engine.kv);
    }
    memset(r, 0, sizeof *r);
}
