/* An expert policy outside of Colibri's tree: the expert that was used longest ago leaves first, but every further use
 * of a stay counts as if it had come a few tokens later, up to a limit. So what is used again and again outlives what
 * was needed once, and still leaves when the topic changes.
 *
 * Source: none; made up as an example. docs/writing-an-expert-policy.md builds this file up step by step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <colibri/expert_policy.h>

enum { TOKENS, MOST };

static const struct colibri_param params[] = {
    [TOKENS] = {"tokens", 0, 100000, 2, 0, "tokens that each further use of a stay is worth"},
    [MOST] = {"most", 0, 100000, 16, 1, "further uses that count, at most"},
};

struct expert {
    uint64_t last_use; /* in tokens since the start */
    uint32_t uses;     /* of this stay in memory */
};

struct state {
    uint32_t n_layers, n_experts;
    double tokens, most;
    uint64_t past;          /* tokens before this pass */
    uint64_t rows;          /* tokens of this pass */
    struct expert expert[]; /* [n_layers][n_experts] */
};

static struct expert *at(struct state *s, uint32_t layer, uint32_t expert)
{
    return &s->expert[(size_t)layer * s->n_experts + expert];
}

/* Forget everything, as after create. */
static void reset(void *self)
{
    struct state *s = self;
    s->past = s->rows = 0;
    memset(s->expert, 0, (size_t)s->n_layers * s->n_experts * sizeof s->expert[0]);
}

/* One instance per pool of slots. The only place that may allocate; `config` is gone afterwards: copy what you keep. */
static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t n = (size_t)config->n_layers * config->n_experts;
    struct state *s = malloc(sizeof *s + n * sizeof s->expert[0]);
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->tokens = config->params[TOKENS];
    s->most = config->params[MOST];
    reset(s);
    return s;
}

/* A forward pass begins. */
static void on_step(void *self, const struct colibri_step *step)
{
    struct state *s = self;
    s->past += s->rows;
    s->rows = step->n_rows;
}

/* What the router chose for every token of the pass, whether it is in memory or not. */
static void on_route(void *self, const struct colibri_route *route)
{
    struct state *s = self;
    for (uint32_t row = 0; row < route->n_rows; row++)
        for (uint32_t k = 0; k < route->top_k; k++) {
            struct expert *e = at(s, route->layer, route->ids[(size_t)row * route->top_k + k]);
            e->last_use = s->past + row + 1;
            e->uses++;
        }
}

/* It left memory: its next stay begins at nothing. */
static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    (void)uses;
    (void)prefetched_unused;
    at(self, layer, expert)->uses = 0;
}

/* What an expert in memory is worth now: the host evicts the lowest, of equals the one with the lower number. */
static double score(void *self, uint32_t layer, uint32_t expert)
{
    struct state *s = self;
    const struct expert *e = at(s, layer, expert);
    const double again = e->uses > 1 ? e->uses - 1.0 : 0;
    return (double)e->last_use + s->tokens * (again < s->most ? again : s->most);
}

static const struct colibri_expert_policy policy = {
    .struct_size = sizeof policy,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES,
    .name = "second-wind",
    .summary = "the expert used longest ago leaves first, further uses count as later ones",
    .source = "example",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = free,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .on_evict = on_evict,
    .score = score,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_EXPERT_POLICY) == 0 ? &policy : NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_expert_policy_second_wind, NULL, get, .id = "org.example.expert-policy.second-wind",
                      .kinds = COLIBRI_KIND_EXPERT_POLICY, .version = "1.0.0", .license = "MIT",
                      .summary = "Expert policy: the expert used longest ago leaves first, further uses count");
