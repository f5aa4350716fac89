/* KV strategy: which past positions stay in the KV cache, per layer and KV head.
 *
 * The host owns pages, positions and budgets: it calls the strategy at the triggers it declares, always keeps
 * the protected positions, validates the answer (enough positions kept, none out of range) and falls back to
 * "newest stay" on a bad one, counting it. Only declared needs are computed. One instance serves one sequence;
 * its callbacks come from one thread at a time [strategy-thread] and must not block or allocate. */
#ifndef COLIBRI_KV_STRATEGY_H
#define COLIBRI_KV_STRATEGY_H

#include "colibri/param.h"
#include "colibri/plugin.h"

/* Needs: what the host must compute for this strategy. */
#define COLIBRI_KV_NEED_PROB_COLSUM 0x001u /* per position: attention probability summed over all queries so far */
#define COLIBRI_KV_NEED_PROB_MAX 0x002u    /* ... their maximum */
#define COLIBRI_KV_NEED_PROB_LAST_W 0x004u /* ... summed over the last w queries */
#define COLIBRI_KV_NEED_K_POST_ROPE 0x008u
#define COLIBRI_KV_NEED_K_PRE_ROPE 0x010u
#define COLIBRI_KV_NEED_V 0x020u
#define COLIBRI_KV_NEED_Q_LAST_W 0x040u
#define COLIBRI_KV_NEED_Q_STATS 0x080u
#define COLIBRI_KV_NEED_WO_NORM 0x100u
#define COLIBRI_KV_NEED_PAGE_MINMAX 0x200u
#define COLIBRI_KV_NEED_HIDDEN 0x400u

/* Triggers: when select is called, if the sequence is over its budget. */
#define COLIBRI_KV_AT_PREFILL_END 0x1u
#define COLIBRI_KV_AT_CHUNK 0x2u /* after each prefill chunk */
#define COLIBRI_KV_AT_STEPS 0x4u /* every `every_steps` decode steps */
#define COLIBRI_KV_AT_OVER_BUDGET 0x8u /* whenever the next row would not fit */

enum colibri_kv_positions { COLIBRI_KV_POS_ORIGINAL = 0, COLIBRI_KV_POS_COMPACT = 1 };

#define COLIBRI_KV_FLAG_KEEPS_ALL 0x1u      /* never evicts ("full") */
/* Answers may differ between KV heads of a layer. Without it the host asks once per layer (kv_head 0), with probabilities
 * over all heads of the layer, and all heads keep the same positions. Needed for read_k and read_v. */
#define COLIBRI_KV_FLAG_PER_HEAD 0x2u
#define COLIBRI_KV_FLAG_DETERMINISTIC 0x4u

/* Valid during create only. */
struct colibri_kv_config {
    uint32_t struct_size;
    uint32_t n_layers, n_kv_heads, n_heads, head_dim;
    uint32_t budget;            /* positions per (layer, head) that the plan allows */
    uint32_t page_tokens;
    const uint8_t *evictable;   /* [n_layers]: 0 for layers the model marks (window, latent) */
    uint64_t seed;
    const double *params;
    const struct colibri_host *host;
};

/* One (layer, KV head) of one sequence at a trigger. Arrays are in slot order = position order. */
struct colibri_kv_view {
    uint32_t struct_size;
    uint32_t layer, kv_head;
    uint32_t n;                 /* positions now kept */
    uint32_t n_keep;            /* how many must remain, at most */
    uint32_t n_prompt;          /* length of the prompt so far */
    uint64_t next_position;     /* position of the next token */
    const uint32_t *positions;  /* [n] original positions, ascending */
    const float *prob_sum;      /* [n] or NULL: NEED_PROB_COLSUM, summed over the query heads of this KV head */
    const float *prob_max;      /* [n] or NULL */
    const float *prob_last;     /* [n] or NULL */
    /* Readers of stored rows as floats (NULL unless needed): k(i) into out[head_dim]. */
    void (*read_k)(const struct colibri_kv_view *view, uint32_t i, float *out);
    void (*read_v)(const struct colibri_kv_view *view, uint32_t i, float *out);
    const void *opaque;         /* the host's */
};

struct colibri_kv_strategy {
    uint32_t struct_size;
    uint32_t flags, needs, triggers;
    uint32_t window_w;          /* for *_LAST_W */
    uint32_t every_steps;       /* for AT_STEPS */
    uint32_t positions;         /* enum colibri_kv_positions */
    uint32_t n_params;
    const char *name, *summary, *source;
    const struct colibri_param *params;
    void *(*create)(const struct colibri_kv_config *config, char *why, size_t why_size);
    void (*destroy)(void *self);
    void (*reset)(void *self);
    /* Budget of one (layer, head) in positions, given n seen; NULL: the configured budget. The host enforces the sum. */
    uint32_t (*budget)(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen);
    /* Marks keep[i] = 1 for the positions that stay: at least one, at most view->n_keep of them, the newest (the last)
     * included. keep comes zeroed. Returns a status.
     * If NULL, `score` must exist: the n_keep highest scores stay (ties: the later position). */
    int (*select)(void *self, const struct colibri_kv_view *view, uint8_t *keep);
    void (*score)(void *self, const struct colibri_kv_view *view, float *out);
    void (*on_append)(void *self, uint32_t layer, uint32_t kv_head, uint32_t n);
    void (*on_evict)(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept_old_index, uint32_t n_kept);
    /* Copy of the state for a forked sequence. NULL: stateless. */
    void *(*fork)(void *self);
};

#endif
