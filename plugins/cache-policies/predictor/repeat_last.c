/* repeat-last: a layer chooses for the next token what it chose for this one. What every better predictor must beat.
 *
 * Source: folklore (temporal locality of experts); Eliseev and Mazur, arXiv:2312.17238, section 3.1.
 *
 * Rows of several sequences: each sequence repeats itself. The confidence is the share of such guesses that came true
 * lately, by layer and by place in the router's order: the first choice lasts longer than the last one. */
#include "common.h"

static const struct colibri_param params[] = {
    {"layers", 1, 8, 1, 1, "how many layers ahead to guess"},
    {"confidence", 0, 1, 0.5, 0, "chance of coming true that a guess needs to be said"},
};

struct repeat_last {
    uint32_t n_layers, n_experts, top_k, ahead;
    float least; /* confidence */
    struct last_rows last;
    uint32_t n_sequences; /* of the routing before predict() */
    uint32_t sequence[SEQUENCES];
    struct calibration calibration[]; /* [n_layers]; bin: place in the router's order */
};

static void reset(void *self)
{
    struct repeat_last *s = self;
    s->n_sequences = 0;
    last_rows_reset(&s->last);
    for (uint32_t l = 0; l < s->n_layers; l++)
        calibration_reset(&s->calibration[l], 0.3f);
}

static void destroy(void *self)
{
    struct repeat_last *s = self;
    last_rows_close(&s->last);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct repeat_last *s = malloc(sizeof *s + config->n_layers * sizeof s->calibration[0]);
    if (!s || !last_rows_open(&s->last, config->n_layers, config->top_k)) {
        if (s)
            destroy(s);
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->top_k = config->top_k;
    s->ahead = (uint32_t)param_value(config, params, 0);
    s->least = (float)param_value(config, params, 1);
    reset(s);
    return s;
}

static uint32_t bin_of(uint32_t place)
{
    return place < BINS ? place : BINS - 1;
}

static int contains(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return 1;
    return 0;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct repeat_last *s = self;
    s->n_sequences = 0;
    if (!route_fits(route, s->n_layers, s->n_experts, s->top_k))
        return;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const uint32_t *ids = route->ids + (size_t)r * s->top_k;
        const uint32_t sequence = sequence_of(route, r);
        const uint32_t *before = last_row(&s->last, route->layer, sequence);
        for (uint32_t k = 0; before && k < s->top_k; k++)
            calibration_add(&s->calibration[route->layer], bin_of(k), contains(ids, s->top_k, before[k]));
        last_row_set(&s->last, route->layer, sequence, ids);
        if (!contains(s->sequence, s->n_sequences, sequence) && s->n_sequences < SEQUENCES)
            s->sequence[s->n_sequences++] = sequence;
    }
}

static uint32_t predict(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max)
{
    struct repeat_last *s = self;
    struct guesses g = {out, 0, max};
    (void)budget_bytes;
    (void)deadline_ns;
    for (uint32_t d = 1; d <= s->ahead && d <= s->n_layers; d++)
        for (uint32_t i = 0; i < s->n_sequences; i++) {
            const uint32_t to = (layer + d) % s->n_layers;
            const uint32_t *ids = last_row(&s->last, to, s->sequence[i]);
            for (uint32_t k = 0; ids && k < s->top_k; k++)
                if (s->calibration[to].rate[bin_of(k)] >= s->least)
                    guess_add(&g, to, ids[k], s->calibration[to].rate[bin_of(k)]);
        }
    return g.n;
}

static const struct colibri_predictor predictor = {
    .struct_size = sizeof predictor,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "repeat-last",
    .summary = "a layer chooses for the next token what it chose for this one",
    .source = "folklore; arXiv:2312.17238",
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
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_PREDICTOR) ? &predictor : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_predictor_repeat_last, NULL, get, .id = "colibri.predictor.repeat-last",
                      .kinds = COLIBRI_KIND_PREDICTOR, .version = "1.0.0", .license = "MIT",
                      .summary = "Predictor: the next token's experts are this one's");
