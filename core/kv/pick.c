/* Strategies that drop nothing but choose which pages a generated token looks at (after Quest, arXiv:2406.10774).
 *
 * A (layer, KV head) then has a second page table: the chosen complete pages, those that the recent window needs, and
 * the incomplete last one. Smallest and largest keys of complete pages are made when a pass begins. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/index.h"

bool clb_kv_picks(const clb_kv_seq *seq)
{
    return CLB_KV_HAS(seq->strategy, pick_pages) && !seq->given_up;
}

static bool grow_tables(clb_kv_seq *seq, clb_kv_head *h, uint32_t pages)
{
    const uint32_t dim = seq->cache->layout.k_dim;
    if (pages <= h->cap_picked)
        return true;
    const uint32_t cap = pages;
    const void **k = realloc(h->k_picked, cap * sizeof *k);
    if (k)
        h->k_picked = k;
    const void **v = realloc(h->v_picked, cap * sizeof *v);
    if (v)
        h->v_picked = v;
    uint8_t *use = realloc(h->use, cap + 1u);
    if (use)
        h->use = use;
    float *low = realloc(h->k_low, (size_t)cap * dim * sizeof *low);
    if (low)
        h->k_low = low;
    float *high = realloc(h->k_high, (size_t)cap * dim * sizeof *high);
    if (high)
        h->k_high = high;
    if (!k || !v || !use || !low || !high)
        return false;
    h->cap_picked = cap;
    return true;
}

static void add_page(const clb_kv_seq *seq, clb_kv_head *h, uint32_t page, float *row)
{
    const clb_kv_layout *l = &seq->cache->layout;
    float *const low = h->k_low + (size_t)page * l->k_dim, *const high = h->k_high + (size_t)page * l->k_dim;
    for (uint32_t d = 0; d < l->k_dim; d++) {
        low[d] = INFINITY;
        high[d] = -INFINITY;
    }
    for (uint32_t i = 0; i < l->page_tokens; i++) {
        clb_kv_read_rotated(seq, h, page * l->page_tokens + i, row);
        for (uint32_t d = 0; d < l->k_dim; d++) {
            low[d] = row[d] < low[d] ? row[d] : low[d];
            high[d] = row[d] > high[d] ? row[d] : high[d];
        }
    }
}

bool clb_kv_pick_reserve(clb_kv_seq *seq)
{
    const clb_kv_layout *l = &seq->cache->layout;
    if (!CLB_KV_HAS(seq->strategy, pick_pages))
        return true;
    seq->given_up = seq->gives_up;
    if (!seq->row && !(seq->row = malloc(l->k_dim * sizeof seq->row[0])))
        return false;
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        clb_kv_head *h = &seq->heads[i];
        const uint32_t n = h->n / l->page_tokens;
        if (!grow_tables(seq, h, h->cap_pages))
            return false;
        h->picked = false;
        h->n_minmax = h->n_minmax < n ? h->n_minmax : n;
        for (; (seq->traits.needs & COLIBRI_KV_NEED_PAGE_MINMAX) && h->n_minmax < n; h->n_minmax++)
            add_page(seq, h, h->n_minmax, seq->row);
    }
    return true;
}

void clb_kv_pick_free(clb_kv_head *h)
{
    free(h->k_picked);
    free(h->v_picked);
    free(h->use);
    free(h->k_low);
    free(h->k_high);
}

/* Asks; false if the answer is bad. */
static bool ask(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, clb_kv_head *h, uint32_t n_pages,
                uint32_t n_use, const float *q)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const struct colibri_kv_pages pages = {
        .struct_size = sizeof pages,
        .layer = layer,
        .kv_head = kv_head,
        .n_pages = n_pages,
        .page_tokens = l->page_tokens,
        .n_use = n_use,
        .n_heads = l->n_heads / l->n_kv_heads,
        .head_dim = l->k_dim,
        .q = q,
        .k_min = seq->traits.needs & COLIBRI_KV_NEED_PAGE_MINMAX ? h->k_low : NULL,
        .k_max = seq->traits.needs & COLIBRI_KV_NEED_PAGE_MINMAX ? h->k_high : NULL,
    };
    enum { GUARD = 0xa5 };
    uint32_t n = 0;
    memset(h->use, 0, n_pages);
    h->use[n_pages] = GUARD;
    if (seq->strategy->pick_pages(seq->self, &pages, h->use) != COLIBRI_OK || h->use[n_pages] != GUARD)
        return false;
    for (uint32_t p = 0; p < n_pages; p++) {
        if (h->use[p] > 1)
            return false;
        n += h->use[p];
    }
    return n >= 1 && n <= n_use;
}

uint32_t clb_kv_picks_from(const clb_kv_seq *seq)
{
    return clb_kv_recent_on(seq) ? clb_kv_recent_first_block(seq->cache, seq->position) : UINT32_MAX;
}

void clb_kv_pick(clb_kv_seq *seq, uint32_t layer, const float *q)
{
    const clb_kv_layout *l = &seq->cache->layout;
    if (!clb_kv_picks(seq) || seq->pick_failed)
        return;
    for (uint32_t head = 0; head < l->n_kv_heads; head++) {
        clb_kv_head *h = &seq->heads[(size_t)layer * l->n_kv_heads + head];
        const uint32_t n_pages = h->n / l->page_tokens;
        const uint32_t n_use = seq->budget / l->page_tokens ? seq->budget / l->page_tokens : 1;
        if (n_pages <= n_use)
            continue;
        const uint64_t t0 = clb_now_ns();
        const bool answered = ask(seq, layer, head, h, n_pages, n_use, q + head * clb_kv_query_floats(seq));
        seq->pick_slow = seq->pick_slow || clb_now_ns() - t0 > CLB_KV_CALL_MOST_NS;
        if (!answered) {
            seq->pick_failed = true; /* reported when the pass ends: this is no place to call anybody */
            while (head-- > 0)
                seq->heads[(size_t)layer * l->n_kv_heads + head].picked = false;
            return;
        }
        const uint32_t always = clb_kv_picks_from(seq);
        uint32_t n = 0;
        for (uint32_t p = 0; p < h->n_pages; p++)
            if (p >= n_pages || p >= always || h->use[p]) {
                h->k_picked[n] = h->k_pages[p];
                h->v_picked[n++] = h->v_pages[p];
            }
        h->n_skipped = (h->n_pages - n) * l->page_tokens;
        h->picked = true;
    }
}
