/* Settings: one typed table (settings.def) from which INI keys, flags, environment variables, --help, the man page
 * and --print-config are derived.
 *
 * Layers, later wins: default, /etc/colibri/colibri.ini, the user's config folder, colibri.ini beside the model,
 * --config FILE, environment, flags and --set. Every value remembers its origin. An unknown or inapplicable key is an
 * error that names the nearest valid one. */
#ifndef CLB_CONFIG_CONFIG_H
#define CLB_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "colibri/param.h"

/* Setting ids: CLB_SET_<section>_<key> with '-' as '_', e.g. CLB_SET_memory_max_memory. */
enum clb_setting {
#define CLB_SETTING(section, key, ...) CLB_SET_##section##_##key,
#include "config/settings.def"
#undef CLB_SETTING
    CLB_SET_COUNT
};

typedef struct clb_config clb_config;

int clb_config_create(clb_config **out, clb_error *err);
void clb_config_destroy(clb_config *config);

/* One INI file. Missing file: NOT_FOUND. `origin` in messages and --print-config is "path:line". */
int clb_config_load_file(clb_config *config, const char *path, clb_error *err);
/* The default files that exist: /etc, user, beside `model` (may be NULL). World-writable ones are refused. */
int clb_config_load_defaults(clb_config *config, const char *model, clb_error *err);
int clb_config_load_env(clb_config *config, clb_error *err);
/* "section.key=value" or "key=value" where the key is unique. */
int clb_config_set(clb_config *config, const char *assignment, const char *origin, clb_error *err);

/* Typed reads; asking with the wrong type is a bug (assert). Lists are split at ':' (paths) or ',' (ids). */
const char *clb_config_str(const clb_config *config, enum clb_setting id); /* never NULL; "" if unset */
uint64_t clb_config_u64(const clb_config *config, enum clb_setting id);    /* integers and byte sizes */
double clb_config_f64(const clb_config *config, enum clb_setting id);
bool clb_config_bool(const clb_config *config, enum clb_setting id);
size_t clb_config_list(const clb_config *config, enum clb_setting id, const char *const **items);
bool clb_config_is_set(const clb_config *config, enum clb_setting id); /* by any layer above the default */
const char *clb_config_origin(const clb_config *config, enum clb_setting id);

/* Parameters of a policy or strategy: section "<kind>.<name>" of the INI (e.g. [expert-policy.lfu] decay = 0.99), checked against
 * the plugin's declaration; out[n]. Unknown keys and values out of range are errors. */
int clb_config_params(const clb_config *config, const char *kind, const char *name, const struct colibri_param *params,
                      uint32_t n, double *out, clb_error *err);

#endif
