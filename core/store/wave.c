/* A visit of a layer: waves of experts, leased as they become ready. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

/* Not given a slot in this wave. */
#define LEFT_OUT UINT32_MAX

void clb_store_step(clb_store *store, enum colibri_phase phase, uint32_t n_rows, uint32_t n_sequences)
{
    const struct colibri_step step = {.struct_size = sizeof step,
                                      .phase = (uint32_t)phase,
                                      .step = store->step++,
                                      .n_rows = n_rows,
                                      .n_sequences = n_sequences};
    if (!store->experts || store->aside)
        return;
    clb_cache_step(store->experts->cache, &step);
    clb_guesses_step(store, &step);
}

void clb_store_step_end(clb_store *store)
{
    if (!store->aside)
        clb_guesses_step_end(store);
}

void clb_store_set_aside(clb_store *store, bool aside)
{
    store->aside = aside;
}

void clb_store_route(clb_store *store, const struct colibri_route *route)
{
    clb_wave_abandon(store);
    if (store->aside)
        return;
    clb_cache_route(store->experts->cache, route);
    clb_guesses_judge(store, route);
}

/* Which of the experts are there, and slots for the others, as far as there are any. */
static int decide(clb_store *store, uint32_t layer, const uint32_t *ids, const uint32_t *rows, const float *gate_sums,
                  uint32_t n, clb_error *err)
{
    clb_experts *x = store->experts;
    clb_cache *c = x->cache;
    const bool mapped = x->mapped[layer * CLB_PARTS] != NULL;
    x->wave_layer = layer;
    x->n_leased = 0;
    x->wave_began = clb_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        clb_wave_entry *e = &x->wave[i];
        *e = (clb_wave_entry){.expert = ids[i], .rows = rows[i], .gate_sum = gate_sums[i], .result = LEFT_OUT};
        e->slot = mapped ? CLB_NO_SLOT : clb_cache_find(c, layer, ids[i]);
        if (mapped) {
            e->result = COLIBRI_ACCESS_HIT;
            clb_cache_count_hit(c);
            c->needed[ids[i]] = 0;
        } else if (e->slot != CLB_NO_SLOT) {
            e->result = clb_cache_take(c, e->slot);
            if (e->result == COLIBRI_ACCESS_LATE)
                clb_expert_promote(store, e->slot);
        }
    }
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        clb_wave_entry *e = &x->wave[i];
        if (e->result != LEFT_OUT)
            continue;
        e->slot = clb_cache_place(c, layer, e->expert, COLIBRI_CAUSE_DEMAND);
        if (e->slot == CLB_NO_SLOT)
            break;
        e->result = COLIBRI_ACCESS_MISS;
        rc = clb_expert_fetch(store, e->slot, CLB_IO_DEMAND, err);
        if (rc) {
            e->result = LEFT_OUT;
            clb_cache_failed(c, e->slot);
        }
    }
    /* What was there first, then the missing ones: the order in which the policy is told. */
    uint32_t n_there = 0, n_missing = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x->wave[i].result == COLIBRI_ACCESS_MISS)
            x->missing[n_missing++] = x->wave[i];
        else if (x->wave[i].result != LEFT_OUT)
            x->wave[n_there++] = x->wave[i];
    memcpy(x->wave + n_there, x->missing, n_missing * sizeof *x->missing);
    x->n_wave = n_there + n_missing;
    if (rc)
        clb_wave_abandon(store);
    return rc ? clb_context(err, "experts of layer %u", layer) : COLIBRI_OK;
}

/* A wave of at least one expert. Guesses that were called off hold their slots until the drive has let go of them: if
 * they are all that a pool has, one of them must end first. */
