#include "store/cache_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

uint32_t clb_cache_transit_slots(const struct colibri_expert_policy *policy, uint32_t pool_slots, uint32_t top_k)
{
    if (!policy->admit || pool_slots < 2)
        return 0; /* with one slot a bypassed expert has to take it */
    const uint32_t n = pool_slots / 8 ? pool_slots / 8 : 1;
    return n < top_k ? n : top_k;
}

static uint64_t next_use(void *ctx, uint32_t layer, uint32_t expert)
{
    const struct clb_cache_pool *p = ctx;
    const clb_cache_options *o = &p->cache->options;
    return layer < p->n_layers ? o->next_use(o->next_use_ctx, p->layers[layer], expert) : UINT64_MAX;
}

static int open_policy(struct clb_cache_pool *p, clb_error *err)
{
    const clb_cache_options *o = &p->cache->options;
    uint64_t *bytes = calloc(p->n_layers ? p->n_layers : 1, sizeof *bytes);
    if (!bytes)
        return CLB_NOMEM(err, "expert policy");
    for (uint32_t l = 0; l < p->n_layers; l++)
        bytes[l] = o->expert_bytes[p->layers[l]];
    const struct colibri_policy_config config = {
        .struct_size = sizeof config,
        .n_layers = p->n_layers,
        .n_experts = o->n_experts,
        .top_k = o->top_k,
        .n_slots = p->n,
        .expert_bytes = bytes,
        .seed = o->seed,
        .params = o->params,
        .host = o->host,
        .next_use = o->next_use ? next_use : NULL,
        .next_use_ctx = p,
    };
    char why[256] = "no reason given";
    p->self = o->policy->create(&config, why, sizeof why);
    free(bytes);
    if (!p->self)
        return clb_fail(err, COLIBRI_E_PLUGIN, "expert policy %s refused to start: %.255s", o->policy->name, why);
    return COLIBRI_OK;
}

/* So that the lowest free slot is taken next. */
static void list_free(struct clb_cache_pool *p)
{
    p->n_free = p->n_free_transit = 0;
    for (uint32_t i = p->n; i-- > 0;)
        if (p->cache->slots[p->first + i].state == CLB_SLOT_FREE)
            p->free_slots[p->n_free++] = p->first + i;
    for (uint32_t i = p->n_transit; i-- > 0;)
        if (p->cache->slots[p->first_transit + i].state == CLB_SLOT_FREE)
            p->free_transit[p->n_free_transit++] = p->first_transit + i;
}

static int open_pool(clb_cache *c, uint32_t index, uint32_t pool_slots, uint32_t *first, clb_error *err)
{
    struct clb_cache_pool *p = &c->pools[index];
    const struct colibri_expert_policy *policy = c->options.policy;
    const size_t some = pool_slots ? pool_slots : 1;
    p->cache = c;
    p->n_transit = clb_cache_transit_slots(policy, pool_slots, c->options.top_k);
    p->n = pool_slots - p->n_transit;
    p->first = *first;
    p->first_transit = p->first + p->n;
    *first += pool_slots;
    p->layers = calloc(c->options.n_layers, sizeof *p->layers);
    p->free_slots = calloc(some, sizeof *p->free_slots);
    p->free_transit = calloc(some, sizeof *p->free_transit);
    p->candidates = calloc(some, sizeof *p->candidates);
    p->candidate_slots = calloc(some, sizeof *p->candidate_slots);
    p->order.heap = calloc(some, sizeof *p->order.heap);
    p->order.head = p->order.tail = CLB_NO_PLACE;
    if (!p->layers || !p->free_slots || !p->free_transit || !p->candidates || !p->candidate_slots || !p->order.heap)
        return CLB_NOMEM(err, "expert slots");
    p->order.used = policy->score && !policy->pick_victims && (policy->flags & COLIBRI_POLICY_SCORE_RISES);
    for (uint32_t l = 0; l < c->options.n_layers; l++)
        if (c->pool_of[l] == index) {
            c->local_of[l] = p->n_layers;
            p->layers[p->n_layers++] = l;
        }
    for (uint32_t i = 0; i < p->n_transit; i++)
        c->slots[p->first_transit + i].transit = true;
    list_free(p);
    return pool_slots ? open_policy(p, err) : COLIBRI_OK;
}

