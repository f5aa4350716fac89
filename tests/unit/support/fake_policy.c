#include "support/fake_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* create() gets no pointer of its own: the fake that was initialised last. One test, one fake at a time. */
static fake_policy *current;

static void violation(fake_policy *f, const char *what)
{
    if (!f->violations++)
        f->violation = what;
}

static struct fake_expert *expert_of(fake_policy *f, uint32_t layer, uint32_t expert)
{
    if (layer >= f->n_layers || expert >= f->n_experts) {
        violation(f, "an expert outside the model");
        return &f->experts[0];
    }
    return &f->experts[layer * f->n_experts + expert];
}

static void *fake_create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    fake_policy *f = current;
    if (f->refuse_create) {
        strncpy(why, "the fake does not feel like it", why_size - 1);
        return NULL;
    }
    f->n_creates++;
    f->n_layers = config->n_layers;
    f->n_experts = config->n_experts;
    free(f->experts);
    f->experts = calloc((size_t)f->n_layers * f->n_experts, sizeof *f->experts);
    return f->experts ? f : NULL;
}

static void fake_destroy(void *self)
{
    ((fake_policy *)self)->n_destroys++;
}

static void fake_reset(void *self)
{
    fake_policy *f = self;
    f->n_resets++;
    memset(f->experts, 0, (size_t)f->n_layers * f->n_experts * sizeof *f->experts);
}

static void fake_step(void *self, const struct colibri_step *step)
{
    fake_policy *f = self;
    if (step->step != f->n_steps || step->n_rows == 0 || step->n_sequences == 0)
        violation(f, "on_step: wrong number");
    f->n_steps++;
    f->phase = step->phase % 3;
}

static void fake_route(void *self, const struct colibri_route *route)
{
    fake_policy *f = self;
    f->n_routes++;
    f->n_union += route->n_union;
    for (uint32_t i = 0; i < f->n_layers * f->n_experts; i++)
        f->experts[i].needed = false;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < route->n_union; i++) {
        struct fake_expert *e = expert_of(f, route->layer, route->union_ids[i]);
        if (e->needed)
            violation(f, "on_route: an expert twice in the union");
        e->needed = true;
        rows += route->union_rows[i];
    }
    if (rows != route->n_rows * route->top_k)
        violation(f, "on_route: rows of the union do not add up");
}

static void fake_access(void *self, const struct colibri_access *access, uint32_t n)
{
    fake_policy *f = self;
    for (uint32_t i = 0; i < n; i++) {
        struct fake_expert *e = expert_of(f, access[i].layer, access[i].expert);
        if (!e->needed)
            violation(f, "on_access: an expert that was not routed, or twice");
        e->needed = false;
        e->last_use = ++f->clock;
        e->uses++;
        f->n_hits += access[i].result == COLIBRI_ACCESS_HIT;
        f->n_misses += access[i].result == COLIBRI_ACCESS_MISS;
        f->phase_hits[f->phase] += access[i].result == COLIBRI_ACCESS_HIT;
        f->phase_misses[f->phase] += access[i].result == COLIBRI_ACCESS_MISS;
        if (access[i].rows == 0)
            violation(f, "on_access: no rows");
    }
}

static void fake_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    fake_policy *f = self;
    struct fake_expert *e = expert_of(f, layer, expert);
    if (e->resident)
        violation(f, "on_insert of a resident expert");
    if (cause == COLIBRI_CAUSE_DEMAND && !e->needed)
        violation(f, "on_insert of an expert that nobody asked for");
    e->resident = true;
    e->uses = 0;
    f->n_inserts++;
}

static void fake_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    fake_policy *f = self;
    struct fake_expert *e = expert_of(f, layer, expert);
    if (!e->resident)
        violation(f, "on_evict of an expert that is not resident");
    if (e->needed)
        violation(f, "on_evict of an expert that this step needs");
    if (uses != e->uses)
        violation(f, "on_evict: wrong number of uses");
    if (prefetched_unused)
        violation(f, "on_evict: nothing was prefetched");
    if (f->expecting && (layer != f->expect_layer || expert != f->expect_expert))
        violation(f, "the host evicted another expert than it must");
    f->expecting = false;
    e->resident = false;
    f->n_evicts++;
}

