/* The requests behind one reply: what /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/messages share.
 *
 * An endpoint reads its body into clb_text_options and prompts, and hands both over with clb_completion_start. From
 * then on the scheduler's events come in, and its shape puts them into words: into a stream's events as they come, or
 * into one JSON body at the end. The rest happens here: prompts are submitted together, but no more at a time than the
 * engine runs at once; the stream begins with the first text, so that what goes wrong before is a plain HTTP error; a
 * silent stream gets a comment from time to time; a client that goes away cancels its own requests and no others.
 *
 * A shape's functions are called with the completion locked, by the engine's thread or a timer: they must not block. */
#ifndef CLB_SERVE_COMPLETION_H
#define CLB_SERVE_COMPLETION_H

#include "serve/app.h"
#include "serve/fields.h"
#include "serve/json_write.h"

#define CLB_CHOICES_MOST 128
#define CLB_STOPS_MOST   64

/* How to generate. What it points to belongs to it: clb_text_options_free. */
typedef struct clb_text_options {
    clb_sampler_params sampling;
    uint32_t n_choices;  /* per prompt */
    uint32_t max_tokens; /* of each choice; 0: the context */
    int n_logprobs;      /* -1: none */
    clb_bias *bias;
    size_t n_bias;
    char **stops;
    size_t n_stops;
    clb_grammar *grammar;
    clb_lora_use *lora; /* adapters of this request */
    size_t n_lora;
    bool lora_given; /* exactly these, also if there are none */
    uint32_t n_protected;
    bool ignore_eog, special, score_prompt, embed;
    bool no_text; /* nothing is generated: max_tokens 0 */
    bool stream, include_usage, return_progress, timings_per_token;
} clb_text_options;

/* What the operator set: temperature and so on, the limit of tokens; one choice, no stream; a fresh seed unless one is
 * set. */
void clb_text_options_init(clb_text_options *o, clb_app *app);
void clb_text_options_free(clb_text_options *o);
/* The sampling fields that all endpoints name alike: temperature (up to `hottest`), top_p, top_k, min_p, repeat_penalty
 * and its neighbours, presence_penalty, frequency_penalty, seed, n, logit_bias, ignore_eos, stream, stream_options,
 * return_progress. Only what the body holds is read: clb_text_fields, for clb_fields_check, are the names that OpenAI's
 * endpoints have in common. */
int clb_text_options_read(clb_text_options *o, const clb_app *app, const json_t *body, double hottest, clb_refusal *r);
/* max_tokens: the first of `names` (ends with NULL) that is given, at least `least`; -1 is no limit. */
int clb_text_limit_read(clb_text_options *o, const json_t *body, const char *const *names, int64_t least,
                        clb_refusal *r);
/* "lora": [{"id", "scale"}]. clb_text_options_read does it, too. */
int clb_text_lora_read(clb_text_options *o, const json_t *body, clb_refusal *r);
/* One string or several. */
int clb_text_stops_read(clb_text_options *o, const json_t *body, const char *name, clb_refusal *r);
extern const clb_field clb_text_fields[];

typedef struct clb_completion clb_completion;

typedef struct clb_choice {
    uint32_t index;  /* in the reply: prompt * n + choice */
    uint32_t prompt; /* which one it continues */
    bool opened;     /* for the shape: its first event was written */
    bool ended;
    enum clb_finish finish; /* once it has ended */
    const char *stop;       /* the stop string that ended it, or NULL */
    uint32_t n_generated;
    clb_json_buf text; /* without a stream: for the shape to gather text in, as it is or as JSON */
    clb_json_buf logprobs[4];
    void *own; /* the shape's: a parser of tool calls, ... */
} clb_choice;

typedef struct clb_usage {
    uint64_t n_prompt, n_reused, n_generated; /* sums over the prompts, each counted once */
    uint64_t n_thoughts;                      /* of the generated ones, as far as the shape tells */
    uint64_t queued_ns, prompt_ns, decode_ns; /* longest of the prompts */
} clb_usage;

