/* Speed of vector operations and attention. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#define BENCH_VEC(label, items, call)                                                                                  \
    do {                                                                                                               \
        double best = 1e30;                                                                                            \
        for (int rep = 0; rep < 20; rep++) {                                                                           \
            const double t0 = bench_now();                                                                                   \
            for (int k = 0; k < 200; k++)                                                                              \
                call;                                                                                                  \
            const double dt = (bench_now() - t0) / 200;                                                                      \
            best = dt < best ? dt : best;                                                                              \
        }                                                                                                              \
        bench_operation(v->name, label, best * 1e9 / (items), "ns/element");                                           \
    } while (0)

/* `rows` rows of `heads` query heads, the first of which sees n_kv positions. Multiplications count if a row sees
 * their position. */
static void bench_attention(const struct colibri_vecops *v, uint32_t dim, uint32_t rows, uint32_t heads, uint32_t n_kv)
{
    enum { PAGE = 64 };
    const uint32_t seen = n_kv + rows - 1, pages = (seen + PAGE - 1) / PAGE, queries = rows * heads;
    const uint32_t n_segments = (seen + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
    const size_t half = (size_t)pages * PAGE * dim;
    const void **const k = bench_memory(pages * sizeof(*k)), **const val = bench_memory(pages * sizeof(*val));
    colibri_f16 *const kv = bench_memory(2 * half * sizeof(*kv));
    for (size_t i = 0; i < 2 * half; i++)
        kv[i] = (colibri_f16)(0x2c00 + i % 1024);
    for (size_t p = 0; p < pages; p++) {
        k[p] = kv + p * PAGE * dim;
        val[p] = kv + half + p * PAGE * dim;
    }
    float *const q = bench_memory((size_t)queries * dim * 4), *const out = bench_memory((size_t)queries * dim * 4);
    float *const weights = bench_memory((size_t)queries * COLIBRI_ATTN_SEGMENT * 4);
    float *const parts = bench_memory((size_t)queries * n_segments * colibri_attn_part_floats(dim) * 4);
    for (uint32_t i = 0; i < queries * dim; i++)
        q[i] = 0.01f * (float)(i % 100);
    const struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = heads,
        .k_dim = dim,
        .v_dim = dim,
        .n_kv = n_kv,
        .page_tokens = PAGE,
        .k_type = COLIBRI_TYPE_F16,
        .v_type = COLIBRI_TYPE_F16,
        .k_pages = k,
        .v_pages = val,
        .q = q,
        .q_stride = dim,
        .scale = 0.09f,
        .out = out,
        .out_stride = dim,
        .n_rows = rows,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = n_segments,
        .q_row_stride = (size_t)heads * dim,
        .out_row_stride = (size_t)heads * dim,
        .weights = weights,
        .parts = parts,
    };
    double best = 1e30, spent = 0.0;
    for (int rep = 0; rep < 5 || (rep < 60 && spent < 0.1); rep++) {
        const double t0 = bench_now();
        v->attention(&a);
        const double dt = bench_now() - t0;
        best = dt < best ? dt : best;
        spent += dt;
    }
    const double products = 2.0 * heads * dim * (rows * (double)n_kv + rows * (rows - 1.0) / 2.0);
    char what[100];
    snprintf(what, sizeof(what), "attention, %u rows x %u heads, dim %u, %u positions", rows, heads, dim, n_kv);
    bench_operation(v->name, what, products / best / 1e9, "GFMA/s");
    free(k);
    free(val);
    free(kv);
    free(q);
    free(out);
    free(weights);
    free(parts);
}

static void bench_attention_shapes(const struct colibri_vecops *v)
{
    static const uint32_t dims[] = {64, 80, 96, 128};
    for (uint32_t n_kv = 128; n_kv <= 4096; n_kv *= 32) /* decode: short contexts are a token's fixed cost */
        for (uint32_t heads = 1; heads <= 8; heads *= 2)
            bench_attention(v, 128, 1, heads, n_kv);
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) /* prefill: without and with shared KV heads */
        for (uint32_t n_kv = 512; n_kv <= 4096; n_kv *= 8) {
            bench_attention(v, dims[i], 64, 1, n_kv - 63);
            bench_attention(v, dims[i], 8, 8, n_kv - 7);
        }
}

void bench_vecops(const struct colibri_vecops *v)
{
    enum { N = 4096 };
    float *const x = bench_memory(N * 4), *const y = bench_memory(N * 4), *const w = bench_memory(N * 4);
    struct colibri_act_q8x32 *const a32 = bench_memory(N / 32 * sizeof(*a32));
    struct colibri_act_q8x256 *const a256 = bench_memory(N / 256 * sizeof(*a256));
    colibri_f16 *const h = bench_memory(N * 2);
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
    if (v->attention)
        bench_attention_shapes(v);
}
