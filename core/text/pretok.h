/* Pre-tokenizers: how byte-level BPE cuts text into words before merging, selected by tokenizer.ggml.pre.
 *
 * A family is a list of passes; each pass cuts every piece left by the pass before it, on its own: lookahead, `$` and
 * `\b` do not see past the end of a piece. Matches and the gaps between them become pieces, in order.
 * What each value means, and where it was found: tests/data/pretok_regex.md. */
#ifndef CLB_TEXT_PRETOK_H
#define CLB_TEXT_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CLB_PRETOK_MAX_PASSES 6

/* What else the name decides. */
#define CLB_PRE_IGNORE_MERGES 0x1u /* a word that is a token as a whole is that token */
#define CLB_PRE_ADD_BOS       0x2u /* BOS unless the file says otherwise */
#define CLB_PRE_ADD_SEP       0x4u /* SEP at the end unless the file says otherwise */
#define CLB_PRE_RAW           0x8u /* merges work on UTF-8 with U+2581 for spaces, not on the byte alphabet */

enum clb_pass_kind {
    CLB_PASS_END = 0,
    CLB_PASS_MATCH, /* the pieces are the matches and the gaps */
    CLB_PASS_RIGHT3 /* a match is a run of digits, cut in threes counted from its right end */
};

typedef struct clb_pretok_pass {
    enum clb_pass_kind kind;
    const char *regex; /* PCRE2 syntax; \s and \S mean Unicode White_Space exactly, see pretok.c */
} clb_pretok_pass;

typedef struct clb_pretok_family {
    const char *name;
    clb_pretok_pass pass[CLB_PRETOK_MAX_PASSES + 1];
} clb_pretok_family;

typedef struct clb_pretok_name {
    const char *name; /* a value of tokenizer.ggml.pre */
    const clb_pretok_family *family;
    uint32_t flags;
} clb_pretok_name;

/* Every known value, ending with name == NULL. */
extern const clb_pretok_name clb_pretok_names[];
/* NULL if unknown. */
const clb_pretok_name *clb_pretok_find(const char *pre);

typedef struct clb_pretok clb_pretok;

/* Immutable after compiling: [any-thread]. */
int clb_pretok_compile(const clb_pretok_family *family, clb_pretok **out, clb_error *err);
void clb_pretok_free(clb_pretok *p);

/* Ends of the pieces of a text, ascending, the last one being its length. */
typedef struct clb_pieces {
    size_t *end;
    size_t n, cap;
} clb_pieces;
void clb_pieces_free(clb_pieces *p);

/* Cuts text[0..n) into *out (what it held is gone). Bytes that are not UTF-8 count as one symbol character (U+FFFD)
 * each. */
int clb_pretok_split(const clb_pretok *p, const char *text, size_t n, clb_pieces *out, clb_error *err);

#endif
