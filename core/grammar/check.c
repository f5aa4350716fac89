/* What an automaton must be: without left recursion, which would call for ever without reading, and without dead ends,
 * so that every state that is reached can still become a text: a token is allowed exactly if a state is left after it.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/internal.h"

typedef struct checker {
    clb_nfa *a;
    const clb_gbnf_tree *t;
    uint32_t *source; /* [edges] the state an edge leaves */
    uint32_t *first;  /* [states + 1] into waiting: edges that may count once the state does */
    uint32_t *waiting;
    uint32_t *queue; /* [states] */
    uint8_t *can_end, *is_empty;
    clb_error *err;
} checker;

/* ---- which states can reach their rule's end, by any text or by the empty one ---- */

static bool edge_counts(const clb_nfa *a, const clb_edge *e, const uint8_t *marked, bool only_empty)
{
    if (only_empty && (e->kind == CLB_EDGE_BYTE || e->kind == CLB_EDGE_TOKEN))
        return false;
    return marked[e->to] && (e->kind != CLB_EDGE_CALL || marked[a->start[e->arg]]);
}

static void mark_ends(checker *c, uint8_t *marked, bool only_empty)
{
    const clb_nfa *a = c->a;
    uint32_t n = 0;
    for (uint32_t s = 0; s < a->n_states; s++)
        if (a->flags[s] & CLB_STATE_FINAL) {
            marked[s] = 1;
            c->queue[n++] = s;
        }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t s = c->queue[i];
        for (uint32_t k = c->first[s]; k < c->first[s + 1]; k++) {
            const uint32_t e = c->waiting[k], from = c->source[e];
            if (!marked[from] && edge_counts(a, &a->edges[e], marked, only_empty)) {
                marked[from] = 1;
                c->queue[n++] = from;
            }
        }
    }
}

static int prepare(checker *c)
{
    const clb_nfa *a = c->a;
    const size_t n = a->n_states;
    c->source = malloc((a->n_edges + (size_t)1) * sizeof *c->source);
    c->first = calloc(n + 2, sizeof *c->first);
    c->waiting = malloc((2 * (size_t)a->n_edges + 1) * sizeof *c->waiting);
    c->queue = malloc((n + 1) * sizeof *c->queue);
    c->can_end = calloc(n + 1, 1);
    c->is_empty = calloc(n + 1, 1);
    if (!c->source || !c->first || !c->waiting || !c->queue || !c->can_end || !c->is_empty)
        return CLB_NOMEM(c->err, "a grammar");
    /* Counting sort by the state waited for; first[s + 1] counts, then is the place of the next one. */
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
            c->source[e] = s;
            c->first[a->edges[e].to + 2]++;
            if (a->edges[e].kind == CLB_EDGE_CALL)
                c->first[a->start[a->edges[e].arg] + 2]++;
        }
    for (size_t s = 2; s < n + 2; s++)
        c->first[s] += c->first[s - 1];
    for (uint32_t e = 0; e < a->n_edges; e++) {
        c->waiting[c->first[a->edges[e].to + 1]++] = e;
        if (a->edges[e].kind == CLB_EDGE_CALL)
            c->waiting[c->first[a->start[a->edges[e].arg] + 1]++] = e;
    }
    return COLIBRI_OK;
}

/* ---- left recursion ---- */

/* Rules that rule r may call before it has read anything: appended to list (room for all call edges). */
static uint32_t left_calls(checker *c, uint32_t r, uint8_t *visited, uint32_t *list, uint32_t n)
{
    const clb_nfa *a = c->a;
    uint32_t todo = 0;
    c->queue[todo++] = a->start[r];
    visited[a->start[r]] = 1;
    for (uint32_t i = 0; i < todo; i++)
        for (uint32_t k = a->first[c->queue[i]]; k < a->first[c->queue[i] + 1]; k++) {
            const clb_edge *e = &a->edges[k];
            if (e->kind == CLB_EDGE_CALL)
                list[n++] = e->arg;
            if (!visited[e->to] &&
                (e->kind == CLB_EDGE_EMPTY || (e->kind == CLB_EDGE_CALL && c->is_empty[a->start[e->arg]]))) {
                visited[e->to] = 1;
                c->queue[todo++] = e->to;
            }
        }
    return n;
}

static int refuse_left_recursion(checker *c, uint32_t r)
{
    /* Rules made of repeated parts come after the named ones. */
    if (r >= c->t->n_rules)
        return clb_fail(c->err, COLIBRI_E_USAGE, "the grammar is left-recursive within a repetition");
    const clb_gbnf_rule *rule = &c->t->rules[r];
    return clb_fail(
        c->err, COLIBRI_E_USAGE,
        "rule \"%.*s\" is left-recursive: it calls itself before anything is read; put what comes first in front",
        (int)(rule->name_n < 100 ? rule->name_n : 100), c->t->text + rule->name);
}

