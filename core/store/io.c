/* The interface of the reader; the engine underneath is io_uring or a pool of threads. */
#include "store/io.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/io_internal.h"

/* A piece is large enough that a drive gets near its best with a few in flight, and small enough that a demand read is
 * soon served; docs/store.md has the figures. */
#define DEFAULT_DEPTH 32u
#define MOST_DEPTH    1024u
#define DEFAULT_PIECE ((uint64_t)512 << 10)
#define THREAD_STACK  ((size_t)256 << 10)

static int open_engine(clb_io *io, enum clb_io_engine want, clb_error *err)
{
    if (want != CLB_IO_PREAD) {
        io->ops = &clb_io_uring;
        const int rc = io->ops->open(io, err);
        if (!rc || want == CLB_IO_URING)
            return rc;
        clb_logf(io->log, COLIBRI_LOG_INFO, "%s; reading with threads", err ? err->msg : "io_uring is not available");
    }
    io->ops = &clb_io_pread;
    return io->ops->open(io, err);
}

int clb_io_open(const clb_io_options *options, clb_io **out, clb_error *err)
{
    *out = NULL;
    clb_io *io = calloc(1, sizeof *io);
    if (!io)
        return CLB_NOMEM(err, "the reader");
    io->log = options->log;
    io->faults = options->faults;
    io->depth = options->depth ? options->depth : DEFAULT_DEPTH;
    if (io->depth > MOST_DEPTH)
        io->depth = MOST_DEPTH;
    if (options->cpus)
        io->cpus = *options->cpus;
    else
        memset(&io->cpus, 0xff, sizeof io->cpus); /* the kernel takes what the cpuset allows of it */
    pthread_mutex_init(&io->lock, NULL);
    clb_error local;
    clb_error *e = err ? err : &local;
    int rc = clb_io_drives_open(io, options, e);
    const uint64_t piece = options->piece_bytes ? options->piece_bytes : DEFAULT_PIECE;
    io->piece_bytes = (piece + io->align - 1) & ~(io->align - 1);
    if (!rc)
        rc = clb_io_queue_open(io, e);
    if (!rc)
        rc = open_engine(io, options->engine, e);
    if (rc) {
        clb_io_queue_close(io);
        clb_io_drives_close(io);
        pthread_mutex_destroy(&io->lock);
        free(io);
        return rc;
    }
    clb_logf(io->log, COLIBRI_LOG_INFO, "reading with %s, %s, up to %u pieces of %llu KiB at once", io->ops->name,
             io->direct ? "past the page cache" : "through the page cache", io->depth,
             (unsigned long long)(io->piece_bytes >> 10));
    *out = io;
    return COLIBRI_OK;
}

void clb_io_close(clb_io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->lock);
    while (io->demand.head != CLB_IO_NONE)
        clb_io_drop(io, io->demand.head);
    while (io->prefetch.head != CLB_IO_NONE)
        clb_io_drop(io, io->prefetch.head);
    for (;;) {
        io->ops->reap(io);
        io->ops->kick(io);
        if (!io->in_flight)
            break;
        io->ops->wait(io, UINT64_MAX);
    }
    pthread_mutex_unlock(&io->lock);
    io->ops->close(io);
    clb_io_queue_close(io);
    clb_io_drives_close(io);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

uint64_t clb_io_align(const clb_io *io)
{
    return io->align;
}

uint64_t clb_io_lead(const clb_io *io, uint64_t offset)
{
    return offset & (io->align - 1);
}

uint64_t clb_io_room(const clb_io *io, uint64_t offset, uint64_t size)
{
    return (clb_io_lead(io, offset) + size + io->align - 1) & ~(io->align - 1);
}

int clb_io_submit(clb_io *io, const clb_io_read *reads, uint32_t n, clb_error *err)
{
    pthread_mutex_lock(&io->lock);
    const int rc = clb_io_take(io, reads, n, err);
    if (!rc) {
        io->ops->kick(io);
        io->ops->leave(io);
    }
    pthread_mutex_unlock(&io->lock);
    return rc;
}

static uint32_t collect(clb_io *io, clb_io_done *done, uint32_t max, uint64_t until)
{
    pthread_mutex_lock(&io->lock);
    uint32_t n;
    for (;;) {
        io->ops->reap(io);
        io->ops->kick(io);
        n = clb_io_pop_done(io, done, max);
        if (n || !until || !io->outstanding || !max || (until != UINT64_MAX && clb_now_ns() >= until))
            break;
        io->ops->wait(io, until);
    }
    io->ops->leave(io);
    pthread_mutex_unlock(&io->lock);
    return n;
}

