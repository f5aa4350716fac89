/* Predictor: which experts will be needed soon. Its own plugin slot, so that policy x predictor is a grid.
 * Same threading rules as expert_policy.h. Unlike a policy it sees the whole model: layers are numbered from 0 over all MoE
 * layers, whatever pools they are in. What it says decides speed, never tokens; the host drops guesses that are resident or
 * on their way, and reads the others, best first, as far as its budget goes. */
#ifndef COLIBRI_PREDICTOR_H
#define COLIBRI_PREDICTOR_H

#include "colibri/expert_policy.h"

struct colibri_prediction {
    uint32_t layer, expert; /* layer <= the routed one: of the next pass */
    float confidence; /* 0..1 */
    uint32_t tier;    /* 0: full precision */
};

/* What became of a guess that was read. */
enum colibri_prediction_result {
    COLIBRI_PREDICTION_USEFUL = 0,   /* was there when it was needed */
    COLIBRI_PREDICTION_LATE = 1,     /* was needed while it was being read */
    COLIBRI_PREDICTION_WASTED = 2,   /* left unused, or its layer went by without it */
    COLIBRI_PREDICTION_CANCELLED = 3 /* was never read: demand took the drive */
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
    /* After layer `layer` was routed (on_route came before): best guesses for later layers, best first, at most `max`;
     * returns their number. budget_bytes: what the host would read at most; deadline_ns: about how long until the next
     * layer is routed, 0 if unknown. */
    uint32_t (*predict)(void *self, uint32_t layer, uint64_t budget_bytes, uint64_t deadline_ns,
                        struct colibri_prediction *out, uint32_t max);
    void (*on_result)(void *self, uint32_t layer, uint32_t expert, uint32_t result); /* colibri_prediction_result */
    uint32_t ahead; /* layers whose routers the host should ask ahead (colibri_route.ahead_logits): 0, 1 or 2 */
    /* Bytes that an instance takes, for the memory plan, as in colibri_expert_policy. config->host is NULL. */
    uint64_t (*state_bytes)(const struct colibri_policy_config *config);
};

#endif
