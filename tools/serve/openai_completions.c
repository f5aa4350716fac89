/* POST /v1/completions. */
#include <stdlib.h>

#include "serve/openai_completions.h"

static const clb_field fields[] = {
    {"prompt", CLB_FIELD_USED, NULL},
    {"suffix", CLB_FIELD_USED, NULL},
    {"echo", CLB_FIELD_USED, NULL},
    {"logprobs", CLB_FIELD_USED, NULL},
    {"best_of", CLB_FIELD_USED, NULL},
    {"skip_special_tokens", CLB_FIELD_NEUTRAL, "true"},
    {"messages", CLB_FIELD_REFUSED, "messages go to /v1/chat/completions"},
    {NULL, CLB_FIELD_USED, NULL},
};

static int read_choices(clb_text_options *o, const json_t *body, clb_refusal *r)
{
    int64_t logprobs = -1, best_of = o->n_choices;
    CLB_TRY(clb_field_integer(body, "logprobs", 0, CLB_TOP_LOGPROBS_MOST, &logprobs, r));
    CLB_TRY(clb_field_integer(body, "best_of", 1, CLB_CHOICES_MOST, &best_of, r));
    if (best_of != (int64_t)o->n_choices)
        return clb_refuse(r, "unsupported_value", "best_of",
                          "Unsupported value: 'best_of' can only be the same as 'n' (%u) here.", o->n_choices);
    o->n_logprobs = (int)logprobs;
    return COLIBRI_OK;
}

static int read_body(clb_app *app, const json_t *body, clb_text_options *o, clb_openai_prompts *prompts, bool *echo,
                     clb_refusal *r)
{
    static const char *const limits[] = {"max_tokens", "n_predict", NULL};
    const char *suffix = NULL, *format_param;
    clb_buf gbnf = {0};
    CLB_TRY(clb_fields_check(body, "", (const clb_field *const[]){fields, clb_text_fields}, 2, r));
    CLB_TRY(clb_text_options_read(o, app, body, 2, r));
    CLB_TRY(clb_text_stops_read(o, body, "stop", r));
    CLB_TRY(clb_text_limit_read(o, body, limits, 0, r));
    CLB_TRY(read_choices(o, body, r));
    CLB_TRY(clb_field_bool(body, "echo", echo, r));
    o->score_prompt = *echo && o->n_logprobs >= 0;
    CLB_TRY(clb_field_string(body, "suffix", &suffix, r));
    if (suffix && *suffix && *echo)
        return clb_refuse(r, "invalid_value", "echo", "'echo' and 'suffix' cannot be combined.");
    int rc = clb_openai_format_read(body, &gbnf, &format_param, r);
    if (!rc && gbnf.n)
        rc = clb_openai_grammar(o, &gbnf, format_param, r);
    clb_buf_free(&gbnf);
    CLB_TRY(rc);
    CLB_TRY(clb_openai_prompts_read(app->engine->vocab, body, "prompt", suffix && *suffix ? suffix : NULL,
                                    CLB_TOKENIZE_BOS | CLB_TOKENIZE_SPECIAL, prompts, r));
    if (prompts->n * o->n_choices > CLB_PROMPTS_MOST)
        return clb_refuse(r, "integer_above_max_value", "n", "Invalid 'n': %u choices of %zu prompts are more than %d.",
                          o->n_choices, prompts->n, CLB_PROMPTS_MOST);
    return COLIBRI_OK;
}

void clb_serve_completions(void *ctx, clb_exchange *x)
{
    clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_text_options o;
    clb_openai_prompts prompts = {0};
    clb_completions_own *own = NULL;
    bool echo = false;
    clb_text_options_init(&o, app);
    int rc = read_body(app, body, &o, &prompts, &echo, &r);
    json_decref(body);
    if (!rc)
        rc = clb_completions_own_create(app->engine->vocab, &prompts, echo, &own, &r);
    clb_completion_start(app, x, &clb_openai_completions_shape, rc ? &r : NULL, &o, prompts.tokens, prompts.n, own);
    clb_openai_prompts_free(&prompts);
}
