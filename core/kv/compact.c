/* After a selection: the survivors move together, and whole pages go back. */
#include <string.h>

#include "base/clock.h"
#include "kv/internal.h"

/* Moves rows kept[0..n_kept) of a head to the front. Since kept[j] >= j and both ascend, no row is overwritten before it
 * has moved. Where a whole page moves to a page boundary (a window that slides by a page) the pages change places
 * instead: the one in front is dead by then. */
static void move_rows(clb_kv_seq *seq, clb_kv_head *h, const uint32_t *kept, uint32_t n_kept)
{
    const clb_kv_layout *l = &seq->cache->layout;
    const uint32_t p = l->page_tokens;
    const size_t k_row = seq->cache->k_row, v_row = seq->cache->v_row;
    for (uint32_t j = 0, run; j < n_kept; j += run) {
        const uint32_t from = kept[j];
        const uint32_t room = p - (from % p > j % p ? from % p : j % p); /* to the end of either page */
        for (run = 1; run < room && j + run < n_kept && kept[j + run] == from + run;)
            run++;
        if (from == j)
            continue;
        if (run == p) {
            const void *k = h->k_pages[j / p], *v = h->v_pages[j / p];
            h->k_pages[j / p] = h->k_pages[from / p];
            h->v_pages[j / p] = h->v_pages[from / p];
            h->k_pages[from / p] = k;
            h->v_pages[from / p] = v;
            continue;
        }
        clb_kv_own_page(seq, h, j / p); /* before the source is looked up: it may be the same page */
        uint8_t *k_to = (uint8_t *)(uintptr_t)h->k_pages[j / p], *v_to = (uint8_t *)(uintptr_t)h->v_pages[j / p];
        const uint8_t *k_from = h->k_pages[from / p], *v_from = h->v_pages[from / p];
        memmove(k_to + j % p * k_row, k_from + from % p * k_row, run * k_row);
        memmove(v_to + j % p * v_row, v_from + from % p * v_row, run * v_row);
    }
}

void clb_kv_compact(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_kept)
{
    clb_kv_head *h = &seq->heads[(size_t)layer * seq->cache->layout.n_kv_heads + head];
    float *sum = h->sum[h->cur], *max = h->max[h->cur];
    clb_kv_hold_only(seq, 0); /* what it holds is no prefix any more */
    clb_kv_recent_compact(seq, layer, h, n_kept);
    move_rows(seq, h, seq->kept, n_kept);
    for (uint32_t j = 0; j < n_kept; j++) {
        const uint32_t i = seq->kept[j];
        h->positions[j] = h->positions[i];
        if (sum)
            sum[j] = sum[i];
        if (max)
            max[j] = max[i];
    }
    seq->evicted += h->n - n_kept;
    h->n = n_kept;
    clb_kv_head_shrink(seq, h, n_kept);
    if (!seq->strategy->on_evict || seq->lost)
        return;
    const uint64_t began = clb_now_ns();
    seq->strategy->on_evict(seq->self, layer, head, seq->kept, n_kept);
    seq->lost = clb_kv_check_time(seq, began);
}
