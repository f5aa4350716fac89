/* The weight store: everything that was read from the model file and sits in memory.
 *
 * Resident matrices and vectors are loaded once. Experts are blocks of three matrices (gate, up, down) that live in
 * slots; when there are fewer slots than experts, an expert policy decides who leaves. A lease keeps a block in its
 * slot while it is being multiplied. Slots come in classes of equal size (layers may mix formats), each class with its
 * own slots, so that a narrow expert is never charged at the widest one's size.
 *
 * Use of a MoE layer in one step:
 *   clb_store_route(...)                        tells the policy the routing and the union of experts
 *   while experts remain: clb_store_acquire     leases as many of them as are ready, resident ones first
 *                         ... compute, while missing ones are read ...
 *                         clb_store_release
 * Leases come back in the order in which experts are ready, and callers must not depend on any order. Which expert gets
 * which slot is decided in waves (cache.h) and does not depend on that order.
 *
 * Dense layers that do not fit are *streamed*: their matrices share a few slots and are read ahead in the order of the
 * layers, round and round (clb_store_layer_begin, _end).
 *
 * All functions are [engine-thread]; leased memory may be read by any thread. */
#ifndef CLB_STORE_STORE_H
#define CLB_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "base/pool.h"
#include "colibri/expert_policy.h"
#include "colibri/predictor.h"
#include "gguf/gguf.h"
#include "plugin/registry.h"
#include "store/cache.h"
#include "store/io.h"
#include "store/matrix.h"

typedef struct clb_store clb_store;

enum clb_store_mode { CLB_STORE_READ = 0, CLB_STORE_MMAP = 1 };

/* When checksums of a packed file are compared: at the first read of a block, at each, never. */
enum clb_store_verify { CLB_VERIFY_FIRST = 0, CLB_VERIFY_ALWAYS = 1, CLB_VERIFY_NEVER = 2 };

enum { CLB_PART_GATE = 0, CLB_PART_UP = 1, CLB_PART_DOWN = 2, CLB_PARTS = 3 };

/* Where one part of a layer's experts lies: expert e is at offset + e * stride in tensors[0], or, if `per_expert`, at
 * `offset` in tensors[e]. */
typedef struct clb_expert_source {
    const clb_gguf_tensor *const *tensors;
    bool per_expert;
    uint64_t offset, stride;
} clb_expert_source;

/* One MoE layer's experts; the matrices are bound, their data is NULL. */
typedef struct clb_expert_layer {
    clb_matrix part[CLB_PARTS];
    clb_expert_source source[CLB_PARTS];
    /* Packed files: the parts of expert e lie together, as they are multiplied, in block_bytes bytes at block_offset +
     * e * block_bytes of block_shard (multiples of 4096), part p at part_at[p] inside. 0: not packed. */
    uint64_t block_bytes, block_offset;
    uint32_t block_shard;
    uint64_t part_at[CLB_PARTS];
} clb_expert_layer;

typedef struct clb_store_options {
    const clb_gguf *gguf; /* borrowed, must outlive the store */
    clb_registry *registry;
    clb_pool *pool;
    const clb_log *log;
    enum clb_store_mode mode;
    bool mlock;
    uint64_t expected_bytes; /* of all loads, for progress */
    bool drop_cache;         /* take what was loaded out of the page cache: memory has no room for both copies */
    enum clb_io_engine io;   /* of experts and streamed layers */
    enum clb_io_direct direct;
    const cpu_set_t *io_cpus;       /* where the threads of io may run, as in clb_io_options; borrowed while opening */
    const char *const *mirror_dirs; /* [n_mirror_dirs] folders with copies of the model's files; borrowed */
    size_t n_mirror_dirs;
    enum clb_store_verify verify;
    bool (*cancelled)(void *ctx); /* asked by the engine's thread while it loads or waits for a drive; may be NULL */
    void *cancelled_ctx;
} clb_store_options;

int clb_store_create(const clb_store_options *options, clb_store **out, clb_error *err);
void clb_store_destroy(clb_store *store);

/* Loading has two steps: what to load, in any order, then clb_store_load, which reads everything in file order with all
 * workers. Memory belongs to the store. */

/* A bound matrix from rows of a tensor starting at byte `offset`. m->data is set by clb_store_load; `m` must live till
 * then.
 */
int clb_store_load_matrix(clb_store *store, const clb_gguf_tensor *t, uint64_t offset, clb_matrix *m, clb_error *err);
/* A whole tensor as floats (norms, biases); *out is set by clb_store_load. */
int clb_store_load_floats(clb_store *store, const clb_gguf_tensor *t, const float **out, clb_error *err);
/* Errors: NOMEM, and what reading the file gives. */
int clb_store_load(clb_store *store, clb_error *err);

typedef struct clb_expert_pool {
    const clb_expert_layer *layers; /* [n_layers], borrowed */
    uint32_t n_layers, n_experts, top_k;
    const uint32_t *class_slots; /* slots per class, see clb_store_classes; NULL: room for all experts */
    bool layer_pools;            /* each layer has slots of its own: an equal part of its class's */
    const struct colibri_expert_policy *policy;
    const double *params;
    const struct colibri_predictor *predictor; /* NULL: none */
    const double *predictor_params;
    uint32_t prefetch_depth; /* layers that guesses are followed ahead */
    uint64_t seed;
    bool preload; /* read all experts now (only if all have a slot) */
} clb_expert_pool;

/* Size classes of expert layers: class of each layer into class_of[n_layers], slot bytes of each class into
 * slot_bytes[n_layers] (at most that many); returns the number of classes. The bytes are those of slots that are filled
 * once, by preload. */
