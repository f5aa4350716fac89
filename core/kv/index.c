/* Known blocks: a hash table of them, chained to their prefixes, and the list of those that no sequence holds.
 *
 * A sequence that holds a block holds all blocks before it, and gives them back from the last to the first. So in the
 * list of idle blocks, ordered by when they became idle, what follows a block in a prefix is always older than the
 * block: the oldest is a leaf. */
#include "kv/index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

XXH128_hash_t clb_kv_hash_of(const clb_kv_index *x, const clb_kv_block *parent, uint32_t mode, uint64_t salt,
                             const uint32_t *tokens, uint32_t n)
{
    XXH3_state_t state;
    const XXH128_hash_t before = parent ? parent->hash : x->roots[mode];
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &before, sizeof before);
    if (!parent && salt)
        XXH3_128bits_update(&state, &salt, sizeof salt);
    XXH3_128bits_update(&state, tokens, n * sizeof *tokens);
    return XXH3_128bits_digest(&state);
}

static clb_kv_block **bucket(const clb_kv_index *x, XXH128_hash_t hash)
{
    return &x->buckets[hash.low64 & (x->n_buckets - 1)];
}

clb_kv_block *clb_kv_block_find(const clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                                XXH128_hash_t hash)
{
    for (clb_kv_block *b = *bucket(cache->index, hash); b; b = b->next)
        if (XXH128_isEqual(b->hash, hash) && b->parent == parent && b->mode == mode &&
            memcmp(b->data, tokens, clb_kv_page_tokens(cache) * sizeof *tokens) == 0)
            return b;
    return NULL;
}

/* Twice the buckets; if there is no memory for them, chains grow instead. */
static void grow(clb_kv_index *x)
{
    clb_kv_block **const old = x->buckets;
    const size_t n = x->n_buckets;
    clb_kv_block **const more = calloc(2 * n, sizeof *more);
    if (!more)
        return;
    x->buckets = more;
    x->n_buckets = 2 * n;
    for (size_t i = 0; i < n; i++)
        for (clb_kv_block *b = old[i], *next; b; b = next) {
            next = b->next;
            b->next = *bucket(x, b->hash);
            *bucket(x, b->hash) = b;
        }
    free(old);
}

clb_kv_block *clb_kv_block_add(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                               XXH128_hash_t hash)
{
    clb_kv_index *x = cache->index;
    const size_t n = (size_t)clb_kv_page_tokens(cache) + clb_kv_block_pages(cache) + clb_kv_window_pages(cache);
    clb_kv_block *b = malloc(sizeof *b + n * sizeof b->data[0]);
    if (!b)
        return NULL;
    *b = (clb_kv_block){.hash = hash, .parent = parent, .mode = mode, .depth = parent ? parent->depth + 1 : 0};
    memcpy(b->data, tokens, clb_kv_page_tokens(cache) * sizeof *tokens);
    if (x->n_blocks >= x->n_buckets)
        grow(x);
    b->next = *bucket(x, hash);
    *bucket(x, hash) = b;
    if (parent)
        parent->n_children++;
    x->n_blocks++;
    return b;
}

/* ---- idle blocks ---- */

static void not_idle(clb_kv_index *x, clb_kv_block *b)
{
    *(b->older ? &b->older->newer : &x->oldest) = b->newer;
    *(b->newer ? &b->newer->older : &x->newest) = b->older;
    b->older = b->newer = NULL;
    x->n_idle--;
}

void clb_kv_block_release(clb_kv_index *x, clb_kv_block *b)
{
    assert(b->holders);
    if (--b->holders)
        return;
    b->older = x->newest;
    b->newer = NULL;
    *(x->newest ? &x->newest->newer : &x->oldest) = b;
    x->newest = b;
    x->n_idle++;
}

void clb_kv_block_hold(clb_kv_index *x, clb_kv_block *b)
{
    if (b->holders++ == 0)
        not_idle(x, b);
}

/* Nobody holds it, and it is in no list. */
static void forget(clb_kv_cache *cache, clb_kv_block *b)
{
    clb_kv_index *x = cache->index;
    clb_kv_block **at = bucket(x, b->hash);
    assert(b->n_children == 0);
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    clb_kv_window_forget(cache, b);
    for (uint32_t i = 0; i < clb_kv_block_pages(cache); i++)
        clb_kv_pool_give(&cache->pool, clb_kv_pool_page(&cache->pool, clb_kv_pages_of(cache, b)[i]));
    if (b->parent)
        b->parent->n_children--;
    x->n_blocks--;
    free(b);
}

