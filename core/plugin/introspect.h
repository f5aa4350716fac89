/* What the registry knows and why: for `colibri plugins` and reports. Nothing here loads a plugin unless it says so.
 * [main-thread] */
#ifndef CLB_PLUGIN_INTROSPECT_H
#define CLB_PLUGIN_INTROSPECT_H

#include "plugin/components.h"
#include "plugin/registry.h"
#include "plugin/search.h"
#include "plugin/verdict.h"

enum clb_plugin_state {
    CLB_PLUGIN_AVAILABLE, /* passes the filter, not loaded */
    CLB_PLUGIN_LOADED,
    CLB_PLUGIN_SHADOWED, /* another plugin of the same id is taken */
    CLB_PLUGIN_REJECTED,
    CLB_PLUGIN_MISBEHAVED /* loaded, and returned nonsense at run time */
};
const char *clb_plugin_state_name(enum clb_plugin_state state);

typedef struct clb_plugin_view {
    const char *path;                     /* of its file, or of a foreign function's library; NULL: linked in */
    size_t dir;                           /* index for clb_registry_dir; SIZE_MAX: in none */
    const char *origin;                   /* "installed", "config", "COLIBRI_PLUGIN_PATH", "linked in" */
    const char *id;                       /* NULL if the file has no readable note */
    const struct colibri_note_desc *note; /* NULL unless the note is sound */
    enum clb_plugin_state state;
    const char *reason; /* of a rejection, a shadow, a misbehaviour; else NULL */
    const clb_verdict *verdict;
    size_t bad_components; /* tables that were skipped */
} clb_plugin_view;

/* Files in search order, then the linked-in plugins. */
size_t clb_registry_n_plugins(const clb_registry *reg);
void clb_registry_plugin(const clb_registry *reg, size_t i, clb_plugin_view *out);
size_t clb_registry_n_dirs(const clb_registry *reg);
const clb_search_dir *clb_registry_dir(const clb_registry *reg, size_t i);
struct colibri_cpu_bits clb_registry_cpu(const clb_registry *reg);

/* Loads plugin i if its state is AVAILABLE. */
void clb_registry_load(clb_registry *reg, size_t i);

typedef struct clb_component_view {
    enum clb_iface iface;
    const char *name;
    const void *table;
    size_t plugin;     /* index for clb_registry_plugin */
    const char *unfit; /* why it is not a candidate (CPU features, inexact); NULL: it is one */
} clb_component_view;
/* Components of loaded plugins. */
size_t clb_registry_n_components(const clb_registry *reg);
void clb_registry_component(const clb_registry *reg, size_t i, clb_component_view *out);

/* Times that decided something, of this run or from the file (select = measure). The record's times stand in the order
 * in which rank prefers their components. */
typedef struct clb_measurement_view {
    const struct clb_measure_record *record; /* measure.h */
    const char *chosen, *by_rank;            /* components */
} clb_measurement_view;
size_t clb_registry_n_measurements(const clb_registry *reg);
void clb_registry_measurement(const clb_registry *reg, size_t i, clb_measurement_view *out);

/* Replays filter, rank and selection for a plugin id, a format ("q4_k"), a vector operation ("rms_norm"), or a
 * component ("lru", "avx512-vnni.q4_k"): loads what the selection would load and records every comparison. *chosen:
 * what would serve (a component name, or the plugin's path), NULL if nothing. With select = measure, formats are decided
 * for every shape that the cache file knows for this CPU and thread count, or else for one of 2048 x 2048, with times
 * from the file or fresh ones. NOT_FOUND: nothing of that name, nearest named. */
int clb_registry_explain(clb_registry *reg, const char *name, clb_verdict *out, const char **chosen, clb_error *err);

#endif
