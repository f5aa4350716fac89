/* Reading with threads that call pread: for kernels without io_uring.
 *
 * A thread takes the next piece itself, so that the drive never waits for the caller. Threads are started as pieces
 * come, up to a number that keeps fast drives busy, and sleep when there is nothing to read. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "store/io_internal.h"

#define MOST_THREADS 16u

typedef struct readers {
    pthread_t threads[MOST_THREADS];
    uint32_t n, most, n_idle;
    bool stop, waiting; /* waiting: the caller, for `some` */
    pthread_cond_t work, some;
} readers;

static int readers_open(clb_io *io, clb_error *err)
{
    readers *t = calloc(1, sizeof *t);
    if (!t)
        return CLB_NOMEM(err, "reading threads");
    if (io->depth > MOST_THREADS)
        io->depth = MOST_THREADS; /* which leaves threads for demand when prefetch has all that it may */
    t->most = io->depth;
    pthread_cond_init(&t->work, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* as clb_now_ns */
    pthread_cond_init(&t->some, &attr);
    pthread_condattr_destroy(&attr);
    io->engine = t;
    return COLIBRI_OK;
}

/* Reads a piece; the lock is let go of meanwhile. */
static void read_piece(clb_io *io, uint32_t i)
{
    const clb_io_piece p = io->pieces[i];
    const int fd = clb_io_piece_fd(io, &p);
    pthread_mutex_unlock(&io->lock);
    if (p.delay_ns) {
        const struct timespec t = {.tv_sec = (time_t)(p.delay_ns / 1000000000u),
                                   .tv_nsec = (long)(p.delay_ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
    const ssize_t got = pread(fd, p.dst + p.got, (size_t)(p.size - p.got), (off_t)(p.offset + p.got));
    const int64_t result = got < 0 ? -errno : got;
    pthread_mutex_lock(&io->lock);
    clb_io_finish(io, i, result);
}

static void *read_on(void *arg)
{
    clb_io *io = arg;
    readers *t = io->engine;
    pthread_mutex_lock(&io->lock);
    while (!t->stop) {
        const uint32_t i = clb_io_next(io);
        if (i == CLB_IO_NONE) {
            t->n_idle++;
            pthread_cond_wait(&t->work, &io->lock);
            t->n_idle--;
            continue;
        }
        read_piece(io, i);
        if (t->waiting && (io->done.head != CLB_IO_NONE || !io->in_flight)) {
            t->waiting = false;
            pthread_cond_signal(&t->some);
        }
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static void readers_kick(clb_io *io)
{
    readers *t = io->engine;
    /* As many as there is something for: the limit on prefetch holds threads back that could read nothing. */
    uint64_t want = io->unissued + (io->retry.head != CLB_IO_NONE);
    if (io->demand.head == CLB_IO_NONE && want > clb_io_prefetch_room(io))
        want = clb_io_prefetch_room(io);
    for (uint32_t i = 0; i < t->n_idle && i < want; i++)
        pthread_cond_signal(&t->work);
    while (t->n < t->most && t->n < io->in_flight + want && t->n_idle < want) {
        if (clb_io_thread(io, &t->threads[t->n], read_on, io))
            break; /* with those that there are */
        t->n++;
    }
    for (uint32_t i; !t->n && (i = clb_io_next(io)) != CLB_IO_NONE;)
        read_piece(io, i); /* with none: here and now */
}

static void readers_wait(clb_io *io, uint64_t until)
{
    readers *t = io->engine;
    const struct timespec at = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    t->waiting = true;
    if (until == UINT64_MAX)
        pthread_cond_wait(&t->some, &io->lock);
    else
        pthread_cond_timedwait(&t->some, &io->lock, &at);
    t->waiting = false;
}

static void readers_close(clb_io *io)
{
    readers *t = io->engine;
    pthread_mutex_lock(&io->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&io->lock);
    for (uint32_t i = 0; i < t->n; i++)
        pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->some);
    free(t);
}

static void nothing(clb_io *io)
{
    (void)io;
}

const clb_io_engine_ops clb_io_pread = {
    .name = "pread",
    .open = readers_open,
    .close = readers_close,
    .kick = readers_kick,
    .reap = nothing,
    .wait = readers_wait,
    .leave = nothing,
};
