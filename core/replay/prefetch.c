/* The host of a predictor in a replay: guesses are filtered, placed, read by what time the drive has left, and judged.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/replay_internal.h"

#define MAX_GUESSES     4096u /* on their way or unused */
#define MAX_PREDICTIONS 256u  /* of one call */

int clb_prefetch_open(struct replay *r, clb_error *err)
{
    r->guesses = malloc(MAX_GUESSES * sizeof *r->guesses);
    r->predictions = malloc(MAX_PREDICTIONS * sizeof *r->predictions);
    r->cap_guesses = MAX_GUESSES;
    return r->guesses && r->predictions ? COLIBRI_OK : CLB_NOMEM(err, "replaying");
}

void clb_prefetch_close(struct replay *r)
{
    free(r->guesses);
    free(r->predictions);
}

static void result(struct replay *r, const struct guess *g, uint32_t what)
{
    if (what == COLIBRI_PREDICTION_USEFUL)
        r->out->useful++;
    else if (what == COLIBRI_PREDICTION_LATE)
        r->out->late++;
    else if (what == COLIBRI_PREDICTION_WASTED)
        r->out->wasted++;
    else
        r->out->cancelled++;
    if (r->predictor->on_result)
        r->predictor->on_result(r->predictor_self, g->layer, g->expert, what);
}

static bool still_there(const struct replay *r, const struct guess *g)
{
    const clb_cache_slot *const s = &r->cache->slots[g->slot];
    return s->state != CLB_SLOT_FREE && s->layer == g->layer && s->expert == g->expert;
}

void clb_prefetch_advance(struct replay *r)
{
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess *const g = &r->guesses[i];
        if (g->arrives > 0)
            continue;
        const double start = r->drive_free > g->asked ? r->drive_free : g->asked;
        if (start >= r->now)
            break;
        const double give = g->left < r->now - start ? g->left : r->now - start;
        g->left -= give;
        r->drive_free = start + give;
        if (g->left > 0)
            break;
        g->arrives = r->drive_free + r->o->rates.read_latency_ns;
    }
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess *const g = &r->guesses[i];
        if (g->arrived || !(g->arrives > 0) || g->arrives > r->now)
            continue;
        g->arrived = true;
        if (still_there(r, g) && r->cache->slots[g->slot].state == CLB_SLOT_LOADING)
            clb_cache_arrived(r->cache, g->slot);
    }
}

static struct guess *find(struct replay *r, uint32_t slot)
{
    for (uint32_t i = r->n_guesses; i-- > 0;)
        if (r->guesses[i].slot == slot && !r->guesses[i].used && still_there(r, &r->guesses[i]))
            return &r->guesses[i];
    return NULL;
}

void clb_prefetch_used(struct replay *r, uint32_t slot)
{
    const clb_cache_slot *const s = &r->cache->slots[slot];
    if (s->cause != COLIBRI_CAUSE_PREFETCH || s->uses)
        return;
    struct guess *const g = find(r, slot);
    if (!g)
        return;
    g->used = true;
    result(r, g, s->state == CLB_SLOT_LOADING ? COLIBRI_PREDICTION_LATE : COLIBRI_PREDICTION_USEFUL);
}

double clb_prefetch_arrival(struct replay *r, uint32_t slot)
{
    for (uint32_t i = r->n_guesses; i-- > 0;) {
        struct guess *const g = &r->guesses[i];
        if (g->slot != slot || !still_there(r, g))
            continue;
        if (!(g->arrives > 0)) {
            r->drive_free = (r->drive_free > r->now ? r->drive_free : r->now) + g->left;
            g->left = 0;
            g->arrives = r->drive_free + r->o->rates.read_latency_ns;
        }
        g->arrived = true; /* the caller will say so to the cache */
        return g->arrives;
    }
    return r->now;
}

/* Bytes that the guesses under way still keep the drive busy with. */
static double unread_bytes(const struct replay *r)
{
    double bytes = 0;
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        const struct guess *const g = &r->guesses[i];
        if (!(g->arrives > 0))
            bytes += (double)r->x->trace->info.expert_bytes[g->layer];
    }
    return bytes;
}

