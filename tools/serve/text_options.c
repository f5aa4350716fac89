/* The fields that say how to generate, named alike by all endpoints. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "serve/completion.h"

/* The most bytes of a stop string: what is held back while it might still come. */
#define STOP_BYTES_MOST 1024

const clb_field clb_text_fields[] = {
    {"model", CLB_FIELD_USED, NULL},
    {"temperature", CLB_FIELD_USED, NULL},
    {"top_p", CLB_FIELD_USED, NULL},
    {"n", CLB_FIELD_USED, NULL},
    {"seed", CLB_FIELD_USED, NULL},
    {"stop", CLB_FIELD_USED, NULL},
    {"stream", CLB_FIELD_USED, NULL},
    {"stream_options", CLB_FIELD_USED, NULL},
    {"presence_penalty", CLB_FIELD_USED, NULL},
    {"frequency_penalty", CLB_FIELD_USED, NULL},
    {"logit_bias", CLB_FIELD_USED, NULL},
    {"max_tokens", CLB_FIELD_USED, NULL},
    /* of llama.cpp, vLLM and others */
    {"top_k", CLB_FIELD_USED, NULL},
    {"min_p", CLB_FIELD_USED, NULL},
    {"repeat_penalty", CLB_FIELD_USED, NULL},
    {"repetition_penalty", CLB_FIELD_USED, NULL},
    {"repeat_last_n", CLB_FIELD_USED, NULL},
    {"n_predict", CLB_FIELD_USED, NULL},
    {"ignore_eos", CLB_FIELD_USED, NULL},
    {"grammar", CLB_FIELD_USED, NULL},
    {"lora", CLB_FIELD_USED, NULL},
    {"json_schema", CLB_FIELD_USED, NULL},
    {"response_format", CLB_FIELD_USED, NULL},
    {"return_progress", CLB_FIELD_USED, NULL},
    {"timings_per_token", CLB_FIELD_USED, NULL},
    /* no influence on the text */
    {"user", CLB_FIELD_IGNORED, NULL},
    {"metadata", CLB_FIELD_IGNORED, NULL},
    {"store", CLB_FIELD_IGNORED, NULL},
    {"service_tier", CLB_FIELD_IGNORED, NULL},
    {"safety_identifier", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_options", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_key", CLB_FIELD_IGNORED, NULL},
    {"prompt_cache_retention", CLB_FIELD_IGNORED, NULL},
    {"cache_prompt", CLB_FIELD_IGNORED, NULL},
    /* samplers that there are not: fine while they are off, and so is what belongs to them */
    {"mirostat", CLB_FIELD_NEUTRAL, "0"},
    {"mirostat_tau", CLB_FIELD_IGNORED, NULL},
    {"mirostat_eta", CLB_FIELD_IGNORED, NULL},
    {"typical_p", CLB_FIELD_NEUTRAL, "1"},
    {"tfs_z", CLB_FIELD_NEUTRAL, "1"},
    {"top_a", CLB_FIELD_NEUTRAL, "0"},
    {"top_n_sigma", CLB_FIELD_NEUTRAL, "-1"},
    {"xtc_probability", CLB_FIELD_NEUTRAL, "0"},
    {"xtc_threshold", CLB_FIELD_IGNORED, NULL},
    {"dry_multiplier", CLB_FIELD_NEUTRAL, "0"},
    {"dry_base", CLB_FIELD_IGNORED, NULL},
    {"dry_allowed_length", CLB_FIELD_IGNORED, NULL},
    {"dry_penalty_last_n", CLB_FIELD_IGNORED, NULL},
    {"dry_sequence_breakers", CLB_FIELD_IGNORED, NULL},
    {"dynatemp_range", CLB_FIELD_NEUTRAL, "0"},
    {"dynatemp_exponent", CLB_FIELD_IGNORED, NULL},
    {"min_tokens", CLB_FIELD_NEUTRAL, "0"},
    {"min_keep", CLB_FIELD_NEUTRAL, "0"},
    {"n_probs", CLB_FIELD_NEUTRAL, "0"},
    {"id_slot", CLB_FIELD_NEUTRAL, "-1"},
    {"samplers", CLB_FIELD_REFUSED, "the order of samplers is fixed"},
    {NULL, CLB_FIELD_USED, NULL},
};

static const clb_field stream_fields[] = {
    {"include_usage", CLB_FIELD_USED, NULL},
    {"include_obfuscation", CLB_FIELD_IGNORED, NULL},
    {NULL, CLB_FIELD_USED, NULL},
};

static uint64_t fresh_seed(void)
{
    uint32_t seed; /* 32 bits: short enough to type again */
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint32_t)clb_now_ns();
    return seed ? seed : 1;
}

void clb_text_options_init(clb_text_options *o, clb_app *app)
{
    *o = (clb_text_options){.n_choices = 1, .n_logprobs = -1};
    pthread_mutex_lock(app->settings_lock);
    o->sampling = app->sampling;
    o->max_tokens = app->max_tokens;
    pthread_mutex_unlock(app->settings_lock);
    if (!o->sampling.seed)
        o->sampling.seed = fresh_seed();
}

