/* Which piece is read next, and what becomes of it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "store/io_internal.h"

/* What prefetch may have in flight, in time: as long as a demand read may have to wait behind it. The least number
 * keeps the drive busy while pieces complete one by one. */
#define PREFETCH_SECONDS 0.004
#define PREFETCH_LEAST   4u
/* Of a drive before it was measured. */
#define GUESSED_RATE 1e9
/* Interrupted calls and resources that are short for a moment end; a file system that says so forever does not. */
#define MOST_IDLE 1000u

/* ---- lists of requests */

static void push(clb_io *io, clb_io_queue *q, uint32_t i)
{
    clb_io_request *r = &io->requests[i];
    r->next = CLB_IO_NONE;
    r->prev = q->tail;
    if (q->tail == CLB_IO_NONE)
        q->head = i;
    else
        io->requests[q->tail].next = i;
    q->tail = i;
}

static void unlink_request(clb_io *io, clb_io_queue *q, uint32_t i)
{
    const clb_io_request *r = &io->requests[i];
    if (r->prev == CLB_IO_NONE)
        q->head = r->next;
    else
        io->requests[r->prev].next = r->next;
    if (r->next == CLB_IO_NONE)
        q->tail = r->prev;
    else
        io->requests[r->next].prev = r->prev;
}

static clb_io_queue *queue_of(clb_io *io, const clb_io_request *r)
{
    return r->priority == CLB_IO_DEMAND ? &io->demand : &io->prefetch;
}

static uint32_t bucket(const clb_io *io, uint32_t tag)
{
    return (tag * 2654435761u >> 7) & (io->n_buckets - 1);
}

uint32_t clb_io_find(const clb_io *io, uint32_t tag)
{
    uint32_t i = io->n_buckets ? io->buckets[bucket(io, tag)] : CLB_IO_NONE;
    while (i != CLB_IO_NONE && io->requests[i].tag != tag)
        i = io->requests[i].chain;
    return i;
}

/* Room for n more requests. */
static int reserve(clb_io *io, uint32_t n, clb_error *err)
{
    if (io->n_requests - io->outstanding >= n)
        return COLIBRI_OK;
    uint64_t want = io->n_requests ? (uint64_t)io->n_requests * 2 : 64;
    while (want - io->outstanding < n)
        want *= 2;
    if (want > UINT32_MAX / 2)
        return clb_fail(err, COLIBRI_E_NOMEM, "%u reads at once", n);
    uint32_t *buckets = malloc((size_t)want * sizeof *buckets);
    clb_io_request *requests = buckets ? realloc(io->requests, (size_t)want * sizeof *requests) : NULL;
    if (!requests) {
        free(buckets);
        return CLB_NOMEM(err, "read requests");
    }
    io->requests = requests;
    for (uint32_t i = (uint32_t)want; i-- > io->n_requests;) {
        requests[i] = (clb_io_request){.next = io->free_request};
        io->free_request = i;
    }
    const uint32_t n_old = io->n_requests;
    io->n_requests = (uint32_t)want;
    free(io->buckets);
    io->buckets = buckets;
    io->n_buckets = (uint32_t)want;
    memset(buckets, 0xff, (size_t)want * sizeof *buckets);
    for (uint32_t i = 0; i < n_old; i++)
        if (requests[i].state != CLB_IO_FREE) {
            uint32_t *b = &buckets[bucket(io, requests[i].tag)];
            requests[i].chain = *b;
            *b = i;
        }
    return COLIBRI_OK;
}

int clb_io_queue_open(clb_io *io, clb_error *err)
{
    io->free_request = CLB_IO_NONE;
    io->demand = io->prefetch = io->done = io->retry = (clb_io_queue){CLB_IO_NONE, CLB_IO_NONE};
    io->free_piece = 0;
    io->pieces = calloc(io->depth, sizeof *io->pieces);
    if (!io->pieces)
        return CLB_NOMEM(err, "read requests");
    for (uint32_t i = 0; i < io->depth; i++)
        io->pieces[i].next = i + 1 < io->depth ? i + 1 : CLB_IO_NONE;
    return reserve(io, 64, err);
}

void clb_io_queue_close(clb_io *io)
{
    free(io->requests);
    free(io->buckets);
    free(io->pieces);
}

