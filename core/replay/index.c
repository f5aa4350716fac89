/* What replays share: unions, next uses, reuse distances; joined traces. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "replay/trace_build.h"

void clb_replay_index_free(clb_replay_index *x)
{
    free(x->union_first);
    free(x->union_ids);
    free(x->union_rows);
    free(x->union_gates);
    free(x->next);
    free(x->first_use);
    *x = (clb_replay_index){0};
}

struct scratch {
    uint32_t *rows; /* [n_experts] */
    float *gates;
    uint32_t *touched;
    uint32_t n_touched;
};

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The distinct experts of one layer in one pass, ascending. Weights are added in row order, as the engine does. */
static void gather(const clb_trace *t, uint64_t pass, uint32_t layer, struct scratch *s)
{
    const uint64_t at = clb_trace_at(t, pass, layer), n = (uint64_t)t->passes[pass].n_rows * t->info.top_k;
    s->n_touched = 0;
    for (uint64_t i = at; i < at + n; i++) {
        const uint32_t e = t->ids[i];
        if (!s->rows[e]++) {
            s->touched[s->n_touched++] = e;
            s->gates[e] = 0.0f;
        }
        s->gates[e] += t->gates ? t->gates[i] : 1.0f;
    }
    if (s->n_touched > 1)
        qsort(s->touched, s->n_touched, sizeof *s->touched, compare_u32);
}

static void fill(clb_replay_index *x, struct scratch *s)
{
    const clb_trace *const t = x->trace;
    const uint32_t n_layers = t->info.n_layers;
    uint64_t at = 0;
    for (uint64_t p = 0; p < t->n_passes; p++)
        for (uint32_t l = 0; l < n_layers; l++) {
            gather(t, p, l, s);
            x->union_first[p * n_layers + l] = at;
            for (uint32_t i = 0; i < s->n_touched; i++, at++) {
                const uint32_t e = s->touched[i];
                x->union_ids[at] = e;
                x->union_rows[at] = s->rows[e];
                x->union_gates[at] = s->gates[e];
                s->rows[e] = 0;
            }
        }
    x->union_first[x->n_visits] = at;
}

static uint64_t count(const clb_trace *t, struct scratch *s)
{
    uint64_t n = 0;
    for (uint64_t p = 0; p < t->n_passes; p++)
        for (uint32_t l = 0; l < t->info.n_layers; l++) {
            if (t->passes[p].n_rows == 1) {
                n += t->info.top_k;
                continue;
            }
            const uint64_t at = clb_trace_at(t, p, l), m = (uint64_t)t->passes[p].n_rows * t->info.top_k;
            uint32_t touched = 0;
            for (uint64_t i = at; i < at + m; i++)
                if (!s->rows[t->ids[i]]) {
                    s->rows[t->ids[i]] = 1;
                    s->touched[touched++] = t->ids[i];
                }
            for (uint32_t i = 0; i < touched; i++)
                s->rows[s->touched[i]] = 0;
            n += touched;
        }
    return n;
}

static void link_uses(clb_replay_index *x)
{
    const uint32_t n_layers = x->trace->info.n_layers, n_experts = x->trace->info.n_experts;
    memset(x->first_use, 0xff, (size_t)n_layers * n_experts * sizeof *x->first_use); /* CLB_NEVER */
    for (uint32_t v = x->n_visits; v-- > 0;)
        for (uint64_t i = x->union_first[v]; i < x->union_first[v + 1]; i++) {
            uint32_t *const use = &x->first_use[(size_t)(v % n_layers) * n_experts + x->union_ids[i]];
            x->next[i] = *use;
            *use = v;
        }
}

int clb_replay_index_make(const clb_trace *t, clb_replay_index *x, clb_error *err)
{
    const size_t n_experts = t->info.n_experts;
    *x = (clb_replay_index){.trace = t};
    if (t->n_passes == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "the trace has no complete pass");
    if (t->n_passes > (UINT32_MAX - 1) / t->info.n_layers)
        return clb_fail(err, COLIBRI_E_LIMIT, "the trace has more than 2^32 visits of layers");
    x->n_visits = (uint32_t)(t->n_passes * t->info.n_layers);
    struct scratch s = {calloc(n_experts, sizeof *s.rows), calloc(n_experts, sizeof *s.gates),
                        calloc(n_experts, sizeof *s.touched), 0};
    int rc = s.rows && s.gates && s.touched ? COLIBRI_OK : CLB_NOMEM(err, "replaying");
    if (!rc) {
        x->n_lookups = count(t, &s);
        x->union_first = malloc(((size_t)x->n_visits + 1) * sizeof *x->union_first);
        x->union_ids = malloc(x->n_lookups * sizeof *x->union_ids);
        x->union_rows = malloc(x->n_lookups * sizeof *x->union_rows);
        x->union_gates = malloc(x->n_lookups * sizeof *x->union_gates);
        x->next = malloc(x->n_lookups * sizeof *x->next);
        x->first_use = malloc(t->info.n_layers * n_experts * sizeof *x->first_use);
        if (!x->union_first || !x->union_ids || !x->union_rows || !x->union_gates || !x->next || !x->first_use)
            rc = CLB_NOMEM(err, "replaying");
    }
    if (!rc) {
        fill(x, &s);
        link_uses(x);
    }
    free(s.rows);
    free(s.gates);
    free(s.touched);
    if (rc)
        clb_replay_index_free(x);
    return rc;
}

