/* Inside the planner: sums that cannot wrap around, size classes, what a refusal says. */
#ifndef CLB_PLAN_INTERNAL_H
#define CLB_PLAN_INTERNAL_H

#include "plan/plan.h"

/* Sizes come from files and settings: a sum that does not fit 64 bits stays at the largest value, which fits no budget.
 */
static inline uint64_t clb_sat_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t clb_sat_mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Expert slots of one size; layers that are used in place in the file have none and are not counted. */
typedef struct clb_slot_classes {
    uint32_t n;
    uint32_t *members; /* experts per class */
    uint32_t *step;    /* slots come in multiples of this: 1, or with layer pools the class's layers */
    uint32_t *least;   /* fewest slots that a visit can do with in one go: top-k per pool */
    uint64_t *slot_bytes; /* if all experts have a slot */
    uint64_t *slack;      /* in addition if not: clb_store_stream_slack */
    uint32_t n_mapped; /* experts that need no slot */
    uint64_t mapped_bytes;
} clb_slot_classes;

int clb_slot_classes_make(const clb_plan_input *in, clb_slot_classes *c, clb_error *err);
void clb_slot_classes_free(clb_slot_classes *c);
uint64_t clb_slot_classes_bytes(const clb_slot_classes *c, const uint32_t *slots);
/* The most slots, the same share of every class, that fit `room`, at least `least`. False if not even those fit;
 * slots[] are then the least. */
bool clb_slots_fit(const clb_slot_classes *c, uint64_t room, uint32_t *slots);
/* `total` slots, split by the classes' experts, at least one step each and never more than `total` together. USAGE if
 * that cannot be. */
int clb_slots_split(const clb_slot_classes *c, uint32_t total, uint32_t *slots, clb_error *err);

/* Whether m lies in the file as it is multiplied, so that mmap mode does not copy it. */
bool clb_plan_in_place(const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset);
/* What is read of a matrix: rows, or groups of 16 if it is packed in the file. */
uint64_t clb_plan_file_bytes(const clb_matrix *m, const clb_gguf_tensor *t);

/* What the process counts for, rounded up in steps. */
uint64_t clb_plan_base(uint64_t resident);
uint64_t clb_plan_kv_bytes(const clb_plan_input *in, uint64_t positions);
/* What goes with so many positions of each sequence. */
uint64_t clb_plan_kv_strategy_bytes(const clb_plan_input *in, uint64_t positions);
uint64_t clb_plan_buffer_bytes(const clb_plan_input *in, uint32_t max_rows);

/* The message of a plan that does not fit: `least` is the smallest with the slots and layers that were asked for, `all`
 * has every layer resident and no slots. Returns NOMEM. */
int clb_plan_refuse(const clb_plan_input *in, const clb_plan *least, const clb_plan *all, uint64_t resident,
                    clb_error *err);

#endif
