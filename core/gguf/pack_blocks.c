/* The bytes of packed files: every worker takes the next block, brings it piece by piece into the packed layout and
 * hashes it on the way. The same walk compares a written file with its source. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gguf/pack_internal.h"

#define PAGE ((size_t)CLB_PACKED_ALIGNMENT)

typedef struct job {
    clb_pack *pack;
    const int *fds;         /* writing; NULL: comparing */
    const int *direct;      /* the same files for O_DIRECT; -1: not to be had */
    const clb_gguf *packed; /* comparing */
    clb_pack_report report;
    void *report_ctx;
    const char *what; /* for progress */
    uint64_t total, buffer;
    atomic_ullong next, done, bad;
    atomic_bool stop;
    atomic_flag lock; /* of err and report */
    clb_error err;
} job;

typedef struct worker {
    job *job;
    bool is_caller;
    uint8_t *pages;             /* room for `file` at any place in a page */
    uint8_t *file, *rows, *own; /* bytes as in the file; rows of the source; rows unpacked from the file */
    XXH3_state_t *hash;
    bool differs; /* comparing: of the block at hand */
} worker;

static void take_lock(job *j)
{
    while (atomic_flag_test_and_set_explicit(&j->lock, memory_order_acquire))
        ;
}

static void drop_lock(job *j)
{
    atomic_flag_clear_explicit(&j->lock, memory_order_release);
}

static void fail(job *j, const clb_error *err)
{
    take_lock(j);
    if (!atomic_exchange(&j->stop, true))
        j->err = *err;
    drop_lock(j);
}

/* Whole pages past the page cache, if the file system and the buffer's place allow it; the rest through it. Writing
 * gigabytes through the page cache costs more than packing them, and pushes out what others keep there. */
static int put(const job *j, const clb_pack_run *run, uint64_t at, const uint8_t *bytes, size_t n, clb_error *err)
{
    char path[304];
    const int fd = j->fds[run->file], direct = j->direct[run->file];
    uint64_t to = j->pack->files[run->file].data + run->offset + at;
    while (n) {
        const size_t to_page = (size_t)((PAGE - to % PAGE) % PAGE), pages = n / PAGE * PAGE;
        const bool past = direct >= 0 && to_page == 0 && pages && (uintptr_t)bytes % PAGE == 0;
        const size_t ask = past ? pages : direct >= 0 && to_page && to_page < n ? to_page : n;
        ssize_t done = pwrite(past ? direct : fd, bytes, ask, (off_t)to);
        if (done < 0 && errno == EINVAL && past)
            done = pwrite(fd, bytes, ask, (off_t)to);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return clb_fail_errno(err, COLIBRI_E_IO, done < 0 ? errno : ENOSPC, "cannot write the packed file of %s",
                                  clb_gguf_short_path(clb_gguf_shard_path(j->pack->source, 0), path));
        bytes += done;
        to += (uint64_t)done;
        n -= (size_t)done;
    }
    return COLIBRI_OK;
}

static int get(const job *j, const clb_pack_run *run, uint64_t at, uint8_t *bytes, size_t n, clb_error *err)
{
    return clb_gguf_source_read(&j->packed->shards[run->file].src, j->pack->files[run->file].data + run->offset + at,
                                bytes, n, err);
}

/* Rows between the source's form and the file's. n_rows may be those of a group that is not full. */
static void pack_rows(const clb_pack_part *part, const uint8_t *rows, uint64_t n_rows, uint8_t *out)
{
    for (uint64_t r = 0; r < n_rows; r += COLIBRI_GROUP_ROWS, out += part->row_bytes * COLIBRI_GROUP_ROWS) {
        const uint64_t n = n_rows - r < COLIBRI_GROUP_ROWS ? n_rows - r : COLIBRI_GROUP_ROWS;
        part->format->pack(rows + r * part->row_bytes, (size_t)part->row_bytes, (uint32_t)n, (uint32_t)part->ne[0],
                           out);
    }
}

static void unpack_rows(const clb_pack_part *part, const uint8_t *in, uint64_t n_rows, uint8_t *rows)
{
    for (uint64_t r = 0; r < n_rows; r += COLIBRI_GROUP_ROWS, in += part->row_bytes * COLIBRI_GROUP_ROWS) {
        const uint64_t n = n_rows - r < COLIBRI_GROUP_ROWS ? n_rows - r : COLIBRI_GROUP_ROWS;
        part->format->unpack(in, (uint32_t)n, (uint32_t)part->ne[0], rows + r * part->row_bytes,
                             (size_t)part->row_bytes);
    }
}

