#include "plan/plan.h"

#include <stdlib.h>

#include "model/forward.h"
#include "plan/internal.h"
#include "plan/memory.h"

#define DEFAULT_SHARE 80u
/* Allocator overhead, thread stacks, page tables: what no table of ours counts. */
#define SLACK_BYTES        (12u << 20)
#define STAGING_PER_WORKER (2u << 20)
#define BASE_STEP          (UINT64_C(1) << 20)
/* Fewer than two slots would have every layer wait for its own reads. */
#define LEAST_STREAM_SLOTS 2u

uint64_t clb_plan_base(uint64_t resident)
{
    return clb_sat_add(resident, SLACK_BYTES + BASE_STEP - 1) / BASE_STEP * BASE_STEP;
}

uint64_t clb_plan_kv_bytes(const clb_plan_input *in, uint64_t positions)
{
    return clb_sat_add(clb_sat_mul(clb_kv_sequence_bytes(&in->kv, positions, in->max_rows), in->n_sequences),
                       in->kv_shared_bytes);
}

uint64_t clb_plan_kv_strategy_bytes(const clb_plan_input *in, uint64_t positions)
{
    clb_kv_demand d = in->kv_demand;
    if (positions < in->kv_positions) { /* shorter heads; what an instance said stays */
        d.most = d.most < positions ? d.most : (uint32_t)positions;
        if (!d.traits.own_budgets)
            d.longest = d.most;
    }
    const uint64_t n = in->n_sequences;
    const uint64_t pages = clb_sat_add(clb_sat_mul(clb_kv_bytes(&in->kv, positions), n), in->kv_shared_bytes);
    const uint64_t copies = clb_sat_mul(clb_kv_recent_bytes(&in->kv, positions, in->max_rows), n);
    return clb_sat_add(clb_sat_mul(clb_kv_strategy_bytes(&in->kv, &d), n),
                       clb_kv_common_bytes(&in->kv, &d, pages, copies, in->kv_shares));
}

uint64_t clb_plan_buffer_bytes(const clb_plan_input *in, uint32_t max_rows)
{
    const clb_hparams *hp = &in->model->hp;
    const clb_model_sizes sizes = clb_model_get_sizes(in->model);
    const uint64_t work = clb_sat_mul(in->n_workers, sizes.kernel_scratch);
    const uint64_t logits = clb_sat_mul(in->n_sequences, (uint64_t)hp->n_vocab * sizeof(float));
    const uint32_t n_kv = in->kv_positions > in->kv_demand.longest ? in->kv_positions : in->kv_demand.longest;
    uint64_t sum = clb_sat_add(clb_forward_bytes(hp, max_rows, n_kv, in->n_workers), work);
    if (in->aside_rows)
        sum = clb_sat_add(sum, clb_sat_add(clb_forward_bytes(hp, in->aside_rows, n_kv, in->n_workers), work));
    return clb_sat_add(clb_sat_add(sum, logits), in->policy_bytes);
}

/* ---- the dense part --------------------------------------------------------------------------------------- */

struct dense {
    uint64_t bytes;      /* of the matrices, that are copied */
    uint64_t in_place;   /* of those that are used in the file */
    uint64_t file_bytes; /* of their rows */
};

static struct dense layer_dense(const clb_layer *l, bool mapped)
{
    const clb_weight *const weights[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->router};
    struct dense d = {0};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const clb_weight *w = weights[i];
        if (!w->tensor)
            continue;
        if (mapped && clb_plan_in_place(&w->m, w->tensor, w->offset)) {
            d.in_place = clb_sat_add(d.in_place, w->m.bytes);
            continue;
        }
        d.bytes = clb_sat_add(d.bytes, w->m.bytes);
        d.file_bytes = clb_sat_add(d.file_bytes, clb_plan_file_bytes(&w->m, w->tensor));
    }
    return d;
}

uint64_t clb_plan_layer_bytes(const clb_model *model, uint32_t layer)
{
    const clb_layer *l = &model->layers[layer];
    const clb_weight *const weights[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->router};
    const clb_matrix *matrices[sizeof weights / sizeof *weights];
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (weights[i]->tensor)
            matrices[n++] = &weights[i]->m;
    return clb_store_layer_room(matrices, n);
}

static void mapped_embeddings(const clb_model *model, clb_plan *p)
{
    const clb_weight *const tops[] = {&model->token_embd, &model->output};
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++)
        if (tops[i]->tensor && clb_plan_in_place(&tops[i]->m, tops[i]->tensor, tops[i]->offset)) {
            p->embedding_bytes -= tops[i]->m.bytes;
            p->mapped_bytes = clb_sat_add(p->mapped_bytes, tops[i]->m.bytes);
        }
}

