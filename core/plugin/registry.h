/* Plugin registry: finds plugins, filters, ranks and loads them, and answers "which component for this job".
 *
 * Opening reads ELF notes with plain file reads and maps nothing. A plugin is loaded when one of its kinds is
 * first asked for (formats, kernels) or when it is named (policies, strategies). Each candidate keeps a verdict
 * with every comparison that led to it, which `colibri plugins why` prints.
 * Lookups are [main-thread]; the component tables they return are constant and live until the process ends. */
#ifndef CLB_PLUGIN_REGISTRY_H
#define CLB_PLUGIN_REGISTRY_H

#include "base/error.h"
#include "base/log.h"
#include "colibri/expert_policy.h"
#include "colibri/format.h"
#include "colibri/kernel.h"
#include "colibri/kv_strategy.h"
#include "colibri/predictor.h"

#include <stdbool.h>

typedef struct clb_registry clb_registry;

/* Kernels are chosen per number of activation rows: one row, and three classes of several. */
#define CLB_X_CLASSES 4u
static inline unsigned clb_x_class(uint32_t n_x)
{
    return n_x < 2 ? 0 : n_x < 8 ? 1 : n_x < 32 ? 2 : 3;
}

/* [kernels] select = measure; see measure.h. Zero: select = rank. */
typedef struct clb_measure_options {
    bool enabled;
    const char *cpu_model;
    uint32_t n_threads;         /* that the products will run on; 0: 1 */
    const char *cache_file;     /* NULL: nothing is remembered */
    bool cache_file_is_ours;    /* the default place: what is not a cache there is replaced */
    uint64_t max_bytes;         /* of buffers; 0: CLB_MEASURE_BYTES */
    uint64_t (*now)(void *ctx); /* tests: nanoseconds. NULL: CPU time for samples, the monotonic clock for limits */
    void *now_ctx;
} clb_measure_options;

typedef struct clb_registry_options {
    const char *builtin_dir; /* the installed plugin folder, or NULL */
    const char *const *dirs; /* [plugins] path, absolute */
    size_t n_dirs;
    bool use_env;                /* read COLIBRI_PLUGIN_PATH (the registry itself ignores it when privileged) */
    struct colibri_cpu_bits cpu; /* usable bits, mask already applied */
    const char *const *prefer;   /* plugin or component ids that win over rank, first is strongest */
    size_t n_prefer;
    const char *const *deny; /* plugin ids never to load; shell-style '*' at the end allowed */
    size_t n_deny;
    bool allow_inexact; /* take components with max_ulp > 0 */
    clb_measure_options measure;
    const clb_log *log;
    const struct clb_foreign_spec *foreign; /* sections [foreign.NAME]; copied */
    size_t n_foreign;
} clb_registry_options;

/* Never fails because of a bad plugin: those are recorded with a reason. Errors: NOMEM, USAGE (relative dir, foreign). */
int clb_registry_open(const clb_registry_options *options, clb_registry **out, clb_error *err);
void clb_registry_close(clb_registry *reg); /* frees the bookkeeping; plugins stay mapped */

/* Foreign functions that would serve without being named (matrix products, with allow_inexact) are loaded now: PLUGIN if one
 * cannot be, instead of a run that silently does without. Policies say so when they are named. */
int clb_registry_foreign_ready(clb_registry *reg, clb_error *err);

/* NULL + error UNSUPPORTED (naming type and, if known, the plugin that would offer it) if no format plugin
 * offers it. */
const struct colibri_format *clb_registry_format(clb_registry *reg, uint32_t gguf_type, clb_error *err);
const struct colibri_format *clb_registry_format_named(clb_registry *reg, const char *name, clb_error *err);

/* The best component for products with n_x activation rows, in the format's layout and activation format; NULL if
 * none fits (the caller then uses the format's own reference). */
const struct colibri_matmul *clb_registry_matmul(clb_registry *reg, const struct colibri_format *format, uint32_t n_x);
/* The same for a matrix of n_rows x n_cols and every class of n_x, by rank or by measuring as the registry was opened.
 * Never fails: what cannot be measured is chosen by rank, and the log says why. */
void clb_registry_kernels(clb_registry *reg, const struct colibri_format *format, uint32_t n_rows, uint32_t n_cols,
                          const struct colibri_matmul *out[CLB_X_CLASSES]);

/* Complete table: the scalar reference of core/ops, each member replaced by the best plugin's. Owned by the
 * registry. */
const struct colibri_vecops *clb_registry_vecops(clb_registry *reg);
/* The same table, with an attention that takes all of these COLIBRI_ATTN_TAKES_*: the best that does, with a warning if
 * that is not the best one there is. Before any use of the table by other threads. [engine-thread] */
const struct colibri_vecops *clb_registry_attention_for(clb_registry *reg, uint32_t takes);
/* "q8_0, q4_0", for messages. Returns out. */
const char *clb_attention_takes_text(uint32_t takes, char out[64]);

/* By component name ("lru") or plugin id. Error NOT_FOUND names the nearest and lists all. */
const struct colibri_expert_policy *clb_registry_expert_policy(clb_registry *reg, const char *name, clb_error *err);
const struct colibri_predictor *clb_registry_predictor(clb_registry *reg, const char *name, clb_error *err);
const struct colibri_kv_strategy *clb_registry_kv_strategy(clb_registry *reg, const char *name, clb_error *err);

/* The host table handed to plugins, for configs that carry it. */
const struct colibri_host *clb_registry_host(clb_registry *reg);

/* Reports a component that returned nonsense at run time: warns once, counts, and marks its plugin's state. */
void clb_registry_misbehaved(clb_registry *reg, const char *component, const char *what);

/* Which component serves what, for --stats and reports: writes lines "kernel q4_k avx512-vnni.q4_k (plugin id)". */
typedef void (*clb_registry_use_fn)(void *ctx, const char *kind, const char *what, const char *component,
                                    const char *plugin_id, const char *path);
void clb_registry_uses(const clb_registry *reg, clb_registry_use_fn fn, void *ctx);

/* How kernels were chosen so far. A decision is one matrix shape and class of n_x with more than one candidate. */
typedef struct clb_selection_stats {
    bool measure;                                 /* false: by rank, and the rest is 0 */
    uint32_t n_measured, n_remembered, n_by_rank; /* decisions: by fresh times, by times from the file, without times */
    uint32_t n_overturned;                        /* of the first two: where rank would have chosen otherwise */
    uint64_t ns;                                  /* spent on measuring */
    const char *cache_file;                       /* NULL: none */
} clb_selection_stats;
clb_selection_stats clb_registry_selection(const clb_registry *reg);

#endif
