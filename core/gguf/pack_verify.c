/* Verification of packed files without their source: every block, with all workers, as fast as the drive delivers. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/escape.h"
#include "gguf/pack_internal.h"

/* Blocks are taken in parcels of about this size, and read in pieces of at most it. */
#define PARCEL ((uint64_t)1 << 20)
#define AHEAD  (16 * PARCEL)

/* A run of one of the files. */
typedef struct stretch {
    uint32_t shard, run;
    uint64_t first_parcel, n_parcels, per_parcel; /* blocks in a parcel */
} stretch;

typedef struct job {
    const clb_gguf *g;
    const clb_pack_options *options;
    clb_pack_report report;
    void *report_ctx;
    stretch *stretches;
    size_t n_stretches;
    uint64_t n_parcels, total;
    atomic_ullong next, done, bad;
    atomic_bool stop;
    atomic_flag lock; /* of err and report */
    clb_error err;
} job;

static void fail(job *j, const clb_error *err)
{
    while (atomic_flag_test_and_set_explicit(&j->lock, memory_order_acquire))
        ;
    if (!atomic_exchange(&j->stop, true))
        j->err = *err;
    atomic_flag_clear_explicit(&j->lock, memory_order_release);
}

static const clb_gguf_tensor *tensor_of(const clb_gguf *g, uint32_t shard, uint32_t run)
{
    uint64_t i = 0;
    while (clb_gguf_tensor_at(g, i)->shard != shard || clb_gguf_tensor_at(g, i)->run != run)
        i++; /* the reader refuses runs without a tensor */
    return clb_gguf_tensor_at(g, i);
}

static void report_block(job *j, const stretch *s, uint64_t block)
{
    char what[400], name[100], expert[40] = "";
    const clb_gguf_tensor *t = tensor_of(j->g, s->shard, s->run);
    const clb_packed_run *run = &j->g->shards[s->shard].runs[s->run];
    if (t->expert_stride)
        snprintf(expert, sizeof expert, ", expert %llu", (unsigned long long)block);
    snprintf(what, sizeof what, "%s%s, block at byte %llu: does not match its checksum",
             clb_escape(t->name, name, sizeof name), expert, (unsigned long long)(run->offset + block * run->block));
    while (atomic_flag_test_and_set_explicit(&j->lock, memory_order_acquire))
        ;
    if (j->report)
        j->report(j->report_ctx, clb_gguf_shard_path(j->g, s->shard), what);
    atomic_flag_clear_explicit(&j->lock, memory_order_release);
    atomic_fetch_add(&j->bad, 1);
}

/* Blocks smaller than a parcel arrive in one read, larger ones in several. */
static int check_parcel(job *j, const stretch *s, uint64_t parcel, unsigned char *buf, clb_error *err)
{
    const clb_gguf_shard *shard = &j->g->shards[s->shard];
    const clb_packed_run *run = &shard->runs[s->run];
    const uint64_t n_blocks = (run->bytes - 1) / run->block + 1;
    const uint64_t first = (parcel - s->first_parcel) * s->per_parcel;
    const uint64_t last = first + s->per_parcel < n_blocks ? first + s->per_parcel : n_blocks;
    const uint64_t begin = first * run->block;
    const uint64_t end = last * run->block < run->bytes ? last * run->block : run->bytes;
    XXH3_state_t hash;
    uint64_t block = first, block_end = begin;
    if (shard->src.fd >= 0)
        (void)posix_fadvise(shard->src.fd, (off_t)(run->offset + begin + AHEAD), (off_t)(end - begin),
                            POSIX_FADV_WILLNEED);
    for (uint64_t at = begin; at < end;) {
        const uint64_t n = end - at < PARCEL ? end - at : PARCEL;
        CLB_TRY(clb_gguf_source_read(&shard->src, run->offset + at, buf, (size_t)n, err));
        for (uint64_t used = 0; used < n;) {
            if (at + used == block_end) {
                XXH3_64bits_reset(&hash);
                block_end = (block + 1) * run->block < run->bytes ? (block + 1) * run->block : run->bytes;
            }
            const uint64_t left = block_end - at - used, part = n - used < left ? n - used : left;
            XXH3_64bits_update(&hash, buf + used, (size_t)part);
            used += part;
            if (at + used != block_end)
                continue;
            if (XXH3_64bits_digest(&hash) != clb_le64(shard->sums + 8 * (run->first_sum + block)))
                report_block(j, s, block);
            block++;
        }
        at += n;
    }
    atomic_fetch_add(&j->done, end - begin);
    return COLIBRI_OK;
}

