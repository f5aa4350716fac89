/* Expert slots: their memory, filling all of them at start, and the end. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/internal.h"

/* Smaller experts are read through the page cache: what alignment costs them would be a large part of their slot. */
#define LEAST_DIRECT ((uint64_t)96 << 10)

static uint64_t up_to(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static uint64_t layer_slot_bytes(const clb_expert_layer *layer)
{
    const clb_gguf_tensor *block = clb_expert_block(layer);
    uint64_t sum = block ? block->block_bytes : 0;
    for (int p = 0; p < CLB_PARTS && !block; p++)
        sum += up_to(layer->part[p].bytes, 64);
    return up_to(sum, CLB_STORE_PAGE);
}

uint64_t clb_store_stream_slack(const clb_expert_layer *layer)
{
    return clb_expert_block(layer) || layer_slot_bytes(layer) < LEAST_DIRECT ? 0 : 2 * CLB_PARTS * CLB_STORE_PAGE;
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
            const bool ready = layer->part[p].format->layout == COLIBRI_LAYOUT_ROWS || s->tensors[0]->packed;
            const size_t align = s->tensors[0]->packed ? 64 : 16;
            base[p] = ready && !s->per_expert && s->stride % align == 0
                          ? clb_store_mapped(store, s->tensors[0], s->offset, align)
                          : NULL;
            all = all && base[p];
        }
        for (int p = 0; p < CLB_PARTS; p++)
            x->mapped[l * CLB_PARTS + (uint32_t)p] = all ? base[p] : NULL;
    }
}

/* Where parts lie in the slots of a layer. */
static void place_parts(clb_experts *x, uint32_t l)
{
    const clb_expert_layer *layer = &x->layers[l];
    const clb_gguf_tensor *block = clb_expert_block(layer);
    const bool direct = x->streamed && clb_store_stream_slack(layer);
    uint64_t at = 0;
    for (uint32_t p = 0; p < CLB_PARTS; p++) {
        x->part_at[l * CLB_PARTS + p] = block ? layer->part_at[p] : at;
        at += direct ? clb_store_direct_room(layer->part[p].bytes) : up_to(layer->part[p].bytes, 64);
    }
}

struct pools {
    uint32_t n, *of_layer, *slots;
    uint64_t *slot_bytes;
};

/* Pools are size classes, or with layer_pools an equal part of its class for each layer. */
static int make_pools(clb_store *store, const clb_expert_pool *pool, struct pools *p, clb_error *err)
{
    clb_experts *x = store->experts;
    const uint32_t n_layers = x->n_layers;
    uint64_t *sizes = calloc(n_layers, sizeof *sizes);
    uint32_t *members = calloc(n_layers, sizeof *members); /* layers per class that need slots */
    int rc = sizes && members ? COLIBRI_OK : CLB_NOMEM(err, "expert slots");
    if (rc)
        goto done;
    x->n_classes = clb_store_classes(x->layers, n_layers, x->class_of, sizes);
    for (uint32_t l = 0; l < n_layers; l++)
        members[x->class_of[l]] += !x->mapped[l * CLB_PARTS];
    p->n = pool->layer_pools ? n_layers : x->n_classes;
    for (uint32_t l = 0; l < n_layers; l++) {
        const uint32_t c = x->class_of[l], i = pool->layer_pools ? l : c;
        const uint64_t all = (uint64_t)members[c] * x->n_experts;
        const uint64_t of_class = pool->class_slots && pool->class_slots[c] < all ? pool->class_slots[c] : all;
        p->of_layer[l] = i;
        if (x->mapped[l * CLB_PARTS])
            continue;
        p->slots[i] = (uint32_t)(pool->layer_pools ? of_class / members[c] : of_class);
        const uint64_t bytes = sizes[c] + (x->streamed ? clb_store_stream_slack(&x->layers[l]) : 0);
        p->slot_bytes[i] = bytes > p->slot_bytes[i] ? bytes : p->slot_bytes[i]; /* some may be packed, others not */
        if (p->slots[i] == 0) {
            rc = clb_fail(err, COLIBRI_E_NOMEM, "no slot for the experts of %s %u: raise --max-memory",
                          pool->layer_pools ? "layer" : "size class", i);
            goto done;
        }
    }
done:
    free(sizes);
    free(members);
    return rc;
}