/* ---- reuse distances: a Fenwick tree over look-ups, in which the last use of every expert counts 1 ---- */

static void tree_add(uint32_t *tree, uint64_t n, uint64_t at, uint32_t v)
{
    for (at++; at <= n; at += at & (~at + 1))
        tree[at] += v;
}

static uint64_t tree_sum(const uint32_t *tree, uint64_t at) /* of [0, at) */
{
    uint64_t sum = 0;
    for (; at; at -= at & (~at + 1))
        sum += tree[at];
    return sum;
}

int clb_reuse_distances(const clb_replay_index *x, uint64_t bins[CLB_REUSE_BINS], uint64_t *cold, clb_error *err)
{
    const uint32_t n_layers = x->trace->info.n_layers, n_experts = x->trace->info.n_experts;
    const size_t n_objects = (size_t)n_layers * n_experts;
    uint32_t *const tree = calloc(x->n_lookups + 1, sizeof *tree);
    uint64_t *const last = malloc(n_objects * sizeof *last);
    memset(bins, 0, CLB_REUSE_BINS * sizeof *bins);
    *cold = 0;
    if (!tree || !last) {
        free(tree);
        free(last);
        return CLB_NOMEM(err, "reuse distances");
    }
    memset(last, 0xff, n_objects * sizeof *last);
    uint64_t in_use = 0;
    for (uint32_t v = 0; v < x->n_visits; v++)
        for (uint64_t i = x->union_first[v]; i < x->union_first[v + 1]; i++) {
            uint64_t *const l = &last[(size_t)(v % n_layers) * n_experts + x->union_ids[i]];
            if (*l == UINT64_MAX) {
                ++*cold;
                in_use++;
            } else {
                const uint64_t distance = in_use - tree_sum(tree, *l + 1);
                uint32_t b = 0;
                while (b < CLB_REUSE_BINS - 1 && distance >> b)
                    b++;
                bins[b]++;
                tree_add(tree, x->n_lookups, *l, UINT32_MAX); /* - 1 */
            }
            tree_add(tree, x->n_lookups, i, 1);
            *l = i;
        }
    free(tree);
    free(last);
    return COLIBRI_OK;
}

/* ---- joining ---- */

static int append(clb_trace_builder *b, const clb_trace *t, clb_error *err)
{
    for (uint64_t u = 0; u < t->n_units; u++) {
        CLB_TRY(clb_trace_builder_unit(b, t->units[u].label, strlen(t->units[u].label), err));
        for (uint64_t n = 0; n < t->units[u].n_passes; n++) {
            const uint64_t i = t->units[u].first_pass + n;
            const clb_trace_pass *const p = &t->passes[i];
            const uint64_t at = clb_trace_at(t, i, 0);
            const clb_trace_put put = {.phase = p->phase,
                                       .n_rows = p->n_rows,
                                       .n_sequences = p->n_sequences,
                                       .tokens = t->tokens + p->first_row,
                                       .sequences = t->sequences + p->first_row,
                                       .start_ns = p->start_ns,
                                       .took_ns = p->took_ns,
                                       .ids = t->ids + at,
                                       .gates = t->gates ? t->gates + at : NULL,
                                       .ahead = t->ahead ? t->ahead + clb_trace_ahead_at(t, i, 0) : NULL};
            CLB_TRY(clb_trace_builder_pass(b, &put, err));
        }
    }
    return COLIBRI_OK;
}

static bool same_geometry(const clb_trace_info *a, const clb_trace_info *b)
{
    return a->n_layers == b->n_layers && a->n_experts == b->n_experts && a->top_k == b->top_k && a->gates == b->gates &&
           a->ahead_layers == b->ahead_layers && a->ahead_top == b->ahead_top &&
           !memcmp(a->expert_bytes, b->expert_bytes, a->n_layers * sizeof *a->expert_bytes);
}

int clb_trace_join(const clb_trace *const *traces, uint32_t n, clb_trace **out, clb_error *err)
{
    *out = NULL;
    for (uint32_t i = 1; i < n; i++)
        if (!same_geometry(&traces[0]->info, &traces[i]->info))
            return clb_fail(err, COLIBRI_E_USAGE, "traces of different models cannot be joined");
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no traces to join");
    clb_trace_builder b;
    CLB_TRY(clb_trace_builder_open(&b, &traces[0]->info, COLIBRI_E_USAGE, err));
    int rc = COLIBRI_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = append(&b, traces[i], err);
    if (!rc) {
        b.trace->rates = traces[0]->rates;
        *out = clb_trace_builder_done(&b);
    }
    clb_trace_builder_close(&b);
    return rc;
}
