/* What sequences take of known blocks, and what they make known. */
#include "kv/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kv/index.h"

/* Needs whose data could not be had for tokens that are not computed. Of queries only the last ones are wanted: those
 * may be missing that nobody will look at (most_to_take). */
#define NEEDS_COMPUTING                                                                                                \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | COLIBRI_KV_NEED_HIDDEN | COLIBRI_KV_NEED_FUTURE)

bool clb_kv_traits_share(const clb_kv_traits *t)
{
    return !(t->evicts && t->needs & NEEDS_COMPUTING) && !t->stateful; /* it would have counted what is computed */
}

static bool may_share(const clb_kv_seq *seq)
{
    return seq->cache->index && !seq->pass_rows && !seq->evicted && clb_kv_traits_share(&seq->traits);
}

/* Some (layer, head) may keep less than n positions when a sequence has seen n tokens. */
static bool over_budget(clb_kv_seq *seq, uint32_t n)
{
    const uint32_t now = seq->position;
    bool over = false;
    seq->position = n;
    clb_kv_budgets(seq);
    seq->position = now;
    for (uint32_t i = 0; i < clb_kv_block_pages(seq->cache) && !over; i++)
        over = clb_kv_layer_evicts(seq, i / seq->cache->layout.n_kv_heads) && seq->budgets[i] < n;
    return over;
}

/* Of n tokens, how many it may take: with more, one that computes everything might have dropped some by now. Budgets
 * may change with what was seen, so they must suffice wherever its passes, of max_rows each, would have begun. */
static uint32_t most_undropped(clb_kv_seq *seq, uint32_t n)
{
    const uint32_t p = clb_kv_page_tokens(seq->cache), rows = seq->max_rows;
    uint32_t most = (n < seq->ctx ? n : seq->ctx) / p * p;
    if (!seq->traits.evicts)
        return most;
    if (!seq->traits.own_budgets || !rows) {
        const uint32_t budget = seq->traits.own_budgets ? 0 : seq->budget / p * p;
        return most < budget ? most : budget;
    }
    if (over_budget(seq, seq->position))
        return 0;
    for (uint64_t at = ((uint64_t)seq->position / rows + 1) * rows; at < most; at += rows)
        if (over_budget(seq, (uint32_t)at))
            most = (uint32_t)at / p * p;
    while (most > seq->position && over_budget(seq, most))
        most -= p;
    return most;
}

/* Where the first selection may come, if that is before `end`: where a budget is exceeded and a pass of one that
 * computes everything ends. n tokens or more are there when the prompt is. */
static uint64_t first_selection(clb_kv_seq *seq, uint32_t n, uint64_t end)
{
    const uint32_t rows = seq->max_rows;
    if (!seq->traits.own_budgets || !rows)
        return seq->budget + UINT64_C(1);
    for (uint64_t at = ((uint64_t)seq->position / rows + 1) * rows; at < end; at += rows)
        if (over_budget(seq, (uint32_t)at))
            end = at;
    for (uint64_t at = n; at < end; at++)
        if (over_budget(seq, (uint32_t)at))
            end = at;
    return end;
}

/* Where the strategy looks at the last queries it takes no more than what comes before those of the first selection. */
static uint32_t most_to_take(clb_kv_seq *seq, uint32_t n)
{
    const uint32_t most = most_undropped(seq, n), p = clb_kv_page_tokens(seq->cache);
    if (!seq->traits.evicts || !(seq->traits.needs & CLB_KV_NEEDS_QUERIES) || most <= seq->position)
        return most;
    const uint64_t w = seq->traits.window_w, first = first_selection(seq, n, most + w), before = first > w ? first - w : 0;
    return before < most ? (uint32_t)before / p * p : most;
}

/* The pages of the block become the sequence's; it ends where the block begins. */
static bool take(clb_kv_seq *seq, clb_kv_block *b)
{
    clb_kv_cache *cache = seq->cache;
    const clb_kv_layout *l = &cache->layout;
    const uint32_t p = l->page_tokens, first = seq->position, n_kv_heads = l->n_kv_heads;
    if (!clb_kv_block_push(seq, NULL))
        return false;
    for (uint32_t i = 0; i < clb_kv_block_pages(cache); i++)
        if (!clb_kv_reserve_head(seq, i / n_kv_heads, &seq->heads[i], (uint64_t)first + p))
            return false;
    for (uint32_t i = 0; i < clb_kv_block_pages(cache); i++) {
        clb_kv_head *h = &seq->heads[i];
        const uint32_t number = clb_kv_pages_of(cache, b)[i];
        void *const page = clb_kv_pool_page(&cache->pool, number);
        assert(h->n == first && h->n_pages == first / p);
        clb_kv_pool_share(&cache->pool, page);
        h->k_pages[h->n_pages] = page;
        h->v_pages[h->n_pages++] = clb_kv_pool_second(&cache->pool, number);
        for (uint32_t j = 0; j < p && clb_kv_layer_evicts(seq, i / n_kv_heads); j++)
            h->positions[first + j] = first + j;
        h->n += p;
    }
    seq->n_pages += clb_kv_block_pages(cache);
    seq->position = seq->n_prompt = seq->q_first = first + p; /* it knows no query before */
    seq->shares = true;
    clb_kv_block_push(seq, b);
    return true;
}

