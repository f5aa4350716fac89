/* Inside the store: memory, reading, slots. */
#ifndef CLB_STORE_INTERNAL_H
#define CLB_STORE_INTERNAL_H

#include <stdatomic.h>

#include "store/cache.h"
#include "store/pays.h"
#include "store/store.h"

#define CLB_STORE_PAGE 4096u

/* An expert on its way into a slot. */
typedef struct clb_fetch {
    uint8_t left;    /* reads not complete */
    uint8_t arrived; /* bit p: the bytes of part p are there, but not yet converted */
    bool failed;
    bool cancelled; /* a guess that is being called off */
    bool again;     /* a guess that failed and is read as what is needed */
    clb_error *err; /* of the first failed read, owned; NULL: none */
} clb_fetch;

/* One expert of the wave that is being handed out. */
typedef struct clb_wave_entry {
    uint32_t expert, slot; /* slot: CLB_NO_SLOT if mapped */
    uint32_t result;       /* enum colibri_access_result */
    uint32_t rows;
    float gate_sum;
    bool leased;
    bool touched; /* its bytes were being converted */
    uint64_t wait_ns;
} clb_wave_entry;

/* A guess that was acted on, until its layer is routed. */
typedef struct clb_guess {
    uint32_t layer, expert, rank;
} clb_guess;

#define CLB_GUESS_RANKS  32u
#define CLB_PAYS         4u
#define CLB_MOST_GUESSES 512u

/* Host of the predictor (guess.c). */
typedef struct clb_guesses {
    const struct colibri_predictor *predictor;
    void *self;
    uint32_t depth, n_rows;
    struct colibri_prediction found[CLB_MOST_GUESSES];
    clb_guess open[CLB_MOST_GUESSES];
    uint32_t n_open;
    double worth[CLB_GUESS_RANKS]; /* share of guesses of this rank that were used, of late */
    uint32_t held_back[CLB_GUESS_RANKS];
    uint64_t last_route, route_ns; /* time between routes, averaged */
    clb_pays pays[CLB_PAYS];       /* for passes of 1, 2 to 3, 4 to 7, and 8 or more rows */
} clb_guesses;

typedef struct clb_experts {
    const clb_expert_layer *layers;
    uint32_t n_layers, n_experts, top_k;
    uint32_t n_classes;
    uint32_t *class_of; /* [n_layers] */
    clb_cache *cache;
    bool streamed; /* not all experts have a slot */
    struct clb_slot_place {
        uint64_t slot_bytes, arena_at; /* of the pool's first slot */
        uint32_t first;
    } * places;             /* [pools] */
    uint64_t *part_at;      /* [n_layers][CLB_PARTS]: where a part begins in a slot */
    const uint8_t **mapped; /* [n_layers][CLB_PARTS]: base in the mapping if the layer needs no slots, else NULL */
    uint8_t *arena;
    uint64_t arena_bytes;
    clb_fetch *fetches; /* [n_slots] */
    uint8_t *verified;  /* [n_layers * n_experts]: checksum compared */
    uint32_t wave_layer, n_wave, n_leased;
    clb_wave_entry *wave, *missing; /* [n_experts] */
    uint64_t wave_began;
    struct colibri_access *accesses; /* [n_experts] scratch */
    clb_guesses *guesses;            /* NULL: no predictor */
} clb_experts;

/* How the bytes of a read become what lies in memory. */
enum clb_read_as {
    CLB_READ_PLAIN,
    CLB_READ_PACK,
    CLB_READ_FLOATS,
    CLB_READ_CHECK, /* compared with checksums only */
    CLB_READ_BLOCK  /* an expert's block of a packed file, from its first byte; offset: expert * expert_stride */
};

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

/* A matrix whose bytes have arrived in `base`, `lead` bytes too far up, in file layout. */
typedef struct clb_arrival {
    const clb_matrix *m; /* NULL: to be verified only, without lead */
    uint8_t *base;
    uint64_t lead;
    bool plain; /* in the layout that is multiplied */
    /* what its checksum is compared with; NULL: nothing (always, if it must be packed) */
    const clb_gguf_tensor *tensor;
    uint64_t expert, bytes;
    uint8_t *verified;
} clb_arrival;

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
    struct clb_layers *layers; /* streamed ones; NULL: none */
    clb_io *io;                /* NULL: nothing is read while computing */
    bool in_memory;            /* the model is not in a file: reads are copies, done at once */
    clb_error last_failure;    /* of io */
    clb_arrival *arrivals;     /* to be converted */
    size_t n_arrivals, cap_arrivals;
    uint64_t step;
    bool aside;
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
/* Likewise: compares the whole tensor with its checksums, if it has any that are wanted. mapped: NULL, or its first
 * byte. */
