/* Writes the logits of a token sequence, for comparisons by hand (tests/oracles/compare_smollm2.py):
 *   dump_logits MODEL IDS OUT [key=value ...]      IDS: u32 little-endian; OUT: f32 [n][n_vocab]
 * Tokens are fed `batch` at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "support/engine.h"

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s MODEL IDS OUT [key=value ...]\n", argv[0]);
        return 2;
    }
    clb_error err;
    test_engine e;
    size_t bytes;
    if (test_engine_open(&e, argv[1], (const char *const *)(argv + 4), NULL, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    char *file = test_read_file(argv[2], &bytes);
    const uint32_t n = (uint32_t)(bytes / sizeof(uint32_t));
    float *logits = test_engine_logits(e.engine, (const uint32_t *)(const void *)file, n, e.engine->batch);
    test_write_file(argv[3], logits, (size_t)n * e.engine->model->hp.n_vocab * sizeof *logits);
    free(logits);
    free(file);
    test_engine_close(&e);
    return 0;
}
