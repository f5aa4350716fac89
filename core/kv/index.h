/* The index of known blocks, for the files that keep it: index.c (table, order in which blocks leave), windows.c
 * (copies of recent rows that stay with blocks), prefix_disk.c (both in files) and prefix.c (what sequences take and
 * give). */
#ifndef CLB_KV_INDEX_H
#define CLB_KV_INDEX_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/internal.h"
#include "kv/prompt_cache.h"

/* Bytes in pages and on the drive mean something else from here on: count up whenever that changes. */
#define CLB_KV_SHARE_FORMAT 1u

/* Windows in the order in which they leave: those inside a known text, and those that somebody will probably go on
 * from. */
enum clb_kv_window_list { CLB_KV_WINDOW_INNER, CLB_KV_WINDOW_LIKELY, CLB_KV_WINDOW_LISTS };

struct clb_kv_block {
    XXH128_hash_t hash;
    clb_kv_block *parent, *next; /* next: in its bucket */
    clb_kv_block *older, *newer; /* in the list of idle ones */
    uint32_t holders, n_children, depth;
    uint32_t mode; /* enum colibri_kv_positions */
    uint64_t touched_ns;
    /* windows.c: */
    clb_kv_block *window_older, *window_newer;
    uint64_t window_touched_ns;
    bool has_window, window_taken, window_in_folder;
    uint8_t window_list;
    uint32_t data[]; /* tokens [page_tokens], pages [layers * heads], the window's pages: numbers in the pool */
};

struct clb_kv_index {
    XXH128_hash_t roots[2], window_root; /* roots: by mode */
    clb_kv_block **buckets;
    size_t n_buckets, n_blocks, n_idle; /* n_buckets: a power of two */
    clb_kv_block *oldest, *newest;
    struct {
        clb_kv_block *oldest, *newest;
    } windows[CLB_KV_WINDOW_LISTS];
    size_t n_windows;
    clb_prompt_cache *disk;
    void **pages; /* [layers * heads], scratch */
    uint64_t reused, loaded, dropped;
};

static inline uint32_t clb_kv_page_tokens(const clb_kv_cache *cache)
{
    return cache->layout.page_tokens;
}

static inline uint32_t clb_kv_block_pages(const clb_kv_cache *cache)
{
    return cache->layout.n_layers * cache->layout.n_kv_heads;
}

static inline uint32_t *clb_kv_pages_of(const clb_kv_cache *cache, clb_kv_block *b)
{
    return b->data + clb_kv_page_tokens(cache);
}

/* ---- index.c ---- */

XXH128_hash_t clb_kv_hash_of(const clb_kv_index *index, const clb_kv_block *parent, uint32_t mode, uint64_t salt,
                             const uint32_t *tokens, uint32_t n);
clb_kv_block *clb_kv_block_find(const clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                                XXH128_hash_t hash);
/* A new block with no pages yet, held by nobody and in no list; NULL: no memory. */
clb_kv_block *clb_kv_block_add(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                               XXH128_hash_t hash);
void clb_kv_block_hold(clb_kv_index *index, clb_kv_block *b);
void clb_kv_block_release(clb_kv_index *index, clb_kv_block *b);
/* The sequence holds it as its next one; with NULL, only makes room in its list. False: no memory. */
bool clb_kv_block_push(clb_kv_seq *seq, clb_kv_block *b);

/* ---- windows.c ---- */

/* Pages of the pool that a block's window takes; 0: the cache has no recent window. */
uint32_t clb_kv_window_pages(const clb_kv_cache *cache);
/* The sequence's block `at` of its n_known is b: its copies go to b, if b has none, as far as there is room, and to the
 * folder. */
void clb_kv_window_offer(clb_kv_seq *seq, clb_kv_block *b, uint32_t at, uint32_t n_known);
/* Of the blocks [first, end) that a sequence may take, chain[0] being block `first`: up to which one it can go on, for
 * there are copies of everything that its next row reads from such. pages (freed by clb_kv_window_done): these copies.
 */
typedef struct clb_kv_window {
    const void **pages; /* [n_blocks][layers * heads]; NULL: none are wanted */
    uint32_t first, n_blocks;
} clb_kv_window;
uint32_t clb_kv_window_gather(clb_kv_seq *seq, clb_kv_block *const *chain, uint32_t first, uint32_t end,
                              clb_kv_window *out);
/* They become the sequence's, which has taken those blocks (false: no memory, it has no window), / or are given back.
 */
bool clb_kv_window_adopt(clb_kv_seq *seq, clb_kv_window *window);
void clb_kv_window_done(clb_kv_cache *cache, clb_kv_window *window);
/* The oldest of a list leaves; false: there is none. / That of a block leaves, if it has one. */
bool clb_kv_window_drop(clb_kv_cache *cache, enum clb_kv_window_list list);
void clb_kv_window_forget(clb_kv_cache *cache, clb_kv_block *b);

/* ---- prefix_disk.c: nothing happens without a folder ---- */

/* Held once (by the caller), in no list; NULL: it is not there, or there is no room. */
clb_kv_block *clb_kv_block_load(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                                XXH128_hash_t hash);
void clb_kv_block_store(clb_kv_cache *cache, clb_kv_block *b);
/* It was used, so it stays. */
void clb_kv_block_touch(clb_kv_cache *cache, clb_kv_block *b);
/* pages: F16 copies of b, [layers * heads] pages of the recent pool. */
bool clb_kv_window_load(clb_kv_cache *cache, clb_kv_block *b, void *const *pages);
void clb_kv_window_store(clb_kv_cache *cache, clb_kv_block *b, const void *const *pages);
void clb_kv_window_touch(clb_kv_cache *cache, clb_kv_block *b);

/* ---- recent.c ---- */

/* Copies that no coming query reads go (clb_kv_recent_close leaves them until somebody had the chance to keep them). */
void clb_kv_recent_slide(clb_kv_seq *seq);
/* The block from which on the next query of a sequence of n positions reads copies. */
uint32_t clb_kv_recent_first_block(const clb_kv_cache *cache, uint32_t n);
/* Its copies of block `at` in one (layer, KV head); NULL: not all of them are there. */
const void *clb_kv_recent_page(const clb_kv_seq *seq, uint32_t head, uint32_t at);
/* Its window, whatever it was, is that of blocks [first, first + n): pages [n][layers * heads], which become the
 * sequence's. False: no memory, and nothing has changed. */
bool clb_kv_recent_adopt(clb_kv_seq *seq, uint32_t first, uint32_t n, const void *const *pages);

/* ---- pick.c ---- */

/* From this page on the row of the open pass looks at all of them: it reads copies there. Which copies there are beyond
 * those does not matter, for that depends on how the sequence came here. */
uint32_t clb_kv_picks_from(const clb_kv_seq *seq);

/* ---- seq.c ---- */

/* Positions >= n leave every head, whatever the strategy has to say. */
void clb_kv_cut(clb_kv_seq *seq, uint32_t n);

#endif
