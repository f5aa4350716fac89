/* markov: which experts a layer chose says which ones the next layer will choose. Counts pairs while the model runs:
 * expert i of one layer, expert j of the layer one (or two) further, for the same token.
 *
 * Source: first-order Markov prefetching: Joseph and Grunwald, "Prefetching using Markov predictors", ISCA 1997; for
 * experts: pair counts between layers as in arXiv:2401.14361 (there by whole requests).
 *
 * For expert j the score is log2 of its share of the layer's choices plus, summed over the experts i that were chosen,
 * the log2 of how much more often than that j follows i; the sum is damped, since experts that are chosen together tell
 * partly the same. Scores are turned into chances by counting how often they came true.
 *
 * Counts are halved when they reach `memory`, so the table follows the text. From the last layer the guess goes to the
 * first layer for the next token: it is weaker, and its confidence says so. */
#include <math.h>

#include "common.h"

enum { ROWS = 128 };    /* of a pass that are learned from */
enum { LOOKED_AT = 8 }; /* of a pass that are guessed for, and that guesses are judged by */
enum { SMOOTHING = 4 }; /* uses that the plain share counts for */
enum { MOST_LAYERS = 2 };

static const struct colibri_param params[] = {
    {"layers", 1, MOST_LAYERS, 1, 1, "how many layers ahead to guess"},
    {"memory", 64, 32768, 4096, 1, "uses after which an expert's counts are halved"},
    {"confidence", 0, 1, 0.6, 0, "chance of coming true that a guess needs to be said"},
};

struct markov {
    uint32_t n_layers, n_experts, top_k, ahead, memory;
    float least; /* confidence */
    uint64_t pass;
    struct last_rows last; /* of the last layer, for the way to the next token */
    uint16_t *pair;        /* [ahead][n_layers from][from expert][to expert] */
    uint16_t *from;        /* [ahead][n_layers from][from expert]: sum of its pairs / top_k */
    uint32_t *uses;        /* [n_layers][n_experts] */
    uint64_t *all;         /* [n_layers]: rows */
    uint32_t *rows;        /* [n_layers][ROWS][top_k]: of the pass */
    struct seen {
        uint64_t pass;
        uint32_t n;
    } * seen;     /* [n_layers]: whose rows those are */
    float *score; /* scratch [n_experts] */
    struct calibration calibration[MOST_LAYERS];
};

static size_t pairs(const struct markov *s)
{
    return (size_t)s->ahead * s->n_layers * s->n_experts;
}

/* What grows: the pairs. */
static uint64_t state_bytes(const struct colibri_policy_config *config)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts, ahead = (uint64_t)config->params[0];
    return ahead * n * (config->n_experts + 1) * sizeof(uint16_t) + n * sizeof(uint32_t) +
           (uint64_t)config->n_layers * (ROWS + SEQUENCES) * config->top_k * sizeof(uint32_t);
}

static void reset(void *self)
{
    struct markov *s = self;
    s->pass = 1;
    last_rows_reset(&s->last);
    memset(s->pair, 0, pairs(s) * s->n_experts * sizeof *s->pair);
    memset(s->from, 0, pairs(s) * sizeof *s->from);
    memset(s->uses, 0, (size_t)s->n_layers * s->n_experts * sizeof *s->uses);
    memset(s->all, 0, s->n_layers * sizeof *s->all);
    memset(s->seen, 0, s->n_layers * sizeof *s->seen);
    for (uint32_t d = 0; d < MOST_LAYERS; d++)
        calibration_reset(&s->calibration[d], (float)s->top_k / (float)s->n_experts);
}