static int check_left_recursion(checker *c)
{
    const clb_nfa *a = c->a;
    enum { NEW, OPEN, DONE };
    uint8_t *visited = calloc(a->n_states + (size_t)1, 1), *state = calloc(a->n_rules + (size_t)1, 1);
    uint32_t *first = malloc((a->n_rules + (size_t)1) * sizeof *first);
    uint32_t *list = malloc((a->n_edges + (size_t)1) * sizeof *list);
    uint32_t *path = malloc((a->n_rules + (size_t)1) * sizeof *path);
    uint32_t *next = malloc((a->n_rules + (size_t)1) * sizeof *next);
    int rc = COLIBRI_OK;
    if (!visited || !state || !first || !list || !path || !next) {
        rc = CLB_NOMEM(c->err, "a grammar");
        goto done;
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < a->n_rules; r++) {
        first[r] = n;
        n = left_calls(c, r, visited, list, n);
    }
    first[a->n_rules] = n;
    for (uint32_t root = 0; root < a->n_rules; root++) {
        uint32_t depth = 0;
        if (state[root] != NEW)
            continue;
        path[depth++] = root;
        state[root] = OPEN;
        next[root] = first[root];
        while (depth) {
            const uint32_t r = path[depth - 1];
            if (next[r] == first[r + 1]) {
                state[r] = DONE;
                depth--;
                continue;
            }
            const uint32_t called = list[next[r]++];
            if (state[called] == OPEN) {
                rc = refuse_left_recursion(c, called);
                goto done;
            }
            if (state[called] == NEW) {
                state[called] = OPEN;
                next[called] = first[called];
                path[depth++] = called;
            }
        }
    }
done:
    free(visited);
    free(state);
    free(first);
    free(list);
    free(path);
    free(next);
    return rc;
}

/* ---- cleaning ---- */

/* Only edges from which the end can be reached. */
static void drop_dead_edges(checker *c)
{
    clb_nfa *a = c->a;
    uint32_t n = 0, next = 0;
    for (uint32_t s = 0; s < a->n_states; s++) {
        const uint32_t begin = next;
        next = a->first[s + 1];
        a->first[s] = n;
        for (uint32_t e = begin; e < next; e++) {
            const clb_edge edge = a->edges[e];
            const bool nothing = edge.kind == CLB_EDGE_EMPTY && edge.to == s;
            if (!nothing && edge_counts(a, &edge, c->can_end, false))
                a->edges[n++] = edge;
        }
    }
    a->first[a->n_states] = n;
    a->n_edges = n;
}

/* A state that can do nothing but go to another one without reading is the other one. */
static uint32_t only_next(const clb_nfa *a, uint32_t s)
{
    const uint32_t e = a->first[s];
    return a->first[s + 1] - e == 1 && a->edges[e].kind == CLB_EDGE_EMPTY && !(a->flags[s] & CLB_STATE_FINAL)
               ? a->edges[e].to
               : s;
}

static void skip_empty_states(checker *c)
{
    clb_nfa *a = c->a;
    uint32_t *alias = c->queue;
    for (uint32_t s = 0; s < a->n_states; s++)
        alias[s] = only_next(a, s);
    /* Doubling: chains of any length in a few rounds. Nothing but dead states could go in circles. */
    for (int round = 0; round < 20; round++)
        for (uint32_t s = 0; s < a->n_states; s++)
            alias[s] = alias[alias[s]];
    for (uint32_t e = 0; e < a->n_edges; e++)
        a->edges[e].to = alias[a->edges[e].to];
    for (uint32_t r = 0; r < a->n_rules; r++)
        a->start[r] = alias[a->start[r]];
}

static void set_flags(clb_nfa *a)
{
    for (uint32_t s = 0; s < a->n_states; s++) {
        if ((a->flags[s] & CLB_STATE_FINAL) && a->first[s] == a->first[s + 1])
            a->flags[s] |= CLB_STATE_LAST;
        for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
            if (a->edges[e].kind == CLB_EDGE_BYTE || a->edges[e].kind == CLB_EDGE_TOKEN)
                a->flags[s] |= CLB_STATE_READS;
            if (a->edges[e].kind == CLB_EDGE_TOKEN)
                a->flags[s] |= CLB_STATE_MARKS;
        }
    }
}

int clb_nfa_check(clb_nfa *a, const clb_gbnf_tree *t, clb_error *err)
{
    checker c = {.a = a, .t = t, .err = err};
    int rc = COLIBRI_OK;
    CLB_GO(prepare(&c));
    mark_ends(&c, c.is_empty, true);
    CLB_GO(check_left_recursion(&c));
    mark_ends(&c, c.can_end, false);
    if (!c.can_end[a->start[a->root]]) {
        rc = clb_fail(err, COLIBRI_E_USAGE, "no text matches the grammar: root never ends");
        goto done;
    }
    drop_dead_edges(&c);
    skip_empty_states(&c);
    set_flags(a);
done:
    free(c.source);
    free(c.first);
    free(c.waiting);
    free(c.queue);
    free(c.can_end);
    free(c.is_empty);
    return rc;
}
