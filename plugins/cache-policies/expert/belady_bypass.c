/* belady-bypass: as belady, but an expert whose next use is farther away than that of everything in the cache is not
 * kept at all. Replays only. The host sets a few slots aside for experts that do not stay, so in a very small
 * cache belady without bypass may be ahead.
 *
 * Source: the rule for admission on top of Belady's (belady.c): McFarling, "Cache replacement with dynamic exclusion",
 * ISCA 1992.
 *
 * Residents are known from on_insert and on_evict. Those that the routed layer needs now are no candidates of the host,
 * so they do not count in the comparison. */
#include "common.h"

struct belady_bypass {
    struct grid grid;
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *ctx;
    uint32_t n_slots, n_resident;
    uint32_t layer;     /* routed */
    uint64_t visit;     /* number of the routing */
    uint32_t *resident; /* [n_resident]: experts, in no order */
    struct member {
        uint64_t needed; /* visit that needs it */
        uint32_t at;     /* index in resident + 1; 0: not there */
    } member[];          /* [n_layers][n_experts] */
};

static void reset(void *self)
{
    struct belady_bypass *s = self;
    s->n_resident = s->layer = 0;
    s->visit = 0;
    memset(s->member, 0, grid_size(&s->grid) * sizeof s->member[0]);
}

static void destroy(void *self)
{
    struct belady_bypass *s = self;
    free(s->resident);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    if (!config->next_use) {
        snprintf(why, why_size, "it needs the future: replays of traces only");
        return NULL;
    }
    struct belady_bypass *s = grid_block(config, sizeof *s, sizeof s->member[0], why, why_size);
    if (!s)
        return NULL;
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    s->next_use = config->next_use;
    s->ctx = config->next_use_ctx;
    s->n_slots = config->n_slots;
    s->resident = malloc(grid_size(&s->grid) * sizeof s->resident[0]);
    if (!s->resident) {
        free(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    return s;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct belady_bypass *s = self;
    s->layer = route->layer;
    s->visit++;
    for (uint32_t i = 0; i < route->n_union; i++)
        if (grid_has(&s->grid, route->layer, route->union_ids[i]))
            s->member[grid_number(&s->grid, route->layer, route->union_ids[i])].needed = s->visit;
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct belady_bypass *s = self;
    (void)cause;
    if (!grid_has(&s->grid, layer, expert))
        return;
    const size_t number = grid_number(&s->grid, layer, expert);
    if (s->member[number].at)
        return;
    s->resident[s->n_resident] = (uint32_t)number;
    s->member[number].at = ++s->n_resident;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    struct belady_bypass *s = self;
    (void)uses;
    (void)prefetched_unused;
    if (!grid_has(&s->grid, layer, expert))
        return;
    struct member *m = &s->member[grid_number(&s->grid, layer, expert)];
    if (!m->at)
        return;
    const uint32_t last = s->resident[--s->n_resident];
    s->resident[m->at - 1] = last;
    s->member[last].at = m->at;
    m->at = 0;
}

static int admit(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct belady_bypass *s = self;
    (void)cause;
    if (s->n_resident < s->n_slots)
        return COLIBRI_ADMIT;
    const uint64_t own = s->next_use(s->ctx, layer, expert);
    for (uint32_t i = 0; i < s->n_resident; i++) {
        const uint32_t number = s->resident[i], l = number / s->grid.n_experts;
        if (l == s->layer && s->member[number].needed == s->visit)
            continue;
        if (s->next_use(s->ctx, l, number % s->grid.n_experts) > own)
            return COLIBRI_ADMIT;
    }
    return COLIBRI_ADMIT_BYPASS;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct belady_bypass *s = self;
    return -(double)s->next_use(s->ctx, layer, expert);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_ORACLE,
    .name = "belady-bypass",
    .summary = "farthest next use leaves first, or does not stay at all (replay only)",
    .source = "Belady, IBM Systems Journal 5(2), 1966; bypass: McFarling, ISCA 1992",
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_route = on_route,
    .on_insert = on_insert,
    .on_evict = on_evict,
    .admit = admit,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_belady_bypass, NULL, get, .id = "colibri.expert-policy.belady-bypass",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: farthest next use leaves, or does not stay (replay only)");