static void destroy(void *self)
{
    struct markov *s = self;
    last_rows_close(&s->last);
    free(s->pair);
    free(s->from);
    free(s->uses);
    free(s->all);
    free(s->rows);
    free(s->seen);
    free(s->score);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct markov *s = calloc(1, sizeof *s);
    if (!s)
        goto fail;
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->top_k = config->top_k;
    s->ahead = (uint32_t)param_value(config, params, 0);
    s->memory = (uint32_t)param_value(config, params, 1);
    s->least = (float)param_value(config, params, 2);
    if (s->ahead > s->n_layers)
        s->ahead = s->n_layers;
    const uint64_t n = (uint64_t)s->n_layers * s->n_experts;
    if (!n || !s->top_k || n * s->n_experts > (UINT64_C(1) << 28))
        goto fail;
    s->pair = malloc(pairs(s) * s->n_experts * sizeof *s->pair);
    s->from = malloc(pairs(s) * sizeof *s->from);
    s->uses = malloc((size_t)n * sizeof *s->uses);
    s->all = malloc(s->n_layers * sizeof *s->all);
    s->rows = malloc((size_t)s->n_layers * ROWS * s->top_k * sizeof *s->rows);
    s->seen = malloc(s->n_layers * sizeof *s->seen);
    s->score = malloc(s->n_experts * sizeof *s->score);
    if (!last_rows_open(&s->last, s->n_layers, s->top_k) || !s->pair || !s->from || !s->uses || !s->all || !s->rows ||
        !s->seen || !s->score)
        goto fail;
    reset(s);
    return s;
fail:
    if (s)
        destroy(s);
    snprintf(why, why_size, "no memory for pairs of %u experts in %u layers", config->n_experts, config->n_layers);
    return NULL;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct markov *s = self;
    (void)step;
    s->pass++;
}

/* Straight between powers of two; the error is the same for all, nearly. */
static float quick_log2(float x)
{
    const union {
        float f;
        int32_t i;
    } bits = {x};
    return (float)(bits.i - 0x3f800000) * (1.0f / 8388608.0f);
}

/* Scores of the layer `d` further, given what `layer` chose. */
static void scores(struct markov *s, uint32_t layer, uint32_t d, const uint32_t *ids)
{
    const uint32_t n = s->n_experts, to = (layer + d) % s->n_layers;
    const float even = (float)s->top_k / (float)n, damp = s->top_k > 2 ? 2.5f / (float)s->top_k : 1.0f;
    const float all = (float)s->all[to] + SMOOTHING;
    const size_t block = ((size_t)(d - 1) * s->n_layers + layer) * n;
    for (uint32_t j = 0; j < n; j++)
        s->score[j] = 0.0f;
    for (uint32_t k = 0; k < s->top_k; k++) {
        const uint16_t *pair = s->pair + (block + ids[k]) * n;
        const float known = (float)s->from[block + ids[k]];
        for (uint32_t j = 0; j < n; j++) {
            const float share = ((float)s->uses[(size_t)to * n + j] + SMOOTHING * even) / all;
            s->score[j] += quick_log2(((float)pair[j] + SMOOTHING * share) / ((known + SMOOTHING) * share));
        }
    }
    for (uint32_t j = 0; j < n; j++)
        s->score[j] = damp * s->score[j] + quick_log2(((float)s->uses[(size_t)to * n + j] + SMOOTHING * even) / all);
}

/* Place of a score on the scale of the calibration: -12 ... 4. */
static float place_of(float score)
{
    return (score + 12.0f) * (BINS / 16.0f);
}

static void judge(struct markov *s, uint32_t d, const uint32_t *ids)
{
    for (uint32_t j = 0; j < s->n_experts; j++) {
        int chosen = 0;
        for (uint32_t k = 0; k < s->top_k; k++)
            chosen |= ids[k] == j;
        calibration_add(&s->calibration[d - 1], bin_at(place_of(s->score[j])), chosen);
    }
}

static void count(struct markov *s, uint32_t layer, uint32_t d, const uint32_t *from, const uint32_t *to)
{
    const size_t block = ((size_t)(d - 1) * s->n_layers + layer) * s->n_experts;
    for (uint32_t i = 0; i < s->top_k; i++) {
        uint16_t *pair = s->pair + (block + from[i]) * s->n_experts, *sum = &s->from[block + from[i]];
        for (uint32_t k = 0; k < s->top_k; k++)
            pair[to[k]]++;
        if (++*sum < s->memory)
            continue;
        *sum /= 2;
        for (uint32_t j = 0; j < s->n_experts; j++)
            pair[j] /= 2;
    }
}