int clb_io_take(clb_io *io, const clb_io_read *reads, uint32_t n, clb_error *err)
{
    CLB_TRY(reserve(io, n, err));
    const uint64_t now = clb_now_ns(), mask = io->align - 1;
    for (uint32_t k = 0; k < n; k++) {
        const clb_io_read *from = &reads[k];
        assert(from->file < io->n_files && from->size && from->tag < UINT32_C(1) << 31);
        assert(((uintptr_t)from->dst & mask) == 0 && clb_io_find(io, from->tag) == CLB_IO_NONE);
        const uint32_t i = io->free_request;
        clb_io_request *r = &io->requests[i];
        io->free_request = r->next;
        *r = (clb_io_request){
            .tag = from->tag,
            .file = from->file,
            .start = from->offset & ~mask,
            .end = from->offset + from->size,
            .read_end = (from->offset + from->size + mask) & ~mask,
            .dst = from->dst,
            .submit_ns = now,
            .priority = from->priority == CLB_IO_DEMAND ? CLB_IO_DEMAND : CLB_IO_PREFETCH,
            .state = CLB_IO_QUEUED,
        };
        /* Pieces of about equal size: a short one at the end would cost a whole access for little. */
        const uint64_t bytes = r->read_end - r->start;
        const uint64_t pieces = (bytes + io->piece_bytes - 1) / io->piece_bytes;
        r->piece_bytes = ((bytes + pieces - 1) / pieces + mask) & ~mask;
        r->n_pieces = (uint32_t)((bytes + r->piece_bytes - 1) / r->piece_bytes);
        uint32_t *b = &io->buckets[bucket(io, r->tag)];
        r->chain = *b;
        *b = i;
        push(io, queue_of(io, r), i);
        io->unissued += r->n_pieces;
        io->outstanding++;
        io->stats.requests++;
    }
    return COLIBRI_OK;
}

/* ---- pieces */

uint32_t clb_io_prefetch_room(const clb_io *io)
{
    double rate = 0;
    for (uint32_t i = 0; i < io->n_drives; i++) {
        const clb_io_drive *d = &io->drives[i];
        rate += d->out ? 0 : d->best > 0 ? d->best : GUESSED_RATE;
    }
    const double in_time = rate * PREFETCH_SECONDS / (double)io->piece_bytes;
    const uint32_t most = io->depth - io->depth / 4; /* the rest is always free for demand */
    const uint32_t room = in_time < (double)most ? (uint32_t)in_time : most;
    const uint32_t least = PREFETCH_LEAST < most ? PREFETCH_LEAST : most;
    return room > least ? room : least;
}

int clb_io_piece_fd(const clb_io *io, const clb_io_piece *p)
{
    const clb_io_copy *copy = &io->files[io->requests[p->request].file].copies[p->copy];
    return p->buffered || copy->direct_fd < 0 ? copy->fd : copy->direct_fd;
}

static void free_piece(clb_io *io, uint32_t i)
{
    io->pieces[i].next = io->free_piece;
    io->free_piece = i;
}

/* The next piece of the request at the head of q. */
static uint32_t cut_piece(clb_io *io, clb_io_queue *q)
{
    const uint32_t index = q->head, i = io->free_piece;
    clb_io_request *r = &io->requests[index];
    clb_io_piece *p = &io->pieces[i];
    io->free_piece = p->next;
    const uint64_t skip = r->n_issued * r->piece_bytes, offset = r->start + skip;
    const uint64_t end = r->n_issued + 1 == r->n_pieces ? r->read_end : offset + r->piece_bytes;
    *p = (clb_io_piece){
        .request = index,
        .offset = offset,
        .size = end - offset,
        .need = (end < r->end ? end : r->end) - offset,
        .dst = r->dst + skip,
        .copy = CLB_IO_NONE,
    };
    r->in_flight++;
    io->unissued--;
    if (++r->n_issued == r->n_pieces) {
        unlink_request(io, q, index);
        r->state = CLB_IO_ISSUED;
    }
    return i;
}

static bool in_range(uint64_t n, uint64_t first, uint64_t count)
{
    return first && n >= first && n - first < count;
}