/* Its begun block, from position n on, leaves. What is protected stays protected, although nothing may be left. */
static int give_way(clb_kv_seq *seq, uint32_t n, clb_error *err)
{
    const uint32_t n_protected = seq->n_protected, n_system = seq->n_system;
    if (n) /* there are windows for what comes in its place */
        clb_kv_cut(seq, n);
    else
        CLB_TRY(clb_kv_seq_truncate(seq, 0, err));
    seq->n_protected = n_protected;
    seq->n_system = n_system;
    return COLIBRI_OK;
}

/* Known blocks that follow those of the sequence, held once more: chain[0 .. returned), of which the first *n_memory
 * were in memory. */
static uint32_t find_chain(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n_blocks, clb_kv_block **chain,
                           uint32_t *n_memory)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = clb_kv_page_tokens(cache), mode = (uint32_t)seq->traits.positions, first = seq->n_blocks;
    clb_kv_block *parent = first ? seq->blocks[first - 1] : NULL;
    uint32_t n = 0;
    *n_memory = 0;
    for (; n < n_blocks; parent = chain[n++]) {
        const uint32_t *const of = tokens + (size_t)(first + n) * p;
        const XXH128_hash_t hash = clb_kv_hash_of(cache->index, parent, mode, seq->salt, of, p);
        chain[n] = clb_kv_block_find(cache, parent, mode, of, hash);
        if (chain[n]) {
            clb_kv_block_hold(cache->index, chain[n]);
            *n_memory = n + 1;
            continue;
        }
        chain[n] = clb_kv_block_load(cache, parent, mode, of, hash);
        if (!chain[n])
            break;
    }
    return n;
}

/* Blocks chain[0..n) follow those that it holds. */
static int take_chain(clb_kv_seq *seq, clb_kv_block *const *chain, uint32_t n, clb_kv_window *window, clb_error *err)
{
    const uint32_t p = clb_kv_page_tokens(seq->cache);
    if (n && seq->position % p)
        CLB_TRY(give_way(seq, seq->position / p * p, err));
    for (uint32_t i = 0; i < n; i++)
        if (!take(seq, chain[i]))
            return CLB_NOMEM(err, "tables of the KV cache");
    return clb_kv_window_adopt(seq, window) ? COLIBRI_OK : CLB_NOMEM(err, "tables of the KV cache");
}

int clb_kv_seq_take_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n, clb_kv_taken *taken, clb_error *err)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = clb_kv_page_tokens(cache), first = seq->position / p, before = seq->position;
    uint32_t n_memory;
    *taken = (clb_kv_taken){0};
    if (!may_share(seq) || n <= before || seq->n_blocks != first) /* what it holds itself is not known */
        return COLIBRI_OK;
    const uint32_t most = most_to_take(seq, n) / p;
    if (most <= first)
        return COLIBRI_OK;
    clb_kv_block **const chain = malloc((most - first) * sizeof *chain);
    if (!chain)
        return CLB_NOMEM(err, "tables of the KV cache");
    uint32_t n_found = find_chain(seq, tokens, most - first, chain, &n_memory);
    clb_kv_window window;
    const uint32_t end = clb_kv_window_gather(seq, chain, first, first + n_found, &window), n_taken = end - first;
    const int rc = take_chain(seq, chain, n_taken, &window, err);
    clb_kv_window_done(cache, &window);
    n_memory = n_memory < n_taken ? n_memory : n_taken;
    if (n_memory)
        taken->memory = (first + n_memory) * p - before;
    if (n_taken)
        taken->disk = end * p - before - taken->memory;
    while (n_found) { /* from the last to the first, as sequences do */
        if (n_found <= n_memory)
            clb_kv_block_touch(cache, chain[n_found - 1]);
        clb_kv_block_release(cache->index, chain[--n_found]);
    }
    free(chain);
    cache->index->reused += taken->memory;
    cache->index->loaded += taken->disk;
    return rc;
}

/* The sequence uses the known block's pages instead of its own, which hold the same bytes. */
static void exchange(clb_kv_seq *seq, clb_kv_block *b, uint32_t at)
{
    clb_kv_cache *cache = seq->cache;
    for (uint32_t i = 0; i < clb_kv_block_pages(cache); i++) {
        clb_kv_head *h = &seq->heads[i];
        const uint32_t number = clb_kv_pages_of(cache, b)[i];
        void *const page = clb_kv_pool_page(&cache->pool, number);
        clb_kv_pool_share(&cache->pool, page);
        clb_kv_pool_give(&cache->pool, h->k_pages[at]);
        h->k_pages[at] = page;
        h->v_pages[at] = clb_kv_pool_second(&cache->pool, number);
    }
}

void clb_kv_seq_set_salt(clb_kv_seq *seq, uint64_t salt)
{
    assert(!seq->position);
    seq->salt = salt;
}

