#include "store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static int add_region(clb_store *store, void *p, size_t bytes, clb_error *err)
{
    if (store->n_regions == store->cap_regions) {
        const size_t cap = store->cap_regions ? 2 * store->cap_regions : 4;
        void *grown = realloc(store->regions, cap * sizeof *store->regions);
        if (!grown)
            return CLB_NOMEM(err, "weights");
        store->regions = grown;
        store->cap_regions = cap;
    }
    store->regions[store->n_regions].p = p;
    store->regions[store->n_regions].n = bytes;
    store->n_regions++;
    return COLIBRI_OK;
}

/* Address space that starts at a huge page, so that all of it but the end can consist of them: kernels before 6.7 put
 * mappings anywhere. */
static void *map_aligned(size_t bytes)
{
    const size_t extra = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    const size_t before = extra ? (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE : 0;
    if (before)
        munmap(p, before);
    if (extra - before)
        munmap(p + before + bytes, extra - before);
    return p + before;
}

void *clb_store_map(clb_store *store, uint64_t bytes, const char *what, clb_error *err)
{
    char human[24];
    const size_t n = (size_t)((bytes + CLB_STORE_PAGE - 1) & ~(uint64_t)(CLB_STORE_PAGE - 1));
    void *p = bytes < SIZE_MAX / 2 ? map_aligned(n) : NULL;
    if (!p) {
        clb_fail_errno(err, COLIBRI_E_NOMEM, errno, "cannot get %s for %s", clb_human_bytes(bytes, human), what);
        return NULL;
    }
    if (add_region(store, p, n, err)) {
        munmap(p, n);
        return NULL;
    }
    /* A wish; refusal changes speed only. The end stays in small pages: rounded up it would cost memory nobody planned.
     */
    if (n >= HUGE_PAGE)
        madvise(p, n & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    /* Locked as they are touched, by all workers; mlock would have this thread touch them all. */
    if (store->options.mlock && mlock2(p, n, MLOCK_ONFAULT)) {
        clb_fail_errno(err, COLIBRI_E_NOMEM, errno, "cannot lock %s in memory (raise `ulimit -l` or drop --mlock)",
                       what);
        return NULL;
    }
    return p;
}

static int map_shards(clb_store *store, clb_error *err)
{
    const clb_gguf *g = store->options.gguf;
    const uint32_t n = clb_gguf_n_shards(g);
    store->maps = calloc(n, sizeof *store->maps);
    if (!store->maps)
        return CLB_NOMEM(err, "mapping the model");
    for (uint32_t i = 0; i < n; i++) {
        const size_t size = (size_t)clb_gguf_shard_size(g, i);
        void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, clb_gguf_shard_fd(g, i), 0);
        if (p == MAP_FAILED)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot map %s (--store-mode read works without)",
                                  clb_gguf_shard_path(g, i));
        store->maps[i].p = p;
        store->maps[i].n = size;
    }
    return COLIBRI_OK;
}

int clb_store_create(const clb_store_options *options, clb_store **out, clb_error *err)
{
    *out = NULL;
    clb_store *store = calloc(1, sizeof *store);
    if (!store)
        return CLB_NOMEM(err, "weight store");
    store->options = *options;
    store->staging = calloc(clb_pool_workers(options->pool), sizeof *store->staging);
    int rc = store->staging ? COLIBRI_OK : CLB_NOMEM(err, "weight store");
    if (!rc && options->mode == CLB_STORE_MMAP)
        rc = map_shards(store, err);
    if (rc) {
        clb_store_destroy(store);
        return rc;
    }
    *out = store;
    return COLIBRI_OK;
}

void clb_store_destroy(clb_store *store)
{
    if (!store)
        return;
    clb_io_close(store->io); /* first: the drive may still write into slots */
    clb_experts_destroy(store);
    clb_layers_destroy(store);
    free(store->arrivals);
    for (size_t i = 0; i < store->n_regions; i++)
        munmap(store->regions[i].p, store->regions[i].n);
    free(store->regions);
    free(store->queued);
    if (store->maps)
        for (uint32_t i = 0; i < clb_gguf_n_shards(store->options.gguf); i++)
            if (store->maps[i].p)
                munmap((void *)(uintptr_t)store->maps[i].p, store->maps[i].n);
    free(store->maps);
    if (store->staging)
        for (uint32_t i = 0; i < clb_pool_workers(store->options.pool); i++)
            free(store->staging[i]);
    free(store->staging);
    free(store);
}

