/* The scheduler: many requests on one engine, in one batch.
 *
 * One thread owns the engine and calls clb_scheduler_run; any thread submits and cancels. A pass holds one row of every
 * request that generates, and pieces of the prompts that are being read; a pass with prompts in it is kept to about
 * `slice_ns` while others generate or wait, so that a long prompt does not stop their text; a longer pass is interrupted
 * for a new request (sched_aside.c) or, if the weights do not all stay in memory, given up and repeated later (bounded:
 * prompts still get on). Prompts with the least left go first,
 * but each one that waits gets its turn. Tokens of a request are those of a lone run with the same seed: rows depend on
 * their own sequence alone, and where a strategy evicts, passes end where those of a lone run do.
 *
 * At most `n_sequences` of the engine run at once; the others wait in a queue of at most `queue` requests in order of
 * arrival. */
#ifndef CLB_ENGINE_SCHEDULER_H
#define CLB_ENGINE_SCHEDULER_H

#include "engine/adapters.h"
#include "engine/logprobs.h"
#include "engine/session.h"
#include "grammar/grammar.h"

typedef struct clb_scheduler clb_scheduler;
typedef struct clb_request clb_request; /* a handle: from submit to clb_request_release */

#define CLB_TOP_LOGPROBS_MOST 20

/* One token of the text (its log probabilities are those before biases, penalties and sampling), given out with the
 * event that holds its last byte. */
typedef struct clb_token_info {
    uint32_t token;
    uint32_t text_offset; /* of its first byte in the text of its choice (in the prompt's text for prompt tokens) */
    uint32_t n_bytes;
    clb_logprob self; /* with n_logprobs >= 0; NaN for the first token of a prompt */
    uint32_t n_top;
    clb_logprob top[CLB_TOP_LOGPROBS_MOST]; /* best first */
} clb_token_info;

enum clb_event_kind {
    CLB_EVENT_STARTED,  /* left the queue */
    CLB_EVENT_PROMPT,   /* part of the prompt was read (n_done of n_prompt, n_reused of them not computed) */
    CLB_EVENT_SCORED,   /* with score_prompt, once: tokens[] are the prompt's */
    CLB_EVENT_EMBEDDED, /* with embed, once, instead of text: embedding[n_embedding] */
    CLB_EVENT_TEXT,     /* text in whole characters that cannot be part of a stop string; tokens[] that end in it */
    CLB_EVENT_CHOICE,   /* a choice has ended: finish, stop, n_generated */
    CLB_EVENT_DONE      /* the last event: status and message; usage and times */
};

typedef struct clb_request_event {
    enum clb_event_kind kind;
    uint32_t choice;
    uint32_t n_prompt, n_done, n_reused;
    const char *text; /* not terminated */
    size_t n_text;
    const clb_token_info *tokens;
    size_t n_tokens;
    const float *embedding;
    size_t n_embedding;
    enum clb_finish finish;
    const char *stop;     /* the stop string that ended it, or NULL */
    uint32_t n_generated; /* of the choice; DONE: of all choices */
    int status;           /* DONE: COLIBRI_OK, or why it failed; LIMIT after a timeout, CANCELLED after a cancel */
    const char *message;
    uint64_t queued_ns, prompt_ns, decode_ns;
} clb_request_event;

typedef struct clb_bias {
    uint32_t token;
    float bias; /* added to the logit; -INFINITY: never */
} clb_bias;

typedef struct clb_request_options {
    const uint32_t *prompt; /* [n_prompt], copied, n_prompt >= 1 */
    size_t n_prompt;
    uint32_t n_choices; /* >= 1; the prompt is read once. Choice i samples with seed + i */
    clb_sampler_params sampling;
    const clb_bias *bias; /* copied */
    size_t n_bias;
    clb_grammar *grammar;       /* held while the request lives; NULL: none */
    const clb_token_tree *tree; /* of the engine's vocabulary, with a grammar */
    const char *const *stops;   /* copied */
    size_t n_stops;
    uint32_t max_tokens; /* of each choice; 0: until the context is full */
    bool ignore_eog, special;
    uint32_t n_protected;     /* first tokens that no strategy drops (the system prompt) */
    int n_logprobs;           /* -1: none; 0..CLB_TOP_LOGPROBS_MOST: the token's own and so many best */
    bool score_prompt;        /* SCORED: log probabilities of the prompt's tokens (n_logprobs >= 0); reuses no prefix */
    bool no_text;             /* ends after the prompt: for score_prompt */
    bool embed;               /* EMBEDDED: the mean of the final norm's output over the prompt, of length 1 */
    const clb_lora_use *lora; /* copied; NULL: the default ones */
    size_t n_lora;
    bool lora_given;     /* lora[] counts even if it is empty */
    uint64_t timeout_ns; /* from submit to the end; 0: none */
    /* [engine-thread] Must not block. Pointers in the event are valid during the call. After DONE nothing comes. */
    void (*on_event)(void *ctx, const clb_request_event *event);
    void *ctx;
} clb_request_options;

