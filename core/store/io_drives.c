/* The files that are read and their copies on other drives: opening them with the right flags, making sure that a copy
 * is a copy, how fast each drive is, and which one reads the next piece. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "store/io_internal.h"

/* Below this a file is read through the page cache under AUTO: the kernel keeps it there anyway, and a probe long
 * enough to mean something would read a good part of it. */
#define SMALL_FILE ((uint64_t)64 << 20)
#define PROBE_NS   ((uint64_t)150000000)
#define PROBE_MOST ((uint64_t)1 << 30)
/* Direct reads leave the page cache to others, which is worth a little. */
#define DIRECT_WORTH 0.9

/* Alignment of direct reads unless the kernel tells: what every drive can do. */
#define DEFAULT_ALIGN ((uint64_t)4096)
#define MOST_ALIGN    ((uint64_t)1 << 20)

/* How much of a copy is compared with the original: blocks at spread places. Enough to catch another quantization or a
 * copy that was cut short while being made, not a flipped bit. */
#define COMPARE_BLOCKS 32u
#define COMPARE_BYTES  4096u

/* A measurement of a drive's speed takes this long, and as many pieces: one alone may have been late because a thread
 * was. It ends between two looks at the drive: pieces that were found complete at one look took their time together. */
#define WINDOW_NS      ((uint64_t)20000000)
#define MOST_WINDOW_NS ((uint64_t)500000000)
#define WINDOW_PIECES  4u
#define LOOK_NS        ((uint64_t)20000)
/* By how much the best measurement fades with each later one: what a drive can do is seen when it is asked for enough.
 */
#define PEAK_FADES 0.98
/* A drive that gets nothing because it was slow is asked for a piece after this many times what the piece will take if
 * it still is: what that costs is bounded, and more so for demand reads. */
#define RETRY_PREFETCH 10.0
#define RETRY_DEMAND   50.0

static uint64_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx x;
    if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) && x.stx_mask & STATX_DIOALIGN) {
        const uint64_t a = x.stx_dio_mem_align, b = x.stx_dio_offset_align;
        const uint64_t most = a > b ? a : b;
        if (!b || most > MOST_ALIGN || (most & (most - 1)))
            return 0; /* the kernel says that this file cannot be read directly */
        return most > DEFAULT_ALIGN ? most : DEFAULT_ALIGN;
    }
#else
    (void)fd;
#endif
    return DEFAULT_ALIGN;
}

/* Opens `path` for direct reads. Returns -1 with the reason. */
static int open_direct(const char *path, const struct stat *is, uint64_t *align, const char **why)
{
    const int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        *why = errno == EINVAL ? "its file system has no direct reads" : strerror(errno);
        return -1;
    }
    struct stat now;
    *align = direct_align(fd);
    if (!*align)
        *why = "the kernel has no direct reads for it";
    else if (fstat(fd, &now) || now.st_dev != is->st_dev || now.st_ino != is->st_ino)
        *why = "another file is there now";
    else
        return fd;
    close(fd);
    return -1;
}

/* What AUTO decided for a drive. */
struct verdict {
    dev_t dev;
    bool direct;
};

static bool direct_pays(clb_io *io, const clb_io_options *options, const char *path, const struct stat *is,
                        struct verdict *known, uint32_t *n_known)
{
    if ((uint64_t)is->st_size < SMALL_FILE)
        return false;
    for (uint32_t i = 0; i < *n_known; i++)
        if (known[i].dev == is->st_dev)
            return known[i].direct;
    clb_io_speed speed;
    clb_error err;
    bool direct = true;
    if (clb_io_probe(path, PROBE_MOST, PROBE_NS, options, &speed, &err)) {
        clb_logf(io->log, COLIBRI_LOG_INFO, "%s; trying direct reads", err.msg);
    } else {
        direct = speed.direct_bytes_per_second > 0 &&
                 speed.direct_bytes_per_second >= DIRECT_WORTH * speed.buffered_bytes_per_second;
        clb_logf(io->log, COLIBRI_LOG_INFO, "%s: direct reads %.2f GB/s, through the page cache %.2f GB/s%s: %s", path,
                 speed.direct_bytes_per_second / 1e9, speed.buffered_bytes_per_second / 1e9,
                 speed.buffered_bytes_per_second > 0 ? "" : " (not measured: it is all cached)",
                 direct ? "reading directly" : "reading through the page cache");
    }
    if (*n_known < CLB_IO_DRIVES)
        known[(*n_known)++] = (struct verdict){.dev = is->st_dev, .direct = direct};
    return direct;
}