void clb_store_unmap_pages(clb_store *store)
{
    for (uint32_t i = 0; store->maps && i < clb_gguf_n_shards(store->options.gguf); i++)
        (void)madvise((void *)(uintptr_t)store->maps[i].p, store->maps[i].n, MADV_DONTNEED);
}

const uint8_t *clb_store_mapped(const clb_store *store, const clb_gguf_tensor *t, uint64_t offset, size_t align)
{
    if (!store->maps)
        return NULL;
    const uint64_t at = t->offset + offset;
    return at % align ? NULL : store->maps[t->shard].p + at;
}

int clb_store_reserve_staging(clb_store *store, size_t bytes, clb_error *err)
{
    if (bytes <= store->staging_bytes)
        return COLIBRI_OK;
    for (uint32_t i = 0; i < clb_pool_workers(store->options.pool); i++) {
        free(store->staging[i]);
        store->staging[i] = malloc(bytes);
        if (!store->staging[i]) {
            store->staging_bytes = 0;
            return CLB_NOMEM(err, "read buffers");
        }
    }
    store->staging_bytes = bytes;
    return COLIBRI_OK;
}

void clb_store_get_stats(const clb_store *store, clb_store_stats *out)
{
    *out = store->stats;
    if (store->io) {
        out->reads_ahead = true;
        clb_io_get_stats(store->io, &out->io);
    }
    const clb_experts *x = store->experts;
    if (!x)
        return;
    const clb_cache_stats *c = &x->cache->stats;
    out->n_slots = x->cache->n_slots;
    out->n_experts = x->n_layers * x->n_experts;
    out->slot_bytes = x->arena_bytes;
    out->hits = c->hits;
    out->misses = c->misses;
    out->late = c->late;
    memcpy(out->phase, c->phase, sizeof out->phase);
    out->evictions = c->evictions;
    out->bypassed = c->bypassed;
    out->bad_answers = c->bad_answers;
    out->policy_ns = c->policy_ns;
    out->policy = x->cache->options.policy->name;
    if (x->guesses) {
        out->predictor = x->guesses->predictor->name;
        for (uint32_t i = 0; i < CLB_PAYS; i++) {
            const clb_pays *p = &x->guesses->pays[i];
            out->passes_ahead += p->passes_on;
            out->passes_plain += p->passes_off;
            if (out->ahead_ratio <= 0)
                out->ahead_ratio = p->ratio; /* of the fewest rows for which it is known */
        }
    }
}

void clb_store_reset_stats(clb_store *store)
{
    const clb_store_stats old = store->stats;
    store->stats = (clb_store_stats){
        .resident_bytes = old.resident_bytes,
        .load_bytes = old.load_bytes,
        .load_ns = old.load_ns,
        .load_read_ns = old.load_read_ns,
        .load_pack_ns = old.load_pack_ns,
        .layer_slot_bytes = old.layer_slot_bytes,
    };
    if (store->io)
        clb_io_reset_stats(store->io);
    if (store->experts)
        clb_cache_reset_stats(store->experts->cache);
}

const char *clb_store_policy_name(const clb_store *store)
{
    return store->experts ? store->experts->cache->options.policy->name : "";
}

bool clb_store_keeps_profile(const clb_store *store)
{
    return store->experts && store->experts->cache->options.policy->save && store->experts->cache->options.policy->load;
}

size_t clb_store_save_profile(clb_store *store, void *buf, size_t size)
{
    return clb_cache_save(store->experts->cache, buf, size);
}

int clb_store_load_profile(clb_store *store, const void *buf, size_t size, clb_error *err)
{
    return clb_cache_load(store->experts->cache, buf, size, err);
}
