/* Models of any shape with senseless weights, for tests of memory and speed. */
#ifndef CLB_TESTS_SUPPORT_SYNTH_H
#define CLB_TESTS_SUPPORT_SYNTH_H

#include <stdint.h>

typedef struct test_shape {
    uint32_t n_layers, n_embd, n_ff;
    uint32_t n_experts, top_k; /* 0: a dense model */
    uint32_t n_heads, n_kv_heads, head_dim, ctx;
} test_shape;

/* Writes a qwen3moe or qwen3 model of 128 tokens, all matrices Q8_0. Asserts on failure. */
void test_write_model(const char *path, const test_shape *shape);

#endif