static int begin_wave(clb_store *store, uint32_t layer, const uint32_t *ids, const uint32_t *rows,
                      const float *gate_sums, uint32_t n, clb_error *err)
{
    for (;;) {
        CLB_TRY(decide(store, layer, ids, rows, gate_sums, n, err));
        if (store->experts->n_wave)
            return COLIBRI_OK;
        if (!store->io || !clb_io_outstanding(store->io))
            return clb_fail(err, COLIBRI_E_INTERNAL, "every expert slot is leased while layer %u needs one", layer);
        const uint64_t t0 = clb_now_ns();
        const int rc = clb_store_wait(store, err);
        store->stats.stall_ns += clb_now_ns() - t0;
        CLB_TRY(rc);
    }
}

static bool loading(const clb_store *store, const clb_wave_entry *e)
{
    return e->slot != CLB_NO_SLOT && store->experts->cache->slots[e->slot].state == CLB_SLOT_LOADING;
}

/* All reads of an expert are through, but it is not there: a guess that was called off before it was asked for is read
 * again, so is one that failed; a failed demand read is the error. */
static int look_after(clb_store *store, const clb_wave_entry *e, clb_error *err)
{
    clb_fetch *f = &store->experts->fetches[e->slot];
    if (f->left)
        return COLIBRI_OK;
    if (!f->failed)
        return clb_expert_fetch(store, e->slot, CLB_IO_DEMAND, err);
    if (e->result == COLIBRI_ACCESS_LATE && !f->again) {
        free(f->err);
        const int rc = clb_expert_fetch(store, e->slot, CLB_IO_DEMAND, err);
        f->again = true;
        return rc;
    }
    if (err && f->err)
        *err = *f->err;
    else
        (void)clb_fail(err, COLIBRI_E_IO, "cannot read");
    return clb_context(err, "expert %u of layer %u", e->expert, store->experts->wave_layer);
}

static void fill_lease(const clb_experts *x, const clb_wave_entry *e, clb_lease *out)
{
    const uint32_t layer = x->wave_layer;
    const uint8_t *data = e->slot == CLB_NO_SLOT ? NULL : clb_expert_data(x, e->slot);
    out->expert = e->expert;
    out->slot = e->slot;
    for (uint32_t p = 0; p < CLB_PARTS; p++)
        out->part[p] = data ? data + x->part_at[layer * CLB_PARTS + p]
                            : x->mapped[layer * CLB_PARTS + p] + e->expert * x->layers[layer].source[p].stride;
}

/* Leases whatever is ready. */
static int hand_out(clb_store *store, clb_lease *out, uint32_t *got, clb_error *err)
{
    clb_experts *x = store->experts;
    for (uint32_t i = 0; i < x->n_wave; i++) {
        clb_wave_entry *e = &x->wave[i];
        if (e->leased)
            continue;
        if (e->slot == CLB_NO_SLOT) {
            CLB_TRY(clb_expert_check_mapped(store, x->wave_layer, e->expert, err));
            continue;
        }
        /* What is to be read again as a whole must not be converted while the drive writes it. */
        const clb_fetch *f = &x->fetches[e->slot];
        if (f->arrived && (f->left || !loading(store, e))) {
            e->touched = true;
            CLB_TRY(clb_expert_convert(store, e->slot, err));
        }
        if (loading(store, e))
            CLB_TRY(look_after(store, e, err));
    }
    if (clb_store_convert(store, err))
        return clb_context(err, "experts of layer %u", x->wave_layer);
    for (uint32_t i = 0; i < x->n_wave; i++) {
        clb_wave_entry *e = &x->wave[i];
        if (e->leased || loading(store, e))
            continue;
        if (e->result != COLIBRI_ACCESS_HIT)
            e->wait_ns = clb_now_ns() - x->wave_began;
        e->leased = true;
        x->n_leased++;
        fill_lease(x, e, &out[(*got)++]);
    }
    return COLIBRI_OK;
}

