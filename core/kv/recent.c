/* The recent window: F16 copies of the last positions, for caches that quantize K or V.
 *
 * Every position is written to the quantized pages at once, and to pages of a second pool as F16 (turned where the
 * layout turns). Which positions a query reads from the copies depends on its own position alone (B of kv.h), so logits
 * depend neither on chunks nor on when pages are freed. Copies are dense like everything else: of kept positions from
 * recent_first on, whole pages leave at the front when no coming query reads them. A few more than needed stay, so that
 * the end of a text may be cut (a chat template that writes the last turn differently) without losing the window. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kv/index.h"

#define STEP  16u /* B moves by this much */
#define SPARE 16u /* positions before B(next) that stay, at least */

bool clb_kv_has_recent(const clb_kv_layout *l)
{
    return l->recent && (clb_kv_type_quantized(l->k_type) || clb_kv_type_quantized(l->v_type));
}

/* B of kv.h. */
static uint32_t first_position(const clb_kv_layout *l, uint32_t position)
{
    return position + 1 > l->recent ? (position + 1 - l->recent) / STEP * STEP : 0;
}

static uint32_t spare(uint32_t position)
{
    return position > SPARE ? position - SPARE : 0;
}

clb_kv_page_shape clb_kv_recent_shape(const clb_kv_layout *l)
{
    clb_kv_layout f16 = *l;
    f16.k_type = f16.v_type = COLIBRI_TYPE_F16;
    clb_kv_page_shape s = clb_kv_shape(&f16);
    s.run = 1; /* the window is short, and slides */
    return s;
}

uint64_t clb_kv_recent_bytes(const clb_kv_layout *l, uint64_t n_positions, uint32_t max_rows)
{
    if (!clb_kv_has_recent(l))
        return 0;
    const uint64_t window = (uint64_t)l->recent + STEP - 1 + SPARE + max_rows;
    const uint64_t most = n_positions < window ? n_positions : window;
    const uint64_t begun = n_positions > window; /* the window may begin anywhere in its first page */
    const uint64_t pages = (most + l->page_tokens - 1) / l->page_tokens + begun;
    uint64_t bytes;
    const clb_kv_page_shape shape = clb_kv_recent_shape(l);
    if (__builtin_mul_overflow(pages * (shape.first_bytes + shape.second_bytes), (uint64_t)l->n_layers * l->n_kv_heads,
                               &bytes))
        return UINT64_MAX;
    return bytes;
}

uint64_t clb_kv_sequence_bytes(const clb_kv_layout *l, uint64_t n_positions, uint32_t max_rows)
{
    const uint64_t pages = clb_kv_bytes(l, n_positions), recent = clb_kv_recent_bytes(l, n_positions, max_rows);
    return pages + recent < pages ? UINT64_MAX : pages + recent;
}

int clb_kv_recent_pool_open(clb_kv_cache *cache, uint64_t max_bytes, clb_error *err)
{
    const clb_kv_layout *l = &cache->layout;
    if (!clb_kv_has_recent(l))
        return COLIBRI_OK;
    cache->k_recent_row = clb_kv_row_bytes(COLIBRI_TYPE_F16, l->k_dim);
    cache->v_recent_row = clb_kv_row_bytes(COLIBRI_TYPE_F16, l->v_dim);
    const clb_kv_page_shape shape = clb_kv_recent_shape(l);
    return clb_kv_pool_open(&cache->recent, &shape, max_bytes, err);
}