static int use_direct(clb_io *io, const clb_io_options *options, clb_io_copy *copy, const struct stat *is,
                      struct verdict *known, uint32_t *n_known, clb_error *err)
{
    if (options->direct == CLB_IO_DIRECT_OFF)
        return COLIBRI_OK;
    const char *why = "it has no path";
    uint64_t align = 0;
    const int fd = copy->path ? open_direct(copy->path, is, &align, &why) : -1;
    if (fd < 0) {
        if (options->direct == CLB_IO_DIRECT_ON)
            return clb_fail(err, COLIBRI_E_UNSUPPORTED, "%s cannot be read directly: %s; set store.direct to auto",
                            copy->path ? copy->path : "the model", why);
        clb_logf(io->log, COLIBRI_LOG_INFO, "%s is read through the page cache: %s",
                 copy->path ? copy->path : "the model", why);
        return COLIBRI_OK;
    }
    if (options->direct == CLB_IO_DIRECT_AUTO && !direct_pays(io, options, copy->path, is, known, n_known)) {
        close(fd);
        return COLIBRI_OK;
    }
    copy->direct_fd = fd;
    io->direct = true;
    io->align = align > io->align ? align : io->align;
    return COLIBRI_OK;
}

static int read_fully(int fd, void *to, size_t n, uint64_t at)
{
    for (size_t got = 0; got < n;) {
        const ssize_t r = pread(fd, (char *)to + got, n - got, (off_t)(at + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r ? errno : ENODATA;
        got += (size_t)r;
    }
    return 0;
}

static int compare_copy(const clb_io_opened *file, const clb_io_copy *copy, clb_error *err)
{
    char a[COMPARE_BYTES], b[COMPARE_BYTES];
    const uint64_t n = file->size < COMPARE_BYTES ? file->size : COMPARE_BYTES;
    for (uint32_t i = 0; i < COMPARE_BLOCKS; i++) {
        const uint64_t span = file->size - n; /* the first block, the last, and between */
        const uint64_t at = span / (COMPARE_BLOCKS - 1) * i + span % (COMPARE_BLOCKS - 1) * i / (COMPARE_BLOCKS - 1);
        const int rc = read_fully(file->copies[0].fd, a, (size_t)n, at);
        if (rc)
            return clb_fail_errno(err, COLIBRI_E_IO, rc, "%s: reading at %llu", file->copies[0].path,
                                  (unsigned long long)at);
        const int rc2 = read_fully(copy->fd, b, (size_t)n, at);
        if (rc2)
            return clb_fail_errno(err, COLIBRI_E_IO, rc2, "%s: reading at %llu", copy->path, (unsigned long long)at);
        if (memcmp(a, b, (size_t)n))
            return clb_fail(
                err, COLIBRI_E_FORMAT,
                "%s is no copy of %s: they differ near byte %llu; copy the file again, or remove its folder "
                "from store.mirror",
                copy->path, file->copies[0].path, (unsigned long long)at);
    }
    return COLIBRI_OK;
}

static int open_copy(clb_io_copy *copy, const char *path, int fd, clb_error *err)
{
    *copy = (clb_io_copy){.fd = fd, .direct_fd = -1};
    if (path) {
        copy->path = strdup(path);
        if (!copy->path)
            return CLB_NOMEM(err, "a path");
    }
    if (fd >= 0)
        return COLIBRI_OK;
    copy->fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    copy->own_fd = copy->fd >= 0;
    if (copy->fd < 0)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "%s", path);
    return COLIBRI_OK;
}

static int open_file(clb_io *io, const clb_io_options *options, const clb_io_file *from, clb_io_opened *file,
                     struct verdict *known, uint32_t *n_known, clb_error *err)
{
    if (from->n_mirrors >= CLB_IO_DRIVES)
        return clb_fail(err, COLIBRI_E_LIMIT, "%u mirrors: at most %u folders may be named in store.mirror",
                        from->n_mirrors, CLB_IO_DRIVES - 1);
    if (1 + from->n_mirrors > io->n_drives)
        io->n_drives = 1 + from->n_mirrors;
    for (uint32_t i = 0; i <= from->n_mirrors; i++) {
        clb_io_copy *copy = &file->copies[i];
        file->n_copies = i + 1; /* closed whatever happens */
        *copy = (clb_io_copy){.fd = -1, .direct_fd = -1};
        const int rc = open_copy(copy, i ? from->mirrors[i - 1] : from->path, i ? -1 : from->fd, err);
        if (rc)
            return i ? clb_context(err, "mirror of %s", from->path) : rc;
        struct stat is;
        if (fstat(copy->fd, &is))
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "%s", copy->path ? copy->path : "the model");
        if (i == 0) {
            file->size = (uint64_t)is.st_size;
        } else if ((uint64_t)is.st_size != file->size) {
            return clb_fail(
                err, COLIBRI_E_FORMAT,
                "%s is no copy of %s: it has %llu bytes instead of %llu; copy the file again, or remove its "
                "folder from store.mirror",
                copy->path, from->path, (unsigned long long)is.st_size, (unsigned long long)file->size);
        } else {
            CLB_TRY(compare_copy(file, copy, err));
        }
        CLB_TRY(use_direct(io, options, copy, &is, known, n_known, err));
    }
    return COLIBRI_OK;
}