static void give(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t p = clb_kv_page_tokens(cache), mode = (uint32_t)seq->traits.positions;
    for (uint32_t i = seq->n_blocks; i < n / p; i++) {
        clb_kv_block *const parent = i ? seq->blocks[i - 1] : NULL;
        const uint32_t *const of = tokens + (size_t)i * p;
        const XXH128_hash_t hash = clb_kv_hash_of(cache->index, parent, mode, seq->salt, of, p);
        if (!clb_kv_block_push(seq, NULL))
            return; /* out of memory: not known, nothing else */
        clb_kv_block *b = clb_kv_block_find(cache, parent, mode, of, hash);
        if (b) {
            exchange(seq, b, i);
        } else {
            b = clb_kv_block_add(cache, parent, mode, of, hash);
            if (!b)
                return;
            for (uint32_t h = 0; h < clb_kv_block_pages(cache); h++) {
                clb_kv_pool_share(&cache->pool, seq->heads[h].k_pages[i]);
                clb_kv_pages_of(cache, b)[h] = clb_kv_pool_number(&cache->pool, seq->heads[h].k_pages[i]);
            }
            clb_kv_block_store(cache, b);
            b->holders = 1; /* into the list of idle ones, from where it is held */
            clb_kv_block_release(cache->index, b);
        }
        seq->shares = true;
        clb_kv_block_push(seq, b);
        clb_kv_window_offer(seq, b, i, n / p);
    }
}

void clb_kv_seq_give_prefix(clb_kv_seq *seq, const uint32_t *tokens, uint32_t n)
{
    if (may_share(seq) && seq->n_blocks < seq->position / clb_kv_page_tokens(seq->cache)) {
        assert(n == seq->position);
        give(seq, tokens, n < seq->n_exact ? n : seq->n_exact); /* what full attention computed */
    }
    if (!seq->pass_rows)
        clb_kv_recent_slide(seq);
}

/* ---- making, ending, figures ---- */

int clb_kv_share(clb_kv_cache *cache, const void *salt, size_t n, clb_error *err)
{
    const clb_kv_layout *l = &cache->layout;
    const uint32_t layout[] = {
        CLB_KV_SHARE_FORMAT, l->n_layers,    l->n_heads, l->n_kv_heads, l->k_dim,  l->v_dim, l->k_type,
        l->v_type,           l->page_tokens, l->turn_k,  l->turn_v,     l->recent, l->n_rot};
    if (cache->index || cache->n_seqs)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: sharing is turned on once, before the first sequence");
    clb_kv_index *x = calloc(1, sizeof *x);
    if (!x)
        return CLB_NOMEM(err, "index of the KV cache");
    x->n_buckets = 256;
    x->buckets = calloc(x->n_buckets, sizeof *x->buckets);
    x->pages = calloc(2 * (size_t)clb_kv_block_pages(cache), sizeof *x->pages);
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
    static const char window[] = "window";
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &x->roots[COLIBRI_KV_POS_ORIGINAL], sizeof x->roots[0]);
    XXH3_128bits_update(&state, window, sizeof window);
    x->window_root = XXH3_128bits_digest(&state);
    cache->index = x;
    return COLIBRI_OK;
}

int clb_kv_share_on_disk(clb_kv_cache *cache, const char *dir, uint64_t max_bytes, clb_error *err)
{
    if (!cache->index || cache->index->disk)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: a prompt cache is opened once, with sharing on");
    return clb_prompt_cache_open(dir, max_bytes, cache->log, &cache->index->disk, err);
}

void clb_kv_cache_share_stats(const clb_kv_cache *cache, clb_kv_share_stats *out)
{
    const clb_kv_pool *pool = &cache->pool;
    const clb_kv_index *x = cache->index;
    *out = (clb_kv_share_stats){.copies = cache->n_copies};
    for (uint32_t i = 0; i < pool->fresh * pool->shape.run; i++)
        out->bytes_shared += pool->refs[i] > 1 ? pool->page_bytes : 0;
    if (!x)
        return;
    out->tokens_reused = x->reused;
    out->tokens_loaded = x->loaded;
    out->blocks = x->n_blocks;
    out->blocks_idle = x->n_idle;
    out->blocks_dropped = x->dropped;
    out->windows = x->n_windows;
    const uint64_t window_bytes = clb_kv_window_pages(cache) * pool->page_bytes;
    out->bytes_windows = x->n_windows * window_bytes;
    for (clb_kv_block *b = x->oldest; b; b = b->newer) {
        out->bytes_idle += b->has_window ? window_bytes : 0;
        for (uint32_t i = 0; i < clb_kv_block_pages(cache); i++)
            out->bytes_idle += pool->refs[clb_kv_pages_of(cache, b)[i]] == 1 ? pool->page_bytes : 0;
    }
    if (x->disk) {
        const clb_prompt_cache_stats d = clb_prompt_cache_get_stats(x->disk);
        out->blocks_written = d.written;
        out->blocks_read = d.read;
    }
}
