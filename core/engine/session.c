#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

#include "kv/prefix.h"

struct clb_session {
    clb_engine *engine;
    clb_kv_seq *kv;
    clb_tokens tokens;
    float *logits;
    uint32_t n_system; /* protected first tokens */
    bool apart;        /* neither takes nor gives prefixes */
    clb_shifts shifts;
    clb_reuse reuse;
};

int clb_session_create(clb_engine *engine, clb_session **out, clb_error *err)
{
    *out = NULL;
    clb_session *s = calloc(1, sizeof *s);
    if (!s)
        return CLB_NOMEM(err, "session");
    s->engine = engine;
    s->logits = calloc(engine->model->hp.n_vocab, sizeof *s->logits);
    int rc = s->logits ? COLIBRI_OK : CLB_NOMEM(err, "session");
    if (!rc)
        rc = clb_engine_new_sequence(engine, &s->kv, err);
    if (rc) {
        clb_session_destroy(s);
        return rc;
    }
    *out = s;
    return COLIBRI_OK;
}

void clb_session_destroy(clb_session *s)
{
    if (!s)
        return;
    if (s->kv)
        clb_kv_seq_destroy(s->kv);
    clb_tokens_free(&s->tokens);
    free(s->logits);
    free(s);
}

void clb_session_reset(clb_session *s)
{
    clb_kv_seq_reset(s->kv);
    if (s->n_system)
        clb_kv_seq_protect(s->kv, s->n_system, NULL); /* it was possible before */
    s->tokens.n = 0;
}

int clb_session_protect(clb_session *s, uint32_t n, clb_error *err)
{
    CLB_TRY(clb_kv_seq_protect(s->kv, n, err));
    s->n_system = n;
    return COLIBRI_OK;
}

uint32_t clb_session_protected(const clb_session *s)
{
    return s->n_system;
}

clb_shifts clb_session_shifts(const clb_session *s)
{
    return s->shifts;
}

clb_reuse clb_session_reuse(const clb_session *s)
{
    return s->reuse;
}

void clb_session_keep_apart(clb_session *s)
{
    s->apart = true;
}

clb_engine *clb_session_engine(clb_session *s)
{
    return s->engine;
}

const clb_kv_seq *clb_session_kv(const clb_session *s)
{
    return s->kv;
}

size_t clb_session_n_tokens(const clb_session *s)
{
    return s->tokens.n;
}

const float *clb_session_logits(const clb_session *s)
{
    return s->logits;
}

static bool keeps_all(const clb_session *s)
{
    return !s->engine->kv_choice.traits.evicts;
}

bool clb_session_full(const clb_session *s)
{
    return clb_kv_seq_full(s->kv);
}

/* Brings the session back to a common prefix of its tokens and ids; returns its length. The last token of ids is always
 * computed, for its logits. */
static size_t rewind_to_prefix(clb_session *s, const uint32_t *ids, size_t n)
{
    size_t common = 0;
    while (common < s->tokens.n && common + 1 < n && s->tokens.ids[common] == ids[common])
        common++;
    if (common < s->tokens.n && clb_kv_seq_truncate(s->kv, (uint32_t)common, NULL)) {
        clb_session_reset(s); /* evicted positions cannot come back: start over */
        return 0;
    }
    s->tokens.n = common;
    return common;
}

/* Goes on from there with what others have computed. The last token again is left. */
static int take_prefix(clb_session *s, const uint32_t *ids, size_t n, clb_error *err)
{
    clb_kv_taken taken;
    size_t held = s->tokens.n;
    int rc = clb_kv_seq_take_prefix(s->kv, ids, (uint32_t)n - 1, &taken, err);
    s->tokens.n = held < clb_kv_seq_position(s->kv) ? held : clb_kv_seq_position(s->kv);
    for (; !rc && s->tokens.n < clb_kv_seq_position(s->kv);)
        rc = clb_tokens_push(&s->tokens, ids[s->tokens.n], err);
    if (rc) { /* half of it would be worse than none */
        clb_session_reset(s);
        return rc;
    }
    s->reuse = (clb_reuse){(uint32_t)held, taken.memory, taken.disk};
    return COLIBRI_OK;
}

static int run_chunk(clb_session *s, const uint32_t *ids, uint32_t n, enum colibri_phase phase, bool last,
                     clb_error *err)
{
    const clb_span span = {
        .kv = s->kv,
        .tokens = ids,
        .n = n,
        .n_logits = last ? 1 : 0,
        .phase = phase,
        .prefill_done = last && phase == COLIBRI_PHASE_PREFILL,
    };
    /* The list first: tokens in the KV cache that the list lacks would shift everything after them. */
    const size_t before = s->tokens.n;
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = clb_tokens_push(&s->tokens, ids[i], err);
    if (!rc)
        rc = clb_forward_run(s->engine->forward, &span, 1, s->logits, err);
    if (rc)
        s->tokens.n = before;
    else if (!s->apart)
        clb_kv_seq_give_prefix(s->kv, s->tokens.ids, (uint32_t)s->tokens.n);
    return rc;
}