/* All that does not depend on how much stays; dense_bytes of all layers. */
static void fixed_parts(const clb_plan_input *in, uint64_t resident, clb_plan *p)
{
    const clb_model *model = in->model;
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    p->resident = resident;
    p->base_bytes = clb_plan_base(resident);
    p->embedding_bytes = sizes.embedding_bytes;
    p->dense_bytes = sizes.dense_bytes;
    p->kv_bytes = clb_plan_kv_bytes(in, in->kv_positions);
    p->kv_strategy_bytes = clb_plan_kv_strategy_bytes(in, in->kv_positions);
    p->buffer_bytes = clb_plan_buffer_bytes(in, in->max_rows);
    p->lora_bytes = in->lora_bytes;
    const uint64_t staging = sizes.widest_group > STAGING_PER_WORKER ? sizes.widest_group : STAGING_PER_WORKER;
    p->staging_bytes = clb_sat_mul(in->n_workers, staging);
    p->n_layers = p->resident_layers = model->hp.n_layers;
    if (!in->mapped)
        return;
    mapped_embeddings(model, p);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const struct dense d = layer_dense(&model->layers[l], true);
        p->dense_bytes -= d.in_place;
        p->mapped_bytes = clb_sat_add(p->mapped_bytes, d.in_place);
    }
}

/* One layer more is streamed through `slots` slots; `all` has every layer resident. */
static void stream_one_more(const clb_plan_input *in, const clb_plan *all, uint32_t slots, clb_plan *p)
{
    const uint32_t resident = p->resident_layers - 1, n = p->n_layers - resident;
    *p = *all;
    p->resident_layers = resident;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!clb_model_streams(l, p->n_layers, n))
            continue;
        const struct dense d = layer_dense(&in->model->layers[l], false);
        const uint64_t slot = clb_plan_layer_bytes(in->model, l);
        p->dense_bytes -= d.bytes;
        p->streamed_file_bytes = clb_sat_add(p->streamed_file_bytes, d.file_bytes);
        p->layer_slot_bytes = slot > p->layer_slot_bytes ? slot : p->layer_slot_bytes;
    }
    p->n_stream_slots = slots < n ? slots : n;
    p->stream_bytes = clb_sat_mul(p->n_stream_slots, p->layer_slot_bytes);
}

static uint64_t without_slots(const clb_plan *p)
{
    const uint64_t parts[] = {p->base_bytes,        p->embedding_bytes, p->dense_bytes,   p->kv_bytes,
                              p->kv_strategy_bytes, p->buffer_bytes,    p->staging_bytes, p->stream_bytes,
                              p->lora_bytes};
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sum = clb_sat_add(sum, parts[i]);
    return sum;
}

/* ---- deciding --------------------------------------------------------------------------------------------- */

static uint32_t read_ahead_slots(const clb_plan_input *in)
{
    const uint32_t depth = in->prefetch_depth ? in->prefetch_depth : 1;
    return depth < UINT32_MAX ? depth + 1 : depth;
}

/* The most layers that stay beside `least` bytes of expert slots; with fewer streaming slots if nothing else helps. If
 * nothing fits: false, and the smallest there is. */
static bool choose_layers(const clb_plan_input *in, const clb_plan *all, uint64_t least, clb_plan *out)
{
    clb_plan smallest = *all;
    *out = *all;
    if (clb_sat_add(without_slots(all), least) <= all->budget)
        return true;
    const uint32_t most = read_ahead_slots(in);
    for (uint32_t slots = most; slots && !in->mapped; slots = slots > LEAST_STREAM_SLOTS ? LEAST_STREAM_SLOTS : 0) {
        *out = *all;
        while (out->resident_layers) {
            stream_one_more(in, all, slots, out);
            if (clb_sat_add(without_slots(out), least) <= all->budget)
                return true;
            if (without_slots(out) < without_slots(&smallest))
                smallest = *out;
        }
    }
    *out = smallest;
    return false;
}

static int check_layers(const clb_plan_input *in, clb_error *err)
{
    if (in->resident_layers > in->model->hp.n_layers)
        return clb_fail(err, COLIBRI_E_USAGE, "--resident-layers %u: the model has %u layers", in->resident_layers,
                        in->model->hp.n_layers);
    if (in->resident_layers && in->mapped)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--resident-layers does not apply with --store-mode mmap: there the kernel decides what stays");
    return COLIBRI_OK;
}

