/* Streamed dense layers: a few slots, filled in the order in which a pass asks for them, round and round.
 *
 * Each pass visits the same layers in the same order, so what is read next is never a guess: as soon as a layer has
 * been used, its slot takes the next one that is not there. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

#define NOWHERE    UINT32_MAX
#define MOST_PARTS 32u /* matrices of a layer */

struct stream_part {
    clb_matrix *m;
    const clb_gguf_tensor *t;
    uint64_t offset; /* in the tensor */
    uint64_t at;     /* in a slot */
    bool has_sums;   /* of a packed file: compared when it arrives */
    uint8_t verified;
};

struct stream_layer {
    uint32_t layer; /* of the model */
    uint32_t n_parts;
    struct stream_part part[MOST_PARTS];
    uint64_t bytes; /* of a slot */
    uint32_t slot;
};

struct stream_slot {
    uint8_t *data;
    uint32_t holds;   /* index of a layer, or NOWHERE */
    uint32_t left;    /* reads not complete */
    uint32_t arrived; /* bit per part: there, not converted */
    bool failed;
    bool in_use;
    clb_error err;
};

struct clb_layers {
    struct stream_layer *layers; /* in ascending order */
    uint32_t n, cap;
    struct stream_slot *slots;
    uint32_t n_slots;
    uint32_t next; /* index of the layer to be read next */
};

static uint64_t part_room(const clb_matrix *m)
{
    return clb_store_direct_room(m->bytes);
}

uint64_t clb_store_layer_room(const clb_matrix *const *matrices, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += part_room(matrices[i]);
    return sum;
}

static struct stream_layer *find_layer(const struct clb_layers *s, uint32_t layer)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->layers[i].layer == layer)
            return &s->layers[i];
    return NULL;
}

static bool plain(const struct stream_part *p)
{
    return p->m->format->layout == COLIBRI_LAYOUT_ROWS || p->t->packed;
}

int clb_store_stream_matrix(clb_store *store, uint32_t layer, const clb_gguf_tensor *t, uint64_t offset, clb_matrix *m,
                            clb_error *err)
{
    if (!store->layers)
        store->layers = calloc(1, sizeof *store->layers);
    struct clb_layers *s = store->layers;
    if (!s)
        return CLB_NOMEM(err, "streamed layers");
    assert(!s->slots && (s->n == 0 || s->layers[s->n - 1].layer <= layer));
    if (s->n == 0 || s->layers[s->n - 1].layer != layer) {
        if (s->n == s->cap) {
            const uint32_t cap = s->cap ? 2 * s->cap : 16;
            void *p = realloc(s->layers, cap * sizeof *s->layers);
            if (!p)
                return CLB_NOMEM(err, "streamed layers");
            s->layers = p;
            s->cap = cap;
        }
        s->layers[s->n++] = (struct stream_layer){.layer = layer, .slot = NOWHERE};
    }
    struct stream_layer *l = &s->layers[s->n - 1];
    if (l->n_parts == MOST_PARTS)
        return clb_fail(err, COLIBRI_E_LIMIT, "layer %u has more than %u matrices", layer, MOST_PARTS);
    struct stream_part *p = &l->part[l->n_parts++];
    *p = (struct stream_part){.m = m, .t = t, .offset = offset, .at = l->bytes};
    l->bytes += part_room(m);
    m->data = NULL;
    const uint64_t bytes = t->packed ? m->bytes : m->row_bytes * m->n_rows;
    p->has_sums = plain(p) && offset == 0 && bytes == t->file_bytes && clb_gguf_verify_unit(store->options.gguf, t);
    /* A matrix that is a part of a tensor need not consist of whole blocks: then all of the tensor is compared once. */
    return p->has_sums || offset ? COLIBRI_OK : clb_store_queue_check(store, t, NULL, err);
}

