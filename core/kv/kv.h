/* KV cache: pages per (layer, KV head), and the host side of KV strategies.
 *
 * One cache serves all sequences from one bounded pool of pages. A page holds `page_tokens` positions of one
 * (layer, KV head): K as [page_tokens][k_dim], V as [page_tokens][v_dim], in `type`. The kept positions of a
 * (layer, head) are always dense and in position order: kept position i lies in page i / page_tokens. After an
 * eviction the survivors are moved together and whole pages go back to the pool, so that memory is really freed.
 *
 * A forward pass of n new rows of one sequence:
 *   clb_kv_begin(seq, n)       reserves room for n more positions (evicting first if the strategy and budget say so)
 *   per layer: clb_kv_write    for each new row, then attention over clb_kv_view
 *   clb_kv_end(seq, n, phase)  makes them permanent and runs the strategy's triggers; or clb_kv_abort
 *
 * What a strategy that evicts holds, per (layer, KV head) with budget b: when a pass of n rows begins and kept + n
 * would exceed b + page_tokens, it selects down to b (trigger AT_OVER_BUDGET). So between decode steps at most
 * b + page_tokens positions are kept, during a pass of n rows at most b + max(page_tokens, n), and the price of
 * a selection is shared by page_tokens tokens. The other triggers act in clb_kv_end wherever kept > b. Layers that
 * are not evictable, and strategies that lack AT_OVER_BUDGET, are bounded by ctx.
 *
 * Threads: clb_kv_write, clb_kv_observe_q and clb_kv_pick of different rows, clb_kv_keys, and clb_kv_observe of different (layer, KV head) and
 * clb_kv_view_of are [any-thread] between begin and end; everything else is [engine-thread]. */
#ifndef CLB_KV_KV_H
#define CLB_KV_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "colibri/blocks.h"        /* colibri_f16 */
#include "colibri/expert_policy.h" /* enum colibri_phase */
#include "colibri/kernel.h"
#include "colibri/kv_strategy.h"

typedef struct clb_kv_layout {
    uint32_t n_layers;
    uint32_t n_heads, n_kv_heads; /* per layer */
    uint32_t k_dim, v_dim;        /* per head */
    uint32_t k_type, v_type;      /* COLIBRI_TYPE_F16, F32, Q8_0 or Q4_0 */
    uint32_t page_tokens;         /* a multiple of 16 */
    const uint8_t *evictable;     /* [n_layers] or NULL: all */
    const struct colibri_vecops *ops; /* for conversion, rotation and attention; NULL: the scalar reference */
    /* Keys (and with them queries) or values (and with them results) are turned by a Hadamard matrix, so that no single
     * element of a quantized block stands out. For the caller's products: core/ops/hadamard.h. */
    bool turn_k, turn_v;
    /* With a quantized type: how many of the last positions are read as F16 instead (a multiple of 16); 0: none. */
    uint32_t recent;
    uint64_t recent_bytes; /* of these copies, all sequences together (clb_kv_recent_bytes for each); 0: as much as the pages */
    /* Rotation, for strategies that want keys before it or renumbered positions. n_rot == 0: none. */
    uint32_t n_rot;
    bool rope_neox;
    const float *inv_freq; /* [n_rot / 2], borrowed while the cache lives */
    float attention_scale;
} clb_kv_layout;

typedef struct clb_kv_cache clb_kv_cache;
typedef struct clb_kv_seq clb_kv_seq;

