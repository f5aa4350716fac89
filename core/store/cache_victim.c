/* The choice of a victim: candidates, the policy's answer, its validation, the fallback. */
#include <math.h>

#include "store/cache_internal.h"

static void bad_answer(clb_cache *c, const char *what)
{
    if (c->stats.bad_answers++ == 0 && c->options.misbehaved)
        c->options.misbehaved(c->options.misbehaved_ctx, c->options.policy->name, what);
}

/* What is pinned, on its way, or still needed in this visit stays; so does what was fetched ahead and whose turn has not
 * come, unless `waiting` may leave too. So a policy need not know about it: by its own measure a guess may well be the
 * coldest expert of all. */
static bool may_leave(const struct clb_cache_pool *p, const clb_cache_slot *s, bool waiting)
{
    const clb_cache *c = p->cache;
    if (s->state != CLB_SLOT_RESIDENT || s->pins)
        return false;
    if (s->layer == c->routed && c->needed[s->expert] == c->visit)
        return false;
    return waiting || !s->waiting;
}

static uint64_t number_of(const struct clb_cache_pool *p, const clb_cache_slot *s)
{
    return (uint64_t)p->cache->local_of[s->layer] * p->cache->options.n_experts + s->expert;
}

static double score_of(const struct clb_cache_pool *p, const clb_cache_slot *s)
{
    return p->cache->options.policy->score(p->self, p->cache->local_of[s->layer], s->expert);
}

/* ---- heap ---- */

static bool before(const struct clb_cache_pool *p, uint32_t a, uint32_t b)
{
    const clb_cache_slot *x = &p->cache->slots[a], *y = &p->cache->slots[b];
    if (x->heap_key < y->heap_key || x->heap_key > y->heap_key)
        return x->heap_key < y->heap_key;
    return number_of(p, x) < number_of(p, y);
}

static void put(struct clb_cache_pool *p, uint32_t at, uint32_t slot)
{
    p->heap[at] = slot;
    p->cache->slots[slot].heap_at = at;
}

static void sift_up(struct clb_cache_pool *p, uint32_t at)
{
    const uint32_t slot = p->heap[at];
    while (at && before(p, slot, p->heap[(at - 1) / 2])) {
        put(p, at, p->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(p, at, slot);
}

static void sift_down(struct clb_cache_pool *p, uint32_t at)
{
    const uint32_t slot = p->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= p->n_heap)
            break;
        if (child + 1 < p->n_heap && before(p, p->heap[child + 1], p->heap[child]))
            child++;
        if (!before(p, p->heap[child], slot))
            break;
        put(p, at, p->heap[child]);
        at = child;
    }
    put(p, at, slot);
}

static void heap_push(struct clb_cache_pool *p, uint32_t slot)
{
    put(p, p->n_heap, slot);
    sift_up(p, p->n_heap++);
}

static void heap_delete(struct clb_cache_pool *p, uint32_t at)
{
    p->cache->slots[p->heap[at]].heap_at = CLB_NO_PLACE;
    const uint32_t last = p->heap[--p->n_heap];
    if (at == p->n_heap)
        return;
    put(p, at, last);
    sift_up(p, at);
    sift_down(p, p->cache->slots[last].heap_at);
}

void clb_cache_heap_add(struct clb_cache_pool *p, uint32_t slot)
{
    if (!p->has_heap)
        return;
    const double key = score_of(p, &p->cache->slots[slot]);
    p->cache->slots[slot].heap_key = isnan(key) ? -INFINITY : key; /* looked at again when its turn comes */
    heap_push(p, slot);
}

void clb_cache_heap_remove(struct clb_cache_pool *p, uint32_t slot)
{
    if (p->has_heap && p->cache->slots[slot].heap_at != CLB_NO_PLACE)
        heap_delete(p, p->cache->slots[slot].heap_at);
}