int clb_store_queue_check(clb_store *store, const clb_gguf_tensor *t, const uint8_t *mapped, clb_error *err);
/* Pointer into the mapping, or NULL (read mode, or not aligned for direct use). */
const uint8_t *clb_store_mapped(const clb_store *store, const clb_gguf_tensor *t, uint64_t offset, size_t align);

/* ---- reading while computing (fetch.c) ---- */

/* Tags of reads: an expert's are slot * 4 + part, those of streamed layers begin here. */
#define CLB_TAG_LAYERS 0x40000000u

/* Opens store->io once. `direct_fits`: slots have room for direct reads. */
int clb_store_open_io(clb_store *store, bool direct_fits, clb_error *err);
/* Bytes that `bytes` need in a slot if they are read directly at any alignment. */
static inline uint64_t clb_store_direct_room(uint64_t bytes)
{
    return ((bytes + 2 * CLB_STORE_PAGE - 1) / CLB_STORE_PAGE) * CLB_STORE_PAGE;
}
/* Reads the whole of m, from `offset` of tensor t, to dst. */
int clb_store_submit_matrix(clb_store *store, const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset, void *dst,
                            uint32_t tag, enum clb_io_priority priority, clb_error *err);
/* Collects what has arrived; waits for something if `wait` and anything is under way. */
int clb_store_collect(clb_store *store, bool wait, clb_error *err);
/* Waits for a while, which may be before anything has arrived; CANCELLED if that is wanted. */
int clb_store_wait(clb_store *store, clb_error *err);
bool clb_store_cancelled(const clb_store *store);
/* Why the read `tag` failed. */
void clb_store_failure(clb_store *store, uint32_t tag, clb_error *err);
int clb_store_add_arrival(clb_store *store, const clb_arrival *a, clb_error *err);
/* Brings all queued arrivals into the form that is multiplied, with all workers; the first failed checksum is the
 * error. */
int clb_store_convert(clb_store *store, clb_error *err);

/* Whether a block of tensor t that was or was not compared before must be compared now that it is read. */
bool clb_store_must_verify(const clb_store *store, const clb_gguf_tensor *t, uint8_t verified);
/* Compares the checksum of an arrival; a difference is the error of whoever finds it first. [any-thread] */
bool clb_store_verify(clb_store *store, const clb_arrival *a, atomic_bool *failed, clb_error *err);

/* Of a packed file: the tensor that tells where the layer's blocks are, each of which holds all parts of an expert;
 * NULL if parts are read one by one. */
const clb_gguf_tensor *clb_expert_block(const clb_expert_layer *l);
/* Starts reading an expert into its slot. */
int clb_expert_fetch(clb_store *store, uint32_t slot, enum clb_io_priority priority, clb_error *err);
void clb_expert_promote(clb_store *store, uint32_t slot);
/* A read of an expert has completed. */
void clb_expert_done(clb_store *store, uint32_t tag, int status);
/* Queues what has arrived of a slot for conversion. */
int clb_expert_convert(clb_store *store, uint32_t slot, clb_error *err);
uint8_t *clb_expert_data(const clb_experts *x, uint32_t slot);
void clb_expert_reads(const clb_expert_layer *l, uint32_t expert, uint8_t *dst, const uint64_t *part_at,
                      clb_read out[CLB_PARTS], uint32_t *n);
/* Packed files: queues the comparison of an expert that is used in the mapping, if it is due. */
int clb_expert_check_mapped(clb_store *store, uint32_t layer, uint32_t expert, clb_error *err);
/* Ends a wave that was not handed out to the end. */
void clb_wave_abandon(clb_store *store);

/* ---- predictor (guess.c) ---- */

int clb_guesses_open(clb_store *store, const clb_expert_pool *pool, clb_error *err);
void clb_guesses_close(clb_store *store);
void clb_guesses_step(clb_store *store, const struct colibri_step *step);
void clb_guesses_step_end(clb_store *store);
/* What became of the guesses about this layer. */
void clb_guesses_judge(clb_store *store, const struct colibri_route *route);
/* After the demand reads of a layer are under way: reads ahead what is worth it. */
int clb_guesses_act(clb_store *store, uint32_t layer, clb_error *err);
/* Brings one guess that has arrived into the form that is multiplied; *did: there was one. For times when there is
 * nothing else to do. */
int clb_guesses_convert(clb_store *store, bool *did, clb_error *err);
void clb_guesses_forget(clb_store *store);

/* ---- streamed layers (layers.c) ---- */

void clb_layers_done(clb_store *store, uint32_t tag, int status);
/* Empties the slots. Between passes. */
void clb_layers_forget(clb_store *store);
void clb_layers_destroy(clb_store *store);

void clb_experts_destroy(clb_store *store);

#endif
