/* What a chain of wrappers and their child want together. */
#include "kv/internal.h"

bool clb_kv_holds_prompts(const clb_kv_layout *layout, const clb_kv_traits *traits)
{
    bool holds = !traits->evicts || !(traits->triggers & (COLIBRI_KV_AT_OVER_BUDGET | COLIBRI_KV_AT_CHUNK));
    for (uint32_t i = 0; layout->evictable && i < layout->n_layers; i++)
        holds = holds || !layout->evictable[i];
    return holds;
}

clb_kv_traits clb_kv_traits_of(const struct colibri_kv_strategy *strategy, const struct colibri_kv_child *child,
                               enum clb_kv_renumber positions)
{
    clb_kv_traits t = {0};
    bool compact = false;
    for (const struct colibri_kv_strategy *s = strategy;; child = child->child) {
        t.needs |= s->needs;
        t.window_w = s->window_w > t.window_w ? s->window_w : t.window_w;
        if (!t.triggers) {
            t.triggers = s->triggers;
            t.every_steps = s->every_steps;
        }
        compact = compact || s->positions == COLIBRI_KV_POS_COMPACT;
        t.per_head = t.per_head || (s->flags & COLIBRI_KV_FLAG_PER_HEAD);
        if (!(s->flags & COLIBRI_KV_FLAG_WRAPPER)) /* a wrapper only passes these on */
            t.stateful = s->on_append || s->on_evict;
        t.own_budgets = t.own_budgets || s->budget || s->allot;
        t.evicts = !(s->flags & COLIBRI_KV_FLAG_KEEPS_ALL); /* the innermost decides */
        if (!child)
            break;
        s = child->strategy;
    }
    t.positions = compact ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
    if (positions != CLB_KV_AS_DECLARED)
        t.positions = positions == CLB_KV_COMPACT ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
    return t;
}
