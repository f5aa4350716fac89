/* The merge loop that byte-pair encoding and SentencePiece share: a linked list of symbols over one text, and a heap
 * of neighbouring pairs. O(n log n). */
#ifndef CLB_TEXT_MERGE_H
#define CLB_TEXT_MERGE_H

#include <stdint.h>

#include "text/vocab_impl.h"

typedef struct clb_symbol {
    uint32_t begin, len; /* in the text; len 0: merged into the one before */
    uint32_t prev, next; /* UINT32_MAX: none */
    uint32_t id;         /* symbol id, CLB_SYM_NONE if unknown */
} clb_symbol;

typedef struct clb_pair {
    double order; /* the least first; equal ones from left to right */
    uint32_t left, len, result;
} clb_pair;

typedef struct clb_merger {
    clb_symbol *symbols;
    clb_pair *heap;
    size_t n, symbols_cap, heap_n, heap_cap;
} clb_merger;

/* Is the pair of symbols mergeable, at which order, into what? */
typedef bool (*clb_pair_fn)(const clb_vocab *v, const char *text, const clb_symbol *left, const clb_symbol *right,
                            double *order, uint32_t *result);

int clb_merger_add(clb_merger *m, uint32_t begin, uint32_t len, uint32_t id, clb_error *err);
/* Links the symbols added and merges until no pair is left; the survivors have len > 0, in order. */
int clb_merger_run(clb_merger *m, const clb_vocab *v, const char *text, clb_pair_fn pair, clb_error *err);
void clb_merger_free(clb_merger *m);

#endif
