/* KV strategy: which past positions stay in the KV cache, per layer and KV head, or which of them a new token looks at.
 *
 * The host owns pages, positions and budgets: it calls the strategy at the triggers it declares and validates every
 * answer. A bad one (too many positions, a protected or the newest one dropped, NaN, a write beyond the end, an error, a
 * call that takes far too long) is counted, reported once, and replaced: the protected, the first four and the newest positions stay. After
 * several of them the strategy is not asked again. Only declared needs are computed.
 *
 * One instance serves one sequence; its callbacks come from one thread at a time [strategy-thread], except pick_pages,
 * and must not block or allocate.
 *
 * A wrapper changes what another strategy, its child, does: `--kv-strategy outer/inner`. It gets the child's table in
 * its config, creates it, and calls it as the host would. Needs, triggers and the window of the chain are joined by the
 * host: a wrapper declares only its own. */
#ifndef COLIBRI_KV_STRATEGY_H
#define COLIBRI_KV_STRATEGY_H

#include "colibri/param.h"
#include "colibri/plugin.h"

/* Needs: what the host must compute for this strategy. */
#define COLIBRI_KV_NEED_PROB_COLSUM 0x001u /* per position: attention probability summed over all queries so far */
#define COLIBRI_KV_NEED_PROB_MAX    0x002u /* ... their maximum */
#define COLIBRI_KV_NEED_PROB_LAST_W 0x004u /* ... that the last window_w queries give to what is kept now, summed */
#define COLIBRI_KV_NEED_K_POST_ROPE 0x008u
#define COLIBRI_KV_NEED_K_PRE_ROPE  0x010u
#define COLIBRI_KV_NEED_V           0x020u
#define COLIBRI_KV_NEED_Q_LAST_W    0x040u
#define COLIBRI_KV_NEED_Q_STATS     0x080u
#define COLIBRI_KV_NEED_WO_NORM     0x100u
#define COLIBRI_KV_NEED_PAGE_MINMAX 0x200u
#define COLIBRI_KV_NEED_HIDDEN      0x400u
/* Attention that later queries will give: known only where a text is evaluated a second time (a control, not a method).
 */
#define COLIBRI_KV_NEED_FUTURE 0x800u

/* Triggers: when select is called, if the sequence is over its budget. */
#define COLIBRI_KV_AT_PREFILL_END 0x1u
#define COLIBRI_KV_AT_CHUNK       0x2u /* after each prefill chunk */
#define COLIBRI_KV_AT_STEPS       0x4u /* every `every_steps` decode steps */
#define COLIBRI_KV_AT_OVER_BUDGET 0x8u /* whenever the next row would not fit */

/* ORIGINAL: keys keep the rotation of the position at which they were written. COMPACT: kept positions count as 0, 1,
 * 2,
 * ... in order, and a new token as the next one; keys are stored before rotation and rotated as they are read, so
 * nothing drifts. The user may overrule the declaration (kv-positions). */
enum colibri_kv_positions { COLIBRI_KV_POS_ORIGINAL = 0, COLIBRI_KV_POS_COMPACT = 1 };

#define COLIBRI_KV_FLAG_KEEPS_ALL 0x1u /* never evicts ("full") */
/* Answers may differ between KV heads of a layer. Without it the host asks once per layer (kv_head 0), with
 * probabilities over all heads of the layer, and all heads keep the same positions. Needed for read_k and read_v. */
#define COLIBRI_KV_FLAG_PER_HEAD      0x2u
#define COLIBRI_KV_FLAG_DETERMINISTIC 0x4u
/* Needs a child. A wrapper is PER_HEAD if it or its child is. If its triggers or positions are 0, those of the child
 * apply. The host calls the outermost strategy only: a wrapper hands on budget, on_append and on_evict (kv_wrap.h), and
 * one that lacks a callback of these that its child has is refused. */
#define COLIBRI_KV_FLAG_WRAPPER 0x8u

struct colibri_kv_strategy;

/* What a wrapper wraps. Strings, tables and params outlive the instance. */
struct colibri_kv_child {
    uint32_t struct_size;
    const struct colibri_kv_strategy *strategy;
    const double *params;                 /* in the child's order */
    const struct colibri_kv_child *child; /* the child's own, NULL if it is no wrapper */
};

/* Valid during create only. */
struct colibri_kv_config {
    uint32_t struct_size;
    uint32_t n_layers, n_kv_heads, n_heads, head_dim;
    uint32_t budget; /* positions per (layer, head) that the plan allows */
    uint32_t page_tokens;
    const uint8_t *evictable; /* [n_layers]: 0 for layers the model marks (window, latent) */
    uint64_t seed;
    const double *params;
    const struct colibri_host *host;
    uint32_t v_dim;
    uint32_t max_positions; /* that a (layer, head) may ever hold: the largest view->n */
    /* Rotation of the model: the angle of pair i at position p is p * inv_freq[i], i < n_rot / 2; pairs are (i, i +
     * n_rot/2) if neox, else (2i, 2i+1). n_rot == 0: none. inv_freq outlives the instance. */
    uint32_t n_rot;
    int neox;
    const float *inv_freq;
    float attention_scale;                /* scores = q . k * it */
    uint32_t positions;                   /* enum colibri_kv_positions: what applies */
    uint32_t window_w;                    /* what applies to *_LAST_W: the largest of the chain */
    const struct colibri_kv_child *child; /* NULL unless WRAPPER */
};

