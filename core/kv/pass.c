/* A forward pass over a sequence: room for its rows, and what is left of it at its end. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "kv/index.h"

static bool needs(const clb_kv_seq *seq, uint32_t bit)
{
    return clb_kv_seq_needs(seq) & bit;
}

/* realloc of n elements that leaves *p alone on failure. */
static int grow(void *p, size_t n, size_t size)
{
    void *old, *bigger;
    memcpy(&old, p, sizeof old);
    bigger = realloc(old, n * size);
    if (!bigger)
        return 0;
    memcpy(p, &bigger, sizeof bigger);
    return 1;
}

/* Page tables and per-row arrays of one head for n rows, at least what it has. */
int clb_kv_reserve_head(clb_kv_seq *seq, uint32_t layer, clb_kv_head *h, uint64_t n)
{
    const uint64_t pages = clb_kv_pages_for(seq, n);
    const bool shrinks = clb_kv_room_shrinks(seq, h->cap, n) && n >= h->n;
    if (pages > h->cap_pages || (shrinks && h->n_pages <= pages)) {
        const uint32_t cap = (uint32_t)clb_kv_pages_for(seq, clb_kv_room_rows(seq, h->cap, n));
        if (!grow(&h->k_pages, cap, sizeof h->k_pages[0]) || !grow(&h->v_pages, cap, sizeof h->v_pages[0]))
            return 0;
        h->cap_pages = cap;
    }
    if (clb_kv_layer_evicts(seq, layer) && needs(seq, CLB_KV_NEEDS_QUERIES) && !h->q_ring) {
        h->q_ring = malloc(seq->traits.window_w * clb_kv_query_floats(seq) * sizeof h->q_ring[0]);
        if (!h->q_ring)
            return 0;
    }
    if (!clb_kv_layer_evicts(seq, layer) || (n <= h->cap && !shrinks))
        return 1;
    const uint32_t cap = clb_kv_room_rows(seq, h->cap, n);
    if (!grow(&h->positions, cap, sizeof h->positions[0]))
        return 0;
    for (int b = 0; b < 2; b++) {
        if (needs(seq, COLIBRI_KV_NEED_PROB_COLSUM) && !grow(&h->sum[b], cap, sizeof h->sum[b][0]))
            return 0;
        if (needs(seq, COLIBRI_KV_NEED_PROB_MAX) && !grow(&h->max[b], cap, sizeof h->max[b][0]))
            return 0;
    }
    h->cap = cap;
    return 1;
}

int clb_kv_reserve_scratch(clb_kv_seq *seq, uint64_t n)
{
    if (n <= seq->scratch_cap)
        return 1;
    const uint32_t cap = clb_kv_room_rows(seq, seq->scratch_cap, n);
    const bool one_answer = !seq->traits.per_head;
    const clb_kv_layout *l = &seq->cache->layout;
    const uint32_t n_kv_heads = l->n_kv_heads;
    const size_t guarded = (size_t)cap + 1, scored = CLB_KV_HAS(seq->strategy, allot) ? n_kv_heads : 1;
    if (!grow(&seq->keep, guarded, 1) || !grow(&seq->kept, cap, sizeof seq->kept[0]) ||
        (!seq->strategy->select && !grow(&seq->score, scored * guarded, sizeof seq->score[0])) ||
        (CLB_KV_HAS(seq->strategy, merge) && (!grow(&seq->into, guarded, sizeof seq->into[0]) ||
                                              !grow(&seq->weight, guarded, sizeof seq->weight[0]) ||
                                              !grow(&seq->merged, (size_t)cap * l->v_dim, sizeof seq->merged[0]))) ||
        (one_answer && needs(seq, COLIBRI_KV_NEED_PROB_COLSUM) && !grow(&seq->layer_sum, cap, sizeof(float))) ||
        (one_answer && needs(seq, COLIBRI_KV_NEED_PROB_MAX) && !grow(&seq->layer_max, cap, sizeof(float))) ||
        !clb_kv_queries_reserve(seq, cap) || !clb_kv_across_reserve(seq)) {
        seq->scratch_cap = 0; /* some of it may be gone: the next pass makes all of it again */
        return 0;
    }
    seq->scratch_cap = cap;
    return 1;
}

static int context_full(const clb_kv_seq *seq, uint32_t kept, uint32_t n_rows, clb_error *err)
{
    if (!seq->traits.evicts)
        return clb_fail(err, COLIBRI_E_LIMIT,
                        "the context is full: it holds %u tokens, and %u more exceed its limit of %u; raise --ctx, or "
                        "choose a KV strategy that evicts",
                        kept, n_rows, seq->ctx);
    return clb_fail(err, COLIBRI_E_LIMIT,
                    "the context is full: a layer that KV strategy %s does not shorten at this point holds %u tokens, "
                    "and %u more exceed the limit of %u; raise --ctx",
                    seq->strategy->name, kept, n_rows, seq->ctx);
}

