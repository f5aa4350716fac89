/* What the settings say about the bytes of the KV cache: types, turning, the recent window, the block size. */
#ifndef CLB_ENGINE_KV_SETTINGS_H
#define CLB_ENGINE_KV_SETTINGS_H

#include "config/config.h"
#include "kv/kv.h"

/* The part of *layout that is configured, for a model whose head dimensions *layout already has. USAGE: what does not
 * go together; the message names the setting. */
int clb_kv_settings_read(const clb_config *config, clb_kv_layout *layout, clb_error *err);

/* COLIBRI_ATTN_TAKES_* that attention over this layout needs. */
uint32_t clb_kv_layout_takes(const clb_kv_layout *layout);
/* "f16", "k q8_0, v q4_0 turned": the types. / The same with ", last 64 f16" if there is a recent window. Return out.
 */
#define CLB_KV_LAYOUT_TEXT 64
const char *clb_kv_types_text(const clb_kv_layout *layout, char out[CLB_KV_LAYOUT_TEXT]);
const char *clb_kv_layout_text(const clb_kv_layout *layout, char out[CLB_KV_LAYOUT_TEXT]);
/* Logits differ from those of an F16 cache. */
bool clb_kv_layout_lossy(const clb_kv_layout *layout);

#endif
