/* Replays a trace through the engine's expert cache (store/cache.h): the same decisions in the same order, without
 * bytes.
 *
 * With no predictor, the counts of a replay equal the engine's for the same passes, slots, pools, policy, parameters
 * and seed; time plays no part in them. A predictor's guesses arrive when a model of the drive says so, and so its
 * counts are an estimate, like every time here. docs/simulate.md has the timing model.
 *
 * An index is constant once made; any number of threads may replay it at the same time. */
#ifndef CLB_REPLAY_REPLAY_H
#define CLB_REPLAY_REPLAY_H

#include "colibri/predictor.h"
#include "replay/trace.h"
#include "store/cache.h"

#define CLB_NEVER UINT32_MAX

/* What every cell of a grid needs of a trace, worked out once. A visit is one layer in one pass: pass * n_layers +
 * layer. */
typedef struct clb_replay_index {
    const clb_trace *trace; /* borrowed */
    uint32_t n_visits;
    uint64_t n_lookups;    /* sum of the unions' sizes */
    uint64_t *union_first; /* [n_visits + 1] */
    uint32_t *union_ids;   /* [n_lookups], ascending inside a visit */
    uint32_t *union_rows;
    float *union_gates;
    uint32_t *next;      /* [n_lookups]: the visit that uses the expert again, CLB_NEVER */
    uint32_t *first_use; /* [n_layers * n_experts]: CLB_NEVER: not used */
} clb_replay_index;

/* `trace` must have a pass. Errors: LIMIT (2^32 visits), USAGE (no pass), NOMEM. */
int clb_replay_index_make(const clb_trace *trace, clb_replay_index *out, clb_error *err);
void clb_replay_index_free(clb_replay_index *index);

/* All traces one after the other; their geometry must be the same (USAGE). */
int clb_trace_join(const clb_trace *const *traces, uint32_t n, clb_trace **out, clb_error *err);

/* LRU stack distances of all look-ups: how many different experts were used since the last use. bins[0] counts distance
 * 0, bins[b] distances [2^(b-1), 2^b); *cold counts first uses. A global LRU of more slots than the distance hits, if
 * waves do not come into play. */
#define CLB_REUSE_BINS 33u
int clb_reuse_distances(const clb_replay_index *index, uint64_t bins[CLB_REUSE_BINS], uint64_t *cold, clb_error *err);

typedef struct clb_replay_options {
    const struct colibri_expert_policy *policy;
    const double *params;
    const struct colibri_predictor *predictor; /* NULL: none */
    const double *predictor_params;
    const struct colibri_host *host;
    uint64_t seed;
    uint32_t n_slots; /* in all pools; at most all experts */
    bool layer_pools;
    bool cold;               /* no preload even if all experts fit */
    bool reset_units;        /* every unit begins with an empty cache */
    clb_trace_rates rates;   /* all zero: no times */
    uint32_t prefetch_depth; /* layers ahead that guesses are followed; 0: 2 */
    uint32_t window;         /* decode passes per point of `series`; 0: no series */
    uint32_t timed_one_in;   /* the policy's time is taken in one of so many passes; 0: never */
    bool (*cancelled)(void *ctx);
    void *cancelled_ctx;
} clb_replay_options;

enum { CLB_COUNT_PREFILL = 0, CLB_COUNT_DECODE = 1, CLB_COUNTS = 2 };

typedef struct clb_replay_count {
    uint64_t lookups, hits, late;
    uint64_t bytes, missed_bytes; /* needed; of those, not there in time (misses and late ones) */
    uint64_t rows;
    double ns, stall_ns; /* of the timing model */
} clb_replay_count;

typedef struct clb_replay_result {
    clb_cache_stats stats;
    clb_replay_count (*units)[CLB_COUNTS]; /* [n_units]; passes that are all decode rows count as decode */
    uint32_t n_units;
    uint64_t *layer_lookups, *layer_hits; /* [n_layers] */
    uint32_t n_layers;
    float *series; /* [n_series]: hit rate of `window` decode passes each; NAN: there were none */
    uint32_t n_series;
    uint32_t *series_unit; /* [n_units]: the point at which the unit begins */
    uint64_t predictions;  /* guesses the predictor made, whatever became of them */
    uint64_t useful, late, wasted, cancelled;
    uint64_t prefetched_bytes;
    double late_ns;         /* waited for late ones */
    double policy_ns;       /* per look-up, median of the timed passes; NAN: there were none */
    uint64_t cpu_ns;        /* this thread's, of this replay */
    const char *misbehaved; /* the policy's answer had to be replaced: what was wrong; NULL */
    uint32_t used_slots;
} clb_replay_result;

/* Errors: USAGE (fewer slots than pools), PLUGIN, NOMEM, CANCELLED. */
int clb_replay_run(const clb_replay_index *index, const clb_replay_options *options, clb_replay_result *out,
                   clb_error *err);
void clb_replay_result_free(clb_replay_result *result);

/* Slots for a share of all experts, and the least that a replay can run with. */
uint32_t clb_replay_least_slots(const clb_trace_info *info, bool layer_pools);

#endif