static int find_room(clb_kv_seq *seq, uint32_t n_rows, clb_error *err)
{
    const clb_kv_pool *pool = &seq->cache->pool;
    for (;;) {
        const clb_kv_room r = clb_kv_room_for(seq, n_rows);
        const uint64_t need = r.more > (int64_t)r.copies ? (uint64_t)r.more : r.copies;
        if (need <= clb_kv_pool_available(pool))
            return COLIBRI_OK;
        if (clb_kv_make_room(seq->cache, seq, need)) /* then less may be shared, too */
            continue;
        char size[24], all[24];
        return clb_fail(err, COLIBRI_E_NOMEM,
                        "the KV cache is full: %u more rows need %llu pages (%s), %u of its %u pages (%s) are free; "
                        "lower ctx, kv-budget or the number of sequences, or raise max-memory",
                        n_rows, (unsigned long long)need, clb_human_bytes(need * pool->page_bytes, size),
                        clb_kv_pool_available(pool), pool->n_pages, clb_human_bytes(pool->n_pages * pool->page_bytes, all));
    }
}

static int find_recent_room(clb_kv_seq *seq, uint32_t n_rows, clb_error *err)
{
    const clb_kv_pool *pool = &seq->cache->recent;
    const uint64_t need = clb_kv_recent_wanted(seq, n_rows);
    if (need > clb_kv_pool_available(pool)) {
        char size[24], all[24];
        return clb_fail(err, COLIBRI_E_NOMEM,
                        "no room for the recent window (--kv-recent): %u more rows need %llu pages (%s), %u of %u pages "
                        "(%s) are free",
                        n_rows, (unsigned long long)need, clb_human_bytes(need * pool->page_bytes, size),
                        clb_kv_pool_available(pool), pool->n_pages,
                        clb_human_bytes(pool->n_pages * pool->page_bytes, all));
    }
    return clb_kv_recent_reserve(seq, n_rows) ? COLIBRI_OK : CLB_NOMEM(err, "tables of the KV cache");
}

int clb_kv_begin(clb_kv_seq *seq, uint32_t n_rows, clb_error *err)
{
    clb_kv_cache *cache = seq->cache;
    const uint32_t n_kv_heads = cache->layout.n_kv_heads;
    uint64_t longest = 0;
    if (seq->pass_rows || n_rows == 0)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: a pass of %u rows while one of %u is open", n_rows,
                        seq->pass_rows);
    if (seq->max_rows && n_rows > seq->max_rows)
        return clb_fail(err, COLIBRI_E_INTERNAL, "KV cache: a pass of %u rows, more than %u", n_rows, seq->max_rows);
    if (n_rows > UINT32_MAX - 1 - seq->position)
        return clb_fail(err, COLIBRI_E_LIMIT, "the sequence has %u tokens: positions end there", seq->position);

    /* Everything that can fail comes before the first change that shows. */
    clb_kv_recent_slide(seq);
    clb_kv_budgets(seq);
    for (uint32_t layer = 0; layer < cache->layout.n_layers; layer++)
        for (uint32_t head = 0; head < n_kv_heads; head++) {
            const size_t i = (size_t)layer * n_kv_heads + head;
            const uint32_t n = seq->heads[i].n;
            const bool evict = clb_kv_overflows(seq, layer, head, n_rows), allots = evict && clb_kv_allots(seq);
            /* Who gets how much of a shared budget is not known yet: each head at most what it has. */
            const uint64_t after = (uint64_t)(evict && !allots ? seq->budgets[i] : n) + n_rows;
            const bool bounded =
                clb_kv_layer_evicts(seq, layer) && (seq->traits.triggers & COLIBRI_KV_AT_OVER_BUDGET);
            if (!bounded && after > seq->ctx)
                return context_full(seq, n, n_rows, err);
            longest = after > longest ? after : longest;
            longest = n > longest ? n : longest;
            if (!clb_kv_reserve_head(seq, layer, &seq->heads[i], after > n ? after : n))
                return CLB_NOMEM(err, "tables of the KV cache");
        }
    CLB_TRY(find_room(seq, n_rows, err));
    CLB_TRY(find_recent_room(seq, n_rows, err));
    if (seq->traits.evicts && !clb_kv_reserve_scratch(seq, longest))
        return CLB_NOMEM(err, "tables of the KV cache");
    if (clb_kv_seq_compact(seq))
        CLB_TRY(clb_kv_ranks_reserve(cache, (uint32_t)longest, seq->demand.longest, err));
    if (!clb_kv_pick_reserve(seq))
        return CLB_NOMEM(err, "tables of the KV cache");

    clb_kv_evict(seq, n_rows, COLIBRI_KV_AT_OVER_BUDGET);
    clb_kv_take_pages(seq, n_rows);
    clb_kv_recent_open(seq, n_rows);
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++)
        seq->heads[i].next_n = 0;
    seq->pass_rows = n_rows;
    if (seq->q_top < seq->position + n_rows)
        seq->q_top = seq->position + n_rows;
    return COLIBRI_OK;
}