static void take_slots(const clb_slot_classes *c, const uint32_t *slots, clb_plan *p)
{
    p->n_classes = c->n;
    p->n_slots = 0;
    p->n_experts = c->n_mapped;
    uint32_t members = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        p->n_slots += slots[i];
        members += c->members[i];
    }
    p->n_experts += members;
    p->slot_bytes = clb_slot_classes_bytes(c, slots);
    p->all_experts = p->n_experts && p->n_slots == members;
    p->total_bytes = clb_sat_add(without_slots(p), p->slot_bytes);
}

/* Layers and slots into *out, or the refusal. slots: [c->n]; c->n may be 0. */
static int decide(const clb_plan_input *in, const clb_slot_classes *c, const clb_plan *all, uint64_t resident,
                  uint32_t *slots, clb_plan *out, clb_error *err)
{
    if (in->expert_slots && c->n)
        CLB_TRY(clb_slots_split(c, in->expert_slots, slots, err));
    else
        clb_slots_fit(c, 0, slots); /* the least */
    const uint64_t least = clb_slot_classes_bytes(c, slots);
    bool fits;
    if (in->resident_layers) {
        *out = *all;
        while (out->resident_layers > in->resident_layers)
            stream_one_more(in, all, read_ahead_slots(in), out);
        fits = clb_sat_add(without_slots(out), least) <= out->budget;
    } else {
        fits = choose_layers(in, all, least, out);
    }
    if (fits && !in->expert_slots)
        clb_slots_fit(c, out->budget - without_slots(out), slots);
    take_slots(c, slots, out);
    return fits ? COLIBRI_OK : clb_plan_refuse(in, out, all, resident, err);
}

static void set_budget(const clb_plan_input *in, uint64_t resident, clb_plan *p)
{
    const clb_memory_limits limits = clb_memory_limits_read();
    p->available = clb_sat_add(limits.room[CLB_LIMIT_MACHINE], resident);
    if (!in->budget) {
        p->share = in->share ? in->share : DEFAULT_SHARE;
        p->budget = (uint64_t)((double)limits.room[clb_memory_tightest(&limits)] / 100 * p->share);
        p->budget = clb_sat_add(p->budget, resident);
        p->budget_is_default = true;
        return;
    }
    /* A process that goes beyond a cgroup's or its own limit is killed or gets no memory, whatever the user allows it.
     * What the machine has free is another matter: it may swap, and other programs may be about to end. */
    p->budget =
        in->budget < UINT64_MAX ? in->budget : UINT64_MAX - 1; /* a sum that reached the largest value fits nothing */
    for (int i = CLB_LIMIT_CGROUP; i < CLB_LIMITS; i++) {
        const uint64_t most = clb_sat_add(limits.room[i], resident);
        if (most < p->budget) {
            p->budget = most;
            p->limited_by = (enum clb_memory_limit)i;
        }
    }
}

static int make(const clb_plan_input *in, clb_plan *out, clb_error *err)
{
    const uint64_t resident = in->resident ? in->resident : clb_memory_resident();
    clb_slot_classes c = {0};
    clb_plan all = {0};
    uint32_t *slots = NULL;
    int rc = COLIBRI_OK;
    *out = (clb_plan){0};
    CLB_TRY(check_layers(in, err));
    set_budget(in, resident, &all);
    fixed_parts(in, resident, &all);
    if (in->model->n_moe_layers)
        CLB_GO(clb_slot_classes_make(in, &c, err));
    all.mapped_bytes = clb_sat_add(all.mapped_bytes, c.mapped_bytes);
    slots = calloc(c.n + 1, sizeof *slots);
    if (!slots)
        CLB_GO(CLB_NOMEM(err, "planning"));
    CLB_GO(decide(in, &c, &all, resident, slots, out, err));
    if (c.n) {
        out->class_slots = slots;
        slots = NULL;
    }
done:
    free(slots);
    clb_slot_classes_free(&c);
    if (rc)
        *out = (clb_plan){0};
    return rc;
}

int clb_plan_make(const clb_plan_input *in, clb_plan *out, clb_error *err)
{
    if (in->aside_rows) {
        if (!make(in, out, err) && out->resident_layers == out->n_layers && (out->all_experts || !out->n_experts)) {
            out->aside_rows = in->aside_rows;
            return COLIBRI_OK;
        }
        clb_plan_free(out);
    }
    clb_plan_input less = *in;
    less.aside_rows = 0;
    return make(&less, out, err);
}

void clb_plan_free(clb_plan *plan)
{
    free(plan->class_slots);
    plan->class_slots = NULL;
}
