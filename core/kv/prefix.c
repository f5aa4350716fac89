/* Known blocks: a hash table of them, chained to their prefixes, and the list of those that no sequence holds.
 *
 * A sequence that holds a block holds all blocks before it, and gives them back from the last to the first. So in the list
 * of idle blocks, ordered by when they became idle, what follows a block in a prefix is always older than the block: the
 * oldest is a leaf. */
#include "kv/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "kv/internal.h"
#include "kv/prompt_cache.h"

/* Bytes in pages and on the drive mean something else from here on: count up whenever that changes. */
#define FORMAT 1u
#define TOUCH_EVERY_NS UINT64_C(60000000000)

struct clb_kv_block {
    XXH128_hash_t hash;
    clb_kv_block *parent, *next; /* next: in its bucket */
    clb_kv_block *older, *newer; /* in the list of idle ones */
    uint32_t holders, n_children, depth;
    uint32_t mode; /* enum colibri_kv_positions */
    uint64_t touched_ns;
    uint32_t data[]; /* tokens [page_tokens], pages [layers * heads]: numbers in the pool */
};

struct clb_kv_index {
    XXH128_hash_t roots[2]; /* by mode */
    clb_kv_block **buckets;
    size_t n_buckets, n_blocks, n_idle; /* n_buckets: a power of two */
    clb_kv_block *oldest, *newest;
    clb_prompt_cache *disk;
    void **pages; /* [layers * heads], scratch */
    uint64_t reused, loaded, dropped;
};

static uint32_t page_tokens(const clb_kv_cache *cache)
{
    return cache->layout.page_tokens;
}

static uint32_t n_heads_all(const clb_kv_cache *cache)
{
    return cache->layout.n_layers * cache->layout.n_kv_heads;
}

static uint32_t *pages_of(const clb_kv_cache *cache, clb_kv_block *b)
{
    return b->data + page_tokens(cache);
}

/* ---- the table ---- */

static XXH128_hash_t hash_of(const clb_kv_index *x, const clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                             uint32_t n)
{
    XXH3_state_t state;
    const XXH128_hash_t before = parent ? parent->hash : x->roots[mode];
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &before, sizeof before);
    XXH3_128bits_update(&state, tokens, n * sizeof *tokens);
    return XXH3_128bits_digest(&state);
}

static clb_kv_block **bucket(const clb_kv_index *x, XXH128_hash_t hash)
{
    return &x->buckets[hash.low64 & (x->n_buckets - 1)];
}

static clb_kv_block *find(const clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                          XXH128_hash_t hash)
{
    for (clb_kv_block *b = *bucket(cache->index, hash); b; b = b->next)
        if (XXH128_isEqual(b->hash, hash) && b->parent == parent && b->mode == mode &&
            memcmp(b->data, tokens, page_tokens(cache) * sizeof *tokens) == 0)
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

/* ---- idle blocks ---- */

static void not_idle(clb_kv_index *x, clb_kv_block *b)
{
    *(b->older ? &b->older->newer : &x->oldest) = b->newer;
    *(b->newer ? &b->newer->older : &x->newest) = b->older;
    b->older = b->newer = NULL;
    x->n_idle--;
}

static void release(clb_kv_index *x, clb_kv_block *b)
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

static void hold(clb_kv_index *x, clb_kv_block *b)
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
    for (uint32_t i = 0; i < n_heads_all(cache); i++)
        clb_kv_pool_give(&cache->pool, clb_kv_pool_page(&cache->pool, pages_of(cache, b)[i]));
    if (b->parent)
        b->parent->n_children--;
    x->n_blocks--;
    free(b);
}

bool clb_kv_make_room(clb_kv_cache *cache, clb_kv_seq *seq, uint64_t need)
{
    clb_kv_index *x = cache->index;
    bool changed = false;
    if (!x)
        return false;
    while (x->oldest && clb_kv_pool_available(&cache->pool) < need) {
        clb_kv_block *b = x->oldest;
        not_idle(x, b);
        forget(cache, b);
        x->dropped++;
        changed = true;
    }
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
        release(seq->cache->index, seq->blocks[--seq->n_blocks]);
}

static bool push(clb_kv_seq *seq, clb_kv_block *b)
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
        hold(seq->cache->index, b);
        seq->blocks[seq->n_blocks++] = b;
    }
    return true;
}

bool clb_kv_hold_same(clb_kv_seq *seq, const clb_kv_seq *from)
{
    for (uint32_t i = seq->n_blocks; i < from->n_blocks; i++)
        if (!push(seq, from->blocks[i]))
            return false;
    return true;
}

