/* Constrained generation: a grammar says which texts are allowed, a matcher follows one text and says which tokens may come
 * next.
 *
 * Grammars are written in GBNF (docs/grammars.md): rules `name ::= ...` of literals, character classes, references,
 * alternatives, groups and repetitions ? * + {n,m}; `root` is the text. A grammar is untrusted: its size, its nesting, the
 * states that a matcher holds at once and the work of one step are bounded, with LIMIT errors that say which bound; left recursion
 * is USAGE. Rules match Unicode characters; tokens that end within a character are followed byte by byte.
 *
 * `<text>` and `<[id]>` are whole tokens, by their text in the vocabulary or their number; control tokens are allowed that way
 * only.
 *
 * A finished text may be followed by an end-of-generation token only, an unfinished one never. */
#ifndef CLB_GRAMMAR_GRAMMAR_H
#define CLB_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "text/vocab.h"

/* Immutable and counted: [any-thread]. */
typedef struct clb_grammar clb_grammar;
int clb_grammar_parse(clb_str gbnf, clb_grammar **out, clb_error *err);
clb_grammar *clb_grammar_hold(clb_grammar *g); /* one more holder */
void clb_grammar_release(clb_grammar *g);      /* NULL is fine */

/* The bytes of all tokens as a tree, so that a mask is found in one walk. Made once for a vocabulary, which it borrows; control
 * tokens are never allowed (end-of-generation ones: when the text may end). Immutable: [any-thread]. */
typedef struct clb_token_tree clb_token_tree;
int clb_token_tree_create(const clb_vocab *vocab, clb_token_tree **out, clb_error *err);
void clb_token_tree_destroy(clb_token_tree *t);

/* One text's place in a grammar. One thread at a time. */
typedef struct clb_matcher clb_matcher;
/* Holds the grammar, borrows the tree. USAGE if the grammar names a token that the vocabulary does not have. */
int clb_matcher_create(clb_grammar *grammar, const clb_token_tree *tree, clb_matcher **out, clb_error *err);
void clb_matcher_destroy(clb_matcher *m);
/* Bit id % 64 of allowed[id / 64] says whether token id may come next; allowed: [(n_vocab + 63) / 64]. Bits at and beyond n_vocab are
 * 0. LIMIT if the step is too much work. */
int clb_matcher_mask(clb_matcher *m, uint64_t *allowed, clb_error *err);
/* The token was chosen; USAGE if it is not allowed. An end-of-generation token is accepted where the text may end. */
int clb_matcher_accept(clb_matcher *m, uint32_t token, clb_error *err);
/* The same for bytes (a text that is already there; tokens by name do not match bytes). After a failure the matcher is at some
 * place within the bytes. */
int clb_matcher_accept_bytes(clb_matcher *m, const char *bytes, size_t n, clb_error *err);
bool clb_matcher_may_end(const clb_matcher *m);
/* Nothing but the end may follow. */
bool clb_matcher_must_end(const clb_matcher *m);

#endif