const char *clb_kv_type_name(uint32_t type); /* "f16", as the settings spell it */
bool clb_kv_type_quantized(uint32_t type);
/* Bytes of a row of `dim` elements / of one position's key and value in one (layer, head). */
size_t clb_kv_row_bytes(uint32_t type, uint32_t dim);
uint64_t clb_kv_position_bytes(const clb_kv_layout *layout);
/* Bytes of one page / of n positions in all layers and heads (whole pages). */
uint64_t clb_kv_page_bytes(const clb_kv_layout *layout);
uint64_t clb_kv_bytes(const clb_kv_layout *layout, uint64_t n_positions);
/* ... and with the F16 copies of the recent window during passes of max_rows rows: what a sequence takes at most. */
uint64_t clb_kv_sequence_bytes(const clb_kv_layout *layout, uint64_t n_positions, uint32_t max_rows);
/* Whether the layout has a recent window at all / bytes of its copies in clb_kv_sequence_bytes. */
bool clb_kv_has_recent(const clb_kv_layout *layout);
uint64_t clb_kv_recent_bytes(const clb_kv_layout *layout, uint64_t n_positions, uint32_t max_rows);

/* max_bytes bounds the pool (rounded down to whole pages); the copies of a recent window have a pool of their own, which the
 * layout's recent_bytes bounds. Address space is reserved at once, memory is touched page by page. */
int clb_kv_cache_create(const clb_kv_layout *layout, uint64_t max_bytes, const clb_log *log, clb_kv_cache **out,
                        clb_error *err);
void clb_kv_cache_destroy(clb_kv_cache *cache); /* all sequences must be gone */
uint64_t clb_kv_cache_used_bytes(const clb_kv_cache *cache);
uint64_t clb_kv_cache_peak_bytes(const clb_kv_cache *cache);
void clb_kv_cache_reset_peak(clb_kv_cache *cache); /* from here on: the most since now */

/* The user's word on positions: as the strategy declares, or else. */
enum clb_kv_renumber { CLB_KV_AS_DECLARED, CLB_KV_ORIGINAL, CLB_KV_COMPACT };

/* What a chain of wrappers and their child want together, and how it behaves. */
typedef struct clb_kv_traits {
    uint32_t needs, triggers, window_w, every_steps;
    enum colibri_kv_positions positions;
    bool evicts;      /* anywhere; false: keeps all, though it may pick pages */
    bool per_head;
    bool own_budgets; /* budget or allot in the chain: heads differ */
    bool stateful;    /* the innermost follows what is added and dropped */
} clb_kv_traits;
clb_kv_traits clb_kv_traits_of(const struct colibri_kv_strategy *strategy, const struct colibri_kv_child *child,
                               enum clb_kv_renumber positions);

/* A prompt must fit the context: something holds all of it until its end, whatever the budget. */
bool clb_kv_holds_prompts(const clb_kv_layout *layout, const clb_kv_traits *traits);

/* What a plan must reserve for one sequence: clb_kv_bytes(layout, this many positions). Passes have at most max_rows rows;
 * budget as in clb_kv_seq_options. */
uint64_t clb_kv_most_positions(const clb_kv_layout *layout, const clb_kv_traits *traits, uint32_t ctx, uint32_t budget,
                               uint32_t max_rows);

/* A strategy that answers badly this often, or takes this long for one call (of budget: for those of a pass), is not asked
 * again. */
#define CLB_KV_BAD_ANSWERS_MOST 8
#define CLB_KV_CALL_MOST_NS     UINT64_C(2000000000)

typedef struct clb_kv_seq_options {
    const struct colibri_kv_strategy *strategy; /* borrowed, with the params and children, while the sequence lives */
    const double *params;               /* in the strategy's order */
    const struct colibri_kv_child *child; /* of a wrapper; NULL: none */
    enum clb_kv_renumber positions;
    uint32_t n_protected;               /* first positions that always stay */
    const struct clb_kv_future *future; /* for COLIBRI_KV_NEED_FUTURE; NULL: unknown. Borrowed while the sequence lives */
    const struct colibri_host *host;
    uint32_t ctx;                       /* most positions that a strategy that keeps all may hold */
    uint32_t budget;                    /* positions kept per (layer, head); 0: ctx */
    uint64_t seed;
    uint32_t max_rows;                  /* of a pass; 0: unknown */
    /* Called when the strategy answers badly (once per kind of fault). */
    void (*misbehaved)(void *ctx, const char *strategy, const char *what);
    void *misbehaved_ctx;
} clb_kv_seq_options;