/* A new block with no pages yet, held by nobody and in no list. */
static clb_kv_block *add(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                         XXH128_hash_t hash)
{
    clb_kv_index *x = cache->index;
    clb_kv_block *b = malloc(sizeof *b + ((size_t)page_tokens(cache) + n_heads_all(cache)) * sizeof b->data[0]);
    if (!b)
        return NULL;
    *b = (clb_kv_block){.hash = hash, .parent = parent, .mode = mode, .depth = parent ? parent->depth + 1 : 0};
    memcpy(b->data, tokens, page_tokens(cache) * sizeof *tokens);
    if (x->n_blocks >= x->n_buckets)
        grow(x);
    b->next = *bucket(x, hash);
    *bucket(x, hash) = b;
    if (parent)
        parent->n_children++;
    x->n_blocks++;
    return b;
}

/* ---- the prompt cache ---- */

static clb_prompt_block on_disk(const clb_kv_cache *cache, const clb_kv_block *parent, uint32_t mode,
                                const uint32_t *tokens, XXH128_hash_t hash)
{
    const clb_kv_index *x = cache->index;
    clb_prompt_block d = {
        .depth = parent ? parent->depth + 1 : 0,
        .n_tokens = page_tokens(cache),
        .n_pages = n_heads_all(cache),
        .tokens = tokens,
        .page_bytes = cache->pool.page_bytes,
    };
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.key, x->roots[mode]);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.parent, parent ? parent->hash : x->roots[mode]);
    XXH128_canonicalFromHash((XXH128_canonical_t *)(void *)d.hash, hash);
    return d;
}

static clb_kv_block *load(clb_kv_cache *cache, clb_kv_block *parent, uint32_t mode, const uint32_t *tokens,
                          XXH128_hash_t hash)
{
    clb_kv_index *x = cache->index;
    const uint32_t n = n_heads_all(cache);
    if (!x->disk)
        return NULL;
    const clb_prompt_block d = on_disk(cache, parent, mode, tokens, hash);
    if (clb_kv_pool_available(&cache->pool) < n)
        clb_kv_make_room(cache, NULL, n);
    if (clb_kv_pool_available(&cache->pool) < n)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        x->pages[i] = clb_kv_pool_take(&cache->pool);
    clb_kv_block *b = NULL;
    if (clb_prompt_cache_load(x->disk, &d, x->pages))
        b = add(cache, parent, mode, tokens, hash);
    for (uint32_t i = 0; i < n; i++) {
        if (b)
            pages_of(cache, b)[i] = clb_kv_pool_number(&cache->pool, x->pages[i]);
        else
            clb_kv_pool_give(&cache->pool, x->pages[i]);
    }
    if (b)
        b->touched_ns = clb_now_ns();
    return b;
}

static void store(clb_kv_cache *cache, clb_kv_block *b)
{
    clb_kv_index *x = cache->index;
    if (!x->disk)
        return;
    const clb_prompt_block d = on_disk(cache, b->parent, b->mode, b->data, b->hash);
    for (uint32_t i = 0; i < n_heads_all(cache); i++)
        x->pages[i] = clb_kv_pool_page(&cache->pool, pages_of(cache, b)[i]);
    clb_prompt_cache_store(x->disk, &d, (const void *const *)x->pages);
    b->touched_ns = clb_now_ns();
}

static void touch(clb_kv_cache *cache, clb_kv_block *b)
{
    const uint64_t now = cache->index->disk ? clb_now_ns() : 0;
    if (now - b->touched_ns < TOUCH_EVERY_NS)
        return;
    const clb_prompt_block d = on_disk(cache, b->parent, b->mode, b->data, b->hash);
    clb_prompt_cache_touch(cache->index->disk, &d);
    b->touched_ns = now;
}

/* ---- taking and giving ---- */

/* Needs whose data could not be had for tokens that are not computed. */
#define NEEDS_COMPUTING                                                                                                \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | COLIBRI_KV_NEED_PROB_LAST_W | COLIBRI_KV_NEED_Q_LAST_W | \
     COLIBRI_KV_NEED_Q_STATS | COLIBRI_KV_NEED_HIDDEN | COLIBRI_KV_NEED_FUTURE)

static bool may_share(const clb_kv_seq *seq)
{
    const clb_kv_layout *l = &seq->cache->layout;
    if (!seq->cache->index || seq->pass_rows || seq->evicted)
        return false;
    if (seq->traits.evicts && (seq->traits.needs & NEEDS_COMPUTING || seq->traits.own_budgets))
        return false;
    /* The last positions are read at full precision, and only the sequence that computed them has them so. */
    if (clb_kv_has_recent(l))
        return false;
    return !seq->traits.stateful; /* it would have counted what is computed */
}

