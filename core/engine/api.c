/* The embedding API over engine and sessions. */
#include "colibri.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/session.h"
#include "text/chat.h"

_Static_assert(sizeof(colibri_error) == sizeof(clb_error), "the public error has the internal one's layout");

struct colibri_options {
    clb_config *config;
    clb_log log;
    char *plugin_dir;
};

struct colibri_engine {
    clb_engine *engine;
    clb_log log;
};

struct colibri_session {
    clb_session *session;
};

/* The caller's error, or one that nobody reads: the core always gets somewhere to write. */
#define inner(err) ((err) ? (clb_error *)(void *)(err) : &(clb_error){0})

/* The plugin folder beside this library, wherever the installation was moved to; false: it is not there. */
static bool plugin_dir_beside_library(char *out, size_t size)
{
    Dl_info info;
    if (!dladdr((const void *)(uintptr_t)&colibri_version, &info) || !info.dli_fname)
        return false;
    char *real = realpath(info.dli_fname, NULL);
    char *slash = real ? strrchr(real, '/') : NULL;
    bool found = false;
    if (slash) {
        struct stat st;
        *slash = '\0';
        const int n = snprintf(out, size, "%s/colibri/plugins", real);
        found = n > 0 && (size_t)n < size && stat(out, &st) == 0 && S_ISDIR(st.st_mode);
    }
    free(real);
    return found;
}

const char *colibri_version(void)
{
    return COLIBRI_VERSION;
}

const char *colibri_status_name(int code)
{
    return clb_status_name(code);
}

