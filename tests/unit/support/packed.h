/* Models to pack: small, of every format and odd size, and packed files taken apart. */
#ifndef CLB_TESTS_SUPPORT_PACKED_H
#define CLB_TESTS_SUPPORT_PACKED_H

#include "gguf/pack.h"
#include "gguf/packed.h"
#include "support.h"

/* A GGUF writer whose tensors get random bytes. */
typedef struct test_source {
    clb_gguf_writer *w;
    test_rand rng;
    void *data[512];
    size_t n;
} test_source;

void test_source_begin(test_source *s);
/* Up to three dimensions; 0 ends them. */
void test_source_add(test_source *s, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t ne2);
void test_source_end(test_source *s);
/* Writes and opens it, and frees the writer. */
clb_gguf *test_source_open(test_source *s, const char *path);
/* Tensors of every built-in format with 1 to 49 rows, vectors, and layers of experts in all forms. */
void test_source_fill(test_source *s);

/* The linked-in formats. */
const struct colibri_format *test_packed_format(void *ctx, uint32_t type);

/* Options with a pool of n threads (destroyed by test_pack_close). */
clb_pack_options test_pack_options(uint32_t n_threads);
void test_pack_close(clb_pack_options *o);
/* Packs g to path. */
void test_pack(const clb_gguf *g, const char *path, uint32_t n_threads, uint64_t split);

/* A packed file with keys replaced: `n` of them; the header checksum is left out. Returns its bytes. */
typedef struct test_key {
    const char *key;
    clb_gguf_value value;
} test_key;
char *test_packed_rebuild(const char *path, const test_key *keys, size_t n, const uint64_t *offsets, size_t *size);

#endif
