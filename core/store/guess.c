/* The host of predictors: which guesses are read ahead, and what becomes of them.
 *
 * A guess is worth reading as long as guesses like it were: for each place in the predictor's list (best first) the share
 * that was used is averaged, and places whose share falls below LEAST_WORTH are read only now and then, to see whether
 * that has changed. So a predictor that does not fit the model costs little, whatever it claims. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

#define LEAST_WORTH 0.5
#define FIRST_WORTH 0.7
#define MEMORY      0.03 /* weight of the newest outcome */
#define PROBE_EVERY 50u

int clb_guesses_open(clb_store *store, const clb_expert_pool *pool, clb_error *err)
{
    clb_experts *x = store->experts;
    uint64_t *bytes = calloc(x->n_layers, sizeof *bytes);
    clb_guesses *g = calloc(1, sizeof *g);
    x->guesses = g;
    if (!g || !bytes) {
        free(bytes);
        return CLB_NOMEM(err, "predictor");
    }
    for (uint32_t l = 0; l < x->n_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            bytes[l] += x->layers[l].part[p].bytes;
    const struct colibri_policy_config config = {
        .struct_size = sizeof config,
        .n_layers = x->n_layers,
        .n_experts = x->n_experts,
        .top_k = x->top_k,
        .n_slots = x->cache->n_slots,
        .expert_bytes = bytes,
        .seed = pool->seed,
        .params = pool->predictor_params,
        .host = clb_registry_host(store->options.registry),
    };
    char why[256] = "no reason given";
    g->predictor = pool->predictor;
    g->depth = pool->prefetch_depth ? pool->prefetch_depth : 1;
    g->self = g->predictor->create(&config, why, sizeof why);
    free(bytes);
    for (uint32_t r = 0; r < CLB_GUESS_RANKS; r++)
        g->worth[r] = FIRST_WORTH;
    if (!g->self)
        return clb_fail(err, COLIBRI_E_PLUGIN, "predictor %s refused to start: %.255s", g->predictor->name, why);
    return COLIBRI_OK;
}

void clb_guesses_close(clb_store *store)
{
    clb_guesses *g = store->experts->guesses;
    if (g && g->self)
        g->predictor->destroy(g->self);
    free(g);
    store->experts->guesses = NULL;
}

uint32_t clb_store_ahead(const clb_store *store)
{
    const clb_guesses *g = store->experts ? store->experts->guesses : NULL;
    if (!g || !COLIBRI_HAS(g->predictor, ahead))
        return 0;
    const uint32_t most = g->depth < 2 ? g->depth : 2;
    return g->predictor->ahead < most ? g->predictor->ahead : most;
}

void clb_guesses_step(clb_store *store, const struct colibri_step *step)
{
    clb_guesses *g = store->experts->guesses;
    if (!g)
        return;
    g->n_rows = step->n_rows;
    if (g->predictor->on_step)
        g->predictor->on_step(g->self, step);
}

static void outcome(clb_store *store, const clb_guess *guess, uint32_t result)
{
    clb_guesses *g = store->experts->guesses;
    const uint32_t rank = guess->rank < CLB_GUESS_RANKS ? guess->rank : CLB_GUESS_RANKS - 1;
    store->stats.guess_useful += result == COLIBRI_PREDICTION_USEFUL;
    store->stats.guess_late += result == COLIBRI_PREDICTION_LATE;
    store->stats.guess_wasted += result == COLIBRI_PREDICTION_WASTED;
    const double good = result == COLIBRI_PREDICTION_USEFUL || result == COLIBRI_PREDICTION_LATE;
    g->worth[rank] += MEMORY * (good - g->worth[rank]);
    if (g->predictor->on_result)
        g->predictor->on_result(g->self, guess->layer, guess->expert, result);
}

void clb_guesses_judge(clb_store *store, const struct colibri_route *route)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    if (!g)
        return;
    const clb_cache *c = x->cache;
    const uint64_t now = clb_now_ns();
    if (g->last_route)
        g->route_ns = g->route_ns ? (7 * g->route_ns + (now - g->last_route)) / 8 : now - g->last_route;
    g->last_route = now;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n_open; i++) {
        const clb_guess guess = g->open[i];
        if (guess.layer != route->layer) {
            g->open[kept++] = guess;
            continue;
        }
        const bool wanted = c->needed[guess.expert] == c->visit;
        const uint32_t slot = clb_cache_find(c, guess.layer, guess.expert);
        const bool loading = slot != CLB_NO_SLOT && c->slots[slot].state == CLB_SLOT_LOADING;
        if (!wanted && loading)
            for (uint32_t p = 0; p < CLB_PARTS && store->io; p++)
                clb_io_cancel(store->io, slot * 4 + p);
        outcome(store, &guess,
                !wanted || slot == CLB_NO_SLOT ? COLIBRI_PREDICTION_WASTED
                : loading                      ? COLIBRI_PREDICTION_LATE
                                               : COLIBRI_PREDICTION_USEFUL);
    }
    g->n_open = kept;
    if (g->predictor->on_route)
        g->predictor->on_route(g->self, route);
}

