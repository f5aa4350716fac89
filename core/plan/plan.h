/* The memory planner: one budget for weights, experts, KV cache, buffers and the process itself.
 *
 * A plan either fits the budget or is refused before a weight is read, with what would fit. Sizes are the real ones
 * of each tensor. [engine-thread] */
#ifndef CLB_PLAN_PLAN_H
#define CLB_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/kv.h"
#include "model/model.h"

typedef struct clb_plan_input {
    const clb_model *model; /* bound, not loaded */
    clb_kv_layout kv;
    uint32_t kv_positions; /* most positions held per sequence, layer and head */
    uint32_t ctx;          /* for the advice in a refusal */
    bool kv_follows_ctx;   /* a smaller --ctx would make kv_positions smaller */
    uint32_t n_sequences;
    uint32_t max_rows, n_workers;
    uint64_t budget;       /* 0: 80 % of the available memory */
    uint32_t expert_slots; /* 0: as many as fit */
    uint64_t resident;     /* bytes of this process before loading; 0: clb_memory_resident */
} clb_plan_input;

typedef struct clb_plan {
    uint64_t budget;
    bool budget_is_default;
    uint64_t base_bytes; /* the process before loading: code, vocabulary, file header */
    uint64_t embedding_bytes, dense_bytes;
    uint64_t kv_bytes, buffer_bytes, staging_bytes;
    uint64_t slot_bytes;  /* all expert slots */
    uint64_t total_bytes; /* of everything above */
    uint32_t n_classes;
    uint32_t *class_slots;       /* [n_classes] */
    uint32_t n_slots, n_experts; /* in total */
    bool all_experts;            /* every expert has a slot */
} clb_plan;

/* NOMEM if it cannot fit: the message has the parts and what to change. */
int clb_plan_make(const clb_plan_input *in, clb_plan *out, clb_error *err);
void clb_plan_free(clb_plan *plan);

#endif