int clb_cache_open(const clb_cache_options *options, clb_cache **out, clb_error *err)
{
    *out = NULL;
    clb_cache *c = calloc(1, sizeof *c);
    if (!c)
        return CLB_NOMEM(err, "expert slots");
    c->options = *options;
    c->n_pools = options->n_pools;
    uint64_t n_slots = 0;
    for (uint32_t i = 0; i < options->n_pools; i++)
        n_slots += options->pool_slots[i];
    int rc = n_slots < CLB_NO_SLOT ? COLIBRI_OK : clb_fail(err, COLIBRI_E_LIMIT, "too many expert slots");
    c->n_slots = (uint32_t)n_slots;
    const size_t n = (size_t)options->n_layers * options->n_experts;
    c->pools = calloc(c->n_pools ? c->n_pools : 1, sizeof *c->pools);
    c->pool_of = calloc(options->n_layers, sizeof *c->pool_of);
    c->local_of = calloc(options->n_layers, sizeof *c->local_of);
    c->slots = rc ? NULL : calloc(c->n_slots ? c->n_slots : 1, sizeof *c->slots);
    c->slot_of = malloc(n * sizeof *c->slot_of);
    c->needed = calloc(options->n_experts, sizeof *c->needed);
    c->scratch = calloc(options->n_experts, sizeof *c->scratch);
    if (!rc && (!c->pools || !c->pool_of || !c->local_of || !c->slots || !c->slot_of || !c->needed || !c->scratch))
        rc = CLB_NOMEM(err, "expert slots");
    if (!rc) {
        memcpy(c->pool_of, options->pool_of, options->n_layers * sizeof *c->pool_of);
        memset(c->slot_of, 0xff, n * sizeof *c->slot_of); /* CLB_NO_SLOT */
        for (uint32_t i = 0; i < c->n_slots; i++)
            c->slots[i].heap_at = c->slots[i].prev = c->slots[i].next = CLB_NO_PLACE;
        uint32_t first = 0;
        for (uint32_t i = 0; i < c->n_pools && !rc; i++)
            rc = open_pool(c, i, options->pool_slots[i], &first, err);
    }
    if (rc) {
        clb_cache_close(c);
        return rc;
    }
    c->options.pool_of = NULL;
    c->options.pool_slots = NULL;
    c->options.expert_bytes = NULL;
    c->options.params = NULL;
    c->routed = UINT32_MAX;
    *out = c;
    return COLIBRI_OK;
}

void clb_cache_close(clb_cache *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; c->pools && i < c->n_pools; i++) {
        struct clb_cache_pool *p = &c->pools[i];
        if (p->self)
            c->options.policy->destroy(p->self);
        free(p->layers);
        free(p->free_slots);
        free(p->free_transit);
        free(p->candidates);
        free(p->candidate_slots);
        free(p->order.heap);
    }
    free(c->pools);
    free(c->pool_of);
    free(c->local_of);
    free(c->slots);
    free(c->slot_of);
    free(c->needed);
    free(c->scratch);
    free(c);
}

void clb_cache_pool_range(const clb_cache *c, uint32_t pool, uint32_t *first, uint32_t *n)
{
    *first = c->pools[pool].first;
    *n = c->pools[pool].n + c->pools[pool].n_transit;
}

/* ---- events ---- */

static struct clb_cache_pool *pool_of_layer(const clb_cache *c, uint32_t layer)
{
    return &c->pools[c->pool_of[layer]];
}

void clb_cache_step(clb_cache *c, const struct colibri_step *step)
{
    c->phase = step->phase < CLB_STEP_PHASES ? step->phase : COLIBRI_PHASE_PREFILL;
    if (!c->options.policy->on_step)
        return;
    const uint64_t began = clb_cache_begin(c);
    for (uint32_t i = 0; i < c->n_pools; i++)
        if (c->pools[i].self)
            c->options.policy->on_step(c->pools[i].self, step);
    clb_cache_end(c, began);
}

