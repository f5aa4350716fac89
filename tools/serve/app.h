/* What the handlers of `colibri serve` share: the model, the scheduler, the limits that the operator set. */
#ifndef CLB_SERVE_APP_H
#define CLB_SERVE_APP_H

#include "config/config.h"
#include "engine/scheduler.h"
#include "serve/http.h"
#include "text/chat.h"

typedef struct clb_app {
    clb_engine *engine; /* of the engine's thread: others read what never changes (vocab, hparams, ctx) */
    clb_scheduler *scheduler;
    clb_http *http;
    const clb_log *log;
    const clb_chat_format *chat; /* NULL: the model has no template */
    const clb_token_tree *tree;  /* for grammars */
    char *model_name;            /* "model" of replies: --alias, or the file's name */
    uint64_t created;            /* Unix time of the start */
    uint64_t start_ns, load_ns;
    clb_sampler_params sampling; /* what a request starts from; guarded by `settings_lock` (SIGHUP) */
    uint32_t max_tokens;         /* [run] predict; 0: the context */
    uint64_t timeout_ns, queue_timeout_ns; /* 0: none */
    uint32_t keep_alive_s;       /* comments in a silent stream */
    const char *lora_dir;        /* adapters may be loaded from here; NULL: nowhere */
    bool ready;                  /* the model is there; atomic */
    void *settings_lock;         /* pthread_mutex_t */
    uint32_t parallel;           /* sequences of the scheduler */
    struct clb_metrics *metrics; /* metrics.h; NULL: nobody counts */
    const clb_config *config;    /* for /props; guarded by settings_lock */
    bool draining;               /* the end has begun; atomic */
    struct clb_watch *watch;     /* completion.h: clb_watch_start before the first request, clb_watch_stop after the last */
} clb_app;

/* Errors in OpenAI's shape: {"error":{"message","type","param","code"}}. param and code may be NULL. */
void clb_reply_error(clb_exchange *x, int http_status, const char *type, const char *param, const char *code, const char *fmt, ...)
    CLB_PRINTF(6, 7);
/* The same for a status of the engine: LIMIT of a prompt becomes context_length_exceeded, a full queue 429 with Retry-After, a drain
 * 503, NOMEM 503, USAGE 400, the rest 500. */
void clb_reply_status(clb_exchange *x, int status, const char *message);
/* The body as a JSON object; NULL after it has answered 400. json_decref it. */
json_t *clb_exchange_json(clb_exchange *x);

/* All handlers that there are, and what stands before them: nothing but early routes while the model is being loaded. */
extern const clb_http_route clb_serve_routes[]; /* routes.c */
bool clb_serve_admit(void *app, clb_exchange *x, const clb_http_route *route);

/* Handlers, one file each. */
void clb_serve_chat_completions(void *app, clb_exchange *x);      /* openai_chat.c */
void clb_serve_completions(void *app, clb_exchange *x);           /* openai_completions.c */
void clb_serve_responses(void *app, clb_exchange *x);             /* openai_responses.c */
void clb_serve_embeddings(void *app, clb_exchange *x);            /* openai_embeddings.c */
void clb_serve_messages(void *app, clb_exchange *x);              /* anthropic.c */
void clb_serve_count_tokens(void *app, clb_exchange *x);          /* anthropic.c */
void clb_serve_models(void *app, clb_exchange *x);                /* info.c */
void clb_serve_model(void *app, clb_exchange *x);
void clb_serve_health(void *app, clb_exchange *x);
void clb_serve_props(void *app, clb_exchange *x);
void clb_serve_slots(void *app, clb_exchange *x);
void clb_serve_metrics(void *app, clb_exchange *x);               /* metrics.c */
void clb_serve_residency(void *app, clb_exchange *x);             /* residency.c */
void clb_serve_tokenize(void *app, clb_exchange *x);              /* tokenize.c */
void clb_serve_detokenize(void *app, clb_exchange *x);
void clb_serve_lora_list(void *app, clb_exchange *x);             /* lora.c */
void clb_serve_lora_load(void *app, clb_exchange *x);
void clb_serve_lora_unload(void *app, clb_exchange *x);
void clb_serve_page(void *app, clb_exchange *x);                  /* page.c */

#endif
