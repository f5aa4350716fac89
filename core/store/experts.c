/* Expert slots: residency, leases, synchronous reads. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

static uint64_t part_room(const clb_matrix *m)
{
    return (m->bytes + 63) & ~UINT64_C(63);
}

static uint64_t layer_slot_bytes(const clb_expert_layer *layer)
{
    uint64_t sum = 0;
    for (int p = 0; p < CLB_PARTS; p++)
        sum += part_room(&layer->part[p]);
    return (sum + CLB_STORE_PAGE - 1) & ~(uint64_t)(CLB_STORE_PAGE - 1);
}

uint32_t clb_store_classes(const clb_expert_layer *layers, uint32_t n_layers, uint32_t *class_of, uint64_t *slot_bytes)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < n_layers; l++) {
        const uint64_t bytes = layer_slot_bytes(&layers[l]);
        uint32_t c = 0;
        while (c < n && slot_bytes[c] != bytes)
            c++;
        if (c == n)
            slot_bytes[n++] = bytes;
        class_of[l] = c;
    }
    return n;
}

/* A layer whose three parts can be used in the mapping needs no slots. */
static void find_mapped(clb_store *store)
{
    clb_experts *x = store->experts;
    for (uint32_t l = 0; l < x->n_layers; l++) {
        const clb_expert_layer *layer = &x->layers[l];
        const uint8_t *base[CLB_PARTS];
        bool all = true;
        for (int p = 0; p < CLB_PARTS; p++) {
            const clb_expert_source *s = &layer->source[p];
            base[p] = layer->part[p].format->layout == COLIBRI_LAYOUT_ROWS && !s->per_expert && s->stride % 16 == 0
                          ? clb_store_mapped(store, s->tensors[0], s->offset, 16)
                          : NULL;
            all = all && base[p];
        }
        for (int p = 0; p < CLB_PARTS; p++)
            x->mapped[l * CLB_PARTS + (uint32_t)p] = all ? base[p] : NULL;
    }
}

static int make_slots(clb_store *store, const clb_expert_pool *pool, clb_error *err)
{
    clb_experts *x = store->experts;
    uint64_t *sizes = calloc(x->n_layers, sizeof *sizes);
    uint32_t *members = calloc(x->n_layers, sizeof *members); /* experts per class that need a slot */
    int rc = sizes && members ? COLIBRI_OK : CLB_NOMEM(err, "expert slots");
    if (rc)
        goto done;
    x->n_classes = clb_store_classes(x->layers, x->n_layers, x->class_of, sizes);
    x->classes = calloc(x->n_classes, sizeof *x->classes);
    if (!x->classes) {
        rc = CLB_NOMEM(err, "expert slots");
        goto done;
    }
    for (uint32_t l = 0; l < x->n_layers; l++)
        if (!x->mapped[l * CLB_PARTS])
            members[x->class_of[l]] += x->n_experts;
    uint64_t total = 0;
    for (uint32_t c = 0; c < x->n_classes; c++) {
        clb_slot_class *k = &x->classes[c];
        k->slot_bytes = sizes[c];
        k->first = x->n_slots;
        k->n = members[c];
        if (pool->class_slots && pool->class_slots[c] < k->n)
            k->n = pool->class_slots[c];
        if (members[c] && k->n == 0) {
            rc = clb_fail(err, COLIBRI_E_NOMEM, "no slot for the experts of size class %u: raise --max-memory", c);
            goto done;
        }
        k->n_free = k->n;
        x->n_slots += k->n;
        total += k->n * k->slot_bytes;
    }
    x->slots = calloc(x->n_slots ? x->n_slots : 1, sizeof *x->slots);
    if (!x->slots) {
        rc = CLB_NOMEM(err, "expert slots");
        goto done;
    }
    if (total) {
        x->arena = clb_store_map(store, total, "the expert slots", err);
        if (!x->arena) {
            rc = err ? err->code : COLIBRI_E_NOMEM;
            goto done;
        }
        x->arena_bytes = total;
    }
    uint8_t *at = x->arena;
    for (uint32_t c = 0; c < x->n_classes; c++)
        for (uint32_t i = 0; i < x->classes[c].n; i++) {
            x->slots[x->classes[c].first + i].data = at;
            at += x->classes[c].slot_bytes;
        }
done:
    free(sizes);
    free(members);
    return rc;
}