static void turn_has_come(struct clb_cache_pool *p, clb_cache_slot *s)
{
    p->n_waiting -= s->waiting;
    s->waiting = false;
}

void clb_cache_route(clb_cache *c, const struct colibri_route *route)
{
    c->routed = route->layer;
    if (++c->visit == 0) { /* wrapped: old marks must not match */
        memset(c->needed, 0, c->options.n_experts * sizeof *c->needed);
        c->visit = 1;
    }
    for (uint32_t i = 0; i < route->n_union; i++)
        c->needed[route->union_ids[i]] = c->visit;
    struct clb_cache_pool *p = pool_of_layer(c, route->layer);
    for (uint32_t e = 0; p->n_waiting && e < c->options.n_experts; e++) {
        const uint32_t slot = clb_cache_find(c, route->layer, e);
        if (slot != CLB_NO_SLOT)
            turn_has_come(p, &c->slots[slot]);
    }
    if (!p->self || !c->options.policy->on_route)
        return;
    struct colibri_route local = *route;
    local.layer = c->local_of[route->layer];
    const uint64_t began = clb_cache_begin(c);
    c->options.policy->on_route(p->self, &local);
    clb_cache_end(c, began);
}

void clb_cache_access(clb_cache *c, const struct colibri_access *access, uint32_t n)
{
    if (!n || !c->options.policy->on_access)
        return;
    const struct clb_cache_pool *p = pool_of_layer(c, access[0].layer);
    if (!p->self)
        return;
    for (uint32_t i = 0; i < n; i++) {
        c->scratch[i] = access[i];
        c->scratch[i].layer = c->local_of[access[i].layer];
    }
    const uint64_t began = clb_cache_begin(c);
    c->options.policy->on_access(p->self, c->scratch, n);
    clb_cache_end(c, began);
}

/* ---- slots ---- */

static void unmap(clb_cache *c, clb_cache_slot *s)
{
    c->slot_of[(size_t)s->layer * c->options.n_experts + s->expert] = CLB_NO_SLOT;
    s->state = CLB_SLOT_FREE;
}

/* The slot is unmapped, not yet in the list of free ones. */
static void evict(struct clb_cache_pool *p, uint32_t slot)
{
    clb_cache *c = p->cache;
    clb_cache_slot *s = &c->slots[slot];
    const bool unused = s->cause == COLIBRI_CAUSE_PREFETCH && s->uses == 0;
    clb_order_remove(p, slot);
    turn_has_come(p, s);
    p->n_low -= s->low;
    s->low = false;
    unmap(c, s);
    c->stats.evictions++;
    c->stats.prefetch_wasted += unused;
    if (!c->options.policy->on_evict)
        return;
    const uint64_t began = clb_cache_begin(c);
    c->options.policy->on_evict(p->self, c->local_of[s->layer], s->expert, s->uses, unused);
    clb_cache_end(c, began);
}

static void insert(struct clb_cache_pool *p, uint32_t slot, enum colibri_cause cause)
{
    clb_cache *c = p->cache;
    const clb_cache_slot *s = &c->slots[slot];
    const uint64_t began = clb_cache_begin(c);
    c->stats.insertions++;
    if (c->options.policy->on_insert)
        c->options.policy->on_insert(p->self, c->local_of[s->layer], s->expert, (uint32_t)cause);
    clb_order_add(p, slot);
    clb_cache_end(c, began);
}

static uint32_t ask_admit(const struct clb_cache_pool *p, uint32_t layer, uint32_t expert, enum colibri_cause cause)
{
    clb_cache *c = p->cache;
    if (!c->options.policy->admit)
        return COLIBRI_ADMIT;
    const uint64_t began = clb_cache_begin(c);
    const int answer = c->options.policy->admit(p->self, c->local_of[layer], expert, (uint32_t)cause);
    clb_cache_end(c, began);
    return answer == COLIBRI_ADMIT_BYPASS || answer == COLIBRI_ADMIT_LOW_PRIORITY ? (uint32_t)answer : COLIBRI_ADMIT;
}