int colibri_options_create(colibri_options **out, colibri_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(inner(err), "options");
    const int rc = clb_config_create(&(*out)->config, inner(err));
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

void colibri_options_destroy(colibri_options *options)
{
    if (!options)
        return;
    clb_config_destroy(options->config);
    free(options->plugin_dir);
    free(options);
}

int colibri_options_set(colibri_options *options, const char *assignment, colibri_error *err)
{
    return clb_config_set(options->config, assignment, "application", inner(err));
}

int colibri_options_load(colibri_options *options, const char *ini_path, colibri_error *err)
{
    return clb_config_load_file(options->config, ini_path, inner(err));
}

void colibri_options_log(colibri_options *options, void (*fn)(void *ctx, int level, const char *line), void *ctx)
{
    options->log = (clb_log){.level = COLIBRI_LOG_INFO, .write = fn, .ctx = ctx};
}

int colibri_options_plugin_dir(colibri_options *options, const char *dir, colibri_error *err)
{
    char *copy = dir ? strdup(dir) : NULL;
    if (dir && !copy)
        return CLB_NOMEM(inner(err), "options");
    free(options->plugin_dir);
    options->plugin_dir = copy;
    return COLIBRI_OK;
}

int colibri_engine_open(const colibri_options *options, uint32_t n_sessions, colibri_engine **out, colibri_error *err)
{
    *out = NULL;
    if (n_sessions == 0)
        return clb_fail(inner(err), COLIBRI_E_USAGE, "n_sessions must be at least 1");
    colibri_engine *e = calloc(1, sizeof *e);
    if (!e)
        return CLB_NOMEM(inner(err), "engine");
    e->log = options->log;
    char dir[PATH_MAX];
    const char *plugin_dir = options->plugin_dir;
    if (!plugin_dir && plugin_dir_beside_library(dir, sizeof dir))
        plugin_dir = dir;
    const clb_engine_options o = {
        .config = options->config, .builtin_plugin_dir = plugin_dir, .log = &e->log, .n_sequences = n_sessions};
    const int rc = clb_engine_open(&o, &e->engine, inner(err));
    if (rc)
        free(e);
    else
        *out = e;
    return rc;
}

void colibri_engine_close(colibri_engine *engine)
{
    if (!engine)
        return;
    clb_engine_close(engine->engine);
    free(engine);
}

uint32_t colibri_n_vocab(const colibri_engine *engine)
{
    return engine->engine->model->hp.n_vocab;
}

uint32_t colibri_n_ctx(const colibri_engine *engine)
{
    return engine->engine->ctx;
}

int colibri_is_end(const colibri_engine *engine, uint32_t token)
{
    return token < clb_vocab_size(engine->engine->vocab) && clb_vocab_is_eog(engine->engine->vocab, token);
}

static void copy_ids(const clb_tokens *t, uint32_t *ids, size_t cap, size_t *n)
{
    *n = t->n;
    if (t->n && cap)
        memcpy(ids, t->ids, (t->n < cap ? t->n : cap) * sizeof *ids);
}

int colibri_tokenize(const colibri_engine *engine, const char *text, size_t text_n, int special, uint32_t *ids,
                     size_t cap, size_t *n, colibri_error *err)
{
    clb_tokens t = {0};
    const uint32_t flags = CLB_TOKENIZE_BOS | (special ? CLB_TOKENIZE_SPECIAL : 0);
    const int rc = clb_tokenize(engine->engine->vocab, text, text_n, flags, &t, inner(err));
    if (!rc)
        copy_ids(&t, ids, cap, n);
    clb_tokens_free(&t);
    return rc;
}

int colibri_token_bytes(const colibri_engine *engine, uint32_t token, char *bytes, size_t cap, size_t *n,
                        colibri_error *err)
{
    if (token >= clb_vocab_size(engine->engine->vocab))
        return clb_fail(inner(err), COLIBRI_E_USAGE, "token %u is outside the vocabulary", token);
    clb_buf buf = {0};
    const int rc = clb_token_bytes(engine->engine->vocab, token, false, &buf, inner(err));
    if (!rc) {
        *n = buf.n;
        if (buf.n && cap)
            memcpy(bytes, buf.data, buf.n < cap ? buf.n : cap);
    }
    clb_buf_free(&buf);
    return rc;
}

int colibri_chat_prompt(const colibri_engine *engine, const char *const *roles, const char *const *contents,
                        size_t n_messages, uint32_t *ids, size_t cap, size_t *n, colibri_error *err)
{
    const clb_chat_format *format;
    clb_tokens t = {0};
    CLB_TRY(clb_chat_detect(engine->engine->gguf, &format, inner(err)));
    clb_message *messages = calloc(n_messages ? n_messages : 1, sizeof *messages);
    if (!messages) {
        clb_chat_free(format);
        return CLB_NOMEM(inner(err), "messages");
    }
    for (size_t i = 0; i < n_messages; i++)
        messages[i] = (clb_message){roles[i], contents[i]};
    const int rc = clb_chat_tokenize(format, engine->engine->vocab, messages, n_messages, 1, &t, inner(err));
    if (!rc)
        copy_ids(&t, ids, cap, n);
    clb_tokens_free(&t);
    clb_chat_free(format);
    free(messages);
    return rc;
}

int colibri_session_create(colibri_engine *engine, colibri_session **out, colibri_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(inner(err), "session");
    const int rc = clb_session_create(engine->engine, &(*out)->session, inner(err));
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

void colibri_session_destroy(colibri_session *session)
{
    if (!session)
        return;
    clb_session_destroy(session->session);
    free(session);
}

void colibri_session_reset(colibri_session *session)
{
    clb_session_reset(session->session);
}

int colibri_session_feed(colibri_session *session, const uint32_t *ids, size_t n, colibri_error *err)
{
    return clb_session_feed(session->session, ids, n, NULL, inner(err));
}

int colibri_session_append(colibri_session *session, uint32_t token, colibri_error *err)
{
    return clb_session_append(session->session, token, inner(err));
}

const float *colibri_session_logits(const colibri_session *session)
{
    return clb_session_logits(session->session);
}

/* The struct of version 0.1: fields after it are optional. */
#define GENERATE_OPTIONS_MIN (offsetof(colibri_generate_options, ctx) + sizeof((colibri_generate_options *)0)->ctx)

void colibri_generate_defaults_sized(colibri_generate_options *options, size_t struct_size)
{
    const colibri_generate_options defaults = {
        .struct_size = struct_size, .max_tokens = 256, .top_p = 1.0, .repeat_penalty = 1.0, .repeat_last_n = 64};
    const size_t known = struct_size < sizeof defaults ? struct_size : sizeof defaults;
    memcpy(options, &defaults, known);
    memset((char *)options + known, 0, struct_size - known);
}

static int forward_text(void *ctx, const char *text, size_t n, clb_error *err)
{
    const colibri_generate_options *o = ctx;
    if (o->on_text(o->ctx, text, n))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped by the application");
    return COLIBRI_OK;
}

int colibri_generate(colibri_session *session, const uint32_t *prompt, size_t n,
                     const colibri_generate_options *options, const char **finish, colibri_error *err)
{
    if (options->struct_size < GENERATE_OPTIONS_MIN)
        return clb_fail(inner(err), COLIBRI_E_USAGE,
                        "colibri_generate_options.struct_size is %zu, want %zu: call colibri_generate_defaults first",
                        options->struct_size, sizeof *options);
    colibri_generate_options known; /* an older caller's struct may be shorter than ours, a newer one's longer */
    colibri_generate_defaults(&known);
    memcpy(&known, options, options->struct_size < sizeof known ? options->struct_size : sizeof known);
    options = &known;
    const clb_generate_options o = {
        .sampling = {.temperature = options->temperature,
                     .top_k = options->top_k,
                     .top_p = options->top_p,
                     .min_p = options->min_p,
                     .repeat_penalty = options->repeat_penalty,
                     .presence_penalty = options->presence_penalty,
                     .frequency_penalty = options->frequency_penalty,
                     .repeat_last_n = options->repeat_last_n,
                     .seed = options->seed},
        .max_tokens = options->max_tokens,
        .stops = options->stops,
        .n_stops = options->n_stops,
        .on_text = options->on_text ? forward_text : NULL,
        .ctx = (void *)(uintptr_t)options,
    };
    clb_generation g;
    int rc = clb_session_generate(session->session, prompt, n, &o, &g, inner(err));
    if (rc == COLIBRI_E_CANCELLED) { /* the application's own wish */
        g.finish = CLB_FINISH_CANCELLED;
        rc = COLIBRI_OK;
    }
    if (finish)
        *finish = rc ? NULL : clb_finish_name(g.finish);
    clb_generation_free(&g);
    return rc;
}
