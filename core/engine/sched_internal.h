/* Inside the scheduler: requests, their lanes (one sequence each), passes. */
#ifndef CLB_ENGINE_SCHED_INTERNAL_H
#define CLB_ENGINE_SCHED_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "engine/scheduler.h"
#include "engine/text_stream.h"

enum clb_lane_state {
    CLB_LANE_WAITS,     /* for the prompt that the request's first lane reads */
    CLB_LANE_READS,     /* `goal` is longer than `held` */
    CLB_LANE_SAMPLES,   /* logits are there */
    CLB_LANE_GENERATES, /* `next` is to be fed */
    CLB_LANE_OVER
};

/* One choice of a request. */
typedef struct clb_lane {
    clb_request *request;
    uint32_t choice;
    enum clb_lane_state state;
    clb_kv_seq *kv;
    clb_lora_set lora;
    uint64_t lora_hash; /* of that set */
    clb_tokens held, goal; /* tokens in the KV cache; those that shall be there before sampling */
    const float *logits;   /* [n_vocab], in the scheduler's buffer, until the next pass */
    clb_sampler *sampler;
    clb_matcher *matcher;
    uint64_t *allowed;
    clb_text_stream stream;
    uint32_t next, n_generated, n_reused;
    bool first_read; /* goal is the prompt, not what a shift left of the text */
    bool apart;      /* takes no prefixes, gives none */
    bool lonely;     /* nothing comes of waiting for prefixes that others compute */
    bool waited;
    uint32_t skipped;      /* passes without a row, in a row */
    size_t n_text;         /* given out */
    clb_token_info *infos; /* not given out */
    size_t n_infos, cap_infos;
    clb_token_info sampled;
    double *sum; /* embed: of the rows so far */
    int rc;      /* of sampling, with err */
    clb_error err;
} clb_lane;

struct clb_request {
    clb_request_options o; /* arrays are the request's own */
    clb_scheduler *scheduler;
    atomic_int refs;
    atomic_bool cancelled;
    uint64_t id, submitted_ns, started_ns, first_ns;
    clb_lane *lanes; /* [o.n_choices], once started */
    uint32_t n_open;
    clb_request *next;
};

typedef struct clb_sched_call {
    int (*fn)(void *ctx, clb_engine *engine, clb_error *err);
    void *ctx;
    clb_error *err;
    int rc;
    bool done;
    struct clb_sched_call *next;
} clb_sched_call;

struct clb_scheduler {
    clb_scheduler_options o;
    uint32_t n_vocab;
    pthread_mutex_t lock; /* of what other threads see: */
    pthread_cond_t called;
    clb_request *queue, **queue_end;
    uint32_t n_queued;
    clb_sched_call *calls;
    uint64_t slice_ns; /* what o.slice_ns becomes before the next pass */
    bool draining, over;
    clb_scheduler_stats stats;
    clb_slot_info *slots; /* [n_sequences] */
    uint32_t n_slots;
    uint8_t *residency; /* [moe layers * experts] */
    /* --- */
    sem_t wake;
    atomic_bool stop;
    atomic_uint newcomers; /* submitted and not looked at */
    atomic_bool may_break; /* the running pass may be given up for them */
    /* the engine's thread alone: */
    uint64_t next_id, began_ns;
    clb_request *running;
    clb_lane **lanes; /* [n_sequences], in order of start */
    uint32_t n_lanes;
    uint32_t n_free; /* sequences */
    float *logits;   /* [n_sequences][n_vocab] */
    clb_span *spans; /* [n_sequences] */
    clb_lane **in_pass, **reading; /* [n_sequences] */
    uint32_t n_in_pass;
    bool scored;              /* the last pass was a scoring lane's, which is alone */
    double decode_ns, row_ns; /* a pass of generated tokens; what each prompt row adds. 0: unknown */
    int64_t credit_ns;        /* time of passes that may be given up */
    uint64_t secret;          /* of this run, for hashes of what clients choose */
    uint64_t lora_hash;       /* of the set that known prefixes belong to */
    uint64_t window_ns, window_prompt, window_generated, slow_ns;
};

/* sched_lane.c */
int clb_lane_start(clb_scheduler *s, clb_lane *lane, clb_error *err);
void clb_lane_free(clb_scheduler *s, clb_lane *lane);
/* The prompt is in: the other lanes of the request get it, embeddings and scores go out. */
int clb_lane_read(clb_scheduler *s, clb_lane *lane, clb_error *err);
void clb_lane_sample(clb_scheduler *s, clb_lane *lane); /* [any-thread] into sampled, rc */
/* Gives the sampled token out and decides how it goes on. */
int clb_lane_advance(clb_scheduler *s, clb_lane *lane, clb_error *err);
void clb_lane_score(clb_scheduler *s, clb_lane *lane, uint32_t row, const float *logits);

/* sched_pass.c: one pass over some of the lanes. *ran: there was something to do. An error is not one request's. */
int clb_sched_pass(clb_scheduler *s, bool *ran, clb_error *err);
bool clb_sched_cancelled(void *scheduler);
/* No strategy ever drops anything: any pieces of a prompt give the same. */
static inline bool clb_sched_keeps_all(const clb_scheduler *s)
{
    return !s->o.engine->kv_choice.traits.evicts;
}
/* Tokens of goal that are not held yet. */
static inline uint32_t clb_lane_left(const clb_lane *lane)
{
    return (uint32_t)(lane->goal.n - lane->held.n);
}

/* scheduler.c */
void clb_request_fail(clb_scheduler *s, clb_request *r, int status, const char *message);
/* A lane has ended; the last one ends the request. */
void clb_request_lane_over(clb_scheduler *s, clb_request *r);
void clb_request_event_out(const clb_request *r, const clb_request_event *event);

/* sched_stats.c */
void clb_sched_count_pass(clb_scheduler *s, uint32_t prompt_rows, uint32_t generated, uint64_t ns);
void clb_sched_publish(clb_scheduler *s);

#endif
