/* Slots of a replay, split over pools as the planner does (core/plan/slots.c). */
#include <stdlib.h>

#include "replay/replay_internal.h"

#define SLOT_PAGE 4096u

/* Layers whose experts take slots of one size form a class. */
static uint32_t classes_of(const clb_trace_info *info, uint32_t *class_of)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < info->n_layers; l++) {
        const uint64_t pages = (info->expert_bytes[l] + SLOT_PAGE - 1) / SLOT_PAGE;
        uint32_t m = 0;
        while (m < l && (info->expert_bytes[m] + SLOT_PAGE - 1) / SLOT_PAGE != pages)
            m++;
        class_of[l] = m < l ? class_of[m] : n++;
    }
    return n;
}

static void split(uint32_t total, uint32_t n, const uint32_t *members, const uint32_t *step, uint32_t *slots)
{
    uint64_t all = 0, given = 0;
    for (uint32_t i = 0; i < n; i++)
        all += members[i];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t s = (uint64_t)total * members[i] / all / step[i] * step[i];
        s = s < step[i] ? step[i] : s > members[i] ? members[i] : s;
        slots[i] = (uint32_t)s;
        given += s;
    }
    while (given > total) { /* the floor of one step each: taken from the class that has most */
        uint32_t most = 0;
        for (uint32_t i = 1; i < n; i++)
            if (slots[i] - step[i] > slots[most] - step[most])
                most = i;
        slots[most] -= step[most];
        given -= step[most];
    }
    for (uint32_t i = 0; i < n; i++)
        while (slots[i] < members[i] && given + step[i] <= total) {
            slots[i] += step[i];
            given += step[i];
        }
}

int clb_replay_pools_make(const clb_trace_info *info, uint32_t n_slots, bool layer_pools, struct clb_replay_pools *out,
                          clb_error *err)
{
    const uint32_t n_layers = info->n_layers;
    uint32_t *const class_of = calloc(n_layers, sizeof *class_of);
    uint32_t *const layers = calloc((size_t)n_layers * 4, sizeof *layers);
    out->of = calloc(n_layers, sizeof *out->of);
    out->slots = calloc(n_layers, sizeof *out->slots);
    if (!class_of || !layers || !out->of || !out->slots) {
        free(class_of);
        free(layers);
        return CLB_NOMEM(err, "replaying");
    }
    uint32_t *const members = layers + n_layers, *const step = members + n_layers, *const slots = step + n_layers;
    const uint32_t n = classes_of(info, class_of);
    for (uint32_t l = 0; l < n_layers; l++)
        layers[class_of[l]]++;
    for (uint32_t i = 0; i < n; i++) {
        members[i] = layers[i] * info->n_experts;
        step[i] = layer_pools ? layers[i] : 1;
    }
    split(n_slots, n, members, step, slots);
    for (uint32_t l = 0; l < n_layers; l++) {
        out->of[l] = layer_pools ? l : class_of[l];
        out->slots[out->of[l]] = layer_pools ? slots[class_of[l]] / layers[class_of[l]] : slots[class_of[l]];
    }
    out->n = layer_pools ? n_layers : n;
    free(class_of);
    free(layers);
    return COLIBRI_OK;
}

uint32_t clb_replay_least_slots(const clb_trace_info *info, bool layer_pools)
{
    if (layer_pools)
        return info->n_layers;
    uint32_t n = 0;
    for (uint32_t l = 0; l < info->n_layers; l++) {
        uint32_t m = 0;
        while (m < l && (info->expert_bytes[m] + SLOT_PAGE - 1) / SLOT_PAGE !=
                            (info->expert_bytes[l] + SLOT_PAGE - 1) / SLOT_PAGE)
            m++;
        n += m == l;
    }
    return n;
}
