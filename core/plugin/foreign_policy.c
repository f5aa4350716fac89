/* A foreign score() as an expert policy: the host keeps the counters that its signature asks for.
 *
 * Time is counted as the lru policy counts it, one tick per token and layer: row r of a pass at layer l has the stamp
 * 1 + (rows before + r) * n_layers + l. So "the lowest last_use leaves" gives lru's victims. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/foreign_private.h"

typedef struct counters {
    uint64_t uses, uses_before; /* uses_before: when it last left */
    uint64_t last_use, inserted;
    double gate_sum;
    float gate_last;
    uint32_t prefetched;
} counters;

typedef struct policy {
    clb_foreign *f;
    uint32_t n_layers, n_experts, n_slots, top_k, instance;
    uint64_t row, rows, now;
    uint32_t phase, routed;
    uint64_t *bytes; /* [n_layers] */
    counters expert[];
} policy;

/* The expert that a call is about, and the use, if it is about one. */
typedef struct about {
    uint32_t layer, expert, row, router_rank;
    float gate;
} about;

static counters *counters_of(policy *p, uint32_t layer, uint32_t expert)
{
    return layer < p->n_layers && expert < p->n_experts ? &p->expert[(size_t)layer * p->n_experts + expert] : NULL;
}

/* One value of the vocabulary, as the natural type of its row in the table: integers in u64, the others in f64. */
static clb_foreign_value value(const policy *p, const about *a, enum clb_foreign_argument what)
{
    const counters *const c = a ? &p->expert[(size_t)a->layer * p->n_experts + a->expert]
                                : NULL; /* NULL: a reset, which asks for no counter */
#define INTEGER(v) ((clb_foreign_value){.u64 = (v)})
    switch (what) {
    case CLB_ARG_layer:
        return INTEGER(a->layer);
    case CLB_ARG_expert:
        return INTEGER(a->expert);
    case CLB_ARG_number:
        return INTEGER((uint64_t)a->layer * p->n_experts + a->expert);
    case CLB_ARG_now:
        return INTEGER(p->now);
    case CLB_ARG_uses:
        return INTEGER(c->uses);
    case CLB_ARG_uses_here:
        return INTEGER(c->uses - c->uses_before);
    case CLB_ARG_last_use:
        return INTEGER(c->last_use);
    case CLB_ARG_age:
        return INTEGER(p->now - c->last_use);
    case CLB_ARG_inserted:
        return INTEGER(c->inserted);
    case CLB_ARG_prefetched:
        return INTEGER(c->prefetched);
    case CLB_ARG_layers_ahead: /* how many layers until this one is routed again */
        return INTEGER(a->layer > p->routed ? a->layer - p->routed : a->layer + p->n_layers - p->routed);
    case CLB_ARG_row:
        return INTEGER(a->row);
    case CLB_ARG_router_rank:
        return INTEGER(a->router_rank);
    case CLB_ARG_phase:
        return INTEGER(p->phase);
    case CLB_ARG_expert_bytes:
        return INTEGER(p->bytes[a->layer]);
    case CLB_ARG_n_layers:
        return INTEGER(p->n_layers);
    case CLB_ARG_n_experts:
        return INTEGER(p->n_experts);
    case CLB_ARG_n_slots:
        return INTEGER(p->n_slots);
    case CLB_ARG_top_k:
        return INTEGER(p->top_k);
    case CLB_ARG_instance:
        return INTEGER(p->instance);
    default:
        break;
    }
#undef INTEGER
    switch (what) {
    case CLB_ARG_gate:
        return (clb_foreign_value){.is_float = true, .f64 = (double)a->gate};
    case CLB_ARG_gate_last:
        return (clb_foreign_value){.is_float = true, .f64 = (double)c->gate_last};
    case CLB_ARG_gate_average:
        return (clb_foreign_value){.is_float = true, .f64 = c->uses ? c->gate_sum / (double)c->uses : 0};
    default:
        return (clb_foreign_value){.is_float = true, .f64 = 0};
    }
}