void clb_text_options_free(clb_text_options *o)
{
    for (size_t i = 0; i < o->n_stops; i++)
        free(o->stops[i]);
    free(o->stops);
    free(o->bias);
    free(o->lora);
    clb_grammar_release(o->grammar);
    *o = (clb_text_options){.n_choices = 1, .n_logprobs = -1};
}

static int add_stop(clb_text_options *o, const json_t *v, const char *param, clb_refusal *r)
{
    if (!json_is_string(v))
        return clb_refuse_type(r, param, "a string", v);
    const size_t n = json_string_length(v);
    if (n == 0) /* would end every text before it begins: nobody means that */
        return COLIBRI_OK;
    if (n > STOP_BYTES_MOST)
        return clb_refuse(r, "string_above_max_length", param,
                          "Invalid '%s': a stop string of %zu bytes is longer than %d.", param, n, STOP_BYTES_MOST);
    char *copy = strdup(json_string_value(v));
    if (!copy)
        return clb_refuse_nomem(r);
    o->stops[o->n_stops++] = copy;
    return COLIBRI_OK;
}

int clb_text_stops_read(clb_text_options *o, const json_t *body, const char *name, clb_refusal *r)
{
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return COLIBRI_OK;
    if (!json_is_string(v) && !json_is_array(v))
        return clb_refuse_type(r, name, "a string or an array of strings", v);
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > CLB_STOPS_MOST)
        return clb_refuse(r, "array_above_max_length", name,
                          "Invalid '%s': array too long. Expected at most %d strings, but got %zu.", name,
                          CLB_STOPS_MOST, n);
    o->stops = calloc(n + 1, sizeof *o->stops);
    if (!o->stops)
        return clb_refuse_nomem(r);
    for (size_t i = 0; i < n; i++) {
        char param[64];
        snprintf(param, sizeof param, json_is_array(v) ? "%s[%zu]" : "%s", name, i);
        CLB_TRY(add_stop(o, json_is_array(v) ? json_array_get(v, i) : v, param, r));
    }
    return COLIBRI_OK;
}

/* "123" of a token id; false: it is none. */
static bool token_id(const char *s, uint32_t n_vocab, uint32_t *id)
{
    const size_t n = strlen(s);
    if (n == 0 || n > 10 || strspn(s, "0123456789") != n)
        return false;
    const unsigned long long v = strtoull(s, NULL, 10);
    *id = (uint32_t)v;
    return v < n_vocab;
}

static int read_bias(clb_text_options *o, const json_t *body, uint32_t n_vocab, clb_refusal *r)
{
    json_t *map, *value;
    const char *key;
    CLB_TRY(clb_field_object(body, "logit_bias", &map, r));
    const size_t n = map ? json_object_size(map) : 0;
    if (n == 0)
        return COLIBRI_OK;
    o->bias = calloc(n, sizeof *o->bias);
    if (!o->bias)
        return clb_refuse_nomem(r);
    json_object_foreach(map, key, value)
    {
        uint32_t id;
        if (!token_id(key, n_vocab, &id))
            return clb_refuse(r, "invalid_value", "logit_bias",
                              "Invalid key in 'logit_bias': '%.40s'. Expected a token id from 0 to %u.", key,
                              n_vocab - 1);
        double bias = 0;
        char name[64];
        snprintf(name, sizeof name, "logit_bias.%s", key);
        if (json_is_null(value))
            return clb_refuse_type(r, name, "a number", value);
        CLB_TRY(clb_field_number(map, name, -100, 100, &bias, r));
        o->bias[o->n_bias++] = (clb_bias){id, bias <= -100 ? -INFINITY : (float)bias};
    }
    return COLIBRI_OK;
}

int clb_text_lora_read(clb_text_options *o, const json_t *body, clb_refusal *r)
{
    static const clb_field lora_fields[] = {
        {"id", CLB_FIELD_USED, NULL}, {"scale", CLB_FIELD_USED, NULL}, {NULL, CLB_FIELD_USED, NULL}};
    json_t *list, *item;
    size_t i;
    CLB_TRY(clb_field_array(body, "lora", &list, r));
    if (!list)
        return COLIBRI_OK;
    o->lora_given = true;
    if (json_array_size(list) > CLB_LORA_MOST)
        return clb_refuse(r, "array_above_max_length", "lora", "Invalid 'lora': more than %d adapters.",
                          (int)CLB_LORA_MOST);
    o->lora = calloc(json_array_size(list) + 1, sizeof *o->lora);
    if (!o->lora)
        return clb_refuse_nomem(r);
    json_array_foreach(list, i, item)
    {
        char where[32], name[48];
        int64_t id = -1;
        double scale = 1;
        snprintf(where, sizeof where, "lora[%zu]", i);
        if (!json_is_object(item))
            return clb_refuse_type(r, where, "an object", item);
        CLB_TRY(clb_fields_check(item, where, (const clb_field *const[]){lora_fields}, 1, r));
        snprintf(name, sizeof name, "%s.id", where);
        CLB_TRY(clb_field_integer(item, name, 0, UINT32_MAX, &id, r));
        if (id < 0)
            return clb_refuse_missing(r, name);
        snprintf(name, sizeof name, "%s.scale", where);
        CLB_TRY(clb_field_number(item, name, -100, 100, &scale, r));
        o->lora[o->n_lora++] = (clb_lora_use){(uint32_t)id, (float)scale};
    }
    return COLIBRI_OK;
}