typedef struct clb_scheduler_options {
    clb_engine *engine; /* opened with n_sequences >= 1 and used by nobody else */
    uint32_t n_sequences;
    uint32_t queue;    /* requests that may wait beyond those that can start at once */
    uint64_t slice_ns; /* what a pass with prompts shall take about while others generate; 0: the whole batch at once */
} clb_scheduler_options;

int clb_scheduler_create(const clb_scheduler_options *options, clb_scheduler **out, clb_error *err);
void clb_scheduler_destroy(clb_scheduler *s); /* after run has returned; handles may still be released */

/* [any-thread] USAGE (empty prompt, wrong values), LIMIT (the prompt does not fit the context: message with counts). A
 * full queue: BUSY; after clb_scheduler_drain: CANCELLED. */
int clb_scheduler_submit(clb_scheduler *s, const clb_request_options *options, clb_request **out, clb_error *err);
/* [any-thread] Ends it before the next pass; DONE still comes. */
void clb_request_cancel(clb_request *r);
void clb_request_release(clb_request *r);

/* [engine-thread] Serves until clb_scheduler_stop, or until drained. An error that is not one request's ends it. */
int clb_scheduler_run(clb_scheduler *s, clb_error *err);
void clb_scheduler_drain(clb_scheduler *s); /* [any-thread] takes nothing new; run returns when all is done */
void clb_scheduler_stop(clb_scheduler *s);  /* [any-thread, async-signal-safe] cancels everything; run returns */
/* [any-thread] Runs fn on the engine's thread between two passes and waits for it (adapters, saving a profile). */
int clb_scheduler_call(clb_scheduler *s, int (*fn)(void *ctx, clb_engine *engine, clb_error *err), void *ctx,
                       clb_error *err);

/* Takes over other values of these two options; who waits already stays. [any-thread] */
void clb_scheduler_set_limits(clb_scheduler *s, uint32_t queue, uint64_t slice_ns);

/* Figures as of the last pass; prompt_reused and kv_shared_bytes may be 250 ms older while requests run. [any-thread] */
typedef struct clb_scheduler_stats {
    uint32_t running, reading, waiting; /* requests: generating, reading their prompt, in the queue */
    uint64_t submitted, finished, cancelled, failed, refused;
    uint64_t prompt_tokens, prompt_reused, generated_tokens, passes, rows;
    uint64_t interruptions, given_up; /* passes that made way for others: for a small pass in between, or for good */
    uint64_t busy_ns, up_ns;
    double prompt_per_second, decode_per_second; /* of the last seconds; 0: nothing happened */
    uint64_t kv_used_bytes, kv_bytes, kv_shared_bytes;
    uint64_t expert_hits, expert_misses, expert_bytes_read, resident_bytes;
} clb_scheduler_stats;
void clb_scheduler_get_stats(clb_scheduler *s, clb_scheduler_stats *out);
/* One request's line for an operator's list. */
typedef struct clb_slot_info {
    uint64_t id;
    bool reading;
    uint32_t n_prompt, n_done, n_generated;
    uint64_t age_ns;
} clb_slot_info;
size_t clb_scheduler_slots(clb_scheduler *s, clb_slot_info *out, size_t cap); /* [any-thread] how many run */
/* Which experts are in memory: out[layer * n_experts + expert] = 1, of the MoE layers in order; *n_layers = *n_experts
 * = 0 for a dense model. Fails with LIMIT if cap is too small. [any-thread] */
int clb_scheduler_residency(clb_scheduler *s, uint8_t *out, size_t cap, uint32_t *n_layers, uint32_t *n_experts,
                            clb_error *err);

#endif