/* The three parts of an expert, into a slot. */
static void expert_reads(const clb_expert_layer *l, uint32_t expert, uint8_t *dst, clb_read out[CLB_PARTS])
{
    for (int p = 0; p < CLB_PARTS; p++) {
        const clb_expert_source *s = &l->source[p];
        out[p] = clb_store_matrix_read(&l->part[p], s->tensors[s->per_expert ? expert : 0],
                                       s->offset + (s->per_expert ? 0 : expert * s->stride), dst);
        dst += part_room(&l->part[p]);
    }
}

static int read_expert(clb_store *store, uint32_t layer, uint32_t expert, uint8_t *dst, clb_error *err)
{
    clb_read reads[CLB_PARTS];
    expert_reads(&store->experts->layers[layer], expert, dst, reads);
    if (clb_store_read_now(store, reads, CLB_PARTS, err))
        return clb_context(err, "expert %u of layer %u", expert, layer);
    return COLIBRI_OK;
}

static uint64_t expert_file_bytes(const clb_expert_layer *l)
{
    uint64_t sum = 0;
    for (int p = 0; p < CLB_PARTS; p++)
        sum += l->part[p].row_bytes * l->part[p].n_rows;
    return sum;
}

/* All experts, together with whatever else is queued. A slot is published only once its bytes are there. */
static int preload(clb_store *store, clb_error *err)
{
    clb_experts *x = store->experts;
    for (uint32_t l = 0; l < x->n_layers; l++) {
        if (x->mapped[l * CLB_PARTS])
            continue;
        clb_slot_class *c = &x->classes[x->class_of[l]];
        for (uint32_t e = 0; e < x->n_experts; e++) {
            clb_read reads[CLB_PARTS];
            expert_reads(&x->layers[l], e, x->slots[c->first + (c->n - c->n_free)].data, reads);
            for (int p = 0; p < CLB_PARTS; p++)
                CLB_TRY(clb_store_queue(store, &reads[p], err));
            c->n_free--;
        }
    }
    CLB_TRY(clb_store_load(store, err));
    for (uint32_t c = 0; c < x->n_classes; c++)
        x->classes[c].n_free = x->classes[c].n;
    for (uint32_t l = 0; l < x->n_layers; l++) {
        if (x->mapped[l * CLB_PARTS])
            continue;
        clb_slot_class *c = &x->classes[x->class_of[l]];
        for (uint32_t e = 0; e < x->n_experts; e++) {
            const uint32_t s = c->first + (c->n - c->n_free--);
            clb_slot *slot = &x->slots[s];
            *slot = (clb_slot){.layer = l, .expert = e, .resident = true, .preloaded = true, .data = slot->data};
            x->slot_of[l * x->n_experts + e] = s;
            if (x->host.policy->on_insert)
                x->host.policy->on_insert(x->host.self, l, e, COLIBRI_CAUSE_PRELOAD);
        }
    }
    return COLIBRI_OK;
}

int clb_store_open_experts(clb_store *store, const clb_expert_pool *pool, clb_error *err)
{
    assert(!store->experts);
    clb_experts *x = calloc(1, sizeof *x);
    if (!x)
        return CLB_NOMEM(err, "expert slots");
    store->experts = x;
    x->layers = pool->layers;
    x->n_layers = pool->n_layers;
    x->n_experts = pool->n_experts;
    x->top_k = pool->top_k;
    const size_t n = (size_t)x->n_layers * x->n_experts;
    x->class_of = calloc(x->n_layers, sizeof *x->class_of);
    x->slot_of = calloc(n, sizeof *x->slot_of);
    x->needed = calloc(x->n_experts, 1);
    x->mapped = calloc((size_t)x->n_layers * CLB_PARTS, sizeof *x->mapped);
    x->accesses = calloc(x->n_experts, sizeof *x->accesses);
    if (!x->class_of || !x->slot_of || !x->needed || !x->mapped || !x->accesses)
        return CLB_NOMEM(err, "expert slots");
    for (size_t i = 0; i < n; i++)
        x->slot_of[i] = CLB_NO_SLOT;
    find_mapped(store);
    CLB_TRY(make_slots(store, pool, err));
    CLB_TRY(clb_policy_open(store, pool, err));
    if (!pool->preload)
        return COLIBRI_OK;
    return preload(store, err);
}