typedef struct clb_progress_info {
    uint32_t n_prompt, n_done, n_reused;
    uint64_t ns; /* since the request came */
} clb_progress_info;

/* How an endpoint puts events into words. `out` collects what is sent next; it is the stream's, or without one the
 * body's (and only `end` may write there). Functions that may be NULL say so. A status other than OK ends the
 * completion with an error. */
typedef struct clb_completion_shape {
    const char *prompt_param; /* the field that a prompt comes from, for refusals; may be NULL */
    /* A refusal before anything was sent. */
    void (*refuse)(clb_exchange *x, const clb_refusal *r);
    /* The same in the middle of a stream, as an event. */
    void (*error)(clb_completion *c, const clb_refusal *r, clb_json_buf *out);
    /* What a stream begins with. May be NULL. */
    void (*begin)(clb_completion *c, clb_json_buf *out);
    /* A stream with return_progress: part of a prompt was read. May be NULL. */
    void (*progress)(clb_completion *c, clb_choice *first, const clb_progress_info *p, clb_json_buf *out);
    /* score_prompt: log probabilities of a prompt's tokens and the text that their offsets are about, before its
     * choices' text. May be NULL. */
    int (*scored)(clb_completion *c, uint32_t prompt, const char *text, size_t n_text, const clb_token_info *tokens,
                  size_t n, clb_error *err);
    /* embed: one vector per prompt. May be NULL. */
    int (*embedded)(clb_completion *c, uint32_t prompt, const float *v, size_t n, clb_error *err);
    int (*text)(clb_completion *c, clb_choice *ch, const char *text, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err);
    /* The choice has ended. That of the last one comes after all requests are done, so that usage and times are known.
     */
    int (*choice_end)(clb_completion *c, clb_choice *ch, clb_json_buf *out, clb_error *err);
    /* All went well: what a stream ends with, or the whole body. */
    int (*end)(clb_completion *c, clb_json_buf *out, clb_error *err);
    /* Instead of a comment in a silent stream ("event: ping ..."). NULL: a comment. */
    void (*ping)(clb_completion *c, clb_json_buf *out);
    /* Releases choice->own and own. May be NULL. */
    void (*free_choice)(clb_choice *ch);
    void (*free_own)(void *own);
} clb_completion_shape;

/* Answers, now or later, whatever happens. options, the prompts' ids and own are the completion's from here on, also if
 * it refuses; what the pointers point to is emptied (prompts itself stays the caller's array). refused: what was wrong
 * with the request, which is the answer then; NULL: nothing. */
void clb_completion_start(clb_app *app, clb_exchange *x, const clb_completion_shape *shape, const clb_refusal *refused,
                          clb_text_options *options, clb_tokens *prompts, size_t n_prompts, void *own);

/* For shapes. */
clb_app *clb_completion_app(const clb_completion *c);
clb_exchange *clb_completion_exchange(const clb_completion *c);
void *clb_completion_own(const clb_completion *c);
const clb_text_options *clb_completion_options(const clb_completion *c);
uint64_t clb_completion_created(const clb_completion *c); /* Unix time */
size_t clb_completion_n_choices(const clb_completion *c);
clb_choice *clb_completion_choice(clb_completion *c, size_t i);
/* As far as it is known; final in `end` and in the last `choice_end`. */
const clb_usage *clb_completion_usage(const clb_completion *c);
void clb_completion_add_thoughts(clb_completion *c, uint64_t n_tokens);
/* All requests are done: usage is final. */
bool clb_completion_done(const clb_completion *c);

/* The timer behind silent streams and prompts that wait for a place; one per server, in app->watch. start before the
 * first request, stop after the last one. */
typedef struct clb_watch clb_watch;
int clb_watch_start(clb_app *app, clb_error *err);
void clb_watch_stop(clb_app *app);

#endif