/* One (layer, KV head) of one sequence at a trigger. Arrays are in slot order = position order. */
struct colibri_kv_view {
    uint32_t struct_size;
    uint32_t layer, kv_head;
    uint32_t n;                /* positions now kept */
    uint32_t n_keep;           /* how many must remain, at most */
    uint32_t n_prompt;         /* length of the prompt so far */
    uint64_t next_position;    /* position of the next token */
    const uint32_t *positions; /* [n] original positions, ascending */
    const float *prob_sum;     /* [n] or NULL: NEED_PROB_COLSUM, summed over the query heads of this KV head */
    const float *prob_max;     /* [n] or NULL */
    const float *prob_last;    /* [n] or NULL: NEED_PROB_LAST_W, as prob_sum, over the last n_last queries */
    /* Readers of stored rows as floats (NULL unless needed): k(i) into out[head_dim]. */
    void (*read_k)(const struct colibri_kv_view *view, uint32_t i, float *out);
    void (*read_v)(const struct colibri_kv_view *view, uint32_t i, float *out);
    const void *opaque; /* the host's */

    uint32_t trigger;     /* COLIBRI_KV_AT_*: why it is asked */
    uint32_t n_protected; /* the first n_protected entries must stay (system prompt, kv-protect); < n_keep */
    uint32_t n_system;    /* positions below this are the system prompt; 0: none is known */
    uint32_t n_heads;     /* query heads of this KV head (all of the layer without PER_HEAD) */
    void (*read_k_pre)(const struct colibri_kv_view *view, uint32_t i, float *out); /* NEED_K_PRE_ROPE */
    uint32_t n_last;          /* queries behind the following and prob_last: window_w, or as many as there were */
    const float *q_last;      /* NEED_Q_LAST_W: [n_last][n_heads][head_dim] before rotation, oldest first */
    const float *q_mean;      /* NEED_Q_STATS: [n_heads][head_dim], mean of the last n_last queries before rotation */
    const float *q_cov;       /* NEED_Q_STATS: [n_heads][head_dim][head_dim], their covariance (divided by n_last) */
    const float *prob_future; /* [n] NEED_FUTURE: attention of all later queries, summed over the query heads; NULL
                                 where it cannot be known */
};

/* What a strategy that picks pages sees: the complete pages of one (layer, KV head), before one query attends. */
struct colibri_kv_pages {
    uint32_t struct_size;
    uint32_t layer, kv_head;
    uint32_t n_pages, page_tokens;
    uint32_t n_use;             /* pages that may be used at most, >= 1 */
    uint32_t n_heads, head_dim; /* query heads of this KV head */
    const float *q;             /* [n_heads][head_dim] rotated */
    const float *k_min, *k_max; /* [n_pages][head_dim] of the rotated keys */
};

struct colibri_kv_strategy {
    uint32_t struct_size;
    uint32_t flags, needs, triggers;
    uint32_t window_w;    /* for *_LAST_W */
    uint32_t every_steps; /* for AT_STEPS */
    uint32_t positions;   /* enum colibri_kv_positions */
    uint32_t n_params;
    const char *name, *summary, *source;
    const struct colibri_param *params;
    void *(*create)(const struct colibri_kv_config *config, char *why, size_t why_size);
    void (*destroy)(void *self);
    void (*reset)(void *self);
    /* Budget of one (layer, head) in positions, given n seen; NULL: the configured budget. The host enforces the sum.
     * Without PER_HEAD it is asked once for each layer (kv_head 0).
     * Memory is planned by what a new instance answers, for n_seen of 0, the budget, twice that, the context length and
     * UINT32_MAX: no head gets more later than the largest of these. */
    uint32_t (*budget)(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen);
    /* Marks keep[i] = 1 for the positions that stay: at least one, at most view->n_keep of them, the newest (the last)
     * included. keep comes zeroed. Returns a status.
     * If NULL, `score` must exist: the n_keep highest scores stay (ties: the later position); the host keeps the newest
     * and the protected ones by itself. */
    int (*select)(void *self, const struct colibri_kv_view *view, uint8_t *keep);
    void (*score)(void *self, const struct colibri_kv_view *view, float *out);
    void (*on_append)(void *self, uint32_t layer, uint32_t kv_head, uint32_t n);
    void (*on_evict)(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept_old_index, uint32_t n_kept);
    /* Copy of the state for a forked sequence. NULL: it has none (or sequences under it cannot be forked, if on_append
     * or on_evict exist). */
    void *(*fork)(void *self);

    /* Budgets across the heads of a layer, from their scores (of the views only counts and positions are valid here; needs `score` and PER_HEAD): scores[h][0..views[h].n) are
     * those of `score`. Writes n_keep[h] >= views[h].n_protected + 1; their sum is at most `total`. Returns a status.
     */
    int (*allot)(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                 const float *const *scores, uint32_t total, uint32_t *n_keep);
    /* After a selection: dropped positions may live on in the values of kept ones. For each i with keep[i] == 0,
     * into[i] is the index of a kept position and weight[i] what its value is multiplied by before it is added there;
     * into comes as UINT32_MAX, which means "nowhere". Returns a status. */
    int (*merge)(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into, float *weight);
    /* Before a generated token attends: use[p] = 1 for the pages that it looks at, use comes zeroed; the incomplete
     * last page is always looked at. Nothing is dropped. [any-thread]: reads *self only. Returns a status. */
    int (*pick_pages)(void *self, const struct colibri_kv_pages *pages, uint8_t *use);
    /* Bytes that an instance takes with this config, without those of a child, for the memory plan; config->params are
     * set, config->host may be NULL. Without it a page of memory is assumed, and 16 bytes for each position of each
     * head if on_append or on_evict exist. [main-thread] */
    uint64_t (*state_bytes)(const struct colibri_kv_config *config);
};

#endif
