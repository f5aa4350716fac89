/* belady: the expert whose next use is farthest away leaves first. It needs the future, so it runs in replays only:
 * what any policy without bypass loses against it is lost by not knowing.
 *
 * Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966;
 * proof: Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.
 *
 * With top-k experts needed at once the rule is still optimal: it is applied to what the step does not need. */
#include "common.h"

struct belady {
    uint32_t n_layers, n_experts;
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *ctx;
};

static void reset(void *self)
{
    (void)self;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct belady *s = config->next_use ? malloc(sizeof *s) : NULL;
    if (!s) {
        snprintf(why, why_size, "%s", config->next_use ? "no memory" : "it needs the future: replays of traces only");
        return NULL;
    }
    *s = (struct belady){config->n_layers, config->n_experts, config->next_use, config->next_use_ctx};
    return s;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct belady *s = self;
    return -(double)s->next_use(s->ctx, layer, expert);
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct belady *s = self;
    const uint64_t next = s->next_use(s->ctx, layer, expert);
    if (next == UINT64_MAX)
        snprintf(out, size, "belady: never used again");
    else
        snprintf(out, size, "belady: next used in %llu layer visits", (unsigned long long)next);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_ORACLE,
    .name = "belady",
    .summary = "the expert whose next use is farthest away leaves first (replay only)",
    .source = "Belady, IBM Systems Journal 5(2), 1966",
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_belady, NULL, get, .id = "colibri.expert-policy.belady",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: farthest next use leaves first (replay only)");
