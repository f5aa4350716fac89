/* What the files of core/kv share. */
#ifndef CLB_KV_INTERNAL_H
#define CLB_KV_INTERNAL_H

#include "kv/kv.h"
#include "kv/pages.h"
#include "kv/sizes.h"

typedef struct clb_kv_index clb_kv_index;
typedef struct clb_kv_block clb_kv_block;

struct clb_kv_cache {
    clb_kv_layout layout; /* evictable: own copy, never NULL */
    const clb_log *log;
    clb_kv_pool pool;
    size_t k_row, v_row; /* bytes of a position's row */
    clb_kv_pool recent;  /* pages of F16 copies; page_bytes 0: no recent window */
    size_t k_recent_row, v_recent_row;
    uint32_t n_seqs;
    uint32_t n_made; /* sequences ever */
    float *rank_cs;  /* [n_ranks][n_rot]: cosines and sines of compacted positions */
    uint32_t n_ranks;
    uint64_t n_copies; /* of shared pages */
    clb_kv_index *index; /* prefix.c: blocks that may be shared; NULL: none are */
};

/* One (layer, KV head) of one sequence. */
typedef struct clb_kv_head {
    uint32_t n; /* positions kept, without the rows of an open pass */
    uint32_t n_pages, cap_pages;
    const void **k_pages, **v_pages; /* [cap_pages] each */
    /* F16 copies of the kept positions [recent_first, n) and of the rows of an open pass, see recent.c; [cap_recent] pages
     * each, NULL: none. Never shared with another sequence. */
    uint32_t n_recent, cap_recent, recent_first;
    const void **k_recent, **v_recent;
    /* Per row, only where the strategy needs it (else NULL), room for cap rows. Probabilities exist twice: an open pass
     * builds [!cur] from [cur], so that abort costs nothing and each sum is the same chain of additions in whatever
     * chunks the prompt came. */
    uint32_t cap;
    uint32_t *positions;
    float *sum[2], *max[2];
    float *q_ring;   /* [window_w][query heads of it][k_dim]: see queries.c; or NULL */
    /* Page selection (pick.c), else NULL: the chosen pages of the open pass; smallest and largest keys of the first n_minmax
     * pages. Room for cap_picked pages. */
    const void **k_picked, **v_picked;
    uint8_t *use;
    float *k_low, *k_high; /* [cap_picked][k_dim] */
    uint32_t cap_picked, n_minmax;
    uint32_t n_skipped; /* positions in pages that were not chosen */
    bool picked;
    uint32_t next_n; /* entries of [!cur] that this pass has set; 0: none observed */
    uint8_t cur;
} clb_kv_head;

#define CLB_KV_HAS(s, member) (COLIBRI_HAS(s, member) && (s)->member)

/* Stands behind arrays of 32-bit elements that a strategy fills: no number that it would write by mistake. */
#define CLB_KV_GUARD UINT32_C(0xa5b6c7d8)

