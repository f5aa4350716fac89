/* Expert slots: how many of each size. */
#include <stdlib.h>

#include "plan/internal.h"

bool clb_plan_in_place(const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset)
{
    return (m->format->layout == COLIBRI_LAYOUT_ROWS || t->packed) && (t->offset + offset) % 16 == 0;
}

uint64_t clb_plan_file_bytes(const clb_matrix *m, const clb_gguf_tensor *t)
{
    return t->packed ? m->bytes : clb_sat_mul(m->row_bytes, m->n_rows);
}

/* As the store decides which layers it uses in the mapping. */
static bool layer_in_place(const clb_expert_layer *layer)
{
    for (int p = 0; p < CLB_PARTS; p++) {
        const clb_expert_source *s = &layer->source[p];
        const uint64_t align = s->tensors[0]->packed ? 64 : 16;
        if (s->per_expert || s->stride % align || (s->tensors[0]->offset + s->offset) % align ||
            !clb_plan_in_place(&layer->part[p], s->tensors[0], s->offset))
            return false;
    }
    return true;
}

int clb_slot_classes_make(const clb_plan_input *in, clb_slot_classes *c, clb_error *err)
{
    const clb_model *model = in->model;
    const uint32_t n_layers = model->n_moe_layers, n_experts = model->hp.n_experts, top_k = model->hp.top_k;
    *c = (clb_slot_classes){0};
    uint32_t *class_of = calloc(n_layers, sizeof *class_of);
    uint32_t *layers = calloc(n_layers, sizeof *layers); /* per class */
    c->members = calloc(n_layers, sizeof *c->members);
    c->step = calloc(n_layers, sizeof *c->step);
    c->least = calloc(n_layers, sizeof *c->least);
    c->slot_bytes = calloc(n_layers, sizeof *c->slot_bytes);
    c->slack = calloc(n_layers, sizeof *c->slack);
    int rc = COLIBRI_OK;
    if (!class_of || !layers || !c->members || !c->step || !c->least || !c->slot_bytes || !c->slack)
        CLB_GO(CLB_NOMEM(err, "planning"));
    c->n = clb_store_classes(model->expert_layers, n_layers, class_of, c->slot_bytes);
    for (uint32_t l = 0; l < n_layers; l++) { /* packed and unpacked layers may be of one size */
        const uint64_t slack = clb_store_stream_slack(&model->expert_layers[l]);
        c->slack[class_of[l]] = slack > c->slack[class_of[l]] ? slack : c->slack[class_of[l]];
    }
    for (uint32_t l = 0; l < n_layers; l++)
        if (in->mapped && layer_in_place(&model->expert_layers[l])) {
            c->n_mapped += n_experts;
            for (int p = 0; p < CLB_PARTS; p++)
                c->mapped_bytes =
                    clb_sat_add(c->mapped_bytes, clb_sat_mul(n_experts, model->expert_layers[l].part[p].bytes));
        } else {
            layers[class_of[l]]++;
        }
    for (uint32_t i = 0; i < c->n; i++) {
        c->members[i] = layers[i] * n_experts;
        c->step[i] = in->layer_pools && layers[i] ? layers[i] : 1;
        const uint32_t least = (top_k < n_experts ? top_k : n_experts) * c->step[i];
        c->least[i] = least < c->members[i] ? least : c->members[i];
    }
done:
    free(class_of);
    free(layers);
    return rc;
}

void clb_slot_classes_free(clb_slot_classes *c)
{
    free(c->members);
    free(c->step);
    free(c->least);
    free(c->slot_bytes);
    free(c->slack);
    *c = (clb_slot_classes){0};
}

uint64_t clb_slot_classes_bytes(const clb_slot_classes *c, const uint32_t *slots)
{
    bool all = true;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n; i++)
        all = all && slots[i] == c->members[i];
    for (uint32_t i = 0; i < c->n; i++)
        sum = clb_sat_add(sum, clb_sat_mul(slots[i], c->slot_bytes[i] + (all ? 0 : c->slack[i])));
    return sum;
}

bool clb_slots_fit(const clb_slot_classes *c, uint64_t room, uint32_t *slots)
{
    const uint64_t resident = clb_slot_classes_bytes(c, c->members);
    uint64_t streamed = 0;
    for (uint32_t i = 0; i < c->n; i++)
        streamed = clb_sat_add(streamed, clb_sat_mul(c->members[i], c->slot_bytes[i] + c->slack[i]));
    const double share = resident && room < resident ? (double)room / (double)streamed : 1.0;
    for (uint32_t i = 0; i < c->n; i++) {
        slots[i] = (uint32_t)(share * c->members[i] / c->step[i]) * c->step[i];
        slots[i] = slots[i] < c->least[i] ? c->least[i] : slots[i];
    }
    uint64_t used = clb_slot_classes_bytes(c, slots);
    for (uint32_t i = 0; i < c->n && used > room; i++) /* the least may have pushed the sum over: give back above it */
        while (used > room && slots[i] > c->least[i]) {
            slots[i] -= c->step[i];
            used = clb_slot_classes_bytes(c, slots);
        }
    for (uint32_t i = 0; i < c->n && used <= room; i++) { /* what rounding down left */
        if (slots[i] == c->members[i])
            continue;
        slots[i] += c->step[i];
        const uint64_t more = clb_slot_classes_bytes(c, slots);
        if (more <= room)
            used = more;
        else
            slots[i] -= c->step[i];
    }
    return used <= room;
}

int clb_slots_split(const clb_slot_classes *c, uint32_t total, uint32_t *slots, clb_error *err)
{
    uint64_t members = 0, given = 0, least = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        members += c->members[i];
        least += c->members[i] ? c->step[i] : 0;
    }
    if (!members)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--expert-slots %u: the experts are used in place in the file, no slots "
                        "are needed (--store-mode read copies them)",
                        total);
    if (total < least)
        return clb_fail(err, COLIBRI_E_USAGE, "--expert-slots %u: at least %llu, one for each %s", total,
                        (unsigned long long)least, least > c->n ? "layer" : "size of experts");
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t s = (uint64_t)total * c->members[i] / members / c->step[i] * c->step[i];
        s = s < c->step[i] && c->members[i] ? c->step[i] : s > c->members[i] ? c->members[i] : s;
        slots[i] = (uint32_t)s;
        given += s;
    }
    while (given > total) { /* the floor of one step each: taken from the class that has most */
        uint32_t most = 0;
        for (uint32_t i = 1; i < c->n; i++)
            if (slots[i] - (slots[i] ? c->step[i] : 0) > slots[most] - (slots[most] ? c->step[most] : 0))
                most = i;
        slots[most] -= c->step[most];
        given -= c->step[most];
    }
    for (uint32_t i = 0; i < c->n; i++)
        while (slots[i] < c->members[i] && given + c->step[i] <= total) {
            slots[i] += c->step[i];
            given += c->step[i];
        }
    return COLIBRI_OK;
}
