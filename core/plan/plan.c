#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "model/forward.h"
#include "plan/memory.h"

#define DEFAULT_SHARE 0.8
/* Allocator overhead, thread stacks, page tables: what no table of ours counts. */
#define SLACK_BYTES        (12u << 20)
#define STAGING_PER_WORKER (2u << 20)
/* The process is counted in steps, and an advice leaves some room before the next one: otherwise a few pages more or
 * less would refuse in the next run what was advised in this one. */
#define BASE_STEP    (UINT64_C(1) << 20)
#define ADVICE_NOISE (UINT64_C(512) << 10)
#define CTX_STEP     256u

struct classes {
    uint32_t n;
    uint32_t *members; /* experts per class */
    uint64_t *slot_bytes;
};

static int size_classes(const clb_model *model, struct classes *c, clb_error *err)
{
    const uint32_t n_layers = model->n_moe_layers;
    uint32_t *class_of = calloc(n_layers, sizeof *class_of);
    c->members = calloc(n_layers, sizeof *c->members);
    c->slot_bytes = calloc(n_layers, sizeof *c->slot_bytes);
    if (!class_of || !c->members || !c->slot_bytes) {
        free(class_of);
        return CLB_NOMEM(err, "planning");
    }
    c->n = clb_store_classes(model->expert_layers, n_layers, class_of, c->slot_bytes);
    for (uint32_t l = 0; l < n_layers; l++)
        c->members[class_of[l]] += model->hp.n_experts;
    free(class_of);
    return COLIBRI_OK;
}

/* The most slots, the same share of every class, whose bytes fit; at least `least` per class. False if not even that.
 */
static bool fit_slots(const struct classes *c, uint64_t room, uint32_t least, uint32_t *slots)
{
    uint64_t all = 0, used = 0;
    for (uint32_t i = 0; i < c->n; i++)
        all += c->members[i] * c->slot_bytes[i];
    const double share = all && room < all ? (double)room / (double)all : 1.0;
    for (uint32_t i = 0; i < c->n; i++) {
        slots[i] = (uint32_t)(share * c->members[i]);
        const uint32_t floor = least < c->members[i] ? least : c->members[i];
        slots[i] = slots[i] < floor ? floor : slots[i];
        used += slots[i] * c->slot_bytes[i];
    }
    for (uint32_t i = 0; i < c->n && used > room; i++) /* floors may have pushed the sum over: give back above them */
        while (used > room && slots[i] > (least < c->members[i] ? least : c->members[i])) {
            slots[i]--;
            used -= c->slot_bytes[i];
        }
    return used <= room;
}

static void split_override(const struct classes *c, uint32_t total, uint32_t *slots)
{
    uint64_t members = 0, given = 0;
    for (uint32_t i = 0; i < c->n; i++)
        members += c->members[i];
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t s = (uint64_t)total * c->members[i] / members;
        s = s < 1 ? 1 : s > c->members[i] ? c->members[i] : s;
        slots[i] = (uint32_t)s;
        given += s;
    }
    for (uint32_t i = 0; i < c->n && given < total; i++)
        while (given < total && slots[i] < c->members[i]) {
            slots[i]++;
            given++;
        }
}

static uint64_t base_of(uint64_t resident)
{
    return (resident + SLACK_BYTES + BASE_STEP - 1) / BASE_STEP * BASE_STEP;
}

static uint64_t kv_of(const clb_plan_input *in, uint64_t positions)
{
    return clb_kv_bytes(&in->kv, positions) * in->n_sequences;
}

