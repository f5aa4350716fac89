/* next-gate: the next layer's router, asked early. The hidden state changes little from one layer to the next, so the
 * router of the next layer (or of the one after it), applied to the state that is there now, chooses mostly what it
 * will choose later. The host computes the logits; this turns them into guesses.
 *
 * Source: Eliseev and Mazur, "Fast Inference of Mixture-of-Experts Language Models with Offloading", arXiv:2312.17238,
 * section 3.2.
 *
 * The confidence comes from the distance between an expert's logit and that of the last one that would be chosen: how
 * often experts at such a distance were chosen in the end is counted, for each layer and each number of layers ahead.
 * Rows: an expert is worth what the row says that wants it most. */
#include <math.h>

#include "common.h"

enum { MOST_AHEAD = 2, ROWS = 8 };

static const struct colibri_param params[] = {
    {"layers", 1, MOST_AHEAD, 2, 1, "how many layers ahead to guess, as far as the host asks their routers"},
    {"top", 0, 64, 0, 1, "experts guessed per row and layer, 0: as many as a layer chooses"},
    {"confidence", 0, 1, 0.6, 0, "chance of coming true that a guess needs to be said"},
};

struct next_gate {
    uint32_t n_layers, n_experts, top_k, layers, top;
    float least; /* confidence */
    uint64_t pass;
    struct guessed {
        uint64_t pass; /* in which the layer comes; 0: nothing guessed */
        uint32_t n_rows;
    } * guessed;   /* [n_layers][MOST_AHEAD] */
    float *margin; /* [n_layers][MOST_AHEAD][ROWS][n_experts]: logit above that of the last one chosen */
    struct calibration *calibration; /* [n_layers][MOST_AHEAD] */
    float *sorted;                   /* scratch [top_k] */
};

static void reset(void *self)
{
    struct next_gate *s = self;
    s->pass = 1;
    memset(s->guessed, 0, (size_t)s->n_layers * MOST_AHEAD * sizeof *s->guessed);
    for (size_t i = 0; i < (size_t)s->n_layers * MOST_AHEAD; i++) {
        calibration_reset(&s->calibration[i], 0.1f);
        for (uint32_t b = BINS / 2; b < BINS; b++) /* what it would choose now */
            s->calibration[i].rate[b] = 0.7f;
    }
}

static void destroy(void *self)
{
    struct next_gate *s = self;
    free(s->guessed);
    free(s->margin);
    free(s->calibration);
    free(s->sorted);
    free(s);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    struct next_gate *s = calloc(1, sizeof *s);
    const size_t n = (size_t)config->n_layers * MOST_AHEAD;
    if (s) {
        s->n_layers = config->n_layers;
        s->n_experts = config->n_experts;
        s->top_k = config->top_k;
        s->layers = (uint32_t)param_value(config, params, 0);
        s->top = (uint32_t)param_value(config, params, 1);
        s->least = (float)param_value(config, params, 2);
        if (!s->top)
            s->top = s->top_k;
        s->guessed = malloc(n * sizeof *s->guessed);
        s->margin = malloc(n * ROWS * config->n_experts * sizeof *s->margin);
        s->calibration = malloc(n * sizeof *s->calibration);
        s->sorted = malloc((size_t)config->top_k * sizeof *s->sorted);
    }
    if (!s || !s->n_layers || !s->top_k || s->top_k > s->n_experts || !s->guessed || !s->margin || !s->calibration ||
        !s->sorted) {
        if (s)
            destroy(s);
        snprintf(why, why_size, "no memory for %u layers of %u experts", config->n_layers, config->n_experts);
        return NULL;
    }
    reset(s);
    return s;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct next_gate *s = self;
    (void)step;
    s->pass++;
}

/* Place of a margin on the scale of the calibration: about -4 ... 4. The last one chosen, 0, is the middle of a bin. */
static float place_of(float margin)
{
    return margin * (BINS / 8.0f) + BINS / 2 + 0.5f;
}

static float *margins(const struct next_gate *s, uint32_t layer, uint32_t d, uint32_t row)
{
    return s->margin + (((size_t)layer * MOST_AHEAD + d - 1) * ROWS + row) * s->n_experts;
}

/* The top_k-th largest. A replay knows the best few only, the others are -INFINITY. False: fewer than top_k are known.
 */
static int kth(const struct next_gate *s, const float *logits, float *out)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < s->n_experts; e++) {
        if (isnan(logits[e]))
            return 0;
        if (n == s->top_k && logits[e] <= s->sorted[n - 1])
            continue;
        uint32_t at = n < s->top_k ? n++ : n - 1;
        for (; at && s->sorted[at - 1] < logits[e]; at--)
            s->sorted[at] = s->sorted[at - 1];
        s->sorted[at] = logits[e];
    }
    *out = s->sorted[s->top_k - 1];
    return isfinite(*out) && isfinite(s->sorted[0]);
}

