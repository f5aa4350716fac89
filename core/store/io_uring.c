/* Reading through an io_uring.
 *
 * The caller's thread issues reads itself, and while it waits for one, it waits in the ring. While it does other work,
 * a thread that sleeps in the ring takes what completes and issues what comes next, so that the drive never waits for
 * the caller; when the caller is back, that thread keeps out of the way.
 *
 * Not used, because they did not pay or cost something: a kernel thread that polls (takes a core), registered files (a
 * piece of 512 KiB costs thousands of times what looking up a descriptor does), registered buffers (count against
 * RLIMIT_MEMLOCK, which is often a few MiB). */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/io_internal.h"

/* user_data of what is no piece */
#define NO_PIECE UINT64_MAX
/* How long a ring that is short of memory is asked again, in steps of a millisecond. */
#define MOST_TRIES 1000

typedef struct uring {
    struct io_uring ring;
    struct __kernel_timespec *delays; /* [depth], for faults */
    pthread_t reaper;
    bool has_reaper, no_reaper; /* started; cannot be started */
    bool caller_waits, stop;
    pthread_cond_t away; /* the caller turned to other work while pieces are in flight */
} uring;

static int no_uring(clb_error *err, int errnum)
{
    const char *why = errnum == ENOSYS ? "this kernel has none"
                      : errnum == EPERM || errnum == EACCES
                          ? "the system forbids it (kernel.io_uring_disabled, or a container's seccomp profile)"
                      : errnum == ENOMEM ? "not enough memory may be locked (ulimit -l)"
                                         : strerror(errnum);
    return clb_fail(err, COLIBRI_E_UNSUPPORTED, "io_uring cannot be used: %s", why);
}

static int uring_open(clb_io *io, clb_error *err)
{
    uring *u = calloc(1, sizeof *u);
    if (!u)
        return CLB_NOMEM(err, "the ring");
    /* A delay is a request of its own in front of its read. */
    const int rc = io_uring_queue_init(io->faults ? io->depth * 2 : io->depth, &u->ring, 0);
    if (rc) {
        free(u);
        return no_uring(err, -rc);
    }
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    const bool can_read = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    u->delays = can_read ? calloc(io->depth, sizeof *u->delays) : NULL;
    if (!u->delays) {
        io_uring_queue_exit(&u->ring);
        free(u);
        return can_read ? CLB_NOMEM(err, "the ring") : no_uring(err, ENOSYS);
    }
    pthread_cond_init(&u->away, NULL);
    io->engine = u;
    return COLIBRI_OK;
}

static struct io_uring_sqe *get_sqe(uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    assert(sqe); /* as many entries as pieces, and all are submitted at the end of kick */
    return sqe;
}

static void prepare(clb_io *io, uring *u, uint32_t i)
{
    const clb_io_piece *p = &io->pieces[i];
    if (p->delay_ns) {
        u->delays[i].tv_sec = (long long)(p->delay_ns / 1000000000u);
        u->delays[i].tv_nsec = (long long)(p->delay_ns % 1000000000u);
        struct io_uring_sqe *sqe = get_sqe(u);
        io_uring_prep_timeout(sqe, &u->delays[i], 0, 0);
        io_uring_sqe_set_flags(sqe, IOSQE_IO_HARDLINK); /* a timeout "fails" with ETIME */
        io_uring_sqe_set_data64(sqe, NO_PIECE);
    }
    struct io_uring_sqe *sqe = get_sqe(u);
    const int fd = clb_io_piece_fd(io, p);
    io_uring_prep_read(sqe, fd, p->dst + p->got, (unsigned)(p->size - p->got), p->offset + p->got);
    io_uring_sqe_set_data64(sqe, i);
    /* Bytes in the page cache would be copied by whoever submits: the caller. */
    if (fd == io->files[io->requests[p->request].file].copies[p->copy].fd)
        io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
}

/* The kernel took no more: what it did not take fails, and the queue ends where it stopped. Nobody but this thread
 * looks at the queue's end: there is no polling kernel thread. */
static void give_up(clb_io *io, uring *u, int errnum)
{
    struct io_uring_sq *sq = &u->ring.sq;
    const unsigned mask = *sq->kring_mask, head = *sq->khead;
    for (unsigned at = head; at != sq->sqe_tail; at++) {
        const uint64_t piece = sq->sqes[at & mask].user_data;
        if (piece != NO_PIECE)
            clb_io_finish(io, (uint32_t)piece, -errnum);
    }
    *sq->ktail = sq->sqe_head = sq->sqe_tail = head;
}