/* fork.c copies it: a new pointer needs a line there. */
struct clb_kv_seq {
    clb_kv_cache *cache;
    clb_kv_seq_options options; /* as given, for forks */
    uint32_t number;
    const struct colibri_kv_strategy *strategy;
    void *self;
    void (*misbehaved)(void *ctx, const char *strategy, const char *what);
    void *misbehaved_ctx;
    uint32_t faults_reported; /* bit per kind */
    uint32_t ctx, budget;
    clb_kv_traits traits;
    clb_kv_demand demand; /* what it was made for */
    const struct clb_kv_future *future;
    uint32_t max_rows; /* of a pass; 0: unknown */
    uint32_t n_protected_always, n_protected; /* first positions that stay: by the options, now */
    uint64_t salt;     /* of its prefixes */
    uint32_t n_system; /* tokens of the system prompt, 0: unknown */
    /* The strategy answered badly too often and is not asked again. Budgets follow when they are made the next time (given_up),
     * so that a selection under way keeps to the room that was reserved for it. */
    bool gives_up, given_up;
    bool lost; /* it took too long to follow what is added and dropped, and is not told any more */
    /* Queries of the positions [max(q_first, q_top - window_w), position) are in the heads' rings. */
    uint32_t q_first, q_top;
    uint32_t position; /* of the next token */
    uint32_t n_prompt;
    uint32_t steps;      /* decode rows since the last AT_STEPS */
    uint32_t pass_rows;  /* of the open pass; 0: none */
    /* Rows from here on were computed while looking at chosen pages only (pick.c), or after such rows: their bytes are not
     * those of full attention. UINT32_MAX: none. */
    uint32_t n_exact;
    bool shares;         /* some of its pages may have other holders */
    uint32_t n_reserved; /* pages that the open pass may still need for copies */
    /* Its first n_blocks full blocks are known as blocks[], which it holds. */
    clb_kv_block **blocks;
    uint32_t n_blocks, cap_blocks;
    uint64_t n_pages, evicted, selections, bad_answers;
    uint64_t n_recent;   /* pages of F16 copies */
    clb_kv_head *heads;  /* [n_layers][n_kv_heads] */
    uint32_t *budgets;   /* same shape: now, see clb_kv_budgets */
    /* Scratch of a selection, for the longest head. */
    uint32_t scratch_cap;
    uint8_t *keep;       /* [scratch_cap + 1]: what a strategy writes to has a guard behind it */
    uint32_t *kept;      /* [scratch_cap] */
    float *score;        /* [scratch_cap + 1], of each KV head of a layer if the strategy has allot */
    uint32_t *into;      /* [scratch_cap + 1], and */
    float *weight;       /* [scratch_cap + 1], and */
    float *merged;       /* [scratch_cap][v_dim], if it merges */
    float *layer_sum, *layer_max; /* [scratch_cap]: over the heads of a layer, for one answer per layer */
    float *cs;                    /* [n_rot] */
    float *row;                   /* [k_dim] */
    bool pick_failed, pick_slow;  /* in this pass */
    struct { /* [n_kv_heads] each, for allot */
        struct clb_kv_reader *readers;
        struct colibri_kv_view *views;
        const float **scores;
        uint32_t *n_keep; /* and a guard */
    } across;
    struct {
        float *q, *mean, *cov;    /* what a view shows */
        float *prob, *future;     /* [scratch_cap], the same */
        float *keys, *scores, *max_sum, *out, *weights, *parts, *query; /* of one attention call */
        size_t stride;
    } last;
};

/* cache.c: pages of a layout; recent.c: those of F16 copies. */
clb_kv_page_shape clb_kv_shape(const clb_kv_layout *layout);
clb_kv_page_shape clb_kv_recent_shape(const clb_kv_layout *layout);

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

/* pass.c: page tables and per-row arrays of one head for n rows; false (0): no memory. */
int clb_kv_reserve_head(clb_kv_seq *seq, uint32_t layer, clb_kv_head *h, uint64_t n);
/* ... scratch memory of a selection among n positions. */
int clb_kv_reserve_scratch(clb_kv_seq *seq, uint64_t n);

/* sizes.c: room that an array for `wanted` positions gets, which has room for `cap` now. */
uint32_t clb_kv_room_rows(const clb_kv_seq *seq, uint32_t cap, uint64_t wanted);
/* It has far too much. */
bool clb_kv_room_shrinks(const clb_kv_seq *seq, uint32_t cap, uint64_t wanted);

/* room.c */
typedef struct clb_kv_room {
    int64_t more;    /* pages that a pass adds to the pool's, at most, counted to the end of clb_kv_end */
    uint64_t copies; /* pages that the selection of clb_kv_begin may take before it gives any back */
} clb_kv_room;
clb_kv_room clb_kv_room_for(const clb_kv_seq *seq, uint32_t n_rows);
/* Pages for n_rows more positions, own ones where rows will be written; reserves what clb_kv_end may need. */
void clb_kv_take_pages(clb_kv_seq *seq, uint32_t n_rows);
void clb_kv_unreserve(clb_kv_seq *seq);
/* Page `page` of a head is its own from here on: a shared one is copied. The room is reserved. */
void clb_kv_own_page(clb_kv_seq *seq, clb_kv_head *h, uint32_t page);

/* prefix.c */
/* Gives up blocks that nobody holds, until `need` pages are free; then what only this sequence holds (NULL: none) is no
 * longer known. False if there was nothing to give up. */
