/* slru: segmented LRU. An expert comes into the probationary segment, its next use moves it to the protected one, and
 * what does not fit there goes back. Probationary experts leave first, in each segment the one used longest ago.
 *
 * Source: Karedla, Love and Wherry, "Caching strategies to improve disk system performance", Computer 27(3), 1994.
 *
 * Adapted: a use is one token row at its own time, so an expert that two rows of a prompt ask for is protected at once,
 * as if the rows had come one by one. Order inside a segment is that of times, not of arrival: a long prompt goes layer
 * by layer. All of the k that a row chooses are promoted before the protected segment is cut to its size. What leaves
 * it counts as used at that time, as in the paper, where it goes to the young end. However large a share is given, what
 * one token needs in all layers of the pool is left to the probationary segment: layers come in turn, so with less it
 * would hold nothing until it is needed again. The first use of what was fetched ahead is the one that it was fetched
 * for and does not promote. */
#include "common.h"
#include "queue.h"

static const struct colibri_param params[] = {
    {"protected", 0, 100, 80, 0, "percent of the slots for experts that were used again"},
};

struct slru {
    struct grid grid;
    uint32_t top_k;
    double percent;
    uint32_t most; /* protected experts */
    uint64_t visit, now;
    struct queue probationary, protected;
    struct asked *asked; /* [n_layers][n_experts], like the others */
    struct place *places;
    uint8_t *ahead; /* fetched ahead and not used yet */
};

static void reset(void *self)
{
    struct slru *s = self;
    s->grid.row = s->grid.rows = s->visit = s->now = 0;
    s->probationary.n = s->protected.n = 0;
    memset(s->asked, 0, grid_size(&s->grid) * sizeof s->asked[0]);
    memset(s->places, 0, grid_size(&s->grid) * sizeof s->places[0]);
    memset(s->ahead, 0, grid_size(&s->grid));
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct slru *s = self;
    (void)layer_slots;
    const uint32_t share = (uint32_t)(n_slots * s->percent / 100), spare = grid_spare(&s->grid, s->top_k, n_slots);
    s->most = share < spare ? share : spare;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t each = sizeof(struct asked) + sizeof(struct place) + 2 * sizeof(uint32_t) + 1;
    struct slru *s = grid_block(config, sizeof *s, each, why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    const size_t n = grid_size(&s->grid);
    s->asked = (struct asked *)(s + 1);
    s->places = (struct place *)(s->asked + n);
    uint32_t *heaps = (uint32_t *)(s->places + n);
    s->probationary = queue_open(1, s->places, heaps);
    s->protected = queue_open(2, s->places, heaps + n);
    s->ahead = (uint8_t *)(heaps + 2 * n);
    s->top_k = config->top_k;
    s->percent = param_value(config, params, 0);
    rebudget(s, config->n_slots, NULL);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct slru *s = self;
    grid_step(&s->grid, step);
}

static void use(struct slru *s, uint32_t n, uint64_t time)
{
    switch (s->places[n].queue) {
    case 0:
        asked_for(&s->asked[n], s->visit, time);
        break;
    case 1:
        if (s->ahead[n]) {
            s->ahead[n] = 0;
            queue_rekey(&s->probationary, n, time);
        } else {
            queue_remove(&s->probationary, n);
            queue_add(&s->protected, n, time);
        }
        break;
    default:
        queue_rekey(&s->protected, n, time);
    }
}

static void cut(struct slru *s)
{
    while (s->protected.n > s->most)
        queue_add(&s->probationary, queue_take_first(&s->protected), s->now);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct slru *s = self;
    s->visit++;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        s->now = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                use(s, (uint32_t)grid_number(&s->grid, route->layer, expert), s->now);
        }
        cut(s);
    }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct slru *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    const struct asked *a = &s->asked[n];
    if (s->places[n].queue)
        return;
    const int now = cause == COLIBRI_CAUSE_DEMAND && a->visit == s->visit;
    s->ahead[n] = cause != COLIBRI_CAUSE_DEMAND;
    queue_add(now && a->rows > 1 && s->most ? &s->protected : &s->probationary, n, now ? a->last : s->now);
    cut(s);
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct slru *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    if (s->places[n].queue)
        queue_remove(s->places[n].queue == 1 ? &s->probationary : &s->protected, n);
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct slru *s = self;
    const struct place *p = &s->places[grid_number(&s->grid, layer, expert)];
    return (double)p->key + (p->queue == 2 ? 0x1p50 : 0);
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    static const char *const name[] = {"not here", "used once since it came or was sent back", "protected"};
    const struct slru *s = self;
    snprintf(out, size, "slru: %s; %u of at most %u are protected",
             name[s->places[grid_number(&s->grid, layer, expert)].queue], s->protected.n, s->most);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "slru",
    .summary = "experts used once leave before those used again, each group by age",
    .source = "Karedla, Love and Wherry, Computer 27(3), 1994",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .score = score,
    .rebudget = rebudget,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_slru, NULL, get, .id = "colibri.expert-policy.slru",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: experts used once leave before those used again, each group by age");