/* The pages of the block become the sequence's; it ends where the block begins. */
static bool take(clb_kv_seq *seq, clb_kv_block *b)
{
    clb_kv_cache *cache = seq->cache;
    const clb_kv_layout *l = &cache->layout;
    const uint32_t p = l->page_tokens, first = seq->position, n_kv_heads = l->n_kv_heads;
    if (!push(seq, NULL))
        return false;
    for (uint32_t i = 0; i < n_heads_all(cache); i++)
        if (!clb_kv_reserve_head(seq, i / n_kv_heads, &seq->heads[i], (uint64_t)first + p))
            return false;
    for (uint32_t i = 0; i < n_heads_all(cache); i++) {
        clb_kv_head *h = &seq->heads[i];
        uint8_t *const page = clb_kv_pool_page(&cache->pool, pages_of(cache, b)[i]);
        assert(h->n == first && h->n_pages == first / p);
        clb_kv_pool_share(&cache->pool, page);
        h->k_pages[h->n_pages] = page;
        h->v_pages[h->n_pages++] = page + cache->v_offset;
        for (uint32_t j = 0; j < p && clb_kv_layer_evicts(seq, i / n_kv_heads); j++)
            h->positions[first + j] = first + j;
        h->n += p;
    }
    seq->n_pages += n_heads_all(cache);
    seq->position = seq->n_prompt = first + p;
    seq->shares = true;
    push(seq, b);
    return true;
}

/* Its begun block, from position n on, leaves. What is protected stays protected, although nothing may be left. */
static int give_way(clb_kv_seq *seq, uint32_t n, clb_error *err)
{
    const uint32_t n_protected = seq->n_protected, n_system = seq->n_system;
    CLB_TRY(clb_kv_seq_truncate(seq, n, err));
    seq->n_protected = n_protected;
    seq->n_system = n_system;
    return COLIBRI_OK;
}

int clb_kv_seq_take_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n, clb_kv_taken *taken, clb_error *err)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = page_tokens(cache), mode = (uint32_t)seq->traits.positions;
    *taken = (clb_kv_taken){0};
    if (!may_share(seq) || n <= seq->position)
        return COLIBRI_OK;
    uint32_t limit = n < seq->ctx ? n : seq->ctx;
    if (seq->traits.evicts && limit > seq->budget) /* beyond it some would have left by now */
        limit = seq->budget;
    for (uint32_t i = seq->position / p; i < limit / p; i++) {
        if (seq->n_blocks != i)
            break; /* what it holds itself is not known */
        clb_kv_block *const parent = i ? seq->blocks[i - 1] : NULL;
        const uint32_t *const of = tokens + (size_t)i * p;
        const XXH128_hash_t hash = hash_of(cache->index, parent, mode, of, p);
        clb_kv_block *b = find(cache, parent, mode, of, hash);
        const bool known = b != NULL;
        if (!b)
            b = load(cache, parent, mode, of, hash);
        if (!b)
            break;
        if (!known) { /* idle, as the newest: it is found there whatever happens now */
            b->holders = 1;
            release(cache->index, b);
        }
        const uint32_t before = seq->position;
        if (before % p)
            CLB_TRY(give_way(seq, i * p, err));
        if (!take(seq, b))
            return CLB_NOMEM(err, "tables of the KV cache");
        if (known)
            touch(cache, b);
        *(known ? &taken->memory : &taken->disk) += seq->position - before;
    }
    cache->index->reused += taken->memory;
    cache->index->loaded += taken->disk;
    return COLIBRI_OK;
}

/* The sequence uses the known block's pages instead of its own, which hold the same bytes. */
static void exchange(clb_kv_seq *seq, clb_kv_block *b, uint32_t at)
{
    clb_kv_cache *cache = seq->cache;
    for (uint32_t i = 0; i < n_heads_all(cache); i++) {
        clb_kv_head *h = &seq->heads[i];
        uint8_t *const page = clb_kv_pool_page(&cache->pool, pages_of(cache, b)[i]);
        clb_kv_pool_share(&cache->pool, page);
        clb_kv_pool_give(&cache->pool, h->k_pages[at]);
        h->k_pages[at] = page;
        h->v_pages[at] = page + cache->v_offset;
    }
}