static void apply_faults(clb_io *io, clb_io_piece *p, uint64_t now)
{
    const clb_io_faults *f = io->faults;
    const uint64_t n = ++io->issued_ever;
    p->fault_errno = 0;
    p->most = UINT64_MAX;
    p->delay_ns = 0;
    if (!f || (f->drives && !(f->drives >> p->copy & 1)))
        return;
    if (in_range(n, f->fail_first, f->fail_count))
        p->fault_errno = f->fail_errno;
    if (in_range(n, f->short_first, f->short_count))
        p->most = f->short_bytes;
    if (f->bytes_per_second) {
        clb_io_drive *d = &io->drives[p->copy];
        const uint64_t begin = d->slow_until > now ? d->slow_until : now;
        d->slow_until = begin + (p->size - p->got) * 1000000000u / f->bytes_per_second;
        p->delay_ns = d->slow_until - now;
    }
}

uint32_t clb_io_next(clb_io *io)
{
    uint32_t i = io->retry.head;
    if (i != CLB_IO_NONE) {
        io->retry.head = io->pieces[i].next;
        if (io->retry.head == CLB_IO_NONE)
            io->retry.tail = CLB_IO_NONE;
    } else if (io->free_piece == CLB_IO_NONE) {
        return CLB_IO_NONE;
    } else if (io->demand.head != CLB_IO_NONE) {
        i = cut_piece(io, &io->demand);
    } else if (io->prefetch.head != CLB_IO_NONE && io->in_flight < clb_io_prefetch_room(io)) {
        i = cut_piece(io, &io->prefetch);
    } else {
        return CLB_IO_NONE;
    }
    clb_io_piece *p = &io->pieces[i];
    const clb_io_request *r = &io->requests[p->request];
    const clb_io_opened *file = &io->files[r->file];
    const uint64_t now = clb_now_ns(), bytes = p->size - p->got;
    if (p->copy == CLB_IO_NONE || p->tried >> p->copy & 1)
        p->copy = clb_io_choose(io, file, p->tried, bytes, r->priority == CLB_IO_DEMAND, now);
    assert(p->copy != CLB_IO_NONE);
    if (!io->in_flight++)
        io->busy_since = now;
    io->stats.pieces++;
    clb_io_drive_begins(io, p->copy, bytes, now);
    apply_faults(io, p, now);
    return i;
}

static void complete(clb_io *io, uint32_t index, uint64_t now)
{
    clb_io_request *r = &io->requests[index];
    if (r->cancelled && !r->status)
        r->status = COLIBRI_E_CANCELLED;
    r->state = CLB_IO_DONE;
    r->done_ns = now;
    push(io, &io->done, index);
}

/* Gives up what was not issued of a request; it completes when the rest is through. */
void clb_io_drop(clb_io *io, uint32_t index)
{
    clb_io_request *r = &io->requests[index];
    if (r->state == CLB_IO_QUEUED) {
        unlink_request(io, queue_of(io, r), index);
        io->unissued -= r->n_pieces - r->n_issued;
        r->n_issued = r->n_pieces;
        r->state = CLB_IO_ISSUED;
    }
    if (!r->in_flight && r->state == CLB_IO_ISSUED)
        complete(io, index, clb_now_ns());
}

void clb_io_raise(clb_io *io, uint32_t index)
{
    clb_io_request *r = &io->requests[index];
    const bool queued = r->state == CLB_IO_QUEUED;
    if (queued)
        unlink_request(io, queue_of(io, r), index);
    r->priority = CLB_IO_DEMAND;
    if (queued)
        push(io, &io->demand, index);
}

/* What a result means for its piece. */
enum outcome { THROUGH, AGAIN, FAILED };

/* The piece cannot be had from its copy. AGAIN if another one may have it; else *err is set. */
static enum outcome copy_failed(clb_io *io, clb_io_piece *p, int errnum, clb_error *err)
{
    const clb_io_request *r = &io->requests[p->request];
    clb_io_opened *file = &io->files[r->file];
    clb_io_copy *copy = &file->copies[p->copy];
    const char *name = copy->path ? copy->path : "the model";
    const uint64_t at = p->offset + p->got;
    struct stat is;
    if (errnum)
        clb_error_set_errno(err, COLIBRI_E_IO, errnum, "%s: reading %llu bytes at %llu", name,
                            (unsigned long long)(p->need - p->got), (unsigned long long)at);
    else if (!fstat(copy->fd, &is) && (uint64_t)is.st_size < file->size)
        clb_error_set(err, COLIBRI_E_IO, "%s shrank from %llu to %llu bytes while it was in use; copy it again", name,
                      (unsigned long long)file->size, (unsigned long long)is.st_size);
    else
        clb_error_set(err, COLIBRI_E_IO, "%s: nothing can be read at %llu, though it has %llu bytes", name,
                      (unsigned long long)at, (unsigned long long)file->size);
    p->tried |= 1u << p->copy;
    if (file->n_copies > 1 && !copy->out && !(errnum && io->drives[p->copy].out)) {
        copy->out = true;
        io->drives[p->copy].out |= errnum != 0;
        clb_logf(io->log, COLIBRI_LOG_WARN, "%s; from now on %s is read from its other copies", err->msg, name);
    }
    if (p->tried == (1u << file->n_copies) - 1)
        return FAILED;
    p->got = 0;
    p->buffered = false;
    p->idle = 0;
    return AGAIN;
}

