/* How fast a drive is, read as the engine reads it: several pieces in flight, at places spread over a file, directly
 * and through the page cache in turns, so that what disturbs the one disturbs the other. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/io_internal.h"

/* One read: about a part of an expert. What is in flight at the end of a turn must be waited for. */
#define READ_BYTES ((uint64_t)1 << 20)
#define IN_FLIGHT  4u
#define ROUNDS     3u
#define WAYS       2u /* directly, buffered */
/* Places that are read through the page cache: half a gigabyte, more than is read in the time that a probe has. */
#define MOST_UNCACHED 512u

typedef struct probe {
    int fd;
    uint64_t size, n_places;
    uint64_t next; /* place */
    uint64_t uncached[MOST_UNCACHED];
    uint32_t n_uncached, next_uncached;
    uint64_t left; /* bytes that may be read yet */
    uint8_t *buffers[IN_FLIGHT];
    uint64_t places[IN_FLIGHT]; /* what is read into them */
} probe;

/* Spreads consecutive numbers over the file: neither in order nor the same twice, before all places had their turn. */
static uint64_t place_of(const probe *p, uint64_t k)
{
    uint64_t step = p->n_places * 618 / 1000 | 1;
    for (;; step += 2) { /* until it has no factor in common with their number */
        uint64_t a = step, b = p->n_places;
        while (b) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
    }
    return k % p->n_places * (step % p->n_places) % p->n_places * READ_BYTES;
}

static uint64_t bytes_at(const probe *p, uint64_t place)
{
    return p->size - place < READ_BYTES ? p->size - place : READ_BYTES;
}

/* Looks for places whose buffered read will reach the drive, before the clock of the measurement runs, until `until`.
 * Each is read once: afterwards it may be cached. Where the kernel does not tell what is cached, it says that all is.
 */
static void find_uncached(probe *p, uint64_t until)
{
    unsigned char there[READ_BYTES / 4096];
    uint8_t *map =
        mmap(NULL, (size_t)p->size, PROT_READ, MAP_SHARED, p->fd, 0); /* addresses only: nothing is touched */
    if (map == MAP_FAILED)
        return;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t k = 0; k < p->n_places && p->n_uncached < MOST_UNCACHED && clb_now_ns() < until; k++) {
        const uint64_t place = place_of(p, k), n = bytes_at(p, place);
        bool cached = mincore(map + place, (size_t)n, there) != 0;
        for (uint64_t i = 0; i < (n + page - 1) / page && !cached; i++)
            cached = there[i] & 1;
        if (!cached)
            p->uncached[p->n_uncached++] = place;
    }
    munmap(map, (size_t)p->size);
}

static uint64_t next_place(probe *p, bool direct)
{
    if (direct)
        return place_of(p, p->next++);
    return p->next_uncached < p->n_uncached ? p->uncached[p->next_uncached++] : UINT64_MAX;
}

/* Reads until `until`. Adds to *bytes and *ns what was read and how long it took. */
static int read_for(probe *p, clb_io *io, bool direct, uint64_t until, uint64_t *bytes, uint64_t *ns, clb_error *err)
{
    const uint64_t begin = clb_now_ns();
    clb_io_done done;
    uint32_t slot = 0;
    int rc = COLIBRI_OK;
    for (uint64_t now = begin;; now = clb_now_ns()) {
        const bool more = now < until && p->left && !rc;
        if (more && clb_io_outstanding(io) < IN_FLIGHT) {
            const uint64_t place = next_place(p, direct);
            if (place == UINT64_MAX) {
                until = 0;
                continue;
            }
            while (p->places[slot] != UINT64_MAX)
                slot = (slot + 1) % IN_FLIGHT;
            const uint64_t n = bytes_at(p, place);
            const clb_io_read read = {.offset = place, .size = n, .dst = p->buffers[slot], .tag = slot};
            rc = clb_io_submit(io, &read, 1, err);
            if (!rc) {
                p->places[slot] = place;
                p->left -= n < p->left ? n : p->left;
            }
            continue;
        }
        if (!clb_io_collect(io, &done, 1, true))
            break;
        const uint64_t place = p->places[done.tag], n = bytes_at(p, place);
        p->places[done.tag] = UINT64_MAX;
        if (done.status && !rc)
            rc = clb_io_error(io, done.tag, err);
        *bytes += n;
        if (!direct) /* leave the page cache as it was */
            posix_fadvise(p->fd, (off_t)place, (off_t)n, POSIX_FADV_DONTNEED);
    }
    *ns += clb_now_ns() - begin;
    return rc;
}

