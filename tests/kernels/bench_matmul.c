/* Speed of matrix products: one activation row with weights streamed from memory and from the cache, and products per
 * second for more rows. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define STREAM_BYTES ((size_t)256 << 20) /* far beyond any cache of one core */
#define CACHED_BYTES ((size_t)256 << 10) /* fits an L2 cache: what a kernel does when memory is no limit */
#define SMALL_BYTES  ((size_t)4 << 20)   /* for many rows, where weights are read once for all of them */
#define COLS         2048u
#define MANY         64u

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *bench_memory(size_t bytes)
{
    const size_t huge = (size_t)2 << 20, align = bytes >= huge ? huge : 64;
    void *const p = aligned_alloc(align, (bytes + align) / align * align);
    if (!p) {
        fprintf(stderr, "colibri-kernelcheck: no memory for a benchmark\n");
        exit(1);
    }
    if (align == huge)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* ---- output --------------------------------------------------------------------------------------------------- */

static struct {
    bool json, plugin_open, component, any_plugin;
} out;

static void json_string(const char *s)
{
    putchar('"');
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < ' ')
            printf("\\u%04x", (unsigned)(unsigned char)*s);
        else
            putchar(*s);
    putchar('"');
}

void bench_begin(bool json, const struct colibri_cpu_bits *cpu)
{
    const struct colibri_cpu_bits none = {{0}};
    char names[400];
    cpu_missing(&none, cpu->w, names, sizeof(names));
    out.json = json;
    if (json) {
        printf("{\"cpu\": ");
        json_string(names);
        printf(", \"threads\": 1, \"columns\": %u, \"plugins\": [", COLS);
        return;
    }
    printf(
        "One thread, matrices of %u columns, CPU time, best of several runs. CPU: %s\n"
        "x1: one activation row, %zu MiB of weights from memory; of read: against a plain read of the same memory,\n"
        "interleaved. cached: the same from %zu KiB. ns: per block of 16 rows x 32 columns. scalar: times faster than\n"
        "the format's scalar reference (x1, cached). GMAC/s: 10^9 multiply-adds per second; gather: 12 rows through "
        "x_index.\n",
        COLS, names, STREAM_BYTES >> 20, CACHED_BYTES >> 10);
    printf("%-26s %8s %7s %7s %8s %7s %7s %7s | %6s %6s %6s %6s %6s %6s\n", "component", "x1 GB/s", "of read", "ns",
           "cached", "ns", "scalar", "GMAC/s:", "x1", "x4", "x8", "x12", "x64", "gather");
}

static void close_plugin(void)
{
    if (out.json && out.plugin_open)
        printf("]}");
    out.plugin_open = false;
}

void bench_plugin(const char *path, const char *id)
{
    close_plugin();
    if (out.json) {
        printf("%s\n {\"id\": ", out.any_plugin ? "," : "");
        json_string(id);
        printf(", \"path\": ");
        json_string(path);
        printf(", \"components\": [");
    }
    out.plugin_open = out.any_plugin = true;
    out.component = false;
}

void bench_end(void)
{
    close_plugin();
    if (out.json)
        printf("]}\n");
}

static void next_component(void)
{
    printf("%s\n  ", out.component ? "," : "");
    out.component = true;
}

void bench_operation(const char *component, const char *what, double value, const char *unit)
{
    if (!out.json) {
        printf("%-18s %-62s %10.3f %s\n", component, what, value, unit);
        return;
    }
    next_component();
    printf("{\"name\": ");
    json_string(component);
    printf(", \"what\": ");
    json_string(what);
    printf(", \"value\": %.6g, \"unit\": ", value);
    json_string(unit);
    printf("}");
}

/* ---- measuring ----------------------------------------------------------------------------------------------------
 */

/* Every 64-bit word of the memory, without vector code of our own: what a kernel has to come near to. A wider loop was
 * no faster on the machines that it was tried on. */
static double read_once(const uint64_t *p, size_t bytes)
{
    const double t0 = bench_now();
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= bytes / 8; i += 8)
        for (size_t k = 0; k < 8; k++)
            s[k] += p[i + k];
    for (size_t k = 0; k < 8; k++)
        __asm__ volatile("" : : "r"(s[k])); /* somebody may want the sums */
    return bench_now() - t0;
}

static double less(double a, double b)
{
    return a < b ? a : b;
}

typedef void run_fn(const struct colibri_matmul_args *a);

/* Best of several runs, in seconds. Short products are repeated inside one reading of the clock. */
static double time_run(run_fn *run, const struct colibri_matmul_args *a, double seconds)
{
    double t0 = bench_now();
    run(a);
    const double once = bench_now() - t0;
    const int inner = once < 20e-6 ? (int)(40e-6 / (once + 1e-7)) : 1;
    double best = once;
    const double end = bench_now() + seconds;
    for (int rep = 0; rep < 3 || (bench_now() < end && rep < 200); rep++) {
        t0 = bench_now();
        for (int i = 0; i < inner; i++)
            run(a);
        best = less(best, (bench_now() - t0) / inner);
    }
    return best;
}

static const struct colibri_format *references[64];
static size_t n_references;

void bench_reference(const struct colibri_plugin *p)
{
    const struct colibri_format *f;
    for (uint32_t i = 0; (f = p->get(COLIBRI_IFACE_FORMAT, i)) && n_references < 64; i++)
        references[n_references++] = f;
}

