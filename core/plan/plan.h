/* The memory planner: one budget for weights, experts, KV cache, buffers and the process itself.
 *
 * A plan either fits the budget or is refused before a weight is read, with what would fit. Sizes are the real ones
 * of each tensor. What does not fit is read again and again while running, in this order of preference: of a model
 * with experts the dense weights stay and experts come and go; only when the fewest slots do not fit beside them, or in
 * a model without experts, the dense weights of some layers are streamed. [engine-thread] */
#ifndef CLB_PLAN_PLAN_H
#define CLB_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "kv/sizes.h"
#include "model/model.h"
#include "plan/memory.h"

typedef struct clb_plan_input {
    const clb_model *model; /* bound, not loaded */
    clb_kv_layout kv;
    clb_kv_demand kv_demand;  /* of a sequence, beside its pages; zero: nothing */
    bool kv_shares;           /* prefixes */
    uint64_t kv_shared_bytes; /* beyond the sequences', for prefixes that are kept */
    uint32_t kv_positions; /* most positions held per sequence, layer and head */
    uint32_t ctx;          /* for the advice in a refusal */
    double kv_follows_ctx; /* of a token less of --ctx, so much of a position less; 0: kv_positions stays as it is */
    uint32_t n_sequences;
    uint32_t max_rows, n_workers;
    uint32_t aside_rows;      /* of a second set of buffers, wanted only if all weights stay in memory; 0: none */
    uint64_t budget;          /* 0: `share` of the available memory */
    uint32_t share;           /* in percent; 0: 80 */
    uint32_t expert_slots;    /* 0: as many as fit */
    uint64_t resident;        /* bytes of this process before loading; 0: clb_memory_resident */
    bool layer_pools;         /* every MoE layer has its own slots, equally many in all layers of a size class */
    bool mapped;              /* matrices that can be multiplied in place in the file are not copied */
    uint32_t resident_layers; /* 0: as many as fit */
    uint64_t lora_bytes;      /* for adapters, those that may be loaded later included, and what passes need for them */
    uint64_t policy_bytes;    /* what the expert policy keeps */
    uint32_t prefetch_depth;  /* layers read ahead of the one that is multiplied; 0 counts as 1 */
} clb_plan_input;

typedef struct clb_plan {
    uint64_t budget;
    bool budget_is_default;
    uint32_t share;                   /* then */
    enum clb_memory_limit limited_by; /* what made the budget smaller than asked for; MACHINE (0): nothing did */
    uint64_t
        available; /* what the machine has free, this process counted as free; more than that in use means swapping */
    uint64_t resident; /* of this process when the plan was made, or what the input said */
    uint64_t base_bytes;      /* the process before loading: code, vocabulary, file header */
    uint64_t embedding_bytes; /* token_embd, output; without what is mapped */
    uint64_t dense_bytes;     /* matrices and vectors that stay, embeddings apart; without what is mapped */
    uint64_t mapped_bytes; /* used in place in the file: page cache, which the kernel may take back; not in the total */
    uint64_t kv_bytes;          /* pages */
    uint64_t kv_strategy_bytes; /* their tables, and what the KV strategy wants */
    uint64_t buffer_bytes, staging_bytes;
    uint64_t lora_bytes; /* adapters, and what passes need for them */
    uint64_t slot_bytes;  /* all expert slots */
    uint64_t total_bytes; /* of everything above but mapped_bytes, and of stream_bytes */
    uint32_t n_classes;
    uint32_t *class_slots;       /* [n_classes]; with layer_pools a multiple of the class's layers */
    uint32_t n_slots, n_experts; /* in total */
    bool all_experts;            /* every expert has a slot */
    /* resident_layers layers keep their dense matrices, those of the others (clb_model_streams) are read in every pass,
     * each into one of n_stream_slots slots of layer_slot_bytes; vectors (norms, biases) of all layers stay. With all
     * layers resident there are no such slots. */
    uint32_t n_layers, resident_layers, n_stream_slots;
    uint64_t layer_slot_bytes;    /* clb_plan_layer_bytes of the largest streamed layer */
    uint64_t stream_bytes;        /* n_stream_slots * layer_slot_bytes */
    uint64_t streamed_file_bytes; /* read in every pass */
    uint32_t aside_rows;          /* the second set of buffers is there: in buffer_bytes */
} clb_plan;

/* NOMEM if it cannot fit: the message has the parts and what to change. USAGE: resident_layers or expert_slots cannot
 * be had in this model at all. */
int clb_plan_make(const clb_plan_input *in, clb_plan *out, clb_error *err);
void clb_plan_free(clb_plan *plan);
/* One line at INFO; warnings if a limit made the budget smaller, or if the machine will have to swap. */
void clb_plan_log(const clb_plan *plan, const clb_log *log);

/* Room for the dense matrices of one layer when they are streamed. */
uint64_t clb_plan_layer_bytes(const clb_model *model, uint32_t layer);

#endif