static bool call(policy *p, clb_foreign_call *c, const about *a, clb_foreign_result *result)
{
    clb_foreign_value values[CLB_FOREIGN_MAX_ARGS];
    for (unsigned i = 0; i < c->signature.n; i++)
        values[i] = value(p, a, c->signature.arg[i].what);
    return clb_foreign_run(p->f, c, values, result);
}

/* ---- callbacks ---------------------------------------------------------------------------------------------- */

static void reset(void *self)
{
    policy *const p = self;
    p->row = p->rows = p->now = 0;
    p->phase = p->routed = 0;
    memset(p->expert, 0, (size_t)p->n_layers * p->n_experts * sizeof p->expert[0]);
    if (p->f->policy.reset.fn && !call(p, &p->f->policy.reset, NULL, NULL))
        clb_foreign_complain(p->f, p->f->spec.reset);
}

/* Whether the library remembers uses, without being told which instance they belong to. */
static bool one_at_a_time(const clb_foreign *f)
{
    const clb_foreign_call *const use = &f->policy.on_use, *const fresh = &f->policy.reset;
    return (use->fn && !clb_foreign_asks(&use->signature, CLB_ARG_instance)) ||
           (fresh->fn && !clb_foreign_asks(&fresh->signature, CLB_ARG_instance));
}

static void destroy(void *self)
{
    policy *const p = self;
    clb_foreign_give_number(p->f, p->instance);
    free(p->bytes);
    free(p);
}

static void on_step(void *self, const struct colibri_step *step)
{
    policy *const p = self;
    p->row += p->rows;
    p->rows = step->n_rows ? step->n_rows : 1;
    p->phase = step->phase;
}

static void on_route(void *self, const struct colibri_route *route)
{
    policy *const p = self;
    p->routed = route->layer;
    for (uint32_t r = 0; r < route->n_rows; r++) {
        const uint64_t t = 1 + (p->row + r) * p->n_layers + route->layer;
        p->now = p->now < t ? t : p->now;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const size_t at = (size_t)r * route->top_k + k;
            counters *const c = counters_of(p, route->layer, route->ids[at]);
            if (!c)
                continue;
            c->uses++;
            c->last_use = c->last_use < t ? t : c->last_use;
            c->gate_last = route->gates ? route->gates[at] : 0;
            c->gate_sum += (double)c->gate_last;
            c->prefetched = 0;
            const about a = {route->layer, route->ids[at], r, k, c->gate_last};
            if (p->f->policy.on_use.fn && !call(p, &p->f->policy.on_use, &a, NULL))
                clb_foreign_complain(p->f, p->f->spec.on_use);
        }
    }
}

/* What was fetched ahead counts as used now, as for lru: it must not leave before its turn has come. */
static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    policy *const p = self;
    counters *const c = counters_of(p, layer, expert);
    if (!c)
        return;
    c->inserted = p->now;
    c->prefetched = cause == COLIBRI_CAUSE_PREFETCH;
    if (cause != COLIBRI_CAUSE_DEMAND && c->last_use < p->now)
        c->last_use = p->now;
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int prefetched_unused)
{
    (void)uses;
    (void)prefetched_unused;
    counters *const c = counters_of(self, layer, expert);
    if (c) {
        c->uses_before = c->uses;
        c->prefetched = 0;
    }
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    policy *const p = self;
    const about a = {.layer = layer, .expert = expert};
    clb_foreign_result result = {0};
    if (!call(p, &p->f->policy.score, &a, &result)) {
        clb_foreign_complain(p->f, p->f->spec.symbol);
        return NAN; /* a bad answer: the host counts it and takes its own choice */
    }
    return p->f->policy.score.signature.result == CLB_FT_F32 ? (double)result.f32 : result.f64;
}

