/* lecar: before each eviction it draws whether LRU or LFU names the victim, and remembers which one did. Being asked
 * for something that LRU let go is LRU's regret and raises the weight of LFU, and the other way round; the sooner, the
 * more.
 *
 * Source: Vietri et al., "Driving cache replacement with ML-based LeCaR", HotStorage 2018; learning rate 0.45 and
 * discount 0.005^(1 / n_slots) are the paper's; here weights stay between 1 % and 99 %.
 *
 * Adapted: time for the discount is counted in requests, one per token row and expert chosen. Frequencies count token
 * rows since the expert came in, or since before if it came back while it was remembered. Of the k experts that are
 * missing at once, all that are remembered move the weights before the first of their victims is chosen. An expert that
 * both would evict goes to the memory of the one that was drawn. The draw is made right after the eviction before it,
 * from the seed alone, so that asking for scores does not change it: the same events and seed give the same victims. */
#include "common.h"
#include "queue.h"

static const struct colibri_param params[] = {
    {"learning-rate", 0, 10, 0.45, 0, "how strongly regret moves the weights"},
    {"history", 0, 1000, 100, 0, "experts that each side remembers after they left, in percent of the slots"},
};

enum { LRU = 1, LFU = 2 };

struct lecar {
    struct grid grid;
    double rate, percent;
    double discount; /* of regret, per request, as a logarithm */
    double weight;   /* of LRU; LFU has the rest */
    double draw;     /* [0, 1): LRU if it is below the weight */
    uint64_t seed, random;
    uint64_t visit, now, requests;
    uint32_t most;        /* that each side remembers */
    struct queue gone[3]; /* [LRU], [LFU]: by the number of requests when they left */
    struct place *places; /* [n_layers][n_experts], like the others */
    struct expert {
        struct asked asked;
        uint64_t time; /* of the last use */
        uint32_t uses; /* 0: neither here nor remembered, or fetched ahead and not used yet */
        uint32_t here;
    } * expert;
};

/* splitmix64 (Steele, Lea and Flood, OOPSLA 2014). */
static double draw(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

static void reset(void *self)
{
    struct lecar *s = self;
    s->grid.row = s->grid.rows = s->visit = s->now = s->requests = 0;
    s->weight = 0.5;
    s->random = s->seed;
    s->draw = draw(&s->random);
    s->gone[LRU].n = s->gone[LFU].n = 0;
    memset(s->places, 0, grid_size(&s->grid) * sizeof s->places[0]);
    memset(s->expert, 0, grid_size(&s->grid) * sizeof s->expert[0]);
}

static void forget(struct lecar *s)
{
    for (int side = LRU; side <= LFU; side++)
        while (s->gone[side].n > s->most)
            s->expert[queue_take_first(&s->gone[side])].uses = 0;
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct lecar *s = self;
    (void)layer_slots;
    s->most = (uint32_t)fmin(n_slots * s->percent / 100, UINT32_MAX);
    s->discount = log(0.005) / (n_slots ? n_slots : 1);
    forget(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t each = sizeof(struct expert) + sizeof(struct place) + 2 * sizeof(uint32_t);
    struct lecar *s = grid_block(config, sizeof *s, each, why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    const size_t n = grid_size(&s->grid);
    s->expert = (struct expert *)(s + 1);
    s->places = (struct place *)(s->expert + n);
    uint32_t *heaps = (uint32_t *)(s->places + n);
    s->gone[LRU] = queue_open(LRU, s->places, heaps);
    s->gone[LFU] = queue_open(LFU, s->places, heaps + n);
    s->rate = param_value(config, params, 0);
    s->percent = param_value(config, params, 1);
    s->seed = config->seed;
    rebudget(s, config->n_slots, NULL);
    reset(s);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct lecar *s = self;
    grid_step(&s->grid, step);
}

/* Asked for what one side let go: the other one gains. */
static void learn(struct lecar *s, uint32_t side, uint64_t left_at)
{
    const double gain = exp(s->rate * exp(s->discount * (double)(s->requests - left_at)));
    const double lru = s->weight * (side == LRU ? 1 : gain), lfu = (1 - s->weight) * (side == LRU ? gain : 1);
    s->weight = fmin(fmax(lru / (lru + lfu), 0.01), 0.99); /* so that neither is lost for good */
}

static void use(struct lecar *s, uint32_t n, uint64_t time)
{
    struct expert *e = &s->expert[n];
    s->requests++;
    if (e->here) {
        e->uses++;
        e->time = time;
        return;
    }
    const struct place was = s->places[n];
    if (was.queue) {
        learn(s, was.queue, was.key);
        queue_remove(&s->gone[was.queue], n);
    }
    asked_for(&e->asked, s->visit, time);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct lecar *s = self;
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

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct lecar *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    struct expert *e = &s->expert[n];
    if (s->places[n].queue)
        queue_remove(&s->gone[s->places[n].queue], n);
    const int now = cause == COLIBRI_CAUSE_DEMAND && e->asked.visit == s->visit;
    e->here = 1;
    e->uses += now ? e->asked.rows : cause == COLIBRI_CAUSE_DEMAND;
    e->time = now ? e->asked.last : s->now;
}

static int drawn(const struct lecar *s)
{
    return s->draw < s->weight ? LRU : LFU;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct lecar *s = self;
    (void)uses;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const uint32_t n = (uint32_t)grid_number(&s->grid, layer, expert);
    struct expert *e = &s->expert[n];
    if (!e->here)
        return;
    e->here = 0;
    if (prefetched_unused)
        e->uses = 0; /* a wrong guess says nothing about either */
    else
        queue_add(&s->gone[drawn(s)], n, s->requests);
    forget(s);
    s->draw = draw(&s->random);
}

/* LFU: the count, and below the point the last use: distinct up to 2^13 uses and 2^40 rows times layers. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct lecar *s = self;
    const struct expert *e = &s->expert[grid_number(&s->grid, layer, expert)];
    return drawn(s) == LRU ? (double)e->time : e->uses + (double)e->time * 0x1p-40;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct lecar *s = self;
    const struct expert *e = &s->expert[grid_number(&s->grid, layer, expert)];
    snprintf(out, size, "lecar: used by %u tokens, %llu tokens ago; LRU has %.0f %% of the weight", e->uses,
             (unsigned long long)(e->time ? grid_rows_since(&s->grid, e->time) : 0), s->weight * 100);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "lecar",
    .summary = "draws between recency and frequency, by how much each is regretted",
    .source = "Vietri et al., LeCaR, HotStorage 2018",
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

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_lecar, NULL, get, .id = "colibri.expert-policy.lecar",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: draws between recency and frequency, by how much each is regretted");
