/* The host of a predictor in a replay, by the rules of core/store/guess.c: which guesses are read ahead, when their
 * layer's turn has come what became of them, and that places of the list which do not pay are tried now and then only.
 * The drive is a model: it reads guesses, in order, in the time that demand leaves. */
#include <stdlib.h>
#include <string.h>

#include "replay/replay_internal.h"

#define LEAST_WORTH  0.5
#define FIRST_WORTH  0.7
#define MEMORY       0.03
#define PROBE_EVERY  50u
#define MANY_ROWS    4u
#define MOST_GUESSES 512u

int clb_prefetch_open(struct replay *r, clb_error *err)
{
    r->guesses = malloc(MOST_GUESSES * sizeof *r->guesses);
    r->predictions = malloc(MOST_GUESSES * sizeof *r->predictions);
    if (!r->guesses || !r->predictions)
        return CLB_NOMEM(err, "replaying");
    for (uint32_t i = 0; i < CLB_REPLAY_RANKS; i++)
        r->worth[i] = FIRST_WORTH;
    return COLIBRI_OK;
}

void clb_prefetch_close(struct replay *r)
{
    free(r->guesses);
    free(r->predictions);
}

static bool loading(const struct replay *r, const struct guess *g)
{
    const clb_cache_slot *const s = &r->cache->slots[g->slot];
    return s->state == CLB_SLOT_LOADING && s->layer == g->layer && s->expert == g->expert;
}

void clb_prefetch_advance(struct replay *r)
{
    uint32_t kept = 0;
    bool busy = false;
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess g = r->guesses[i];
        const double start = r->drive_free > g.asked ? r->drive_free : g.asked;
        if (!(g.arrives > 0) && !busy && start < r->now) {
            const double give = g.left < r->now - start ? g.left : r->now - start;
            g.left -= give;
            r->drive_free = start + give;
            if (!(g.left > 0))
                g.arrives = r->drive_free + r->o->rates.read_latency_ns;
        }
        busy = busy || !(g.arrives > 0);
        if (g.arrives > 0 && g.arrives <= r->now && !g.arrived) {
            g.arrived = true;
            if (loading(r, &g))
                clb_cache_arrived(r->cache, g.slot);
        }
        if (!g.arrived || !g.judged)
            r->guesses[kept++] = g;
    }
    r->n_guesses = kept;
}

double clb_prefetch_arrival(struct replay *r, uint32_t slot)
{
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess *const g = &r->guesses[i];
        if (g->slot != slot || g->arrived || !loading(r, g))
            continue;
        if (!(g->arrives > 0)) { /* nothing overtakes it now */
            r->drive_free = (r->drive_free > r->now ? r->drive_free : r->now) + g->left;
            g->left = 0;
            g->arrives = r->drive_free + r->o->rates.read_latency_ns;
        }
        g->arrived = true; /* the caller says so to the cache */
        return g->arrives;
    }
    return r->now;
}

static void outcome(struct replay *r, const struct guess *g, uint32_t result)
{
    const uint32_t rank = g->rank < CLB_REPLAY_RANKS ? g->rank : CLB_REPLAY_RANKS - 1;
    const bool good = result == COLIBRI_PREDICTION_USEFUL || result == COLIBRI_PREDICTION_LATE;
    r->worth[rank] += MEMORY * ((good ? 1.0 : 0.0) - r->worth[rank]);
    if (r->predictor->on_result)
        r->predictor->on_result(r->predictor_self, g->layer, g->expert, result);
}

void clb_prefetch_judge(struct replay *r, uint32_t layer)
{
    const clb_cache *const c = r->cache;
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        struct guess *const g = &r->guesses[i];
        if (g->judged || g->layer != layer)
            continue;
        const bool wanted = c->needed[g->expert] == c->visit;
        const bool there = clb_cache_find(c, layer, g->expert) != CLB_NO_SLOT;
        g->judged = true;
        if (wanted && there) {
            const bool late = loading(r, g);
            if (late)
                r->out->late++;
            else
                r->out->useful++;
            outcome(r, g, late ? COLIBRI_PREDICTION_LATE : COLIBRI_PREDICTION_USEFUL);
            continue;
        }
        if (!(g->arrives > 0) && loading(r, g)) { /* called off: the drive is spared the rest */
            if (g->left >= g->whole)
                r->out->cancelled++;
            else
                r->out->wasted++;
            r->out->prefetched_bytes -= (uint64_t)(g->left / g->whole * (double)r->x->trace->info.expert_bytes[layer]);
            clb_cache_failed(r->cache, g->slot);
            g->arrived = true;
        } else {
            r->out->wasted++;
        }
        outcome(r, g, COLIBRI_PREDICTION_WASTED);
    }
}

