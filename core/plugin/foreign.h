/* Foreign functions: functions of any library as components, bound by a section [foreign.NAME] of the settings and
 * called through libffi. docs/foreign.md is the manual.
 *
 * A section is one candidate of the registry, with the id "foreign.NAME". Its text (kind, names, signatures) is checked
 * when the registry is opened; its library is loaded when the component is first needed, as a plugin's file is. */
#ifndef CLB_PLUGIN_FOREIGN_H
#define CLB_PLUGIN_FOREIGN_H

#include <stdbool.h>

#include "base/error.h"
#include "base/log.h"
#include "config/config.h"

enum clb_foreign_kind { CLB_FOREIGN_EXPERT_POLICY, CLB_FOREIGN_MATMUL_F32, CLB_FOREIGN_KV_STRATEGY };

/* One section; strings are borrowed, NULL: not given. */
typedef struct clb_foreign_spec {
    const char *name, *origin; /* origin: of its first key */
    enum clb_foreign_kind kind;
    const char *library, *symbol, *signature, *summary;
    const char *on_use, *on_use_signature, *reset, *reset_signature; /* EXPERT_POLICY; KV_STRATEGY: reset */
    bool deterministic, score_rises, thread_safe;                    /* EXPERT_POLICY; KV_STRATEGY: not score_rises */
    unsigned window; /* KV_STRATEGY: queries behind prob_last; 0: the default */
    int rank;       /* MATMUL_F32 */
    unsigned min_x; /* MATMUL_F32 */
} clb_foreign_spec;

typedef struct clb_foreign_list {
    clb_foreign_spec *at;
    size_t n;
} clb_foreign_list;

/* The sections of the settings, checked as far as text can be. USAGE with the section and, where one key is to blame,
 * its origin. The list points into `config`. */
int clb_foreign_from_config(const clb_config *config, clb_foreign_list *out, clb_error *err);
void clb_foreign_list_free(clb_foreign_list *list);

/* "policy" or "sgemm" once it is loaded. */
typedef struct clb_foreign clb_foreign;

/* Copies the spec, parses its signatures again. USAGE, NOMEM. `log` until clb_foreign_retire. [main-thread] */
int clb_foreign_create(const clb_foreign_spec *spec, const clb_log *log, clb_foreign **out, clb_error *err);
/* Loads the library, looks up the functions. PLUGIN and the reason; the floating-point state is restored. The library
 * stays mapped in any case. [main-thread] */
int clb_foreign_load(clb_foreign *foreign, clb_error *err);
/* struct colibri_expert_policy, colibri_kv_strategy or colibri_matmul, valid until the process ends; after a successful load. */
const void *clb_foreign_table(const clb_foreign *foreign);
/* Detaches the log. Freed only if its table was never made: as those of plugins, tables live until the process ends. */
void clb_foreign_retire(clb_foreign *foreign);

const char *clb_foreign_library(const clb_foreign *foreign);
const char *clb_foreign_origin(const clb_foreign *foreign);

#endif