/* params may be NULL: the declared defaults. Errors: UNSUPPORTED (positions or needs that this host does not offer),
 * PLUGIN (the strategy's table is unusable), USAGE (the strategy refused: its reason, e.g. a budget too small). */
int clb_kv_seq_create(clb_kv_cache *cache, const clb_kv_seq_options *options, clb_kv_seq **out, clb_error *err);
void clb_kv_seq_destroy(clb_kv_seq *seq);
/* Another sequence with the same tokens, strategy and state; pages are shared until one of them changes. Fails with
 * UNSUPPORTED if the strategy has state and cannot copy it, inside a pass with INTERNAL. `from` only learns that its pages
 * have another holder. (fork.c) */
int clb_kv_seq_fork(clb_kv_seq *from, clb_kv_seq **out, clb_error *err);
/* A fork under another budget or strategy, before the one of `from` has decided anything: `from` has read the first part of a
 * prompt in passes that were not said to hold its end (prefill_done), and had room for all of it. What the end of the prompt
 * triggers happens in the fork at once, so that it is what a sequence under these options would be that has read the same
 * passes, the last of them with prefill_done; if there was one pass, or if none of them was over the budget. Of the options
 * those count that a strategy is chosen with: strategy, params, child, positions, n_protected, future, budget. UNSUPPORTED if
 * something was decided, or if the two are not alike; NOMEM if the pool cannot hold copies of all pages; else as create and
 * fork. (late.c) */
int clb_kv_seq_fork_late(clb_kv_seq *from, const clb_kv_seq_options *options, clb_kv_seq **out, clb_error *err);
/* They record the same while a prompt is read, and keep no state of their own. */
bool clb_kv_traits_alike(const clb_kv_traits *a, const clb_kv_traits *b);
/* From here on the first n tokens (the system prompt, with what precedes it) are never dropped, if that is more than the options
 * said; LIMIT if that leaves nothing of the budget. Reset forgets it. */
int clb_kv_seq_protect(clb_kv_seq *seq, uint32_t n, clb_error *err);
/* Forgets everything: pages go back, position 0 is next. */
void clb_kv_seq_reset(clb_kv_seq *seq);
/* Drops the positions >= n_positions (for prefix reuse across turns). Fails with UNSUPPORTED if the strategy has
 * evicted anything, has seen probabilities or keeps state of its own (the prefix is then not what a fresh run
 * would hold); 0 positions always works. */
int clb_kv_seq_truncate(clb_kv_seq *seq, uint32_t n_positions, clb_error *err);

uint32_t clb_kv_seq_position(const clb_kv_seq *seq); /* of the next token = tokens seen */
/* The context is full: the next pass makes no room, and clb_kv_begin would fail with LIMIT. */
bool clb_kv_seq_full(const clb_kv_seq *seq);
/* Tells sequences of one cache apart: predictors follow them from pass to pass. */
uint32_t clb_kv_seq_number(const clb_kv_seq *seq);
uint32_t clb_kv_seq_needs(const clb_kv_seq *seq);    /* COLIBRI_KV_NEED_* of its strategy */

/* LIMIT if the strategy keeps all and the context would overflow (message has the counts), NOMEM if the pool is
 * exhausted. On failure nothing changed: room is checked before anything is evicted. */
int clb_kv_begin(clb_kv_seq *seq, uint32_t n_rows, clb_error *err);
/* Row i (0-based) of this pass; k: [n_kv_heads][k_dim] rotated, v: [n_kv_heads][v_dim], floats. */
void clb_kv_write(clb_kv_seq *seq, uint32_t layer, uint32_t i, const float *k, const float *v);
/* The query heads of row i of this pass before rotation: [n_heads][k_dim], for strategies that need queries. */
void clb_kv_observe_q(clb_kv_seq *seq, uint32_t layer, uint32_t i, const float *q);
/* With compacted positions (clb_kv_seq_compact) the caller writes keys that are not rotated, rotates row i's queries of each KV
 * head by its rank there, with the [n_rot] cosines and sines of clb_kv_row_cs, and lets them attend to clb_kv_keys. */
