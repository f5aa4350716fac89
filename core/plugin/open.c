#include "plugin/open.h"

#include "cpu/cpu.h"

int clb_cpu_from_config(const clb_config *config, struct colibri_cpu_bits *out, clb_error *err)
{
    struct colibri_cpu_bits mask = {{0}};
    const char *const *names;
    const size_t n = clb_config_list(config, CLB_SET_cpu_mask, &names);
    for (size_t i = 0; i < n; i++)
        if (clb_cpu_parse(names[i], &mask, err))
            return clb_context(err, "cpu.mask (%s)", clb_config_origin(config, CLB_SET_cpu_mask));
    clb_cpu_detect(out);
    *out = clb_cpu_mask(*out, mask);
    return COLIBRI_OK;
}

int clb_registry_from_config(const clb_config *config, const char *builtin_dir, const clb_log *log, clb_registry **out,
                             clb_error *err)
{
    clb_registry_options o = {.builtin_dir = builtin_dir ? builtin_dir : COLIBRI_PLUGIN_DIR,
                              .use_env = true,
                              .allow_inexact = clb_config_bool(config, CLB_SET_kernels_allow_inexact),
                              .log = log};
    CLB_TRY(clb_cpu_from_config(config, &o.cpu, err));
    o.n_dirs = clb_config_list(config, CLB_SET_plugins_path, &o.dirs);
    o.n_prefer = clb_config_list(config, CLB_SET_plugins_prefer, &o.prefer);
    o.n_deny = clb_config_list(config, CLB_SET_plugins_deny, &o.deny);
    return clb_registry_open(&o, out, err);
}