uint32_t clb_store_classes(const clb_expert_layer *layers, uint32_t n_layers, uint32_t *class_of, uint64_t *slot_bytes);
/* What a slot takes in addition if not all experts fit: room for the alignment of direct reads. */
uint64_t clb_store_stream_slack(const clb_expert_layer *layer);

/* Once, before clb_store_load or after. With `preload` it loads what is queued, too, in the same pass over the file.
 * NOMEM if the slots cannot be had; errors of the policy: PLUGIN. */
int clb_store_open_experts(clb_store *store, const clb_expert_pool *pool, clb_error *err);

typedef struct clb_lease {
    uint32_t expert;
    uint32_t slot;               /* the store's */
    const void *part[CLB_PARTS]; /* data of the three matrices */
} clb_lease;

void clb_store_step(clb_store *store, enum colibri_phase phase, uint32_t n_rows, uint32_t n_sequences);
/* After the last layer of a pass that succeeded. */
void clb_store_step_end(clb_store *store);
/* A pass interrupts another one between two of its steps, and ends before that goes on: only if all experts have slots and
 * all layers stay. It looks experts up and counts hits; policies and predictors see the interrupted pass alone. */
void clb_store_set_aside(clb_store *store, bool aside);
/* route->union_ids are the experts that this step will acquire. */
void clb_store_route(clb_store *store, const struct colibri_route *route);
/* Leases at least one and at most n of the experts in ids[n] (distinct, all in the union and not acquired before in
 * this step); gate_sums and rows per id feed the policy. out: [n]. */
int clb_store_acquire(clb_store *store, uint32_t layer, const uint32_t *ids, const uint32_t *rows,
                      const float *gate_sums, uint32_t n, clb_lease *out, uint32_t *n_out, clb_error *err);
void clb_store_release(clb_store *store, uint32_t layer, const clb_lease *leases, uint32_t n);

/* What the policy learned, see clb_cache_save and _load. */
const char *clb_store_policy_name(const clb_store *store);
bool clb_store_keeps_profile(const clb_store *store);
size_t clb_store_save_profile(clb_store *store, void *buf, size_t size);
int clb_store_load_profile(clb_store *store, const void *buf, size_t size, clb_error *err);

/* Router layers ahead that the predictor wants in clb_store_route's ahead_logits; 0 without one. */
uint32_t clb_store_ahead(const clb_store *store);
/* Whether the predictor is asked in this pass: only then does it need them. */
bool clb_store_asks(const clb_store *store);

/* ---- streamed dense layers ---- */

/* A matrix of streamed layer `layer`; before clb_store_open_layers. m->data is set between layer_begin and layer_end.
 */
int clb_store_stream_matrix(clb_store *store, uint32_t layer, const clb_gguf_tensor *t, uint64_t offset, clb_matrix *m,
                            clb_error *err);
/* n_slots slots, each as large as the largest streamed layer; reading starts at once. */
int clb_store_open_layers(clb_store *store, uint32_t n_slots, clb_error *err);
/* Bytes of the slot that a layer of these matrices wants. */
uint64_t clb_store_layer_room(const clb_matrix *const *matrices, uint32_t n);
/* Around each layer of a pass, in ascending order; nothing for layers that are not streamed. begin waits until the
 * layer is there. */
int clb_store_layer_begin(clb_store *store, uint32_t layer, clb_error *err);
void clb_store_layer_end(clb_store *store, uint32_t layer);

typedef struct clb_store_stats {
    uint64_t resident_bytes;                             /* matrices and vectors outside slots */
    uint64_t slot_bytes;                                 /* all slots */
    uint32_t n_slots, n_experts;                         /* in total */
    uint64_t hits, misses, late, evictions, bad_answers; /* late: asked for while a prefetch was bringing it */
    clb_cache_lookups phase[CLB_STEP_PHASES];            /* the same by enum colibri_phase of the pass */
    uint64_t bypassed;
    uint64_t load_bytes;        /* read while loading */
    uint64_t expert_bytes_read; /* read by acquire */
    uint64_t read_ns, pack_ns, policy_ns;
    const char *policy;
    uint64_t load_ns;                    /* of clb_store_load, by the clock */
    uint64_t load_read_ns, load_pack_ns; /* of all threads together, inside it */
    uint64_t stall_ns;                   /* waiting for reads with nothing to compute */
    const char *predictor;               /* NULL: none */
    uint64_t guesses, guess_bytes;       /* experts read ahead */
    uint64_t guess_useful, guess_late, guess_wasted, guess_cancelled;
    uint64_t guess_held_back; /* not read since their like had not been worth it */
    uint64_t passes_ahead,
        passes_plain;   /* decode passes with reading ahead, and without, since it did not pay or for trial */
    double ahead_ratio; /* time of a pass with / without, as last measured; 0: not yet */
    uint64_t streamed_layers, layer_bytes_read, layer_slot_bytes;
    bool reads_ahead; /* io is valid: something is read while computing */
    clb_io_stats io;
} clb_store_stats;
void clb_store_get_stats(const clb_store *store, clb_store_stats *out);
/* out[layer * n_experts + expert]: 1 if the expert is in memory, of the MoE layers in order. [engine-thread] */
void clb_store_residency(const clb_store *store, uint8_t *out);
/* Counters to zero, contents unchanged. */
void clb_store_reset_stats(clb_store *store);
/* Empties every slot that is not leased, those of streamed layers, and the policy's memory: a cold cache. */
void clb_store_reset_experts(clb_store *store);
/* Takes the pages of mapped files out of the process, so that posix_fadvise can take them out of the page cache, which
 * it does with none that is mapped. They come back when they are looked at. Nothing to do where files are read. */
void clb_store_unmap_pages(clb_store *store);

#endif
