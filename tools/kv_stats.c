#include "kv_stats.h"

#include "kv/prefix.h"

static uint32_t protected_tokens(const clb_engine *e, const clb_session *s)
{
    const uint32_t system = clb_session_protected(s), always = e->kv_choice.n_protected;
    return system > always ? system : always;
}

void clb_kv_stats_print(FILE *f, const clb_engine *e, const clb_session *session)
{
    const clb_kv_choice *const c = &e->kv_choice;
    const clb_shifts shifts = clb_session_shifts(session);
    if (clb_kv_choice_lossy(c))
        fprintf(f, "retention %s, positions %s, %s %u of %u per layer and head, first %u protected; lossy\n", c->text,
                clb_kv_choice_positions(c), c->picks_pages ? "looks at" : "keeps", e->kv_budget, e->ctx,
                protected_tokens(e, session));
    if (shifts.n)
        fprintf(f, "context   shifted %u times, %llu tokens dropped, first %u protected; lossy\n", shifts.n,
                (unsigned long long)shifts.dropped, protected_tokens(e, session));
}

void clb_kv_stats_json(json_t *kv, const clb_engine *e, const clb_session *session)
{
    const clb_kv_choice *const c = &e->kv_choice;
    const clb_shifts shifts = clb_session_shifts(session);
    json_object_set_new(kv, "chain", json_string(c->name));
    json_object_set_new(kv, "positions", json_string(clb_kv_choice_positions(c)));
    json_object_set_new(kv, "budget", json_integer((json_int_t)e->kv_budget));
    json_object_set_new(kv, "protected", json_integer((json_int_t)protected_tokens(e, session)));
    json_object_set_new(kv, "context_shifts", json_integer((json_int_t)shifts.n));
    json_object_set_new(kv, "tokens_dropped", json_integer((json_int_t)shifts.dropped));
    if (clb_kv_choice_lossy(c) || shifts.n || !json_object_get(kv, "lossy"))
        json_object_set_new(kv, "lossy", json_boolean(clb_kv_choice_lossy(c) || shifts.n));
}

void clb_kv_share_print(FILE *f, const clb_engine *e, const clb_generation *g)
{
    char shared[24], idle[24];
    clb_kv_share_stats s;
    clb_kv_cache_share_stats(e->kv, &s);
    if (g)
        fprintf(f, "reused    %u tokens from the session, %u from memory, %u from the prompt cache; %u computed\n",
                g->reuse.session, g->reuse.memory, g->reuse.disk, g->n_prompt - g->n_reused);
    if (s.blocks || s.blocks_dropped || s.copies)
        fprintf(f,
                "sharing   %llu blocks known, %llu idle (%s), %llu dropped; %s held more than once, %llu pages copied; prompt "
                "cache %llu read, %llu written\n",
                (unsigned long long)s.blocks, (unsigned long long)s.blocks_idle, clb_human_bytes(s.bytes_idle, idle),
                (unsigned long long)s.blocks_dropped, clb_human_bytes(s.bytes_shared, shared), (unsigned long long)s.copies,
                (unsigned long long)s.blocks_read, (unsigned long long)s.blocks_written);
}

json_t *clb_kv_share_json(const clb_engine *e, const clb_generation *g)
{
    clb_kv_share_stats s;
    clb_kv_cache_share_stats(e->kv, &s);
    json_t *const o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "blocks", (json_int_t)s.blocks, "blocks_idle",
                                (json_int_t)s.blocks_idle, "blocks_dropped", (json_int_t)s.blocks_dropped, "bytes_shared",
                                (json_int_t)s.bytes_shared, "bytes_idle", (json_int_t)s.bytes_idle, "pages_copied",
                                (json_int_t)s.copies, "blocks_read", (json_int_t)s.blocks_read, "blocks_written",
                                (json_int_t)s.blocks_written, "windows", (json_int_t)s.windows, "bytes_windows",
                                (json_int_t)s.bytes_windows);
    if (g) {
        json_object_set_new(o, "tokens_session", json_integer((json_int_t)g->reuse.session));
        json_object_set_new(o, "tokens_memory", json_integer((json_int_t)g->reuse.memory));
        json_object_set_new(o, "tokens_prompt_cache", json_integer((json_int_t)g->reuse.disk));
        json_object_set_new(o, "tokens_computed", json_integer((json_int_t)(g->n_prompt - g->n_reused)));
    }
    return o;
}