static bool worth_it(clb_store *store, uint32_t place)
{
    clb_guesses *g = store->experts->guesses;
    const uint32_t rank = place < CLB_GUESS_RANKS ? place : CLB_GUESS_RANKS - 1;
    if (g->worth[rank] >= LEAST_WORTH || ++g->held_back[rank] % PROBE_EVERY == 0)
        return true;
    store->stats.guess_held_back++;
    return false;
}

int clb_guesses_act(clb_store *store, uint32_t layer, clb_error *err)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    if (!g || (uint64_t)g->n_rows * x->top_k >= x->n_experts) /* the next layer will want nearly everything */
        return COLIBRI_OK;
    const uint32_t most = 2 * x->top_k * g->depth < CLB_MOST_GUESSES ? 2 * x->top_k * g->depth : CLB_MOST_GUESSES;
    uint64_t budget = 0;
    for (int p = 0; p < CLB_PARTS; p++)
        budget += most * x->layers[layer].part[p].bytes;
    const uint64_t t0 = clb_now_ns();
    uint32_t n = g->predictor->predict(g->self, layer, budget, g->route_ns, g->found, most);
    n = n < most ? n : most;
    x->cache->stats.policy_ns += clb_now_ns() - t0;
    for (uint32_t i = 0; i < n && g->n_open < CLB_MOST_GUESSES; i++) {
        const struct colibri_prediction *p = &g->found[i];
        if (p->layer >= x->n_layers || p->expert >= x->n_experts || x->mapped[p->layer * CLB_PARTS])
            continue;
        const uint32_t ahead = p->layer > layer ? p->layer - layer : p->layer + x->n_layers - layer;
        if (ahead > g->depth || clb_cache_find(x->cache, p->layer, p->expert) != CLB_NO_SLOT || !worth_it(store, i))
            continue;
        const uint32_t slot = clb_cache_place(x->cache, p->layer, p->expert, COLIBRI_CAUSE_PREFETCH);
        if (slot == CLB_NO_SLOT)
            continue;
        const int rc = clb_expert_fetch(store, slot, CLB_IO_PREFETCH, err);
        if (rc) {
            clb_cache_failed(x->cache, slot);
            return rc;
        }
        store->stats.guesses++;
        g->open[g->n_open++] = (clb_guess){.layer = p->layer, .expert = p->expert, .rank = i};
    }
    return COLIBRI_OK;
}

void clb_guesses_forget(clb_store *store)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_open; i++) {
        const uint32_t slot = clb_cache_find(x->cache, g->open[i].layer, g->open[i].expert);
        for (uint32_t p = 0; p < CLB_PARTS && slot != CLB_NO_SLOT && store->io; p++)
            clb_io_cancel(store->io, slot * 4 + p);
    }
    while (store->io && clb_io_outstanding(store->io))
        (void)clb_store_collect(store, true, NULL);
    g->n_open = 0;
    for (uint32_t r = 0; r < CLB_GUESS_RANKS; r++)
        g->worth[r] = FIRST_WORTH;
    if (g->predictor->reset)
        g->predictor->reset(g->self);
}
