/* Dropped positions that live on in the values of kept ones. */
#include <math.h>
#include <string.h>

#include "colibri/numerics.h"
#include "kv/internal.h"

bool clb_kv_merge_ask(clb_kv_seq *seq, const struct colibri_kv_view *view)
{
    const uint32_t n = view->n;
    for (uint32_t i = 0; i < n; i++) {
        seq->into[i] = UINT32_MAX;
        seq->weight[i] = 0;
    }
    seq->into[n] = CLB_KV_GUARD;
    seq->weight[n] = colibri_bits_f32(CLB_KV_GUARD);
    if (seq->strategy->merge(seq->self, view, seq->keep, seq->into, seq->weight) != COLIBRI_OK ||
        seq->into[n] != CLB_KV_GUARD || colibri_f32_bits(seq->weight[n]) != CLB_KV_GUARD)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!seq->keep[i] && seq->into[i] != UINT32_MAX &&
            (seq->into[i] >= n || !seq->keep[seq->into[i]] || !isfinite(seq->weight[i])))
            return false;
    return true;
}

/* Value i as the next query reads it: what it reads from an F16 copy must not lose digits to the quantized page. */
static void read_value(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t recent_begin, uint32_t i, float *out)
{
    if (i >= recent_begin)
        clb_kv_read_recent_v(seq->cache, h, i, out);
    else
        clb_kv_read_v(seq->cache, h, i, out);
}

bool clb_kv_merge_plan(clb_kv_seq *seq, const struct colibri_kv_view *view, const clb_kv_head *h, uint32_t n_kept)
{
    const uint32_t n = view->n, dim = seq->cache->layout.v_dim;
    const bool lossy = clb_kv_recent_on(seq) && clb_kv_type_quantized(seq->cache->layout.v_type);
    const uint32_t recent = lossy ? clb_kv_recent_begin(seq, view->layer, view->kv_head, 0) : UINT32_MAX;
    float *const row = seq->merged + (size_t)n_kept * dim; /* n_kept < n: there is room behind the results */
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++) /* from here on keep has no more use as flags: it says who got something */
        if (seq->keep[i])
            read_value(seq, h, recent, i, seq->merged + (size_t)rank++ * dim);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t to = seq->into[i];
        if (seq->keep[i] || to == UINT32_MAX)
            continue;
        uint32_t at = 0, end = n_kept; /* the new index of `to` */
        while (seq->kept[at] != to) {
            const uint32_t mid = at + (end - at) / 2;
            if (seq->kept[mid] <= to)
                at = mid;
            else
                end = mid;
        }
        read_value(seq, h, recent, i, row);
        for (uint32_t d = 0; d < dim; d++)
            seq->merged[(size_t)at * dim + d] += seq->weight[i] * row[d];
        seq->keep[to] = 2;
    }
    rank = 0;
    for (uint32_t i = 0; i < n; i++)
        if (seq->keep[i])
            seq->into[rank++] = seq->keep[i] == 2;
    for (uint32_t j = 0; j < n_kept; j++)
        for (uint32_t d = 0; seq->into[j] && d < dim; d++) /* what no type of the cache can hold, as little as a NaN */
            if (!(fabsf(seq->merged[(size_t)j * dim + d]) <= 65504.0f))
                return false;
    return true;
}

void clb_kv_merge_apply(clb_kv_seq *seq, clb_kv_head *h, uint32_t n_kept)
{
    const uint32_t dim = seq->cache->layout.v_dim;
    for (uint32_t j = 0; j < n_kept; j++)
        if (seq->into[j]) {
            clb_kv_own_page(seq, h, j / seq->cache->layout.page_tokens);
            clb_kv_change_v(seq, h, j, seq->merged + (size_t)j * dim);
        }
}
