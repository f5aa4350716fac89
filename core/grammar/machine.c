/* Configs: where a text may be in a grammar, and what follows. */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

int clb_machine_init(clb_machine *m, const clb_grammar *g, clb_error *err)
{
    *m = (clb_machine){.g = g};
    bool made;
    uint32_t set;
    m->seen = calloc(g->nfa.n_states + (size_t)1, sizeof *m->seen);
    m->touched = malloc((g->nfa.n_states + (size_t)1) * sizeof *m->touched);
    int rc = m->seen && m->touched ? COLIBRI_OK : CLB_NOMEM(err, "a grammar's states");
    if (!rc)
        rc = clb_frame_sets_init(&m->contexts, err);
    if (!rc)
        rc = clb_frame_sets_intern(&m->contexts, NULL, 0, CLB_AT_END, 0, &set, &made, err);
    if (!rc)
        rc = clb_frame_sets_intern(&m->contexts, NULL, 0, CLB_AT_OPEN, 0, &set, &made, err);
    if (!rc)
        rc = clb_frame_sets_init(&m->configs, err);
    if (!rc) { /* the dead config stays dead */
        m->rows = calloc(g->n_classes, sizeof *m->rows);
        m->cap_rows = 1;
        rc = m->rows ? COLIBRI_OK : CLB_NOMEM(err, "a grammar's states");
    }
    if (rc)
        clb_machine_free(m);
    return rc;
}

void clb_machine_free(clb_machine *m)
{
    clb_frame_sets_free(&m->contexts);
    clb_frame_sets_free(&m->configs);
    free(m->rows);
    free(m->unions);
    free(m->scratch);
    free(m->seen);
    free(m->touched);
    free(m->todo);
    *m = (clb_machine){0};
}

static uint64_t set_bytes(const clb_frame_sets *s)
{
    return (uint64_t)s->cap * sizeof *s->sets + (uint64_t)s->cap_frames * sizeof *s->frames +
           (uint64_t)s->table_size * sizeof *s->table;
}

uint64_t clb_machine_bytes(const clb_machine *m)
{
    return set_bytes(&m->contexts) + set_bytes(&m->configs) +
           (uint64_t)m->cap_rows * m->g->n_classes * sizeof *m->rows + (uint64_t)m->unions_size * sizeof *m->unions;
}

int clb_machine_fits(const clb_machine *m, clb_error *err)
{
    if (clb_machine_bytes(m) > CLB_MACHINE_MOST_BYTES)
        return clb_fail(err, COLIBRI_E_LIMIT, "the grammar is too ambiguous: more than %u MiB of states",
                        CLB_MACHINE_MOST_BYTES >> 20);
    return COLIBRI_OK;
}

/* ---- making a config ---- */

static void begin(clb_machine *m)
{
    m->n_touched = 0;
    m->n_todo = 0;
    m->reached = 0;
}

static void drop(clb_machine *m)
{
    for (uint32_t i = 0; i < m->n_touched; i++)
        m->seen[m->touched[i]] = CLB_CONTEXT_NONE;
    begin(m);
}

/* State with these stacks is in the config; if that is new, its edges are to be followed. */
static int add(clb_machine *m, uint32_t state, uint32_t context, clb_error *err)
{
    uint32_t all = context;
    if (m->seen[state] == CLB_CONTEXT_NONE)
        m->touched[m->n_touched++] = state;
    else
        CLB_TRY(clb_context_union(m, m->seen[state], context, &all, err));
    if (all == m->seen[state])
        return COLIBRI_OK;
    m->seen[state] = all;
    CLB_TRY(clb_grow(&m->todo, m->n_todo, &m->cap_todo, sizeof *m->todo, err));
    m->todo[m->n_todo++] = state;
    return COLIBRI_OK;
}

