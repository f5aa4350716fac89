/* Bringing bytes of the file into memory: one list of reads, cut into chunks that all workers take in file order.
 *
 * A chunk is read into a buffer that stays in the worker's L2 cache and packed from there, so that each byte crosses
 * the memory bus once as page cache and once as packed weight, and never lies there in two forms. Chunks of all reads
 * are numbered through: many small matrices (experts) cost no more runs of the pool than one large one. */
#include <assert.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/internal.h"

/* Half of a small L2 cache. On one Zen 4 core, page cache to packed Q4_0: 2.6 to 3.0 GB/s with 64 KiB to 1 MiB, 2.2
 * with 4 MiB, 2.3 from a mapping of the file, whose pages must each be mapped first. */
#define CHUNK_BYTES ((uint64_t)512 << 10)
#define LEAST_CHUNK ((uint64_t)64 << 10)
/* Chunks per worker that a short list is cut into, so that all workers end at about the same time. */
#define CHUNKS_EACH 4u
/* How far ahead of the workers the kernel is asked to read a file that is not in the page cache, and how slow a read
 * must be (bytes per ns) to show that it is not. */
#define AHEAD_BYTES ((uint64_t)32 << 20)
#define DISK_SPEED  1.5

struct job {
    clb_store *store;
    clb_read *reads;
    size_t n_reads, n_chunks;
    bool loading;
    atomic_size_t next;
    atomic_bool failed;
    clb_error err; /* of the first worker that failed */
    atomic_ullong read_ns, pack_ns, done_bytes;
};

/* The last one may be shorter. */
static uint64_t units_of(const clb_read *r)
{
    return (r->src_bytes + r->src_unit - 1) / r->src_unit;
}

static void convert(const clb_read *r, const uint8_t *from, uint64_t bytes, uint8_t *to)
{
    if (r->as == CLB_READ_FLOATS) {
        r->format->dequantize(from, (float *)(void *)to,
                              (size_t)(bytes / r->format->block_bytes * r->format->block_elems));
        return;
    }
    const uint64_t row_bytes = r->src_unit / COLIBRI_GROUP_ROWS;
    for (uint64_t at = 0; at < bytes; at += r->src_unit, to += r->dst_unit) {
        const uint64_t left = (bytes - at) / row_bytes;
        r->format->pack(from + at, (size_t)row_bytes, left < COLIBRI_GROUP_ROWS ? (uint32_t)left : COLIBRI_GROUP_ROWS,
                        r->n_cols, to);
    }
}

/* For a file that comes from a drive: keeps it busy while the workers pack. */
static void read_ahead(const struct job *job, const clb_read *r, uint64_t at, uint64_t bytes)
{
    const int fd = clb_gguf_shard_fd(job->store->options.gguf, r->tensor->shard);
    if (fd >= 0)
        posix_fadvise(fd, (off_t)(r->tensor->offset + r->offset + at + AHEAD_BYTES), (off_t)bytes, POSIX_FADV_WILLNEED);
}

static void forget(const struct job *job, const clb_read *r, uint64_t at, uint64_t bytes)
{
    const int fd = clb_gguf_shard_fd(job->store->options.gguf, r->tensor->shard);
    if (fd >= 0)
        posix_fadvise(fd, (off_t)(r->tensor->offset + r->offset + at), (off_t)bytes, POSIX_FADV_DONTNEED);
}

static void fail(struct job *job, const clb_error *err)
{
    bool expected = false;
    if (atomic_compare_exchange_strong(&job->failed, &expected, true))
        job->err = *err;
}

/* The bytes are used or compared where they lie. */
static bool in_place(const clb_read *r)
{
    return r->as == CLB_READ_PLAIN || r->as == CLB_READ_BLOCK || (r->as == CLB_READ_CHECK && r->dst);
}

static int bring(const clb_store *store, const clb_read *r, uint64_t at, uint8_t *buf, uint64_t bytes, clb_error *err)
{
    if (r->as == CLB_READ_CHECK && r->dst)
        return COLIBRI_OK;
    if (r->as == CLB_READ_BLOCK)
        return clb_gguf_read_block(store->options.gguf, r->tensor, r->offset / r->tensor->expert_stride, buf, err);
    return clb_gguf_read(store->options.gguf, r->tensor, r->offset + at, buf, (size_t)bytes, err);
}

