/* Stand-ins for the HTTP side and the scheduler, so that handlers can be called, and fed with events, one step at a
 * time. Included by one file of a test: it defines the functions. */
#ifndef CLB_TESTS_SERVE_FAKE_H
#define CLB_TESTS_SERVE_FAKE_H

#include "support.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "serve/app.h"
#include "serve/completion.h"

/* ---- an exchange ---- */

struct clb_exchange {
    const char *body;
    int status;  /* 0: not answered */
    clb_buf out; /* what was sent */
    char type[64], headers[256];
    bool streams, ended;
    void (*gone)(void *ctx);
    void *gone_ctx;
};

const char *clb_exchange_id(const clb_exchange *x)
{
    (void)x;
    return "0123";
}

clb_str clb_exchange_body(const clb_exchange *x)
{
    return (clb_str){x->body, strlen(x->body)};
}

const char *clb_exchange_header(clb_exchange *x, const char *name)
{
    (void)x, (void)name;
    return NULL;
}

void clb_exchange_set_header(clb_exchange *x, const char *name, const char *value)
{
    assert_int_equal(x->status, 0);
    const size_t n = strlen(x->headers);
    snprintf(x->headers + n, sizeof x->headers - n, "%s: %s\n", name, value);
}

void clb_reply(clb_exchange *x, int status, const char *content_type, const void *data, size_t n)
{
    clb_error err;
    assert_int_equal(x->status, 0);
    x->status = status;
    x->ended = true;
    snprintf(x->type, sizeof x->type, "%s", content_type);
    assert_ok(clb_buf_append(&x->out, data, n, &err), &err);
}

void clb_reply_json(clb_exchange *x, int status, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT);
    assert_non_null(text);
    clb_reply(x, status, "application/json", text, strlen(text));
    free(text);
    json_decref(body);
}

void clb_stream_begin(clb_exchange *x, const char *content_type)
{
    assert_int_equal(x->status, 0);
    x->status = 200;
    x->streams = true;
    snprintf(x->type, sizeof x->type, "%s", content_type);
}

bool clb_stream_write(clb_exchange *x, const void *data, size_t n)
{
    clb_error err;
    assert_true(x->streams && !x->ended);
    assert_ok(clb_buf_append(&x->out, data, n, &err), &err);
    return true;
}

void clb_stream_end(clb_exchange *x)
{
    assert_true(x->streams && !x->ended);
    x->ended = true;
}

void clb_exchange_on_gone(clb_exchange *x, void (*fn)(void *ctx), void *ctx)
{
    x->gone = fn;
    x->gone_ctx = ctx;
}

static inline void exchange_reset(clb_exchange *x, const char *body)
{
    clb_buf_free(&x->out);
    *x = (clb_exchange){.body = body};
}

/* ---- a scheduler ---- */

struct clb_request {
    clb_request_options o; /* what it points to is gone after the submitting */
    uint32_t *prompt;
    size_t n_prompt;
    bool cancelled, over;
};

#define FAKE_REQUESTS 64
static struct {
    clb_request *requests[FAKE_REQUESTS];
    size_t n;           /* submitted so far */
    size_t released;    /* handles */
    int refuse;         /* status of the next submit */
    size_t refuse_from; /* and of all from this one on */
    const char *message;
} fake;
static pthread_mutex_t fake_guard = PTHREAD_MUTEX_INITIALIZER; /* the timer submits, too */

int clb_scheduler_submit(clb_scheduler *s, const clb_request_options *options, clb_request **out, clb_error *err)
{
    (void)s;
    pthread_mutex_lock(&fake_guard);
    const int refuse = fake.n >= fake.refuse_from ? fake.refuse : 0;
    if (refuse)
        clb_error_set(err, refuse, "%s", fake.message);
    pthread_mutex_unlock(&fake_guard);
    if (refuse)
        return refuse;
    clb_request *const r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->o = *options;
    r->n_prompt = options->n_prompt;
    r->prompt = malloc(options->n_prompt * sizeof *r->prompt + 1);
    assert_non_null(r->prompt);
    memcpy(r->prompt, options->prompt, options->n_prompt * sizeof *r->prompt);
    pthread_mutex_lock(&fake_guard);
    assert_true(fake.n < FAKE_REQUESTS);
    *out = fake.requests[fake.n++] = r;
    pthread_mutex_unlock(&fake_guard);
    return COLIBRI_OK;
}

void clb_request_cancel(clb_request *r)
{
    r->cancelled = true;
}

void clb_request_release(clb_request *r)
{
    if (r)
        fake.released++;
}

static inline void fake_refuse(int status, const char *message)
{
    pthread_mutex_lock(&fake_guard);
    fake.refuse = status;
    fake.message = message;
    pthread_mutex_unlock(&fake_guard);
}

static inline size_t fake_submitted(void)
{
    pthread_mutex_lock(&fake_guard);
    const size_t n = fake.n;
    pthread_mutex_unlock(&fake_guard);
    return n;
}

static inline void fake_reset(void)
{
    for (size_t i = 0; i < fake.n; i++) {
        free(fake.requests[i]->prompt);
        free(fake.requests[i]);
    }
    memset(&fake, 0, sizeof fake);
}

static inline void fake_event(size_t request, clb_request_event e)
{
    clb_request *const r = fake.requests[request];
    assert_true(request < fake.n && !r->over);
    e.n_prompt = (uint32_t)r->n_prompt;
    r->over = e.kind == CLB_EVENT_DONE;
    r->o.on_event(r->o.ctx, &e);
}

static inline void fake_text(size_t request, uint32_t choice, const char *text)
{
    fake_event(request,
               (clb_request_event){.kind = CLB_EVENT_TEXT, .choice = choice, .text = text, .n_text = strlen(text)});
}

static inline void fake_choice(size_t request, uint32_t choice, enum clb_finish finish, uint32_t n_generated)
{
    fake_event(request, (clb_request_event){
                            .kind = CLB_EVENT_CHOICE, .choice = choice, .finish = finish, .n_generated = n_generated});
}

static inline void fake_done(size_t request, int status, const char *message, uint32_t n_generated)
{
    fake_event(request, (clb_request_event){
                            .kind = CLB_EVENT_DONE, .status = status, .message = message, .n_generated = n_generated});
}

/* ---- the server's state ---- */

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

/* The embedded tiny model's vocabulary and template, no weights. */
static inline void fake_app_open(clb_app *app)
{
    clb_error err;
    clb_engine *const e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->model = calloc(1, sizeof *e->model);
    assert_non_null(e->model);
    assert_ok(clb_gguf_open(TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), NULL, NULL, &e->gguf, &err), &err);
    assert_ok(clb_vocab_load(e->gguf, &e->vocab, &err), &err);
    e->model->hp.n_embd = 8;
    e->ctx = 2048;
    *app = (clb_app){
        .engine = e,
        .model_name = (char[]){"tiny"},
        .parallel = 4,
        .settings_lock = &fake_lock,
        .sampling = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .repeat_penalty = 1, .repeat_last_n = 64}};
    static char name[] = "tiny";
    app->model_name = name;
    assert_ok(clb_chat_detect(e->gguf, &app->chat, &err), &err);
    assert_ok(clb_watch_start(app, &err), &err);
}

static inline void fake_app_close(clb_app *app)
{
    clb_watch_stop(app);
    clb_chat_free(app->chat);
    clb_vocab_free(app->engine->vocab);
    clb_gguf_close(app->engine->gguf);
    free(app->engine->model);
    free(app->engine);
    fake_reset();
}

#endif