int clb_io_drives_open(clb_io *io, const clb_io_options *options, clb_error *err)
{
    io->align = 1;
    io->n_drives = 1;
    io->files = calloc(options->n_files ? options->n_files : 1, sizeof *io->files);
    if (!io->files)
        return CLB_NOMEM(err, "the list of files");
    struct verdict known[CLB_IO_DRIVES];
    uint32_t n_known = 0;
    for (uint32_t i = 0; i < options->n_files; i++) {
        io->n_files = i + 1;
        CLB_TRY(open_file(io, options, &options->files[i], &io->files[i], known, &n_known, err));
    }
    return COLIBRI_OK;
}

void clb_io_drives_close(clb_io *io)
{
    for (uint32_t i = 0; i < io->n_files; i++)
        for (uint32_t c = 0; c < io->files[i].n_copies; c++) {
            clb_io_copy *copy = &io->files[i].copies[c];
            if (copy->own_fd)
                close(copy->fd);
            if (copy->direct_fd >= 0)
                close(copy->direct_fd);
            free(copy->path);
        }
    free(io->files);
}

double clb_io_drive_rate(const clb_io *io, uint32_t drive)
{
    const clb_io_drive *d = &io->drives[drive];
    if (d->rate > 0 || d->window_bytes < WINDOW_PIECES * io->piece_bytes || !d->window_ns)
        return d->rate;
    return (double)d->window_bytes * 1e9 / (double)d->window_ns; /* of the first measurement, which goes on */
}

/* When a drive would be through with `bytes` more, in its own terms: bytes over bytes per second. A drive of unknown
 * speed counts as fast as the fastest known one, so that it is tried. */
static double through_after(const clb_io *io, uint32_t drive, uint64_t bytes)
{
    double rate = clb_io_drive_rate(io, drive), best = 0;
    if (rate <= 0) {
        for (uint32_t i = 0; i < io->n_drives; i++) {
            const double other = clb_io_drive_rate(io, i);
            best = other > best ? other : best;
        }
        rate = best > 0 ? best : 1e9;
    }
    return (double)(io->drives[drive].bytes_in_flight + bytes) / rate;
}

uint32_t clb_io_choose(clb_io *io, const clb_io_opened *file, uint32_t tried, uint64_t bytes, bool demand, uint64_t now)
{
    if (file->n_copies == 1)
        return tried ? CLB_IO_NONE : 0;
    uint32_t best = CLB_IO_NONE;
    for (int with_out = 0; with_out < 2 && best == CLB_IO_NONE; with_out++) {
        double best_time = 0;
        for (uint32_t i = 0; i < file->n_copies; i++) {
            const bool out = file->copies[i].out || io->drives[i].out;
            if (tried >> i & 1 || (out && !with_out))
                continue;
            const clb_io_drive *d = &io->drives[i];
            if (!out && d->rate > 0 && !d->in_flight &&
                (double)(now - d->last_issue_ns) >
                    (demand ? RETRY_DEMAND : RETRY_PREFETCH) * (double)bytes * 1e9 / d->rate)
                return i;
            const double t = through_after(io, i, bytes);
            if (best == CLB_IO_NONE || t < best_time) {
                best = i;
                best_time = t;
            }
        }
    }
    return best;
}

void clb_io_drive_begins(clb_io *io, uint32_t drive, uint64_t bytes, uint64_t now)
{
    clb_io_drive *d = &io->drives[drive];
    if (!d->in_flight++)
        d->busy_since = now;
    d->bytes_in_flight += bytes;
    d->last_issue_ns = now;
}

void clb_io_drive_ends(clb_io *io, uint32_t drive, uint64_t asked, uint64_t delivered, uint64_t now)
{
    clb_io_drive *d = &io->drives[drive];
    assert(d->in_flight && d->bytes_in_flight >= asked);
    const uint64_t ns = now - d->busy_since;
    const bool enough = d->window_bytes >= WINDOW_PIECES * io->piece_bytes || d->window_ns >= MOST_WINDOW_NS;
    if (enough && d->window_ns >= (ns > LOOK_NS ? WINDOW_NS : 2 * WINDOW_NS)) {
        const double rate = (double)d->window_bytes * 1e9 / (double)d->window_ns;
        d->rate = d->rate > 0 ? 0.7 * d->rate + 0.3 * rate : rate;
        d->best = rate > PEAK_FADES * d->best ? rate : PEAK_FADES * d->best;
        d->window_bytes = d->window_ns = 0;
    }
    d->in_flight--;
    d->bytes_in_flight -= asked;
    d->bytes += delivered;
    d->window_ns += ns;
    d->window_bytes += delivered;
    d->busy_since = now; /* of what is still in flight */
}
