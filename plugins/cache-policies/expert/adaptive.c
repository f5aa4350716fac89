/* adaptive: the expert that is worth least leaves first. What an expert is worth is learned while the model runs: an
 * estimate of how soon its layer will choose it again (value_model.h), and how many layers away that layer is. Where
 * plain lru turns out to do better, lru decides until it does not.
 *
 * Source: this file. What it is made of: Belady's rule with estimated times, as in Song et al., "Learning relaxed
 * Belady for content distribution network caching", NSDI 2020; values that decay with time to the next use as in
 * Beckmann et al., "LHD: improving cache hit rate by maximizing hit density", NSDI 2018; the layer order as in
 * arXiv:2509.02408; simulated caches that choose between rules as in Qureshi et al., "Adaptive insertion policies for
 * high performance caching", ISCA 2007.
 *
 * Two discounts. The horizon of the estimates grows with the pool: the larger the pool, the longer a slot is held.
 * The distance of the layer counts more: an expert of a layer that has just gone by can do nothing for a whole pass.
 *
 * Nothing here depends on wall time: same events, same victims. */
#include "common.h"
#include "value_model.h"

/* A pool of the same size that holds names only, to count the misses of a rule. */
struct shadow {
    uint32_t n;
    uint32_t *member; /* [experts] */
    uint8_t *inside;  /* [experts] */
};

enum rule { RULE_VALUE = 0, RULE_LRU = 1, RULES };

struct adaptive {
    struct grid grid;
    struct value_model model;
    uint32_t n_slots;
    uint32_t layer; /* routed */
    uint64_t visit; /* number of the routing */
    enum rule rule; /* that decides */
    struct shadow shadow[RULES];
    double ahead, spread; /* misses that lru had less, and the sum of squares of its parts, lately */
    uint32_t misses;      /* of both, in these sums */
    float *distance;      /* [n_layers + 1]: what a layer's experts are worth, that many layers away */
    struct use {
        uint64_t stamp;  /* time of the last use (common.h); 0: never */
        uint64_t needed; /* visit that needs it */
        uint64_t hold;   /* fetched ahead: stays until its layer was routed so often */
        uint32_t layer;
    } * use;          /* [n_layers * n_experts] */
    uint64_t *routed; /* [n_layers] */
};

enum { MEMORY = 4096 }; /* misses after which the comparison of the rules counts half */

/* Fitted on the topics code, prose and zh (value_model.h). Both are flat around this: 0.2 points of hit rate between
 * horizons of 3 and 10 rows. */
static void set_slots(struct adaptive *s, uint32_t n_slots)
{
    const float passes = (float)n_slots / ((float)s->grid.n_layers * (float)s->model.top_k); /* worth of slots */
    s->n_slots = n_slots;
    s->model.discount = 1.0f - 0.3f / sqrtf(passes > 1.0f ? passes : 1.0f);
    for (uint32_t d = 0; d <= s->grid.n_layers; d++) /* 0.5 per pass */
        s->distance[d] = value_exp2(-(float)d / (float)s->grid.n_layers);
}

static void reset(void *self)
{
    struct adaptive *s = self;
    s->grid.row = s->grid.rows = 0;
    s->layer = 0;
    s->visit = 0;
    s->rule = RULE_VALUE;
    s->ahead = s->spread = 0;
    s->misses = 0;
    if (s->n_slots < grid_size(&s->grid)) /* else it is never asked, and its memory need not be there */
        value_reset(&s->model);
    for (uint32_t i = 0; i < RULES; i++) {
        s->shadow[i].n = 0;
        memset(s->shadow[i].inside, 0, grid_size(&s->grid));
    }
    for (size_t i = 0; i < grid_size(&s->grid); i++)
        s->use[i] = (struct use){.layer = (uint32_t)(i / s->grid.n_experts)};
    memset(s->routed, 0, s->grid.n_layers * sizeof *s->routed);
}

/* What grows: two matrices of experts by experts for each layer, and what is known of each expert. */
static uint64_t state_bytes(const struct colibri_policy_config *config)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    return 8 * n * config->n_experts + 128 * n;
}