/* Windows that nobody will probably want go first, then whole blocks, then, for a pass, the other windows: without them
 * less can be taken by others, and nothing else. */
bool clb_kv_make_room(clb_kv_cache *cache, clb_kv_seq *seq, uint64_t need)
{
    clb_kv_index *x = cache->index;
    bool changed = false;
    if (!x)
        return false;
    while (clb_kv_pool_available(&cache->pool) < need && clb_kv_window_drop(cache, CLB_KV_WINDOW_INNER))
        changed = true;
    while (x->oldest && clb_kv_pool_available(&cache->pool) < need) {
        clb_kv_block *b = x->oldest;
        not_idle(x, b);
        forget(cache, b);
        x->dropped++;
        changed = true;
    }
    while (seq && clb_kv_pool_available(&cache->pool) < need && clb_kv_window_drop(cache, CLB_KV_WINDOW_LIKELY))
        changed = true;
    while (!changed && seq && seq->n_blocks) {
        clb_kv_block *b = seq->blocks[seq->n_blocks - 1];
        if (b->holders > 1 || b->n_children)
            break;
        do { /* as far up as they are its own */
            seq->n_blocks--;
            forget(cache, b);
            x->dropped++;
            b = seq->n_blocks ? seq->blocks[seq->n_blocks - 1] : NULL;
        } while (b && b->holders == 1 && b->n_children == 0);
        changed = true;
    }
    return changed;
}

/* ---- what a sequence holds ---- */

void clb_kv_hold_only(clb_kv_seq *seq, uint32_t n)
{
    while (seq->n_blocks > n)
        clb_kv_block_release(seq->cache->index, seq->blocks[--seq->n_blocks]);
}

bool clb_kv_block_push(clb_kv_seq *seq, clb_kv_block *b)
{
    if (seq->n_blocks == seq->cap_blocks) {
        const uint32_t cap = seq->cap_blocks + seq->cap_blocks / 2 + 16;
        clb_kv_block **more = realloc(seq->blocks, cap * sizeof *more);
        if (!more)
            return false;
        seq->blocks = more;
        seq->cap_blocks = cap;
    }
    if (b) {
        clb_kv_block_hold(seq->cache->index, b);
        seq->blocks[seq->n_blocks++] = b;
    }
    return true;
}

bool clb_kv_hold_same(clb_kv_seq *seq, const clb_kv_seq *from)
{
    for (uint32_t i = seq->n_blocks; i < from->n_blocks; i++)
        if (!clb_kv_block_push(seq, from->blocks[i]))
            return false;
    return true;
}

uint64_t clb_kv_index_bytes(const clb_kv_layout *l, uint64_t n_pages)
{
    clb_kv_layout f16 = *l;
    f16.k_type = f16.v_type = COLIBRI_TYPE_F16;
    const uint64_t heads = (uint64_t)l->n_layers * l->n_kv_heads, blocks = n_pages / heads;
    const uint64_t window = clb_kv_has_recent(l) ? heads * clb_kv_page_bytes(&f16) / clb_kv_page_bytes(l) + 1 : 0;
    /* Pointers beside each: its bucket, of which there may be twice as many, and its place with those that hold it. */
    const uint64_t each = sizeof(clb_kv_block) + (l->page_tokens + heads + window) * sizeof(uint32_t) +
                          4 * sizeof(void *) + 16;
    return sizeof(clb_kv_index) + 256 * sizeof(void *) + 2 * heads * sizeof(void *) + blocks * each;
}

void clb_kv_index_free(clb_kv_cache *cache)
{
    clb_kv_index *x = cache->index;
    if (!x)
        return;
    while (x->oldest) {
        clb_kv_block *b = x->oldest;
        not_idle(x, b);
        forget(cache, b);
    }
    assert(x->n_blocks == 0 && x->n_windows == 0);
    clb_prompt_cache_close(x->disk);
    free(x->buckets);
    free(x->pages);
    free(x);
    cache->index = NULL;
}