uint32_t clb_cache_take(clb_cache *c, uint32_t slot)
{
    clb_cache_slot *s = &c->slots[slot];
    struct clb_cache_pool *p = pool_of_layer(c, s->layer);
    const bool late = s->state == CLB_SLOT_LOADING;
    if (s->cause == COLIBRI_CAUSE_PREFETCH && s->uses == 0 && !late)
        c->stats.prefetch_useful++;
    if (late) {
        c->stats.late++;
        c->stats.phase[c->phase].late++;
    } else {
        clb_cache_count_hit(c);
    }
    if (!clb_slot_busy(s) && !s->transit)
        p->n_busy++;
    s->pins++;
    s->uses++;
    s->last_use = ++c->clock;
    p->n_low -= s->low;
    s->low = false;
    c->needed[s->expert] = 0;
    clb_order_use(p, slot);
    return late ? COLIBRI_ACCESS_LATE : COLIBRI_ACCESS_HIT;
}

/* Slots that guesses may hold at once: at most half, and never those that one row's experts need. */
static uint32_t most_waiting(const struct clb_cache_pool *p)
{
    const uint32_t top_k = p->cache->options.top_k, rest = p->n > top_k ? p->n - top_k : 0;
    return rest < p->n / 2 ? rest : p->n / 2;
}

uint32_t clb_cache_place(clb_cache *c, uint32_t layer, uint32_t expert, enum colibri_cause cause)
{
    struct clb_cache_pool *p = pool_of_layer(c, layer);
    const bool prefetch = cause == COLIBRI_CAUSE_PREFETCH;
    /* Asked once the load is certain to happen: an expert that must wait for a later wave would be asked about twice.
     */
    if (p->n_free == 0 && p->n_busy >= p->n)
        return CLB_NO_SLOT;
    if (!prefetch && p->n_transit && p->n_free_transit == 0)
        return CLB_NO_SLOT;
    if (prefetch && p->n_waiting >= most_waiting(p))
        return CLB_NO_SLOT;
    const uint32_t admit = ask_admit(p, layer, expert, cause);
    const bool bypass = admit == COLIBRI_ADMIT_BYPASS && (prefetch || p->n_transit);
    uint32_t slot;
    if (bypass && prefetch)
        return CLB_NO_SLOT;
    if (bypass) {
        slot = p->free_transit[--p->n_free_transit];
        c->stats.bypassed++;
    } else if (p->n_free) {
        slot = p->free_slots[--p->n_free];
    } else {
        slot = clb_cache_victim(p, prefetch);
        if (slot == CLB_NO_SLOT)
            return slot;
        evict(p, slot);
    }
    clb_cache_slot *s = &c->slots[slot];
    *s = (clb_cache_slot){.layer = layer,
                          .expert = expert,
                          .pins = !prefetch,
                          .uses = !prefetch,
                          .last_use = ++c->clock,
                          .state = CLB_SLOT_LOADING,
                          .cause = (uint8_t)cause,
                          .transit = s->transit,
                          .low = admit == COLIBRI_ADMIT_LOW_PRIORITY,
                          .waiting = prefetch,
                          .heap_at = CLB_NO_PLACE,
                          .prev = CLB_NO_PLACE,
                          .next = CLB_NO_PLACE};
    c->slot_of[(size_t)layer * c->options.n_experts + expert] = slot;
    p->n_low += s->low;
    p->n_waiting += s->waiting;
    if (prefetch) {
        c->stats.prefetches++;
    } else {
        c->stats.misses++;
        c->stats.phase[c->phase].misses++;
        c->needed[expert] = 0;
    }
    if (bypass)
        return slot;
    p->n_busy++;
    insert(p, slot, cause);
    return slot;
}

