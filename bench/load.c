/* How close loading comes to the machine: the time to load a model against the time to read the file and to copy it
 * once.
 *
 *     bench_load [--threads N] [--repeats R] [--no-verify] [--json] FILE
 *
 * Three things are timed, one after the other in every round, all with the engine's own threads:
 *   read   the bytes of all tensors from the page cache into fresh memory of the same size, in 512 KiB reads
 *   copy   the same number of bytes from memory to memory with memcpy: what packing costs at memory speed
 *   load   the engine's loading: reading and packing all weights, experts included
 * The ratio is load / (read + copy), of the medians, once by the clock and once by CPU time of all threads, which other
 * load on the machine disturbs less. The file is read once before, so that it is in the page cache (the program says so
 * if the rounds show that it did not fit). Exit code 1: an error. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "config/config.h"
#include "cpu/topology.h"
#include "engine/load_report.h"
#include "model/model.h"
#include "plugin/open.h"

#define CHUNK     ((size_t)512 << 10)
#define HUGE_PAGE ((size_t)2 << 20)
#define COPY_MAX                                                                                                       \
    ((size_t)512 << 20) /* a window of both sides, gone over again: twice the file would not fit everywhere */

struct fixture {
    clb_registry *registry;
    clb_gguf *gguf;
    clb_pool *pool;
    uint64_t bytes; /* of all tensors */
    uint8_t *to;
    size_t to_bytes;
    const uint8_t *from;
    atomic_ullong next;
    atomic_bool failed;
    bool no_verify; /* leave the checksums of packed files alone */
};

static void *map_memory(size_t bytes)
{
    uint8_t *p =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint8_t *const aligned = p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    madvise(aligned, bytes, MADV_HUGEPAGE);
    return p;
}

static uint8_t *aligned(void *p)
{
    return (uint8_t *)p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
}

/* The data sections as one row of bytes, CHUNK after CHUNK. */
static void read_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    struct fixture *f = ctx;
    for (;;) {
        uint64_t at = atomic_fetch_add(&f->next, CHUNK);
        if (at >= f->bytes || atomic_load(&f->failed))
            return;
        size_t n = f->bytes - at < CHUNK ? (size_t)(f->bytes - at) : CHUNK;
        uint8_t *to = f->to + at;
        for (uint32_t shard = 0; n && shard < clb_gguf_n_shards(f->gguf); shard++) {
            const uint64_t size = clb_gguf_shard_size(f->gguf, shard);
            if (at >= size) {
                at -= size;
                continue;
            }
            const size_t part = size - at < n ? (size_t)(size - at) : n;
            if (pread(clb_gguf_shard_fd(f->gguf, shard), to, part, (off_t)at) != (ssize_t)part)
                atomic_store(&f->failed, true);
            to += part;
            n -= part;
            at = 0;
        }
    }
}

static void copy_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    struct fixture *f = ctx;
    for (;;) {
        const uint64_t at = atomic_fetch_add(&f->next, CHUNK);
        if (at >= f->bytes)
            return;
        const size_t n = f->bytes - at < CHUNK ? (size_t)(f->bytes - at) : CHUNK;
        memcpy(f->to + at % f->to_bytes, f->from + at % f->to_bytes, n);
    }
}

struct times {
    double clock, cpu; /* seconds; clock < 0: failed */
};

