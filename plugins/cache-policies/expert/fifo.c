/* fifo: the expert that came in first leaves first, used or not. A control: what is lost by ignoring use.
 *
 * Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
 */
#include "common.h"

struct fifo {
    struct grid grid;
    uint64_t inserted;  /* so far */
    uint64_t arrival[]; /* [n_layers][n_experts]: number of the insertion */
};

static void reset(void *self)
{
    struct fifo *s = self;
    s->inserted = 0;
    memset(s->arrival, 0, grid_size(&s->grid) * sizeof s->arrival[0]);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct fifo *s = grid_block(config, sizeof *s, sizeof s->arrival[0], why, why_size);
    if (!s)
        return NULL;
    s->grid = (struct grid){config->n_layers, config->n_experts, 0, 0};
    return s;
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct fifo *s = self;
    (void)cause;
    if (grid_has(&s->grid, layer, expert))
        s->arrival[grid_number(&s->grid, layer, expert)] = ++s->inserted;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    const struct fifo *s = self;
    return (double)s->arrival[grid_number(&s->grid, layer, expert)];
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    const struct fifo *s = self;
    const uint64_t arrival = s->arrival[grid_number(&s->grid, layer, expert)];
    if (arrival)
        snprintf(out, size, "fifo: %llu came in after it", (unsigned long long)(s->inserted - arrival));
    else
        snprintf(out, size, "fifo: never came in");
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "fifo",
    .summary = "the expert that came in first leaves first",
    .source = "Belady, IBM Systems Journal 5(2), 1966",
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_insert = on_insert,
    .score = score,
    .explain = explain,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_expert_policy_fifo, NULL, get, .id = "colibri.expert-policy.fifo",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert that came in first leaves first");