static int make_arena(clb_store *store, const struct pools *p, clb_error *err)
{
    clb_experts *x = store->experts;
    uint32_t first = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        x->places[i] =
            (struct clb_slot_place){.slot_bytes = p->slot_bytes[i], .arena_at = x->arena_bytes, .first = first};
        first += p->slots[i];
        x->arena_bytes += p->slots[i] * p->slot_bytes[i];
    }
    if (!x->arena_bytes)
        return COLIBRI_OK;
    x->arena = clb_store_map(store, x->arena_bytes, "the expert slots", err);
    return x->arena ? COLIBRI_OK : err ? err->code : COLIBRI_E_NOMEM;
}

static void misbehaved(void *ctx, const char *policy, const char *what)
{
    clb_registry_misbehaved(ctx, policy, what);
}

static int open_cache(clb_store *store, const clb_expert_pool *pool, const struct pools *p, clb_error *err)
{
    clb_experts *x = store->experts;
    uint64_t *bytes = calloc(x->n_layers, sizeof *bytes);
    if (!bytes)
        return CLB_NOMEM(err, "expert slots");
    for (uint32_t l = 0; l < x->n_layers; l++)
        for (int i = 0; i < CLB_PARTS; i++)
            bytes[l] += x->layers[l].part[i].bytes;
    const clb_cache_options o = {
        .n_layers = x->n_layers,
        .n_experts = x->n_experts,
        .top_k = x->top_k,
        .pool_of = p->of_layer,
        .n_pools = p->n,
        .pool_slots = p->slots,
        .expert_bytes = bytes,
        .policy = pool->policy,
        .params = pool->params,
        .seed = pool->seed,
        .host = clb_registry_host(store->options.registry),
        .timed = true,
        .misbehaved = misbehaved,
        .misbehaved_ctx = store->options.registry,
    };
    const int rc = clb_cache_open(&o, &x->cache, err);
    free(bytes);
    return rc;
}

void clb_store_residency(const clb_store *store, uint8_t *out)
{
    const clb_experts *x = store->experts;
    for (uint32_t l = 0; x && l < x->n_layers; l++)
        for (uint32_t e = 0; e < x->n_experts; e++) {
            const uint32_t slot = clb_cache_find(x->cache, l, e);
            const bool there = slot != CLB_NO_SLOT && x->cache->slots[slot].state == CLB_SLOT_RESIDENT;
            out[(size_t)l * x->n_experts + e] = x->mapped[(size_t)l * CLB_PARTS] || there;
        }
}

void clb_expert_reads(const clb_expert_layer *l, uint32_t expert, uint8_t *dst, const uint64_t *part_at,
                      clb_read out[CLB_PARTS], uint32_t *n)
{
    const clb_gguf_tensor *block = clb_expert_block(l);
    if (block) {
        out[0] = (clb_read){.tensor = block,
                            .offset = expert * block->expert_stride,
                            .as = CLB_READ_BLOCK,
                            .src_bytes = block->block_bytes,
                            .src_unit = block->block_bytes,
                            .dst_unit = block->block_bytes,
                            .dst = dst};
        *n = 1;
        return;
    }
    for (int p = 0; p < CLB_PARTS; p++) {
        const clb_expert_source *s = &l->source[p];
        out[p] = clb_store_matrix_read(&l->part[p], s->tensors[s->per_expert ? expert : 0],
                                       s->offset + (s->per_expert ? 0 : expert * s->stride), dst + part_at[p]);
    }
    *n = CLB_PARTS;
}