static int fetch(clb_store *store, uint32_t slot, uint32_t index, clb_error *err)
{
    struct clb_layers *s = store->layers;
    struct stream_slot *to = &s->slots[slot];
    struct stream_layer *l = &s->layers[index];
    to->holds = index;
    to->arrived = 0;
    to->failed = false;
    l->slot = slot;
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const struct stream_part *p = &l->part[i];
        if (store->in_memory) {
            clb_read read = clb_store_matrix_read(p->m, p->t, p->offset, to->data + p->at);
            CLB_TRY(clb_store_read_now(store, &read, 1, err));
            continue;
        }
        CLB_TRY(clb_store_submit_matrix(store, p->m, p->t, p->offset, to->data + p->at,
                                        CLB_TAG_LAYERS + slot * MOST_PARTS + i, CLB_IO_DEMAND, err));
        to->left++;
    }
    for (uint32_t i = 0; i < l->n_parts; i++)
        store->stats.layer_bytes_read += l->part[i].m->bytes;
    store->stats.streamed_layers++;
    return COLIBRI_OK;
}

static void release_slot(struct clb_layers *s, uint32_t slot)
{
    struct stream_slot *at = &s->slots[slot];
    if (at->holds != NOWHERE) {
        struct stream_layer *l = &s->layers[at->holds];
        l->slot = NOWHERE;
        for (uint32_t i = 0; i < l->n_parts; i++)
            l->part[i].m->data = NULL; /* of a pass that was broken off */
    }
    at->holds = NOWHERE;
    at->in_use = false;
}

/* Free slots take the layers that come next. */
static int read_on(clb_store *store, clb_error *err)
{
    struct clb_layers *s = store->layers;
    for (uint32_t slot = 0; slot < s->n_slots; slot++) {
        if (s->slots[slot].holds != NOWHERE || s->slots[slot].left)
            continue;
        if (s->layers[s->next].slot != NOWHERE)
            return COLIBRI_OK; /* all are here */
        const uint32_t index = s->next;
        s->next = (s->next + 1) % s->n;
        const int rc = fetch(store, slot, index, err);
        if (rc) {
            release_slot(s, slot);
            s->next = index;
            return rc;
        }
    }
    return COLIBRI_OK;
}

int clb_store_open_layers(clb_store *store, uint32_t n_slots, clb_error *err)
{
    struct clb_layers *s = store->layers;
    if (!s)
        return COLIBRI_OK;
    uint64_t widest = 0;
    for (uint32_t i = 0; i < s->n; i++)
        widest = s->layers[i].bytes > widest ? s->layers[i].bytes : widest;
    s->n_slots = n_slots < 1 ? 1 : n_slots < s->n ? n_slots : s->n;
    s->slots = calloc(s->n_slots, sizeof *s->slots);
    if (!s->slots)
        return CLB_NOMEM(err, "streamed layers");
    uint8_t *arena = clb_store_map(store, widest * s->n_slots, "the streamed layers", err);
    if (!arena)
        return err ? err->code : COLIBRI_E_NOMEM;
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->slots[i] = (struct stream_slot){.data = arena + i * widest, .holds = NOWHERE};
    store->stats.layer_slot_bytes = widest * s->n_slots;
    CLB_TRY(clb_store_open_io(store, true, err));
    return read_on(store, err);
}

void clb_layers_done(clb_store *store, uint32_t tag, int status)
{
    struct stream_slot *at = &store->layers->slots[(tag - CLB_TAG_LAYERS) / MOST_PARTS];
    at->left--;
    if (status == COLIBRI_OK) {
        at->arrived |= 1u << (tag - CLB_TAG_LAYERS) % MOST_PARTS;
    } else if (!at->failed) {
        at->failed = true;
        (void)clb_fail(&at->err, COLIBRI_E_CANCELLED, "reading was called off");
        if (status != COLIBRI_E_CANCELLED)
            clb_store_failure(store, tag, &at->err);
    }
}

