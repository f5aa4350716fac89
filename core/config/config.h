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

/* So many, or, if part is not 0, this part (at most 1) of something. */
typedef struct clb_share {
    uint64_t n;
    double part;
} clb_share;
/* Of `whole`, at least 1 and at most all of it; a part is rounded to the nearest. */
uint64_t clb_share_of(clb_share share, uint64_t whole);

int clb_config_create(clb_config **out, clb_error *err);
void clb_config_destroy(clb_config *config);

/* A failed load leaves the values read before the failure: destroy the config, or go on knowing that.
 *
 * One INI file, as named by the user. Missing: NOT_FOUND; writable by everybody: USAGE; not INI: FORMAT; unknown
 * section or key, wrong value, key given twice: USAGE. `origin` in messages and --print-config is "path:line". */
int clb_config_load_file(clb_config *config, const char *path, clb_error *err);
/* The default files that exist: /etc, user, beside `model` (may be NULL). World-writable ones are refused. The one
 * beside the model came with a download: it may tune (model, memory, cpu, store, kv, sampling, run), but not name
 * files, load code or open anything. */
int clb_config_load_defaults(clb_config *config, const char *model, clb_error *err);
/* A file judged as one beside a model, wherever it is. */
int clb_config_load_untrusted(clb_config *config, const char *path, clb_error *err);
/* The path of a default file, present or not: 0 system, 1 user ("" without HOME), 2 beside `model`. Into out; returns
 * out. */
char *clb_config_default_path(int which, const char *model, char *out, size_t n);
/* INI text from memory; `name` stands for the path; untrusted: as beside a model. */
int clb_config_load_text(clb_config *config, const char *text, size_t n, const char *name, bool untrusted,
                         clb_error *err);
/* COLIBRI_<KEY>. Any other COLIBRI_* is an error, except COLIBRI_PLUGIN_PATH and COLIBRI_TEST_*.
 * Ignored altogether in a privileged (setuid) process. */
int clb_config_load_env(clb_config *config, clb_error *err);
/* "section.key=value" or "key=value" where the key is unique; "expert-policy.NAME.parameter=value" and so on. */
int clb_config_set(clb_config *config, const char *assignment, const char *origin, clb_error *err);
/* One setting; messages start with `origin`. Origins that start with "--" are the command line, which may give a thing
 * once. */
int clb_config_set_value(clb_config *config, enum clb_setting id, const char *value, const char *origin,
                         clb_error *err);

/* Typed reads; asking with the wrong type is a bug (assert). Lists are split at ':' (paths) or ',' (ids). */
const char *clb_config_str(const clb_config *config, enum clb_setting id); /* never NULL; "" if unset */
uint64_t clb_config_u64(const clb_config *config, enum clb_setting id);    /* integers and byte sizes */
clb_share clb_config_share(const clb_config *config, enum clb_setting id);
double clb_config_f64(const clb_config *config, enum clb_setting id);
bool clb_config_bool(const clb_config *config, enum clb_setting id);
size_t clb_config_list(const clb_config *config, enum clb_setting id, const char *const **items);
bool clb_config_is_set(const clb_config *config, enum clb_setting id); /* by any layer above the default */
const char *clb_config_origin(const clb_config *config, enum clb_setting id);
const char *clb_config_text(const clb_config *config, enum clb_setting id); /* any type, as it was written */

/* Parameters of a policy or strategy: section "<kind>.<name>" of the INI (e.g. [expert-policy.frequency-weighted] half-life = 64),
 * checked against the plugin's declaration; out[n]. Unknown keys and values out of range are errors. */
int clb_config_params(const clb_config *config, const char *kind, const char *name, const struct colibri_param *params,
                      uint32_t n, double *out, clb_error *err);
/* The same into fresh memory, which the caller frees; never NULL when OK. */
int clb_config_params_new(const clb_config *config, const char *kind, const char *name,
                          const struct colibri_param *params, uint32_t n, double **out, clb_error *err);
/* One more parameter, given as text, over those in out[n]; checked in the same way. */
int clb_config_param_apply(const char *kind, const char *name, const char *key, const char *text, const char *origin,
                           const struct colibri_param *params, uint32_t n, double *out, clb_error *err);
/* A setting that picks a component (expert-policy, kv-strategy, predictor) also takes "NAME:key=value,key=value": NAME
 * becomes its value, the rest parameters of this component. A KV strategy may wrap another: "OUTER:key=value/INNER", whose
 * value is "OUTER/INNER". Such a spec piece by piece: each link of it, then each parameter of the link; key NULL: the link
 * itself. A status other than OK ends it. USAGE. */
typedef int (*clb_config_spec_fn)(void *ctx, const char *name, const char *key, const char *value, clb_error *err);
int clb_config_spec_each(const char *kind, const char *text, clb_config_spec_fn fn, void *ctx, clb_error *err);
/* All parameters given so far, in order of first mention: */
size_t clb_config_param_count(const clb_config *config);
void clb_config_param_at(const clb_config *config, size_t i, const char **kind, const char **name, const char **key,
                         const char **value, const char **origin);

/* Sections "foreign.NAME" bind functions of other libraries (docs/foreign.md). Keys and the form of their values are
 * checked when they are set; all that are set, in order of first mention: */
size_t clb_config_foreign_count(const clb_config *config);
void clb_config_foreign_at(const clb_config *config, size_t i, const char **name, const char **key, const char **value,
                           const char **origin);

#endif