static void work(void *ctx, uint32_t index, uint32_t n_workers)
{
    (void)n_workers;
    job *j = ctx;
    clb_error err;
    size_t s = 0;
    unsigned char *buf = malloc(PARCEL);
    if (!buf) {
        CLB_NOMEM(&err, "the buffers of a verification");
        fail(j, &err);
        return;
    }
    while (!atomic_load_explicit(&j->stop, memory_order_relaxed)) {
        const uint64_t parcel = atomic_fetch_add(&j->next, 1);
        if (parcel >= j->n_parcels)
            break;
        while (parcel - j->stretches[s].first_parcel >= j->stretches[s].n_parcels)
            s++; /* parcel numbers only grow */
        int rc = COLIBRI_OK;
        if (j->options->cancelled && j->options->cancelled(j->options->cancelled_ctx))
            rc = clb_fail(&err, COLIBRI_E_CANCELLED, "verifying was interrupted");
        if (!rc)
            rc = check_parcel(j, &j->stretches[s], parcel, buf, &err);
        if (rc) {
            fail(j, &err);
            break;
        }
        if (index == 0)
            clb_progress(j->options->log, "verifying", atomic_load(&j->done), j->total + 1);
    }
    free(buf);
}

static int by_place(const void *a, const void *b, void *ctx)
{
    const stretch *x = a, *y = b;
    const clb_gguf *g = ctx;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    const uint64_t p = g->shards[x->shard].runs[x->run].offset, q = g->shards[y->shard].runs[y->run].offset;
    return (p > q) - (p < q);
}

static void number_parcels(job *j)
{
    for (size_t i = 0; i < j->n_stretches; i++) {
        stretch *s = &j->stretches[i];
        const clb_packed_run *run = &j->g->shards[s->shard].runs[s->run];
        const uint64_t n_blocks = (run->bytes - 1) / run->block + 1;
        s->per_parcel = run->block < PARCEL ? PARCEL / run->block : 1;
        s->first_parcel = j->n_parcels;
        s->n_parcels = (n_blocks - 1) / s->per_parcel + 1;
        j->n_parcels += s->n_parcels;
        j->total += run->bytes;
    }
}

int clb_pack_verify(const clb_gguf *g, const clb_pack_options *options, clb_pack_report report, void *ctx,
                    uint64_t *n_bad, clb_error *err)
{
    char path[304];
    const char *shown = clb_gguf_short_path(clb_gguf_shard_path(g, 0), path);
    *n_bad = 0;
    if (!clb_gguf_is_packed(g))
        return clb_fail(err, COLIBRI_E_USAGE, "%s is not a packed file: only those have checksums", shown);
    if (!clb_gguf_has_checksums(g))
        return clb_fail(err, COLIBRI_E_USAGE, "%s has no checksums", shown);
    job j = {.g = g, .options = options, .report = report, .report_ctx = ctx};
    size_t n = 0;
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        n += g->shards[i].n_runs;
    j.stretches = calloc(n + 1, sizeof *j.stretches);
    if (!j.stretches)
        return CLB_NOMEM(err, "the list of blocks");
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++) {
        for (uint32_t r = 0; r < g->shards[i].n_runs; r++)
            j.stretches[j.n_stretches++] = (stretch){.shard = i, .run = r};
        /* What lies in the page cache says nothing about the drive. */
        if (clb_gguf_shard_fd(g, i) >= 0)
            (void)posix_fadvise(clb_gguf_shard_fd(g, i), 0, 0, POSIX_FADV_DONTNEED);
    }
    qsort_r(j.stretches, n, sizeof *j.stretches, by_place, (void *)(uintptr_t)g);
    number_parcels(&j);
    atomic_flag_clear(&j.lock);
    clb_pool_run(options->pool, work, &j);
    clb_progress(options->log, "verifying", 1, 1);
    free(j.stretches);
    *n_bad = atomic_load(&j.bad);
    if (!atomic_load(&j.stop))
        return COLIBRI_OK;
    if (err)
        *err = j.err;
    return j.err.code;
}