void clb_kv_seq_give_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = page_tokens(cache), mode = (uint32_t)seq->traits.positions;
    if (seq->n_blocks >= seq->position / p || !may_share(seq))
        return;
    assert(n == seq->position);
    n = n < seq->n_exact ? n : seq->n_exact; /* what full attention computed */
    for (uint32_t i = seq->n_blocks; i < n / p; i++) {
        clb_kv_block *const parent = i ? seq->blocks[i - 1] : NULL;
        const uint32_t *const of = tokens + (size_t)i * p;
        const XXH128_hash_t hash = hash_of(cache->index, parent, mode, of, p);
        if (!push(seq, NULL))
            return; /* out of memory: not known, nothing else */
        clb_kv_block *b = find(cache, parent, mode, of, hash);
        if (b) {
            exchange(seq, b, i);
        } else {
            b = add(cache, parent, mode, of, hash);
            if (!b)
                return;
            for (uint32_t h = 0; h < n_heads_all(cache); h++) {
                clb_kv_pool_share(&cache->pool, seq->heads[h].k_pages[i]);
                pages_of(cache, b)[h] = clb_kv_pool_number(&cache->pool, seq->heads[h].k_pages[i]);
            }
            store(cache, b);
            b->holders = 1; /* into the list of idle ones, from where it is held */
            release(cache->index, b);
        }
        seq->shares = true;
        push(seq, b);
    }
}

/* ---- making, ending, figures ---- */

int clb_kv_share(clb_kv_cache *cache, const void *salt, size_t n, clb_error *err)
{
    const clb_kv_layout *l = &cache->layout;
    const uint32_t layout[] = {FORMAT,         l->n_layers, l->n_heads, l->n_kv_heads, l->k_dim,  l->v_dim, l->k_type,
                               l->v_type, l->page_tokens, l->turn_k,  l->turn_v,     l->recent, l->n_rot};
    if (cache->index || cache->n_seqs)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: sharing is turned on once, before the first sequence");
    clb_kv_index *x = calloc(1, sizeof *x);
    if (!x)
        return CLB_NOMEM(err, "index of the KV cache");
    x->n_buckets = 256;
    x->buckets = calloc(x->n_buckets, sizeof *x->buckets);
    x->pages = calloc(n_heads_all(cache), sizeof *x->pages);
    if (!x->buckets || !x->pages) {
        free(x->buckets);
        free(x->pages);
        free(x);
        return CLB_NOMEM(err, "index of the KV cache");
    }
    for (uint32_t mode = 0; mode < 2; mode++) {
        XXH3_state_t state;
        XXH3_128bits_reset(&state);
        XXH3_128bits_update(&state, layout, sizeof layout);
        XXH3_128bits_update(&state, &mode, sizeof mode);
        XXH3_128bits_update(&state, salt, n);
        x->roots[mode] = XXH3_128bits_digest(&state);
    }
    cache->index = x;
    return COLIBRI_OK;
}

int clb_kv_share_on_disk(clb_kv_cache *cache, const char *dir, uint64_t max_bytes, clb_error *err)
{
    if (!cache->index || cache->index->disk)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: a prompt cache is opened once, with sharing on");
    return clb_prompt_cache_open(dir, max_bytes, cache->log, &cache->index->disk, err);
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
    assert(x->n_blocks == 0);
    clb_prompt_cache_close(x->disk);
    free(x->buckets);
    free(x->pages);
    free(x);
    cache->index = NULL;
}

void clb_kv_cache_share_stats(const clb_kv_cache *cache, clb_kv_share_stats *out)
{
    const clb_kv_pool *pool = &cache->pool;
    const clb_kv_index *x = cache->index;
    *out = (clb_kv_share_stats){.copies = cache->n_copies};
    for (uint32_t i = 0; i < pool->fresh; i++)
        out->bytes_shared += pool->refs[i] > 1 ? pool->page_bytes : 0;
    if (!x)
        return;
    out->tokens_reused = x->reused;
    out->tokens_loaded = x->loaded;
    out->blocks = x->n_blocks;
    out->blocks_idle = x->n_idle;
    out->blocks_dropped = x->dropped;
    for (clb_kv_block *b = x->oldest; b; b = b->newer)
        for (uint32_t i = 0; i < n_heads_all(cache); i++)
            out->bytes_idle += pool->refs[pages_of(cache, b)[i]] == 1 ? pool->page_bytes : 0;
    if (x->disk) {
        const clb_prompt_cache_stats d = clb_prompt_cache_get_stats(x->disk);
        out->blocks_written = d.written;
        out->blocks_read = d.read;
    }
}
