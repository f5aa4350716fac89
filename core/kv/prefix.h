/* Prefixes that several sequences have in common: their full blocks are computed once and shared.
 *
 * A block is page_tokens consecutive tokens from a multiple of page_tokens on: one page in every (layer, KV head). It is
 * known by a hash over the hash of the block before it, its tokens, and a salt (what else decides the bytes: the model, types,
 * turning, positions; the version); tokens and the block before are compared too, so a collision costs
 * time and nothing else. Pages are counted references: whoever wants to change a shared one copies it first, so that nobody
 * sees it. Blocks that no sequence holds stay, the least recently used leaves first (of one prefix the last block), as soon
 * as pages are wanted for anything else.
 *
 * Logits do not depend on it: a row's keys and values are the same bytes whoever computed them, in whatever chunks. Where they
 * are not (a strategy has evicted before), or where a strategy's state could not be restored (it counts attention), nothing
 * is shared. Where K or V is quantized and the last positions are read as F16, blocks have copies of that kind, too (windows.c).
 *
 * [engine-thread] */
#ifndef CLB_KV_PREFIX_H
#define CLB_KV_PREFIX_H

#include "kv/kv.h"

/* Turns sharing on for a cache, once, while it has no sequence. salt: n bytes of what decides the bytes beside the tokens and
 * the layout. */
int clb_kv_share(clb_kv_cache *cache, const void *salt, size_t n, clb_error *err);
/* Blocks are also kept in a folder (prompt_cache.h), for which the salt must identify the model; max_bytes bounds it. With
 * sharing on, once. A folder that cannot be used is a warning, and nothing is kept. NOMEM. */
int clb_kv_share_on_disk(clb_kv_cache *cache, const char *dir, uint64_t max_bytes, clb_error *err);

/* Sequences under such a strategy share anything at all. */
bool clb_kv_traits_share(const clb_kv_traits *traits);

typedef struct clb_kv_taken {
    uint32_t memory, disk; /* tokens that need not be computed, by where their pages were */
} clb_kv_taken;

/* tokens[0..n) is what the sequence shall hold, and what it holds is a prefix of them: goes on with the longest known one, in
 * whole blocks (a begun block of its own gives way to a known one). A sequence under a strategy that evicts takes no more
 * than its least budget. Nothing known, nothing shared, no room for a window, or no sharing: OK with zeros. NOMEM (tables): it
 * must be reset. */
int clb_kv_seq_take_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n, clb_kv_taken *taken, clb_error *err);
/* What else decides the bytes of this sequence (adapters): only sequences of the same salt share. 0: nothing. While it is empty; a
 * reset keeps it. */
void clb_kv_seq_set_salt(clb_kv_seq *seq, uint64_t salt);
/* Makes the full blocks of a sequence known that are not yet: tokens[0..n) are all that it holds. Cheap if there are none. */
void clb_kv_seq_give_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n);

typedef struct clb_kv_share_stats {
    uint64_t tokens_reused;   /* taken instead of computed, from memory */
    uint64_t tokens_loaded;   /* ... from the prompt cache */
    uint64_t blocks, blocks_idle; /* known; of those, held by no sequence */
    uint64_t bytes_shared;    /* pages held more than once, counted once */
    uint64_t bytes_idle;      /* pages of idle blocks that nobody else holds, and their windows */
    uint64_t blocks_dropped;  /* idle ones that left for something else */
    uint64_t copies;          /* pages copied before a change */
    uint64_t blocks_written, blocks_read; /* of the prompt cache, windows included */
    uint64_t windows, bytes_windows;      /* blocks with F16 copies; those */
} clb_kv_share_stats;
void clb_kv_cache_share_stats(const clb_kv_cache *cache, clb_kv_share_stats *out);

#endif
