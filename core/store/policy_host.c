/* The host side of expert policies: candidates, validation, fallback. */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/internal.h"

int clb_policy_open(clb_store *store, const clb_expert_pool *pool, clb_error *err)
{
    clb_experts *x = store->experts;
    clb_policy_host *h = &x->host;
    uint32_t most = 0;
    for (uint32_t c = 0; c < x->n_classes; c++)
        if (x->classes[c].n > most)
            most = x->classes[c].n;
    h->policy = pool->policy;
    h->expert_bytes = calloc(x->n_layers, sizeof *h->expert_bytes);
    h->candidates = calloc(most ? most : 1, sizeof *h->candidates);
    h->candidate_slots = calloc(most ? most : 1, sizeof *h->candidate_slots);
    if (!h->expert_bytes || !h->candidates || !h->candidate_slots)
        return CLB_NOMEM(err, "expert policy");
    for (uint32_t l = 0; l < x->n_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            h->expert_bytes[l] += x->layers[l].part[p].bytes;
    h->config = (struct colibri_policy_config){
        .struct_size = sizeof h->config,
        .n_layers = x->n_layers,
        .n_experts = x->n_experts,
        .top_k = x->top_k,
        .n_slots = x->n_slots,
        .expert_bytes = h->expert_bytes,
        .seed = pool->seed,
        .params = pool->params,
        .host = clb_registry_host(store->options.registry),
    };
    char why[256] = "no reason given";
    h->self = h->policy->create(&h->config, why, sizeof why);
    if (!h->self)
        return clb_fail(err, COLIBRI_E_PLUGIN, "expert policy %s refused to start: %.255s", h->policy->name, why);
    return COLIBRI_OK;
}

void clb_policy_close(clb_policy_host *h)
{
    if (h->self && h->policy->destroy)
        h->policy->destroy(h->self);
    free(h->expert_bytes);
    free(h->candidates);
    free(h->candidate_slots);
    *h = (clb_policy_host){0};
}

static void bad_answer(clb_store *store, const char *what)
{
    clb_policy_host *h = &store->experts->host;
    h->bad_answers++;
    if (!h->reported)
        clb_registry_misbehaved(store->options.registry, h->policy->name, what);
    h->reported = true;
}

/* Least recently used candidate: what the host does on its own. */
static uint32_t lru_choice(const clb_experts *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x->slots[x->host.candidate_slots[i]].last_use < x->slots[x->host.candidate_slots[best]].last_use)
            best = i;
    return best;
}

static uint32_t score_choice(clb_store *store, uint32_t n)
{
    clb_experts *x = store->experts;
    clb_policy_host *h = &x->host;
    uint32_t best = 0;
    double best_score = INFINITY;
    uint64_t best_number = UINT64_MAX;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct colibri_expert_ref *e = &h->candidates[i];
        const double score = h->policy->score(h->self, e->layer, e->expert);
        if (isnan(score)) {
            bad_answer(store, "score() returned NaN");
            return lru_choice(x, n);
        }
        const uint64_t number = (uint64_t)e->layer * x->n_experts + e->expert;
        if (!any || score < best_score || (score == best_score && number < best_number)) {
            any = true;
            best = i;
            best_score = score;
            best_number = number;
        }
    }
    return best;
}

uint32_t clb_policy_victim(clb_store *store, uint32_t class_index, uint32_t routed_layer)
{
    clb_experts *x = store->experts;
    clb_policy_host *h = &x->host;
    const clb_slot_class *c = &x->classes[class_index];
    uint32_t n = 0;
    for (uint32_t s = c->first; s < c->first + c->n; s++) {
        const clb_slot *slot = &x->slots[s];
        if (!slot->resident || slot->pins || (slot->layer == routed_layer && x->needed[slot->expert]))
            continue;
        h->candidates[n] = (struct colibri_expert_ref){slot->layer, slot->expert};
        h->candidate_slots[n] = s;
        n++;
    }
    if (n == 0)
        return CLB_NO_SLOT;
    const uint64_t t0 = clb_now_ns();
    uint32_t choice = 0;
    if (h->policy->pick_victims) {
        uint32_t answer = UINT32_MAX;
        const int rc = h->policy->pick_victims(h->self, h->candidates, n, 1, &answer);
        if (rc || answer >= n) {
            bad_answer(store, rc ? "pick_victims() failed" : "pick_victims() returned an index out of range");
            choice = lru_choice(x, n);
        } else {
            choice = answer;
        }
    } else {
        choice = score_choice(store, n);
    }
    h->ns += clb_now_ns() - t0;
    return h->candidate_slots[choice];
}
