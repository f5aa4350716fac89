/* What sequences take beside their pages, for the plan: page tables, what a strategy asks the host for, its own state.
 *
 * A strategy pays for what it declares, so these bytes follow from its declarations, the layout and the budget. Two
 * things only an instance knows: how a strategy with `budget` divides, and what it keeps for itself (state_bytes).
 *
 * Bytes are those that malloc gives, its own included, and what is never touched counts as well: memory that stands
 * ready is memory of the budget. tests/unit/test_kv_sizes.c measures them. [engine-thread] */
#ifndef CLB_KV_SIZES_H
#define CLB_KV_SIZES_H

#include "kv/kv.h"

/* Sequences of one kind. */
typedef struct clb_kv_demand {
    clb_kv_traits traits;
    uint32_t budget, max_rows;
    uint32_t most;        /* positions of a head, if all have the budget; 0: nothing is asked */
    uint32_t head_budget; /* the largest that a (layer, head) is given */
    uint32_t longest;     /* positions that one head may hold */
    uint64_t state_bytes; /* of the strategy itself */
    bool selects;         /* the outermost strategy marks positions itself: no scores */
    bool allots, merges, picks;
} clb_kv_demand;

/* What a sequence with these options will ask for. Where the strategy has `budget`, an instance is made for a moment
 * and asked: its answers now bound those to come. layout->inv_freq may be missing. NOMEM, PLUGIN, USAGE (its refusal).
 */
int clb_kv_demand_make(const clb_kv_layout *layout, const clb_kv_seq_options *options, clb_kv_demand *out,
                       clb_error *err);
/* The same for whatever strategy it will be, over texts of at most ctx tokens. */
clb_kv_demand clb_kv_demand_any(const clb_kv_layout *layout, uint32_t ctx, uint32_t max_rows);

/* Of one sequence. */
uint64_t clb_kv_strategy_bytes(const clb_kv_layout *layout, const clb_kv_demand *demand);
/* Of all sequences together, with a pool of pool_bytes and one of recent_bytes: lists of pages, rotations, and the
 * index of prefixes if they are shared (clb_kv_share). */
uint64_t clb_kv_common_bytes(const clb_kv_layout *layout, const clb_kv_demand *demand, uint64_t pool_bytes,
                             uint64_t recent_bytes, bool shares);

#endif
