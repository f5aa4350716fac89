/* Feeds a predictor as the engine does: one layer after the other, a question after each routing. */
#ifndef TEST_PREDICTOR_HOST_H
#define TEST_PREDICTOR_HOST_H

#include "component.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "colibri/predictor.h"

enum { PR_LAYERS = 3, PR_EXPERTS = 12, PR_TOP_K = 2, PR_MOST_ROWS = 300, PR_MOST = 64 };

typedef struct predictor_host {
    const struct colibri_predictor *predictor;
    void *self;
    uint64_t step;
    struct colibri_prediction out[PR_MOST];
    uint32_t n; /* guesses of the last question */
} predictor_host;

static inline predictor_host pr_open(const struct colibri_predictor *predictor, const double *params,
                                     uint64_t (*next_use)(void *, uint32_t, uint32_t), void *ctx)
{
    static const uint64_t bytes[PR_LAYERS] = {1000, 1000, 1000};
    char why[128] = "";
    const struct colibri_policy_config config = {.struct_size = sizeof config,
                                                 .n_layers = PR_LAYERS,
                                                 .n_experts = PR_EXPERTS,
                                                 .top_k = PR_TOP_K,
                                                 .n_slots = 20,
                                                 .expert_bytes = bytes,
                                                 .seed = 3,
                                                 .params = params,
                                                 .next_use = next_use,
                                                 .next_use_ctx = ctx};
    predictor_host h = {.predictor = predictor, .self = predictor->create(&config, why, sizeof why)};
    if (!h.self)
        fail_msg("%s", why);
    return h;
}

static inline void pr_close(predictor_host *h)
{
    h->predictor->destroy(h->self);
}

static inline void pr_step(predictor_host *h, uint32_t n_rows)
{
    const struct colibri_step step = {sizeof step, n_rows > 1 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, h->step++,
                                      n_rows, 1};
    if (h->predictor->on_step)
        h->predictor->on_step(h->self, &step);
}

/* ids: [n_rows][PR_TOP_K]; ahead: n_ahead pointers to [n_rows][PR_EXPERTS]. */
static inline void pr_layer(predictor_host *h, uint32_t layer, const uint32_t *ids, uint32_t n_rows,
                            const uint32_t *sequences, const float *const *ahead, uint32_t n_ahead, uint32_t max)
{
    static const float gates[PR_MOST_ROWS * PR_TOP_K];
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = n_rows,
                                        .top_k = PR_TOP_K,
                                        .ids = ids,
                                        .gates = gates,
                                        .row_sequence = sequences,
                                        .n_ahead = n_ahead,
                                        .ahead_logits = ahead};
    if (h->predictor->on_route)
        h->predictor->on_route(h->self, &route);
    h->n = h->predictor->predict(h->self, layer, UINT64_MAX, 0, h->out, max);
    assert_true(h->n <= max);
    for (uint32_t i = 0; i < h->n; i++) {
        assert_true(h->out[i].layer < PR_LAYERS && h->out[i].expert < PR_EXPERTS && h->out[i].tier == 0);
        assert_true(h->out[i].confidence >= 0 && h->out[i].confidence <= 1);
        for (uint32_t j = 0; j < i; j++)
            assert_false(h->out[i].layer == h->out[j].layer && h->out[i].expert == h->out[j].expert);
        if (i && h->predictor->flags ^ COLIBRI_POLICY_ORACLE)
            assert_true(h->out[i].confidence <= h->out[i - 1].confidence);
    }
}

/* Confidence of a guess, -1: not guessed. */
static inline double pr_said(const predictor_host *h, uint32_t layer, uint32_t expert)
{
    for (uint32_t i = 0; i < h->n; i++)
        if (h->out[i].layer == layer && h->out[i].expert == expert)
            return (double)h->out[i].confidence;
    return -1;
}

/* Two distinct experts. */
static inline void pr_random_ids(test_rand *rng, uint32_t *ids, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        ids[2 * r] = test_rand_below(rng, PR_EXPERTS);
        ids[2 * r + 1] = (ids[2 * r] + 1 + test_rand_below(rng, PR_EXPERTS - 1)) % PR_EXPERTS;
    }
}

/* How well confidences fit what happens, in tenths. */
typedef struct pr_fit {
    double said[10];
    uint32_t n[10], came_true[10];
} pr_fit;

static inline void pr_fit_add(pr_fit *fit, const predictor_host *h, uint32_t layer, const uint32_t *ids)
{
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->out[i].layer != layer)
            continue;
        const uint32_t bin = h->out[i].confidence < 1 ? (uint32_t)(h->out[i].confidence * 10) : 9;
        fit->said[bin] += (double)h->out[i].confidence;
        fit->n[bin]++;
        fit->came_true[bin] += ids[0] == h->out[i].expert || ids[1] == h->out[i].expert;
    }
}

static inline uint32_t pr_fit_check(const pr_fit *fit)
{
    uint32_t bins = 0;
    for (uint32_t b = 0; b < 10; b++)
        if (fit->n[b] > 400) {
            const double said = fit->said[b] / fit->n[b], was = (double)fit->came_true[b] / fit->n[b];
            if (fabs(said - was) > 0.12)
                fail_msg("guesses of %.2f came true in %.2f of the cases", said, was);
            bins++;
        }
    return bins;
}

#endif
