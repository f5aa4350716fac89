/* The order of a pool whose policy's scores only rise: the slot with the smallest (score, number) without asking for
 * all scores, and with the same answer as if all were asked.
 *
 * A key is a score as last seen. Since scores rise, a slot whose key is stale can only be too far in front, and is put
 * right when it comes to the front. There are two parts, each with its smallest key first, and the smaller of their
 * fronts is the candidate:
 *
 * - a list, for slots whose key was the largest of the list when it was taken. With scores that are times of use that
 * is every use: the slot goes to the end, and no comparison is needed at all.
 * - a heap for the rest. */
#include <math.h>
#include <string.h>

#include "store/cache_internal.h"

/* Uses after which it is judged whether moving slots to the end of the list at each use pays. */
#define TRIAL 4096u

/* A score as a number that sorts like it: comparing integers needs no branches, and which child is smaller cannot be
 * guessed. NaN comes first: it is looked at when its turn comes. */
static inline uint64_t order_of(double score)
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

/* ---- heap: entries have all that a comparison needs ---- */

static void put(struct clb_cache_pool *p, uint32_t at, struct clb_heap_entry e)
{
    p->order.heap[at] = e;
    p->cache->slots[e.slot].heap_at = at;
}

static void sift_up(struct clb_cache_pool *p, uint32_t at)
{
    const struct clb_heap_entry e = p->order.heap[at];
    while (at && before(&e, &p->order.heap[(at - 1) / 2])) {
        put(p, at, p->order.heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(p, at, e);
}

static void sift_down(struct clb_cache_pool *p, uint32_t at)
{
    const struct clb_order *o = &p->order;
    const struct clb_heap_entry e = o->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= o->n_heap)
            break;
        if (child + 1 < o->n_heap)
            child += before(&o->heap[child + 1], &o->heap[child]);
        if (!before(&o->heap[child], &e))
            break;
        put(p, at, o->heap[child]);
        at = child;
    }
    put(p, at, e);
}

static void heap_push(struct clb_cache_pool *p, uint32_t slot)
{
    const clb_cache_slot *s = &p->cache->slots[slot];
    put(p, p->order.n_heap, (struct clb_heap_entry){s->key, s->number, slot});
    sift_up(p, p->order.n_heap++);
}

static void heap_delete(struct clb_cache_pool *p, uint32_t at)
{
    struct clb_order *o = &p->order;
    p->cache->slots[o->heap[at].slot].heap_at = CLB_NO_PLACE;
    const struct clb_heap_entry last = o->heap[--o->n_heap];
    if (at == o->n_heap)
        return;
    put(p, at, last);
    sift_up(p, at);
    sift_down(p, p->cache->slots[last.slot].heap_at);
}

/* ---- list ---- */

static inline bool in_list(const struct clb_cache_pool *p, uint32_t slot)
{
    return p->cache->slots[slot].prev != CLB_NO_PLACE || p->order.head == slot;
}

static void list_remove(struct clb_cache_pool *p, uint32_t slot)
{
    clb_cache_slot *slots = p->cache->slots, *s = &slots[slot];
    if (s->prev == CLB_NO_PLACE)
        p->order.head = s->next;
    else
        slots[s->prev].next = s->next;
    if (s->next == CLB_NO_PLACE)
        p->order.tail = s->prev;
    else
        slots[s->next].prev = s->prev;
    s->prev = s->next = CLB_NO_PLACE;
}

/* At the list's end, among slots of the same key by number; false if the end has a larger key. */
static bool list_append(struct clb_cache_pool *p, uint32_t slot)
{
    clb_cache_slot *slots = p->cache->slots, *s = &slots[slot];
    uint32_t after = p->order.tail;
    if (after != CLB_NO_PLACE && slots[after].key > s->key)
        return false;
    while (after != CLB_NO_PLACE && slots[after].key == s->key && slots[after].number > s->number)
        after = slots[after].prev;
    s->prev = after;
    s->next = after == CLB_NO_PLACE ? p->order.head : slots[after].next;
    if (after == CLB_NO_PLACE)
        p->order.head = slot;
    else
        slots[after].next = slot;
    if (s->next == CLB_NO_PLACE)
        p->order.tail = slot;
    else
        slots[s->next].prev = slot;
    return true;
}

/* ---- both ---- */

static void insert(struct clb_cache_pool *p, uint32_t slot)
{
    if (!list_append(p, slot))
        heap_push(p, slot);
}