static void destroy(void *self)
{
    struct adaptive *s = self;
    value_close(&s->model);
    for (uint32_t i = 0; i < RULES; i++) {
        free(s->shadow[i].member);
        free(s->shadow[i].inside);
    }
    free(s->distance);
    free(s->use);
    free(s->routed);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct adaptive *s = calloc(1, sizeof *s);
    if (!s || !value_open(&s->model, config->n_layers, config->n_experts, config->top_k)) {
        free(s);
        snprintf(why, why_size, "no memory to learn about %u layers of %u experts, %u at a time", config->n_layers,
                 config->n_experts, config->top_k);
        return NULL;
    }
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    const size_t n = grid_size(&s->grid);
    int ok = 1;
    for (uint32_t i = 0; i < RULES; i++) {
        s->shadow[i].member = malloc(n * sizeof *s->shadow[i].member);
        s->shadow[i].inside = malloc(n);
        ok = ok && s->shadow[i].member && s->shadow[i].inside;
    }
    s->distance = malloc(((size_t)config->n_layers + 1) * sizeof *s->distance);
    s->use = malloc(n * sizeof *s->use);
    s->routed = malloc(config->n_layers * sizeof *s->routed);
    if (!ok || !s->distance || !s->use || !s->routed) {
        destroy(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    set_slots(s, config->n_slots);
    reset(s);
    return s;
}

static float worth(const struct adaptive *s, uint32_t number)
{
    const uint32_t layer = s->use[number].layer;
    const uint32_t away = layer > s->layer ? layer - s->layer : layer + s->grid.n_layers - s->layer;
    return s->model.value[number] * s->distance[away];
}

/* Index of the member that the rule would evict, UINT32_MAX: the visit needs them all. Ties: the lower number, as in
 * the host. */
static uint32_t victim(const struct adaptive *s, enum rule rule)
{
    const struct shadow *shadow = &s->shadow[rule];
    uint32_t best = UINT32_MAX, best_number = 0;
    double best_key = 0;
    for (uint32_t i = 0; i < shadow->n; i++) {
        const uint32_t number = shadow->member[i];
        const struct use *u = &s->use[number];
        if (u->needed == s->visit)
            continue;
        const double key = rule == RULE_LRU ? (double)u->stamp : (double)worth(s, number);
        if (best == UINT32_MAX || key < best_key || (key <= best_key && number < best_number)) {
            best = i;
            best_key = key;
            best_number = number;
        }
    }
    return best;
}

/* What the visit would do to a pool under that rule; returns the misses. */
static uint32_t simulate(struct adaptive *s, enum rule rule, const struct colibri_route *route)
{
    struct shadow *shadow = &s->shadow[rule];
    uint32_t misses = 0;
    for (uint32_t i = 0; i < route->n_union; i++) {
        const uint32_t number = (uint32_t)grid_number(&s->grid, route->layer, route->union_ids[i]);
        if (shadow->inside[number])
            continue;
        misses++;
        uint32_t at = shadow->n;
        if (shadow->n >= s->n_slots) {
            at = victim(s, rule);
            if (at == UINT32_MAX)
                continue; /* more experts than slots: this one goes through */
            shadow->inside[shadow->member[at]] = 0;
        } else {
            shadow->n++;
        }
        shadow->member[at] = number;
        shadow->inside[number] = 1;
    }
    return misses;
}

/* Follows lru once it is ahead by more than chance would have it, and leaves it when it is behind. */
static void choose_rule(struct adaptive *s, const struct colibri_route *route)
{
    const uint32_t by_value = simulate(s, RULE_VALUE, route), by_lru = simulate(s, RULE_LRU, route);
    const double lead = (double)by_value - (double)by_lru;
    s->ahead += lead;
    s->spread += lead * lead;
    s->misses += by_value + by_lru;
    if (s->misses > MEMORY) {
        s->misses /= 2;
        s->ahead /= 2;
        s->spread /= 2;
    }
    if (s->rule == RULE_VALUE ? s->ahead > 1.5 * sqrt(s->spread) : s->ahead < 0)
        s->rule = s->rule == RULE_VALUE ? RULE_LRU : RULE_VALUE;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct adaptive *s = self;
    grid_step(&s->grid, step);
    value_learn(&s->model);
}

static int fits(const struct adaptive *s, const struct colibri_route *route)
{
    if (route->layer >= s->grid.n_layers || route->top_k != s->model.top_k || !route->n_rows)
        return 0;
    const size_t n = (size_t)route->n_rows * route->top_k;
    for (size_t i = 0; i < n; i++)
        if (route->ids[i] >= s->grid.n_experts)
            return 0;
    return 1;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct adaptive *s = self;
    if (s->n_slots >= grid_size(&s->grid) || !fits(s, route))
        return; /* nothing will ever have to leave, or this is not the model that it was told about */
    struct use *use = s->use + (size_t)route->layer * s->grid.n_experts;
    s->layer = route->layer;
    s->visit++;
    s->routed[route->layer]++;
    for (uint32_t r = 0; r < route->n_rows; r++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            struct use *u = &use[route->ids[(size_t)r * route->top_k + k]];
            u->stamp = grid_time(&s->grid, route->layer, r);
            u->needed = s->visit;
        }
    value_route(&s->model, route);
    choose_rule(s, route);
}

/* What was fetched ahead has its turn before its worth speaks. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct adaptive *s = self;
    if (cause == COLIBRI_CAUSE_PREFETCH && grid_has(&s->grid, layer, expert))
        s->use[grid_number(&s->grid, layer, expert)].hold = s->routed[layer] + 1;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct adaptive *s = self;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    if (s->routed[layer] < s->use[number].hold)
        return INFINITY;
    return s->rule == RULE_LRU ? (double)s->use[number].stamp : (double)worth(s, number);
}

static void rebudget(void *self, uint32_t n_slots, const uint32_t *layer_slots)
{
    struct adaptive *s = self;
    (void)layer_slots;
    set_slots(s, n_slots);
    for (uint32_t i = 0; i < RULES; i++)
        while (s->shadow[i].n > n_slots)
            s->shadow[i].inside[s->shadow[i].member[--s->shadow[i].n]] = 0;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct adaptive *s = self;
    const uint32_t number = (uint32_t)grid_number(&s->grid, layer, expert);
    const struct use *u = &s->use[number];
    snprintf(out, size, "adaptive: worth %.3f (1: needed next), last used %s%llu tokens ago, %s decides%s",
             (double)s->model.value[number], u->stamp ? "" : "never, ",
             (unsigned long long)(u->stamp ? grid_rows_since(&s->grid, u->stamp) : s->grid.row),
             s->rule == RULE_LRU ? "lru" : "worth",
             s->routed[layer] < u->hold ? ", fetched ahead for its next turn" : "");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "adaptive",
    .summary = "learns how soon each expert is needed again; what can wait longest leaves first",
    .source = "this project; Song et al., NSDI 2020; Beckmann et al., NSDI 2018; Qureshi et al., ISCA 2007",
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .score = score,
    .rebudget = rebudget,
    .explain = explain,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_adaptive, NULL, get, .id = "colibri.expert-policy.adaptive",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: learns how soon each expert is needed again");
