#include "kv_stats.h"

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