/* A slow drive takes longer over a turn, and later ones are left out; but both ways get one. */
static uint64_t turn_ends(uint32_t turn, uint64_t begin, uint64_t share)
{
    const uint64_t end = begin + (turn + 1) * share, now = clb_now_ns();
    return turn < WAYS && end < now + share ? now + share : end;
}

static int measure(probe *p, const char *path, uint64_t max_ns, const clb_io_options *like, clb_io_speed *out,
                   clb_error *err)
{
    const clb_io_file file = {.path = path, .fd = p->fd};
    clb_io *io[WAYS] = {NULL, NULL};
    uint64_t bytes[WAYS] = {0, 0}, ns[WAYS] = {0, 0};
    int rc = COLIBRI_OK;
    for (uint32_t way = 0; way < WAYS && !rc; way++) {
        const clb_io_options options = {.engine = like->engine,
                                        .direct = way ? CLB_IO_DIRECT_OFF : CLB_IO_DIRECT_ON,
                                        .files = &file,
                                        .n_files = 1,
                                        .cpus = like->cpus};
        rc = clb_io_open(&options, &io[way], err);
        if (rc == COLIBRI_E_UNSUPPORTED && way == 0)
            rc = COLIBRI_OK;
    }
    if (io[0])
        out->align = (uint32_t)clb_io_align(io[0]);
    find_uncached(p, clb_now_ns() + max_ns / 8);
    const uint64_t begin = clb_now_ns(), share = max_ns / (ROUNDS * WAYS);
    const uint64_t left = p->left / (ROUNDS * WAYS);
    for (uint32_t turn = 0; turn < ROUNDS * WAYS && !rc; turn++) {
        const uint32_t way = turn % WAYS;
        p->left = left < READ_BYTES ? READ_BYTES : left;
        if (io[way])
            rc = read_for(p, io[way], way == 0, turn_ends(turn, begin, share), &bytes[way], &ns[way], err);
    }
    out->direct_bytes_per_second = ns[0] ? (double)bytes[0] * 1e9 / (double)ns[0] : 0;
    out->buffered_bytes_per_second = ns[1] ? (double)bytes[1] * 1e9 / (double)ns[1] : 0;
    clb_io_close(io[0]);
    clb_io_close(io[1]);
    return rc;
}

int clb_io_probe(const char *path, uint64_t bytes, uint64_t max_ns, const clb_io_options *options, clb_io_speed *out,
                 clb_error *err)
{
    *out = (clb_io_speed){0};
    probe p = {.left = bytes};
    p.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (p.fd < 0)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "%s", path);
    struct stat is;
    int rc = COLIBRI_OK;
    void *memory = MAP_FAILED;
    if (fstat(p.fd, &is) || !S_ISREG(is.st_mode) || is.st_size <= 0) {
        rc = clb_fail(err, COLIBRI_E_IO, "%s is no file that a drive could be measured with", path);
        goto done;
    }
    p.size = (uint64_t)is.st_size;
    p.n_places = (p.size + READ_BYTES - 1) / READ_BYTES;
    memory = mmap(NULL, READ_BYTES * IN_FLIGHT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        rc = CLB_NOMEM(err, "measuring the drive");
        goto done;
    }
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        p.buffers[i] = (uint8_t *)memory + i * READ_BYTES;
        p.places[i] = UINT64_MAX;
    }
    rc = measure(&p, path, max_ns, options, out, err);
done:
    if (memory != MAP_FAILED)
        munmap(memory, READ_BYTES * IN_FLIGHT);
    close(p.fd);
    return rc;
}

int clb_io_measure(const char *path, uint64_t bytes, uint64_t max_ns, clb_io_speed *out, clb_error *err)
{
    const clb_io_options options = {.engine = CLB_IO_AUTO};
    return clb_io_probe(path, bytes, max_ns, &options, out, err);
}
