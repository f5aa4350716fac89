/* What the server says about itself: health, models, properties, running requests. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/settings.h"
#include "serve/app.h"

#define SLOTS_MOST 256

void clb_serve_health(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    const bool draining = __atomic_load_n(&a->draining, __ATOMIC_ACQUIRE);
    if (draining || !__atomic_load_n(&a->ready, __ATOMIC_ACQUIRE)) {
        clb_exchange_set_header(x, "Retry-After", "5");
        clb_reply_json(x, 503,
                       json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message",
                                 draining ? "Shutting down" : "Loading model", "type", "unavailable_error", "param",
                                 "code", 503));
        return;
    }
    clb_reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

/* ---- models ---- */

static json_t *model_meta(const clb_app *a)
{
    const clb_gguf *const g = a->engine->gguf;
    const clb_hparams *const hp = &a->engine->model->hp;
    uint64_t n_params = 0, bytes = 0;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++)
        n_params += clb_gguf_tensor_at(g, i)->n_elems;
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        bytes += clb_gguf_shard_size(g, i);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:I}", "architecture", a->engine->model->arch->name,
                     "n_vocab", (int)hp->n_vocab, "n_ctx", (int)a->engine->ctx, "n_ctx_train", (int)hp->n_ctx_train,
                     "n_embd", (int)hp->n_embd, "n_experts", (int)hp->n_experts, "n_params", (json_int_t)n_params,
                     "size", (json_int_t)bytes);
}

static json_t *model_json(const clb_app *a)
{
    json_t *const o = json_pack("{s:s, s:s, s:I, s:s}", "id", a->model_name, "object", "model", "created",
                                (json_int_t)a->created, "owned_by", "colibri");
    if (__atomic_load_n(&a->ready, __ATOMIC_ACQUIRE)) {
        json_object_set_new(o, "max_model_len", json_integer(a->engine->ctx));
        json_object_set_new(o, "meta", model_meta(a));
    }
    return o;
}

void clb_serve_models(void *app, clb_exchange *x)
{
    clb_reply_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(app)));
}

void clb_serve_model(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    const char *const name = clb_exchange_path(x) + strlen("/v1/models/");
    if (!strcmp(name, a->model_name))
        clb_reply_json(x, 200, model_json(a));
    else
        clb_reply_error(x, 404, "not_found_error", "model", "model_not_found",
                        "The model '%.200s' does not exist; this server has '%.200s'", name, a->model_name);
}

/* ---- properties ---- */

static json_t *sampling_json(const clb_app *a)
{
    const clb_sampler_params *const s = &a->sampling;
    return json_pack("{s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:I, s:I}", "temperature", s->temperature, "top_k",
                     (int)s->top_k, "top_p", s->top_p, "min_p", s->min_p, "repeat_penalty", s->repeat_penalty,
                     "presence_penalty", s->presence_penalty, "frequency_penalty", s->frequency_penalty,
                     "repeat_last_n", (int)s->repeat_last_n, "seed", (json_int_t)(s->seed & INT64_MAX), "max_tokens",
                     (json_int_t)a->max_tokens);
}

/* What was set by anybody, as text; keys are nobody's business. */
static json_t *settings_json(const clb_app *a)
{
    json_t *const o = json_object();
    for (int i = 0; a->config && i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        char name[sizeof info.section + sizeof info.key];
        if (!clb_config_is_set(a->config, info.id) || info.id == CLB_SET_serve_api_key)
            continue;
        snprintf(name, sizeof name, "%s.%s", info.section, info.key);
        json_object_set_new(o, name, json_string(clb_config_text(a->config, info.id)));
    }
    return o;
}

static json_t *template_json(const clb_app *a)
{
    clb_str jinja;
    if (clb_gguf_get_str(a->engine->gguf, "tokenizer.chat_template", &jinja, NULL))
        return json_null();
    json_t *const text = json_stringn(jinja.p, jinja.n);
    return text ? text : json_null(); /* not UTF-8 */
}

void clb_serve_props(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    pthread_mutex_lock(a->settings_lock);
    json_t *const sampling = sampling_json(a), *const settings = settings_json(a);
    pthread_mutex_unlock(a->settings_lock);
    clb_reply_json(x, 200,
                   json_pack("{s:{s:i, s:o}, s:i, s:i, s:s, s:s, s:s?, s:o, s:{s:b, s:b}, s:s, s:o}",
                             "default_generation_settings", "n_ctx", (int)a->engine->ctx, "params", sampling,
                             "total_slots", (int)a->parallel, "n_ctx", (int)a->engine->ctx, "model_alias",
                             a->model_name, "model_path", clb_gguf_shard_path(a->engine->gguf, 0), "chat_format",
                             a->chat ? clb_chat_name(a->chat) : NULL, "chat_template", template_json(a), "modalities",
                             "vision", 0, "audio", 0, "build_info", "colibri " COLIBRI_VERSION, "settings", settings));
}

/* Those that run, then a line for each free place. */
void clb_serve_slots(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    clb_slot_info running[SLOTS_MOST];
    size_t n = clb_scheduler_slots(a->scheduler, running, SLOTS_MOST);
    n = n < SLOTS_MOST ? n : SLOTS_MOST;
    json_t *const list = json_array();
    for (size_t i = 0; i < n; i++) {
        const clb_slot_info *const s = &running[i];
        json_array_append_new(list, json_pack("{s:i, s:I, s:b, s:s, s:i, s:i, s:i, s:i, s:f}", "id", (int)i, "id_task",
                                              (json_int_t)s->id, "is_processing", 1, "state",
                                              s->reading ? "reading" : "generating", "n_ctx", (int)a->engine->ctx,
                                              "n_prompt", (int)s->n_prompt, "n_done", (int)s->n_done, "n_generated",
                                              (int)s->n_generated, "seconds", (double)s->age_ns / 1e9));
    }
    for (size_t i = n; i < a->parallel; i++)
        json_array_append_new(list, json_pack("{s:i, s:b, s:s, s:i}", "id", (int)i, "is_processing", 0, "state", "idle",
                                              "n_ctx", (int)a->engine->ctx));
    clb_reply_json(x, 200, list);
}
