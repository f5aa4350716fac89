/* Inside the reader: requests, their pieces, the drives that hold copies of a file, and what an engine has to provide.
 *
 * One lock guards all of it. An engine takes pieces with clb_io_next, reads them without the lock, and gives the result
 * to clb_io_finish; which piece is next, what a short read or an error means and when a request is complete is decided
 * in one place for both engines. */
#ifndef CLB_STORE_IO_INTERNAL_H
#define CLB_STORE_IO_INTERNAL_H

#include <pthread.h>
#include <sched.h>

#include "store/io.h"

#define CLB_IO_NONE     UINT32_MAX
#define CLB_IO_DRIVES   4u /* copies of a file, the original included */
#define CLB_IO_FAILURES 16u

enum clb_io_state { CLB_IO_FREE = 0, CLB_IO_QUEUED, CLB_IO_ISSUED, CLB_IO_DONE };

typedef struct clb_io_request {
    uint32_t tag, file;
    uint64_t start, end, read_end; /* start and read_end are aligned; end is where the caller's range ends */
    uint64_t piece_bytes;
    uint8_t *dst; /* of `start` */
    uint64_t submit_ns, done_ns;
    uint32_t n_pieces, n_issued, in_flight;
    uint32_t next, prev; /* in the queue of its priority or in that of the finished; next: in the free list */
    uint32_t chain;      /* next of the same hash */
    uint8_t priority, state;
    bool cancelled;
    int status;
} clb_io_request;

typedef struct clb_io_piece {
    uint32_t request;
    uint64_t offset, size; /* in the file */
    uint64_t need, got;    /* bytes: `need` may be less than `size` at the end of a range */
    uint8_t *dst;
    uint32_t copy;
    uint32_t tried;    /* bit per copy that failed */
    uint32_t idle;     /* attempts in a row that brought nothing */
    bool buffered;     /* through the page cache, though the file is read directly */
    uint32_t next;     /* in the free or the retry list */
    uint64_t delay_ns; /* faults: the drive's slowness */
    int fault_errno;   /* faults: the read of this piece fails, or */
    uint64_t most;     /* is as short as this */
} clb_io_piece;

typedef struct clb_io_queue {
    uint32_t head, tail;
} clb_io_queue;

typedef struct clb_io_copy {
    char *path;
    int fd;        /* buffered */
    int direct_fd; /* -1: none */
    bool own_fd;
    bool out;            /* this copy failed; the others are asked first */
    bool refuses_direct; /* it did at least once */
} clb_io_copy;

typedef struct clb_io_opened {
    clb_io_copy copies[CLB_IO_DRIVES];
    uint32_t n_copies;
    uint64_t size;
} clb_io_opened;

/* Copy i of every file lies on drive i. */
typedef struct clb_io_drive {
    uint32_t in_flight;
    uint64_t bytes_in_flight, bytes;
    uint64_t busy_since;
    uint64_t window_bytes, window_ns; /* of the measurement that is going on */
    double rate;                      /* bytes per second, recent past; 0: not known yet */
    double best;                      /* of the measurements of a longer past */
    uint64_t last_issue_ns;
    uint64_t slow_until; /* faults */
    bool out;            /* an error of the drive, not of one file */
} clb_io_drive;

typedef struct clb_io_failure {
    uint32_t tag;
    clb_error err;
} clb_io_failure;

/* All functions are called with the lock held and may let go of it in between; `self` is io->engine. */
typedef struct clb_io_engine_ops {
    const char *name;
    int (*open)(clb_io *io, clb_error *err);
    /* Nothing is in flight. */
    void (*close)(clb_io *io);
    /* Issues what may be issued. [any of the engine's threads] */
    void (*kick)(clb_io *io);
    /* Finishes what has completed, without waiting. */
    void (*reap)(clb_io *io);
    /* Waits until something has completed, at most until then (clb_now_ns; UINT64_MAX: for ever); may return early. At
     * least one piece is in flight. */
    void (*wait)(clb_io *io, uint64_t until);
    /* The caller turns to other work. */
    void (*leave)(clb_io *io);
} clb_io_engine_ops;
extern const clb_io_engine_ops clb_io_uring, clb_io_pread;

