#include "engine/prompt_cache_settings.h"

#include "kv/prefix.h"

int clb_prompt_cache_wanted(const clb_config *config, bool *wanted, clb_error *err)
{
    *wanted = *clb_config_str(config, CLB_SET_kv_prompt_cache) != '\0';
    if (*wanted && !clb_config_bool(config, CLB_SET_kv_kv_share))
        return clb_fail(err, COLIBRI_E_USAGE, "--prompt-cache: keeps what is shared, and kv-share is off");
    return COLIBRI_OK;
}

int clb_prompt_cache_attach(const clb_config *config, clb_kv_cache *kv, clb_error *err)
{
    return clb_kv_share_on_disk(kv, clb_config_str(config, CLB_SET_kv_prompt_cache),
                                clb_config_u64(config, CLB_SET_kv_prompt_cache_size), err);
}
