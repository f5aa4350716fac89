/* The choice of a victim: candidates, the policy's answer, its validation, the fallback. */
#include <math.h>
#include <string.h>

#include "store/cache_internal.h"

void clb_cache_bad_answer(clb_cache *c, const char *what)
{
    if (c->stats.bad_answers++ == 0 && c->options.misbehaved)
        c->options.misbehaved(c->options.misbehaved_ctx, c->options.policy->name, what);
}

/* What is pinned, on its way, or still needed in this visit stays; so does what was fetched ahead and whose turn has
 * not come, unless `waiting` may leave too. So a policy need not know about it: by its own measure a guess may well be
 * the coldest expert of all. */
bool clb_cache_may_leave(const struct clb_cache_pool *p, const clb_cache_slot *s, bool waiting)
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

double clb_cache_score(const struct clb_cache_pool *p, const clb_cache_slot *s)
{
    return p->cache->options.policy->score(p->self, p->cache->local_of[s->layer], s->expert);
}

/* ---- asking for all candidates ---- */

static uint32_t collect(struct clb_cache_pool *p, bool waiting)
{
    uint32_t n = 0;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const clb_cache_slot *s = &p->cache->slots[i];
        if (!clb_cache_may_leave(p, s, waiting))
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
        const double score = clb_cache_score(p, s);
        if (isnan(score)) {
            clb_cache_bad_answer(p->cache, "score() returned NaN");
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
    clb_cache_bad_answer(p->cache, rc ? "pick_victims() failed" : "pick_victims() returned an index out of range");
    return lru_choice(p, n);
}

/* Admitted with low priority and not used since: the one that came first leaves first. */
static uint32_t low_victim(const struct clb_cache_pool *p, bool waiting)
{
    uint32_t best = CLB_NO_SLOT;
    for (uint32_t i = p->first; i < p->first + p->n; i++) {
        const clb_cache_slot *s = &p->cache->slots[i];
        if (s->low && clb_cache_may_leave(p, s, waiting) &&
            (best == CLB_NO_SLOT || s->last_use < p->cache->slots[best].last_use))
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
    if (p->order.used)
        found = clb_order_victim(p, waiting);
    if (!p->order.used) {
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
