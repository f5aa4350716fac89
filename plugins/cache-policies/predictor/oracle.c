/* oracle: knows the future of a recorded trace, with as many mistakes as one wants. Replays only: it shows what a
 * predictor of a given precision would be worth before anybody builds it.
 *
 * Source: "what if" baselines of prefetching studies; folklore. */
#include "common.h"

static const struct colibri_param params[] = {
    {"precision", 0, 1, 1, 0, "chance that a guess is right; else it is an expert that is not needed"},
    {"layers", 1, 8, 1, 1, "how many layers ahead to guess"},
};

struct oracle {
    uint32_t n_layers, n_experts, ahead;
    double precision;
    uint64_t seed, state;
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *ctx;
    uint32_t *idle; /* scratch: experts that the layer does not need */
};

static void reset(void *self)
{
    struct oracle *s = self;
    s->state = s->seed;
}

static void destroy(void *self)
{
    struct oracle *s = self;
    free(s->idle);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    if (!config->next_use) {
        snprintf(why, why_size, "it needs the future: replays of traces only");
        return NULL;
    }
    struct oracle *s = calloc(1, sizeof *s);
    if (!s || !(s->idle = malloc((size_t)(config->n_experts ? config->n_experts : 1) * sizeof *s->idle))) {
        free(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->precision = param_value(config, params, 0);
    s->ahead = (uint32_t)param_value(config, params, 1);
    s->next_use = config->next_use;
    s->ctx = config->next_use_ctx;
    s->seed = s->state = config->seed;
    return s;
}

/* SplitMix64: Steele, Lea and Flood, OOPSLA 2014. */
static uint64_t next_random(struct oracle *s)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint32_t predict(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max)
{
    struct oracle *s = self;
    uint32_t n = 0;
    (void)budget_bytes;
    (void)deadline_ns;
    for (uint32_t d = 1; d <= s->ahead && d <= s->n_layers; d++) {
        const uint32_t to = (layer + d) % s->n_layers;
        uint32_t n_idle = 0;
        for (uint32_t e = 0; e < s->n_experts; e++)
            if (s->next_use(s->ctx, to, e) != d)
                s->idle[n_idle++] = e;
        uint32_t i = 0; /* the idle ones are in order: what is not among them is needed */
        uint32_t n_left = n_idle;
        const uint32_t first = n;
        for (uint32_t e = 0; e < s->n_experts && n < max; e++) {
            if (i < n_idle && s->idle[i] == e) {
                i++;
                continue;
            }
            out[n++] = (struct colibri_prediction){.layer = to, .expert = e, .confidence = (float)s->precision};
        }
        /* Mistakes afterwards: picking them reorders idle. */
        for (uint32_t g = first; g < n && n_left; g++) {
            if ((double)(next_random(s) >> 11) * 0x1p-53 < s->precision)
                continue;
            const uint32_t at = (uint32_t)((next_random(s) >> 32) * n_left >> 32);
            out[g].expert = s->idle[at];
            s->idle[at] = s->idle[--n_left];
        }
    }
    return n;
}

static const struct colibri_predictor predictor = {
    .struct_size = sizeof predictor,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_ORACLE,
    .name = "oracle",
    .summary = "knows the future, with adjustable mistakes (replay only)",
    .source = "folklore",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .predict = predict,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_PREDICTOR) ? &predictor : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_predictor_oracle, NULL, get, .id = "colibri.predictor.oracle",
                      .kinds = COLIBRI_KIND_PREDICTOR, .version = "1.0.0", .license = "MIT",
                      .summary = "Predictor: knows the future, with adjustable mistakes (replay only)");