void clb_order_add(struct clb_cache_pool *p, uint32_t slot)
{
    if (!p->order.used)
        return;
    clb_cache_slot *s = &p->cache->slots[slot];
    s->number = p->cache->local_of[s->layer] * p->cache->options.n_experts + s->expert;
    s->key = order_of(clb_cache_score(p, s));
    insert(p, slot);
}

void clb_order_remove(struct clb_cache_pool *p, uint32_t slot)
{
    if (!p->order.used)
        return;
    if (p->cache->slots[slot].heap_at != CLB_NO_PLACE)
        heap_delete(p, p->cache->slots[slot].heap_at);
    else if (in_list(p, slot))
        list_remove(p, slot);
}

void clb_order_refresh(struct clb_cache_pool *p)
{
    for (uint32_t slot = p->first; p->order.used && slot < p->first_transit + p->n_transit; slot++)
        if (p->cache->slots[slot].heap_at != CLB_NO_PLACE || in_list(p, slot)) {
            clb_order_remove(p, slot);
            clb_order_add(p, slot);
        }
}

void clb_order_use(struct clb_cache_pool *p, uint32_t slot)
{
    struct clb_order *o = &p->order;
    clb_cache_slot *s = &p->cache->slots[slot];
    if (!o->used || o->kept > o->moved + TRIAL || !in_list(p, slot))
        return;
    const double score = clb_cache_score(p, s);
    const uint64_t now = order_of(score);
    if (now <= s->key || p->cache->slots[o->tail].key > now) { /* put right when it comes to the front */
        o->kept++;
        return;
    }
    o->moved++;
    if (o->moved > TRIAL) { /* the recent past counts */
        o->moved /= 2;
        o->kept /= 2;
    }
    list_remove(p, slot);
    s->key = now;
    list_append(p, slot);
}

static bool give_up(struct clb_cache_pool *p, const char *why)
{
    clb_cache_bad_answer(p->cache, why);
    p->order.used = false;
    return false;
}

/* The slot's key is its score: true. A key that was stale is put right, and the slot has moved: false. */
static bool settle(struct clb_cache_pool *p, uint32_t slot)
{
    clb_cache_slot *s = &p->cache->slots[slot];
    const double score = clb_cache_score(p, s);
    const uint64_t now = order_of(score);
    if (isnan(score))
        return give_up(p, "score() returned NaN");
    if (now < s->key)
        return give_up(p, "score() fell, although it declares SCORE_RISES");
    if (now == s->key)
        return true;
    s->key = now;
    if (s->heap_at == CLB_NO_PLACE) {
        list_remove(p, slot);
        insert(p, slot);
    } else if (s->heap_at == 0) {
        p->order.heap[0].key = now;
        sift_down(p, 0);
    }
    return false;
}

/* The first of the list that may leave. */
static uint32_t first_of_list(const struct clb_cache_pool *p, bool waiting)
{
    uint32_t at = p->order.head;
    while (at != CLB_NO_PLACE && !clb_cache_may_leave(p, &p->cache->slots[at], waiting))
        at = p->cache->slots[at].next;
    return at;
}

uint32_t clb_order_victim(struct clb_cache_pool *p, bool waiting)
{
    struct clb_order *o = &p->order;
    clb_cache_slot *slots = p->cache->slots;
    uint32_t n_aside = 0, n_stale = 0, found = CLB_NO_SLOT;
    while (found == CLB_NO_SLOT && o->used) {
        while (o->n_heap && !clb_cache_may_leave(p, &slots[o->heap[0].slot], waiting)) {
            p->candidate_slots[n_aside++] = o->heap[0].slot;
            heap_delete(p, 0);
        }
        const uint32_t a = first_of_list(p, waiting), b = o->n_heap ? o->heap[0].slot : CLB_NO_PLACE;
        if (a == CLB_NO_PLACE && b == CLB_NO_PLACE)
            break;
        const bool list = b == CLB_NO_PLACE ||
                          (a != CLB_NO_PLACE && (slots[a].key < slots[b].key ||
                                                 (slots[a].key == slots[b].key && slots[a].number < slots[b].number)));
        const uint32_t first = list ? a : b;
        if (settle(p, first))
            found = first;
        else if (o->used && ++n_stale > p->n + p->n_transit) /* each key once: else it would go on for ever */
            (void)give_up(p, "score() rose between two questions, with no event between them");
    }
    while (n_aside && o->used) { /* with present scores: those of this visit would come up again at once */
        clb_cache_slot *s = &slots[p->candidate_slots[--n_aside]];
        s->key = order_of(clb_cache_score(p, s));
        insert(p, p->candidate_slots[n_aside]);
    }
    return found;
}
