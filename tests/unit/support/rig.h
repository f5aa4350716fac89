/* A model opened step by step, without the engine's configuration: own expert policy, slots per size class, row counts.
 * Models of tests/data/arch are small enough for thousands of passes. */
#ifndef CLB_TESTS_SUPPORT_RIG_H
#define CLB_TESTS_SUPPORT_RIG_H

#include "model/forward.h"
#include "support.h"

typedef struct test_rig_options {
    const struct colibri_expert_policy *policy; /* NULL: "lru" of the build tree */
    uint32_t slots;                             /* per size class; 0: room for all, preloaded */
    uint32_t threads;                           /* 0: 2 */
    uint32_t max_rows;                          /* 0: 64 */
    uint32_t page_tokens;                       /* 0: 32 */
    uint32_t ctx;                               /* 0: 256; the pool has room for four such sequences */
    enum clb_store_mode mode;
    const clb_log *log;
    void (*on_route)(void *ctx, const struct colibri_route *route);
    bool (*cancelled)(void *ctx);
    void (*before_load)(void *ctx);             /* the file is open and bound, no weight read yet */
    void *hooks_ctx;
} test_rig_options;

typedef struct test_rig {
    uint32_t ctx;
    clb_registry *registry;
    clb_gguf *gguf;
    clb_model *model;
    clb_pool *pool;
    clb_kv_cache *kv;
    clb_forward *forward;
    uint32_t *class_slots;
} test_rig;

/* Asserts on failure, except that of loading the weights, which is returned. Close it either way. */
int test_rig_open(test_rig *rig, const char *path, const test_rig_options *options, clb_error *err);
void test_rig_close(test_rig *rig);
clb_kv_seq *test_rig_sequence(test_rig *rig);
/* Logits [n][n_vocab] of a new sequence, in spans of `chunk` rows (0: all at once); free() them. */
float *test_rig_logits(test_rig *rig, const uint32_t *ids, uint32_t n, uint32_t chunk);
/* n repeatable ids of the model's vocabulary. */
void test_rig_ids(const test_rig *rig, uint32_t *ids, uint32_t n, uint64_t seed);

#endif
