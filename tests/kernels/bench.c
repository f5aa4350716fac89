/* Speed of kernels: weights streamed from memory for one activation row, products per second for many. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define STREAM_BYTES ((size_t)256 << 20) /* far beyond any cache of one core */
#define COLS         2048u

static void *must(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "kernelcheck: no memory for a benchmark\n");
        exit(1);
    }
    return p;
}

void bench_read(void)
{
    uint64_t *const p = must(STREAM_BYTES);
    memset(p, 1, STREAM_BYTES);
    double best = 0.0;
    uint64_t sum = 0;
    for (int rep = 0; rep < 5; rep++) {
        const double t0 = now();
        uint64_t s[8] = {0};
        for (size_t i = 0; i < STREAM_BYTES / 8; i += 8)
            for (size_t k = 0; k < 8; k++)
                s[k] += p[i + k];
        for (size_t k = 0; k < 8; k++)
            sum += s[k];
        const double rate = (double)STREAM_BYTES / (now() - t0) / 1e9;
        best = rate > best ? rate : best;
    }
    free(p);
    printf("%-28s %6.1f GB/s  (sum of 64-bit words, checksum %u)\n", "plain read, one thread", best,
           (unsigned)(sum & 0xff));
}

/* Best of several runs, in seconds. */
static double time_run(const struct colibri_matmul *m, const struct colibri_matmul_args *a)
{
    double best = 1e30;
    const double end = now() + 0.5;
    for (int rep = 0; rep < 3 || (now() < end && rep < 40); rep++) {
        const double t0 = now();
        m->run(a);
        const double dt = now() - t0;
        best = dt < best ? dt : best;
    }
    return best;
}

void bench_matmul(const struct colibri_matmul *m)
{
    static const uint32_t tokens[] = {1, 4, 12, 64};
    const size_t cached = (size_t)256 << 10; /* fits an L2 cache: what a kernel does when memory is no limit */
    const struct fmt *const f = fmt_find(m->gguf_type);
    const size_t group_bytes = 16 * fmt_row_bytes(f, COLS);
    const uint32_t groups = (uint32_t)(STREAM_BYTES / group_bytes);
    struct rng r = {1};
    char *const w = must(groups * group_bytes);
    const size_t x_stride = fmt_act_bytes(f, COLS);
    char *const x = must(64 * x_stride);
    for (uint32_t t = 0; t < 64; t++)
        fill_ordinary(&r, f, w, group_bytes, x + t * x_stride, COLS);
    for (uint32_t g = 1; g < groups; g++)
        memcpy(w + g * group_bytes, w, group_bytes);
    float *const y = must((size_t)64 * groups * 16 * sizeof(float));
    void *const scratch = must(m->scratch_bytes + 64);
    printf("%-28s", m->name);
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        const uint32_t n = tokens[i];
        const uint32_t used = n == 1 ? groups : groups / 64;
        const struct colibri_matmul_args a = {
            .struct_size = sizeof(a),
            .n_rows = 16 * used,
            .n_cols = COLS,
            .n_x = n,
            .group_end = used,
            .w = w,
            .group_stride = group_bytes,
            .x = x,
            .x_stride = x_stride,
            .y = y,
            .y_stride = 16 * used,
            .scratch = m->scratch_bytes ? scratch : NULL,
        };
        const double t = time_run(m, &a);
        if (n == 1) {
            struct colibri_matmul_args c = a;
            c.group_end = (uint32_t)(cached / group_bytes);
            printf(" %6.1f GB/s (%6.1f cached)", (double)used * (double)group_bytes / t / 1e9,
                   (double)c.group_end * (double)group_bytes / time_run(m, &c) / 1e9);
        }
        printf("  x%-2u %6.1f", n, 16.0 * used * COLS * n / t / 1e9);
    }
    printf("  GMAC/s\n");
    free(w);
    free(x);
    free(y);
    free(scratch);
}

/* ---- vector operations ----------------------------------------------------------------------------------------- */