static void judge(struct next_gate *s, const struct colibri_route *route)
{
    for (uint32_t d = 1; d <= s->layers; d++) {
        struct guessed *g = &s->guessed[(size_t)route->layer * MOST_AHEAD + d - 1];
        if (g->pass != s->pass || g->n_rows != route->n_rows)
            continue;
        g->pass = 0;
        struct calibration *c = &s->calibration[(size_t)route->layer * MOST_AHEAD + d - 1];
        for (uint32_t r = 0; r < route->n_rows && r < ROWS; r++) {
            const float *margin = margins(s, route->layer, d, r);
            for (uint32_t e = 0; e < s->n_experts; e++) {
                int chosen = 0;
                if (!isfinite(margin[e]))
                    continue;
                for (uint32_t k = 0; k < s->top_k; k++)
                    chosen |= route->ids[(size_t)r * s->top_k + k] == e;
                calibration_add(c, bin_at(place_of(margin[e])), chosen);
            }
        }
    }
}

static void on_route(void *self, const struct colibri_route *route)
{
    struct next_gate *s = self;
    if (!route_fits(route, s->n_layers, s->n_experts, s->top_k))
        return;
    judge(s, route);
    const uint32_t known = COLIBRI_HAS(route, ahead_logits) && route->ahead_logits ? route->n_ahead : 0;
    for (uint32_t d = 1; d <= s->layers && d <= known && route->layer + d < s->n_layers; d++) {
        const uint32_t to = route->layer + d;
        uint32_t n = 0;
        for (; n < route->n_rows && n < ROWS; n++) {
            const float *logits = route->ahead_logits[d - 1] + (size_t)n * s->n_experts;
            float *margin = margins(s, to, d, n), last;
            if (!kth(s, logits, &last))
                break;
            for (uint32_t e = 0; e < s->n_experts; e++)
                margin[e] = logits[e] - last;
        }
        const int all = n == (route->n_rows < ROWS ? route->n_rows : ROWS);
        s->guessed[(size_t)to * MOST_AHEAD + d - 1] = (struct guessed){all ? s->pass : 0, route->n_rows};
    }
}

/* The best `top` of a row that are not there yet; the margins of the row decide. */
static void guess_row(const struct next_gate *s, struct guesses *g, uint32_t to, uint32_t d, uint32_t row)
{
    const float *margin = margins(s, to, d, row);
    float curve[BINS];
    calibration_curve(&s->calibration[(size_t)to * MOST_AHEAD + d - 1], curve);
    float bound = INFINITY;
    uint32_t after = 0; /* experts of equal margin: lower number first */
    for (uint32_t i = 0; i < s->top && i < s->n_experts; i++) {
        uint32_t best = s->n_experts;
        for (uint32_t e = 0; e < s->n_experts; e++)
            if (isfinite(margin[e]) && (margin[e] < bound || (margin[e] <= bound && e >= after)) &&
                (best == s->n_experts || margin[e] > margin[best]))
                best = e;
        if (best == s->n_experts)
            return;
        bound = margin[best];
        after = best + 1;
        const float chance = curve_at(curve, place_of(margin[best]));
        if (chance < s->least)
            return;
        guess_add(g, to, best, chance);
    }
}

static uint32_t predict(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max)
{
    struct next_gate *s = self;
    struct guesses g = {out, 0, max};
    (void)budget_bytes;
    (void)deadline_ns;
    for (uint32_t d = 1; d <= s->layers && layer + d < s->n_layers; d++) {
        const struct guessed *guessed = &s->guessed[(size_t)(layer + d) * MOST_AHEAD + d - 1];
        if (guessed->pass != s->pass)
            continue;
        for (uint32_t r = 0; r < guessed->n_rows && r < ROWS; r++)
            guess_row(s, &g, layer + d, d, r);
    }
    return g.n;
}

static const struct colibri_predictor predictor = {
    .struct_size = sizeof predictor,
    .flags = COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC,
    .name = "next-gate",
    .summary = "asks the next layers' routers early",
    .source = "Eliseev and Mazur, arXiv:2312.17238",
    .params = params,
    .n_params = sizeof params / sizeof params[0],
    .create = create,
    .destroy = destroy,
    .reset = reset,
    .on_step = on_step,
    .on_route = on_route,
    .predict = predict,
    .ahead = MOST_AHEAD,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_PREDICTOR) ? &predictor : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_predictor_next_gate, NULL, get, .id = "colibri.predictor.next-gate",
                      .kinds = COLIBRI_KIND_PREDICTOR, .version = "1.0.0", .license = "MIT",
                      .summary = "Predictor: asks the next layers' routers early");