/* What `layer`, `d` layers back, chose for row r of this pass; NULL: not known. */
static const uint32_t *source_row(const struct markov *s, const struct colibri_route *route, uint32_t d, uint32_t r)
{
    const uint32_t layer = (route->layer + s->n_layers - d) % s->n_layers;
    if (route->layer < d) { /* the token before: known for the first of a sequence's rows in this pass */
        const uint32_t sequence = sequence_of(route, r);
        return r && sequence_of(route, r - 1) == sequence ? NULL : last_row(&s->last, layer, sequence);
    }
    const struct seen *seen = &s->seen[layer];
    return seen->pass == s->pass && seen->n == route->n_rows && r < ROWS
               ? s->rows + ((size_t)layer * ROWS + r) * s->top_k
               : NULL;
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct markov *s = self;
    if (!route_fits(route, s->n_layers, s->n_experts, s->top_k))
        return;
    const uint32_t n_rows = route->n_rows < ROWS ? route->n_rows : ROWS;
    for (uint32_t d = 1; d <= s->ahead; d++) {
        const uint32_t layer = (route->layer + s->n_layers - d) % s->n_layers;
        for (uint32_t r = 0; r < n_rows; r++) {
            const uint32_t *ids = route->ids + (size_t)r * s->top_k, *from = source_row(s, route, d, r);
            if (!from)
                continue;
            if (r < LOOKED_AT) {
                scores(s, layer, d, from);
                judge(s, d, ids);
            }
            count(s, layer, d, from, ids);
        }
    }
    uint32_t *uses = s->uses + (size_t)route->layer * s->n_experts;
    for (size_t i = 0; i < (size_t)route->n_rows * s->top_k; i++)
        uses[route->ids[i]]++;
    s->all[route->layer] += route->n_rows;
    if (s->all[route->layer] > s->memory) {
        s->all[route->layer] /= 2;
        for (uint32_t e = 0; e < s->n_experts; e++)
            uses[e] /= 2;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(s->rows + ((size_t)route->layer * ROWS + r) * s->top_k, route->ids + (size_t)r * s->top_k,
               s->top_k * sizeof *s->rows);
    s->seen[route->layer] = (struct seen){s->pass, route->n_rows};
    if (route->layer + s->ahead >= s->n_layers)
        for (uint32_t r = 0; r < route->n_rows; r++)
            last_row_set(&s->last, route->layer, sequence_of(route, r), route->ids + (size_t)r * s->top_k);
}

static uint32_t predict(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max)
{
    struct markov *s = self;
    struct guesses g = {out, 0, max};
    (void)budget_bytes;
    (void)deadline_ns;
    if (layer >= s->n_layers || s->seen[layer].pass != s->pass)
        return 0;
    const uint32_t n_rows = s->seen[layer].n < LOOKED_AT ? s->seen[layer].n : LOOKED_AT;
    for (uint32_t d = 1; d <= s->ahead; d++) {
        float curve[BINS];
        calibration_curve(&s->calibration[d - 1], curve);
        for (uint32_t r = 0; r < n_rows; r++) {
            scores(s, layer, d, s->rows + ((size_t)layer * ROWS + r) * s->top_k);
            for (uint32_t j = 0; j < s->n_experts; j++) {
                const float chance = curve_at(curve, place_of(s->score[j]));
                if (chance >= s->least)
                    guess_add(&g, (layer + d) % s->n_layers, j, chance);
            }
        }
    }
    return g.n;
}

static const struct colibri_predictor predictor = {
    .struct_size = sizeof predictor,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "markov",
    .summary = "learns which experts follow which from one layer to the next",
    .source = "Joseph and Grunwald, ISCA 1997; pairs of experts: arXiv:2401.14361",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .predict = predict,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_PREDICTOR) ? &predictor : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_predictor_markov, NULL, get, .id = "colibri.predictor.markov",
                      .kinds = COLIBRI_KIND_PREDICTOR, .version = "1.0.0", .license = "MIT",
                      .summary = "Predictor: which experts follow which from one layer to the next");
