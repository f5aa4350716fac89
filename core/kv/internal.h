/* What the files of core/kv share. */
#ifndef CLB_KV_INTERNAL_H
#define CLB_KV_INTERNAL_H

#include "kv/kv.h"
#include "kv/pages.h"

struct clb_kv_cache {
    clb_kv_layout layout; /* evictable: own copy, never NULL */
    const clb_log *log;
    clb_kv_pool pool;
    size_t v_offset;     /* of V in a page */
    size_t k_row, v_row; /* bytes of a position's row */
    uint32_t n_seqs;
    uint32_t n_made; /* sequences ever */
};

/* One (layer, KV head) of one sequence. */
typedef struct clb_kv_head {
    uint32_t n; /* positions kept, without the rows of an open pass */
    uint32_t n_pages, cap_pages;
    const void **k_pages, **v_pages; /* [cap_pages] each */
    /* Per row, only where the strategy needs it (else NULL), room for cap rows. Probabilities exist twice: an open pass
     * builds [!cur] from [cur], so that abort costs nothing and each sum is the same chain of additions in whatever
     * chunks the prompt came. */
    uint32_t cap;
    uint32_t *positions;
    float *sum[2], *max[2];
    uint32_t next_n; /* entries of [!cur] that this pass has set; 0: none observed */
    uint8_t cur;
} clb_kv_head;

#define CLB_KV_HAS(s, member) (COLIBRI_HAS(s, member) && (s)->member)

struct clb_kv_seq {
    clb_kv_cache *cache;
    uint32_t number;
    const struct colibri_kv_strategy *strategy;
    void *self;
    void (*misbehaved)(void *ctx, const char *strategy, const char *what);
    void *misbehaved_ctx;
    uint32_t faults_reported; /* bit per kind */
    uint32_t ctx, budget;
    clb_kv_traits traits;
    const struct clb_kv_future *future;
    uint32_t max_rows; /* of a pass; 0: unknown */
    uint32_t n_protected_always, n_protected; /* first positions that stay: by the options, now */
    uint32_t n_system; /* tokens of the system prompt, 0: unknown */
    bool given_up;     /* the strategy answered badly too often and is not asked again */
    /* Queries of the positions [max(q_first, q_top - window_w), position) are in the heads' rings. */
    uint32_t q_first, q_top;
    uint32_t position; /* of the next token */
    uint32_t n_prompt;
    uint32_t steps;      /* decode rows since the last AT_STEPS */
    uint32_t pass_rows;  /* of the open pass; 0: none */
    uint64_t n_pages, evicted, selections, bad_answers;
    clb_kv_head *heads;  /* [n_layers][n_kv_heads] */
    uint32_t *budgets;   /* same shape: now, see clb_kv_budgets */
    /* Scratch of a selection, for the longest head. */
    uint32_t scratch_cap;
    uint8_t *keep;       /* [scratch_cap + 1]: the last is a guard */
    uint32_t *kept;      /* [scratch_cap] */
    float *score;        /* [scratch_cap] */
    float *layer_sum, *layer_max; /* [scratch_cap]: over the heads of a layer, for one answer per layer */
};

static inline uint32_t clb_kv_n_heads_all(const clb_kv_seq *seq)
{
    return seq->cache->layout.n_layers * seq->cache->layout.n_kv_heads;
}

static inline bool clb_kv_layer_evicts(const clb_kv_seq *seq, uint32_t layer)
{
    return seq->traits.evicts && seq->cache->layout.evictable[layer];
}

static inline uint64_t clb_kv_pages_for(const clb_kv_seq *seq, uint64_t n)
{
    return (n + seq->cache->layout.page_tokens - 1) / seq->cache->layout.page_tokens;
}

/* Gives back the pages of a head beyond those of its first n positions. */
void clb_kv_head_shrink(clb_kv_seq *seq, clb_kv_head *head, uint32_t n);

/* rows.c */
/* Row i of a head as floats, as it was written (not turned, see turn_k and turn_v of the layout). */
void clb_kv_read_k(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out);
void clb_kv_read_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out);

/* observe.c: entries [0, n) of the pass's copy exist from here on; those of this pass's own rows start at 0. */
void clb_kv_extend(float *next, const float *now, uint32_t from, uint32_t n_before, uint32_t n);

/* compact.c: rows seq->kept[0..n_kept) of a head move together, pages behind them go back; tells the strategy. */
void clb_kv_compact(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_kept);

/* strategy.c: seq has its traits, ctx and budget. */
int clb_kv_strategy_create(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err);

/* evict.c: the host side of a strategy. */

/* Fills seq->budgets from the strategy, each at least 1, their sum at most that of the configured budget. */
void clb_kv_budgets(clb_kv_seq *seq);
/* True if the next n_rows make (layer, head) give way (AT_OVER_BUDGET; see kv.h on the slack of one page). */
bool clb_kv_overflows(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_rows);
/* Selects down to the budget: wherever the next n_rows overflow, or with n_rows == 0 wherever kept > budget. */
void clb_kv_evict(clb_kv_seq *seq, uint32_t n_rows);

#endif
