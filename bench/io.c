/* How close reads of expert size at random places come to a plain sequential read of the same file.
 *
 *     bench_io [--read BYTES] [--sample MIB] [--repeats R] [--depth N] [--piece BYTES] [--buffered] FILE
 *
 * Measured in turn, R times:
 *   sequential   one thread, pread of 4 MiB after 4 MiB with O_DIRECT: what `dd iflag=direct bs=4M` does
 *   NAME         reads of BYTES at random places through the reader of the engine, eight of them asked for at any time
 *   NAME layers  the same, six asked for at once, and all awaited before the next six: a layer's missing experts
 * for NAME io_uring and pread. --buffered adds both through the page cache, of places that are not cached as far as the
 * file is larger than memory. Printed are the medians, the ratio to the sequential read of the same turn (median, least
 * and most), the CPU time of the process per gigabyte, and the share of the time in which the drive had something to
 * do. Then how long one read takes: alone, behind seven prefetch reads that were asked for just before, and behind
 * seven demand reads. Exit code 1: an error. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/io.h"

#define SEQUENTIAL   ((size_t)4 << 20)
#define MOST_REPEATS 99
#define STREAM       8u
#define LAYER        6u

enum { N_WAYS = 9 };

struct sample {
    double rate, cpu_ns_per_byte, busy;
};

struct way {
    const char *name;
    enum clb_io_engine engine;
    enum clb_io_direct direct;
    uint32_t at_once;
    bool layers, buffered;
    clb_io *io;
    struct sample samples[MOST_REPEATS];
};

struct bench {
    const char *path;
    int fd;
    uint64_t size, read_bytes, sample_bytes;
    uint32_t repeats, depth, piece;
    bool buffered;
    uint8_t *memory;
    size_t memory_bytes;
    uint64_t random, place;
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(struct bench *b)
{
    uint64_t x = b->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static struct sample sample_of(uint64_t bytes, uint64_t ns, uint64_t cpu, uint64_t busy)
{
    return (struct sample){.rate = (double)bytes * 1e9 / (double)ns,
                           .cpu_ns_per_byte = (double)cpu / (double)bytes,
                           .busy = (double)busy / (double)ns};
}

static int read_sequentially(struct bench *b, struct way *way, uint32_t round)
{
    const uint64_t t0 = clb_now_ns(), c0 = cpu_ns();
    uint64_t bytes = 0;
    while (bytes < b->sample_bytes) {
        if (b->place + SEQUENTIAL > b->size)
            b->place = 0;
        const ssize_t got = pread(b->fd, b->memory, SEQUENTIAL, (off_t)b->place);
        if (got <= 0) {
            fprintf(stderr, "bench_io: %s at %llu: %s\n", b->path, (unsigned long long)b->place,
                    got ? strerror(errno) : "it ended");
            return 1;
        }
        bytes += (uint64_t)got;
        b->place += (uint64_t)got & ~(uint64_t)4095;
    }
    const uint64_t ns = clb_now_ns() - t0;
    way->samples[round] = sample_of(bytes, ns, cpu_ns() - c0, ns);
    return 0;
}

static int ask(struct bench *b, struct way *way, uint32_t slot, uint8_t priority, clb_error *err)
{
    const uint64_t room = b->memory_bytes / STREAM;
    const uint64_t offset =
        next_random(b) % (b->size - b->read_bytes) & ~(uint64_t)31; /* as tensors in a GGUF file lie */
    const clb_io_read read = {
        .offset = offset, .size = b->read_bytes, .dst = b->memory + slot * room, .tag = slot, .priority = priority};
    return clb_io_submit(way->io, &read, 1, err);
}