static int fake_admit(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    fake_policy *f = self;
    (void)expert_of(f, layer, expert);
    if (cause != COLIBRI_CAUSE_DEMAND)
        violation(f, "admit: another cause than demand");
    const bool bypass = f->admit_every < 0 || (f->admit_every > 1 && test_rand_below(&f->rng, (uint32_t)f->admit_every) != 0);
    f->n_bypassed += bypass;
    return bypass ? COLIBRI_ADMIT_BYPASS : COLIBRI_ADMIT;
}

static void expect(fake_policy *f, const struct colibri_expert_ref *e)
{
    f->expecting = true;
    f->expect_layer = e->layer;
    f->expect_expert = e->expert;
}

static uint32_t least_recent(fake_policy *f, const struct colibri_expert_ref *c, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (expert_of(f, c[i].layer, c[i].expert)->last_use < expert_of(f, c[best].layer, c[best].expert)->last_use)
            best = i;
    return best;
}

static int fake_pick(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                     uint32_t *out_index)
{
    fake_policy *f = self;
    f->n_asked++;
    if (n != 1 || n_candidates == 0)
        violation(f, "pick_victims: wrong counts");
    for (uint32_t i = 0; i < n_candidates; i++) {
        const struct fake_expert *e = expert_of(f, candidates[i].layer, candidates[i].expert);
        if (!e->resident)
            violation(f, "a candidate that is not resident");
        if (e->needed) /* routed and not reported as accessed: still wanted, or leased right now */
            violation(f, "a candidate that is leased or still needed");
        for (uint32_t j = 0; j < i; j++)
            if (candidates[j].layer == candidates[i].layer && candidates[j].expert == candidates[i].expert)
                violation(f, "a candidate twice");
    }
    uint32_t choice = f->answer == FAKE_ALWAYS_LAST ? n_candidates - 1 : 0;
    if (f->answer == FAKE_RANDOM)
        choice = test_rand_below(&f->rng, n_candidates);
    if (fake_policy_lies(f->answer)) {
        f->n_lies++;
        expect(f, &candidates[least_recent(f, candidates, n_candidates)]);
        if (f->answer == FAKE_OUT_OF_RANGE)
            *out_index = n_candidates;
        else if (f->answer == FAKE_FAR_OUT_OF_RANGE)
            *out_index = UINT32_MAX - 1;
        else if (f->answer == FAKE_FAILS)
            *out_index = choice;
        return f->answer == FAKE_FAILS ? COLIBRI_E_INTERNAL : COLIBRI_OK;
    }
    expect(f, &candidates[choice]);
    *out_index = choice;
    return COLIBRI_OK;
}

static double fake_score(void *self, uint32_t layer, uint32_t expert)
{
    fake_policy *f = self;
    const struct fake_expert *e = expert_of(f, layer, expert);
    f->n_asked++;
    f->expecting = false;
    if (!e->resident || e->needed)
        violation(f, "score of an expert that cannot leave");
    if (f->answer == FAKE_SCORE_NAN || (f->answer == FAKE_SCORE_ONE_NAN && (layer + expert) % 3 == 0)) {
        f->n_lies++;
        return NAN;
    }
    return f->answer == FAKE_SCORE_INF ? INFINITY : (double)e->last_use;
}

bool fake_policy_lies(enum fake_answer answer)
{
    return (answer >= FAKE_OUT_OF_RANGE && answer <= FAKE_SILENT) || answer == FAKE_SCORE_NAN || answer == FAKE_SCORE_ONE_NAN;
}

void fake_policy_init(fake_policy *fake, enum fake_answer answer)
{
    *fake = (fake_policy){.answer = answer, .rng = {77}};
    fake->table = (struct colibri_expert_policy){
        .struct_size = sizeof fake->table,
        .name = "fake",
        .summary = "scripted",
        .source = "test",
        .create = fake_create,
        .destroy = fake_destroy,
        .reset = fake_reset,
        .on_step = fake_step,
        .on_route = fake_route,
        .on_access = fake_access,
        .on_insert = fake_insert,
        .on_evict = fake_evict,
        };
    if (answer >= FAKE_SCORE)
        fake->table.score = fake_score;
    else
        fake->table.pick_victims = fake_pick;
    current = fake;
}

void fake_policy_free(fake_policy *fake)
{
    free(fake->experts);
    fake->experts = NULL;
    current = NULL;
}

void fake_policy_admits(fake_policy *fake, int every)
{
    fake->admit_every = every;
    fake->table.admit = every ? fake_admit : NULL;
}