static int follow(clb_machine *m, uint32_t state, clb_error *err)
{
    const clb_nfa *a = &m->g->nfa;
    const uint32_t context = m->seen[state];
    CLB_TRY(clb_machine_spend(m, 1 + (uint64_t)(a->first[state + 1] - a->first[state]), err));
    for (uint32_t i = a->first[state]; i < a->first[state + 1]; i++) {
        const clb_edge *e = &a->edges[i];
        if (e->kind == CLB_EDGE_EMPTY) {
            CLB_TRY(add(m, e->to, context, err));
        } else if (e->kind == CLB_EDGE_CALL) {
            uint32_t inner = context;
            if (!(a->flags[e->to] & CLB_STATE_LAST))
                CLB_TRY(clb_context_push(m, e->to, context, &inner, err));
            CLB_TRY(add(m, a->start[e->arg], inner, err));
        }
    }
    if (!(a->flags[state] & CLB_STATE_FINAL))
        return COLIBRI_OK;
    const clb_frame_set below = m->contexts.sets[context];
    m->reached |= below.flags;
    CLB_TRY(clb_machine_spend(m, below.n, err));
    for (uint32_t i = 0; i < below.n; i++) {
        const clb_frame f = m->contexts.frames[below.first + i];
        CLB_TRY(add(m, f.state, f.context, err));
    }
    return COLIBRI_OK;
}

static int by_state(const void *a, const void *b)
{
    const uint32_t x = ((const clb_frame *)a)->state, y = ((const clb_frame *)b)->state;
    return x < y ? -1 : x > y;
}

/* The states that read something, interned. */
static int intern(clb_machine *m, uint32_t *config, clb_error *err)
{
    const uint32_t base = m->n_scratch;
    const uint32_t classes = m->g->n_classes;
    bool made;
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < m->n_touched; i++) {
        const uint32_t s = m->touched[i];
        if (!(m->g->nfa.flags[s] & CLB_STATE_READS))
            continue;
        CLB_GO(clb_grow(&m->scratch, m->n_scratch, &m->cap_scratch, sizeof *m->scratch, err));
        m->scratch[m->n_scratch++] = (clb_frame){s, m->seen[s]};
    }
    const uint32_t n = m->n_scratch - base;
    clb_frame *const frames = n ? m->scratch + base : NULL;
    if (n > 1)
        qsort(frames, n, sizeof *frames, by_state);
    /* A config without its row must never be found: room first. */
    CLB_GO(clb_grow(&m->rows, m->configs.n, &m->cap_rows, classes * sizeof *m->rows, err));
    CLB_GO(clb_machine_fits(m, err));
    CLB_GO(clb_frame_sets_intern(&m->configs, frames, n, m->reached, 0, config, &made, err));
    if (made) {
        for (uint32_t i = 0; i < classes; i++)
            m->rows[(size_t)*config * classes + i] = CLB_CONFIG_UNKNOWN;
        CLB_GO(clb_machine_spend(m, n + classes / 16, err));
    }
done:
    m->n_scratch = base;
    return rc;
}

/* Follows everything that was added, and ends in a config. */
static int finish(clb_machine *m, int rc, uint32_t *config, clb_error *err)
{
    while (!rc && m->n_todo)
        rc = follow(m, m->todo[--m->n_todo], err);
    if (!rc)
        rc = intern(m, config, err);
    drop(m);
    return rc;
}

int clb_machine_begin(clb_machine *m, uint32_t *config, clb_error *err)
{
    begin(m);
    return finish(m, add(m, m->g->nfa.start[m->g->nfa.root], CLB_CONTEXT_END, err), config, err);
}

int clb_machine_make_step(clb_machine *m, uint32_t config, uint32_t class, uint32_t *next, clb_error *err)
{
    const clb_nfa *a = &m->g->nfa;
    const clb_frame_set from = m->configs.sets[config];
    const uint8_t byte = m->g->class_byte[class];
    int rc = COLIBRI_OK;
    begin(m);
    for (uint32_t i = 0; !rc && i < from.n; i++) {
        const clb_frame f = m->configs.frames[from.first + i];
        rc = clb_machine_spend(m, 1 + (uint64_t)(a->first[f.state + 1] - a->first[f.state]) / 4, err);
        for (uint32_t k = a->first[f.state]; !rc && k < a->first[f.state + 1]; k++) {
            const clb_edge *e = &a->edges[k];
            if (e->kind == CLB_EDGE_BYTE && byte >= e->lo && byte <= e->hi)
                rc = add(m, e->to, f.context, err);
        }
    }
    CLB_TRY(finish(m, rc, next, err));
    m->rows[(size_t)config * m->g->n_classes + class] = *next;
    return COLIBRI_OK;
}

