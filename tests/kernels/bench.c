/* Speed of vector operations. */
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
    if (v->f16_to_f32)
        BENCH_VEC("f16_to_f32", N, v->f16_to_f32(h, w, N));
    free(x);
    free(y);
    free(w);
    free(a32);
    free(a256);
    free(h);
    if (v->attention)
        bench_attention(v);
}
