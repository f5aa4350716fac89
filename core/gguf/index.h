/* Hash table from names to their position in an array, for keys and tensors of one file.
 *
 * The hash is keyed with random bits, so that a hostile file cannot choose names that all collide. */
#ifndef CLB_GGUF_INDEX_H
#define CLB_GGUF_INDEX_H

#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

#define CLB_INDEX_NONE SIZE_MAX

/* Zero-initialised: empty. */
typedef struct clb_gguf_index {
    const char *base; /* records, each beginning with the clb_str of its name */
    size_t stride;
    uint32_t *slots; /* position + 1; 0: free */
    size_t mask;
    uint64_t key[2];
} clb_gguf_index;

/* Indexes n records (n < 2^31), which must stay where they are. *dup is CLB_INDEX_NONE, or the position of the first
 * record whose name occurred before (at *first); the index is then incomplete. Errors: NOMEM. */
int clb_gguf_index_build(clb_gguf_index *index, const void *records, size_t stride, size_t n, size_t *dup,
                         size_t *first, clb_error *err);
/* CLB_INDEX_NONE if absent. */
size_t clb_gguf_index_find(const clb_gguf_index *index, clb_str name);
void clb_gguf_index_free(clb_gguf_index *index);

#endif