static int compare(const clb_store *store, const clb_read *r, uint64_t at, const uint8_t *buf, uint64_t bytes,
                   clb_error *err)
{
    return r->as == CLB_READ_BLOCK ? clb_gguf_verify_block(store->options.gguf, r->tensor,
                                                           r->offset / r->tensor->expert_stride, buf, bytes, err)
                                   : clb_gguf_verify_piece(store->options.gguf, r->tensor, at, buf, bytes, err);
}

static void read_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct job *job = ctx;
    const clb_store *store = job->store;
    uint64_t read_ns = 0, pack_ns = 0;
    size_t i = 0;
    while (!atomic_load_explicit(&job->failed, memory_order_relaxed)) {
        const size_t chunk = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (chunk >= job->n_chunks)
            break;
        while (chunk - job->reads[i].first_chunk >= job->reads[i].n_chunks)
            i++; /* chunk numbers only grow */
        const clb_read *r = &job->reads[i];
        const uint64_t first = (chunk - r->first_chunk) * r->chunk_units, at = first * r->src_unit;
        const uint64_t most = r->chunk_units * r->src_unit;
        const uint64_t bytes = r->src_bytes - at < most ? r->src_bytes - at : most;
        uint8_t *to = r->dst ? r->dst + first * r->dst_unit : NULL;
        uint8_t *buf = in_place(r) ? to : store->staging[worker];
        clb_error err;
        if (worker == 0 && clb_store_cancelled(store)) { /* the caller's thread */
            (void)clb_fail(&err, COLIBRI_E_CANCELLED, "stopped on request");
            fail(job, &err);
            break;
        }
        const uint64_t t0 = clb_now_ns();
        if (bring(store, r, at, buf, bytes, &err)) {
            fail(job, &err);
            break;
        }
        const uint64_t t1 = clb_now_ns();
        if (job->loading && (double)bytes < DISK_SPEED * (double)(t1 - t0))
            read_ahead(job, r, at, bytes);
        if (r->verify && compare(store, r, at, buf, bytes, &err)) {
            fail(job, &err);
            break;
        }
        if (r->as == CLB_READ_PACK || r->as == CLB_READ_FLOATS)
            convert(r, buf, bytes, to);
        if (job->loading && store->options.drop_cache)
            forget(job, r, at, bytes);
        read_ns += t1 - t0;
        pack_ns += clb_now_ns() - t1;
        if (!job->loading)
            continue;
        const uint64_t done = atomic_fetch_add_explicit(&job->done_bytes, bytes, memory_order_relaxed) + bytes;
        if (worker == 0) /* the caller's thread */
            clb_progress(store->options.log, "loading weights", store->stats.load_bytes + done,
                         store->options.expected_bytes);
    }
    atomic_fetch_add(&job->read_ns, read_ns);
    atomic_fetch_add(&job->pack_ns, pack_ns);
}

static int by_place(const void *a, const void *b)
{
    const clb_read *x = a, *y = b;
    if (x->tensor->shard != y->tensor->shard)
        return x->tensor->shard < y->tensor->shard ? -1 : 1;
    const uint64_t p = x->tensor->offset + x->offset, q = y->tensor->offset + y->offset;
    return (p > q) - (p < q);
}

/* Bytes of the tensor that one checksum covers, if they are to be compared; else 0. */
static uint64_t verify_unit(const clb_store *store, const clb_gguf_tensor *t)
{
    if (store->options.verify == CLB_VERIFY_NEVER || t->expert_stride)
        return 0;
    return clb_gguf_verify_unit(store->options.gguf, t);
}

/* Whether chunks of this read can consist of whole blocks: then they are compared while they lie in the cache. */
static bool verifies_itself(const clb_read *r, uint64_t unit)
{
    return r->offset == 0 && r->src_bytes == r->tensor->file_bytes &&
           (r->as == CLB_READ_PLAIN || unit % r->src_unit == 0 || r->src_bytes <= unit);
}