static enum outcome judge(clb_io *io, clb_io_piece *p, int64_t result, clb_error *err)
{
    clb_io_copy *copy = &io->files[io->requests[p->request].file].copies[p->copy];
    const bool direct = clb_io_piece_fd(io, p) != copy->fd;
    const bool refused = direct && (result == -EINVAL || result == -EOPNOTSUPP);
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) {
        io->stats.retried++;
        return ++p->idle < MOST_IDLE ? AGAIN : copy_failed(io, p, (int)-result, err);
    }
    if (result > 0) {
        p->got += (uint64_t)result;
        p->idle = 0;
        if (p->got >= p->need)
            return THROUGH;
    }
    io->stats.retried++;
    /* A direct read that ends short of a block, at the file's end or not, cannot be resumed as one, and some file
     * systems refuse direct reads that others do not. The page cache tells what is there. */
    if (refused && !copy->refuses_direct) {
        copy->refuses_direct = true;
        clb_logf(io->log, COLIBRI_LOG_INFO, "%s: a direct read was refused; reading through the page cache then",
                 copy->path);
    }
    if (refused || (direct && (result == 0 || (result > 0 && p->got % io->align)))) {
        p->buffered = true;
        return AGAIN;
    }
    if (result > 0)
        return AGAIN;
    return copy_failed(io, p, (int)-result, err);
}

void clb_io_finish(clb_io *io, uint32_t index, int64_t result)
{
    clb_io_piece *p = &io->pieces[index];
    clb_io_request *r = &io->requests[p->request];
    const uint64_t now = clb_now_ns();
    if (p->fault_errno)
        result = -p->fault_errno;
    else if (result > 0 && (uint64_t)result > p->most)
        result = (int64_t)p->most;
    const uint64_t delivered = result > 0 ? (uint64_t)result : 0;
    clb_io_drive_ends(io, p->copy, p->size - p->got, delivered, now);
    io->stats.bytes += delivered;
    assert(io->in_flight);
    if (!--io->in_flight)
        io->stats.busy_ns += now - io->busy_since;

    clb_error err = {0};
    enum outcome outcome = judge(io, p, result, &err);
    if (outcome == FAILED) {
        if (!r->status) {
            r->status = COLIBRI_E_IO;
            io->failures[io->n_failures++ % CLB_IO_FAILURES] = (clb_io_failure){.tag = r->tag, .err = err};
        }
    } else if (outcome == AGAIN && !r->cancelled && !r->status) {
        p->next = CLB_IO_NONE;
        if (io->retry.tail == CLB_IO_NONE)
            io->retry.head = index;
        else
            io->pieces[io->retry.tail].next = index;
        io->retry.tail = index;
        return;
    }
    const uint32_t request = p->request;
    free_piece(io, index);
    r->in_flight--;
    if (r->status || r->state == CLB_IO_ISSUED)
        clb_io_drop(io, request);
}

uint32_t clb_io_pop_done(clb_io *io, clb_io_done *done, uint32_t max)
{
    uint32_t n = 0;
    for (; n < max && io->done.head != CLB_IO_NONE; n++) {
        const uint32_t i = io->done.head;
        clb_io_request *r = &io->requests[i];
        unlink_request(io, &io->done, i);
        done[n] = (clb_io_done){.tag = r->tag, .status = r->status, .wait_ns = r->done_ns - r->submit_ns};
        uint32_t *at = &io->buckets[bucket(io, r->tag)];
        while (*at != i)
            at = &io->requests[*at].chain;
        *at = r->chain;
        r->state = CLB_IO_FREE;
        r->next = io->free_request;
        io->free_request = i;
        io->outstanding--;
    }
    return n;
}
