/* Which expert sits in which slot, and who leaves: the host of expert policies.
 *
 * No bytes, no clock, no threads: the store asks it where to read an expert to, the simulator asks it the same
 * questions for a recorded trace, so that both get the same hits. Slots belong to pools (see colibri/expert_policy.h).
 *
 * One visit of a layer:
 *   clb_cache_route                         tells the policy the routing
 *   waves, until the union is done:
 *     clb_cache_find, clb_cache_pin         what is there or on its way
 *     clb_cache_place                       a slot for each missing expert, as long as there are any
 *     clb_cache_access                      what was found: those that were there, then the missing ones
 *     clb_cache_unpin                       when it was multiplied
 * A wave is decided before its first expert is used and finished before the next one is decided, so decisions do not
 * depend on the order in which reads complete. [engine-thread] */
#ifndef CLB_STORE_CACHE_H
#define CLB_STORE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "colibri/expert_policy.h"

#define CLB_NO_SLOT UINT32_MAX

enum clb_slot_state { CLB_SLOT_FREE = 0, CLB_SLOT_LOADING = 1, CLB_SLOT_RESIDENT = 2 };

typedef struct clb_cache_slot {
    uint32_t layer, expert; /* of the model; valid unless FREE */
    uint32_t pins;
    uint32_t uses;     /* since insertion */
    uint64_t last_use; /* access clock, for the LRU fallback */
    uint8_t state;     /* enum clb_slot_state */
    uint8_t cause;     /* enum colibri_cause */
    bool transit;      /* set aside for bypassed experts; never a victim */
    bool low;          /* admitted with low priority and not used since */
    bool waiting;      /* fetched ahead; its layer's turn has not come since */
    /* where it is in the pool's order, if that has one (cache_order.c) */
    uint32_t number; /* of the expert in the pool */
    uint32_t heap_at;
    uint32_t prev, next;
    uint64_t key;
} clb_cache_slot;

typedef struct clb_cache_lookups {
    uint64_t hits, misses, late; /* late: was being prefetched */
} clb_cache_lookups;
#define CLB_STEP_PHASES 3u /* enum colibri_phase */

typedef struct clb_cache_stats {
    uint64_t hits, misses, late;              /* in all phases */
    clb_cache_lookups phase[CLB_STEP_PHASES]; /* of the steps' phases */
    uint64_t insertions, evictions, bypassed, bad_answers;
    uint64_t prefetches;      /* placed */
    uint64_t prefetch_useful; /* used after they had arrived */
    uint64_t prefetch_wasted; /* left unused */
    uint64_t policy_ns;       /* if options.timed */
} clb_cache_stats;

typedef struct clb_cache_options {
    uint32_t n_layers, n_experts, top_k;
    const uint32_t *pool_of; /* [n_layers] */
    uint32_t n_pools;
    const uint32_t *pool_slots;   /* [n_pools]; 0: the pool's layers need no slots and are never asked about */
    const uint64_t *expert_bytes; /* [n_layers] */
    const struct colibri_expert_policy *policy;
    const double *params;
    uint64_t seed;
    const struct colibri_host *host;
    bool timed; /* count the policy's time */
    /* Replay only. Layers are the model's. */
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *next_use_ctx;
    /* Once, when a policy's answer had to be replaced; may be NULL. */
    void (*misbehaved)(void *ctx, const char *policy, const char *what);
    void *misbehaved_ctx;
} clb_cache_options;

typedef struct clb_cache {
    clb_cache_options options; /* pointers into it are gone after opening, but for policy, host and callbacks */
    struct clb_cache_pool *pools;
    uint32_t n_pools;
    uint32_t *pool_of;  /* [n_layers] */
    uint32_t *local_of; /* [n_layers]: number inside the pool */
    clb_cache_slot *slots;
    uint32_t n_slots;  /* in all pools */
    uint32_t *slot_of; /* [n_layers * n_experts] */
    uint32_t *needed;  /* [n_experts]: visit number, if the routed layer still needs it */
    uint32_t visit, routed;
    uint32_t phase; /* of the step */
    uint64_t clock;
    struct colibri_access *scratch; /* [n_experts] */
    clb_cache_stats stats;
} clb_cache;

