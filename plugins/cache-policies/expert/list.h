/* Lists of experts for policies that think in queues: doubly linked, in arrays, an expert is in one list at most.
 * A list is a ring through its own head node, so that nothing is special at the ends. */
#ifndef EXPERT_POLICY_LIST_H
#define EXPERT_POLICY_LIST_H

#include <stdint.h>
#include <string.h>

#include "colibri/expert_policy.h"

#define LIST_NONE UINT32_MAX

struct node {
    uint32_t before, after; /* LIST_NONE: in no list. before: towards the newest */
    uint32_t candidate;     /* index in candidates[] + 1 while victims are picked, else 0 */
};

/* nodes: n_experts of the pool, then the heads. */
static inline void list_clear(struct node *nodes, uint32_t n_experts, uint32_t n_heads)
{
    for (uint32_t i = 0; i < n_experts; i++)
        nodes[i] = (struct node){LIST_NONE, LIST_NONE, 0};
    for (uint32_t i = n_experts; i < n_experts + n_heads; i++)
        nodes[i] = (struct node){i, i, 0};
}

static inline int list_has(const struct node *nodes, uint32_t expert)
{
    return nodes[expert].before != LIST_NONE;
}

/* Right after `place`, towards the oldest; place = head: as the newest. */
static inline void list_insert(struct node *nodes, uint32_t place, uint32_t expert)
{
    const uint32_t after = nodes[place].after;
    nodes[expert].before = place;
    nodes[expert].after = after;
    nodes[place].after = nodes[after].before = expert;
}

static inline void list_remove(struct node *nodes, uint32_t expert)
{
    nodes[nodes[expert].before].after = nodes[expert].after;
    nodes[nodes[expert].after].before = nodes[expert].before;
    nodes[expert].before = nodes[expert].after = LIST_NONE;
}

static inline void list_mark(struct node *nodes, uint32_t n_experts, const struct colibri_expert_ref *candidates,
                             uint32_t n_candidates)
{
    for (uint32_t i = 0; i < n_candidates; i++)
        nodes[candidates[i].layer * n_experts + candidates[i].expert].candidate = i + 1;
}

static inline void list_unmark(struct node *nodes, uint32_t n_experts, const struct colibri_expert_ref *candidates,
                               uint32_t n_candidates)
{
    for (uint32_t i = 0; i < n_candidates; i++)
        nodes[candidates[i].layer * n_experts + candidates[i].expert].candidate = 0;
}

#endif