bool clb_kv_seq_compact(const clb_kv_seq *seq);
const float *clb_kv_row_cs(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t i);
/* The single row of a generated token may look at chosen pages only (strategies with pick_pages, else nothing happens): q is
 * [n_heads][k_dim], rotated and not turned. clb_kv_view_of and clb_kv_recent_begin then speak of those pages, n_before of
 * their positions. */
void clb_kv_pick(clb_kv_seq *seq, uint32_t layer, const float *q);
/* Rotated keys [begin, end) of a (layer, KV head) as floats, whatever the types and positions; rows of this pass included. */
void clb_kv_keys(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t begin, uint32_t end, float *out);
/* Asks for the memory that row i of the pass will be written to. */
void clb_kv_write_soon(const clb_kv_seq *seq, uint32_t layer, uint32_t i);

typedef struct clb_kv_view {
    const void *const *k_pages;
    const void *const *v_pages;
    uint32_t n_before; /* kept positions before this pass: row i of the pass sees n_before + i + 1 */
    const void *const *k_recent; /* as struct colibri_attention_args takes them; NULL: no recent window */
    const void *const *v_recent;
    uint32_t recent_first;
} clb_kv_view;
/* The arrays stay valid until the pass ends. */
clb_kv_view clb_kv_view_of(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head);

/* The recent window. A query at position p reads the kept positions that are B(p) or later from F16 copies,
 * B(p) = max(0, floor(p + 1 - recent, 16)): with itself, it sees between `recent` and recent + 15 positions unquantized (before
 * evictions), the same ones in whatever chunks the text came. Not where positions are compacted.
 * Rows [*first, *end) of the open pass have the same B as its row i; without a window all rows have. */
void clb_kv_recent_rows(const clb_kv_seq *seq, uint32_t i, uint32_t *first, uint32_t *end);
/* The kept position from which on row i of the pass reads copies (recent_begin of a call for such rows). */
uint32_t clb_kv_recent_begin(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t i);

/* Hands over the attention of one query row (for strategies that need probabilities; call for the rows of one
 * (seq, layer, kv_head) in row order, from one thread at a time). scores: [n_heads][stride] scaled scores of the query heads of
 * kv_head, max_sum: [n_heads][2] as colibri_attention_args returns them, n: visible positions. */
void clb_kv_observe(clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, const float *scores, size_t stride,
                    const float *max_sum, uint32_t n_heads, uint32_t n);

/* n_rows: those of clb_kv_begin, or fewer (the first n_rows stay: rejected draft tokens). prefill_done: this pass
 * contained the last prompt row. */
void clb_kv_end(clb_kv_seq *seq, uint32_t n_rows, enum colibri_phase phase, bool prefill_done);
/* Forgets the rows of this pass. What clb_kv_begin evicted stays evicted; repeating the pass gives the same result. */
void clb_kv_abort(clb_kv_seq *seq);

/* Figures. kept: sum over (layer, head); positions of one (layer, head) into out[0..cap), returns how many are kept. */
typedef struct clb_kv_stats {
    uint64_t seen;            /* tokens of the sequence so far */
    uint64_t kept_min, kept_max; /* positions kept, over all (layer, head) */
    uint64_t kept_sum;
    uint64_t evicted_sum;     /* positions dropped, over all (layer, head) */
    uint64_t selections;      /* strategy calls */
    uint64_t bad_answers;     /* replaced by "the first and the newest stay" */
    uint64_t bytes;           /* pages held */
} clb_kv_stats;
void clb_kv_seq_stats(const clb_kv_seq *seq, clb_kv_stats *out);
uint32_t clb_kv_seq_positions(const clb_kv_seq *seq, uint32_t layer, uint32_t kv_head, uint32_t *out, uint32_t cap);

#endif