/* All experts, together with whatever else is queued. A slot is published only once its bytes are there. */
static int preload(clb_store *store, clb_error *err)
{
    clb_experts *x = store->experts;
    for (uint32_t l = 0; l < x->n_layers; l++) {
        if (x->mapped[l * CLB_PARTS])
            continue;
        struct clb_slot_place *place = &x->places[x->cache->pool_of[l]];
        uint32_t before = 0; /* experts of the pool's layers so far: the slots that preload hands out, in order */
        for (uint32_t m = 0; m < l; m++)
            before += x->cache->pool_of[m] == x->cache->pool_of[l] && !x->mapped[m * CLB_PARTS] ? x->n_experts : 0;
        for (uint32_t e = 0; e < x->n_experts; e++) {
            clb_read reads[CLB_PARTS];
            uint32_t n;
            clb_expert_reads(&x->layers[l], e, x->arena + place->arena_at + (before + e) * place->slot_bytes,
                             &x->part_at[l * CLB_PARTS], reads, &n);
            for (uint32_t i = 0; i < n; i++)
                CLB_TRY(clb_store_queue(store, &reads[i], err));
        }
    }
    CLB_TRY(clb_store_load(store, err));
    for (uint32_t l = 0; l < x->n_layers; l++)
        for (uint32_t e = 0; e < x->n_experts && !x->mapped[l * CLB_PARTS]; e++)
            clb_cache_preload(x->cache, l, e);
    return COLIBRI_OK;
}

static bool allocate(clb_experts *x, struct pools *p)
{
    const size_t n = (size_t)x->n_layers * x->n_experts, layers = x->n_layers;
    x->class_of = calloc(layers, sizeof *x->class_of);
    x->mapped = calloc(layers * CLB_PARTS, sizeof *x->mapped);
    x->part_at = calloc(layers * CLB_PARTS, sizeof *x->part_at);
    x->places = calloc(layers, sizeof *x->places);
    x->verified = calloc(n, 1);
    x->wave = calloc(x->n_experts, sizeof *x->wave);
    x->missing = calloc(x->n_experts, sizeof *x->missing);
    x->accesses = calloc(x->n_experts, sizeof *x->accesses);
    p->of_layer = calloc(layers, sizeof *p->of_layer);
    p->slots = calloc(layers, sizeof *p->slots);
    p->slot_bytes = calloc(layers, sizeof *p->slot_bytes);
    return x->class_of && x->mapped && x->part_at && x->places && x->verified && x->wave && x->missing && x->accesses &&
           p->of_layer && p->slots && p->slot_bytes;
}

static bool direct_fits(const clb_experts *x)
{
    for (uint32_t l = 0; l < x->n_layers; l++)
        if (!x->mapped[l * CLB_PARTS] && !clb_expert_block(&x->layers[l]) && !clb_store_stream_slack(&x->layers[l]))
            return false;
    return true;
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
    x->streamed = !pool->preload;
    struct pools p = {0};
    int rc = allocate(x, &p) ? COLIBRI_OK : CLB_NOMEM(err, "expert slots");
    if (rc)
        goto done;
    find_mapped(store);
    CLB_GO(make_pools(store, pool, &p, err));
    for (uint32_t l = 0; l < x->n_layers; l++)
        place_parts(x, l);
    CLB_GO(make_arena(store, &p, err));
    CLB_GO(open_cache(store, pool, &p, err));
    x->fetches = calloc(x->cache->n_slots ? x->cache->n_slots : 1, sizeof *x->fetches);
    if (!x->fetches)
        CLB_GO(CLB_NOMEM(err, "expert slots"));
    if (pool->preload)
        CLB_GO(preload(store, err));
    else if (x->arena_bytes)
        CLB_GO(clb_store_open_io(store, direct_fits(x), err));
    if (pool->predictor && x->streamed && x->arena_bytes)
        CLB_GO(clb_guesses_open(store, pool, err));
done:
    free(p.of_layer);
    free(p.slots);
    free(p.slot_bytes);
    return rc;
}

void clb_experts_destroy(clb_store *store)
{
    clb_experts *x = store->experts;
    if (!x)
        return;
    clb_guesses_close(store);
    for (uint32_t s = 0; x->fetches && s < x->cache->n_slots; s++)
        free(x->fetches[s].err);
    clb_cache_close(x->cache);
    free(x->class_of);
    free(x->mapped);
    free(x->part_at);
    free(x->places);
    free(x->verified);
    free(x->wave);
    free(x->missing);
    free(x->accesses);
    free(x->fetches);
    free(x);
    store->experts = NULL;
}
