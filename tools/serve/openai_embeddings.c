/* POST /v1/embeddings. */
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/openai_prompts.h"

static const clb_field fields[] = {
    {"input", CLB_FIELD_USED, NULL},      {"model", CLB_FIELD_USED, NULL},   {"encoding_format", CLB_FIELD_USED, NULL},
    {"dimensions", CLB_FIELD_USED, NULL}, {"user", CLB_FIELD_IGNORED, NULL}, {NULL, CLB_FIELD_USED, NULL},
};

struct embeddings {
    clb_json_buf *vectors; /* [n] as JSON */
    size_t n;
    bool base64;
};

static void free_own(void *p)
{
    struct embeddings *const own = p;
    for (size_t i = 0; i < own->n && own->vectors; i++)
        clb_jb_free(&own->vectors[i]);
    free(own->vectors);
    free(own);
}

/* Numbers as their little-endian bytes. */
static void put_base64(const float *v, size_t n, clb_json_buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0, n_bits = 0;
    clb_jb_raw(out, "\"");
    for (size_t i = 0; i < n * 4; i++) {
        uint32_t word;
        memcpy(&word, &v[i / 4], sizeof word);
        bits = bits << 8 | (word >> (i % 4 * 8) & 0xff);
        for (n_bits += 8; n_bits >= 6; n_bits -= 6)
            clb_jb_bytes(out, &digits[bits >> (n_bits - 6) & 63], 1);
    }
    if (n_bits)
        clb_jb_bytes(out, &digits[bits << (6 - n_bits) & 63], 1);
    for (size_t i = n * 4; i % 3; i++)
        clb_jb_raw(out, "=");
    clb_jb_raw(out, "\"");
}

static int embedded(clb_completion *c, uint32_t prompt, const float *v, size_t n, clb_error *err)
{
    struct embeddings *const own = clb_completion_own(c);
    clb_json_buf *const out = &own->vectors[prompt];
    if (own->base64) {
        put_base64(v, n, out);
    } else {
        clb_jb_raw(out, "[");
        for (size_t i = 0; i < n; i++) {
            if (i)
                clb_jb_raw(out, ",");
            clb_jb_real(out, (double)v[i]);
        }
        clb_jb_raw(out, "]");
    }
    return out->failed ? CLB_NOMEM(err, "an embedding") : COLIBRI_OK;
}

static int text(clb_completion *c, clb_choice *ch, const char *t, size_t n, const clb_token_info *tokens,
                size_t n_tokens, clb_json_buf *out, clb_error *err)
{
    (void)c, (void)ch, (void)t, (void)n, (void)tokens, (void)n_tokens, (void)out;
    return clb_fail(err, COLIBRI_E_INTERNAL, "an embedding came with text");
}

static int end(clb_completion *c, clb_json_buf *out, clb_error *err)
{
    const struct embeddings *own = clb_completion_own(c);
    const uint64_t n_prompt = clb_completion_usage(c)->n_prompt;
    clb_jb_raw(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < own->n; i++) {
        if (!own->vectors[i].buf.n)
            return clb_fail(err, COLIBRI_E_INTERNAL, "input %zu has no embedding", i);
        clb_jb_raw(out, i ? ",{\"object\":\"embedding\",\"index\":" : "{\"object\":\"embedding\",\"index\":");
        clb_jb_uint(out, i);
        clb_jb_raw(out, ",\"embedding\":");
        clb_jb_bytes(out, own->vectors[i].buf.data, own->vectors[i].buf.n);
        clb_jb_raw(out, "}");
    }
    clb_jb_raw(out, "],\"model\":");
    clb_jb_text(out, clb_completion_app(c)->model_name);
    clb_jb_raw(out, ",\"usage\":{\"prompt_tokens\":");
    clb_jb_uint(out, n_prompt);
    clb_jb_raw(out, ",\"total_tokens\":");
    clb_jb_uint(out, n_prompt);
    clb_jb_raw(out, "}}");
    return COLIBRI_OK;
}

static const clb_completion_shape shape = {
    .prompt_param = "input",
    .refuse = clb_openai_refuse,
    .error = clb_openai_stream_error,
    .embedded = embedded,
    .text = text,
    .end = end,
    .free_own = free_own,
};

static int read_body(const clb_app *app, const json_t *body, clb_text_options *o, clb_openai_prompts *prompts,
                     struct embeddings *own, clb_refusal *r)
{
    static const char *const formats[] = {"float", "base64", NULL};
    const char *model = NULL;
    const int64_t n_embd = app->engine->model->hp.n_embd;
    int64_t dimensions = n_embd;
    size_t format = 0;
    CLB_TRY(clb_fields_check(body, "", (const clb_field *const[]){fields}, 1, r));
    CLB_TRY(clb_field_string(body, "model", &model, r));
    CLB_TRY(clb_field_choice(body, "encoding_format", formats, &format, r));
    CLB_TRY(clb_field_integer(body, "dimensions", 1, INT32_MAX, &dimensions, r));
    if (dimensions != n_embd) /* cutting a vector short is right only for models that were trained for it */
        return clb_refuse(r, "unsupported_value", "dimensions",
                          "Unsupported value: 'dimensions' can only be %lld with this model.", (long long)n_embd);
    CLB_TRY(clb_text_lora_read(o, body, r));
    CLB_TRY(clb_openai_prompts_read(app->engine->vocab, body, "input", NULL, CLB_TOKENIZE_BOS, prompts, r));
    own->base64 = format == 1;
    own->n = prompts->n;
    own->vectors = calloc(prompts->n, sizeof *own->vectors);
    return own->vectors ? COLIBRI_OK : clb_refuse_nomem(r);
}

void clb_serve_embeddings(void *ctx, clb_exchange *x)
{
    clb_app *const app = ctx;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    clb_refusal r = {0};
    clb_openai_prompts prompts = {0};
    clb_text_options o;
    struct embeddings *own = calloc(1, sizeof *own);
    clb_text_options_init(&o, app);
    o.embed = true;
    const int rc = own ? read_body(app, body, &o, &prompts, own, &r) : clb_refuse_nomem(&r);
    json_decref(body);
    clb_completion_start(app, x, &shape, rc ? &r : NULL, &o, prompts.tokens, prompts.n, own);
    clb_openai_prompts_free(&prompts);
}