static void uring_kick(clb_io *io)
{
    uring *u = io->engine;
    for (uint32_t i; (i = clb_io_next(io)) != CLB_IO_NONE;)
        prepare(io, u, i);
    for (int tries = 0; io_uring_sq_ready(&u->ring);) {
        const int rc = io_uring_submit(&u->ring);
        if (rc > 0 || rc == -EINTR)
            continue;
        if ((rc != -EAGAIN && rc != -EBUSY && rc != 0) || ++tries > MOST_TRIES) {
            give_up(io, u, rc == 0 || rc == -EAGAIN ? ENOMEM : -rc); /* EAGAIN would be tried again */
            return;
        }
        const struct timespec ms = {.tv_nsec = 1000000};
        nanosleep(&ms, NULL);
    }
}

static void uring_reap(clb_io *io)
{
    uring *u = io->engine;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        n++;
        if (cqe->user_data != NO_PIECE)
            clb_io_finish(io, (uint32_t)cqe->user_data, cqe->res);
    }
    io_uring_cq_advance(&u->ring, n);
}

/* Sleeps until there is a completion in the ring. Not through liburing, which would look at the ring without the lock.
 */
static void sleep_in_ring(clb_io *io, const uring *u, uint64_t until)
{
    const int fd = u->ring.ring_fd;
    /* Kernels before 5.11 cannot be told how long: there a piece that never completes is waited for. */
    const bool timed = until != UINT64_MAX && u->ring.features & IORING_FEAT_EXT_ARG;
    const uint64_t now = timed ? clb_now_ns() : 0, left = until > now ? until - now : 0;
    struct __kernel_timespec ts = {.tv_sec = (long long)(left / 1000000000u),
                                   .tv_nsec = (long long)(left % 1000000000u)};
    struct io_uring_getevents_arg arg = {.ts = (uint64_t)(uintptr_t)&ts};
    pthread_mutex_unlock(&io->lock);
    syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS | (timed ? IORING_ENTER_EXT_ARG : 0u),
            timed ? &arg : NULL, timed ? sizeof arg : 0); /* EINTR, ETIME: the caller looks again */
    pthread_mutex_lock(&io->lock);
}

static void uring_wait(clb_io *io, uint64_t until)
{
    uring *u = io->engine;
    if (!io->in_flight) /* the ring took nothing: what other copies may have is issued when the caller looks again */
        return;
    u->caller_waits = true; /* the reaper leaves completions alone, so none is missed between here and the kernel */
    sleep_in_ring(io, u, until);
    u->caller_waits = false;
}

static void *reap_while_away(void *arg)
{
    clb_io *io = arg;
    uring *u = io->engine;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        while (!u->stop && (u->caller_waits || !io->in_flight))
            pthread_cond_wait(&u->away, &io->lock);
        if (u->stop)
            break;
        sleep_in_ring(io, u, UINT64_MAX);
        if (u->caller_waits || u->stop)
            continue;
        uring_reap(io);
        uring_kick(io);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static void uring_leave(clb_io *io)
{
    uring *u = io->engine;
    if (!io->in_flight || u->no_reaper)
        return;
    if (u->has_reaper) {
        pthread_cond_signal(&u->away);
        return;
    }
    const int rc = clb_io_thread(io, &u->reaper, reap_while_away, io);
    u->has_reaper = rc == 0;
    u->no_reaper = rc != 0;
    if (rc)
        clb_logf(io->log, COLIBRI_LOG_INFO, "no thread for reading ahead: %s", strerror(rc));
}

static void uring_close(clb_io *io)
{
    uring *u = io->engine;
    if (u->has_reaper) {
        pthread_mutex_lock(&io->lock);
        u->stop = true;
        pthread_cond_signal(&u->away);
        /* It may sleep in the ring for a completion that the caller has taken. */
        io_uring_prep_nop(get_sqe(u));
        while (io_uring_submit(&u->ring) < 0) {
            const struct timespec ms = {.tv_nsec = 1000000};
            nanosleep(&ms, NULL);
        }
        pthread_mutex_unlock(&io->lock);
        pthread_join(u->reaper, NULL);
    }
    io_uring_queue_exit(&u->ring);
    pthread_cond_destroy(&u->away);
    free(u->delays);
    free(u);
}

const clb_io_engine_ops clb_io_uring = {
    .name = "io_uring",
    .open = uring_open,
    .close = uring_close,
    .kick = uring_kick,
    .reap = uring_reap,
    .wait = uring_wait,
    .leave = uring_leave,
};