void clb_prefetch_ask(struct replay *r, uint32_t layer)
{
    const clb_trace_info *const info = &r->x->trace->info;
    const uint32_t depth = r->o->prefetch_depth ? r->o->prefetch_depth : 2;
    if (!r->predictor->predict || r->n_guesses == r->cap_guesses)
        return;
    const uint32_t next = layer + 1 == info->n_layers ? 0 : layer + 1;
    const double room = (double)info->expert_bytes[next] * info->top_k * depth, under_way = unread_bytes(r);
    const uint64_t budget = room > under_way ? (uint64_t)(room - under_way) : 0;
    if (budget == 0 && room > 0)
        return;
    uint32_t n = r->predictor->predict(r->predictor_self, layer, budget, (uint64_t)r->layer_took, r->predictions,
                                       MAX_PREDICTIONS);
    n = n > MAX_PREDICTIONS ? MAX_PREDICTIONS : n;
    r->out->predictions += n;
    uint64_t spent = 0;
    for (uint32_t i = 0; i < n && r->n_guesses < r->cap_guesses; i++) {
        const struct colibri_prediction *const p = &r->predictions[i];
        if (p->layer >= info->n_layers || p->expert >= info->n_experts)
            continue;
        const uint32_t away = p->layer > layer ? p->layer - layer : p->layer + info->n_layers - layer;
        const uint64_t bytes = info->expert_bytes[p->layer];
        if (away > depth || clb_cache_find(r->cache, p->layer, p->expert) != CLB_NO_SLOT)
            continue;
        if (spent + bytes > budget)
            break;
        const uint32_t slot = clb_cache_place(r->cache, p->layer, p->expert, COLIBRI_CAUSE_PREFETCH);
        if (slot == CLB_NO_SLOT)
            continue;
        spent += bytes;
        r->out->prefetched_bytes += bytes;
        const double whole = clb_timing_read_ns(r, p->layer);
        struct guess g = {.layer = p->layer,
                          .expert = p->expert,
                          .slot = slot,
                          .placed = r->visit,
                          .asked = r->now,
                          .left = whole,
                          .whole = whole};
        if (!(whole > 0)) { /* a drive without a rate takes no time */
            g.arrives = r->now > 0 ? r->now : 1;
            g.arrived = true;
            clb_cache_arrived(r->cache, slot);
        }
        r->guesses[r->n_guesses++] = g;
    }
}

void clb_prefetch_settle(struct replay *r, uint32_t layer)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess g = r->guesses[i];
        const bool due = g.layer == layer && g.placed < r->visit;
        if (g.used)
            continue;
        if (due && g.left >= g.whole && still_there(r, &g) && r->cache->slots[g.slot].state == CLB_SLOT_LOADING) {
            r->out->prefetched_bytes -= r->x->trace->info.expert_bytes[g.layer];
            clb_cache_failed(r->cache, g.slot);
            result(r, &g, COLIBRI_PREDICTION_CANCELLED);
            continue;
        }
        if (due || !still_there(r, &g)) {
            if (still_there(r, &g) && r->cache->slots[g.slot].state == CLB_SLOT_LOADING) {
                r->guesses[kept++] = g; /* half read: judged when it has arrived */
                continue;
            }
            result(r, &g, COLIBRI_PREDICTION_WASTED);
            continue;
        }
        r->guesses[kept++] = g;
    }
    r->n_guesses = kept;
}

void clb_prefetch_drop(struct replay *r)
{
    if (!r->predictor)
        return;
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        const struct guess *const g = &r->guesses[i];
        if (still_there(r, g) && r->cache->slots[g->slot].state == CLB_SLOT_LOADING)
            clb_cache_failed(r->cache, g->slot);
        if (!g->used)
            result(r, g, COLIBRI_PREDICTION_WASTED);
    }
    r->n_guesses = 0;
}
