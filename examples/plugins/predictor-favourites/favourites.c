/* A predictor outside of Colibri's tree: a layer will want the experts that it wanted most so far, lately more than
 * long ago.
 *
 * Source: none; made up as an example. Of a policy a predictor differs in two things: it sees the whole model, whatever
 * pools its layers are in, and what it says is only read if there is time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <colibri/predictor.h>

enum { HALF_LIFE };

static const struct colibri_param params[] = {
    [HALF_LIFE] = {"half-life", 1, 1000000, 64, 0, "tokens after which a use counts half"},
};

struct state {
    uint32_t n_layers, n_experts, top_k;
    double keep;     /* what is left of a use after one token */
    uint8_t *taken;  /* [n_experts]: while guesses are picked */
    double weight[]; /* [n_layers][n_experts]: faded uses */
};

/* Forget everything, as after create. */
static void reset(void *self)
{
    struct state *s = self;
    memset(s->weight, 0, (size_t)s->n_layers * s->n_experts * sizeof s->weight[0]);
}

static void destroy(void *self)
{
    struct state *s = self;
    free(s->taken);
    free(s);
}

/* The only place that may allocate; `config` is gone afterwards, so copy what you keep. */
static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const size_t n = (size_t)config->n_layers * config->n_experts;
    struct state *s = malloc(sizeof *s + n * sizeof s->weight[0]);
    uint8_t *taken = calloc(config->n_experts, 1);
    if (!s || !taken) {
        free(s);
        free(taken);
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->top_k = config->top_k;
    s->taken = taken;
    s->keep = exp2(-1 / config->params[HALF_LIFE]);
    reset(s);
    return s;
}

/* What the router chose for every token of the pass. */
static void on_route(void *self, const struct colibri_route *route)
{
    struct state *s = self;
    double *w = s->weight + (size_t)route->layer * s->n_experts;
    for (uint32_t row = 0; row < route->n_rows; row++) {
        for (uint32_t e = 0; e < s->n_experts; e++)
            w[e] *= s->keep;
        for (uint32_t k = 0; k < route->top_k; k++)
            w[route->ids[(size_t)row * route->top_k + k]] += 1;
    }
}

/* Guesses for the layer after `layer` (after the last: the first, of the next pass), best first. The host drops those
 * that are in memory or on their way, and reads the others as far as its budget goes. */
static uint32_t predict(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max)
{
    struct state *s = self;
    (void)budget_bytes;
    (void)deadline_ns;
    const uint32_t next = (layer + 1) % s->n_layers;
    const double *w = s->weight + (size_t)next * s->n_experts;
    uint32_t n = 0;
    memset(s->taken, 0, s->n_experts);
    while (n < max && n < s->top_k) {
        uint32_t best = s->n_experts;
        for (uint32_t e = 0; e < s->n_experts; e++)
            if (!s->taken[e] && w[e] > 0 && (best == s->n_experts || w[e] > w[best]))
                best = e;
        if (best == s->n_experts)
            break;
        s->taken[best] = 1;
        out[n++] = (struct colibri_prediction){
            .layer = next, .expert = best, .confidence = (float)(w[best] * (1 - s->keep)), .tier = 0};
    }
    return n;
}

static const struct colibri_predictor predictor = {
    .struct_size = sizeof predictor,
    .name = "favourites",
    .summary = "the next layer wants what it wanted most lately",
    .source = "example",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_route = on_route,
    .predict = predict,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_PREDICTOR) == 0 ? &predictor : NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_predictor_favourites, NULL, get, .id = "org.example.predictor.favourites",
                      .kinds = COLIBRI_KIND_PREDICTOR, .version = "1.0.0", .license = "MIT",
                      .summary = "Predictor: the next layer wants what it wanted most lately");
