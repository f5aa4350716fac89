/* The vocabulary that texts are tokenized with: that of the model which COLIBRI_FUZZ_MODEL names; without it that of
 * examples/tiny-moe below the current folder. */
#ifndef TESTS_FUZZ_EXAMPLE_VOCAB_H
#define TESTS_FUZZ_EXAMPLE_VOCAB_H

#include "fuzz.h"
#include "gguf/gguf.h"
#include "text/vocab.h"

static inline const clb_vocab *example(void)
{
    static clb_vocab *v;
    const char *path = getenv("COLIBRI_FUZZ_MODEL");
    clb_error err;
    clb_gguf *g;
    if (v)
        return v;
    if (clb_gguf_open(path ? path : "examples/tiny-moe/tiny-moe-q4_k_m.gguf", NULL, NULL, &g, &err) ||
        clb_vocab_load(g, &v, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    clb_gguf_close(g);
    return v;
}

#endif