/* Bytes [begin, end) of a part of expert e (0 for plain tensors), whose file bytes begin at `at` in its run. */
static int walk_part(worker *w, const clb_pack_run *run, const clb_pack_part *part, uint64_t e, uint64_t begin,
                     uint64_t end, uint64_t at, clb_error *err)
{
    const job *j = w->job;
    const clb_gguf_tensor *src = part->source[part->per_expert ? e : 0];
    const uint64_t src_at = part->src_offset + (part->per_expert ? 0 : e * part->src_stride);
    const uint64_t logical = part->row_bytes * part->n_rows, unit = clb_packed_unit(part->row_bytes, part->x16);
    for (uint64_t from = begin; from < end; from += unit) {
        const size_t n = (size_t)(end - from < unit ? end - from : unit);
        /* Groups are as large as their rows; only the last one may be longer than what is left of the rows. */
        const size_t n_src = (size_t)(logical - from < n ? logical - from : n);
        /* In memory the bytes lie in their page as in the file: direct writes want that. */
        w->file = w->pages + (j->pack->files[run->file].data + run->offset + at + (from - begin)) % PAGE;
        uint8_t *rows = part->x16 || !j->fds ? w->rows : w->file;
        CLB_TRY(clb_gguf_read(j->pack->source, src, src_at + from, rows, n_src, err));
        if (j->fds && part->x16)
            pack_rows(part, rows, n_src / part->row_bytes, w->file);
        if (!j->fds)
            CLB_TRY(get(j, run, at + (from - begin), w->file, n, err));
        XXH3_64bits_update(w->hash, w->file, n);
        if (j->fds) {
            CLB_TRY(put(j, run, at + (from - begin), w->file, n, err));
            continue;
        }
        const uint8_t *own = w->file;
        if (part->x16) {
            unpack_rows(part, w->file, n_src / part->row_bytes, w->own);
            own = w->own;
        }
        w->differs = w->differs || memcmp(own, rows, n_src) != 0;
    }
    return COLIBRI_OK;
}

/* Zeros between the parts of a block and behind them: new files have them already. */
static int walk_padding(worker *w, const clb_pack_run *run, uint64_t at, uint64_t n, clb_error *err)
{
    assert(n < CLB_PACKED_ALIGNMENT + CLB_PACKED_PART);
    memset(w->pages, 0, (size_t)n);
    if (!w->job->fds)
        CLB_TRY(get(w->job, run, at, w->pages, (size_t)n, err));
    XXH3_64bits_update(w->hash, w->pages, (size_t)n);
    return COLIBRI_OK;
}

static int walk_block(worker *w, const clb_pack_run *run, uint64_t block, clb_error *err)
{
    const clb_pack *pack = w->job->pack;
    const uint64_t at = block * run->block;
    if (!run->experts) {
        const uint64_t left = run->bytes - at;
        return walk_part(w, run, &pack->parts[run->first], 0, at, at + (left < run->block ? left : run->block), at,
                         err);
    }
    uint64_t done = 0;
    for (uint32_t p = 0; p < run->n; p++) {
        const clb_pack_part *part = &pack->parts[run->first + p];
        CLB_TRY(walk_padding(w, run, at + done, part->at - done, err));
        CLB_TRY(walk_part(w, run, part, block, 0, part->bytes, at + part->at, err));
        done = part->at + part->bytes;
    }
    return walk_padding(w, run, at + done, run->block - done, err);
}

static void report_block(worker *w, const clb_pack_run *run, uint64_t block, bool checksum)
{
    job *j = w->job;
    char what[400], expert[40] = "";
    if (run->experts)
        snprintf(expert, sizeof expert, ", expert %llu", (unsigned long long)block);
    snprintf(what, sizeof what, "%s%s, block at byte %llu: %s", j->pack->parts[run->first].name, expert,
             (unsigned long long)(j->pack->files[run->file].data + run->offset + block * run->block),
             checksum ? "does not match its checksum" : "differs from the source");
    take_lock(j);
    if (j->report)
        j->report(j->report_ctx, clb_gguf_shard_path(j->packed, run->file), what);
    drop_lock(j);
    atomic_fetch_add(&j->bad, 1);
}

static bool allocate(worker *w, uint64_t buffer)
{
    void *room;
    if (posix_memalign(&room, PAGE, 3 * (size_t)buffer + 2 * PAGE + sizeof(XXH3_state_t)))
        return false;
    uint8_t *p = room;
    w->pages = p;
    w->rows = p + buffer + 2 * PAGE;
    w->own = w->rows + buffer;
    w->hash = (XXH3_state_t *)(void *)(w->own + buffer);
    return true;
}