/* Rows of the next pass. Where a strategy evicts, passes end where those of a fresh session would: what it drops
 * depends on them. */
static uint32_t chunk_of(const clb_session *s, size_t left)
{
    const uint32_t batch = s->engine->batch;
    const uint32_t most = keeps_all(s) ? batch : batch - clb_kv_seq_position(s->kv) % batch;
    return left < most ? (uint32_t)left : most;
}

/* The tokens of a prompt from here on, in passes of at most `batch` rows; logits of the last one. */
static int run_chunks(clb_session *s, const uint32_t *ids, size_t n, clb_error *err)
{
    for (size_t done = 0; done < n;) {
        const size_t left = n - done;
        const uint32_t chunk = chunk_of(s, left);
        CLB_TRY(run_chunk(s, ids + done, chunk, COLIBRI_PHASE_PREFILL, done + chunk == n, err));
        done += chunk;
        clb_progress(s->engine->log, "reading the prompt", done, n);
    }
    return COLIBRI_OK;
}

int clb_session_feed(clb_session *s, const uint32_t *ids, size_t n, size_t *reused, clb_error *err)
{
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "the prompt has no tokens");
    if (clb_kv_holds_prompts(&s->engine->kv_layout, &s->engine->kv_choice.traits) && n > s->engine->ctx)
        return clb_fail(err, COLIBRI_E_LIMIT,
                        "the prompt has %zu tokens, the context holds %u: raise --ctx or choose %s --kv-strategy that "
                        "evicts%s",
                        n, s->engine->ctx, keeps_all(s) ? "a" : "another",
                        keeps_all(s) ? "" : " while a prompt is read");
    if (n > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_LIMIT, "the prompt has %zu tokens", n);
    rewind_to_prefix(s, ids, n);
    if (!s->apart)
        CLB_TRY(take_prefix(s, ids, n, err));
    const size_t done = s->tokens.n;
    if (reused)
        *reused = done;
    return run_chunks(s, ids + done, n - done, err);
}

int clb_session_extend(clb_session *s, const uint32_t *ids, size_t n, clb_error *err)
{
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "the text has no tokens");
    if (keeps_all(s) && n > s->engine->ctx - s->tokens.n)
        return clb_fail(err, COLIBRI_E_LIMIT, "%zu tokens after %zu: the context holds %u (--ctx)", n, s->tokens.n,
                        s->engine->ctx);
    return run_chunks(s, ids, n, err);
}

int clb_session_append(clb_session *s, uint32_t token, clb_error *err)
{
    return run_chunk(s, &token, 1, COLIBRI_PHASE_DECODE, true, err);
}

void clb_shift_rule(const clb_engine *engine, size_t n, size_t n_system, size_t *first, size_t *keep)
{
    const size_t always = engine->kv_choice.n_protected, asked = n_system > always ? n_system : always;
    *first = asked < n ? asked : n;
    *keep = (n - *first) / 2;
}

int clb_session_shift(clb_session *s, clb_error *err)
{
    const size_t n = s->tokens.n;
    size_t first, keep;
    clb_shift_rule(s->engine, n, s->n_system, &first, &keep);
    const size_t drop = n - first - keep;
    if (!keep)
        return clb_fail(
            err, COLIBRI_E_LIMIT,
            "the context of %u tokens is full, and %zu of them are protected: there is nothing to drop (--ctx)",
            s->engine->ctx, first);
    uint32_t *ids = malloc((first + keep) * sizeof *ids);
    if (!ids)
        return CLB_NOMEM(err, "a shift of the context");
    memcpy(ids, s->tokens.ids, first * sizeof *ids);
    memcpy(ids + first, s->tokens.ids + first + drop, keep * sizeof *ids);
    if (!s->shifts.n)
        clb_logf(s->engine->log, COLIBRI_LOG_WARN,
                 "the context of %u tokens is full: dropped %zu tokens after the first %zu and went on "
                 "(--context-shift; later "
                 "shifts are only counted)",
                 s->engine->ctx, drop, first);
    const int rc = clb_session_feed(s, ids, first + keep, NULL, err);
    free(ids);
    if (rc) /* half of the text would be worse than none */
        clb_session_reset(s);
    else
        s->shifts = (clb_shifts){s->shifts.n + 1, s->shifts.dropped + drop};
    return rc;
}