/* The first kept position that is `position` of the text or later. Positions of the coming rows follow those kept. */
static uint32_t rank_of(const clb_kv_seq *seq, uint32_t layer, const clb_kv_head *h, uint32_t position)
{
    if (position >= seq->position)
        return h->n + (position - seq->position);
    if (!clb_kv_layer_evicts(seq, layer))
        return position < h->n ? position : h->n;
    uint32_t low = 0, high = h->n;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (h->positions[mid] < position)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void clb_kv_recent_rows(const clb_kv_seq *seq, uint32_t i, uint32_t *first, uint32_t *end)
{
    const uint32_t p = seq->position + i, recent = seq->cache->layout.recent;
    *first = 0;
    *end = seq->pass_rows;
    if (!clb_kv_recent_on(seq))
        return;
    /* B is constant over [from, to) */
    const uint32_t from = p + 1 < recent + STEP ? 0 : (p + 1) / STEP * STEP - 1;
    const uint32_t to = p + 1 < recent + STEP ? recent + STEP - 1 : from + STEP;
    *first = from > seq->position ? from - seq->position : 0;
    *end = to - seq->position < seq->pass_rows ? to - seq->position : seq->pass_rows;
}

uint32_t clb_kv_recent_begin(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t i)
{
    const clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + kv_head];
    const uint32_t begin = rank_of(seq, layer, h, first_position(&seq->cache->layout, seq->position + i));
    assert(!h->k_recent || begin >= h->recent_first);
    return begin - (h->picked ? h->n_skipped : 0);
}

static uint64_t pages_for(const clb_kv_seq *seq, const clb_kv_head *h, uint64_t end)
{
    return end > h->recent_first ? clb_kv_pages_for(seq, end - h->recent_first) : 0;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t clb_kv_recent_wanted(const clb_kv_seq *seq, uint32_t n_rows)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads, p = seq->cache->layout.page_tokens;
    int64_t more = 0;
    for (uint32_t layer = 0; clb_kv_recent_on(seq) && layer < seq->cache->layout.n_layers; layer++) {
        uint64_t together = 0; /* copies of heads that share a budget and will be cut down to it */
        for (uint32_t head = 0; head < n_kv_heads; head++) {
            const size_t i = (size_t)layer * n_kv_heads + head;
            const clb_kv_head *h = &seq->heads[i];
            const uint64_t copies = h->n - h->recent_first;
            more -= h->n_recent;
            if (!clb_kv_overflows(seq, layer, head, n_rows))
                more += (int64_t)clb_kv_pages_for(seq, copies + n_rows);
            else if (clb_kv_allots(seq))
                together += copies;
            else
                more += (int64_t)clb_kv_pages_for(seq, less(copies, seq->budgets[i]) + n_rows);
        }
        if (together)
            more +=
                (int64_t)((less(together, clb_kv_layer_budget(seq, layer)) + (uint64_t)n_kv_heads * (n_rows + p - 1)) /
                          p);
    }
    return more > 0 ? (uint64_t)more : 0;
}

static bool reserve(clb_kv_head *h, uint64_t n_pages)
{
    if (n_pages <= h->cap_recent)
        return true;
    const void **k = realloc(h->k_recent, (size_t)n_pages * sizeof *k);
    h->k_recent = k ? k : h->k_recent;
    const void **v = realloc(h->v_recent, (size_t)n_pages * sizeof *v);
    h->v_recent = v ? v : h->v_recent;
    if (!k || !v)
        return false;
    h->cap_recent = (uint32_t)n_pages;
    return true;
}

bool clb_kv_recent_reserve(clb_kv_seq *seq, uint32_t n_rows)
{
    for (uint32_t i = 0; clb_kv_recent_on(seq) && i < clb_kv_n_heads_all(seq); i++) {
        clb_kv_head *h = &seq->heads[i];
        if (!reserve(h, pages_for(seq, h, (uint64_t)h->n + n_rows)))
            return false;
    }
    return true;
}

static void take_pages(clb_kv_seq *seq, clb_kv_head *h, uint64_t end)
{
    clb_kv_cache *cache = seq->cache;
    for (const uint64_t want = pages_for(seq, h, end); h->n_recent < want; h->n_recent++) {
        void *const page = clb_kv_pool_take(&cache->recent, NULL);
        assert(h->n_recent < h->cap_recent);
        h->k_recent[h->n_recent] = page;
        h->v_recent[h->n_recent] = clb_kv_pool_second_of(&cache->recent, page);
        seq->n_recent++;
    }
}