static int read_at_random(struct bench *b, struct way *way, uint32_t round)
{
    clb_error err;
    clb_io_reset_stats(way->io);
    const uint64_t t0 = clb_now_ns(), c0 = cpu_ns();
    const uint64_t n = (b->sample_bytes + b->read_bytes - 1) / b->read_bytes;
    uint64_t asked = 0;
    int rc = 0;
    for (uint64_t read = 0; read < n && !rc; read++) {
        if (!clb_io_outstanding(way->io) || (!way->layers && asked < way->at_once && read == 0))
            for (uint32_t i = 0; i < way->at_once && asked < n && !rc; i++, asked++)
                rc = ask(b, way, i, CLB_IO_DEMAND, &err);
        clb_io_done done;
        if (rc || !clb_io_collect(way->io, &done, 1, true))
            break;
        if (done.status)
            rc = clb_io_error(way->io, done.tag, &err);
        else if (!way->layers && asked < n) {
            rc = ask(b, way, done.tag, CLB_IO_DEMAND, &err);
            asked++;
        }
    }
    if (rc) {
        fprintf(stderr, "bench_io: %s\n", err.msg);
        return 1;
    }
    const uint64_t ns = clb_now_ns() - t0;
    clb_io_stats stats;
    clb_io_get_stats(way->io, &stats);
    way->samples[round] = sample_of(n * b->read_bytes, ns, cpu_ns() - c0, stats.busy_ns);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds until one demand read is there, with seven reads of `priority` asked for just before it; -1: none. */
static int wait_of_one(struct bench *b, struct way *way, int priority, double *ms)
{
    clb_error err;
    int rc = 0;
    for (uint32_t i = 1; i < STREAM && priority >= 0 && !rc; i++)
        rc = ask(b, way, i, (uint8_t)priority, &err);
    if (!rc)
        rc = ask(b, way, 0, CLB_IO_DEMAND, &err);
    clb_io_done done;
    while (clb_io_collect(way->io, &done, 1, true)) {
        if (done.status == COLIBRI_E_IO && !rc)
            rc = clb_io_error(way->io, done.tag, &err);
        if (done.tag == 0)
            *ms = (double)done.wait_ns / 1e6;
    }
    if (rc)
        fprintf(stderr, "bench_io: %s\n", err.msg);
    return rc;
}

static int print_waits(struct bench *b, struct way *ways)
{
    enum { N = 41, CASES = 3 };
    static const int before[CASES] = {-1, CLB_IO_PREFETCH, CLB_IO_DEMAND};
    printf("\n%-24s %14s %24s %24s\n", "ms for one read", "alone", "behind 7 prefetch reads", "behind 7 demand reads");
    for (int w = 1; w < N_WAYS; w++) {
        if (!ways[w].io || ways[w].layers)
            continue;
        double ms[CASES][N];
        for (int i = 0; i < N; i++) /* in turn */
            for (int c = 0; c < CASES; c++)
                if (wait_of_one(b, &ways[w], before[c], &ms[c][i]))
                    return 1;
        for (int c = 0; c < CASES; c++)
            qsort(ms[c], N, sizeof ms[c][0], by_value);
        printf("%-24s %14.2f %24.2f %24.2f\n", ways[w].name, ms[0][N / 2], ms[1][N / 2], ms[2][N / 2]);
    }
    return 0;
}

/* Huge pages where the system gives them, as the engine's arena has. */
static uint8_t *huge_memory(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    uint8_t *p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    p += (huge - (uintptr_t)p % huge) % huge;
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static void print(const struct bench *b, const struct way *ways)
{
    printf("%s, %llu bytes a read, %.0f MB a sample, medians of %u\n", b->path, (unsigned long long)b->read_bytes,
           (double)b->sample_bytes / 1e6, b->repeats);
    printf("%-24s %8s   %-22s %10s %7s\n", "", "MB/s", "of sequential", "CPU ms/GB", "busy");
    for (int w = 0; w < N_WAYS; w++) {
        if (ways[w].buffered && !b->buffered)
            continue;
        double rate[MOST_REPEATS], ratio[MOST_REPEATS], cpu[MOST_REPEATS], busy[MOST_REPEATS];
        for (uint32_t i = 0; i < b->repeats; i++) {
            const struct sample *s = &ways[w].samples[i];
            rate[i] = s->rate;
            ratio[i] = s->rate / ways[0].samples[i].rate;
            cpu[i] = s->cpu_ns_per_byte;
            busy[i] = s->busy;
        }
        qsort(rate, b->repeats, sizeof *rate, by_value);
        qsort(ratio, b->repeats, sizeof *ratio, by_value);
        qsort(cpu, b->repeats, sizeof *cpu, by_value);
        qsort(busy, b->repeats, sizeof *busy, by_value);
        const uint32_t mid = b->repeats / 2;
        printf("%-24s %8.0f   %.2f (%.2f to %.2f)    %10.0f %6.0f%%\n", ways[w].name, rate[mid] / 1e6, ratio[mid],
               ratio[0], ratio[b->repeats - 1], cpu[mid] * 1e3, busy[mid] * 100);
    }
}

static int run(struct bench *b)
{
    static struct way ways[N_WAYS] = {
        {.name = "sequential"},
        {.name = "io_uring", .engine = CLB_IO_URING, .direct = CLB_IO_DIRECT_ON, .at_once = STREAM},
        {.name = "io_uring layers",
         .engine = CLB_IO_URING,
         .direct = CLB_IO_DIRECT_ON,
         .at_once = LAYER,
         .layers = true},
        {.name = "pread", .engine = CLB_IO_PREAD, .direct = CLB_IO_DIRECT_ON, .at_once = STREAM},
        {.name = "pread layers", .engine = CLB_IO_PREAD, .direct = CLB_IO_DIRECT_ON, .at_once = LAYER, .layers = true},
        {.name = "io_uring buffered",
         .engine = CLB_IO_URING,
         .direct = CLB_IO_DIRECT_OFF,
         .at_once = STREAM,
         .buffered = true},
        {.name = "io_uring buffered layers",
         .engine = CLB_IO_URING,
         .direct = CLB_IO_DIRECT_OFF,
         .at_once = LAYER,
         .layers = true,
         .buffered = true},
        {.name = "pread buffered",
         .engine = CLB_IO_PREAD,
         .direct = CLB_IO_DIRECT_OFF,
         .at_once = STREAM,
         .buffered = true},
        {.name = "pread buffered layers",
         .engine = CLB_IO_PREAD,
         .direct = CLB_IO_DIRECT_OFF,
         .at_once = LAYER,
         .layers = true,
         .buffered = true},
    };
    const clb_io_file file = {.path = b->path, .fd = -1}; /* b->fd is for direct reads only */
    int rc = 0;
    clb_error err;
    for (int w = 1; w < N_WAYS && !rc; w++) {
        if (ways[w].buffered && !b->buffered)
            continue;
        clb_io_options options = {.files = &file, .n_files = 1, .depth = b->depth, .piece_bytes = b->piece};
        options.engine = ways[w].engine;
        options.direct = ways[w].direct;
        if (clb_io_open(&options, &ways[w].io, &err)) {
            fprintf(stderr, "bench_io: %s\n", err.msg);
            rc = 1;
        }
    }
    for (uint32_t round = 0; round < b->repeats && !rc; round++)
        for (int w = 0; w < N_WAYS && !rc; w++) {
            if (w == 0)
                rc = read_sequentially(b, &ways[0], round);
            else if (ways[w].io)
                rc = read_at_random(b, &ways[w], round);
        }
    if (!rc) {
        print(b, ways);
        rc = print_waits(b, ways);
    }
    for (int w = 0; w < N_WAYS; w++)
        clb_io_close(ways[w].io);
    return rc;
}

static int parse(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--read") && more)
            b->read_bytes = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--sample") && more)
            b->sample_bytes = strtoull(argv[++i], NULL, 10) << 20;
        else if (!strcmp(argv[i], "--repeats") && more)
            b->repeats = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--depth") && more)
            b->depth = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--piece") && more)
            b->piece = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--buffered"))
            b->buffered = true;
        else if (argv[i][0] != '-' && !b->path)
            b->path = argv[i];
        else
            return 1;
    }
    return !b->path || !b->read_bytes || b->read_bytes > UINT64_C(1) << 30 || !b->sample_bytes || !b->repeats ||
           b->repeats > MOST_REPEATS;
}

int main(int argc, char **argv)
{
    /* An expert of OLMoE-1B-7B in Q4_0: three matrices of 2048 x 1024. */
    struct bench b = {.read_bytes = 3538944, .sample_bytes = (uint64_t)256 << 20, .repeats = 9, .random = 1};
    if (parse(&b, argc, argv)) {
        fprintf(stderr, "usage: bench_io [--read BYTES] [--sample MIB] [--repeats R] [--depth N] [--piece BYTES] "
                        "[--buffered] FILE\n");
        return 1;
    }
    b.fd = open(b.path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    struct stat is;
    if (b.fd < 0 || fstat(b.fd, &is)) {
        fprintf(stderr, "bench_io: %s: %s\n", b.path, strerror(errno));
        return 1;
    }
    b.size = (uint64_t)is.st_size;
    /* Slots with room for any lead, up to 1 MiB of alignment. */
    b.memory_bytes = (size_t)(((b.read_bytes + ((uint64_t)3 << 20)) & ~(uint64_t)((1 << 20) - 1)) * STREAM);
    b.memory = huge_memory(b.memory_bytes);
    int rc = 1;
    if (b.size <= b.read_bytes || b.size < SEQUENTIAL)
        fprintf(stderr, "bench_io: %s is too small\n", b.path);
    else if (!b.memory)
        fprintf(stderr, "bench_io: out of memory\n");
    else
        rc = run(&b);
    close(b.fd);
    return rc;
}