/* Cuts a read into chunks of about chunk_bytes. */
static void cut(const clb_store *store, clb_read *r, uint64_t chunk_bytes)
{
    if (r->as == CLB_READ_BLOCK) {
        r->n_chunks = 1;
        r->chunk_units = 1;
        r->verify = store->options.verify != CLB_VERIFY_NEVER;
        return;
    }
    const uint64_t unit = verify_unit(store, r->tensor);
    r->verify = unit && verifies_itself(r, unit);
    if (r->verify && r->as == CLB_READ_PLAIN)
        r->src_unit = r->dst_unit = unit;
    const uint64_t units = units_of(r);
    const uint64_t step = !r->verify ? 1 : unit % r->src_unit ? units : unit / r->src_unit; /* units in a block */
    uint64_t each = chunk_bytes / r->src_unit / step * step;
    each = each ? each : step;
    r->n_chunks = (size_t)((units + each - 1) / each);
    /* of equal size, not a short last one */
    r->chunk_units = r->n_chunks ? (units + r->n_chunks - 1) / r->n_chunks : 1;
    r->chunk_units = (r->chunk_units + step - 1) / step * step;
    r->n_chunks = (size_t)((units + r->chunk_units - 1) / r->chunk_units);
}

static int run(clb_store *store, clb_read *reads, size_t n, bool loading, clb_error *err)
{
    const uint32_t n_workers = clb_pool_workers(store->options.pool);
    uint64_t total = 0, widest = 0;
    for (size_t i = 0; i < n; i++)
        total += reads[i].src_bytes;
    uint64_t chunk_bytes = total / ((uint64_t)n_workers * CHUNKS_EACH);
    chunk_bytes = chunk_bytes > CHUNK_BYTES ? CHUNK_BYTES : chunk_bytes < LEAST_CHUNK ? LEAST_CHUNK : chunk_bytes;
    struct job job = {.store = store, .reads = reads, .n_reads = n, .loading = loading};
    for (size_t i = 0; i < n; i++) {
        clb_read *r = &reads[i];
        cut(store, r, chunk_bytes);
        r->first_chunk = job.n_chunks;
        job.n_chunks += r->n_chunks;
        if (!in_place(r) && r->chunk_units * r->src_unit > widest)
            widest = r->chunk_units * r->src_unit;
    }
    CLB_TRY(clb_store_reserve_staging(store, (size_t)widest, err));
    clb_pool_run(store->options.pool, read_worker, &job);
    store->stats.read_ns += atomic_load(&job.read_ns);
    store->stats.pack_ns += atomic_load(&job.pack_ns);
    store->stats.load_bytes += atomic_load(&job.done_bytes);
    if (!atomic_load(&job.failed))
        return COLIBRI_OK;
    if (err)
        *err = job.err;
    return job.err.code;
}

int clb_store_read_now(clb_store *store, clb_read *reads, size_t n, clb_error *err)
{
    return run(store, reads, n, false, err);
}

int clb_store_queue(clb_store *store, const clb_read *read, clb_error *err)
{
    if (store->n_queued == store->cap_queued) {
        const size_t cap = store->cap_queued ? 2 * store->cap_queued : 256;
        void *p = realloc(store->queued, cap * sizeof *store->queued);
        if (!p)
            return CLB_NOMEM(err, "the list of weights");
        store->queued = p;
        store->cap_queued = cap;
    }
    store->queued[store->n_queued++] = *read;
    return COLIBRI_OK;
}

static uint64_t dst_bytes(const clb_read *r)
{
    const uint64_t bytes = r->as == CLB_READ_CHECK   ? 0
                           : r->as == CLB_READ_PLAIN ? r->src_bytes
                                                     : units_of(r) * r->dst_unit;
    return (bytes + 63) & ~UINT64_C(63);
}

