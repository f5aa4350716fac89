/* The host of predictors: which guesses are read ahead, and what becomes of them. Whether that is worth anything at all
 * is found out by the clock (pays.h); which guesses are, by their like:
 *
 * A guess is worth reading as long as guesses like it were: for each place in the predictor's list (best first) the
 * share that was used is averaged, and places whose share falls below LEAST_WORTH are read only now and then, to see
 * whether that has changed. So a predictor that does not fit the model costs little, whatever it claims. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

#define LEAST_WORTH 0.5
#define FIRST_WORTH 0.7
#define MEMORY      0.03 /* weight of the newest outcome */
#define PROBE_EVERY 50u
/* Uses per expert, on average, from which on a pass is taken to want all of them. */
#define MANY_ROWS 4u

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
    for (uint32_t i = 0; i < CLB_PAYS; i++)
        clb_pays_init(&g->pays[i]);
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

/* Whether the predictor is asked in this pass: with many rows the next layer will want nearly everything. */
static bool asks(const clb_store *store)
{
    const clb_experts *x = store->experts;
    return (uint64_t)x->guesses->n_rows * x->top_k < x->n_experts;
}

/* What is known for passes of about as many rows. */
static clb_pays *pays_of(clb_guesses *g)
{
    return &g->pays[g->n_rows < 2 ? 0 : g->n_rows < 4 ? 1 : g->n_rows < 8 ? 2 : 3];
}

bool clb_store_asks(const clb_store *store)
{
    clb_guesses *g = store->experts ? store->experts->guesses : NULL;
    return g && asks(store) && pays_of(g)->on;
}

void clb_guesses_step_end(clb_store *store)
{
    if (store->experts && store->experts->guesses)
        clb_pays_end(pays_of(store->experts->guesses), clb_now_ns());
}

void clb_guesses_step(clb_store *store, const struct colibri_step *step)
{
    clb_guesses *g = store->experts->guesses;
    if (!g)
        return;
    g->n_rows = step->n_rows;
    for (uint32_t i = 0; i < CLB_PAYS; i++) /* a pass that was broken off counts for nothing */
        g->pays[i].began = 0;
    if (asks(store))
        clb_pays_begin(pays_of(g), clb_now_ns());
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
    store->stats.guess_cancelled += result == COLIBRI_PREDICTION_CANCELLED;
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
                !wanted && loading               ? COLIBRI_PREDICTION_CANCELLED
                : !wanted || slot == CLB_NO_SLOT ? COLIBRI_PREDICTION_WASTED
                : loading                        ? COLIBRI_PREDICTION_LATE
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

/* A pass with many rows wants nearly every expert of every layer: then the next layer's are read ahead, and nobody has
 * to guess which. */
static uint32_t next_layer(clb_store *store, uint32_t layer)
{
    const clb_experts *x = store->experts;
    uint32_t n = 0;
    for (uint32_t e = 0; e < x->n_experts && e < CLB_MOST_GUESSES && layer + 1 < x->n_layers; e++)
        x->guesses->found[n++] = (struct colibri_prediction){.layer = layer + 1, .expert = e};
    return n;
}

static uint32_t ask(clb_store *store, uint32_t layer)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    const uint32_t most = 2 * x->top_k * g->depth < CLB_MOST_GUESSES ? 2 * x->top_k * g->depth : CLB_MOST_GUESSES;
    uint64_t budget = 0;
    for (int p = 0; p < CLB_PARTS; p++)
        budget += most * x->layers[layer].part[p].bytes;
    const uint64_t t0 = clb_now_ns();
    const uint32_t n = g->predictor->predict(g->self, layer, budget, g->route_ns, g->found, most);
    x->cache->stats.policy_ns += clb_now_ns() - t0;
    return n < most ? n : most;
}

static int read_ahead(clb_store *store, const struct colibri_prediction *p, uint32_t rank, clb_error *err)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    const uint32_t slot = clb_cache_place(x->cache, p->layer, p->expert, COLIBRI_CAUSE_PREFETCH);
    if (slot == CLB_NO_SLOT)
        return COLIBRI_OK;
    const int rc = clb_expert_fetch(store, slot, CLB_IO_PREFETCH, err);
    if (rc) {
        clb_cache_failed(x->cache, slot);
        return rc;
    }
    store->stats.guesses++;
    g->open[g->n_open++] = (clb_guess){.layer = p->layer, .expert = p->expert, .rank = rank};
    return COLIBRI_OK;
}

int clb_guesses_act(clb_store *store, uint32_t layer, clb_error *err)
{
    clb_experts *x = store->experts;
    clb_guesses *g = x->guesses;
    if (!g)
        return COLIBRI_OK;
    const bool all = (uint64_t)g->n_rows * x->top_k >= MANY_ROWS * (uint64_t)x->n_experts;
    if (!all && (!asks(store) || !pays_of(g)->on)) /* too many to guess and too few to want all; or it does not pay */
        return COLIBRI_OK;
    const uint32_t n = all ? next_layer(store, layer) : ask(store, layer);
    for (uint32_t i = 0; i < n && g->n_open < CLB_MOST_GUESSES; i++) {
        const struct colibri_prediction *p = &g->found[i];
        if (p->layer >= x->n_layers || p->expert >= x->n_experts || x->mapped[p->layer * CLB_PARTS])
            continue;
        const uint32_t ahead = p->layer > layer ? p->layer - layer : p->layer + x->n_layers - layer;
        const uint32_t rank = all ? CLB_GUESS_RANKS - 1 : i;
        if (ahead <= g->depth && clb_cache_find(x->cache, p->layer, p->expert) == CLB_NO_SLOT && worth_it(store, rank))
            CLB_TRY(read_ahead(store, p, rank, err));
    }
    return COLIBRI_OK;
}

int clb_guesses_convert(clb_store *store, bool *did, clb_error *err)
{
    clb_experts *x = store->experts;
    const clb_guesses *g = x->guesses;
    *did = false;
    for (uint32_t i = 0; g && i < g->n_open && !*did; i++) {
        const uint32_t slot = clb_cache_find(x->cache, g->open[i].layer, g->open[i].expert);
        if (slot == CLB_NO_SLOT || x->cache->slots[slot].state != CLB_SLOT_RESIDENT || !x->fetches[slot].arrived)
            continue;
        if (x->cache->slots[slot]
                .pins) /* a later wave of the visit that made the guess has taken it, and looks after it */
            continue;
        *did = true;
        const int rc = clb_expert_convert(store, slot, err);
        if (rc || clb_store_convert(store, err)) { /* half converted: whoever asks for it reads it again */
            store->n_arrivals = 0;
            clb_cache_discard(x->cache, slot);
        }
        CLB_TRY(rc);
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