bool clb_kv_make_room(clb_kv_cache *cache, clb_kv_seq *seq, uint64_t need);
/* The sequence holds its first n blocks only. */
void clb_kv_hold_only(clb_kv_seq *seq, uint32_t n);
bool clb_kv_hold_same(clb_kv_seq *seq, const clb_kv_seq *from);
void clb_kv_index_free(clb_kv_cache *cache);
/* The most that the index of a cache with a pool of so many pages takes. */
uint64_t clb_kv_index_bytes(const clb_kv_layout *layout, uint64_t n_pages);

/* rows.c */
/* Row i of a head as floats, as it was written (not turned, see turn_k and turn_v of the layout). */
void clb_kv_read_k(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out);
void clb_kv_read_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out);
/* ... value i from its F16 copy in the recent window, which it has. */
void clb_kv_read_recent_v(const clb_kv_cache *cache, const clb_kv_head *head, uint32_t i, float *out);
/* Puts another value into row i, which is not shared, and into its copy in the recent window, if it has one. */
void clb_kv_change_v(clb_kv_seq *seq, clb_kv_head *head, uint32_t i, const float *v);

/* recent.c: F16 copies of the last positions, where K or V is quantized. */
static inline bool clb_kv_recent_on(const clb_kv_seq *seq)
{
    return seq->cache->recent.page_bytes && seq->traits.positions != COLIBRI_KV_POS_COMPACT;
}
int clb_kv_recent_pool_open(clb_kv_cache *cache, uint64_t max_bytes, clb_error *err);
/* Pages of copies that a pass of n_rows wants beyond what the sequence has; what will be evicted for it is taken off. */
uint64_t clb_kv_recent_wanted(const clb_kv_seq *seq, uint32_t n_rows);
/* Page tables for them; false: no memory. */
bool clb_kv_recent_reserve(clb_kv_seq *seq, uint32_t n_rows);
/* A pass begins (after evictions): places for its rows. / It is over: copies that no coming query reads go. */
void clb_kv_recent_open(clb_kv_seq *seq, uint32_t n_rows);
void clb_kv_recent_close(clb_kv_seq *seq);
/* Kept positions >= n leave a head. */
void clb_kv_recent_shrink(clb_kv_seq *seq, clb_kv_head *head, uint32_t n);
void clb_kv_recent_free(clb_kv_seq *seq, clb_kv_head *head);
/* Before seq->kept[0..n_kept) of a head move together (its n and positions are those of before). */
void clb_kv_recent_compact(clb_kv_seq *seq, uint32_t layer, clb_kv_head *head, uint32_t n_kept);
/* A sequence cut to n positions, nothing evicted, would still have the copies that its next query reads. */
bool clb_kv_recent_can_cut(const clb_kv_seq *seq, uint32_t n);
/* For forks: copies of their own for `to`, whose heads have the positions of `from` and no copies yet (k_recent, v_recent NULL;
 * n_recent, cap_recent and the sequence's n_recent 0). NOMEM. */
int clb_kv_recent_copy(clb_kv_seq *to, const clb_kv_seq *from, clb_error *err);

/* queries.c */
#define CLB_KV_NEEDS_QUERIES (COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS | COLIBRI_KV_NEED_PROB_LAST_W)
size_t clb_kv_query_floats(const clb_kv_seq *seq); /* of one position in one KV head */
/* The last how many queries are in the rings. */
uint32_t clb_kv_queries_known(const clb_kv_seq *seq);
/* [n_last][n_heads][k_dim], from KV head `head` on. */
void clb_kv_last_queries(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_heads, uint32_t n_last,
                         float *out);
void clb_kv_query_stats(const float *q, uint32_t n_last, uint32_t n_heads, uint32_t dim, float *mean, float *cov);
/* Adds what the last queries of this KV head give to its kept positions. */
void clb_kv_last_probs(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_last, float *out);
void clb_kv_angles(const clb_kv_layout *l, uint32_t position, float *cs);
void clb_kv_rotate(const clb_kv_layout *l, float *x, const float *cs);
/* Rotations of compacted positions 0 .. n - 1 are at hand; `most` of them will ever be wanted by who asks. */
int clb_kv_ranks_reserve(clb_kv_cache *cache, uint32_t n, uint32_t most, clb_error *err);
const float *clb_kv_rank_cs(const clb_kv_cache *cache, uint32_t rank);
/* Key i as attention sees it / before rotation. */
void clb_kv_read_rotated(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out);
void clb_kv_read_unrotated(const clb_kv_seq *seq, const clb_kv_head *h, uint32_t i, float *out);
/* For selections among n positions. */
bool clb_kv_queries_reserve(clb_kv_seq *seq, uint32_t n);
void clb_kv_queries_free(clb_kv_seq *seq);