static void explain(void *self, uint32_t layer, uint32_t expert, char *out, size_t size)
{
    policy *const p = self;
    const counters *const c = counters_of(p, layer, expert);
    if (c)
        snprintf(out, size, "%s: %llu uses, last %llu ticks ago, average gate %.3f, score %g", p->f->spec.name,
                 (unsigned long long)c->uses, (unsigned long long)(p->now - c->last_use),
                 c->uses ? c->gate_sum / (double)c->uses : 0, score(p, layer, expert));
}

/* ---- making one --------------------------------------------------------------------------------------------- */

static policy *create(clb_foreign *f, const struct colibri_policy_config *config, char *why, size_t why_size)
{
    const uint64_t n = (uint64_t)config->n_layers * config->n_experts;
    const uint32_t number = clb_foreign_take_number(f, one_at_a_time(f),
                                                    "its library remembers uses, so it can serve one pool of one model at a "
                                                    "time; for more, 'u32 instance' must be among the arguments of on-use and "
                                                    "reset",
                                                    why, why_size);
    if (number == UINT32_MAX)
        return NULL;
    policy *const p =
        n && n < SIZE_MAX / (2 * sizeof(counters)) ? malloc(sizeof *p + (size_t)n * sizeof p->expert[0]) : NULL;
    uint64_t *const bytes = p ? calloc(config->n_layers, sizeof *bytes) : NULL;
    if (!bytes) {
        free(p);
        clb_foreign_give_number(f, number);
        snprintf(why, why_size, "no memory for %u layers of %u experts", config->n_layers, config->n_experts);
        return NULL;
    }
    *p = (policy){.f = f,
                  .n_layers = config->n_layers,
                  .n_experts = config->n_experts,
                  .n_slots = config->n_slots,
                  .top_k = config->top_k,
                  .instance = number,
                  .bytes = bytes};
    if (config->expert_bytes)
        memcpy(bytes, config->expert_bytes, config->n_layers * sizeof *bytes);
    reset(p);
    return p;
}

static void create_closure(ffi_cif *cif, void *result, void **args, void *ctx)
{
    (void)cif;
    *(void **)result = create(ctx, *(const struct colibri_policy_config *const *)args[0], *(char *const *)args[1],
                              *(const size_t *)args[2]);
}

int clb_foreign_policy_load(clb_foreign *f, clb_error *err)
{
    static ffi_type *of_create[] = {&ffi_type_pointer, &ffi_type_pointer, &ffi_type_uint64};
    CLB_TRY(clb_foreign_bind(f, f->spec.symbol, &f->policy.score, err));
    if (f->spec.on_use)
        CLB_TRY(clb_foreign_bind(f, f->spec.on_use, &f->policy.on_use, err));
    if (f->spec.reset)
        CLB_TRY(clb_foreign_bind(f, f->spec.reset, &f->policy.reset, err));
    void *code = NULL;
    CLB_TRY(clb_foreign_closure(f, &ffi_type_pointer, of_create, 3, create_closure, &code, err));
    struct colibri_expert_policy *const t = &f->policy.table;
    *t = (struct colibri_expert_policy){.struct_size = sizeof *t,
                                        .flags = COLIBRI_POLICY_LOSSLESS,
                                        .name = f->spec.name,
                                        .summary = f->spec.summary,
                                        .source = f->source,
                                        .destroy = destroy,
                                        .reset = reset,
                                        .on_step = on_step,
                                        .on_route = on_route,
                                        .on_insert = on_insert,
                                        .on_evict = on_evict,
                                        .score = score,
                                        .explain = explain};
    if (f->spec.deterministic)
        t->flags |= COLIBRI_POLICY_DETERMINISTIC;
    if (f->spec.score_rises)
        t->flags |= COLIBRI_POLICY_SCORE_RISES;
    memcpy(&t->create, &code, sizeof code);
    return COLIBRI_OK;
}
