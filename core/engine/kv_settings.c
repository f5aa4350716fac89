#include "engine/kv_settings.h"

#include <stdio.h>
#include <string.h>

#include "ops/kv_quant.h"

static uint32_t type_of(const char *name)
{
    static const uint32_t types[] = {COLIBRI_TYPE_F32, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, clb_kv_type_name(types[i])) == 0)
            return types[i];
    return COLIBRI_TYPE_F16; /* the settings table admits no other word */
}

/* The type of keys or values, checked against their dimension. */
static int read_type(const clb_config *config, enum clb_setting own, const char *own_flag, const char *what,
                     uint32_t dim, uint32_t *out, clb_error *err)
{
    const bool same = strcmp(clb_config_str(config, own), "same") == 0;
    *out = type_of(clb_config_str(config, same ? CLB_SET_kv_kv_type : own));
    if (clb_kv_type_quantized(*out) && dim % CLB_KV_QUANT_BLOCK)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "%s %s does not apply: it takes blocks of %u elements, and a head of the model's %s has %u "
                        "(f16 and f32 take any)",
                        same ? "--kv-type" : own_flag, clb_kv_type_name(*out), CLB_KV_QUANT_BLOCK, what, dim);
    return COLIBRI_OK;
}

int clb_kv_settings_read(const clb_config *config, clb_kv_layout *l, clb_error *err)
{
    l->page_tokens = (uint32_t)clb_config_u64(config, CLB_SET_kv_kv_block_size);
    if (l->page_tokens % 16)
        return clb_fail(err, COLIBRI_E_USAGE, "--kv-block-size %u: must be a multiple of 16", l->page_tokens);
    CLB_TRY(read_type(config, CLB_SET_kv_kv_type_k, "--kv-type-k", "keys", l->k_dim, &l->k_type, err));
    CLB_TRY(read_type(config, CLB_SET_kv_kv_type_v, "--kv-type-v", "values", l->v_dim, &l->v_type, err));
    const char *const turn = clb_config_str(config, CLB_SET_kv_kv_turn);
    const bool on = strcmp(turn, "on") == 0, automatic = strcmp(turn, "auto") == 0;
    l->turn_k = on ? clb_kv_type_quantized(l->k_type) : automatic && l->k_type == COLIBRI_TYPE_Q4_0;
    l->turn_v = on ? clb_kv_type_quantized(l->v_type) : automatic && l->v_type == COLIBRI_TYPE_Q4_0;
    l->recent = (uint32_t)clb_config_u64(config, CLB_SET_kv_kv_recent);
    if (l->recent % 16)
        return clb_fail(err, COLIBRI_E_USAGE, "--kv-recent %u: must be a multiple of 16", l->recent);
    if (!clb_kv_has_recent(l))
        l->recent = 0;
    return COLIBRI_OK;
}

uint32_t clb_kv_layout_takes(const clb_kv_layout *l)
{
    const bool q8 = l->k_type == COLIBRI_TYPE_Q8_0 || l->v_type == COLIBRI_TYPE_Q8_0;
    const bool q4 = l->k_type == COLIBRI_TYPE_Q4_0 || l->v_type == COLIBRI_TYPE_Q4_0;
    return (q8 ? COLIBRI_ATTN_TAKES_Q8_0 : 0) | (q4 ? COLIBRI_ATTN_TAKES_Q4_0 : 0) |
           (clb_kv_has_recent(l) ? COLIBRI_ATTN_TAKES_RECENT : 0);
}

const char *clb_kv_types_text(const clb_kv_layout *l, char out[CLB_KV_LAYOUT_TEXT])
{
    const char *const k = clb_kv_type_name(l->k_type), *const v = clb_kv_type_name(l->v_type);
    if (l->k_type == l->v_type && l->turn_k == l->turn_v)
        snprintf(out, CLB_KV_LAYOUT_TEXT, "%s%s", k, l->turn_k ? " turned" : "");
    else
        snprintf(out, CLB_KV_LAYOUT_TEXT, "k %s%s, v %s%s", k, l->turn_k ? " turned" : "", v,
                 l->turn_v ? " turned" : "");
    return out;
}

const char *clb_kv_layout_text(const clb_kv_layout *l, char out[CLB_KV_LAYOUT_TEXT])
{
    clb_kv_types_text(l, out);
    const size_t n = strlen(out);
    if (clb_kv_has_recent(l))
        snprintf(out + n, CLB_KV_LAYOUT_TEXT - n, ", last %u f16", l->recent);
    return out;
}

bool clb_kv_layout_lossy(const clb_kv_layout *l)
{
    return clb_kv_type_quantized(l->k_type) || clb_kv_type_quantized(l->v_type);
}