/* observe.c: sum[i] += the probability of score s[i]. */
void clb_kv_add_probs(float *restrict sum, const float *restrict s, float max, float total, uint32_t n);
/* observe.c: entries [0, n) of the pass's copy exist from here on; those of this pass's own rows start at 0. */
void clb_kv_extend(float *next, const float *now, uint32_t from, uint32_t n_before, uint32_t n);

/* compact.c: rows seq->kept[0..n_kept) of a head move together, pages behind them go back; tells the strategy. */
void clb_kv_compact(clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_kept);

/* strategy.c: seq has its traits, ctx and budget; makes its demand and its instance. */
int clb_kv_strategy_create(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err);
/* ... its demand is known: the instance alone. */
int clb_kv_instance_create(clb_kv_seq *seq, const clb_kv_seq_options *o, clb_error *err);
/* What an instance is made with, for as long as it is needed. max_positions: as in struct colibri_kv_config. NOMEM */
typedef struct clb_kv_probe {
    struct colibri_kv_config config;
    double *defaults;
    float *no_freq;
} clb_kv_probe;
int clb_kv_probe_open(const clb_kv_layout *l, const clb_kv_seq_options *o, uint32_t max_positions, clb_kv_probe *out,
                      clb_error *err);
void clb_kv_probe_close(clb_kv_probe *probe);
/* The largest budget that a new instance gives to a head, at least that of the options. */
int clb_kv_probe_budgets(const clb_kv_layout *l, const clb_kv_seq_options *o, uint32_t max_positions, uint32_t *out,
                         clb_error *err);

/* merge.c: for strategies with merge. seq->keep and seq->kept[0..n_kept) say what stays; all before the rows move but the last.
 */
/* The strategy's answer into seq->into and seq->weight; false if it is bad. */
bool clb_kv_merge_ask(clb_kv_seq *seq, const struct colibri_kv_view *view);
/* Makes seq->merged of it, for the new rows j with seq->into[j] == 1; false if a value comes out that no cache can hold. */
bool clb_kv_merge_plan(clb_kv_seq *seq, const struct colibri_kv_view *view, const clb_kv_head *h, uint32_t n_kept);
void clb_kv_merge_apply(clb_kv_seq *seq, clb_kv_head *h, uint32_t n_kept);

/* budgets.c */
/* The strategy distributes the budget of a layer among its heads when it selects. */
bool clb_kv_allots(const clb_kv_seq *seq);
uint64_t clb_kv_layer_budget(const clb_kv_seq *seq, uint32_t layer);
bool clb_kv_across_reserve(clb_kv_seq *seq);
void clb_kv_across_free(clb_kv_seq *seq);

/* pick.c */
bool clb_kv_picks(const clb_kv_seq *seq);
bool clb_kv_pick_reserve(clb_kv_seq *seq); /* when a pass begins, after its pages were taken */
void clb_kv_pick_free(clb_kv_head *h);

/* evict.c: the host side of a strategy. */

void clb_kv_report_pick(clb_kv_seq *seq);
/* A call that began then is over: true if it took too long, and then the strategy is not asked again. */
bool clb_kv_check_time(clb_kv_seq *seq, uint64_t began_ns);
/* Fills seq->budgets from the strategy, each at least 1, their sum at most that of the configured budget. */
void clb_kv_budgets(clb_kv_seq *seq);
/* True if the next n_rows make (layer, head) give way (AT_OVER_BUDGET; see kv.h on the slack of one page). */
bool clb_kv_overflows(const clb_kv_seq *seq, uint32_t layer, uint32_t head, uint32_t n_rows);
/* Selects down to the budget: wherever the next n_rows overflow, or with n_rows == 0 wherever kept > budget. */
void clb_kv_evict(clb_kv_seq *seq, uint32_t n_rows, uint32_t trigger);

#endif
