/* String -> id table of a vocabulary: open addressing, seeded hash, strings borrowed from the vocabulary's pools.
 *
 * Built once, then immutable: [any-thread]. Ids count up from 0 in the order of insertion. */
#ifndef CLB_TEXT_SYMTAB_H
#define CLB_TEXT_SYMTAB_H

#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

#define CLB_SYM_NONE UINT32_MAX

typedef struct clb_symtab {
    uint32_t *slots; /* id or CLB_SYM_NONE */
    clb_str *strs;   /* by id */
    uint32_t n, cap, mask;
    uint64_t seed;
} clb_symtab;

/* Room for `cap` strings. */
int clb_symtab_init(clb_symtab *t, uint32_t cap, uint64_t seed, clb_error *err);
void clb_symtab_free(clb_symtab *t);
/* Makes room for `more` strings beyond those that the table was made for. */
int clb_symtab_grow(clb_symtab *t, uint32_t more, clb_error *err);
uint32_t clb_symtab_find(const clb_symtab *t, const char *p, size_t n);
/* Gives the next id to s and makes it findable, unless an equal string is there already (the first one stays the one
 * that is found) or `hidden` is set. At most `cap` calls. Returns the new id. */
uint32_t clb_symtab_add(clb_symtab *t, clb_str s, int hidden);

/* Pairs of ids -> (rank, result): the merge table of byte-pair encoding. */
typedef struct clb_merge {
    uint64_t key; /* left << 32 | right; UINT64_MAX: empty */
    uint32_t rank, result;
} clb_merge;

typedef struct clb_merges {
    clb_merge *slots;
    uint64_t mask, seed;
    uint32_t n;
} clb_merges;

int clb_merges_init(clb_merges *m, uint32_t cap, uint64_t seed, clb_error *err);
void clb_merges_free(clb_merges *m);
/* The first rank of a pair stays. At most `cap` calls. */
void clb_merges_add(clb_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);
const clb_merge *clb_merges_find(const clb_merges *m, uint32_t left, uint32_t right); /* NULL if absent */

/* A seed that a file's author cannot know, so that no file can be built to collide. */
uint64_t clb_hash_seed(void);

#endif