/* CLB_NO_SLOT also if the policy broke its promise; the pool then goes on without a heap. */
static uint32_t heap_victim(struct clb_cache_pool *p, bool waiting)
{
    clb_cache *c = p->cache;
    uint32_t n_aside = 0, found = CLB_NO_SLOT;
    while (p->n_heap && found == CLB_NO_SLOT) {
        const uint32_t top = p->heap[0];
        clb_cache_slot *s = &c->slots[top];
        if (!may_leave(p, s, waiting)) {
            heap_delete(p, 0);
            p->candidate_slots[n_aside++] = top;
            continue;
        }
        const double now = score_of(p, s);
        if (isnan(now) || now < s->heap_key) {
            bad_answer(c, isnan(now) ? "score() returned NaN" : "score() fell, although it declares SCORE_RISES");
            p->has_heap = false;
            p->n_heap = 0;
            return CLB_NO_SLOT;
        }
        if (now > s->heap_key) {
            s->heap_key = now;
            sift_down(p, 0);
            continue;
        }
        found = top;
    }
    while (n_aside)
        heap_push(p, p->candidate_slots[--n_aside]);
    return found;
}

/* ---- asking for all candidates ---- */

static uint32_t collect(struct clb_cache_pool *p, bool waiting)
{
    uint32_t n = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const clb_cache_slot *s = &p->cache->slots[i];
        if (!may_leave(p, s, waiting))
            continue;
        p->candidates[n] = (struct colibri_expert_ref){p->cache->local_of[s->layer], s->expert};
        p->candidate_slots[n++] = i;
    }
    return n;
}

/* Least recently used candidate: what the host does on its own. */
static uint32_t lru_choice(const struct clb_cache_pool *p, uint32_t n)
{
    const clb_cache_slot *slots = p->cache->slots;
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (slots[p->candidate_slots[i]].last_use < slots[p->candidate_slots[best]].last_use)
            best = i;
    return best;
}

static uint32_t score_choice(struct clb_cache_pool *p, uint32_t n)
{
    uint32_t best = 0;
    double best_score = INFINITY;
    uint64_t best_number = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        const clb_cache_slot *s = &p->cache->slots[p->candidate_slots[i]];
        const double score = score_of(p, s);
        if (isnan(score)) {
            bad_answer(p->cache, "score() returned NaN");
            return lru_choice(p, n);
        }
        const uint64_t number = number_of(p, s);
        if (best_number == UINT64_MAX || score < best_score || (score <= best_score && number < best_number)) {
            best = i;
            best_score = score;
            best_number = number;
        }
    }
    return best;
}

static uint32_t pick_choice(struct clb_cache_pool *p, uint32_t n)
{
    uint32_t answer = UINT32_MAX;
    const int rc = p->cache->options.policy->pick_victims(p->self, p->candidates, n, 1, &answer);
    if (!rc && answer < n)
        return answer;
    bad_answer(p->cache, rc ? "pick_victims() failed" : "pick_victims() returned an index out of range");
    return lru_choice(p, n);
}

/* Admitted with low priority and not used since: the one that came first leaves first. */
static uint32_t low_victim(const struct clb_cache_pool *p, bool waiting)
{
    uint32_t best = CLB_NO_SLOT;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const clb_cache_slot *s = &p->cache->slots[i];
        if (s->low && may_leave(p, s, waiting) && (best == CLB_NO_SLOT || s->last_use < p->cache->slots[best].last_use))
            best = i;
    }
    return best;
}

static uint32_t victim(struct clb_cache_pool *p, bool waiting)
{
    clb_cache *c = p->cache;
    uint32_t found = p->n_low ? low_victim(p, waiting) : CLB_NO_SLOT;
    if (found != CLB_NO_SLOT)
        return found;
    const uint64_t began = clb_cache_begin(c);
    if (p->has_heap)
        found = heap_victim(p, waiting);
    if (!p->has_heap) {
        const uint32_t n = collect(p, waiting);
        if (n)
            found = p->candidate_slots[c->options.policy->pick_victims ? pick_choice(p, n) : score_choice(p, n)];
    }
    clb_cache_end(c, began);
    return found;
}

uint32_t clb_cache_victim(struct clb_cache_pool *p, bool prefetch)
{
    if (p->n_busy >= p->n)
        return CLB_NO_SLOT;
    const uint32_t found = victim(p, false);
    return found == CLB_NO_SLOT && !prefetch && p->n_waiting ? victim(p, true) : found;
}