void clb_cache_arrived(clb_cache *c, uint32_t slot)
{
    clb_cache_slot *s = &c->slots[slot];
    assert(s->state == CLB_SLOT_LOADING);
    s->state = CLB_SLOT_RESIDENT;
    if (!s->pins && !s->transit)
        pool_of_layer(c, s->layer)->n_busy--;
}

void clb_cache_drop(clb_cache *c, uint32_t slot)
{
    clb_cache_slot *s = &c->slots[slot];
    struct clb_cache_pool *p = pool_of_layer(c, s->layer);
    s->pins = 0;
    if (s->transit) {
        unmap(c, s);
        p->free_transit[p->n_free_transit++] = slot;
        return;
    }
    p->n_busy--;
    evict(p, slot);
    p->free_slots[p->n_free++] = slot;
}

void clb_cache_discard(clb_cache *c, uint32_t slot)
{
    clb_cache_slot *s = &c->slots[slot];
    struct clb_cache_pool *p = pool_of_layer(c, s->layer);
    assert(s->state == CLB_SLOT_RESIDENT && !s->pins && !s->transit);
    evict(p, slot);
    p->free_slots[p->n_free++] = slot;
}

void clb_cache_failed(clb_cache *c, uint32_t slot)
{
    assert(c->slots[slot].state == CLB_SLOT_LOADING);
    clb_cache_drop(c, slot);
}

void clb_cache_unpin(clb_cache *c, uint32_t slot)
{
    clb_cache_slot *s = &c->slots[slot];
    struct clb_cache_pool *p = pool_of_layer(c, s->layer);
    assert(s->pins);
    if (--s->pins || s->state == CLB_SLOT_LOADING)
        return;
    if (!s->transit) {
        p->n_busy--;
        return;
    }
    unmap(c, s);
    p->free_transit[p->n_free_transit++] = slot;
}

uint32_t clb_cache_preload(clb_cache *c, uint32_t layer, uint32_t expert)
{
    struct clb_cache_pool *p = pool_of_layer(c, layer);
    assert(p->n_free || p->n_free_transit);
    /* All fit, so none will ever be bypassed: the slots set aside serve like the others. */
    const uint32_t slot = p->n_free ? p->free_slots[--p->n_free] : p->free_transit[--p->n_free_transit];
    clb_cache_slot *s = &c->slots[slot];
    *s = (clb_cache_slot){.layer = layer,
                          .expert = expert,
                          .state = CLB_SLOT_RESIDENT,
                          .cause = COLIBRI_CAUSE_PRELOAD,
                          .heap_at = CLB_NO_PLACE,
                          .prev = CLB_NO_PLACE,
                          .next = CLB_NO_PLACE};
    c->slot_of[(size_t)layer * c->options.n_experts + expert] = slot;
    if (slot < p->first + p->n)
        insert(p, slot, COLIBRI_CAUSE_PRELOAD);
    return slot;
}

/* ---- the rest ---- */

void clb_cache_reset(clb_cache *c)
{
    for (uint32_t i = 0; i < c->n_slots; i++) {
        clb_cache_slot *s = &c->slots[i];
        if (s->state != CLB_SLOT_RESIDENT || s->pins)
            continue;
        struct clb_cache_pool *p = pool_of_layer(c, s->layer);
        clb_order_remove(p, i);
        turn_has_come(p, s);
        p->n_low -= s->low;
        s->low = false;
        unmap(c, s);
    }
    for (uint32_t i = 0; i < c->n_pools; i++) {
        struct clb_cache_pool *p = &c->pools[i];
        if (!p->self)
            continue;
        for (uint32_t t = 0; t < p->n_transit; t++) /* after a preload they looked like the others */
            c->slots[p->first_transit + t].transit = true;
        list_free(p);
        c->options.policy->reset(p->self);
        clb_order_refresh(p); /* of what stays */
    }
    c->clock = 0;
}

void clb_cache_reset_stats(clb_cache *c)
{
    c->stats = (clb_cache_stats){0};
}
