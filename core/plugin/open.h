/* A registry from settings: the one way in which the tool and the engine open it. */
#ifndef CLB_PLUGIN_OPEN_H
#define CLB_PLUGIN_OPEN_H

#include "base/error.h"
#include "base/log.h"
#include "config/config.h"
#include "plugin/registry.h"

/* Reads [cpu] mask, [plugins] path, prefer, deny, [kernels] and [foreign.NAME]; to measure also [cpu] threads and [memory] max-memory.
 * COLIBRI_PLUGIN_PATH from the environment.
 * builtin_dir NULL: the folder given when Colibri was built. Errors: USAGE (mask, relative folder), NOMEM. */
int clb_registry_from_config(const clb_config *config, const char *builtin_dir, const clb_log *log, clb_registry **out,
                             clb_error *err);
/* Usable CPU bits after [cpu] mask. */
int clb_cpu_from_config(const clb_config *config, struct colibri_cpu_bits *out, clb_error *err);

#endif