static int wait_for(clb_store *store, struct stream_slot *at, clb_error *err)
{
    if (at->left)
        CLB_TRY(clb_store_collect(store, false, err));
    const uint64_t t0 = clb_now_ns();
    const bool stalled = at->left;
    int rc = COLIBRI_OK;
    while (at->left && !rc)
        rc = clb_store_wait(store, err);
    if (stalled)
        store->stats.stall_ns += clb_now_ns() - t0;
    if (rc || !at->failed)
        return rc;
    if (err)
        *err = at->err;
    return at->err.code;
}

static int convert(clb_store *store, struct stream_layer *l, struct stream_slot *at, clb_error *err)
{
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < l->n_parts && !rc; i++) {
        struct stream_part *p = &l->part[i];
        if (!(at->arrived & 1u << i))
            continue;
        clb_arrival a = {.m = p->m,
                         .base = at->data + p->at,
                         .lead = clb_io_lead(store->io, p->t->offset + p->offset),
                         .plain = plain(p)};
        if (p->has_sums && clb_store_must_verify(store, p->t, p->verified)) {
            a.tensor = p->t;
            a.bytes = p->t->file_bytes;
            a.verified = &p->verified;
        }
        if (!a.plain || a.lead || a.tensor)
            rc = clb_store_add_arrival(store, &a, err);
    }
    at->arrived = 0;
    if (!rc)
        return clb_store_convert(store, err);
    store->n_arrivals = 0; /* or the next who converts would find them, with other bytes in the slot */
    return rc;
}

/* A pass that was broken off leaves layers of its middle in the slots: start over. */
static int start_over(clb_store *store, uint32_t index, clb_error *err)
{
    struct clb_layers *s = store->layers;
    for (uint32_t slot = 0; slot < s->n_slots; slot++) {
        while (s->slots[slot].left)
            CLB_TRY(clb_store_wait(store, err));
        release_slot(s, slot);
    }
    s->next = index;
    return read_on(store, err);
}

void clb_layers_forget(clb_store *store)
{
    struct clb_layers *s = store->layers;
    for (uint32_t slot = 0; s && slot < s->n_slots; slot++) {
        while (s->slots[slot].left)
            (void)clb_store_collect(store, true, NULL);
        release_slot(s, slot);
    }
    if (s)
        s->next = 0;
}

int clb_store_layer_begin(clb_store *store, uint32_t layer, clb_error *err)
{
    struct clb_layers *s = store->layers;
    struct stream_layer *l = s ? find_layer(s, layer) : NULL;
    if (!l)
        return COLIBRI_OK;
    const uint32_t index = (uint32_t)(l - s->layers);
    if (l->slot == NOWHERE)
        CLB_TRY(start_over(store, index, err));
    const uint32_t slot = l->slot;
    struct stream_slot *at = &s->slots[slot];
    int rc = wait_for(store, at, err);
    if (!rc)
        rc = convert(store, l, at, err);
    if (rc) {
        release_slot(s, slot);
        return rc == COLIBRI_E_CANCELLED ? rc : clb_context(err, "layer %u", layer);
    }
    at->in_use = true;
    for (uint32_t i = 0; i < l->n_parts; i++)
        l->part[i].m->data = at->data + l->part[i].at;
    return COLIBRI_OK;
}

void clb_store_layer_end(clb_store *store, uint32_t layer)
{
    struct clb_layers *s = store->layers;
    struct stream_layer *l = s ? find_layer(s, layer) : NULL;
    if (!l || l->slot == NOWHERE || !s->slots[l->slot].in_use)
        return;
    for (uint32_t i = 0; i < l->n_parts; i++)
        l->part[i].m->data = NULL;
    s->slots[l->slot].in_use = false;
    if (s->n <= s->n_slots)
        return; /* all of them stay */
    release_slot(s, l->slot);
    (void)read_on(store, NULL); /* a failure shows when the layer is asked for: it will not be there */
}

void clb_layers_destroy(clb_store *store)
{
    if (!store->layers)
        return;
    free(store->layers->layers);
    free(store->layers->slots);
    free(store->layers);
    store->layers = NULL;
}
