/* Inside a replay: state, the timing model, prefetching. */
#ifndef CLB_REPLAY_REPLAY_INTERNAL_H
#define CLB_REPLAY_REPLAY_INTERNAL_H

#include "replay/replay.h"

struct member {
    uint32_t u, slot, result; /* u: index into the union */
};

#define CLB_REPLAY_RANKS 32u /* places in a predictor's list that are told apart */

/* A guess on its way, or there and not judged. */
struct guess {
    uint32_t layer, expert, slot;
    uint32_t rank;
    double asked;   /* when */
    double left;    /* of the drive's time, ns */
    double whole;   /* at first */
    double arrives; /* 0: not read to the end yet */
    bool arrived;   /* the cache knows, or it never will */
    bool judged;    /* its layer's turn has come */
};

struct replay {
    const clb_replay_index *x;
    const clb_replay_options *o;
    clb_replay_result *out;
    clb_cache *cache;
    uint32_t visit;
    uint32_t horizon;  /* uses from this visit on do not count: the cache will be reset before */
    uint32_t *next_of; /* [n_layers * n_experts]: next visit that uses it; NULL: nobody asks */
    /* the visit's union */
    const uint32_t *ids, *rows;
    const float *gates;
    uint32_t *pending;
    struct member *wave;
    struct colibri_access *accesses;
    uint64_t *waits; /* [n_experts]: of the wave's members, by union index; ns */
    float *ones;
    float *ahead; /* [ahead_layers][ahead_rows][n_experts] */
    float *ahead_at[CLB_TRACE_AHEAD_MAX];
    uint32_t ahead_rows;
    uint64_t needed_bytes, missed_bytes;
    uint32_t window_passes;
    double *times; /* of the policy, per look-up: one of each timed pass */
    uint32_t n_times;
    uint64_t window_lookups, window_hits;
    /* time, ns */
    double now, stall;
    double drive_free;              /* when the drive has done everything that was asked of it with priority */
    double layer_began, layer_took; /* the last visit's begin and how long visits take */
    /* prefetching */
    const struct colibri_predictor *predictor;
    void *predictor_self;
    struct guess *guesses; /* in the order in which they were placed */
    uint32_t n_guesses;
    double worth[CLB_REPLAY_RANKS]; /* share of guesses of this rank that were used, of late */
    uint32_t held_back[CLB_REPLAY_RANKS];
    struct colibri_prediction *predictions;
};

/* pools.c */
struct clb_replay_pools {
    uint32_t *of, *slots; /* [n_layers] */
    uint32_t n;
};
int clb_replay_pools_make(const clb_trace_info *info, uint32_t n_slots, bool layer_pools, struct clb_replay_pools *out,
                          clb_error *err);

/* timing.c */
void clb_timing_layer(struct replay *r, uint32_t n_rows);
void clb_timing_wave(struct replay *r, uint32_t layer, uint32_t n, uint32_t n_rows);
double clb_timing_read_ns(const struct replay *r, uint32_t layer);

/* prefetch.c */
int clb_prefetch_open(struct replay *r, clb_error *err);
void clb_prefetch_close(struct replay *r);
/* What the drive has done by now. */
void clb_prefetch_advance(struct replay *r);
/* The layer was routed: guesses for it have come true or not. */
void clb_prefetch_judge(struct replay *r, uint32_t layer);
/* Asks for guesses and has them read. */
void clb_prefetch_act(struct replay *r, uint32_t layer, uint32_t n_rows);
/* When the bytes of a guess that is being taken will be there; the drive drops everything else for it. */
double clb_prefetch_arrival(struct replay *r, uint32_t slot);
/* All guesses end. */
void clb_prefetch_drop(struct replay *r);

#endif
