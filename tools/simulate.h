/* colibri simulate: what its files share. */
#ifndef CLB_TOOLS_SIMULATE_H
#define CLB_TOOLS_SIMULATE_H

#include "command.h"
#include "json_out.h"
#include "plugin/registry.h"
#include "replay/replay.h"
#include "replay/stats.h"

typedef struct clb_sim_trace {
    const char *path;
    char name[64]; /* of the file, without folder and ending */
    clb_trace *trace;
    clb_replay_index index;
} clb_sim_trace;

/* A policy or predictor with its parameters. */
typedef struct clb_sim_part {
    char label[96]; /* as it was asked for: "frequency-weighted:half-life=16" */
    const struct colibri_expert_policy *policy;
    const struct colibri_predictor *predictor; /* NULL with policy NULL: "none" */
    double *params;
    bool oracle;
    bool added;  /* for the comparison: nobody asked for it */
    bool hidden; /* added and not shown */
} clb_sim_part;

typedef struct clb_sim_slots {
    char label[24]; /* "25%" or "40" */
    double share;   /* of all experts; 0: `count` */
    uint32_t count;
} clb_sim_slots;

/* One cell of the grid: sums over all traces, and what statistics say. */
typedef struct clb_sim_cell {
    uint32_t policy, predictor, slots;
    clb_replay_result *runs; /* [n_traces] */
    clb_replay_count count[CLB_COUNTS];
    clb_cache_stats stats;
    uint64_t predictions, useful, late, wasted, cancelled, prefetched_bytes;
    double late_ns;
    double policy_ns; /* per look-up; NAN: not taken */
    double replay_ns; /* a thread's time per look-up, everything included */
    clb_interval hit; /* in [0, 1] */
    clb_interval gap; /* share of the gap between lru and the optimum that is closed; n == 0: there is none */
    double tok_per_s; /* of decode passes; NAN: no rates */
    const char *misbehaved;
} clb_sim_cell;

typedef struct clb_sim {
    clb_args *args;
    clb_registry *registry;
    clb_sim_trace *traces;
    uint32_t n_traces;
    clb_sim_part *policies, *predictors;
    uint32_t n_policies, n_predictors;
    clb_sim_slots *slots;
    uint32_t n_slots;
    clb_sim_cell *cells;
    uint32_t n_cells;
    bool layer_pools, cold, reset_units;
    uint32_t prefetch_depth, window, n_threads;
    uint64_t seed, expert_bytes;
    uint32_t resamples;
    clb_trace_rates rates; /* given on the command line; 0: the trace's */
    bool assumed_drive;    /* nobody said how fast the drive is */
    bool assumed_latency;  /* nor how long its first byte takes */
    uint64_t ns;           /* of the whole grid */
    uint64_t replayed;     /* look-ups, oracles included */
    /* For the page: all traces in a row, every policy without predictor, one capacity. */
    clb_trace *joined;
    clb_replay_result *series; /* [n_policies] */
    uint32_t series_slots;     /* index into slots */
    uint64_t reuse[CLB_REUSE_BINS], reuse_cold;
} clb_sim;

#define CLB_SIM_NONE UINT32_MAX

/* Loads traces, picks policies and predictors, reads capacities. Lists are those of the command line. */
int clb_sim_add_traces(clb_sim *s, const char *const *paths, size_t n, int format,
                       const clb_trace_import_options *options, clb_error *err);
int clb_sim_add_policies(clb_sim *s, const char *const *lists, size_t n, clb_error *err);
int clb_sim_add_predictors(clb_sim *s, const char *const *lists, size_t n, clb_error *err);
int clb_sim_add_slots(clb_sim *s, const char *const *lists, size_t n, clb_error *err);
int clb_sim_run(clb_sim *s, bool with_series, clb_error *err);
void clb_sim_free(clb_sim *s);

uint32_t clb_sim_slot_count(const clb_sim *s, uint32_t slots, const clb_trace_info *info);
/* CLB_SIM_NONE: not there. */
uint32_t clb_sim_find_cell(const clb_sim *s, uint32_t policy, uint32_t predictor, uint32_t slots);
uint32_t clb_sim_find_policy(const clb_sim *s, const char *name);
/* The optimum at a capacity: the oracle with the most hits. */
uint32_t clb_sim_optimum(const clb_sim *s, uint32_t slots);
clb_trace_rates clb_sim_rates(const clb_sim *s, const clb_trace *trace);
clb_replay_options clb_sim_options(const clb_sim *s, const clb_sim_cell *cell, const clb_sim_trace *trace);

/* Reports. */
void clb_sim_print_table(const clb_sim *s, FILE *f);
void clb_sim_print_csv(const clb_sim *s, FILE *f);
int clb_sim_print_json(const clb_sim *s, bool lines, FILE *f, clb_error *err);
int clb_sim_write_html(const clb_sim *s, const char *path, clb_error *err);
/* Look-ups per second of one thread, for every policy and capacity asked for. */
int clb_sim_bench(const clb_sim *s, FILE *f, clb_error *err);

#endif
