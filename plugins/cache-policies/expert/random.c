/* random: any candidate leaves, each with the same chance. A control, and a hard one to beat when a working set is
 * gone round in order.
 *
 * Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966;
 * the generator: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
#include "common.h"

struct rnd {
    uint64_t seed, state;
};

static void reset(void *self)
{
    struct rnd *s = self;
    s->state = s->seed;
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct rnd *s = malloc(sizeof *s);
    if (!s) {
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    s->seed = s->state = config->seed;
    return s;
}

/* 0 ... n - 1. The multiplication favours some numbers by less than n / 2^32. */
static uint32_t below(struct rnd *s, uint32_t n)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (uint32_t)((z >> 32) * n >> 32);
}

/* Floyd's way to draw n of m without remembering all m: the new number, or the last one if it was drawn before. */
static int pick_victims(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                        uint32_t *out_index)
{
    struct rnd *s = self;
    (void)candidates;
    if (n > n_candidates)
        return COLIBRI_E_LIMIT;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t last = n_candidates - n + i;
        uint32_t pick = below(s, last + 1);
        for (uint32_t j = 0; j < i; j++)
            if (out_index[j] == pick) {
                pick = last;
                break;
            }
        out_index[i] = pick;
    }
    return COLIBRI_OK;
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "random",
    .summary = "any expert leaves, each with the same chance",
    .source = "Belady, IBM Systems Journal 5(2), 1966",
    .create = create,
    .destroy = free,
    .reset = reset,
    .pick_victims = pick_victims,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_random, NULL, get, .id = "colibri.expert-policy.random",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: any expert leaves, each with the same chance");