/* NOMEM; PLUGIN if the policy refuses. A policy that has admit() gets pools with clb_cache_transit_slots fewer slots,
 * the last ones of the pool's range. */
int clb_cache_open(const clb_cache_options *options, clb_cache **out, clb_error *err);
void clb_cache_close(clb_cache *cache);
uint32_t clb_cache_transit_slots(const struct colibri_expert_policy *policy, uint32_t pool_slots, uint32_t top_k);
/* Slots [*first, *first + *n) are the pool's. */
void clb_cache_pool_range(const clb_cache *cache, uint32_t pool, uint32_t *first, uint32_t *n);

void clb_cache_step(clb_cache *cache, const struct colibri_step *step);
/* A new visit; route->union_ids are needed from now on. */
void clb_cache_route(clb_cache *cache, const struct colibri_route *route);

static inline uint32_t clb_cache_find(const clb_cache *cache, uint32_t layer, uint32_t expert)
{
    return cache->slot_of[(uint64_t)layer * cache->options.n_experts + expert];
}

/* An expert that needs no slot was used. */
static inline void clb_cache_count_hit(clb_cache *cache)
{
    cache->stats.hits++;
    cache->stats.phase[cache->phase].hits++;
}

/* Takes an expert that has a slot for this visit: counts a hit (or late, if it is LOADING), pins the slot, and it is
 * not needed any more. Returns the access's result. */
uint32_t clb_cache_take(clb_cache *cache, uint32_t slot);
/* A slot for an expert that has none. DEMAND (routed layer; counts a miss): pinned, in state LOADING, not needed any
 * more. PREFETCH: LOADING, not pinned. Guesses whose layer's turn has not come hold at most half of a pool, and leave
 * top_k of its slots alone; a prefetch evicts nothing that is still to be used in this visit and no other guess (DEMAND
 * takes one if nothing else can leave). CLB_NO_SLOT: none can be had (DEMAND: wait for unpins, then ask again;
 * PREFETCH: do without). */
uint32_t clb_cache_place(clb_cache *cache, uint32_t layer, uint32_t expert, enum colibri_cause cause);
/* All bytes of a LOADING slot are there. */
void clb_cache_arrived(clb_cache *cache, uint32_t slot);
/* They never will be (a failed read, a cancelled prefetch): the slot is free again, also of the pin that place gave. */
void clb_cache_failed(clb_cache *cache, uint32_t slot);
/* A RESIDENT slot turned out to be useless (a wrong checksum): the expert is not there. drop: it is pinned, and nobody
 * has it; discard: it is not pinned. */
void clb_cache_drop(clb_cache *cache, uint32_t slot);
void clb_cache_discard(clb_cache *cache, uint32_t slot);
/* What a wave found, for the policy: first the experts that were there (or late), in union order, then the others, in
 * union order. Layers are the model's. */
void clb_cache_access(clb_cache *cache, const struct colibri_access *access, uint32_t n);
/* A bypassed expert is gone after that. */
void clb_cache_unpin(clb_cache *cache, uint32_t slot);

/* All experts of a layer's pool fit, and are put there at start: slots in order, RESIDENT, cause PRELOAD. */
uint32_t clb_cache_preload(clb_cache *cache, uint32_t layer, uint32_t expert);

/* Empties every slot that is neither pinned nor LOADING, and the policy's memory. */
void clb_cache_reset(clb_cache *cache);
void clb_cache_reset_stats(clb_cache *cache);

/* What the policy says about an expert, for reports; "" if it says nothing. */
void clb_cache_explain(clb_cache *cache, uint32_t layer, uint32_t expert, char *out, size_t size);
/* Profiles of all pools as one blob: [u32 n_pools] then per pool [u64 size][bytes]. Size needed is returned; written if
 * it fits; 0: the policy keeps none, or none of sensible size. load: FORMAT if the blob does not belong to these pools.
 */
#define CLB_MOST_PROFILE ((size_t)64 << 20)
size_t clb_cache_save(clb_cache *cache, void *buf, size_t size);
int clb_cache_load(clb_cache *cache, const void *buf, size_t size, clb_error *err);

#endif