static const struct fmt *decoder_format;

static void decoder(const struct colibri_matmul_args *a)
{
    fmt_matmul(decoder_format, a);
}

static run_fn *scalar_reference(const struct fmt *f)
{
    for (size_t i = 0; i < n_references; i++)
        if (references[i]->gguf_type == f->type && references[i]->matmul)
            return references[i]->matmul;
    decoder_format = f;
    return decoder;
}

struct result {
    double read, stream, stream_ns, cached, cached_ns, speedup; /* GB/s, ns per block */
    double gmacs[6];
};

static const struct {
    uint32_t n_x;
    bool gathered;
    const char *name;
} shapes[6] = {{1, false, "x1"},   {4, false, "x4"},   {8, false, "x8"},
               {12, false, "x12"}, {64, false, "x64"}, {12, true, "gather12"}};

static void measure(const struct colibri_matmul *m, const struct fmt *f, struct result *res)
{
    const size_t group_bytes = 16 * fmt_row_bytes(f, COLS);
    const uint32_t groups = (uint32_t)(STREAM_BYTES / group_bytes);
    const uint32_t cached = (uint32_t)(CACHED_BYTES / group_bytes), small = (uint32_t)(SMALL_BYTES / group_bytes);
    struct rng r = {.state = 1};
    char *const w = bench_memory(groups * group_bytes);
    const size_t x_stride = fmt_act_bytes(f, COLS);
    char *const x = bench_memory(MANY * x_stride);
    uint32_t index[12];
    for (uint32_t t = 0; t < MANY; t++)
        fill_ordinary(&r, f, w, group_bytes, x + t * x_stride, COLS);
    for (uint32_t g = 1; g < groups; g++)
        memcpy(w + g * group_bytes, w, group_bytes);
    for (uint32_t t = 0; t < 12; t++)
        index[t] = (t * 37 + 11) % MANY;
    float *const y = bench_memory((size_t)MANY * groups * 16 * sizeof(float));
    void *const scratch = bench_memory(m->scratch_bytes);
    struct colibri_matmul_args a = {
        .struct_size = sizeof(a),
        .n_rows = 16 * groups,
        .n_cols = COLS,
        .n_x = 1,
        .group_end = groups,
        .w = w,
        .group_stride = group_bytes,
        .x = x,
        .x_stride = x_stride,
        .y = y,
        .y_stride = (size_t)16 * groups,
        .scratch = m->scratch_bytes ? scratch : NULL,
    };
    double read = 1e30, stream = 1e30;
    for (int rep = 0; rep < 7; rep++) {
        read = less(read, read_once((const void *)w, groups * group_bytes));
        const double t0 = bench_now();
        m->run(&a);
        stream = less(stream, bench_now() - t0);
    }
    const double blocks = COLS / 32;
    res->read = (double)groups * (double)group_bytes / read / 1e9;
    res->stream = (double)groups * (double)group_bytes / stream / 1e9;
    res->stream_ns = stream * 1e9 / (groups * blocks);
    a.group_end = cached;
    const double hot = time_run(m->run, &a, 0.1);
    res->cached = (double)cached * (double)group_bytes / hot / 1e9;
    res->cached_ns = hot * 1e9 / (cached * blocks);
    a.group_end = 1;
    res->speedup = time_run(scalar_reference(f), &a, 0.05) * cached / hot;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        a.n_x = shapes[i].n_x;
        a.x_index = shapes[i].gathered ? index : NULL;
        a.group_end = a.n_x == 1 ? cached : small;
        a.n_rows = 16 * a.group_end;
        a.y_stride = a.n_rows;
        const double t = a.n_x == 1 ? hot : time_run(m->run, &a, 0.15);
        res->gmacs[i] = (double)a.n_rows * COLS * a.n_x / t / 1e9;
    }
    free(w);
    free(x);
    free(y);
    free(scratch);
}

void bench_matmul(const struct colibri_matmul *m)
{
    const struct fmt *const f = fmt_find(m->gguf_type);
    struct result r;
    if (!f)
        return;
    measure(m, f, &r);
    if (!out.json) {
        printf("%-26s %8.1f %6.0f%% %7.2f %8.1f %7.2f %6.0fx %7s |", m->name, r.stream, 100.0 * r.stream / r.read,
               r.stream_ns, r.cached, r.cached_ns, r.speedup, "");
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            printf(" %6.1f", r.gmacs[i]);
        putchar('\n');
        fflush(stdout);
        return;
    }
    next_component();
    printf("{\"name\": ");
    json_string(m->name);
    printf(", \"format\": \"%s\", \"min_x\": %u, \"read_gb_s\": %.4g, \"stream_gb_s\": %.4g, \"stream_of_read\": %.4g, "
           "\"stream_ns_per_block\": %.4g, \"cached_gb_s\": %.4g, \"cached_ns_per_block\": %.4g, "
           "\"times_scalar\": %.4g, \"gmac_s\": {",
           f->name, m->min_x, r.read, r.stream, r.stream / r.read, r.stream_ns, r.cached, r.cached_ns, r.speedup);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        printf("%s\"%s\": %.4g", i ? ", " : "", shapes[i].name, r.gmacs[i]);
    printf("}}");
}
