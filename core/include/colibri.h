/* Colibri's embedding API: open a model, feed tokens, generate.
 *
 * Handles are opaque. Functions return a status of colibri/status.h (COLIBRI_OK is 0) and, where they take one, fill a
 * colibri_error with one line on what failed, where, and what to do. One engine is used by one thread at a time;
 * different engines are independent. Only names that start with colibri_ are exported; structs start with struct_size,
 * which the caller sets, and only grow at the end. */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stddef.h>
#include <stdint.h>

#include "colibri/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_API __attribute__((visibility("default")))

typedef struct colibri_error {
    int code;
    char message[1024];
} colibri_error;

COLIBRI_API const char *colibri_version(void);         /* "0.1.0" */
COLIBRI_API const char *colibri_status_name(int code); /* "NOT_FOUND" */

/* ---- settings: the names of `colibri config list` ---- */

typedef struct colibri_options colibri_options;

COLIBRI_API int colibri_options_create(colibri_options **out, colibri_error *err);
COLIBRI_API void colibri_options_destroy(colibri_options *options);
/* "section.key=value", or "key=value" where the key is unique: "model.model=/models/m.gguf", "max-memory=8G". */
COLIBRI_API int colibri_options_set(colibri_options *options, const char *assignment, colibri_error *err);
/* An INI file; later calls win over earlier ones. */
COLIBRI_API int colibri_options_load(colibri_options *options, const char *ini_path, colibri_error *err);
/* Warnings and information go to fn (levels: 0 error, 1 warning, 2 info, 3 debug); NULL: nowhere. */
COLIBRI_API void colibri_options_log(colibri_options *options, void (*fn)(void *ctx, int level, const char *line),
                                     void *ctx);
/* The folder of the plugins; NULL: the one that belongs to this installation. Copied. */
COLIBRI_API int colibri_options_plugin_dir(colibri_options *options, const char *dir, colibri_error *err);

/* ---- engine ---- */

typedef struct colibri_engine colibri_engine;

/* Loads the model of options; options may be destroyed afterwards. n_sessions >= 1: sessions that may exist at once. */
COLIBRI_API int colibri_engine_open(const colibri_options *options, uint32_t n_sessions, colibri_engine **out,
                                    colibri_error *err);
COLIBRI_API void colibri_engine_close(colibri_engine *engine); /* after its sessions */
COLIBRI_API uint32_t colibri_n_vocab(const colibri_engine *engine);
COLIBRI_API uint32_t colibri_n_ctx(const colibri_engine *engine);
COLIBRI_API int colibri_is_end(const colibri_engine *engine, uint32_t token); /* end of generation? */

/* ids[0..cap): as many as fit; *n is how many there are, so call again with more room if *n > cap. special: special
 * tokens written in the text are recognised; BOS and EOS are added as the vocabulary says. */
COLIBRI_API int colibri_tokenize(const colibri_engine *engine, const char *text, size_t text_n, int special,
                                 uint32_t *ids, size_t cap, size_t *n, colibri_error *err);
/* Bytes of one token (may be part of a character), at most cap; *n as above. Control tokens have none. */
COLIBRI_API int colibri_token_bytes(const colibri_engine *engine, uint32_t token, char *bytes, size_t cap, size_t *n,
                                    colibri_error *err);
/* The prompt of a conversation in the model's chat format: roles and contents are arrays of n strings ("system",
 * "user", "assistant"); the assistant's turn is opened at the end. Contents cannot smuggle in special tokens. */
COLIBRI_API int colibri_chat_prompt(const colibri_engine *engine, const char *const *roles, const char *const *contents,
                                    size_t n_messages, uint32_t *ids, size_t cap, size_t *n, colibri_error *err);

/* ---- sessions: one sequence each ---- */

typedef struct colibri_session colibri_session;

COLIBRI_API int colibri_session_create(colibri_engine *engine, colibri_session **out, colibri_error *err);
COLIBRI_API void colibri_session_destroy(colibri_session *session);
COLIBRI_API void colibri_session_reset(colibri_session *session);
/* Makes the session hold exactly ids[0..n); a common prefix with what it holds is not computed again. */
COLIBRI_API int colibri_session_feed(colibri_session *session, const uint32_t *ids, size_t n, colibri_error *err);
COLIBRI_API int colibri_session_append(colibri_session *session, uint32_t token, colibri_error *err);
/* [n_vocab], of the token after the last one fed; valid until the next call on this session. */
COLIBRI_API const float *colibri_session_logits(const colibri_session *session);

typedef struct colibri_generate_options {
    size_t struct_size;
    uint32_t max_tokens;                                        /* 0: until the context is full; never, if the strategy evicts */
    double temperature;                                         /* 0: greedy */
    uint32_t top_k;                                             /* 0: all */
    double top_p, min_p;                                        /* 1 and 0: off */
    double repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    uint32_t repeat_last_n; /* tokens that the penalties look at; 0: none, whatever the penalties */
    uint64_t seed;
    const char *const *stops;
    size_t n_stops;
    /* Whole UTF-8 characters as they come; nonzero stops. May be NULL. */
    int (*on_text)(void *ctx, const char *text, size_t n);
    void *ctx;
} colibri_generate_options;

/* struct_size and neutral values: greedy, no penalties (those set later look at 64 tokens), 256 tokens. The size is the
 * caller's, so that a library with a longer struct neither writes beyond it nor reads what the caller does not know. */
COLIBRI_API void colibri_generate_defaults_sized(colibri_generate_options *options, size_t struct_size);
static inline void colibri_generate_defaults(colibri_generate_options *options)
{
    colibri_generate_defaults_sized(options, sizeof *options);
}

/* Feeds the prompt and generates. *finish (may be NULL): "stop", "length", "context" or "cancelled", static. */
COLIBRI_API int colibri_generate(colibri_session *session, const uint32_t *prompt, size_t n,
                                 const colibri_generate_options *options, const char **finish, colibri_error *err);

#ifdef __cplusplus
}
#endif

#endif
