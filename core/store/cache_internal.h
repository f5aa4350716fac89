/* Inside the expert cache: pools and the choice of victims. */
#ifndef CLB_STORE_CACHE_INTERNAL_H
#define CLB_STORE_CACHE_INTERNAL_H

#include "base/clock.h"
#include "store/cache.h"

#define CLB_NO_PLACE UINT32_MAX

struct clb_heap_entry {
    uint64_t key;    /* the score as last seen, in the same order */
    uint32_t number; /* of the expert in the pool: what ties go by */
    uint32_t slot;
};

/* SCORE_RISES: the slots that may leave some day, ordered by (key, number); keys are scores as last seen, so never
 * above the present ones. In two parts (cache_order.c). */
struct clb_order {
    bool used;
    struct clb_heap_entry *heap;
    uint32_t n_heap;
    uint32_t head, tail;  /* of the list; CLB_NO_PLACE: empty */
    uint32_t moved, kept; /* uses that put a slot to the list's end, and others, lately */
};

struct clb_cache_pool {
    clb_cache *cache;
    void *self;                        /* the policy's instance; NULL: the pool has no slots */
    uint32_t first, n;                 /* slots of experts that stay */
    uint32_t first_transit, n_transit; /* slots of bypassed ones */
    uint32_t *free_slots, n_free;      /* stacks: the lowest slot is on top at first */
    uint32_t *free_transit, n_free_transit;
    uint32_t n_busy; /* of those that stay: pinned or LOADING */
    uint32_t n_low, n_waiting;
    uint32_t n_layers;
    uint32_t *layers; /* [n_layers]: the model's numbers */
    /* scratch for one decision, [n] */
    struct colibri_expert_ref *candidates;
    uint32_t *candidate_slots;
    struct clb_order order;
};

static inline uint64_t clb_cache_begin(const clb_cache *c)
{
    return c->options.timed ? clb_now_ns() : 0;
}

static inline void clb_cache_end(clb_cache *c, uint64_t began)
{
    if (c->options.timed)
        c->stats.policy_ns += clb_now_ns() - began;
}

static inline bool clb_slot_busy(const clb_cache_slot *s)
{
    return s->pins || s->state == CLB_SLOT_LOADING;
}

/* The slot to empty for an expert of the routed layer or a prefetch; still occupied. CLB_NO_SLOT: none may leave. */
uint32_t clb_cache_victim(struct clb_cache_pool *p, bool prefetch);
/* What is pinned, on its way, or still needed in this visit stays; so does a guess whose turn has not come, unless
 * `waiting` may leave, too. */
bool clb_cache_may_leave(const struct clb_cache_pool *p, const clb_cache_slot *s, bool waiting);
double clb_cache_score(const struct clb_cache_pool *p, const clb_cache_slot *s);
void clb_cache_bad_answer(clb_cache *c, const char *what);

/* cache_order.c. A slot enters or leaves; it has been used; the least that may leave, CLB_NO_SLOT also if the policy
 * broke its promise (the order is then given up). */
void clb_order_add(struct clb_cache_pool *p, uint32_t slot);
void clb_order_remove(struct clb_cache_pool *p, uint32_t slot);
void clb_order_use(struct clb_cache_pool *p, uint32_t slot);
uint32_t clb_order_victim(struct clb_cache_pool *p, bool waiting);
/* The policy's memory was replaced: scores may have fallen. */
void clb_order_refresh(struct clb_cache_pool *p);

#endif
