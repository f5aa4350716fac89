/* Inside completion*.c and watch.c. */
#ifndef CLB_SERVE_COMPLETION_INTERNAL_H
#define CLB_SERVE_COMPLETION_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/completion.h"

/* One prompt. */
typedef struct clb_completion_item {
    clb_completion *c;
    uint32_t prompt;
    uint32_t n_prompt, n_done, n_reused; /* as far as is known */
    bool started;
    _Atomic(clb_request *) request; /* set once, after submitting */
} clb_completion_item;

struct clb_completion {
    clb_app *app;
    clb_exchange *x;
    const clb_completion_shape *shape;
    clb_text_options options;
    void *own;
    uint64_t created, began_ns, started_ns, first_text_ns;
    uint64_t timeout_ns, queue_timeout_ns, silence_ns; /* as the settings were at the start; 0: none */
    uint32_t window;                 /* prompts at a time */
    atomic_int refs;                 /* its own until the reply is complete; the timer's while it looks */
    atomic_bool gone;                /* the client */
    clb_tokens *prompts;             /* [n_prompts]; emptied when submitted */
    clb_completion_item *items;
    size_t n_prompts;
    clb_choice *choices;
    size_t n_choices;

    pthread_mutex_t lock; /* of all that follows */
    size_t next;          /* prompt to be submitted */
    uint32_t running;
    bool fresh;          /* nothing was submitted yet */
    bool submitting;     /* by some thread; what is to be sent waits until it is through */
    bool over;           /* the reply is being completed: nobody else may write */
    bool worded, begun;  /* the shape's beginning is in `out`; the stream has begun */
    clb_refusal refusal; /* http != 0: it fails with this */
    size_t n_ended;
    clb_choice *last; /* whose end waits for the requests' */
    bool done;
    clb_usage usage, live; /* of what is done; of what came so far */
    clb_json_buf out;
    uint64_t written_ns;

    struct clb_completion *before, *after; /* in the watch's list, under its lock */
};

void clb_completion_hold(clb_completion *c);
void clb_completion_drop(clb_completion *c);
/* From the timer: a comment if the stream was silent for long, the end if it was in the queue for too long, another try
 * for prompts that wait for a place. */
void clb_completion_tick(clb_completion *c, uint64_t now_ns);

/* completion.c; all but the first three under the lock */
void clb_completion_on_event(void *item, const clb_request_event *e);
void clb_completion_on_gone(void *completion);
/* Completes the reply: by the one thread that clb_completion_is_over said yes to. */
void clb_completion_finish(clb_completion *c);
bool clb_completion_is_over(clb_completion *c);
/* The first reason counts: what runs is cancelled, nothing more is submitted. */
void clb_completion_refuse(clb_completion *c, const clb_refusal *r);
void clb_completion_fail(clb_completion *c, int status, const char *message);
/* Sends what is in `out`; keeps it while prompts are being submitted, for none of them may be refused after the stream
 * has begun. */
void clb_completion_flush(clb_completion *c);

/* completion_start.c, without the lock: submits as many prompts as may run at once. Where the queue is full, prompts
 * beyond the first ones wait for the end of those that run, or for the timer. */
void clb_completion_submit(clb_completion *c);

void clb_watch_add(clb_watch *w, clb_completion *c);
void clb_watch_remove(clb_watch *w, clb_completion *c);

#endif