int clb_store_load(clb_store *store, clb_error *err)
{
    if (store->n_queued == 0)
        return COLIBRI_OK;
    const uint64_t t0 = clb_now_ns();
    clb_read *reads = store->queued;
    const size_t n = store->n_queued;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += reads[i].dst ? 0 : dst_bytes(&reads[i]);
    int rc = COLIBRI_OK;
    uint8_t *at = NULL;
    if (total) {
        at = clb_store_map(store, total, "the weights", err);
        rc = at ? COLIBRI_OK : err ? err->code : COLIBRI_E_NOMEM;
    }
    if (!rc) {
        for (size_t i = 0; i < n; i++)
            if (!reads[i].dst && reads[i].as != CLB_READ_CHECK) {
                reads[i].dst = at;
                at += dst_bytes(&reads[i]);
            }
        store->stats.resident_bytes += total;
        qsort(reads, n, sizeof *reads, by_place);
        rc = run(store, reads, n, true, err);
    }
    if (!rc)
        for (size_t i = 0; i < n; i++) {
            if (reads[i].matrix)
                reads[i].matrix->data = reads[i].dst;
            if (reads[i].floats)
                *reads[i].floats = (const float *)(const void *)reads[i].dst;
        }
    free(store->queued);
    store->queued = NULL;
    store->n_queued = store->cap_queued = 0;
    store->stats.load_ns += clb_now_ns() - t0;
    store->stats.load_read_ns = store->stats.read_ns;
    store->stats.load_pack_ns = store->stats.pack_ns;
    return rc;
}

clb_read clb_store_matrix_read(const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset, void *dst)
{
    const bool plain = t->packed || m->format->layout == COLIBRI_LAYOUT_ROWS;
    const uint64_t bytes = t->packed ? m->bytes : m->row_bytes * m->n_rows;
    assert((t->expert_stride ? offset % t->expert_stride : offset) + bytes <= t->file_bytes);
    return (clb_read){.tensor = t,
                      .offset = offset,
                      .format = m->format,
                      .as = plain ? CLB_READ_PLAIN : CLB_READ_PACK,
                      .n_cols = m->n_cols,
                      .src_bytes = bytes,
                      .src_unit = m->group_stride,
                      .dst_unit = m->group_stride,
                      .dst = dst};
}

/* What is not compared on the way is compared by itself, as a whole; of tensors that are read in parts with the first
 * part. mapped: NULL, or the tensor's first byte. */
int clb_store_queue_check(clb_store *store, const clb_gguf_tensor *t, const uint8_t *mapped, clb_error *err)
{
    const uint64_t unit = verify_unit(store, t);
    if (!unit)
        return COLIBRI_OK;
    const clb_read check = {.tensor = t,
                            .as = CLB_READ_CHECK,
                            .src_bytes = t->file_bytes,
                            .src_unit = unit,
                            .dst_unit = unit,
                            .dst = (uint8_t *)(uintptr_t)mapped};
    return clb_store_queue(store, &check, err);
}

static int queue_verified(clb_store *store, const clb_read *read, clb_error *err)
{
    const uint64_t unit = verify_unit(store, read->tensor);
    if (unit && read->offset == 0 && !verifies_itself(read, unit))
        CLB_TRY(clb_store_queue_check(store, read->tensor, NULL, err));
    return clb_store_queue(store, read, err);
}

int clb_store_load_matrix(clb_store *store, const clb_gguf_tensor *t, uint64_t offset, clb_matrix *m, clb_error *err)
{
    const bool in_place = t->packed || m->format->layout == COLIBRI_LAYOUT_ROWS;
    const uint8_t *mapped = in_place ? clb_store_mapped(store, t, offset, 16) : NULL;
    if (mapped) {
        m->data = mapped;
        store->stats.resident_bytes += m->bytes;
        store->stats.load_bytes += m->bytes;
        return offset == 0 ? clb_store_queue_check(store, t, mapped, err) : COLIBRI_OK;
    }
    clb_read read = clb_store_matrix_read(m, t, offset, NULL);
    read.matrix = m;
    return queue_verified(store, &read, err);
}

int clb_store_load_floats(clb_store *store, const clb_gguf_tensor *t, const float **out, clb_error *err)
{
    *out = NULL;
    const struct colibri_format *format = clb_registry_format(store->options.registry, t->type, err);
    if (!format)
        return clb_context(err, "tensor %s", t->name.p);
    const clb_read read = {.tensor = t,
                           .format = format,
                           .as = CLB_READ_FLOATS,
                           .src_bytes = t->n_bytes,
                           .src_unit = format->block_bytes,
                           .dst_unit = format->block_elems * sizeof(float),
                           .floats = out};
    return queue_verified(store, &read, err);
}
