#include "plan/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "plugin/measure.h"
#include "store/io.h"

#define DRIVE_NS      UINT64_C(150000000)
#define DRIVE_BYTES   (UINT64_C(512) << 20)
#define DRIVE_SECONDS (UINT64_C(24) * 3600)
#define OTHER_SECONDS (UINT64_C(30) * 24 * 3600)
#define KERNEL_NS     UINT64_C(1000000000) /* for a format; kernels take a fiftieth of it, the scalar reference half */
#define PACK_NS       UINT64_C(3000000)
#define LOOPS         200
/* For what could not be measured: a middling NVMe drive, and a core of the last ten years. */
#define ASSUMED_DRIVE   2e9
#define ASSUMED_DECODE  8e9  /* bytes per second and thread */
#define ASSUMED_PREFILL 40e9 /* multiply-adds per second and thread */
#define ASSUMED_PACK    3e9  /* bytes per second and thread */
#define ASSUMED_LOOP    5e3

const char *clb_rate_source_text(enum clb_rate_source source)
{
    static const char *const texts[] = {"assumed", "remembered", "measured now"};
    return texts[source];
}

const clb_rate_kernel *clb_rates_kernel(const clb_rates *rates, const clb_matrix *m)
{
    for (uint32_t i = 0; i < rates->n_kernels; i++)
        if (rates->kernel[i].type == m->format->gguf_type)
            return &rates->kernel[i];
    return &rates->kernel[0];
}

/* ---- which matrix stands for a format ---------------------------------------------------------------------- */

struct formats {
    const clb_matrix *m[CLB_RATE_KERNELS]; /* the largest */
    uint64_t bytes[CLB_RATE_KERNELS];      /* per token of the whole format: what matters most comes first */
    uint32_t n;
};

static void add_format(struct formats *f, const clb_matrix *m, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < f->n && f->m[i]->format != m->format)
        i++;
    if (i == CLB_RATE_KERNELS)
        return;
    if (i == f->n) {
        f->m[f->n] = m;
        f->bytes[f->n++] = 0;
    }
    f->bytes[i] += bytes;
    if (m->bytes > f->m[i]->bytes)
        f->m[i] = m;
}

static void find_formats(const clb_model *model, struct formats *f)
{
    *f = (struct formats){0};
    for (uint32_t l = 0; l < model->hp.n_layers; l++) {
        const clb_layer *y = &model->layers[l];
        const clb_weight *const w[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down, &y->router};
        for (size_t i = 0; i < sizeof w / sizeof *w; i++)
            if (w[i]->tensor)
                add_format(f, &w[i]->m, w[i]->m.bytes);
        if (y->moe >= 0)
            for (int p = 0; p < CLB_PARTS; p++) {
                const clb_matrix *m = &model->expert_layers[y->moe].part[p];
                add_format(f, m, m->bytes * model->hp.top_k);
            }
    }
    const clb_weight *out = model->output.tensor ? &model->output : &model->token_embd;
    add_format(f, &out->m, out->m.bytes);
    for (uint32_t i = 1; i < f->n; i++) /* by weight */
        for (uint32_t k = i; k && f->bytes[k] > f->bytes[k - 1]; k--) {
            const uint64_t b = f->bytes[k];
            const clb_matrix *m = f->m[k];
            f->bytes[k] = f->bytes[k - 1];
            f->m[k] = f->m[k - 1];
            f->bytes[k - 1] = b;
            f->m[k - 1] = m;
        }
}

/* ---- measuring --------------------------------------------------------------------------------------------- */

