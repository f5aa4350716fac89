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
    bool waited, waits; /* for what a pass computed; for the end of the one that is or will be in flight */
    uint32_t in_flight; /* in a pass that is being computed: how much it will hold then; 0: in none */
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
    uint32_t n_queued, n_idle; /* idle: free sequences */
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
    bool scored, aside_scored; /* the last pass was a scoring lane's, which is alone; the last interruption was */
    /* A pass that may be interrupted for others, and what is computed meanwhile (sched_aside.c). */
    bool may_pause, aside; /* aside: the lists above are those of the interruption */
    clb_span *aside_spans;
    clb_lane **aside_in_pass; /* [n_sequences] */
    uint64_t pass_began_ns, text_ns;   /* of the pass; when lanes that generate last had a row, or nobody did */
    uint64_t aside_ns, aside_began_ns; /* spent in interruptions; the same when the pass began */
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

/* sched_choose.c */
#define CLB_SCHED_FEWEST_ROWS 32u /* of prompts in a pass: fewer would cost more than they let others wait */
/* Lanes that read their prompts and are not in flight, in the order in which they get rows: s->reading. */
uint32_t clb_sched_sort_reading(clb_scheduler *s);
/* Rows that prompts may have in the next pass. may_break: it can be interrupted or given up. */
uint32_t clb_sched_prompt_rows(const clb_scheduler *s, uint32_t n_reading, bool may_break);
/* Fills spans and in_pass; returns the rows of prompts. text: lanes that generate take part. */
uint32_t clb_sched_choose(clb_scheduler *s, uint32_t n_reading, uint32_t rows, bool text);

/* sched_pass.c: one pass over some of the lanes. *ran: there was something to do. An error is not one request's. */
int clb_sched_pass(clb_scheduler *s, bool *ran, clb_error *err);
/* What was chosen is computed; then its lanes go on. */
void clb_sched_run_chosen(clb_scheduler *s, uint32_t prompt_rows, clb_error *err);
/* Lanes whose own work failed end their requests. */
void clb_sched_fail_lanes(clb_scheduler *s);
bool clb_sched_cancelled(void *scheduler);

/* sched_aside.c */
bool clb_sched_pauses(const clb_scheduler *s); /* long passes can be interrupted */
bool clb_sched_text_waits(const clb_scheduler *s); /* somebody outside of the pass generates */
void clb_sched_pause(void *scheduler);         /* the pass's pause hook (clb_forward_pause_by) */
/* No strategy ever drops anything: any pieces of a prompt give the same. */
static inline bool clb_sched_keeps_all(const clb_scheduler *s)
{
    return !s->o.engine->kv_choice.traits.evicts;
}
/* The first choice's prompt is scored, once. */
static inline bool clb_lane_scores(const clb_lane *lane)
{
    return lane->state == CLB_LANE_READS && lane->request->o.score_prompt && lane->first_read && !lane->choice;
}
/* Tokens of goal that are not held yet. */
static inline uint32_t clb_lane_left(const clb_lane *lane)
{
    return (uint32_t)(lane->goal.n - lane->held.n);
}

/* scheduler.c */
/* Requests that are cancelled or late end, those that can start do; none that has a lane in flight is touched. */
void clb_sched_look_around(clb_scheduler *s, bool stopping);
void clb_request_fail(clb_scheduler *s, clb_request *r, int status, const char *message);
/* A lane has ended; the last one ends the request. */
void clb_request_lane_over(clb_scheduler *s, clb_request *r);
void clb_request_event_out(const clb_request *r, const clb_request_event *event);

/* sched_stats.c */
void clb_sched_count_pass(clb_scheduler *s, uint32_t prompt_rows, uint32_t generated, uint64_t ns);
void clb_sched_publish(clb_scheduler *s);

#endif
