/* The choice of a victim: candidates, the policy's answer, its validation, the fallback. */
#include <math.h>
#include <string.h>

#include "store/cache_internal.h"

static void bad_answer(clb_cache *c, const char *what)
{
    if (c->stats.bad_answers++ == 0 && c->options.misbehaved)
        c->options.misbehaved(c->options.misbehaved_ctx, c->options.policy->name, what);
}

/* What is pinned, on its way, or still needed in this visit stays; so does what was fetched ahead and whose turn has
 * not come, unless `waiting` may leave too. So a policy need not know about it: by its own measure a guess may well be
 * the coldest expert of all. */
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

/* ---- heap: entries have all that a comparison needs, for most of a replay's time is spent here ---- */

/* A score as a number that sorts like it: comparing integers needs no branches, and which child is smaller cannot be
 * guessed. */
static uint64_t order_of(double score)
{
    const double v = isnan(score) ? -INFINITY : score + 0.0; /* -0 becomes +0: they are equal */
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static inline uint32_t before(const struct clb_heap_entry *x, const struct clb_heap_entry *y)
{
    return (uint32_t)(x->key < y->key) | ((uint32_t)(x->key == y->key) & (uint32_t)(x->number < y->number));
}

static void put(struct clb_cache_pool *p, uint32_t at, struct clb_heap_entry e)
{
    p->heap[at] = e;
    p->cache->slots[e.slot].heap_at = at;
}

static void sift_up(struct clb_cache_pool *p, uint32_t at)
{
    const struct clb_heap_entry e = p->heap[at];
    while (at && before(&e, &p->heap[(at - 1) / 2])) {
        put(p, at, p->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(p, at, e);
}

static void sift_down(struct clb_cache_pool *p, uint32_t at)
{
    const struct clb_heap_entry e = p->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= p->n_heap)
            break;
        if (child + 1 < p->n_heap)
            child += before(&p->heap[child + 1], &p->heap[child]);
        if (!before(&p->heap[child], &e))
            break;
        put(p, at, p->heap[child]);
        at = child;
    }
    put(p, at, e);
}

static void heap_push(struct clb_cache_pool *p, uint32_t slot, uint64_t key)
{
    const uint32_t number = (uint32_t)number_of(p, &p->cache->slots[slot]);
    put(p, p->n_heap, (struct clb_heap_entry){key, number, slot});
    sift_up(p, p->n_heap++);
}

static void heap_delete(struct clb_cache_pool *p, uint32_t at)
{
    p->cache->slots[p->heap[at].slot].heap_at = CLB_NO_PLACE;
    const struct clb_heap_entry last = p->heap[--p->n_heap];
    if (at == p->n_heap)
        return;
    put(p, at, last);
    sift_up(p, at);
    sift_down(p, p->cache->slots[last.slot].heap_at);
}

void clb_cache_heap_add(struct clb_cache_pool *p, uint32_t slot)
{
    if (!p->has_heap)
        return;
    heap_push(p, slot, order_of(score_of(p, &p->cache->slots[slot]))); /* NaN: looked at again when its turn comes */
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
        const uint32_t top = p->heap[0].slot;
        const clb_cache_slot *s = &c->slots[top];
        if (!may_leave(p, s, waiting)) {
            heap_delete(p, 0);
            p->candidate_slots[n_aside++] = top;
            continue;
        }
        const double score = score_of(p, s);
        const uint64_t now = order_of(score);
        if (isnan(score) || now < p->heap[0].key) {
            bad_answer(c, isnan(score) ? "score() returned NaN" : "score() fell, although it declares SCORE_RISES");
            p->has_heap = false;
            p->n_heap = 0;
            return CLB_NO_SLOT;
        }
        if (now > p->heap[0].key) {
            p->heap[0].key = now;
            sift_down(p, 0);
            continue;
        }
        found = top;
    }
    while (n_aside) /* with present scores: those of this visit would come up again at once */
        clb_cache_heap_add(p, p->candidate_slots[--n_aside]);
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