/* Makes the pass's first n_rows rows of one head permanent. */
static void append(clb_kv_seq *seq, uint32_t layer, clb_kv_head *h, uint32_t n_rows)
{
    const uint32_t n = h->n + n_rows;
    if (clb_kv_layer_evicts(seq, layer)) {
        for (uint32_t i = 0; i < n_rows; i++)
            h->positions[h->n + i] = seq->position + i;
        if (h->next_n) {
            const uint32_t from = h->next_n < n ? h->next_n : n;
            if (h->sum[0])
                clb_kv_extend(h->sum[!h->cur], h->sum[h->cur], from, h->n, n);
            if (h->max[0])
                clb_kv_extend(h->max[!h->cur], h->max[h->cur], from, h->n, n);
            h->cur = !h->cur;
        } else {
            if (h->sum[0])
                clb_kv_extend(h->sum[h->cur], NULL, h->n, h->n, n);
            if (h->max[0])
                clb_kv_extend(h->max[h->cur], NULL, h->n, h->n, n);
        }
    }
    h->next_n = 0;
    h->n = n;
    h->picked = false;
    clb_kv_head_shrink(seq, h, n);
}

void clb_kv_end(clb_kv_seq *seq, uint32_t n_rows, enum colibri_phase phase, bool prefill_done)
{
    const struct colibri_kv_strategy *s = seq->strategy;
    const uint32_t n_kv_heads = seq->cache->layout.n_kv_heads;
    uint32_t trigger = 0;
    assert(n_rows <= seq->pass_rows);
    n_rows = n_rows < seq->pass_rows ? n_rows : seq->pass_rows;
    for (uint32_t layer = 0; layer < seq->cache->layout.n_layers; layer++)
        for (uint32_t head = 0; head < n_kv_heads; head++) {
            clb_kv_head *const h = &seq->heads[(size_t)layer * n_kv_heads + head];
            if (h->picked && n_rows && seq->n_exact > seq->position)
                seq->n_exact = seq->position;
            append(seq, layer, h, n_rows);
            if (!s->on_append || seq->lost)
                continue;
            const uint64_t began = clb_now_ns();
            s->on_append(seq->self, layer, head, n_rows);
            seq->lost = clb_kv_check_time(seq, began);
        }
    seq->position += n_rows;
    seq->pass_rows = 0;
    clb_kv_unreserve(seq);
    clb_kv_report_pick(seq);
    if (phase == COLIBRI_PHASE_PREFILL) {
        seq->n_prompt = seq->position;
        trigger = seq->traits.triggers & COLIBRI_KV_AT_CHUNK;
    } else if (seq->traits.triggers & COLIBRI_KV_AT_STEPS) {
        seq->steps += n_rows;
        if (seq->steps >= seq->traits.every_steps) {
            seq->steps = 0;
            trigger = COLIBRI_KV_AT_STEPS;
        }
    }
    if (prefill_done && (seq->traits.triggers & COLIBRI_KV_AT_PREFILL_END))
        trigger = COLIBRI_KV_AT_PREFILL_END;
    if (trigger && seq->traits.evicts) {
        clb_kv_budgets(seq);
        clb_kv_evict(seq, 0, trigger);
    }
    clb_kv_recent_close(seq);
    clb_kv_pool_trim(&seq->cache->pool);
}

void clb_kv_abort(clb_kv_seq *seq)
{
    for (uint32_t i = 0; i < clb_kv_n_heads_all(seq); i++) {
        seq->heads[i].next_n = 0;
        seq->heads[i].picked = false;
        seq->pick_failed = false;
        clb_kv_head_shrink(seq, &seq->heads[i], seq->heads[i].n);
    }
    clb_kv_recent_close(seq);
    clb_kv_pool_trim(&seq->cache->pool);
    clb_kv_unreserve(seq);
    seq->pass_rows = 0;
}
