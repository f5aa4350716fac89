/* Made-up routing for tests of traces and replays. */
#ifndef CLB_TESTS_SUPPORT_TRACES_H
#define CLB_TESTS_SUPPORT_TRACES_H

#include "replay/trace.h"
#include "support.h"

typedef struct test_trace_shape {
    uint32_t n_layers, n_experts, top_k;
    enum clb_trace_gates gates;
    uint32_t ahead_layers, ahead_top;
    uint32_t units, prompt_rows,
        decode; /* per unit: one pass of prompt_rows rows (0: none), then `decode` single ones */
    uint64_t expert_bytes;
    uint64_t seed;
} test_trace_shape;

/* Written through a file at `path`, which stays. Choices are skewed and repeat themselves, so that caches differ. */
clb_trace *test_trace_make(const test_trace_shape *shape, const char *path);
/* Fails the test where they differ; labels, times and model names are compared too unless `lossy`. */
void test_trace_same(const clb_trace *a, const clb_trace *b, bool lossy);

#endif
