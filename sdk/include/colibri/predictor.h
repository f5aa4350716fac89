/* Predictor: which experts will be needed soon. Its own plugin slot, so that policy x predictor is a grid.
 * Same threading rules as expert_policy.h. */
#ifndef COLIBRI_PREDICTOR_H
#define COLIBRI_PREDICTOR_H

#include "colibri/expert_policy.h"

struct colibri_prediction {
    uint32_t layer, expert;
    float confidence; /* 0..1 */
    uint32_t tier;    /* 0: full precision */
};

struct colibri_predictor {
    uint32_t struct_size;
    uint32_t flags;
    const char *name, *summary, *source;
    const struct colibri_param *params;
    uint32_t n_params;
    void *(*create)(const struct colibri_policy_config *config, char *why, size_t why_size);
    void (*destroy)(void *self);
    void (*reset)(void *self);
    void (*on_step)(void *self, const struct colibri_step *step);
    void (*on_route)(void *self, const struct colibri_route *route);
    /* After layer `layer` was routed: best guesses for later layers, at most `max`; returns their number. */
    uint32_t (*predict)(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max);
    void (*on_result)(void *self, uint32_t layer, uint32_t expert, uint32_t useful_late_wasted_cancelled);
};

#endif
