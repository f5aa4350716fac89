/* Inside of the registry: shared by registry.c (finding, filtering, loading), select.c and explain.c. */
#ifndef CLB_PLUGIN_REGISTRY_PRIVATE_H
#define CLB_PLUGIN_REGISTRY_PRIVATE_H

#include "plugin/foreign.h"
#include "plugin/host.h"
#include "plugin/introspect.h"
#include "plugin/note.h"

#define CLB_NO_PREFERENCE SIZE_MAX

typedef struct clb_candidate {
    const clb_search_file *file; /* NULL: linked in, or foreign */
    clb_foreign *foreign;        /* a section [foreign.NAME]; NULL: a plugin */
    const char *origin;
    struct colibri_elf_note note;
    bool has_note, has_id;
    enum clb_plugin_state state;
    char *reason;
    clb_verdict verdict;
    size_t shadowed_by;                  /* index, if SHADOWED */
    const struct colibri_plugin *plugin; /* linked in: known from the start */
    bool entered;
    size_t bad_components;
    char build[40]; /* for measured times; "" until asked for, "?" if it cannot be told */
} clb_candidate;

typedef struct clb_component {
    enum clb_iface iface;
    const char *name;
    const void *table;
    size_t candidate;
    uint32_t index; /* in its plugin */
    int32_t rank;   /* its own, or its plugin's */
    uint32_t max_ulp;
    size_t prefer; /* position in the prefer list, CLB_NO_PREFERENCE if absent */
    char *unfit;
    uint32_t misbehaved; /* times */
} clb_component;

typedef struct clb_use {
    char *kind, *what;
    size_t component; /* index; SIZE_MAX: the scalar reference of core/ops */
} clb_use;

struct clb_registry {
    struct colibri_cpu_bits cpu;
    char **prefer, **deny;
    size_t n_prefer, n_deny;
    bool allow_inexact;
    const clb_log *log;
    clb_host *host;
    clb_search search;
    clb_candidate *candidates;
    size_t n_candidates;
    clb_component **components; /* pointers stay valid while more are added */
    size_t n_components, cap_components;
    clb_use *uses;
    size_t n_uses;
    struct colibri_vecops *vecops; /* merged; NULL until asked for */
    uint32_t attention_takes;      /* what was asked of its attention: all calls together */
    bool prefer_checked;
    struct clb_measure *measure; /* NULL: select = rank */
};

/* "abc*" matches any rest. */
bool clb_id_matches(const char *pattern, const char *id);
/* "org.example.lru" ends with the part "lru". */
bool clb_id_ends_with(const char *id, const char *part);
/* Loads every available plugin of these kinds (and, where one fails, those it shadowed). */
void clb_registry_load_kinds(clb_registry *reg, uint32_t kinds);
void clb_candidate_load(clb_registry *reg, size_t i);
const char *clb_candidate_label(const clb_candidate *c); /* id or path, for messages */
const char *clb_candidate_place(const clb_candidate *c); /* path, or "the linked-in plugin" */
const char *clb_candidate_path(const clb_candidate *c);  /* of its file or library; NULL: linked in */
static inline bool clb_candidate_linked_in(const clb_candidate *c)
{
    return !c->file && !c->foreign;
}
void clb_candidate_set_state(clb_candidate *c, enum clb_plugin_state state, const char *fmt, ...) CLB_PRINTF(3, 4);

/* Reads the note of a file that the search has accepted. */
int clb_candidate_read_note(const clb_search_file *file, clb_note *note, clb_error *err);
/* Sets the state of a candidate with a file, or of a foreign one, to AVAILABLE or REJECTED. */
void clb_candidate_filter(clb_registry *reg, clb_candidate *c);
/* Among available candidates of one id, all but the best become SHADOWED. */
void clb_registry_resolve_shadows(clb_registry *reg);
/* `failed` does not offer what its note promised: the plugins that it shadowed get their turn. */
void clb_registry_unshadow(clb_registry *reg, size_t failed);

/* What a selection looks for; a component must match every field that is set. */
typedef struct clb_want {
    enum clb_iface iface;
    bool by_type;
    uint32_t gguf_type;
    const char *name;   /* component name, case-insensitive; or plugin id */
    uint32_t layout;    /* MATMUL */
    const char *act;    /* MATMUL */
    uint32_t n_x;       /* MATMUL */
    const clb_vecop_member *member; /* VECOPS: this operation must be offered */
    uint32_t attention_takes;       /* VECOPS: COLIBRI_ATTN_TAKES_* that its attention must have */
} clb_want;

/* The best component, NULL if none. Every candidate and comparison goes into trace (may be NULL). */
clb_component *clb_select(clb_registry *reg, const clb_want *want, clb_verdict *trace);
/* The best matmul component and the exact ones that only rank, or a later rule, puts behind it, in this order, at most
 * cap. Only the best one if it is lossy. */
uint32_t clb_select_rivals(clb_registry *reg, const clb_want *want, clb_component **out, uint32_t cap);
/* Remembers who serves what (for reports; c == NULL: the reference), and says so once if it is only the linked-in copy.
 * Of vector operations, which have one server each, the last one counts. */
void clb_note_use(clb_registry *reg, const char *kind, const char *what, const clb_component *c);
/* A prefer entry that matches nothing is likely misspelt. Component names are known only once kernels are loaded. */
void clb_check_prefer(clb_registry *reg);
/* What clb_registry_kernels and `why` ask for: a product in the format's layout with n_x activation rows. */
clb_want clb_want_matmul(const struct colibri_format *format, uint32_t n_x);
/* The smallest n_x that is sure to be served by a class's kernel: what min_x is compared with. */
uint32_t clb_x_class_rows(unsigned x_class);

/* measure.c */
int clb_measure_create(const clb_measure_options *options, struct clb_measure **out, clb_error *err);
void clb_measure_destroy(struct clb_measure *measure);
/* The kernel of every class for one shape, NULL where no component fits; measures what no record tells. */
void clb_measure_decide(clb_registry *reg, const struct colibri_format *format, uint32_t n_rows, uint32_t n_cols,
                        clb_component *out[CLB_X_CLASSES]);
/* Same, with the times and the conclusion of each class in `trace`, after the class's comparisons by rank. For every
 * shape of the format that the file knows, or one of its own. Returns the kernel for one row of the first shape. */
clb_component *clb_measure_explain(clb_registry *reg, const struct colibri_format *format, clb_verdict *trace);
/* Loads what could offer a policy, predictor or strategy called `name`, then selects it. */
clb_component *clb_select_named(clb_registry *reg, enum clb_iface iface, const char *name, clb_verdict *trace);

#endif