uint32_t clb_io_collect(clb_io *io, clb_io_done *done, uint32_t max, bool wait)
{
    return collect(io, done, max, wait ? UINT64_MAX : 0);
}

uint32_t clb_io_collect_within(clb_io *io, clb_io_done *done, uint32_t max, uint64_t max_ns)
{
    return collect(io, done, max, clb_now_ns() + max_ns);
}

/* The lock is there for the engine's threads: a const function may take it. */
static pthread_mutex_t *lock_of(const clb_io *io)
{
    return (pthread_mutex_t *)(uintptr_t)&io->lock;
}

uint32_t clb_io_outstanding(const clb_io *io)
{
    pthread_mutex_lock(lock_of(io));
    const uint32_t n = io->outstanding;
    pthread_mutex_unlock(lock_of(io));
    return n;
}

int clb_io_error(const clb_io *io, uint32_t tag, clb_error *err)
{
    int rc = COLIBRI_E_NOT_FOUND;
    pthread_mutex_lock(lock_of(io));
    const uint32_t kept = io->n_failures < CLB_IO_FAILURES ? io->n_failures : CLB_IO_FAILURES;
    for (uint32_t i = 1; i <= kept; i++) { /* the latest first */
        const clb_io_failure *f = &io->failures[(io->n_failures - i) % CLB_IO_FAILURES];
        if (f->tag == tag) {
            rc = f->err.code;
            if (err)
                *err = f->err;
            break;
        }
    }
    pthread_mutex_unlock(lock_of(io));
    return rc != COLIBRI_E_NOT_FOUND ? rc : clb_fail(err, rc, "no read failed lately with tag %u", tag);
}

void clb_io_promote(clb_io *io, uint32_t tag)
{
    pthread_mutex_lock(&io->lock);
    const uint32_t i = clb_io_find(io, tag);
    if (i != CLB_IO_NONE && io->requests[i].priority == CLB_IO_PREFETCH && io->requests[i].state != CLB_IO_DONE) {
        clb_io_raise(io, i);
        io->ops->kick(io);
        io->ops->leave(io);
    }
    pthread_mutex_unlock(&io->lock);
}

void clb_io_cancel(clb_io *io, uint32_t tag)
{
    pthread_mutex_lock(&io->lock);
    const uint32_t i = clb_io_find(io, tag);
    if (i != CLB_IO_NONE && io->requests[i].state != CLB_IO_DONE) {
        io->requests[i].cancelled = true;
        clb_io_drop(io, i);
    }
    pthread_mutex_unlock(&io->lock);
}

void clb_io_get_stats(const clb_io *io, clb_io_stats *out)
{
    pthread_mutex_lock(lock_of(io));
    *out = io->stats;
    out->engine = io->ops->name;
    out->direct = io->direct;
    if (io->in_flight)
        out->busy_ns += clb_now_ns() - io->busy_since;
    out->n_drives = 0;
    for (uint32_t i = 0; i < io->n_drives; i++) {
        const clb_io_drive *d = &io->drives[i];
        out->n_drives += i < io->files[0].n_copies && !io->files[0].copies[i].out && !d->out;
        out->drive_bytes[i] = d->bytes;
        out->drive_bytes_per_second[i] = clb_io_drive_rate(io, i);
    }
    pthread_mutex_unlock(lock_of(io));
}

void clb_io_reset_stats(clb_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->stats = (clb_io_stats){0};
    io->busy_since = clb_now_ns(); /* of what is in flight */
    for (uint32_t i = 0; i < io->n_drives; i++)
        io->drives[i].bytes = 0;
    pthread_mutex_unlock(&io->lock);
}

int clb_io_thread(clb_io *io, pthread_t *out, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc)
        return rc;
    const size_t least = (size_t)PTHREAD_STACK_MIN;
    pthread_attr_setstacksize(&attr, THREAD_STACK > least ? THREAD_STACK : least);
    /* The caller may be bound to a core, which is just the one to leave alone. */
    pthread_attr_setaffinity_np(&attr, sizeof io->cpus, &io->cpus);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(out, &attr, run, arg);
    if (rc == EINVAL) { /* none of these CPUs exists here: as the caller then */
        pthread_attr_destroy(&attr);
        rc = pthread_create(out, NULL, run, arg);
    } else {
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