struct clb_io {
    pthread_mutex_t lock;
    const clb_io_engine_ops *ops;
    void *engine;
    const clb_log *log;
    const clb_io_faults *faults;
    clb_io_opened *files;
    uint32_t n_files, n_drives;
    uint64_t align;
    bool direct; /* at least one file */
    uint32_t depth;
    uint64_t piece_bytes;
    cpu_set_t cpus;

    clb_io_request *requests;
    uint32_t n_requests; /* allocated */
    uint32_t free_request;
    uint32_t *buckets; /* [n_buckets], a power of two */
    uint32_t n_buckets;
    uint32_t outstanding;
    clb_io_queue demand, prefetch; /* requests with pieces that were not issued */
    clb_io_queue done;

    clb_io_piece *pieces; /* [depth] */
    uint32_t free_piece;
    clb_io_queue retry;
    uint32_t in_flight;
    uint64_t unissued; /* pieces of queued requests */

    clb_io_drive drives[CLB_IO_DRIVES];
    clb_io_failure failures[CLB_IO_FAILURES];
    uint32_t n_failures; /* ever */

    uint64_t busy_since;
    clb_io_stats stats;
    uint64_t issued_ever; /* pieces, for faults */
};

/* io_queue.c, with the lock held */
int clb_io_queue_open(clb_io *io, clb_error *err);
void clb_io_queue_close(clb_io *io);
int clb_io_take(clb_io *io, const clb_io_read *reads, uint32_t n, clb_error *err);
/* The piece to read now, or CLB_IO_NONE; it counts as in flight. */
uint32_t clb_io_next(clb_io *io);
/* `result`: bytes, or minus an errno. */
void clb_io_finish(clb_io *io, uint32_t piece, int64_t result);
/* Pieces in flight up to which a prefetch piece is issued. */
uint32_t clb_io_prefetch_room(const clb_io *io);
void clb_io_drop(clb_io *io, uint32_t request);
/* A prefetch request becomes a demand request. */
void clb_io_raise(clb_io *io, uint32_t request);
uint32_t clb_io_find(const clb_io *io, uint32_t tag);
uint32_t clb_io_pop_done(clb_io *io, clb_io_done *done, uint32_t max);

/* What an engine reads for a piece. */
int clb_io_piece_fd(const clb_io *io, const clb_io_piece *p);

/* io.c: a thread of an engine: all signals blocked, a small stack, free to run on io->cpus. Returns an errno. */
int clb_io_thread(clb_io *io, pthread_t *out, void *(*run)(void *), void *arg);

/* io_drives.c */
int clb_io_drives_open(clb_io *io, const clb_io_options *options, clb_error *err);
void clb_io_drives_close(clb_io *io);
/* The copy to read a piece from that has tried those of the mask `tried`; CLB_IO_NONE if all failed. */
uint32_t clb_io_choose(clb_io *io, const clb_io_opened *file, uint32_t tried, uint64_t bytes, bool demand,
                       uint64_t now);
/* Bytes per second of the recent past; 0: too little was read to tell. */
double clb_io_drive_rate(const clb_io *io, uint32_t drive);
void clb_io_drive_begins(clb_io *io, uint32_t drive, uint64_t bytes, uint64_t now);
void clb_io_drive_ends(clb_io *io, uint32_t drive, uint64_t asked, uint64_t delivered, uint64_t now);

/* io_measure.c: clb_io_measure with the engine and the CPUs of `options`. */
int clb_io_probe(const char *path, uint64_t bytes, uint64_t max_ns, const clb_io_options *options, clb_io_speed *out,
                 clb_error *err);

#endif
