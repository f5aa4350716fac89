/* gdsf: the lowest H = L + uses * cost leaves first; L is the H of the last that left, so whoever is not used any more
 * falls behind in the end.
 *
 * Source: GreedyDual-Size-Frequency: Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency
 * caching policy", HP Laboratories report HPL-98-69R1, 1998.
 *
 * Adapted: every expert takes one slot of its pool, so the paper's size is 1 and only the cost of a fetch differs: the
 * bytes of the layer's experts plus `request`, what the drive could have read in the time of one request's latency,
 * relative to the dearest layer of the pool. Where all experts are equal this is frequency with dynamic aging (LFU-DA).
 * Uses are token rows since the expert came in, as in the paper. A fetch ahead counts as the first use. L moves with
 * evictions, so, unlike with the policies that only look at rows, the victims depend a little on how a prompt was cut
 * into passes. H never falls while an expert stays. */
#include "common.h"

static const struct colibri_param params[] = {
    {"request", 0, 1048576, 256, 1, "KiB that the drive reads in the time that one request costs"},
};

struct gdsf {
    struct grid grid;
    double age;     /* L */
    double *cost;   /* [n_layers] */
    uint64_t visit; /* counts routed layers */
    struct use {
        double worth;   /* H; meaningless unless resident */
        uint64_t asked; /* the visit of `rows` */
        uint32_t rows;  /* that asked for it in that visit while it was not here */
        uint32_t uses;  /* since it came in; 0: not here */
        int counted;    /* fetched ahead, so its next use is already in `uses` */
    } use[];            /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct gdsf *s = self;
    s->grid.row = s->grid.rows = s->visit = 0;
    s->age = 0;
    memset(s->use, 0, grid_size(&s->grid) * sizeof s->use[0]);
}

static void destroy(void *self)
{
    struct gdsf *s = self;
    free(s->cost);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct gdsf *s = grid_block(config, sizeof *s, sizeof s->use[0], why, why_size);
    if (!s)
        return NULL;
    s->grid.n_layers = config->n_layers;
    s->grid.n_experts = config->n_experts;
    s->cost = malloc(config->n_layers * sizeof s->cost[0]);
    if (!s->cost) {
        snprintf(why, why_size, "no memory for %u layers", config->n_layers);
        free(s);
        return NULL;
    }
    double most = 0;
    for (uint32_t l = 0; l < config->n_layers; l++) {
        const uint64_t bytes = config->expert_bytes ? config->expert_bytes[l] : 0;
        s->cost[l] = (double)(bytes ? bytes : 1) + param_value(config, params, 0) * 1024;
        most = s->cost[l] > most ? s->cost[l] : most;
    }
    for (uint32_t l = 0; l < config->n_layers; l++)
        s->cost[l] /= most;
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct gdsf *s = self;
    grid_step(&s->grid, step);
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct gdsf *s = self;
    s->visit++;
    for (size_t i = 0; i < (size_t)route->n_rows * route->top_k; i++) {
        const uint32_t expert = route->ids[i];
        if (!grid_has(&s->grid, route->layer, expert))
            continue;
        struct use *u = &s->use[grid_number(&s->grid, route->layer, expert)];
        if (u->uses) {
            u->uses += !u->counted;
            u->counted = 0;
            u->worth = s->age + u->uses * s->cost[route->layer];
        } else {
            u->rows = u->asked == s->visit ? u->rows + 1 : 1;
            u->asked = s->visit;
        }
    }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct gdsf *s = self;
    if (!grid_has(&s->grid, layer, expert))
        return;
    struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    u->counted = cause != COLIBRI_CAUSE_DEMAND;
    u->uses = !u->counted && u->asked == s->visit && u->rows ? u->rows : 1;
    u->worth = s->age + u->uses * s->cost[layer];
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct gdsf *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    if (u->worth > s->age)
        s->age = u->worth;
    u->uses = 0;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct gdsf *s = self;
    return s->use[grid_number(&s->grid, layer, expert)].worth;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct gdsf *s = self;
    const struct use *u = &s->use[grid_number(&s->grid, layer, expert)];
    if (u->uses)
        snprintf(out, size, "gdsf: %.4g above the last that left, %u uses at a cost of %.3g", u->worth - s->age,
                 u->uses, s->cost[layer]);
    else
        snprintf(out, size, "gdsf: not here");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "gdsf",
    .summary = "uses times the cost of a fetch, plus an age; the lowest leaves first",
    .source = "GreedyDual-Size-Frequency: Cherkasova, HPL-98-69R1, 1998",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_gdsf, NULL, get, .id = "colibri.expert-policy.gdsf",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: uses times the cost of a fetch, plus an age; the lowest leaves first");
