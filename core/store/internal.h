/* Inside the store: memory, reading, slots. */
#ifndef CLB_STORE_INTERNAL_H
#define CLB_STORE_INTERNAL_H

#include "store/store.h"

#define CLB_NO_SLOT    UINT32_MAX
#define CLB_STORE_PAGE 4096u

typedef struct clb_slot {
    uint32_t layer, expert; /* valid if resident */
    uint32_t pins;
    uint32_t uses;     /* since insertion */
    uint64_t last_use; /* access clock, for the LRU fallback */
    bool resident;
    bool preloaded;
    bool bypass; /* the policy did not admit it: emptied at release */
    uint8_t *data;
} clb_slot;

/* Slots of one size. */
typedef struct clb_slot_class {
    uint64_t slot_bytes;
    uint32_t first, n; /* range in clb_experts.slots */
    uint32_t n_free;
} clb_slot_class;

typedef struct clb_policy_host {
    const struct colibri_expert_policy *policy;
    void *self;
    struct colibri_policy_config config;
    uint64_t *expert_bytes;
    struct colibri_expert_ref *candidates; /* [most slots of a class] */
    uint32_t *candidate_slots;
    uint64_t bad_answers, ns;
    bool reported;
} clb_policy_host;

typedef struct clb_experts {
    const clb_expert_layer *layers;
    uint32_t n_layers, n_experts, top_k;
    uint32_t n_classes;
    uint32_t *class_of; /* [n_layers] */
    clb_slot_class *classes;
    clb_slot *slots;
    uint32_t n_slots;
    uint32_t *slot_of;      /* [n_layers * n_experts] */
    uint8_t *needed;        /* [n_experts]: of the routed layer, not acquired yet in this step */
    const uint8_t **mapped; /* [n_layers][CLB_PARTS]: base in the mapping if the layer needs no slots, else NULL */
    uint8_t *arena;
    uint64_t arena_bytes;
    uint64_t clock;
    struct colibri_access *accesses; /* [n_experts] scratch */
    clb_policy_host host;
} clb_experts;

/* How the bytes of a read become what lies in memory. */
enum clb_read_as { CLB_READ_PLAIN, CLB_READ_PACK, CLB_READ_FLOATS, CLB_READ_CHECK /* compared with checksums only */ };

/* Bytes of a tensor on their way into memory. A unit is what is converted as a whole: 16 rows of a matrix, a block of a
 * vector; the last one may be shorter. */
typedef struct clb_read {
    const clb_gguf_tensor *tensor;
    uint64_t offset; /* in the tensor */
    const struct colibri_format *format;
    enum clb_read_as as;
    uint32_t n_cols;             /* PACK */
    uint64_t src_bytes;          /* in the file, > 0 */
    uint64_t src_unit, dst_unit; /* bytes of a unit there and here */
    uint8_t *dst;                /* NULL while queued: the store gives it memory. CHECK: the mapping, or NULL */
    clb_matrix *matrix;          /* set when the bytes are there; may be NULL */
    const float **floats;        /* likewise */
    /* set by the reader */
    size_t first_chunk, n_chunks;
    uint64_t chunk_units;
    bool verify; /* chunks consist of whole blocks with a checksum */
} clb_read;

struct clb_store {
    clb_store_options options;
    struct region {
        void *p;
        size_t n;
    } * regions;
    size_t n_regions, cap_regions;
    clb_read *queued; /* by clb_store_load_matrix and _floats, until clb_store_load */
    size_t n_queued, cap_queued;
    struct {
        const uint8_t *p;
        size_t n;
    } * maps;          /* [n_shards], mmap mode */
    uint8_t **staging; /* [n_workers] */
    size_t staging_bytes;
    clb_experts *experts;
    uint64_t step;
    clb_store_stats stats;
};

/* Zeroed memory that lives as long as the store, at the start of a huge page if it is as large as one. NULL: *err says
 * why, `what` being "the weights". */
void *clb_store_map(clb_store *store, uint64_t bytes, const char *what, clb_error *err);
int clb_store_reserve_staging(clb_store *store, size_t bytes, clb_error *err);

/* Rows [0, m->n_rows) of m at `offset` of tensor t, into m->bytes at dst. */
clb_read clb_store_matrix_read(const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset, void *dst);
/* Reads reads[n] now, all workers together. */
int clb_store_read_now(clb_store *store, clb_read *reads, size_t n, clb_error *err);
/* For the next clb_store_load. */
int clb_store_queue(clb_store *store, const clb_read *read, clb_error *err);
/* Pointer into the mapping, or NULL (read mode, or not aligned for direct use). */
const uint8_t *clb_store_mapped(const clb_store *store, const clb_gguf_tensor *t, uint64_t offset, size_t align);

void clb_experts_destroy(clb_store *store);

/* Policy host. Slot indexes are the store's. */
int clb_policy_open(clb_store *store, const clb_expert_pool *pool, clb_error *err);
void clb_policy_close(clb_policy_host *host);
/* The slot of class c to empty for (layer, expert): resident, not pinned, not needed in this step; CLB_NO_SLOT if there
 * is none. */
uint32_t clb_policy_victim(clb_store *store, uint32_t class_index, uint32_t routed_layer);

#endif