/* What other programs take away would not be taken away from an idle machine. */
static uint64_t cpu_time(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double measure_pack(const clb_matrix *m)
{
    if (m->format->layout == COLIBRI_LAYOUT_ROWS)
        return 0;
    uint8_t *rows = aligned_alloc(64, (m->group_stride + 63) / 64 * 64);
    uint8_t *group = aligned_alloc(64, (m->group_stride + 63) / 64 * 64);
    double rate = 0;
    if (rows && group) {
        memset(rows, 0x5a, m->group_stride);
        uint64_t n = 0;
        const uint64_t begin = cpu_time(NULL);
        uint64_t ns;
        do {
            m->format->pack(rows, (size_t)m->row_bytes, COLIBRI_GROUP_ROWS, m->n_cols, group);
            n += m->group_stride;
            ns = cpu_time(NULL) - begin;
        } while (ns < PACK_NS);
        rate = (double)n * 1e9 / (double)ns;
    }
    free(rows);
    free(group);
    return rate;
}

/* The kernels that the matrix was bound to, in its shape, by the stopwatch of [kernels] select = measure. */
static bool measure_kernel(const clb_matrix *m, uint32_t n_threads, clb_rate_kernel *out)
{
    struct colibri_matmul candidates[CLB_X_CLASSES];
    clb_measure_job job = {.format = m->format,
                           .n_rows = m->n_rows < CLB_MEASURE_ROWS ? m->n_rows : CLB_MEASURE_ROWS,
                           .n_cols = m->n_cols,
                           .n_threads = n_threads,
                           .max_bytes = CLB_MEASURE_BYTES,
                           .deadline = cpu_time(NULL) + KERNEL_NS,
                           .now = cpu_time, /* a busy machine takes longer, and then measures as well as an idle one */
                           .thread_now = cpu_time};
    for (unsigned c = 0; c < CLB_X_CLASSES; c += CLB_X_CLASSES - 1) { /* one row, and 64 */
        candidates[c] = (struct colibri_matmul){.struct_size = sizeof candidates[c],
                                                .gguf_type = m->format->gguf_type,
                                                .layout = m->format->layout,
                                                .name = m->format->name,
                                                .act = m->format->act,
                                                .scratch_bytes = m->scratch_bytes,
                                                .run = m->run[c]};
        job.rival[c][0] = &candidates[c];
        job.n_rivals[c] = 1;
    }
    if (clb_measure_run(&job, NULL) || !job.ps[0][0] || !job.ps[CLB_X_CLASSES - 1][0])
        return false;
    const double weights = (double)m->row_bytes * job.n_rows, macs = (double)job.n_rows * m->n_cols;
    out->decode_bytes_per_second = weights * 1e12 / (double)job.ps[0][0];
    out->prefill_macs_per_second =
        macs * clb_measure_n_x[CLB_X_CLASSES - 1] * 1e12 / (double)job.ps[CLB_X_CLASSES - 1][0];
    out->pack_bytes_per_second = measure_pack(m) * n_threads;
    return true;
}

static void nothing(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)ctx;
    (void)worker;
    (void)n_workers;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double measure_loop(clb_pool *pool)
{
    uint64_t ns[LOOPS];
    for (int i = 0; i < LOOPS; i++) {
        const uint64_t t0 = clb_now_ns();
        clb_pool_run(pool, nothing, NULL);
        ns[i] = clb_now_ns() - t0;
    }
    qsort(ns, LOOPS, sizeof *ns, by_size);
    return (double)ns[LOOPS / 2];
}

/* ---- remembering ------------------------------------------------------------------------------------------- */

struct getter {
    const clb_rates_options *o;
    clb_rate_records known;
    uint64_t now;
    bool changed;
};

static const clb_rate_record *recall(const struct getter *g, const char *key, uint64_t seconds)
{
    return g->o->again ? NULL : clb_rate_records_find(&g->known, key, g->now, seconds);
}

static void remember(struct getter *g, const char *key, double a, double b, double c)
{
    clb_rate_record r = {.when = g->now, .value = {a, b, c}};
    snprintf(r.key, sizeof r.key, "%s", key);
    g->changed = clb_rate_records_put(&g->known, &r, NULL) == COLIBRI_OK || g->changed;
}

static void clean(char *key)
{
    for (; *key; key++)
        if ((unsigned char)*key < ' ' || (unsigned char)*key > '~')
            *key = '?';
}

static void get_kernel(struct getter *g, const clb_matrix *m, clb_rate_kernel *out)
{
    const uint32_t n = clb_pool_workers(g->o->pool);
    *out = (clb_rate_kernel){.type = m->format->gguf_type,
                             .decode_bytes_per_second = ASSUMED_DECODE * n,
                             .prefill_macs_per_second = ASSUMED_PREFILL * n,
                             .pack_bytes_per_second = m->format->layout == COLIBRI_LAYOUT_ROWS ? 0 : ASSUMED_PACK * n};
    snprintf(out->name, sizeof out->name, "%s", m->format->name);
    /* The kernels' names say what they are compiled for; two builds of one kernel count as the same. */
    const struct colibri_matmul *chosen[CLB_X_CLASSES];
    clb_registry_kernels(g->o->model->registry, m->format, m->n_rows, m->n_cols, chosen);
    char key[240];
    snprintf(key, sizeof key, "kernel %s %s %s %s threads %u columns %u", g->o->cpu_model ? g->o->cpu_model : "unknown",
             m->format->name, chosen[0] ? chosen[0]->name : "reference",
             chosen[CLB_X_CLASSES - 1] ? chosen[CLB_X_CLASSES - 1]->name : "reference", n, m->n_cols);
    clean(key);
    const clb_rate_record *r = recall(g, key, OTHER_SECONDS);
    if (r && r->value[0] > 0 && r->value[1] > 0) {
        out->source = CLB_RATE_REMEMBERED;
        out->decode_bytes_per_second = r->value[0];
        out->prefill_macs_per_second = r->value[1];
        out->pack_bytes_per_second = r->value[2];
    } else if (g->o->measure && measure_kernel(m, n, out)) {
        out->source = CLB_RATE_MEASURED;
        remember(g, key, out->decode_bytes_per_second, out->prefill_macs_per_second, out->pack_bytes_per_second);
    }
}

bool clb_rates_remembered_range(const char *cache_file, const char *cpu_model, uint32_t threads, double *least,
                                double *most)
{
    clb_rate_records known = {0};
    char prefix[240];
    bool found = false, exact = false;
    snprintf(prefix, sizeof prefix, "kernel %s ", cpu_model);
    clean(prefix);
    (void)clb_rate_records_load(cache_file, &known, NULL);
    for (size_t i = 0; i < known.n; i++) {
        const clb_rate_record *const r = &known.at[i];
        const double rate = r->value[0];
        unsigned n = 0; /* three words follow, or the CPU's name only begins like this one's */
        if (strncmp(r->key, prefix, strlen(prefix)) != 0 || strstr(r->key, " reference ") || !(rate > 0) ||
            sscanf(r->key + strlen(prefix), "%*s %*s %*s threads %9u", &n) != 1 ||
            !clb_rate_records_find(&known, r->key, (uint64_t)time(NULL), OTHER_SECONDS))
            continue;
        const bool same = n == threads;
        if (exact && !same)
            continue;
        if (!found || (same && !exact))
            *least = *most = rate;
        *least = rate < *least ? rate : *least;
        *most = rate > *most ? rate : *most;
        found = true;
        exact = same;
    }
    clb_rate_records_free(&known);
    return found;
}

static void get_drive(struct getter *g, clb_rates *out)
{
    const clb_gguf *gguf = g->o->model->gguf;
    struct stat st;
    char key[64] = "";
    out->drive_bytes_per_second = ASSUMED_DRIVE;
    out->drive_direct = g->o->direct != 2;
    double direct = 0, buffered = 0;
    const int fd = clb_gguf_shard_fd(gguf, 0);
    if (fd < 0 || fstat(fd, &st))
        return;
    snprintf(key, sizeof key, "drive %llu", (unsigned long long)st.st_dev);
    const clb_rate_record *r = recall(g, key, DRIVE_SECONDS);
    clb_io_speed speed;
    if (r && (r->value[0] > 0 || r->value[1] > 0)) {
        direct = r->value[0];
        buffered = r->value[1];
        out->drive_source = CLB_RATE_REMEMBERED;
    } else if (g->o->measure &&
               clb_io_measure(clb_gguf_shard_path(gguf, 0), DRIVE_BYTES, DRIVE_NS, &speed, NULL) == COLIBRI_OK) {
        direct = speed.direct_bytes_per_second;
        buffered = speed.buffered_bytes_per_second;
        if (direct <= 0 && buffered <= 0)
            return;
        out->drive_source = CLB_RATE_MEASURED;
        remember(g, key, direct, buffered, 0);
    } else {
        return;
    }
    out->drive_direct = g->o->direct == 1 || (g->o->direct == 0 && direct >= buffered);
    const double wanted = out->drive_direct ? direct : buffered;
    if (wanted > 0)
        out->drive_bytes_per_second = wanted;
    else
        out->drive_bytes_per_second = direct > buffered ? direct : buffered;
}

void clb_rates_get(const clb_rates_options *options, clb_rates *out)
{
    *out = (clb_rates){0};
    struct getter g = {.o = options, .now = (uint64_t)time(NULL)};
    const uint64_t t0 = clb_now_ns();
    if (options->cache_file)
        (void)clb_rate_records_load(options->cache_file, &g.known, NULL); /* none, or not ours: measured again */
    struct formats f;
    find_formats(options->model, &f);
    for (uint32_t i = 0; i < f.n; i++)
        get_kernel(&g, f.m[i], &out->kernel[i]);
    out->n_kernels = f.n;
    get_drive(&g, out);
    out->loop_ns = ASSUMED_LOOP;
    if (options->measure) { /* too short to be worth remembering */
        out->loop_ns = measure_loop(options->pool);
        out->loop_source = CLB_RATE_MEASURED;
    }
    if (g.changed && options->cache_file)
        (void)clb_rate_records_save(options->cache_file, &g.known, NULL); /* then it is measured again next time */
    clb_rate_records_free(&g.known);
    out->spent_ns = options->measure ? clb_now_ns() - t0 : 0;
}
