/* colibri perplexity: how well the model predicts a text. */
#include <stdlib.h>

#include "engine/kv_settings.h"
#include "engine/perplexity.h"
#include "model_run.h"

static const clb_flag flags[] = {
    {"file", 'f', "FILE", "the text (- for standard input)", false},
    {"chunks", 0, "N", "stop after N chunks", false},
    {"no-special", 0, NULL, "treat special tokens written in the text as plain text", false},
    {"json", 'j', NULL, "print one JSON object", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SET_COUNT};

#define DEFAULT_CHUNK 512u

struct progress {
    const clb_log *log;
};

static void on_chunk(void *ctx, const clb_perplexity *p, uint32_t n_total)
{
    const struct progress *progress = ctx;
    clb_progress(progress->log, "chunks", p->n_chunks, n_total);
    clb_logf(progress->log, COLIBRI_LOG_INFO, "chunk %u of %u: %.4f", p->n_chunks, n_total, clb_perplexity_value(p));
}

static int parse_chunks(const char *text, uint32_t *out, clb_error *err)
{
    *out = 0;
    if (!text)
        return COLIBRI_OK;
    char *end;
    const unsigned long n = strtoul(text, &end, 10);
    if (*end || end == text || n == 0 || n > 1000000000)
        return clb_fail(err, COLIBRI_E_USAGE, "--chunks %s: must be a whole number from 1", text);
    *out = (uint32_t)n;
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    const char *file = clb_args_value(args, "file");
    if (!file)
        return clb_fail(err, COLIBRI_E_USAGE, "no text given: use -f FILE");
    uint32_t max_chunks;
    CLB_TRY(parse_chunks(clb_args_value(args, "chunks"), &max_chunks, err));
    clb_engine *engine = NULL;
    clb_buf text = {0};
    clb_tokens ids = {0};
    clb_perplexity p;
    struct progress progress = {clb_args_log(args)};
    char types[CLB_KV_LAYOUT_TEXT];
    int rc = COLIBRI_OK;
    CLB_GO(clb_read_input(file, &text, err));
    CLB_GO(clb_open_engine(args, &engine, err));
    const uint32_t flags_special = clb_args_has(args, "no-special") ? 0 : CLB_TOKENIZE_SPECIAL;
    CLB_GO(clb_tokenize(engine->vocab, text.data, text.n, CLB_TOKENIZE_BOS | flags_special, &ids, err));
    const bool ctx_given = clb_config_u64(clb_args_config(args), CLB_SET_model_ctx) != 0;
    const uint32_t n_ctx = ctx_given || engine->ctx < DEFAULT_CHUNK ? engine->ctx : DEFAULT_CHUNK;
    CLB_GO(clb_perplexity_run(engine, ids.ids, ids.n, n_ctx, max_chunks, on_chunk, &progress, &p, err));
    if (clb_args_has(args, "json")) {
        CLB_GO(
            clb_json_print(json_pack("{s:f, s:f, s:i, s:i, s:I, s:I, s:s, s:b}", "perplexity",
                                     clb_perplexity_value(&p), "stderr", clb_perplexity_stderr(&p), "n_ctx",
                                     (int)n_ctx, "chunks", (int)p.n_chunks, "scored_tokens", (json_int_t)p.n_scored,
                                     "text_tokens", (json_int_t)ids.n, "kv_types",
                                     clb_kv_layout_text(&engine->kv_layout, types), "kv_lossy",
                                     (int)clb_kv_layout_lossy(&engine->kv_layout)),
                           err));
    } else {
        printf("perplexity %.4f +/- %.4f (%u chunks of %u tokens, %llu scored)\n", clb_perplexity_value(&p),
               clb_perplexity_stderr(&p), p.n_chunks, n_ctx, (unsigned long long)p.n_scored);
        if (clb_kv_layout_lossy(&engine->kv_layout))
            printf("lossy: KV cache in %s\n", clb_kv_layout_text(&engine->kv_layout, types));
    }
done:
    clb_engine_close(engine);
    clb_tokens_free(&ids);
    clb_buf_free(&text);
    return rc;
}

const struct clb_command clb_command_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text",
    .usage = "colibri perplexity -m MODEL -f FILE [--ctx N] [--chunks N] [flags]",
    .description = "Cuts the text into chunks of --ctx tokens (512 unless given), processes each on its own and scores "
                   "the second half of "
                   "it, as llama-perplexity does: exp of the mean negative log-likelihood, with its standard error.",
    .examples = "colibri perplexity -m model.gguf -f wiki.test.raw --chunks 16   # the first 16 chunks\n"
                "colibri perplexity -m model.gguf -f book.txt --ctx 2048 --json   # for scripts",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
