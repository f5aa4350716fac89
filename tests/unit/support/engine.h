/* Engines for tests: opened from settings given as text, and the recorded logits to compare with. */
#ifndef CLB_TESTS_SUPPORT_ENGINE_H
#define CLB_TESTS_SUPPORT_ENGINE_H

#include "engine/session.h"
#include "support.h"

/* Opens `model` with settings "key=value", ...; NULL ends the list. Plugins come from the build tree.
 * Nothing is shared unless "kv-share=yes" is there: a fresh session to compare with must compute. */
typedef struct test_engine {
    clb_config *config;
    clb_engine *engine;
} test_engine;

typedef struct test_engine_hooks {
    void (*on_route)(void *ctx, const struct colibri_route *route);
    void (*adjust_route)(void *ctx, uint32_t layer, uint32_t n_rows, const float *probs, uint32_t *ids, float *gates);
    void *ctx;
    uint32_t n_sequences;   /* 0: 1 */
    const char *plugin_dir; /* NULL: the build tree's */
    bool (*cancelled)(void *ctx);
    bool interruptible;
} test_engine_hooks;

int test_engine_open(test_engine *e, const char *model, const char *const *settings, const test_engine_hooks *hooks,
                     clb_error *err);
void test_engine_close(test_engine *e);

/* All logits [n][n_vocab] of ids in one sequence, fed in spans of `chunk` rows (0: all at once); free() them. */
float *test_engine_logits(clb_engine *engine, const uint32_t *ids, uint32_t n, uint32_t chunk);

/* A file in the CLBREF1 format: prompts with ids and logits (tests/oracles/clbref.py). */
typedef struct test_ref {
    char *file;
    uint32_t n_prompts;
    struct test_ref_prompt {
        uint32_t n, n_vocab;
        const uint32_t *ids;
        const float *logits;
    } prompt[8];
} test_ref;

void test_ref_open(test_ref *ref, const char *path);
void test_ref_close(test_ref *ref);

/* Largest absolute difference of two arrays; NaN anywhere gives infinity. */
double test_max_abs_diff(const float *a, const float *b, size_t n);
uint32_t test_argmax(const float *x, size_t n);

#endif
