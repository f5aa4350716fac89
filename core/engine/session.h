/* A session: one sequence with its tokens, prompts in chunks, generation with stop strings.
 *
 * [engine-thread] */
#ifndef CLB_ENGINE_SESSION_H
#define CLB_ENGINE_SESSION_H

#include "engine/engine.h"
#include "grammar/grammar.h"

typedef struct clb_session clb_session;

int clb_session_create(clb_engine *engine, clb_session **out, clb_error *err);
void clb_session_destroy(clb_session *s);
void clb_session_reset(clb_session *s);
/* From here on it neither takes prefixes that others computed nor gives its own: for measurements, where every token of a prompt
 * is to be computed. */
void clb_session_keep_apart(clb_session *s);

clb_engine *clb_session_engine(clb_session *s);
const clb_kv_seq *clb_session_kv(const clb_session *s);
size_t clb_session_n_tokens(const clb_session *s);
/* The first n tokens of what is fed are the system prompt: no strategy drops them, no context shift either. Stays after a
 * reset, until told otherwise. LIMIT if the KV budget leaves nothing beside them. */
int clb_session_protect(clb_session *s, uint32_t n, clb_error *err);
uint32_t clb_session_protected(const clb_session *s);
/* With context-shift: drops the older half of the tokens behind the protected start (system prompt, kv-protect) and computes
 * what is left again, so that the session is what a fresh one over the shorter text would be. LIMIT if nothing can be dropped. */
int clb_session_shift(clb_session *s, clb_error *err);
/* What a full context of n tokens keeps of which n_system are protected by a caller: the first *first, and the last *keep. */
void clb_shift_rule(const clb_engine *engine, size_t n, size_t n_system, size_t *first, size_t *keep);
/* Shifts so far, and the tokens that they dropped. */
typedef struct clb_shifts {
    uint32_t n;
    uint64_t dropped;
} clb_shifts;
clb_shifts clb_session_shifts(const clb_session *s);
/* Another token needs a shift first. */
bool clb_session_full(const clb_session *s);
/* Logits after the last token fed; valid until the next call that feeds. */
const float *clb_session_logits(const clb_session *s);

/* Makes the session hold exactly ids[0..n) with logits after the last one. Tokens that it already holds as a prefix, or that
 * others have computed (kv-share), are not computed again (*reused says how many); n >= 1. LIMIT, before computing anything, if the context is too small.
 * Long prompts report progress through the engine's log. */
int clb_session_feed(clb_session *s, const uint32_t *ids, size_t n, size_t *reused, clb_error *err);
/* Where the tokens came from that the last clb_session_feed did not compute: the session itself, other sequences or earlier ones
 * (kv-share), the drive (prompt-cache). */
typedef struct clb_reuse {
    uint32_t session, memory, disk;
} clb_reuse;
clb_reuse clb_session_reuse(const clb_session *s);
/* Appends n tokens of a prompt in chunks, whatever the session holds; logits after the last one. LIMIT as above. */
int clb_session_extend(clb_session *s, const uint32_t *ids, size_t n, clb_error *err);
/* Appends one token. */
int clb_session_append(clb_session *s, uint32_t token, clb_error *err);

enum clb_finish { CLB_FINISH_STOP = 0, CLB_FINISH_LENGTH = 1, CLB_FINISH_CONTEXT = 2, CLB_FINISH_CANCELLED = 3 };
const char *clb_finish_name(enum clb_finish finish); /* "stop", "length", "context", "cancelled" */

typedef struct clb_generate_options {
    clb_sampler_params sampling;
    uint32_t max_tokens;      /* 0: until the context is full; never, if the strategy evicts or the context shifts */
    const char *const *stops; /* strings that end the text; not part of it */
    size_t n_stops;
    bool ignore_eog;
    bool special; /* show control tokens */
    /* Text in whole UTF-8 characters, as soon as it cannot be the start of a stop string. A status other than OK
     * ends the generation with it. May be NULL. */
    int (*on_text)(void *ctx, const char *text, size_t n, clb_error *err);
    void *ctx;
    bool (*cancelled)(void *ctx); /* polled between tokens; may be NULL */
    void *cancelled_ctx;
    clb_matcher *matcher; /* says which tokens may come, and ends the text where nothing more may; borrowed; NULL: all may */
} clb_generate_options;

typedef struct clb_generation {
    clb_buf text;
    clb_tokens tokens; /* generated ones, the end-of-generation token not included */
    enum clb_finish finish;
    const char *stop;            /* the stop string that ended it, or NULL */
    uint32_t n_prompt, n_reused; /* tokens of the prompt; of those, not computed */
    clb_reuse reuse;             /* and where these came from */
    uint64_t prompt_ns, decode_ns;
} clb_generation;

/* Feeds the prompt, then samples. On an error the text so far is in *out; free with clb_generation_free either way. */
int clb_session_generate(clb_session *s, const uint32_t *prompt, size_t n, const clb_generate_options *options,
                         clb_generation *out, clb_error *err);
void clb_generation_free(clb_generation *g);

#endif
