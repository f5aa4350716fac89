/* Component tables of plugins: which interfaces exist, and whether a table may be used. [any-thread] */
#ifndef CLB_PLUGIN_COMPONENTS_H
#define CLB_PLUGIN_COMPONENTS_H

#include "base/error.h"
#include "colibri/kernel.h"

enum clb_iface {
    CLB_IFACE_FORMAT,
    CLB_IFACE_MATMUL,
    CLB_IFACE_VECOPS,
    CLB_IFACE_EXPERT_POLICY,
    CLB_IFACE_PREDICTOR,
    CLB_IFACE_KV_STRATEGY,
    CLB_IFACE_COUNT
};

#define CLB_MAX_COMPONENTS     1024u /* of one interface of one plugin */
#define CLB_MAX_BAD_COMPONENTS 32u   /* ... then the rest of its list is not looked at */

typedef struct clb_iface_info {
    const char *id;   /* COLIBRI_IFACE_* */
    const char *name; /* "format", "matmul", "vecops", ... for people */
    uint32_t kind;    /* COLIBRI_KIND_* bit that a note must have to offer it */
} clb_iface_info;

const clb_iface_info *clb_iface_get(enum clb_iface iface);

/* COLIBRI_OK if every pointer, size and name of the table is what the interface demands; else PLUGIN and the reason.
 * Pointers are compared with the mapped segments before they are followed. */
int clb_component_check(enum clb_iface iface, const void *table, clb_error *err);
/* Fields of a checked table. */
const char *clb_component_name(enum clb_iface iface, const void *table);

/* Vector operations as an array, for the merge: offset and name of every member. */
typedef struct clb_vecop_member {
    const char *name;
    size_t offset;
} clb_vecop_member;
extern const clb_vecop_member clb_vecop_members[];
extern const size_t clb_n_vecop_members;
/* The member's function pointer; NULL if the table does not offer it. */
const void *clb_vecop_code(const struct colibri_vecops *table, const clb_vecop_member *member);

/* "Q4_K"; NULL for a type that colibri/blocks.h does not list. */
const char *clb_type_name(uint32_t gguf_type);

#endif
