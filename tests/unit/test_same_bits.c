/* slow
 * Logits of a whole text, byte for byte: every kernel family that this CPU has, 1 to 4 threads, any cut into batches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "support/engine.h"

#define MODEL    TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define N_TOKENS 512u
#define N_SCALAR 34u /* the reference is slow */

static const struct family {
    const char *what, *mask; /* features taken away */
    int bit;                 /* of the CPU, without which the family does not exist; -1: always there */
    const char *prefix;      /* of the components that must then serve several rows; NULL: none does */
} families[] = {
    {"AVX-512 with VNNI", "", COLIBRI_CPU_BIT_AVX512VNNI, "avx512-vnni."},
    {"AVX-512 without VNNI", "avx512vnni", COLIBRI_CPU_BIT_AVX512BW, "avx512."},
    {"AVX-VNNI", "avx512f", COLIBRI_CPU_BIT_AVXVNNI, "avxvnni."},
    {"AVX2", "avx512f,avxvnni", COLIBRI_CPU_BIT_AVX2, "avx2."},
    {"NEON with i8mm", "", COLIBRI_CPU_BIT_I8MM, "neon-i8mm."},
    {"NEON", "i8mm", COLIBRI_CPU_BIT_ASIMDDP, "neon."},
    {"scalar", "all", -1, NULL},
};

/* Masks would prove nothing if another family served all the same. */
static void check_family(const test_engine *e, const struct family *family)
{
    const struct colibri_format *q4_k = clb_registry_format(e->engine->registry, COLIBRI_TYPE_Q4_K, NULL);
    assert_non_null(q4_k);
    const struct colibri_matmul *m = clb_registry_matmul(e->engine->registry, q4_k, 64);
    if (!family->prefix)
        assert_null(m);
    else if (!m || strncmp(m->name, family->prefix, strlen(family->prefix)) != 0)
        fail_msg("%s: products by %s", family->what, m ? m->name : "the reference");
}

static float *logits_with(const struct family *family, uint32_t threads, const uint32_t *ids, uint32_t n,
                          uint32_t chunk)
{
    char mask_setting[64], thread_setting[32];
    snprintf(mask_setting, sizeof mask_setting, "mask=%s", family->mask);
    snprintf(thread_setting, sizeof thread_setting, "threads=%u", threads);
    const char *const settings[] = {mask_setting, thread_setting, "ctx=512", NULL};
    clb_error err;
    test_engine e;
    assert_ok(test_engine_open(&e, MODEL, settings, NULL, &err), &err);
    check_family(&e, family);
    float *logits = test_engine_logits(e.engine, ids, n, chunk);
    test_engine_close(&e);
    return logits;
}

static void same_bits_everywhere(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 3, 17, 512};
    struct colibri_cpu_bits cpu;
    clb_cpu_detect(&cpu);
    clb_error err;
    test_engine e;
    static const char *const plain[] = {"threads=2", "ctx=512", NULL};
    assert_ok(test_engine_open(&e, MODEL, plain, NULL, &err), &err);
    const size_t n_vocab = e.engine->model->hp.n_vocab;
    uint32_t ids[N_TOKENS];
    test_rand rng = {20260801};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        ids[i] = test_rand_below(&rng, (uint32_t)n_vocab);
    float *base = test_engine_logits(e.engine, ids, N_TOKENS, 0);
    test_engine_close(&e);

    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        const struct family *family = &families[f];
        if (family->bit >= 0 && !clb_cpu_has(&cpu, (unsigned)family->bit)) {
            print_message("SKIPPED: %s (the CPU lacks it)\n", family->what);
            continue;
        }
        const bool scalar = family->bit < 0;
        const uint32_t n = scalar ? N_SCALAR : N_TOKENS;
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
            for (uint32_t threads = 1; threads <= 4; threads++) {
                if (scalar && threads != 2 && chunks[c] != 17)
                    continue;
                float *logits = logits_with(family, threads, ids, n, chunks[c]);
                for (uint32_t t = 0; t < n; t++)
                    if (memcmp(base + t * n_vocab, logits + t * n_vocab, n_vocab * sizeof(float)) != 0)
                        fail_msg("%s, %u threads, batches of %u: logits of position %u are not the same bytes",
                                 family->what, threads, chunks[c], t);
                free(logits);
            }
        print_message("%s: %u positions, 1 to 4 threads, batches of 1, 3, 17 and 512\n", family->what, n);
    }
    free(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