static void report(clb_store *store)
{
    clb_experts *x = store->experts;
    for (uint32_t i = 0; i < x->n_wave; i++) {
        const clb_wave_entry *e = &x->wave[i];
        x->accesses[i] = (struct colibri_access){.layer = x->wave_layer,
                                                 .expert = e->expert,
                                                 .result = e->result,
                                                 .rows = e->rows,
                                                 .gate_sum = e->gate_sum,
                                                 .wait_ns = e->wait_ns};
    }
    if (!store->aside)
        clb_cache_access(x->cache, x->accesses, x->n_wave);
}

static int wait_for_more(clb_store *store, clb_error *err)
{
    if (!store->io || !clb_io_outstanding(store->io))
        return clb_fail(err, COLIBRI_E_INTERNAL, "experts are missing and none is being read");
    bool did;
    CLB_TRY(clb_guesses_convert(store, &did, err));
    if (did)
        return COLIBRI_OK;
    const uint64_t t0 = clb_now_ns();
    const int rc = clb_store_wait(store, err);
    store->stats.stall_ns += clb_now_ns() - t0;
    return rc;
}

int clb_store_acquire(clb_store *store, uint32_t layer, const uint32_t *ids, const uint32_t *rows,
                      const float *gate_sums, uint32_t n, clb_lease *out, uint32_t *n_out, clb_error *err)
{
    clb_experts *x = store->experts;
    uint32_t got = 0;
    *n_out = 0;
    int rc = COLIBRI_OK;
    if (x->n_leased == x->n_wave) {
        CLB_TRY(begin_wave(store, layer, ids, rows, gate_sums, n, err));
        rc = store->aside ? COLIBRI_OK : clb_guesses_act(store, layer, err);
    }
    while (!rc) {
        if (store->io && clb_io_outstanding(store->io))
            rc = clb_store_collect(store, false, err);
        if (!rc)
            rc = hand_out(store, out, &got, err);
        if (rc || got)
            break;
        rc = wait_for_more(store, err);
    }
    if (rc) {
        clb_store_release(store, layer, out, got);
        clb_wave_abandon(store);
        return rc;
    }
    if (x->n_leased == x->n_wave)
        report(store);
    *n_out = got;
    return COLIBRI_OK;
}

void clb_store_release(clb_store *store, uint32_t layer, const clb_lease *leases, uint32_t n)
{
    (void)layer;
    for (uint32_t i = 0; i < n; i++)
        if (leases[i].slot != CLB_NO_SLOT)
            clb_cache_unpin(store->experts->cache, leases[i].slot);
}

void clb_wave_abandon(clb_store *store)
{
    clb_experts *x = store->experts;
    clb_cache *c = x->cache;
    store->n_arrivals = 0;
    /* All of them before the first is waited for: the drive would go on with the others meanwhile. */
    for (uint32_t i = 0; i < x->n_wave; i++)
        for (uint32_t p = 0; !x->wave[i].leased && x->wave[i].slot != CLB_NO_SLOT && p < CLB_PARTS; p++)
            if (x->fetches[x->wave[i].slot].left)
                clb_io_cancel(store->io, x->wave[i].slot * 4 + p);
    for (uint32_t i = 0; i < x->n_wave; i++) {
        const clb_wave_entry *e = &x->wave[i];
        if (e->leased || e->slot == CLB_NO_SLOT)
            continue;
        clb_fetch *f = &x->fetches[e->slot];
        while (f->left) /* the drive still writes into the slot */
            (void)clb_store_collect(store, true, NULL);
        /* What was being converted may be half done. */
        const bool whole = !loading(store, e) && !f->arrived && !e->touched;
        free(f->err);
        *f = (clb_fetch){0};
        if (loading(store, e))
            clb_cache_failed(c, e->slot);
        else if (whole)
            clb_cache_unpin(c, e->slot);
        else
            clb_cache_drop(c, e->slot);
    }
    x->n_wave = x->n_leased = 0;
}

void clb_store_reset_experts(clb_store *store)
{
    clb_experts *x = store->experts;
    clb_layers_forget(store);
    if (!x)
        return;
    clb_wave_abandon(store);
    clb_guesses_forget(store);
    clb_cache_reset(x->cache);
}
