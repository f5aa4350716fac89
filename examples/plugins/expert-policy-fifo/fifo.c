/* Example of an expert policy outside of Colibri's tree: first in, first out.
 *
 * Source: folklore. Worse than lru nearly everywhere, which makes it a good control.
 * The page docs/writing-an-expert-policy.md builds this file up step by step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <colibri/expert_policy.h>

struct fifo {
    uint32_t n_layers, n_experts;
    uint64_t inserted;   /* how many so far */
    uint64_t arrival[];  /* [n_layers][n_experts]: number of the insertion */
};

static void reset(void *self)
{
    struct fifo *s = self;
    s->inserted = 0;
    memset(s->arrival, 0, (size_t)s->n_layers * s->n_experts * sizeof s->arrival[0]);
}

/* May allocate; `config` is gone afterwards, so copy what you keep. */
static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t n = (size_t)config->n_layers * config->n_experts;
    struct fifo *s = malloc(sizeof *s + n * sizeof s->arrival[0]);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    reset(s);
    return s;
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct fifo *s = self;
    (void)cause;
    s->arrival[(size_t)layer * s->n_experts + expert] = ++s->inserted;
}

/* The host evicts the lowest. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct fifo *s = self;
    return (double)s->arrival[(size_t)layer * s->n_experts + expert];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct fifo *s = self;
    const uint64_t arrival = s->arrival[(size_t)layer * s->n_experts + expert];
    snprintf(out, size, "fifo: came in %llu insertions ago", (unsigned long long)(s->inserted - arrival));
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "fifo",
    .summary = "the expert that came in first leaves first",
    .source = "folklore",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_insert = on_insert,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) == 0 ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_expert_policy_fifo, NULL, get, .id = "org.example.expert-policy.fifo",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert that came in first leaves first");
