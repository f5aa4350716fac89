#include "store/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

#define SMALL_CHUNK (1u << 20)
#define HUGE_PAGE   (2u << 20)
#define READ_CHUNK  (1u << 20)

static void *map_region(clb_store *store, size_t bytes, const char *what, clb_error *err)
{
    if (store->n_regions == store->cap_regions) {
        const size_t cap = store->cap_regions ? 2 * store->cap_regions : 64;
        void *p = realloc(store->regions, cap * sizeof *store->regions);
        if (!p) {
            CLB_NOMEM(err, what);
            return NULL;
        }
        store->regions = p;
        store->cap_regions = cap;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        char human[24];
        clb_fail_errno(err, COLIBRI_E_NOMEM, errno, "cannot get %s for %s", clb_human_bytes(bytes, human), what);
        return NULL;
    }
    if (bytes >= HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* a wish; refusal changes speed only */
    if (store->options.mlock && mlock(p, bytes)) {
        clb_fail_errno(err, COLIBRI_E_NOMEM, errno, "cannot lock %s in memory (raise `ulimit -l` or drop --mlock)",
                       what);
        munmap(p, bytes);
        return NULL;
    }
    store->regions[store->n_regions].p = p;
    store->regions[store->n_regions].n = bytes;
    store->n_regions++;
    return p;
}

void *clb_store_alloc(clb_store *store, uint64_t bytes, const char *what, clb_error *err)
{
    if (bytes > SIZE_MAX - HUGE_PAGE) {
        clb_fail(err, COLIBRI_E_NOMEM, "%s is larger than the address space", what);
        return NULL;
    }
    const size_t n = ((size_t)bytes + 63) & ~(size_t)63;
    store->stats.resident_bytes += n;
    if (n >= SMALL_CHUNK / 4)
        return map_region(store, (n + CLB_STORE_PAGE - 1) & ~(size_t)(CLB_STORE_PAGE - 1), what, err);
    if (n > store->chunk_left) {
        store->chunk = map_region(store, SMALL_CHUNK, what, err);
        store->chunk_left = store->chunk ? SMALL_CHUNK : 0;
        if (!store->chunk)
            return NULL;
    }
    uint8_t *p = store->chunk;
    store->chunk += n;
    store->chunk_left -= n;
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
    clb_experts_destroy(store);
    for (size_t i = 0; i < store->n_regions; i++)
        munmap(store->regions[i].p, store->regions[i].n);
    free(store->regions);
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

struct read_job {
    clb_store *store;
    const clb_gguf_tensor *t;
    uint64_t offset;
    const clb_matrix *m;
    uint8_t *dst;
    uint32_t chunk_groups;
    atomic_uint next; /* group */
    atomic_int failed;
    clb_error err; /* of the first worker that failed */
    atomic_ullong read_ns, pack_ns;
};

static void read_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct read_job *job = ctx;
    const clb_matrix *m = job->m;
    const uint32_t n_groups = (m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
    const bool direct = m->format->layout == COLIBRI_LAYOUT_ROWS;
    uint64_t read_ns = 0, pack_ns = 0;
    while (!atomic_load(&job->failed)) {
        const uint32_t begin = atomic_fetch_add(&job->next, job->chunk_groups);
        if (begin >= n_groups)
            break;
        const uint32_t end = n_groups - begin < job->chunk_groups ? n_groups : begin + job->chunk_groups;
        const uint32_t row_end = end == n_groups ? m->n_rows : end * COLIBRI_GROUP_ROWS;
        const uint32_t rows = row_end - begin * COLIBRI_GROUP_ROWS;
        uint8_t *to = job->dst + begin * m->group_stride;
        uint8_t *buf = direct ? to : job->store->staging[worker];
        clb_error err;
        const uint64_t t0 = clb_now_ns();
        if (clb_gguf_read(job->store->options.gguf, job->t, job->offset + begin * m->group_stride, buf,
                          (size_t)(rows * m->row_bytes), &err)) {
            int expected = 0;
            if (atomic_compare_exchange_strong(&job->failed, &expected, 1))
                job->err = err;
            break;
        }
        const uint64_t t1 = clb_now_ns();
        if (!direct) {
            /* the chunk is a matrix of its own: same format, fewer rows */
            clb_matrix part = *m;
            part.n_rows = rows;
            clb_matrix_pack_groups(&part, buf, to, 0, end - begin);
        }
        read_ns += t1 - t0;
        pack_ns += clb_now_ns() - t1;
    }
    atomic_fetch_add(&job->read_ns, read_ns);
    atomic_fetch_add(&job->pack_ns, pack_ns);
}

int clb_store_read_matrix(clb_store *store, const clb_gguf_tensor *t, uint64_t offset, const clb_matrix *m, void *dst,
                          clb_error *err)
{
    uint32_t chunk = (uint32_t)(READ_CHUNK / m->group_stride);
    chunk = chunk ? chunk : 1;
    CLB_TRY(clb_store_reserve_staging(store, (size_t)(chunk * m->group_stride), err));
    struct read_job job = {.store = store, .t = t, .offset = offset, .m = m, .dst = dst, .chunk_groups = chunk};
    clb_pool_run(store->options.pool, read_worker, &job);
    store->stats.read_ns += atomic_load(&job.read_ns);
    store->stats.pack_ns += atomic_load(&job.pack_ns);
    if (atomic_load(&job.failed)) {
        if (err)
            *err = job.err;
        return job.err.code;
    }
    return COLIBRI_OK;
}

int clb_store_load_matrix(clb_store *store, const clb_gguf_tensor *t, uint64_t offset, clb_matrix *m, clb_error *err)
{
    const uint64_t bytes = m->row_bytes * m->n_rows;
    assert(offset + bytes <= t->n_bytes);
    if (m->format->layout == COLIBRI_LAYOUT_ROWS && (m->data = clb_store_mapped(store, t, offset, 16)) != NULL) {
        store->stats.resident_bytes += bytes;
    } else {
        void *dst = clb_store_alloc(store, m->bytes, t->name.p, err);
        if (!dst)
            return err ? err->code : COLIBRI_E_NOMEM;
        CLB_TRY(clb_store_read_matrix(store, t, offset, m, dst, err));
        m->data = dst;
    }
    store->stats.load_bytes += bytes;
    clb_progress(store->options.log, "loading weights", store->stats.load_bytes, store->options.expected_bytes);
    return COLIBRI_OK;
}

int clb_store_load_floats(clb_store *store, const clb_gguf_tensor *t, const float **out, clb_error *err)
{
    *out = NULL;
    const struct colibri_format *format = clb_registry_format(store->options.registry, t->type, err);
    if (!format)
        return clb_context(err, "tensor %s", t->name.p);
    float *dst = clb_store_alloc(store, t->n_elems * sizeof *dst, t->name.p, err);
    void *raw = malloc((size_t)t->n_bytes + 1);
    int rc = dst && raw ? COLIBRI_OK : CLB_NOMEM(err, t->name.p);
    if (!rc)
        rc = clb_gguf_read(store->options.gguf, t, 0, raw, (size_t)t->n_bytes, err);
    if (!rc) {
        format->dequantize(raw, dst, (size_t)t->n_elems);
        store->stats.load_bytes += t->n_bytes;
        *out = dst;
    }
    free(raw);
    return rc;
}

void clb_store_get_stats(const clb_store *store, clb_store_stats *out)
{
    *out = store->stats;
    const clb_experts *x = store->experts;
    if (!x)
        return;
    out->n_slots = x->n_slots;
    out->n_experts = x->n_layers * x->n_experts;
    out->slot_bytes = x->arena_bytes;
    out->bad_answers = x->host.bad_answers;
    out->policy_ns = x->host.ns;
    out->policy = x->host.policy->name;
}

void clb_store_reset_stats(clb_store *store)
{
    clb_store_stats *s = &store->stats;
    s->hits = s->misses = s->evictions = s->expert_bytes_read = s->read_ns = s->pack_ns = 0;
    if (store->experts)
        store->experts->host.bad_answers = store->experts->host.ns = 0;
}