int clb_machine_pop(clb_machine *m, uint32_t context, uint32_t *config, clb_error *err)
{
    const clb_frame_set below = m->contexts.sets[context];
    int rc = COLIBRI_OK;
    begin(m);
    for (uint32_t i = 0; !rc && i < below.n; i++) {
        const clb_frame f = m->contexts.frames[below.first + i];
        rc = add(m, f.state, f.context, err);
    }
    return finish(m, rc, config, err);
}

int clb_machine_token(clb_machine *m, uint32_t config, uint32_t base, const uint32_t *resolved, uint32_t token,
                      bool spelled, uint32_t *next, clb_error *err)
{
    const clb_nfa *a = &m->g->nfa;
    const clb_frame_set from = m->configs.sets[config], also = m->configs.sets[base];
    int rc = COLIBRI_OK;
    begin(m);
    m->reached = also.flags;
    for (uint32_t i = 0; !rc && i < also.n; i++)
        rc = add(m, m->configs.frames[also.first + i].state, m->configs.frames[also.first + i].context, err);
    for (uint32_t i = 0; !rc && i < from.n; i++) {
        const clb_frame f = m->configs.frames[from.first + i];
        for (uint32_t k = a->first[f.state]; !rc && k < a->first[f.state + 1]; k++) {
            const clb_edge *e = &a->edges[k];
            if (e->kind != CLB_EDGE_TOKEN)
                continue;
            if (m->g->marks[e->arg].negated ? spelled && resolved[e->arg] != token : resolved[e->arg] == token)
                rc = add(m, e->to, f.context, err);
        }
    }
    return finish(m, rc, next, err);
}

int clb_machine_open(clb_machine *m, const uint32_t *states, uint32_t n, uint32_t *config, clb_error *err)
{
    int rc = COLIBRI_OK;
    begin(m);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = add(m, states[i], CLB_CONTEXT_OPEN, err);
    m->n_todo = 0; /* they come from a config: what follows without reading is in it */
    return finish(m, rc, config, err);
}

/* ---- forgetting ---- */

struct moving {
    const clb_machine *from;
    clb_machine *to;
    uint32_t *moved; /* [contexts of from] number in to, CLB_CONTEXT_NONE: not yet */
};

static int move_context(struct moving *mv, uint32_t context, uint32_t *out, clb_error *err)
{
    clb_machine *to = mv->to;
    bool made;
    *out = mv->moved[context];
    if (context <= CLB_CONTEXT_OPEN)
        *out = context;
    if (*out != CLB_CONTEXT_NONE || context == CLB_CONTEXT_NONE)
        return COLIBRI_OK;
    const clb_frame_set s = mv->from->contexts.sets[context];
    const uint32_t base = to->n_scratch;
    for (uint32_t i = 0; i < s.n; i++) {
        clb_frame f = mv->from->contexts.frames[s.first + i];
        CLB_TRY(move_context(mv, f.context, &f.context, err));
        CLB_TRY(clb_grow(&to->scratch, to->n_scratch, &to->cap_scratch, sizeof *to->scratch, err));
        to->scratch[to->n_scratch++] = f;
    }
    CLB_TRY(
        clb_frame_sets_intern(&to->contexts, s.n ? to->scratch + base : NULL, s.n, s.flags, s.depth, out, &made, err));
    to->n_scratch = base;
    mv->moved[context] = *out;
    return COLIBRI_OK;
}

int clb_machine_forget(clb_machine *m, uint32_t *config, clb_error *err)
{
    clb_machine fresh;
    CLB_TRY(clb_machine_init(&fresh, m->g, err));
    struct moving mv = {m, &fresh, calloc(m->contexts.n, sizeof *mv.moved)};
    const clb_frame_set s = m->configs.sets[*config];
    int rc = mv.moved ? COLIBRI_OK : CLB_NOMEM(err, "a grammar's states");
    begin(&fresh);
    fresh.reached = s.flags;
    for (uint32_t i = 0; !rc && i < s.n; i++) {
        clb_frame f = m->configs.frames[s.first + i];
        rc = move_context(&mv, f.context, &f.context, err);
        if (!rc)
            rc = add(&fresh, f.state, f.context, err);
    }
    fresh.n_todo = 0;
    rc = finish(&fresh, rc, config, err);
    free(mv.moved);
    if (rc) {
        clb_machine_free(&fresh);
        return rc;
    }
    clb_machine_free(m);
    *m = fresh;
    return COLIBRI_OK;
}