static int next_block(worker *w, uint64_t i, uint32_t *r, clb_error *err)
{
    job *j = w->job;
    const clb_pack *pack = j->pack;
    while (i - pack->runs[*r].first_block >= pack->runs[*r].n_blocks)
        (*r)++; /* block numbers only grow */
    const clb_pack_run *run = &pack->runs[*r];
    const uint64_t block = i - run->first_block, left = run->bytes - block * run->block;
    if (pack->options.cancelled && pack->options.cancelled(pack->options.cancelled_ctx))
        return clb_fail(err, COLIBRI_E_CANCELLED, "%s was interrupted", j->what);
    XXH3_64bits_reset(w->hash);
    w->differs = false;
    CLB_TRY(walk_block(w, run, block, err));
    const uint64_t sum = XXH3_64bits_digest(w->hash);
    const bool is_good = j->fds || sum == clb_le64(j->packed->shards[run->file].sums +
                                                   8 * (i - pack->runs[pack->files[run->file].first].first_block));
    if (j->fds)
        pack->sums[i] = sum;
    else if (!is_good || w->differs)
        report_block(w, run, block, !is_good);
    const uint64_t done = atomic_fetch_add(&j->done, left < run->block ? left : run->block);
    if (w->is_caller)
        clb_progress(pack->options.log, j->what, done, j->total + 1);
    return COLIBRI_OK;
}

static void work(void *ctx, uint32_t index, uint32_t n_workers)
{
    (void)n_workers;
    job *j = ctx;
    worker w = {.job = j, .is_caller = index == 0};
    clb_error err;
    uint32_t r = 0;
    if (!allocate(&w, j->buffer)) {
        CLB_NOMEM(&err, "the buffers of packing");
        fail(j, &err);
        return;
    }
    while (!atomic_load_explicit(&j->stop, memory_order_relaxed)) {
        const uint64_t i = atomic_fetch_add(&j->next, 1);
        if (i >= j->pack->n_blocks)
            break;
        if (next_block(&w, i, &r, &err)) {
            fail(j, &err);
            break;
        }
    }
    free(w.pages);
}

static int run_job(job *j, clb_error *err)
{
    clb_pack *pack = j->pack;
    j->buffer = CLB_PACKED_UNIT;
    for (uint32_t i = 0; i < pack->n_parts; i++) {
        const uint64_t unit = clb_packed_unit(pack->parts[i].row_bytes, pack->parts[i].x16);
        j->buffer = unit > j->buffer ? unit : j->buffer;
    }
    j->buffer = clb_packed_round(j->buffer, 64);
    for (uint32_t r = 0; r < pack->n_runs; r++)
        j->total += pack->runs[r].bytes;
    atomic_flag_clear(&j->lock);
    clb_pool_run(pack->options.pool, work, j);
    clb_progress(pack->options.log, j->what, 1, 1);
    if (!atomic_load(&j->stop))
        return COLIBRI_OK;
    if (err)
        *err = j->err;
    return j->err.code;
}

int clb_pack_write_blocks(clb_pack *pack, const int *fds, const int *direct, clb_error *err)
{
    job j = {.pack = pack, .fds = fds, .direct = direct, .what = "packing"};
    return run_job(&j, err);
}

/* Whether the files are what this plan writes: else comparing block by block has no meaning. */
static int check_same_plan(const clb_pack *pack, const clb_gguf *packed, clb_error *err)
{
    char path[304];
    bool same = clb_gguf_is_packed(packed) && clb_gguf_has_checksums(packed) &&
                clb_gguf_n_shards(packed) == pack->n_files && clb_gguf_n_tensors(packed) == pack->n_parts;
    for (uint32_t i = 0; same && i < pack->n_files; i++) {
        const clb_gguf_shard *shard = &packed->shards[i];
        same = shard->n_runs == pack->files[i].n && shard->data == pack->files[i].data;
        for (uint32_t r = 0; same && r < shard->n_runs; r++) {
            const clb_pack_run *run = &pack->runs[pack->files[i].first + r];
            same = shard->runs[r].offset == shard->data + run->offset && shard->runs[r].bytes == run->bytes &&
                   shard->runs[r].block == run->block;
        }
    }
    return same ? COLIBRI_OK
                : clb_fail(err, COLIBRI_E_FORMAT, "%s: not what this model becomes when it is packed",
                           clb_gguf_short_path(clb_gguf_shard_path(packed, 0), path));
}

/* What lies in the page cache says nothing about the drive. */
static void forget_cached(const clb_gguf *g)
{
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        if (clb_gguf_shard_fd(g, i) >= 0)
            (void)posix_fadvise(clb_gguf_shard_fd(g, i), 0, 0, POSIX_FADV_DONTNEED);
}

int clb_pack_compare(clb_pack *pack, const char *path, clb_pack_report report, void *ctx, uint64_t *n_bad,
                     clb_error *err)
{
    char *first = NULL;
    clb_gguf *packed = NULL;
    *n_bad = 0;
    int rc = COLIBRI_OK;
    CLB_GO(clb_pack_path(pack, path, 0, &first, err));
    CLB_GO(clb_gguf_open(first, pack->source->geometry, pack->source->geometry_ctx, &packed, err));
    CLB_GO(check_same_plan(pack, packed, err));
    forget_cached(packed);
    job j = {.pack = pack, .packed = packed, .report = report, .report_ctx = ctx, .what = "comparing"};
    rc = run_job(&j, err);
    *n_bad = atomic_load(&j.bad);
done:
    clb_gguf_close(packed);
    free(first);
    return rc;
}
