/* Expert-cache policy: which expert leaves memory when another one must come in.
 *
 * The host owns residency: it filters the candidates (never a pinned expert, one in flight, or one that the
 * current step needs), validates every answer and replaces a bad one by its own LRU choice, counting it.
 * All callbacks come from one thread at a time [policy-thread]; they must not block or allocate.
 *
 * A *pool* is a set of slots of equal size and the layers that share it: one for the whole model, or one per expert
 * size, or one per layer, as the user chooses. Each pool has an instance of its own, which never hears of other pools:
 * its layers are numbered from 0 in the model's order, n_slots is the size of the pool.
 * An expert is (layer, expert); n = layer * n_experts + expert is its dense number. */
#ifndef COLIBRI_EXPERT_POLICY_H
#define COLIBRI_EXPERT_POLICY_H

#include "colibri/param.h"
#include "colibri/plugin.h"

#define COLIBRI_POLICY_LOSSLESS 0x1u      /* never changes tokens (every policy without route_bias) */
#define COLIBRI_POLICY_DETERMINISTIC 0x2u /* same events and seed: same victims */
#define COLIBRI_POLICY_ORACLE 0x4u        /* needs next_use: replay only */
/* The score of a resident expert never falls while it stays (a time stamp, a count), and changes only with events, not
 * with the clock or by being asked for. The host then keeps the candidates in order and asks for few scores; the victims
 * are those that asking for all would give. */
#define COLIBRI_POLICY_SCORE_RISES 0x8u

enum colibri_phase { COLIBRI_PHASE_PREFILL = 0, COLIBRI_PHASE_DECODE = 1, COLIBRI_PHASE_VERIFY = 2 };
enum colibri_cause { COLIBRI_CAUSE_DEMAND = 0, COLIBRI_CAUSE_PREFETCH = 1, COLIBRI_CAUSE_PRELOAD = 2 };
enum colibri_access_result { COLIBRI_ACCESS_HIT = 0, COLIBRI_ACCESS_MISS = 1, COLIBRI_ACCESS_LATE = 2 };
/* BYPASS: needed for this step, not worth keeping: it is computed in a slot that is set aside for such (a pool whose policy
 * has admit() gives up a few slots for them) and is gone right after. For a prefetch: not fetched.
 * LOW_PRIORITY: kept as long as nothing else wants the slot: it is the next victim unless it is used again. */
enum colibri_admit { COLIBRI_ADMIT = 0, COLIBRI_ADMIT_BYPASS = 1, COLIBRI_ADMIT_LOW_PRIORITY = 2 };

struct colibri_policy_config {
    uint32_t struct_size;
    uint32_t n_layers, n_experts, top_k; /* n_layers counts the pool's layers (of a predictor: all MoE layers) */
    uint32_t n_slots;                    /* of the pool; for experts that stay */
    const uint32_t *layer_slots;         /* always NULL: slots belong to the pool */
    const uint64_t *expert_bytes;        /* [n_layers]: bytes of one expert of that layer */
    uint64_t seed;
    const double *params;                /* values in the order of colibri_expert_policy.params */
    const struct colibri_host *host;
    /* Replay only, else NULL: how far away the next use of (layer, expert) is, in layer visits of the whole model (the
     * visit that is going on is 0, layer + 1 of the same pass is 1), UINT64_MAX if there is none. During on_route and the
     * decisions after it, uses by the visit that is going on count as past. */
    uint64_t (*next_use)(void *ctx, uint32_t layer, uint32_t expert);
    void *next_use_ctx;
};

struct colibri_step {
    uint32_t struct_size;
    uint32_t phase;  /* enum colibri_phase; of the batch: DECODE only if every row is a decode row */
    uint64_t step;   /* counts forward passes from 0 */
    uint32_t n_rows; /* token rows of the batch */
    uint32_t n_sequences;
};

/* Routing of one layer, before any look-up. */
struct colibri_route {
    uint32_t struct_size;
    uint32_t layer;
    uint32_t n_rows, top_k;
    const uint32_t *ids;   /* [n_rows][top_k], in router-rank order */
    const float *gates;    /* [n_rows][top_k] */
    const float *logits;   /* NULL or [n_rows][n_experts] */
    uint32_t n_union;      /* distinct experts of this step */
    const uint32_t *union_ids;
    const uint32_t *union_rows; /* rows per expert of the union */
    const uint32_t *row_sequence; /* [n_rows]: number of the row's sequence; NULL: all rows are of sequence 0 */
    /* For those who asked (struct colibri_predictor.ahead): router logits of the layers layer + 1 ... layer + n_ahead, each
     * [n_rows][n_experts], computed from this layer's hidden state: a guess at what those layers will choose. -INFINITY:
     * not known (replays). */
    uint32_t n_ahead;
    const float *const *ahead_logits;
};

struct colibri_access {
    uint32_t layer, expert;
    uint32_t result; /* enum colibri_access_result */
    uint32_t rows;
    float gate_sum;
    uint32_t reserved;
    uint64_t wait_ns;
};

struct colibri_expert_ref {
    uint32_t layer, expert;
};

struct colibri_expert_policy {
    uint32_t struct_size;
    uint32_t flags; /* COLIBRI_POLICY_* */
    const char *name;
    const char *summary;
    const char *source; /* paper, page or "folklore" */
    const struct colibri_param *params;
    uint32_t n_params;
    /* NULL and a reason on failure. May allocate (this is not a callback). */
    void *(*create)(const struct colibri_policy_config *config, char *why, size_t why_size);
    void (*destroy)(void *self);
    void (*reset)(void *self); /* forget everything, as after create */

    /* Events; any may be NULL. */
    void (*on_step)(void *self, const struct colibri_step *step);
    void (*on_route)(void *self, const struct colibri_route *route);
    void (*on_access)(void *self, const struct colibri_access *access, uint32_t n);
    void (*on_insert)(void *self, uint32_t layer, uint32_t expert, uint32_t cause);
    void (*on_evict)(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused);

    /* Decisions. NULL admit: always ADMIT. Exactly one of score and pick_victims is required. */
    int (*admit)(void *self, uint32_t layer, uint32_t expert, uint32_t cause);
    double (*score)(void *self, uint32_t layer, uint32_t expert); /* the host evicts the lowest; ties: lower number */
    /* Writes n distinct indexes into candidates[]; returns a status. n <= n_candidates. */
    int (*pick_victims)(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                        uint32_t *out_index);

    void (*rebudget)(void *self, uint32_t n_slots, const uint32_t *layer_slots);
    /* Profile to/from bytes; save returns the size needed (writes if it fits), load a status. */
    size_t (*save)(void *self, void *buf, size_t size);
    int (*load)(void *self, const void *buf, size_t size);
    /* Writes one line on why this expert is (not) a victim. */
    void (*explain)(void *self, uint32_t layer, uint32_t expert, char *out, size_t size);
    /* Bytes that an instance takes, for the memory plan; without it a few dozen per expert are assumed. config->host is
     * NULL, n_slots 0 (not known yet). [main-thread] */
    uint64_t (*state_bytes)(const struct colibri_policy_config *config);
};

#endif