void clb_experts_destroy(clb_store *store)
{
    clb_experts *x = store->experts;
    if (!x)
        return;
    clb_policy_close(&x->host);
    free(x->class_of);
    free(x->classes);
    free(x->slots);
    free(x->slot_of);
    free(x->needed);
    free(x->mapped);
    free(x->accesses);
    free(x);
    store->experts = NULL;
}

void clb_store_step(clb_store *store, enum colibri_phase phase, uint32_t n_rows, uint32_t n_sequences)
{
    clb_experts *x = store->experts;
    const struct colibri_step step = {.struct_size = sizeof step,
                                      .phase = (uint32_t)phase,
                                      .step = store->step++,
                                      .n_rows = n_rows,
                                      .n_sequences = n_sequences};
    if (x && x->host.policy->on_step)
        x->host.policy->on_step(x->host.self, &step);
}

void clb_store_route(clb_store *store, const struct colibri_route *route)
{
    clb_experts *x = store->experts;
    memset(x->needed, 0, x->n_experts);
    for (uint32_t i = 0; i < route->n_union; i++)
        x->needed[route->union_ids[i]] = 1;
    if (x->host.policy->on_route) {
        const uint64_t t0 = clb_now_ns();
        x->host.policy->on_route(x->host.self, route);
        x->host.ns += clb_now_ns() - t0;
    }
}

static void fill_lease(const clb_experts *x, uint32_t layer, uint32_t expert, uint32_t slot, clb_lease *out)
{
    const clb_expert_layer *l = &x->layers[layer];
    out->expert = expert;
    out->slot = slot;
    const uint8_t *at = slot == CLB_NO_SLOT ? NULL : x->slots[slot].data;
    for (int p = 0; p < CLB_PARTS; p++) {
        if (slot == CLB_NO_SLOT) {
            out->part[p] = x->mapped[layer * CLB_PARTS + (uint32_t)p] + expert * l->source[p].stride;
        } else {
            out->part[p] = at;
            at += part_room(&l->part[p]);
        }
    }
}

static void evict(clb_store *store, uint32_t s)
{
    clb_experts *x = store->experts;
    clb_slot *slot = &x->slots[s];
    x->slot_of[slot->layer * x->n_experts + slot->expert] = CLB_NO_SLOT;
    slot->resident = false;
    x->classes[x->class_of[slot->layer]].n_free++;
    store->stats.evictions++;
    if (x->host.policy->on_evict && !slot->bypass)
        x->host.policy->on_evict(x->host.self, slot->layer, slot->expert, slot->uses, 0);
}

/* A slot of the layer's class: a free one, else the policy's victim, still resident; CLB_NO_SLOT if every slot is
 * leased or still needed. */
static uint32_t choose_slot(clb_store *store, uint32_t layer)
{
    clb_experts *x = store->experts;
    const uint32_t class_index = x->class_of[layer];
    const clb_slot_class *c = &x->classes[class_index];
    if (c->n_free == 0)
        return clb_policy_victim(store, class_index, layer);
    for (uint32_t s = c->first; s < c->first + c->n; s++)
        if (!x->slots[s].resident)
            return s;
    assert(!"free count and slots agree");
    return CLB_NO_SLOT;
}

static void record(clb_experts *x, uint32_t n, uint32_t layer, uint32_t expert, uint32_t result, uint32_t rows,
                   float gates, uint64_t wait_ns)
{
    x->accesses[n] = (struct colibri_access){
        .layer = layer, .expert = expert, .result = result, .rows = rows, .gate_sum = gates, .wait_ns = wait_ns};
}

static void lease_slot(clb_experts *x, uint32_t s)
{
    x->slots[s].pins++;
    x->slots[s].uses++;
    x->slots[s].last_use = ++x->clock;
}

