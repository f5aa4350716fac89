/* Whether the pool has room for a pass, copies of shared pages included. */
#include <assert.h>
#include <string.h>

#include "kv/internal.h"

/* Most pages of a layer whose heads share a budget, after selection: every head may begin another page. */
static uint64_t pages_across(const clb_kv_seq *seq, uint32_t layer, uint32_t n_rows)
{
    const clb_kv_layout *l = &seq->cache->layout;
    return (clb_kv_layer_budget(seq, layer) + (uint64_t)l->n_kv_heads * (n_rows + l->page_tokens - 1)) / l->page_tokens;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of a layer that evicts: no other rewrites what it holds. */
static uint64_t count_shared(const clb_kv_seq *seq, uint32_t layer, const clb_kv_head *h)
{
    uint64_t n = 0;
    if (!seq->shares || !clb_kv_layer_evicts(seq, layer))
        return 0;
    for (uint32_t i = 0; i < h->n_pages; i++)
        n += clb_kv_pool_shared(&seq->cache->pool, h->k_pages[i]);
    return n;
}

static bool last_is_shared(const clb_kv_seq *seq, const clb_kv_head *h)
{
    const uint32_t p = seq->cache->layout.page_tokens;
    return seq->shares && h->n % p && clb_kv_pool_shared(&seq->cache->pool, h->k_pages[h->n / p]);
}

/* Pages that a selection at the end of a pass may have to copy before it moves rows. */
static uint64_t copies_at_end(const clb_kv_seq *seq, uint32_t layer, uint64_t n_shared)
{
    return clb_kv_layer_evicts(seq, layer) && (seq->traits.triggers & ~COLIBRI_KV_AT_OVER_BUDGET) ? n_shared : 0;
}

clb_kv_room clb_kv_room_for(const clb_kv_seq *seq, uint32_t n_rows)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    clb_kv_room r = {0};
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++)
        for (uint32_t head = 0; head < n_kv_heads; head++) {
            const size_t i = (size_t)layer * n_kv_heads + head;
            const clb_kv_head *h = &seq->heads[i];
            const uint64_t n_shared = count_shared(seq, layer, h);
            r.more -= h->n_pages;
            if (!clb_kv_overflows(seq, layer, head, n_rows)) {
                const bool copy = last_is_shared(seq, h);
                r.more += (int64_t)(clb_kv_pages_for(seq, (uint64_t)h->n + n_rows) + copy +
                                    copies_at_end(seq, layer, n_shared > copy ? n_shared - copy : 0));
                continue;
            }
            /* Whatever stays, at worst all of it is rewritten. */
            r.more += (int64_t)n_shared;
            if (!clb_kv_allots(seq)) {
                r.more += (int64_t)clb_kv_pages_for(seq, (uint64_t)seq->budgets[i] + n_rows);
                r.copies += less(clb_kv_pages_for(seq, seq->budgets[i]), n_shared);
            } else {
                r.more += head == 0 ? (int64_t)pages_across(seq, layer, n_rows) : 0;
                r.copies += n_shared;
            }
        }
    return r;
}

void clb_kv_own_page(clb_kv_seq *seq, clb_kv_head *h, uint32_t page)
{
    clb_kv_cache *cache = seq->cache;
    const void *const old = h->k_pages[page];
    if (!seq->shares || !clb_kv_pool_shared(&cache->pool, old))
        return;
    void *const own = clb_kv_pool_take(&cache->pool, page ? h->k_pages[page - 1] : NULL);
    clb_kv_pool_copy(&cache->pool, own, old);
    clb_kv_pool_give(&cache->pool, old);
    h->k_pages[page] = own;
    h->v_pages[page] = clb_kv_pool_second_of(&cache->pool, own);
    cache->n_copies++;
}

void clb_kv_take_pages(clb_kv_seq *seq, uint32_t n_rows)
{
    clb_kv_cache *cache = seq->cache;
    uint64_t reserve = 0;
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        clb_kv_head *h = &seq->heads[i];
        if (h->n % cache->layout.page_tokens)
            clb_kv_own_page(seq, h, h->n / cache->layout.page_tokens);
        for (const uint64_t want = clb_kv_pages_for(seq, (uint64_t)h->n + n_rows); h->n_pages < want; h->n_pages++) {
            const void *const last = h->n_pages ? h->k_pages[h->n_pages - 1] : NULL;
            void *const page = clb_kv_pool_take(&cache->pool, last);
            h->k_pages[h->n_pages] = page;
            h->v_pages[h->n_pages] = clb_kv_pool_second_of(&cache->pool, page);
            seq->n_pages++;
        }
        const uint32_t layer = i / cache->layout.n_kv_heads;
        reserve += copies_at_end(seq, layer, count_shared(seq, layer, h));
    }
    assert(seq->n_reserved == 0);
    seq->n_reserved = (uint32_t)less(reserve, clb_kv_pool_available(&cache->pool));
    assert(seq->n_reserved == reserve);
    cache->pool.n_reserved += seq->n_reserved;
}

void clb_kv_unreserve(clb_kv_seq *seq)
{
    seq->cache->pool.n_reserved -= seq->n_reserved;
    seq->n_reserved = 0;
}
