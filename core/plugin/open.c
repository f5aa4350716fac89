#include "plugin/open.h"

#include <limits.h>
#include <string.h>
#include <sys/auxv.h>

#include "cpu/cpu.h"
#include "cpu/topology.h"
#include "plugin/foreign.h"
#include "plugin/measure.h"

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

/* Where measured times are remembered; NULL: nowhere. A privileged process believes no file of its user's, and must not
 * write where its user points. */
static const char *cache_file(const clb_config *config, const clb_log *log, char path[PATH_MAX], bool *ours)
{
    const char *const given = clb_config_str(config, CLB_SET_kernels_cache_file);
    *ours = !*given;
    if (!strcmp(given, "none"))
        return NULL;
    if (getauxval(AT_SECURE)) {
        if (*given)
            clb_logf(log, COLIBRI_LOG_WARN, "kernels.cache-file is ignored in a privileged process");
        return NULL;
    }
    if (*given)
        return given;
    return clb_measure_default_path(path, PATH_MAX) ? path : NULL;
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
    char path[PATH_MAX];
    clb_topology t;
    if (!strcmp(clb_config_str(config, CLB_SET_kernels_select), "measure")) {
        clb_topology_read(&t);
        const uint64_t threads = clb_config_u64(config, CLB_SET_cpu_threads);
        const uint64_t room = clb_config_u64(config, CLB_SET_memory_max_memory) / 4;
        o.measure = (clb_measure_options){
            .enabled = true,
            .cpu_model = t.model,
            .n_threads = threads ? (uint32_t)threads : clb_topology_default_threads(&t),
            .max_bytes = room && room < CLB_MEASURE_BYTES ? room : CLB_MEASURE_BYTES,
        };
        o.measure.cache_file = cache_file(config, log, path, &o.measure.cache_file_is_ours);
    }
    clb_foreign_list foreign;
    CLB_TRY(clb_foreign_from_config(config, &foreign, err));
    o.foreign = foreign.at;
    o.n_foreign = foreign.n;
    const int rc = clb_registry_open(&o, out, err);
    clb_foreign_list_free(&foreign);
    return rc;
}