static bool worth_it(struct replay *r, uint32_t place)
{
    const uint32_t rank = place < CLB_REPLAY_RANKS ? place : CLB_REPLAY_RANKS - 1;
    return r->worth[rank] >= LEAST_WORTH || ++r->held_back[rank] % PROBE_EVERY == 0;
}

/* A pass with many rows wants nearly every expert of the next layer. */
static uint32_t next_layer(struct replay *r, uint32_t layer)
{
    const clb_trace_info *const info = &r->x->trace->info;
    uint32_t n = 0;
    for (uint32_t e = 0; e < info->n_experts && e < MOST_GUESSES && layer + 1 < info->n_layers; e++)
        r->predictions[n++] = (struct colibri_prediction){.layer = layer + 1, .expert = e};
    return n;
}

static uint32_t ask(struct replay *r, uint32_t layer, uint32_t depth)
{
    const clb_trace_info *const info = &r->x->trace->info;
    const uint32_t most = 2 * info->top_k * depth < MOST_GUESSES ? 2 * info->top_k * depth : MOST_GUESSES;
    const uint32_t n = r->predictor->predict(r->predictor_self, layer, most * info->expert_bytes[layer],
                                             (uint64_t)r->layer_took, r->predictions, most);
    r->out->predictions += n < most ? n : most;
    return n < most ? n : most;
}

static void read_ahead(struct replay *r, const struct colibri_prediction *p, uint32_t rank)
{
    const uint32_t slot = clb_cache_place(r->cache, p->layer, p->expert, COLIBRI_CAUSE_PREFETCH);
    if (slot == CLB_NO_SLOT)
        return;
    const double whole = clb_timing_read_ns(r, p->layer);
    struct guess g = {.layer = p->layer,
                      .expert = p->expert,
                      .slot = slot,
                      .rank = rank,
                      .asked = r->now,
                      .left = whole,
                      .whole = whole};
    r->out->prefetched_bytes += r->x->trace->info.expert_bytes[p->layer];
    if (!(whole > 0)) { /* a drive without a rate takes no time */
        g.arrives = r->now > 0 ? r->now : 1;
        g.arrived = true;
        clb_cache_arrived(r->cache, slot);
    }
    r->guesses[r->n_guesses++] = g;
}

void clb_prefetch_act(struct replay *r, uint32_t layer, uint32_t n_rows)
{
    const clb_trace_info *const info = &r->x->trace->info;
    const uint32_t depth = r->o->prefetch_depth ? r->o->prefetch_depth : 2;
    const uint64_t uses = (uint64_t)n_rows * info->top_k;
    const bool all = uses >= MANY_ROWS * (uint64_t)info->n_experts;
    if (!all && uses >= info->n_experts) /* too many to guess, too few to want all */
        return;
    const uint32_t n = all ? next_layer(r, layer) : ask(r, layer, depth);
    for (uint32_t i = 0; i < n && r->n_guesses < MOST_GUESSES; i++) {
        const struct colibri_prediction *const p = &r->predictions[i];
        if (p->layer >= info->n_layers || p->expert >= info->n_experts)
            continue;
        const uint32_t away = p->layer > layer ? p->layer - layer : p->layer + info->n_layers - layer;
        const uint32_t rank = all ? CLB_REPLAY_RANKS - 1 : i;
        if (away <= depth && clb_cache_find(r->cache, p->layer, p->expert) == CLB_NO_SLOT && worth_it(r, rank))
            read_ahead(r, p, rank);
    }
}

void clb_prefetch_drop(struct replay *r)
{
    for (uint32_t i = 0; i < r->n_guesses; i++) {
        const struct guess *const g = &r->guesses[i];
        if (loading(r, g) && !r->cache->slots[g->slot].pins)
            clb_cache_failed(r->cache, g->slot);
        r->out->wasted += !g->judged;
    }
    r->n_guesses = 0;
    for (uint32_t i = 0; i < CLB_REPLAY_RANKS; i++)
        r->worth[i] = FIRST_WORTH;
}
