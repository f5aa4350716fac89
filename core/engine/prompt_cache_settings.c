#include "engine/prompt_cache_settings.h"

#include <string.h>

#include "kv/prefix.h"

/* A folder of that name would be made where nobody looks for it, and is dangerous to remove. */
static bool has_tilde(const char *path)
{
    while (strncmp(path, "~/", 2) != 0 && strcmp(path, "~") != 0) {
        path = strchr(path, '/');
        if (!path++)
            return false;
    }
    return true;
}

int clb_prompt_cache_wanted(const clb_config *config, bool *wanted, clb_error *err)
{
    *wanted = *clb_config_str(config, CLB_SET_kv_prompt_cache) != '\0';
    if (*wanted && !clb_config_bool(config, CLB_SET_kv_kv_share))
        return clb_fail(err, COLIBRI_E_USAGE, "--prompt-cache: keeps what is shared, and kv-share is off");
    if (has_tilde(clb_config_str(config, CLB_SET_kv_prompt_cache)))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--prompt-cache %.200s: \"~\" is not expanded here; write the whole path of the folder",
                        clb_config_str(config, CLB_SET_kv_prompt_cache));
    return COLIBRI_OK;
}

int clb_prompt_cache_attach(const clb_config *config, const clb_kv_choice *choice, const clb_log *log, clb_kv_cache *kv,
                            clb_error *err)
{
    if (!clb_kv_traits_share(&choice->traits))
        clb_logf(log, COLIBRI_LOG_WARN,
                 "prompt cache: nothing is read or kept, as the KV strategy %s wants to see every token computed",
                 choice->name);
    return clb_kv_share_on_disk(kv, clb_config_str(config, CLB_SET_kv_prompt_cache),
                                clb_config_u64(config, CLB_SET_kv_prompt_cache_size), err);
}
