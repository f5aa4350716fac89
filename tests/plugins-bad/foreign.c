/* A library that has never heard of Colibri, for [foreign.NAME]: scores, and two BLAS functions the slow way. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "fpcontrol.h"

/* What a test reads after a call. */
double seen[32];
uint32_t n_calls, n_uses, n_resets, last_instance;
uint32_t use_seen[3];
float use_gate;

double score_age(uint64_t age);
double score_age(uint64_t age)
{
    return -(double)age;
}

double score_last_use(double last_use);
double score_last_use(double last_use)
{
    return last_use;
}

float score_float(float gate_last);
float score_float(float gate_last)
{
    return gate_last * 2;
}

double score_nan(void);
double score_nan(void)
{
    return NAN;
}

double score_flush(uint32_t expert);
double score_flush(uint32_t expert)
{
    test_flush_to_zero();
    return expert;
}

/* The whole vocabulary of score(), in its order and its natural types: more than the registers hold. */
double spy(uint32_t layer, uint32_t expert, uint64_t number, uint64_t now, uint64_t uses, uint64_t uses_here,
           uint64_t last_use, uint64_t age, uint64_t inserted, uint32_t prefetched, uint32_t layers_ahead,
           float gate_last, double gate_average, uint32_t phase, uint64_t expert_bytes, uint32_t n_layers,
           uint32_t n_experts, uint32_t n_slots, uint32_t top_k, uint32_t instance);
double spy(uint32_t layer, uint32_t expert, uint64_t number, uint64_t now, uint64_t uses, uint64_t uses_here,
           uint64_t last_use, uint64_t age, uint64_t inserted, uint32_t prefetched, uint32_t layers_ahead,
           float gate_last, double gate_average, uint32_t phase, uint64_t expert_bytes, uint32_t n_layers,
           uint32_t n_experts, uint32_t n_slots, uint32_t top_k, uint32_t instance)
{
    const double v[] = {layer,
                        expert,
                        (double)number,
                        (double)now,
                        (double)uses,
                        (double)uses_here,
                        (double)last_use,
                        (double)age,
                        (double)inserted,
                        prefetched,
                        layers_ahead,
                        (double)gate_last,
                        gate_average,
                        phase,
                        (double)expert_bytes,
                        n_layers,
                        n_experts,
                        n_slots,
                        top_k,
                        instance};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        seen[i] = v[i];
    return 42;
}

/* Not safe for threads: the host must not call it from two at once. */
double count(void);
double count(void)
{
    static volatile int inside;
    if (inside++)
        n_resets = 1000000; /* a test looks for it */
    for (volatile int i = 0; i < 50; i++)
        ;
    n_calls++;
    inside--;
    return n_calls;
}

void on_use(uint32_t layer, uint32_t expert, float gate);
void on_use(uint32_t layer, uint32_t expert, float gate)
{
    use_seen[0] = layer;
    use_seen[1] = expert;
    use_gate = gate;
    n_uses++;
}

void on_use_of(uint32_t instance, double router_rank);
void on_use_of(uint32_t instance, double router_rank)
{
    last_instance = instance;
    use_seen[2] = (uint32_t)router_rank;
    n_uses++;
}

void reset(void);
void reset(void)
{
    n_resets++;
    n_uses = 0;
}

/* Row-major, x [m][k] not transposed, w [n][k] transposed: all that the host may ask for. Other requests leave NaN. */
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc)
{
    const int good = order == 101 && ta == 111 && tb == 112 && lda >= k && ldb >= k && ldc >= n;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = good ? 0 : NAN;
            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * (size_t)lda + (size_t)l] * b[(size_t)j * (size_t)ldb + (size_t)l];
            float *const out = &c[(size_t)i * (size_t)ldc + (size_t)j];
            *out = alpha * sum + (beta == 0 ? 0 : beta * *out);
        }
    __atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED);
}

/* Column-major: C [m][n] = A^T [k][m] * B [k][n]. */
void sgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c, const int *ldc,
            size_t la, size_t lb);
void sgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c, const int *ldc,
            size_t la, size_t lb)
{
    const int good = *ta == 'T' && *tb == 'N' && la == 1 && lb == 1 && *lda >= *k && *ldb >= *k && *ldc >= *m;
    for (int j = 0; j < *n; j++)
        for (int i = 0; i < *m; i++) {
            float sum = good ? 0 : NAN;
            for (int l = 0; l < *k; l++)
                sum += a[(size_t)i * (size_t)*lda + (size_t)l] * b[(size_t)j * (size_t)*ldb + (size_t)l];
            float *const out = &c[(size_t)j * (size_t)*ldc + (size_t)i];
            *out = *alpha * sum + (*beta == 0 ? 0 : *beta * *out);
        }
    __atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED);
}

void sgemm_flush(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc);
void sgemm_flush(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc)
{
    cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    test_flush_to_zero();
}

#ifdef TEST_FLUSH
__attribute__((constructor)) static void at_load(void)
{
    test_flush_to_zero();
}
#endif