void clb_kv_recent_open(clb_kv_seq *seq, uint32_t n_rows)
{
    for (uint32_t i = 0; clb_kv_recent_on(seq) && i < clb_kv_n_heads_all(seq); i++)
        take_pages(seq, &seq->heads[i], (uint64_t)seq->heads[i].n + n_rows);
}

void clb_kv_recent_shrink(clb_kv_seq *seq, clb_kv_head *h, uint32_t n)
{
    while (h->n_recent > pages_for(seq, h, n)) {
        clb_kv_pool_give(&seq->cache->recent, h->k_recent[--h->n_recent]);
        seq->n_recent--;
    }
    h->recent_first = n < h->recent_first ? n : h->recent_first;
}

/* Whole pages at the front whose copies nobody will read. */
static void slide(clb_kv_seq *seq, uint32_t layer, clb_kv_head *h)
{
    const uint32_t p = seq->cache->layout.page_tokens;
    const uint32_t need = rank_of(seq, layer, h, spare(first_position(&seq->cache->layout, seq->position)));
    const uint32_t n = need > h->recent_first ? (need - h->recent_first) / p : 0;
    for (uint32_t i = 0; i < n; i++)
        clb_kv_pool_give(&seq->cache->recent, h->k_recent[i]);
    if (n == 0)
        return;
    h->n_recent -= n;
    memmove(h->k_recent, h->k_recent + n, h->n_recent * sizeof h->k_recent[0]);
    memmove(h->v_recent, h->v_recent + n, h->n_recent * sizeof h->v_recent[0]);
    h->recent_first += n * p;
    seq->n_recent -= n;
}

void clb_kv_recent_slide(clb_kv_seq *seq)
{
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    for (uint32_t i = 0; clb_kv_recent_on(seq) && i < clb_kv_n_heads_all(seq); i++)
        slide(seq, i / n_kv_heads, &seq->heads[i]);
    if (clb_kv_recent_on(seq))
        clb_kv_pool_trim(&seq->cache->recent);
}

void clb_kv_recent_close(clb_kv_seq *seq)
{
    for (uint32_t i = 0; clb_kv_recent_on(seq) && i < clb_kv_n_heads_all(seq); i++)
        clb_kv_recent_shrink(seq, &seq->heads[i], seq->heads[i].n);
    if (!seq->cache->index || seq->evicted) /* else they may be wanted for blocks (windows.c) */
        clb_kv_recent_slide(seq);
}

void clb_kv_recent_free(clb_kv_seq *seq, clb_kv_head *h)
{
    clb_kv_recent_shrink(seq, h, 0);
    free(h->k_recent);
    free(h->v_recent);
    h->k_recent = h->v_recent = NULL;
    h->cap_recent = 0;
}

static void *row_of(const clb_kv_seq *seq, const void *const *pages, uint32_t i, size_t row)
{
    const uint32_t p = seq->cache->layout.page_tokens;
    return (uint8_t *)(uintptr_t)pages[i / p] + i % p * row;
}

/* Survivors of the window keep their order and move to the front. */
void clb_kv_recent_compact(clb_kv_seq *seq, uint32_t layer, clb_kv_head *h, uint32_t n_kept)
{
    const size_t k_row = seq->cache->k_recent_row, v_row = seq->cache->v_recent_row;
    if (!h->k_recent || h->n_recent == 0)
        return;
    uint32_t from = rank_of(seq, layer, h, spare(first_position(&seq->cache->layout, seq->position)));
    from = from > h->recent_first ? from : h->recent_first;
    uint32_t j = 0;
    while (j < n_kept && seq->kept[j] < from)
        j++;
    const uint32_t first = j;
    for (; j < n_kept; j++) {
        const uint32_t old = seq->kept[j] - h->recent_first, new = j - first; /* new <= old: both ascend */
        if (new == old)
            continue;
        memcpy(row_of(seq, h->k_recent, new, k_row), row_of(seq, h->k_recent, old, k_row), k_row);
        memcpy(row_of(seq, h->v_recent, new, v_row), row_of(seq, h->v_recent, old, v_row), v_row);
    }
    h->recent_first = first;
    while (h->n_recent > pages_for(seq, h, n_kept)) {
        clb_kv_pool_give(&seq->cache->recent, h->k_recent[--h->n_recent]);
        seq->n_recent--;
    }
}

