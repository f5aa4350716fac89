/* Asynchronous reads of file ranges into memory: what moves bytes from a drive while others compute.
 *
 * Two engines behind one interface: io_uring, and a pool of threads that call pread; either with O_DIRECT or through
 * the page cache. Requests have a priority: a demand read never waits behind prefetch reads that have not been issued,
 * and prefetch reads are issued only while few demand reads are under way. Large requests are cut into pieces, several
 * of which are in flight at once. A file may have mirrors on other drives: pieces go to each by its measured speed, and
 * one that fails is left out from then on, with a warning.
 *
 * Direct reads need aligned offsets, sizes and addresses. The caller does not care: it gives a destination of
 * clb_io_room(io, offset, size) bytes, aligned to clb_io_align(io), and finds the first byte at
 * dst + clb_io_lead(io, offset). Without O_DIRECT lead is 0 and room is size.
 *
 * All functions are [engine-thread] unless said otherwise; threads of its own do the reading and never spin. */
#ifndef CLB_STORE_IO_H
#define CLB_STORE_IO_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

typedef struct clb_io clb_io;

enum clb_io_engine { CLB_IO_AUTO = 0, CLB_IO_URING = 1, CLB_IO_PREAD = 2 };
enum clb_io_direct { CLB_IO_DIRECT_AUTO = 0, CLB_IO_DIRECT_ON = 1, CLB_IO_DIRECT_OFF = 2 };
enum clb_io_priority { CLB_IO_DEMAND = 0, CLB_IO_PREFETCH = 1 };

typedef struct clb_io_file {
    const char *path; /* reopened with the right flags; must still be the file of `fd` (device, inode, size) */
    int fd;           /* open for reading, borrowed; used where O_DIRECT is off or impossible */
    const char *const *mirrors; /* [n_mirrors] paths of copies; same size, or they are refused */
    uint32_t n_mirrors;
} clb_io_file;

/* For tests: what goes wrong. Pieces are counted from 1 in the order in which they are handed to the drives; a piece
 * that is tried again counts again. */
typedef struct clb_io_faults {
    uint64_t fail_first, fail_count; /* pieces that fail with fail_errno instead of being read; 0: none */
    int fail_errno;
    uint64_t short_first, short_count; /* pieces of which at most short_bytes are read */
    uint64_t short_bytes;
    uint64_t bytes_per_second; /* the drive is at most as fast as this; 0: as it is */
    uint32_t drives;           /* bit per drive (0: the files, i: their mirror i) that all this is about; 0: all */
} clb_io_faults;

typedef struct clb_io_options {
    enum clb_io_engine engine;
    enum clb_io_direct direct; /* AUTO: as the probe of the drive says */
    const clb_io_file *files;  /* [n_files] */
    uint32_t n_files;
    uint32_t depth;       /* pieces in flight at most; 0: a default */
    uint32_t piece_bytes; /* 0: a default */
    const clb_log *log;
    const clb_io_faults *faults; /* NULL; borrowed */
    const cpu_set_t
        *cpus; /* where the threads may run; NULL: wherever the cpuset allows, whatever the caller is bound to */
} clb_io_options;

/* ON or URING that cannot be had is an error (UNSUPPORTED, with the reason); AUTO falls back and logs at INFO. */
int clb_io_open(const clb_io_options *options, clb_io **out, clb_error *err);
/* Waits for what is in flight: the kernel still writes into the caller's memory. */
void clb_io_close(clb_io *io);

uint64_t clb_io_align(const clb_io *io);
uint64_t clb_io_lead(const clb_io *io, uint64_t offset);
uint64_t clb_io_room(const clb_io *io, uint64_t offset, uint64_t size);

typedef struct clb_io_read {
    uint32_t file;
    uint64_t offset, size; /* size > 0; inside the file as it was opened */
    void *dst;
    uint32_t tag;     /* the caller's; unique among what is not yet collected, < 2^31 */
    uint8_t priority; /* enum clb_io_priority */
} clb_io_read;

/* Takes the requests; none is refused (NOMEM apart, in which case none was taken). */
int clb_io_submit(clb_io *io, const clb_io_read *reads, uint32_t n, clb_error *err);

typedef struct clb_io_done {
    uint32_t tag;
    int status;       /* COLIBRI_OK, IO, CANCELLED */
    uint64_t wait_ns; /* from submit to completion */
} clb_io_done;

/* Collects up to max finished requests; blocks until there is one if `wait` and something is outstanding. Returns their
 * number. */
uint32_t clb_io_collect(clb_io *io, clb_io_done *done, uint32_t max, bool wait);
/* Likewise, but waits no longer than about max_ns: for callers that may be told to stop while a drive is slow. */
uint32_t clb_io_collect_within(clb_io *io, clb_io_done *done, uint32_t max, uint64_t max_ns);
uint32_t clb_io_outstanding(const clb_io *io);
/* The message of a request that failed with IO: file, place, errno or what became of the file. The last 16 failures are
 * kept; NOT_FOUND for any other tag. */
int clb_io_error(const clb_io *io, uint32_t tag, clb_error *err);

/* A prefetch read becomes a demand read. Unknown or finished tags are ignored. */
void clb_io_promote(clb_io *io, uint32_t tag);
/* Pieces not yet issued are dropped; the request completes as CANCELLED when the rest is through. */
void clb_io_cancel(clb_io *io, uint32_t tag);

typedef struct clb_io_stats {
    const char *engine; /* "io_uring", "pread" */
    bool direct;
    uint64_t requests, pieces, bytes; /* bytes: what the drive delivered, alignment included */
    uint64_t busy_ns;                 /* time with at least one piece in flight */
    uint64_t retried;                 /* short reads, EINTR, EAGAIN */
    uint32_t n_drives;                /* 1 + mirrors in use of file 0 */
    uint64_t drive_bytes[4];
    double drive_bytes_per_second[4]; /* of the recent past */
} clb_io_stats;
void clb_io_get_stats(const clb_io *io, clb_io_stats *out);
void clb_io_reset_stats(clb_io *io);

/* A measurement of the drive under a file: sequential reads of at most `bytes` at spread places, within about max_ns.
 * For the planner and for AUTO. */
typedef struct clb_io_speed {
    double direct_bytes_per_second;   /* 0: O_DIRECT is impossible here */
    double buffered_bytes_per_second; /* of pages that are not cached; 0: everything was cached */
    uint32_t align;                   /* of direct reads */
} clb_io_speed;
int clb_io_measure(const char *path, uint64_t bytes, uint64_t max_ns, clb_io_speed *out, clb_error *err);

#endif
