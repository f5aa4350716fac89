/* 2q: a new expert waits in a first-in-first-out queue (A1in). If it is asked for again soon after it has left that,
 * while it is still remembered (A1out), it joins the main LRU queue (Am). A1in gives up its oldest while it is above
 * its share, else Am the one used longest ago.
 *
 * Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", VLDB 1994.
 *
 * Adapted: a use is one token row at its own time, and queues are ordered by those times, so the order does not depend
 * on how a prompt was cut into passes. Of the k experts that are missing at once, all those that A1out remembers are
 * recognised before the first of their victims is chosen. Uses in A1in are correlated ones and change nothing, as in
 * the paper. The sizes are parameters; the paper suggests 25 % in and 50 % out, but with experts a shorter first queue
 * was better at nearly every size measured (docs/writing-an-expert-policy.md). */
#include "common.h"
#include "queue.h"

static const struct colibri_param params[] = {
    {"in", 0, 100, 10, 0, "percent of the slots for new experts"},
    {"out", 0, 1000, 50, 0, "experts remembered after they left, in percent of the slots"},
};

enum { IN = 1, MAIN = 2, OUT = 3 };

struct two_q {
    struct grid grid;
    double in_percent, out_percent;
    uint32_t most_in, most_out;
    uint64_t visit, now;
    struct queue queue[4]; /* [0]: none */
    struct asked *asked;   /* [n_layers][n_experts], like the others */
    struct place *places;
    uint64_t *back; /* the visit in which it was asked for while A1out remembered it */
};

static void reset(void *self)
{
    struct two_q *s = self;
    s->grid.row = s->grid.rows = s->visit = s->now = 0;
    for (int q = 0; q < 4; q++)
        s->queue[q].n = 0;
    memset(s->asked, 0, grid_size(&s->grid) * sizeof s->asked[0]);
    memset(s->places, 0, grid_size(&s->grid) * sizeof s->places[0]);
    memset(s->back, 0, grid_size(&s->grid) * sizeof s->back[0]);
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct two_q *s = self;
    (void)layer_slots;
    s->most_in = (uint32_t)(n_slots * s->in_percent / 100);
    s->most_out = (uint32_t)fmin(n_slots * s->out_percent / 100, UINT32_MAX);
    while (s->queue[OUT].n > s->most_out)
        queue_take_first(&s->queue[OUT]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t each = sizeof(struct asked) + sizeof(struct place) + sizeof(uint64_t) + 3 * sizeof(uint32_t);
    struct two_q *s = grid_block(config, sizeof *s, each, why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    const size_t n = grid_size(&s->grid);
    s->asked = (struct asked *)(s + 1);
    s->places = (struct place *)(s->asked + n);
    s->back = (uint64_t *)(s->places + n);
    uint32_t *heaps = (uint32_t *)(s->back + n);
    for (uint32_t q = IN; q <= OUT; q++)
        s->queue[q] = queue_open(q, s->places, heaps + (q - 1) * n);
    s->in_percent = param_value(config, params, 0);
    s->out_percent = param_value(config, params, 1);
    rebudget(s, config->n_slots, NULL);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct two_q *s = self;
    grid_step(&s->grid, step);
}

static void use(struct two_q *s, uint32_t n, uint64_t time)
{
    switch (s->places[n].queue) {
    case IN:
        break;
    case MAIN:
        queue_rekey(&s->queue[MAIN], n, time);
        break;
    case OUT:
        queue_remove(&s->queue[OUT], n);
        s->back[n] = s->visit;
        /* fall through */
    default:
        asked_for(&s->asked[n], s->visit, time);
    }
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct two_q *s = self;
    s->visit++;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        s->now = grid_time(&s->grid, route->layer, r);
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t expert = route->ids[(size_t)r * route->top_k + k];
            if (grid_has(&s->grid, route->layer, expert))
                use(s, (uint32_t)grid_number(&s->grid, route->layer, expert), s->now);
        }
    }
}

/* What was fetched ahead is new, whatever A1out says: it was not asked for. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct two_q *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    const struct asked *a = &s->asked[n];
    if (s->places[n].queue == OUT)
        queue_remove(&s->queue[OUT], n);
    if (s->places[n].queue)
        return;
    const int now = cause == COLIBRI_CAUSE_DEMAND && a->visit == s->visit;
    if (now && s->back[n] == s->visit)
        queue_add(&s->queue[MAIN], n, a->last);
    else
        queue_add(&s->queue[IN], n, now ? a->first : s->now);
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct two_q *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    const struct place was = s->places[n];
    if (was.queue != IN && was.queue != MAIN)
        return;
    queue_remove(&s->queue[was.queue], n);
    if (was.queue == MAIN)
        return;
    queue_add(&s->queue[OUT], n, was.key);
    while (s->queue[OUT].n > s->most_out)
        queue_take_first(&s->queue[OUT]);
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct two_q *s = self;
    const struct place *p = &s->places[grid_number(&s->grid, layer, expert)];
    const uint32_t gives = s->queue[IN].n > s->most_in ? IN : MAIN;
    return (double)p->key + (p->queue == gives ? 0 : 0x1p50);
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    static const char *const name[] = {"not here", "new", "in the main queue", "not here, but remembered"};
    const struct two_q *s = self;
    snprintf(out, size, "2q: %s; %u new of at most %u", name[s->places[grid_number(&s->grid, layer, expert)].queue],
             s->queue[IN].n, s->most_in);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "2q",
    .summary = "new experts queue; those asked for again are kept by age",
    .source = "Johnson and Shasha, VLDB 1994",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_2q, NULL, get, .id = "colibri.expert-policy.2q",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: new experts queue; those asked for again are kept by age");
