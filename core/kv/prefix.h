/* Prefixes that several sequences have in common: their full blocks are computed once and shared.
 *
 * A block is page_tokens consecutive tokens from a multiple of page_tokens on: one page in every (layer, KV head). It is
 * known by a hash over the hash of the block before it, its tokens, and a salt (what else decides the bytes: the model, types,
 * turning, positions; with a strategy also that, see below); tokens and the block before are compared too, so a collision costs
 * time and nothing else. Pages are counted references: whoever wants to change a shared one copies it first, so that nobody
 * sees it. Blocks that no sequence holds stay, the least recently used leaves first (of one prefix the last block), as soon
 * as pages are wanted for anything else.
 *
 * Logits do not depend on it: a row's keys and values are the same bytes whoever computed them, in whatever chunks. Where they
 * are not (a strategy has evicted before), or where a strategy's state could not be restored (it counts attention), nothing
 * is shared.
 *
 * [engine-thread] */
#ifndef CLB_KV_PREFIX_H
#define CLB_KV_PREFIX_H

#include "kv/kv.h"

/* Turns sharing on for a cache, once, while it has no sequence. salt: n bytes of what decides the bytes beside the tokens. */
int clb_kv_share(clb_kv_cache *cache, const void *salt, size_t n, clb_error *err);

/* Gives an empty sequence the longest known prefix of tokens[0..n), in whole blocks, from memory or from the prompt cache;
 * *n_taken tokens need not be computed. Nothing known, nothing shared, or no sharing: OK with 0. */
int clb_kv_seq_take_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n, uint32_t *n_taken, clb_error *err);
/* Makes the full blocks of a sequence known that are not yet: tokens[0..n) are all that it holds. Cheap if there are none. */
void clb_kv_seq_give_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n);

typedef struct clb_kv_share_stats {
    uint64_t tokens_reused;   /* taken instead of computed, from memory */
    uint64_t tokens_loaded;   /* ... from the prompt cache */
    uint64_t blocks, blocks_idle; /* known; of those, held by no sequence */
    uint64_t bytes_shared;    /* pages held more than once, counted once */
    uint64_t bytes_idle;
    uint64_t blocks_dropped;  /* idle ones that left for something else */
    uint64_t copies;          /* pages copied before a change */
} clb_kv_share_stats;
void clb_kv_cache_share_stats(const clb_kv_cache *cache, clb_kv_share_stats *out);

#endif
