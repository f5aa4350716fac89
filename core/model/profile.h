/* Where the time of a forward pass goes. Off unless asked for: every parallel loop then reads the clock twice more.
 *
 * `wall` is what the calling thread sees; `busy` adds up what all workers spend inside the loops' bodies. The rest,
 * n_workers * wall - busy, is waiting: for the loop to reach a worker, for the slowest one, for serial parts. */
#ifndef CLB_MODEL_PROFILE_H
#define CLB_MODEL_PROFILE_H

#include <stdatomic.h>
#include <stdint.h>

/* X(NAME, "text") */
#define CLB_PHASES(X)                                        \
    X(EMBED, "embedding")                                    \
    X(ROWS, "norms, residuals, quantization")                \
    X(QKV, "query, key, value products")                     \
    X(ROPE, "rope, head norms, KV append")                   \
    X(ATTENTION, "attention")                                \
    X(ATTN_OUT, "attention output product")                  \
    X(ROUTER, "router")                                      \
    X(STORE, "expert store")                                 \
    X(EXPERT_IN, "expert gate and up products, activation")  \
    X(EXPERT_DOWN, "expert down products")                   \
    X(DENSE_IN, "dense gate and up products, activation")    \
    X(DENSE_DOWN, "dense down product")                      \
    X(OUTPUT, "output product")

enum clb_phase {
#define CLB_PHASE_ENUM(name, text) CLB_PHASE_##name,
    CLB_PHASES(CLB_PHASE_ENUM)
#undef CLB_PHASE_ENUM
    CLB_PHASE_COUNT
};

typedef struct clb_profile {
    uint64_t wall_ns[CLB_PHASE_COUNT];
    atomic_ullong busy_ns[CLB_PHASE_COUNT];
    uint64_t loops; /* parallel loops: each ends in a wait for all workers */
    uint64_t pass_ns, passes;
} clb_profile;

const char *clb_phase_name(enum clb_phase phase);

#endif
