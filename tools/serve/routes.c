/* The paths of the API. A handler's line stands here once its file exists. */
#include "serve/app.h"

#define OPEN  (CLB_ROUTE_PUBLIC | CLB_ROUTE_QUICK | CLB_ROUTE_EARLY)
#define QUICK CLB_ROUTE_QUICK

const clb_http_route clb_serve_routes[] = {
    {"GET", "/health", clb_serve_health, OPEN},
    {"GET", "/v1/health", clb_serve_health, OPEN},
    {"GET", "/models", clb_serve_models, OPEN},
    {"GET", "/v1/models", clb_serve_models, OPEN},
    {"GET", "/v1/models/", clb_serve_model, QUICK | CLB_ROUTE_EARLY | CLB_ROUTE_PREFIX},
    {"GET", "/metrics", clb_serve_metrics, QUICK | CLB_ROUTE_EARLY},
    {"GET", "/props", clb_serve_props, QUICK},
    {"GET", "/slots", clb_serve_slots, QUICK},
    {"GET", "/residency", clb_serve_residency, QUICK},
    {"POST", "/tokenize", clb_serve_tokenize, 0},
    {"POST", "/detokenize", clb_serve_detokenize, 0},
    {"POST", "/v1/chat/completions", clb_serve_chat_completions, 0},
    {"POST", "/chat/completions", clb_serve_chat_completions, 0},
    {"POST", "/v1/completions", clb_serve_completions, 0},
    {"POST", "/completions", clb_serve_completions, 0},
    {"POST", "/v1/responses", clb_serve_responses, 0},
    {"POST", "/responses", clb_serve_responses, 0},
    {"POST", "/v1/embeddings", clb_serve_embeddings, 0},
    {"POST", "/embeddings", clb_serve_embeddings, 0},
    {"POST", "/v1/messages", clb_serve_messages, 0},
    {"POST", "/v1/messages/count_tokens", clb_serve_count_tokens, 0},
    {"GET", "/lora-adapters", clb_serve_lora_list, 0},
    {"POST", "/lora-adapters", clb_serve_lora_load, 0},
    {"DELETE", "/lora-adapters/", clb_serve_lora_unload, CLB_ROUTE_PREFIX},
    {"GET", "/", clb_serve_page, OPEN},
    {"GET", "/index.html", clb_serve_page, OPEN},
    {"GET", "/machine.js", clb_serve_page, OPEN},
    {"GET", "/markdown.js", clb_serve_page, OPEN},
    {"GET", "/page.css", clb_serve_page, OPEN},
    {"GET", "/page.js", clb_serve_page, OPEN},
    {0},
};

bool clb_serve_admit(void *app, clb_exchange *x, const clb_http_route *route)
{
    const clb_app *const a = app;
    if ((route->flags & CLB_ROUTE_EARLY) || __atomic_load_n(&a->ready, __ATOMIC_ACQUIRE))
        return true;
    clb_exchange_set_header(x, "Retry-After", "5");
    clb_reply_json(x, 503,
                   json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", "Loading model", "type",
                             "unavailable_error", "param", "code", 503));
    return false;
}
