/* Speed of vector operations and attention. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#define BENCH_VEC(label, items, call)                                                                                  \
    do {                                                                                                               \
        double best = 1e30;                                                                                            \
        for (int rep = 0; rep < 20; rep++) {                                                                           \
            const double t0 = bench_now();                                                                             \
            for (int k = 0; k < 200; k++)                                                                              \
                call;                                                                                                  \
            const double dt = (bench_now() - t0) / 200;                                                                \
            best = dt < best ? dt : best;                                                                              \
        }                                                                                                              \
        bench_operation(v->name, label, best * 1e9 / (items), "ns/element");                                           \
    } while (0)

static void bench_attention(const struct colibri_vecops *v, uint32_t heads)
{
    enum { DIM = 128, N_KV = 4096, PAGE = 64 };
    const void *k[N_KV / PAGE], *val[N_KV / PAGE];
    colibri_f16 *const kv = bench_memory((size_t)2 * N_KV * DIM * 2);
    for (size_t i = 0; i < (size_t)2 * N_KV * DIM; i++)
        kv[i] = (colibri_f16)(0x2c00 + i % 1024);
    for (size_t p = 0; p < N_KV / PAGE; p++) {
        k[p] = kv + p * PAGE * DIM;
        val[p] = kv + (size_t)N_KV * DIM + p * PAGE * DIM;
    }
    float *const q = bench_memory(heads * DIM * 4), *const out = bench_memory(heads * DIM * 4),
                 *const s = bench_memory(heads * N_KV * 4);
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
        const double t0 = bench_now();
        v->attention(&a);
        const double dt = bench_now() - t0;
        best = dt < best ? dt : best;
    }
    char what[80];
    snprintf(what, sizeof(what), "attention, %u heads, 4096 x 128, F16", heads);
    bench_operation(v->name, what, 2.0 * heads * N_KV * DIM / best / 1e9, "GFMA/s");
    free(kv);
    free(q);
    free(out);
    free(s);
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
    if (v->attention) {
        bench_attention(v, 1);
        bench_attention(v, 4);
        bench_attention(v, 8);
    }
}