static struct times now(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (struct times){(double)clb_now_ns() / 1e9, (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                                                          (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6};
}

static struct times since(struct times t0)
{
    const struct times t = now();
    return (struct times){t.clock - t0.clock, t.cpu - t0.cpu};
}

static const struct times failed = {-1, 0};

static struct times timed(struct fixture *f, clb_pool_fn fn)
{
    atomic_store(&f->next, 0);
    const struct times t0 = now();
    clb_pool_run(f->pool, fn, f);
    return since(t0);
}

static struct times time_read(struct fixture *f)
{
    const size_t bytes = (size_t)f->bytes;
    void *p = map_memory(bytes);
    if (!p)
        return failed;
    f->to = aligned(p);
    const struct times s = timed(f, read_worker);
    munmap(p, bytes + HUGE_PAGE);
    return atomic_load(&f->failed) ? failed : s;
}

static struct times time_copy(struct fixture *f)
{
    size_t bytes = (size_t)f->bytes < COPY_MAX ? (size_t)f->bytes : COPY_MAX;
    bytes = (bytes + CHUNK - 1) / CHUNK * CHUNK;
    void *from = map_memory(bytes), *to = map_memory(bytes);
    struct times s = failed;
    if (from && to) {
        f->from = aligned(from);
        f->to = aligned(to);
        f->to_bytes = bytes;
        memset(aligned(from), 1, bytes);
        memset(f->to, 2, bytes);
        s = timed(f, copy_worker);
    }
    if (from)
        munmap(from, bytes + HUGE_PAGE);
    if (to)
        munmap(to, bytes + HUGE_PAGE);
    return s;
}

static struct times time_load(struct fixture *f, clb_load_report *report, clb_error *err)
{
    clb_model *model = NULL;
    if (clb_model_bind(f->gguf, f->registry, NULL, &model, err))
        return failed;
    clb_model_load_options options = {.pool = f->pool,
                                      .seed = 1,
                                      .preload = model->n_moe_layers > 0,
                                      .verify = f->no_verify ? CLB_VERIFY_NEVER : CLB_VERIFY_FIRST};
    const double params[16] = {0};
    if (model->n_moe_layers)
        options.policy = clb_registry_expert_policy(f->registry, "lru", err);
    options.policy_params = params;
    struct times s = failed;
    if (!model->n_moe_layers || options.policy) {
        const struct times t0 = now();
        if (clb_model_load(model, &options, err) == COLIBRI_OK) {
            s = since(t0);
            clb_store_stats stats;
            clb_store_get_stats(model->store, &stats);
            *report = clb_load_report_make(&stats);
        }
    }
    clb_model_free(model);
    return s;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { READ, COPY, LOAD, KINDS };

struct samples {
    double *clock[KINDS], *cpu[KINDS];
};

static struct times median(const struct samples *s, int kind, uint32_t n)
{
    qsort(s->clock[kind], n, sizeof(double), by_value);
    qsort(s->cpu[kind], n, sizeof(double), by_value);
    return (struct times){s->clock[kind][n / 2], s->cpu[kind][n / 2]};
}

static int open_all(struct fixture *f, const char *path, uint32_t threads, clb_error *err)
{
    clb_config *config;
    CLB_TRY(clb_config_create(&config, err));
    const int rc = clb_registry_from_config(config, BENCH_PLUGIN_DIR, NULL, &f->registry, err);
    clb_config_destroy(config);
    CLB_TRY(rc);
    CLB_TRY(clb_gguf_open(path, NULL, NULL, &f->gguf, err));
    for (uint32_t i = 0; i < clb_gguf_n_shards(f->gguf); i++)
        f->bytes += clb_gguf_shard_size(f->gguf, i);
    return clb_pool_create(threads ? threads : clb_cpu_default_threads(), &f->pool, err);
}

static void report_text(const struct fixture *f, const struct times t[KINDS], const clb_load_report *report)
{
    static const char *const what[] = {"page cache to fresh memory", "memory to memory", "the engine's loading"};
    static const char *const name[] = {"read", "copy", "load"};
    const double gb = (double)f->bytes / 1e9;
    printf("medians, %u threads, %.2f GB\n", clb_pool_workers(f->pool), gb);
    for (int k = 0; k < KINDS; k++)
        printf("  %s   %7.3f s  %6.2f GB/s  CPU %7.3f s   %s\n", name[k], t[k].clock, gb / t[k].clock, t[k].cpu,
               what[k]);
    printf("  %.0f %% of the loading threads' work is reading, huge pages %.0f %%, peak RSS %.2f GB\n",
           100 * report->read_share, 100 * clb_load_report_huge_share(report), (double)report->peak_rss / 1e9);
    printf("  load / (read + copy) = %.2f by the clock, %.2f by CPU time\n",
           t[LOAD].clock / (t[READ].clock + t[COPY].clock), t[LOAD].cpu / (t[READ].cpu + t[COPY].cpu));
}

static void report_json(const struct fixture *f, const struct times t[KINDS], const clb_load_report *report, uint32_t n)
{
    printf("{\"bytes\": %llu, \"threads\": %u, \"repeats\": %u, \"read_seconds\": %.4f, \"copy_seconds\": %.4f, "
           "\"load_seconds\": %.4f, \"ratio\": %.3f, \"read_cpu_seconds\": %.4f, \"copy_cpu_seconds\": %.4f, "
           "\"load_cpu_seconds\": %.4f, \"cpu_ratio\": %.3f, \"read_share\": %.3f, \"huge_page_share\": %.3f, "
           "\"peak_rss_bytes\": %llu}\n",
           (unsigned long long)f->bytes, clb_pool_workers(f->pool), n, t[READ].clock, t[COPY].clock, t[LOAD].clock,
           t[LOAD].clock / (t[READ].clock + t[COPY].clock), t[READ].cpu, t[COPY].cpu, t[LOAD].cpu,
           t[LOAD].cpu / (t[READ].cpu + t[COPY].cpu), report->read_share, clb_load_report_huge_share(report),
           (unsigned long long)report->peak_rss);
}

static int round_of(struct fixture *f, struct samples *s, uint32_t r, clb_load_report *report, clb_error *err)
{
    struct times t[KINDS];
    t[READ] = time_read(f);
    t[COPY] = time_copy(f);
    t[LOAD] = time_load(f, report, err);
    if (t[READ].clock < 0 || t[COPY].clock < 0)
        return clb_fail(err, COLIBRI_E_NOMEM, "no memory for the comparison, or the file cannot be read");
    if (t[LOAD].clock < 0)
        return err->code;
    for (int k = 0; k < KINDS; k++) {
        s->clock[k][r] = t[k].clock;
        s->cpu[k][r] = t[k].cpu;
    }
    return COLIBRI_OK;
}

static int measure(struct fixture *f, uint32_t repeats, bool json, clb_error *err)
{
    double *v = calloc(2 * KINDS * (size_t)repeats, sizeof *v);
    if (!v)
        return CLB_NOMEM(err, "samples");
    struct samples s;
    for (uint32_t k = 0; k < KINDS; k++) {
        s.clock[k] = v + 2 * k * repeats;
        s.cpu[k] = s.clock[k] + repeats;
    }
    clb_load_report report = {0};
    int rc = time_read(f).clock < 0 ? clb_fail(err, COLIBRI_E_IO, "cannot read the file") : COLIBRI_OK;
    for (uint32_t r = 0; rc == COLIBRI_OK && r < repeats; r++)
        rc = round_of(f, &s, r, &report, err);
    if (rc == COLIBRI_OK) {
        const struct times t[KINDS] = {median(&s, READ, repeats), median(&s, COPY, repeats), median(&s, LOAD, repeats)};
        if (json)
            report_json(f, t, &report, repeats);
        else
            report_text(f, t, &report);
    }
    free(v);
    return rc;
}

static uint32_t number(const char *text, unsigned long most)
{
    char *end;
    const unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : most + 1;
    if (v > most || *end) {
        fprintf(stderr, "bench_load: %s: must be a whole number up to %lu\n", text, most);
        exit(2);
    }
    return (uint32_t)v;
}

int main(int argc, char **argv)
{
    uint32_t threads = 0, repeats = 5;
    bool json = false;
    const char *path = NULL;
    struct fixture f = {0};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            threads = number(argv[++i], 1024);
        else if (!strcmp(argv[i], "--repeats") && i + 1 < argc)
            repeats = number(argv[++i], 1000);
        else if (!strcmp(argv[i], "--no-verify"))
            f.no_verify = true;
        else if (!strcmp(argv[i], "--json"))
            json = true;
        else
            path = argv[i];
    if (!path || !repeats) {
        fputs("usage: bench_load [--threads N] [--repeats R] [--no-verify] [--json] FILE\n", stderr);
        return 2;
    }
    clb_error err;
    int rc = open_all(&f, path, threads, &err);
    if (!rc)
        rc = measure(&f, repeats, json, &err);
    if (rc)
        fprintf(stderr, "bench_load: %s\n", err.msg);
    clb_pool_destroy(f.pool);
    clb_gguf_close(f.gguf);
    clb_registry_close(f.registry);
    return rc ? 1 : 0;
}