static int read_penalties(clb_text_options *o, const json_t *body, uint32_t ctx, clb_refusal *r)
{
    clb_sampler_params *s = &o->sampling;
    int64_t last = s->repeat_last_n;
    CLB_TRY(clb_field_number(body, "presence_penalty", -2, 2, &s->presence_penalty, r));
    CLB_TRY(clb_field_number(body, "frequency_penalty", -2, 2, &s->frequency_penalty, r));
    CLB_TRY(clb_field_number(body, "repetition_penalty", 0.01, 10, &s->repeat_penalty, r));
    CLB_TRY(clb_field_number(body, "repeat_penalty", 0.01, 10, &s->repeat_penalty, r));
    CLB_TRY(clb_field_integer(body, "repeat_last_n", -1, INT32_MAX, &last, r));
    s->repeat_last_n = last < 0 || last > (int64_t)ctx ? ctx : (uint32_t)last;
    return COLIBRI_OK;
}

static int read_sampling(clb_text_options *o, const json_t *body, double hottest, uint32_t ctx, clb_refusal *r)
{
    clb_sampler_params *s = &o->sampling;
    int64_t top_k = s->top_k, seed = -1;
    CLB_TRY(clb_field_number(body, "temperature", 0, hottest, &s->temperature, r));
    CLB_TRY(clb_field_number(body, "top_p", 0, 1, &s->top_p, r));
    CLB_TRY(clb_field_number(body, "min_p", 0, 1, &s->min_p, r));
    CLB_TRY(clb_field_integer(body, "top_k", -1, INT32_MAX, &top_k, r));
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    CLB_TRY(clb_field_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, r));
    const json_t *given = json_object_get(body, "seed");
    if (json_is_integer(given)) /* -1: llama.cpp's word for a fresh one */
        s->seed = seed == -1 ? fresh_seed() : (uint64_t)seed;
    return read_penalties(o, body, ctx, r);
}

static int read_stream(clb_text_options *o, const json_t *body, clb_refusal *r)
{
    json_t *options;
    CLB_TRY(clb_field_bool(body, "stream", &o->stream, r));
    CLB_TRY(clb_field_bool(body, "return_progress", &o->return_progress, r));
    CLB_TRY(clb_field_bool(body, "timings_per_token", &o->timings_per_token, r));
    CLB_TRY(clb_field_object(body, "stream_options", &options, r));
    if (!options)
        return COLIBRI_OK;
    if (!o->stream)
        return clb_refuse(r, "invalid_value", "stream_options",
                          "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    CLB_TRY(clb_fields_check(options, "stream_options", (const clb_field *const[]){stream_fields}, 1, r));
    return clb_field_bool(options, "stream_options.include_usage", &o->include_usage, r);
}

int clb_text_options_read(clb_text_options *o, const clb_app *app, const json_t *body, double hottest, clb_refusal *r)
{
    const char *model = NULL;
    int64_t n = 1;
    CLB_TRY(clb_field_string(body, "model", &model, r)); /* any name will do: there is one model */
    CLB_TRY(read_sampling(o, body, hottest, app->engine->ctx, r));
    CLB_TRY(clb_field_integer(body, "n", 1, CLB_CHOICES_MOST, &n, r));
    if (app->parallel && n > (int64_t)app->parallel)
        return clb_refuse(r, "integer_above_max_value", "n",
                          "Invalid 'n': %lld choices. This server generates at most %u at once (--parallel).",
                          (long long)n, app->parallel);
    o->n_choices = (uint32_t)n;
    CLB_TRY(clb_field_bool(body, "ignore_eos", &o->ignore_eog, r));
    CLB_TRY(clb_text_lora_read(o, body, r));
    CLB_TRY(read_stream(o, body, r));
    return read_bias(o, body, clb_vocab_size(app->engine->vocab), r);
}

int clb_text_limit_read(clb_text_options *o, const json_t *body, const char *const *names, int64_t least,
                        clb_refusal *r)
{
    for (bool found = false; *names; names++) {
        int64_t most = -2;
        const json_t *v = json_object_get(body, *names);
        if (json_is_integer(v) && json_integer_value(v) == -1) /* llama.cpp's word for no limit */
            most = -1;
        else
            CLB_TRY(clb_field_integer(body, *names, least, UINT32_MAX, &most, r));
        if (most == -2 || found)
            continue;
        found = true;
        o->no_text = most == 0;
        o->max_tokens = most < 0 ? 0 : (uint32_t)most;
    }
    return COLIBRI_OK;
}