#define BENCH_VEC(label, items, call)                                                                                  \
    do {                                                                                                               \
        double best = 1e30;                                                                                            \
        for (int rep = 0; rep < 20; rep++) {                                                                           \
            const double t0 = now();                                                                                   \
            for (int k = 0; k < 200; k++)                                                                              \
                call;                                                                                                  \
            const double dt = (now() - t0) / 200;                                                                      \
            best = dt < best ? dt : best;                                                                              \
        }                                                                                                              \
        printf("%-18s %-9s %8.3f ns/element\n", v->name, label, best * 1e9 / (items));                                 \
    } while (0)

static void bench_attention(const struct colibri_vecops *v, uint32_t heads)
{
    enum { DIM = 128, N_KV = 4096, PAGE = 64 };
    const void *k[N_KV / PAGE], *val[N_KV / PAGE];
    colibri_f16 *const kv = must((size_t)2 * N_KV * DIM * 2);
    for (size_t i = 0; i < (size_t)2 * N_KV * DIM; i++)
        kv[i] = (colibri_f16)(0x2c00 + i % 1024);
    for (size_t p = 0; p < N_KV / PAGE; p++) {
        k[p] = kv + p * PAGE * DIM;
        val[p] = kv + (size_t)N_KV * DIM + p * PAGE * DIM;
    }
    float *const q = must(heads * DIM * 4), *const out = must(heads * DIM * 4), *const s = must(heads * N_KV * 4);
    for (uint32_t i = 0; i < heads * DIM; i++)
        q[i] = 0.01f * (float)(i % 100);
    const struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = heads,
        .k_dim = DIM,
        .v_dim = DIM,
        .n_kv = N_KV,
        .page_tokens = PAGE,
        .k_type = COLIBRI_TYPE_F16,
        .v_type = COLIBRI_TYPE_F16,
        .k_pages = k,
        .v_pages = val,
        .q = q,
        .q_stride = DIM,
        .scale = 0.09f,
        .scores = s,
        .score_stride = N_KV,
        .out = out,
        .out_stride = DIM,
    };
    double best = 1e30;
    for (int rep = 0; rep < 60; rep++) {
        const double t0 = now();
        v->attention(&a);
        const double dt = now() - t0;
        best = dt < best ? dt : best;
    }
    printf("%-18s attention %u heads, 4096 x 128, F16: %7.1f us  %5.1f GFMA/s  %5.1f GB/s of KV\n", v->name, heads,
           best * 1e6, 2.0 * heads * N_KV * DIM / best / 1e9, 2.0 * N_KV * DIM * 2 / best / 1e9);
    free(kv);
    free(q);
    free(out);
    free(s);
}

void bench_vecops(const struct colibri_vecops *v)
{
    enum { N = 4096 };
    float *const x = must(N * 4), *const y = must(N * 4), *const w = must(N * 4);
    struct colibri_act_q8x32 *const a32 = must(N / 32 * sizeof(*a32));
    struct colibri_act_q8x256 *const a256 = must(N / 256 * sizeof(*a256));
    colibri_f16 *const h = must(N * 2);
    for (int i = 0; i < N; i++) {
        x[i] = 0.001f * (float)(i % 997) - 0.4f;
        y[i] = 0.002f * (float)(i % 499);
        w[i] = 1.0f;
    }
    if (v->rms_norm)
        BENCH_VEC("rms_norm", N, v->rms_norm(y, x, w, N, 1e-5f));
    if (v->rope)
        BENCH_VEC("rope", 128, v->rope(y, x, 128, 1));
    if (v->swiglu)
        BENCH_VEC("swiglu", N, v->swiglu(w, x, x, N));
    if (v->softmax)
        BENCH_VEC("softmax", N, v->softmax(y, N));
    if (v->add)
        BENCH_VEC("add", N, v->add(w, x, N));
    if (v->act_q8x32)
        BENCH_VEC("act_q8x32", N, v->act_q8x32(x, a32, N));
    if (v->act_q8x256)
        BENCH_VEC("act_q8x256", N, v->act_q8x256(x, a256, N));
    if (v->f32_to_f16)
        BENCH_VEC("f32_to_f16", N, v->f32_to_f16(x, h, N));
    free(x);
    free(y);
    free(w);
    free(a32);
    free(a256);
    free(h);
    if (v->attention) {
        bench_attention(v, 1);
        bench_attention(v, 4);
        bench_attention(v, 8);
    }
}