bool clb_kv_recent_can_cut(const clb_kv_seq *seq, uint32_t n)
{
    if (!clb_kv_recent_on(seq) || n == 0)
        return true;
    return seq->heads[0].n_recent && seq->heads[0].recent_first <= first_position(&seq->cache->layout, n);
}

/* ---- for forks and kept prefixes -------------------------------------------------------------------------- */

static int take_for_copies(clb_kv_seq *seq, uint64_t n_pages, clb_error *err)
{
    if (n_pages > clb_kv_pool_available(&seq->cache->recent))
        return clb_fail(err, COLIBRI_E_NOMEM, "the KV cache has no room for the recent window of another sequence");
    return clb_kv_recent_reserve(seq, 0) ? COLIBRI_OK : CLB_NOMEM(err, "tables of the KV cache");
}

int clb_kv_recent_copy(clb_kv_seq *to, const clb_kv_seq *from, clb_error *err)
{
    uint64_t n = 0;
    if (!clb_kv_recent_on(from))
        return COLIBRI_OK;
    for (uint32_t i = 0; i < clb_kv_n_heads_all(from); i++) {
        to->heads[i].recent_first = from->heads[i].recent_first;
        n += pages_for(from, &from->heads[i], from->heads[i].n);
    }
    CLB_TRY(take_for_copies(to, n, err));
    for (uint32_t i = 0; i < clb_kv_n_heads_all(from); i++) {
        clb_kv_head *h = &to->heads[i];
        take_pages(to, h, h->n);
        for (uint32_t p = 0; p < h->n_recent; p++)
            clb_kv_pool_copy(&to->cache->recent, (void *)(uintptr_t)h->k_recent[p], from->heads[i].k_recent[p]);
    }
    return COLIBRI_OK;
}

uint32_t clb_kv_recent_first_block(const clb_kv_cache *cache, uint32_t n)
{
    return first_position(&cache->layout, n) / cache->layout.page_tokens;
}

const void *clb_kv_recent_page(const clb_kv_seq *seq, uint32_t head, uint32_t at)
{
    const clb_kv_head *h = &seq->heads[head];
    const uint64_t p = seq->cache->layout.page_tokens, begin = at * p;
    if (!h->n_recent || h->recent_first % p || begin < h->recent_first || begin + p > h->n)
        return NULL;
    return h->k_recent[at - h->recent_first / p];
}

bool clb_kv_recent_adopt(clb_kv_seq *seq, uint32_t first, uint32_t n, const void *const *pages)
{
    const uint32_t n_heads = clb_kv_n_heads_all(seq);
    for (uint32_t i = 0; i < n_heads; i++)
        if (!reserve(&seq->heads[i], n))
            return false;
    for (uint32_t i = 0; i < n_heads; i++) {
        clb_kv_head *h = &seq->heads[i];
        clb_kv_recent_shrink(seq, h, 0);
        h->recent_first = first * seq->cache->layout.page_tokens;
        for (; h->n_recent < n; h->n_recent++) {
            const void *const page = pages[(size_t)h->n_recent * n_heads + i];
            h->k_recent[h->n_recent] = page;
            h->v_recent[h->n_recent] = clb_kv_pool_second_of(&seq->cache->recent, page);
        }
        seq->n_recent += n;
    }
    return true;
}