static int load_missing(clb_store *store, uint32_t layer, uint32_t expert, uint32_t *slot_out, clb_error *err)
{
    clb_experts *x = store->experts;
    const uint32_t s = choose_slot(store, layer);
    *slot_out = s;
    if (s == CLB_NO_SLOT)
        return COLIBRI_OK;
    clb_slot *slot = &x->slots[s];
    /* Asked once the load is certain to happen: an expert that must wait for a later wave would be asked about twice.
     */
    const bool bypass = x->host.policy->admit && x->host.policy->admit(x->host.self, layer, expert,
                                                                       COLIBRI_CAUSE_DEMAND) == COLIBRI_ADMIT_BYPASS;
    if (slot->resident)
        evict(store, s);
    /* On failure the slot simply stays free: it is published only once its bytes are there. */
    CLB_TRY(read_expert(store, layer, expert, slot->data, err));
    *slot = (clb_slot){.layer = layer, .expert = expert, .resident = true, .bypass = bypass, .data = slot->data};
    x->slot_of[layer * x->n_experts + expert] = s;
    x->classes[x->class_of[layer]].n_free--;
    store->stats.expert_bytes_read += expert_file_bytes(&x->layers[layer]);
    if (x->host.policy->on_insert && !bypass)
        x->host.policy->on_insert(x->host.self, layer, expert, COLIBRI_CAUSE_DEMAND);
    return COLIBRI_OK;
}

int clb_store_acquire(clb_store *store, uint32_t layer, const uint32_t *ids, const uint32_t *rows,
                      const float *gate_sums, uint32_t n, clb_lease *out, uint32_t *n_out, clb_error *err)
{
    clb_experts *x = store->experts;
    uint32_t got = 0;
    *n_out = 0;
    for (uint32_t i = 0; i < n; i++) { /* resident ones first: they compute while others would be read */
        const uint32_t s = x->slot_of[layer * x->n_experts + ids[i]];
        const bool mapped = x->mapped[layer * CLB_PARTS] != NULL;
        if (s == CLB_NO_SLOT && !mapped)
            continue;
        if (s != CLB_NO_SLOT)
            lease_slot(x, s);
        x->needed[ids[i]] = 0;
        record(x, got, layer, ids[i], COLIBRI_ACCESS_HIT, rows[i], gate_sums[i], 0);
        fill_lease(x, layer, ids[i], s, &out[got++]);
        store->stats.hits++;
    }
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; got < n && i < n; i++) {
        if (!x->needed[ids[i]])
            continue;
        const uint64_t t0 = clb_now_ns();
        uint32_t s;
        rc = load_missing(store, layer, ids[i], &s, err);
        if (rc || s == CLB_NO_SLOT)
            break;
        lease_slot(x, s);
        x->needed[ids[i]] = 0;
        record(x, got, layer, ids[i], COLIBRI_ACCESS_MISS, rows[i], gate_sums[i], clb_now_ns() - t0);
        fill_lease(x, layer, ids[i], s, &out[got++]);
        store->stats.misses++;
    }
    if (rc) {
        clb_store_release(store, layer, out, got);
        return rc;
    }
    if (got == 0)
        return clb_fail(err, COLIBRI_E_INTERNAL, "every expert slot is leased while layer %u needs one", layer);
    if (x->host.policy->on_access) {
        const uint64_t t0 = clb_now_ns();
        x->host.policy->on_access(x->host.self, x->accesses, got);
        x->host.ns += clb_now_ns() - t0;
    }
    *n_out = got;
    return COLIBRI_OK;
}

void clb_store_release(clb_store *store, uint32_t layer, const clb_lease *leases, uint32_t n)
{
    (void)layer;
    for (uint32_t i = 0; i < n; i++)
        if (leases[i].slot != CLB_NO_SLOT) {
            clb_slot *slot = &store->experts->slots[leases[i].slot];
            assert(slot->pins);
            if (--slot->pins == 0 && slot->bypass)
                evict(store, leases[i].slot);
        }
}

void clb_store_reset_experts(clb_store *store)
{
    clb_experts *x = store->experts;
    if (!x)
        return;
    for (uint32_t s = 0; s < x->n_slots; s++) {
        clb_slot *slot = &x->slots[s];
        if (!slot->resident || slot->pins)
            continue;
        x->slot_of[slot->layer * x->n_experts + slot->expert] = CLB_NO_SLOT;
        x->classes[x->class_of[slot->layer]].n_free++;
        slot->resident = false;
    }
    if (x->host.policy->reset)
        x->host.policy->reset(x->host.self);
}
