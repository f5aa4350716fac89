#include "machine_rates.h"

#include <string.h>

void clb_machine_rates(const clb_config *config, const clb_engine *engine, const char *cpu_model, bool measure,
                       bool again, clb_rates *out)
{
    char path[4096];
    const bool nowhere = strcmp(clb_config_str(config, CLB_SET_kernels_cache_file), "none") == 0;
    const char *const direct = clb_config_str(config, CLB_SET_store_direct);
    const clb_rates_options options = {.model = engine->model,
                                       .pool = engine->pool,
                                       .cpu_model = cpu_model,
                                       .cache_file =
                                           !nowhere && clb_rates_default_path(path, sizeof path) ? path : NULL,
                                       .measure = measure,
                                       .again = again,
                                       .direct = strcmp(direct, "on") == 0    ? 1
                                                 : strcmp(direct, "off") == 0 ? 2
                                                                              : 0};
    clb_rates_get(&options, out);
}
