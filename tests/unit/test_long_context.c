/* slow
 * Contexts of several attention segments: tiles of rows, and segments shared by workers, return the same bytes as one
 * thread that computes row by row. */
#include <stdlib.h>
#include <string.h>

#include "support/rig.h"

#define N_IDS 1100u /* three segments of 512 */

static void same_bytes(const char *path)
{
    /* few KV heads: one row at a time leaves 2 to 8 workers with fewer tasks than they want, so segments are split */
    static const struct {
        uint32_t chunk, threads;
    } runs[] = {{1, 4}, {1, 2}, {7, 3}, {64, 1}, {64, 4}, {200, 8}};
    test_rig rig;
    clb_error err;
    uint32_t ids[N_IDS];
    const test_rig_options plain = {.threads = 1, .ctx = 1200};
    assert_ok(test_rig_open(&rig, path, &plain, &err), &err);
    const size_t n_vocab = rig.model->hp.n_vocab;
    test_rig_ids(&rig, ids, N_IDS, 7);
    float *base = test_rig_logits(&rig, ids, N_IDS, 1);
    test_rig_close(&rig);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const test_rig_options o = {.threads = runs[i].threads, .ctx = 1200, .max_rows = 256};
        assert_ok(test_rig_open(&rig, path, &o, &err), &err);
        float *logits = test_rig_logits(&rig, ids, N_IDS, runs[i].chunk);
        for (uint32_t t = 0; t < N_IDS; t++)
            if (memcmp(logits + t * n_vocab, base + t * n_vocab, n_vocab * sizeof(float)) != 0)
                fail_msg("%s: %u threads, batches of %u: logits of position %u are not the same bytes", path,
                         runs[i].threads, runs[i].chunk, t);
        free(logits);
        test_rig_close(&rig);
    }
    free(base);
}

static void grouped_heads(void **state)
{
    (void)state;
    same_bytes(TEST_DATA("arch/qwen3moe.gguf"));
}

static void one_head_per_kv_head(void **state)
{
    (void)state;
    same_bytes(TEST_DATA("arch/olmoe.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grouped_heads), cmocka_unit_test(one_head_per_kv_head)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