/* The largest context, in steps, with which `need` comes down to the budget; 0: none. */
static uint64_t smaller_ctx(const clb_plan_input *in, const clb_plan *p, uint64_t need)
{
    if (!in->kv_follows_ctx || need <= p->budget)
        return 0;
    const uint64_t over = need - p->budget, extra = in->kv_positions > in->ctx ? in->kv_positions - in->ctx : 0;
    uint64_t low = 0, high = (in->ctx - 1) / CTX_STEP; /* fits at low, not known above it */
    while (low < high) {
        const uint64_t mid = (low + high + 1) / 2;
        if (kv_of(in, mid * CTX_STEP + extra) + over <= p->kv_bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low * CTX_STEP;
}

static int refuse(const clb_plan_input *in, const clb_plan *p, uint64_t resident, uint64_t need, clb_error *err)
{
    char a[7][24];
    clb_human_bytes(p->embedding_bytes + p->dense_bytes, a[0]);
    clb_human_bytes(p->slot_bytes, a[1]);
    clb_human_bytes(p->kv_bytes, a[2]);
    clb_human_bytes(p->buffer_bytes + p->staging_bytes, a[3]);
    clb_human_bytes(p->base_bytes, a[4]);
    clb_human_bytes(need, a[5]);
    clb_human_bytes(p->budget, a[6]);
    char advice[160];
    const uint64_t safe_need = need - p->base_bytes + base_of(resident + ADVICE_NOISE);
    const uint64_t mib = (safe_need + (1u << 20) - 1) >> 20, ctx = smaller_ctx(in, p, safe_need);
    const int n = snprintf(advice, sizeof advice, "would fit: --max-memory %lluM", (unsigned long long)mib);
    if (ctx)
        snprintf(advice + n, sizeof advice - (size_t)n, ", or --ctx %llu", (unsigned long long)ctx);
    return clb_fail(err, COLIBRI_E_NOMEM,
                    "the model needs at least %s (weights %s, experts %s, KV cache %s, buffers %s, process %s), the "
                    "budget is %s%s; %s",
                    a[5], a[0], a[1], a[2], a[3], a[4], a[6], p->budget_is_default ? " (80 % of what is free)" : "",
                    advice);
}

int clb_plan_make(const clb_plan_input *in, clb_plan *out, clb_error *err)
{
    const clb_model *model = in->model;
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    const uint64_t resident = in->resident ? in->resident : clb_memory_resident();
    *out = (clb_plan){.budget = in->budget};
    if (!out->budget) {
        out->budget = (uint64_t)((double)clb_memory_available() * DEFAULT_SHARE) + resident;
        out->budget_is_default = true;
    }
    out->base_bytes = base_of(resident);
    out->embedding_bytes = sizes.embedding_bytes;
    out->dense_bytes = sizes.dense_bytes;
    out->kv_bytes = kv_of(in, in->kv_positions);
    out->buffer_bytes = clb_forward_bytes(&model->hp, in->max_rows, in->kv_positions, in->n_workers) +
                        in->n_workers * sizes.kernel_scratch +
                        (uint64_t)in->n_sequences * model->hp.n_vocab * sizeof(float);
    const uint64_t staging = sizes.widest_group > STAGING_PER_WORKER ? sizes.widest_group : STAGING_PER_WORKER;
    out->staging_bytes = in->n_workers * staging;
    const uint64_t fixed = out->base_bytes + out->embedding_bytes + out->dense_bytes + out->kv_bytes +
                           out->buffer_bytes + out->staging_bytes;
    struct classes c = {0};
    int rc = COLIBRI_OK;
    bool fits = fixed <= out->budget;
    if (model->n_moe_layers) {
        CLB_GO(size_classes(model, &c, err));
        out->class_slots = calloc(c.n, sizeof *out->class_slots);
        if (!out->class_slots)
            CLB_GO(CLB_NOMEM(err, "planning"));
        out->n_classes = c.n;
        if (in->expert_slots)
            split_override(&c, in->expert_slots, out->class_slots);
        else
            fits = fit_slots(&c, fits ? out->budget - fixed : 0, model->hp.top_k, out->class_slots) && fits;
        for (uint32_t i = 0; i < c.n; i++) {
            out->n_slots += out->class_slots[i];
            out->n_experts += c.members[i];
            out->slot_bytes += out->class_slots[i] * c.slot_bytes[i];
        }
        out->all_experts = out->n_slots == out->n_experts;
    }
    out->total_bytes = fixed + out->slot_bytes;
    if (!fits || out->total_bytes > out->budget)
        rc = refuse(in, out, resident, out->total_bytes, err);
done:
    free(c.members);
    free(c.slot_bytes);
    if (rc)
        clb_plan_free(out);
    return rc;
}

void clb_plan_free(clb_plan *plan)
{
    free(plan->class_slots);
    plan->class_slots = NULL;
}
