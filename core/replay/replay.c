/* One replay: passes through the cache, in the order of store/cache.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay/replay_internal.h"
#include "replay/stats.h"

#define MAX_TIMES 4096u

/* ---- next uses ---- */

/* How far away in visits; see struct colibri_policy_config. */
static uint64_t next_use(void *ctx, uint32_t layer, uint32_t expert)
{
    const struct replay *r = ctx;
    const clb_trace_info *const info = &r->x->trace->info;
    if (layer >= info->n_layers || expert >= info->n_experts)
        return UINT64_MAX;
    const uint32_t v = r->next_of[(size_t)layer * info->n_experts + expert];
    return v == CLB_NEVER || v >= r->horizon ? UINT64_MAX : (uint64_t)v - r->visit;
}

/* ---- a visit ---- */

static void misbehaved(void *ctx, const char *policy, const char *what)
{
    (void)policy;
    struct replay *r = ctx;
    if (!r->out->misbehaved)
        r->out->misbehaved = what;
}

static void fill_ahead(struct replay *r, uint64_t pass, uint32_t layer, struct colibri_route *route)
{
    const clb_trace *const t = r->x->trace;
    const clb_trace_info *const i = &t->info;
    if (!r->ahead || route->n_rows > r->ahead_rows)
        return;
    const clb_trace_guess *g = t->ahead + clb_trace_ahead_at(t, pass, layer);
    uint32_t layers = i->ahead_layers;
    if (layer + layers >= i->n_layers)
        layers = i->n_layers - 1 - layer;
    const size_t n = (size_t)route->n_rows * i->n_experts;
    for (uint32_t a = 0; a < layers; a++) {
        float *const out = r->ahead + (size_t)a * r->ahead_rows * i->n_experts;
        r->ahead_at[a] = out;
        for (size_t k = 0; k < n; k++)
            out[k] = -INFINITY;
    }
    for (uint32_t row = 0; row < route->n_rows; row++)
        for (uint32_t a = 0; a < i->ahead_layers; a++)
            for (uint32_t k = 0; k < i->ahead_top; k++, g++)
                if (g->expert != UINT32_MAX && a < layers)
                    r->ahead_at[a][(size_t)row * i->n_experts + g->expert] = g->logit;
    route->n_ahead = layers;
    route->ahead_logits = (const float *const *)r->ahead_at;
}

/* Decides one wave: takes what is there, then places as many of the missing as can be had. Members move to `wave`, the
 * rest of `pending` stays in union order. */
static uint32_t decide_wave(struct replay *r, uint32_t layer, uint32_t n_pending, uint32_t *n_wave)
{
    clb_cache *const c = r->cache;
    const uint32_t *const ids = r->ids;
    uint32_t n = 0, missing = 0;
    for (uint32_t i = 0; i < n_pending; i++) {
        const uint32_t u = r->pending[i], slot = clb_cache_find(c, layer, ids[u]);
        if (slot == CLB_NO_SLOT) {
            r->pending[missing++] = u;
            continue;
        }
        r->wave[n++] = (struct member){u, slot, clb_cache_take(c, slot)};
    }
    uint32_t placed = 0;
    for (; placed < missing; placed++) {
        const uint32_t u = r->pending[placed], slot = clb_cache_place(c, layer, ids[u], COLIBRI_CAUSE_DEMAND);
        if (slot == CLB_NO_SLOT)
            break;
        r->wave[n++] = (struct member){u, slot, COLIBRI_ACCESS_MISS};
    }
    *n_wave = n;
    if (placed && placed < missing)
        memmove(r->pending, r->pending + placed, (missing - placed) * sizeof *r->pending);
    return missing - placed;
}

static void report_wave(struct replay *r, uint32_t layer, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        const struct member *const m = &r->wave[k];
        r->accesses[k] = (struct colibri_access){.layer = layer,
                                                 .expert = r->ids[m->u],
                                                 .result = m->result,
                                                 .rows = r->rows[m->u],
                                                 .gate_sum = r->gates[m->u],
                                                 .wait_ns = r->waits[m->u]};
    }
    clb_cache_access(r->cache, r->accesses, n);
}

static int visit(struct replay *r, uint64_t pass, uint32_t layer, struct colibri_route *route, clb_error *err)
{
    const clb_replay_index *const x = r->x;
    clb_cache *const c = r->cache;
    const uint64_t at = x->union_first[r->visit];
    const uint32_t n_union = (uint32_t)(x->union_first[r->visit + 1] - at);
    const uint64_t hits = c->stats.hits;
    r->ids = x->union_ids + at;
    r->rows = x->union_rows + at;
    r->gates = x->union_gates + at;
    route->layer = layer;
    route->n_union = n_union;
    route->union_ids = r->ids;
    route->union_rows = r->rows;
    if (r->next_of)
        for (uint32_t i = 0; i < n_union; i++)
            r->next_of[(size_t)layer * x->trace->info.n_experts + r->ids[i]] = x->next[at + i];
    if (r->ahead)
        fill_ahead(r, pass, layer, route);
    clb_timing_layer(r, route->n_rows);
    if (r->predictor)
        clb_prefetch_advance(r);
    clb_cache_route(c, route);
    if (r->predictor) {
        clb_prefetch_judge(r, layer);
        if (r->predictor->on_route)
            r->predictor->on_route(r->predictor_self, route);
    }
    uint32_t n_pending = n_union;
    for (uint32_t i = 0; i < n_union; i++)
        r->pending[i] = i;
    while (n_pending) {
        uint32_t n = 0;
        n_pending = decide_wave(r, layer, n_pending, &n);
        if (!n)
            return clb_fail(err, COLIBRI_E_INTERNAL, "no slot for an expert of layer %u", layer);
        if (r->predictor) /* before time goes on; the drive does the wave's reads first all the same */
            clb_prefetch_act(r, layer, route->n_rows);
        clb_timing_wave(r, layer, n, route->n_rows);
        for (uint32_t k = 0; k < n; k++)
            if (c->slots[r->wave[k].slot].state == CLB_SLOT_LOADING)
                clb_cache_arrived(c, r->wave[k].slot);
        if (c->options.policy->on_access)
            report_wave(r, layer, n);
        for (uint32_t k = 0; k < n; k++)
            clb_cache_unpin(c, r->wave[k].slot);
    }
    r->out->layer_lookups[layer] += n_union;
    r->out->layer_hits[layer] += c->stats.hits - hits;
    return COLIBRI_OK;
}

/* ---- passes ---- */

struct snapshot {
    uint64_t hits, late, misses, missed_bytes, bytes;
    double now, stall;
};

static struct snapshot snap(const struct replay *r)
{
    const clb_cache_stats *const s = &r->cache->stats;
    return (struct snapshot){s->hits, s->late, s->misses, r->missed_bytes, r->needed_bytes, r->now, r->stall};
}

static void account(struct replay *r, const clb_trace_pass *p, const struct snapshot *before)
{
    const struct snapshot now = snap(r);
    clb_replay_count *const u =
        &r->out->units[p->unit][p->phase == COLIBRI_PHASE_DECODE ? CLB_COUNT_DECODE : CLB_COUNT_PREFILL];
    const uint64_t hits = now.hits - before->hits, late = now.late - before->late;
    const uint64_t lookups = hits + late + (now.misses - before->misses);
    u->lookups += lookups;
    u->hits += hits;
    u->late += late;
    u->bytes += now.bytes - before->bytes;
    u->missed_bytes += now.missed_bytes - before->missed_bytes;
    u->rows += p->n_rows;
    u->ns += now.now - before->now;
    u->stall_ns += now.stall - before->stall;
    if (!r->o->window || p->phase != COLIBRI_PHASE_DECODE)
        return;
    r->window_lookups += lookups;
    r->window_hits += hits;
    if (++r->window_passes == r->o->window) {
        r->out->series[r->out->n_series++] = (float)((double)r->window_hits / (double)r->window_lookups);
        r->window_passes = 0;
        r->window_lookups = r->window_hits = 0;
    }
}

static int run_pass(struct replay *r, uint64_t pass, clb_error *err)
{
    const clb_trace *const t = r->x->trace;
    const clb_trace_pass *const p = &t->passes[pass];
    const struct snapshot before = snap(r);
    const struct colibri_step step = {.struct_size = sizeof step,
                                      .phase = p->phase,
                                      .step = pass,
                                      .n_rows = p->n_rows,
                                      .n_sequences = p->n_sequences};
    struct colibri_route route = {.struct_size = sizeof route,
                                  .n_rows = p->n_rows,
                                  .top_k = t->info.top_k,
                                  .row_sequence = p->n_sequences > 1 ? t->sequences + p->first_row : NULL};
    clb_cache_step(r->cache, &step);
    if (r->predictor && r->predictor->on_step)
        r->predictor->on_step(r->predictor_self, &step);
    uint64_t at = clb_trace_at(t, pass, 0);
    const uint64_t stride = (uint64_t)p->n_rows * t->info.top_k;
    for (uint32_t l = 0; l < t->info.n_layers; l++, at += stride, r->visit++) {
        route.ids = t->ids + at;
        route.gates = t->gates ? t->gates + at : r->ones;
        route.n_ahead = 0;
        route.ahead_logits = NULL;
        CLB_TRY(visit(r, pass, l, &route, err));
    }
    account(r, p, &before);
    return COLIBRI_OK;
}

static int preload(struct replay *r)
{
    const clb_trace_info *const info = &r->x->trace->info;
    for (uint32_t l = 0; l < info->n_layers; l++)
        for (uint32_t e = 0; e < info->n_experts; e++)
            clb_cache_preload(r->cache, l, e);
    return COLIBRI_OK;
}

static void begin_unit(struct replay *r, uint64_t unit, bool all_fit)
{
    const clb_trace *const t = r->x->trace;
    const clb_trace_unit *const u = &t->units[unit];
    if (r->o->window)
        r->out->series_unit[unit] = r->out->n_series;
    if (!r->o->reset_units)
        return;
    r->horizon = (uint32_t)((u->first_pass + u->n_passes) * t->info.n_layers);
    if (unit == 0)
        return;
    clb_prefetch_drop(r);
    clb_cache_reset(r->cache);
    if (r->predictor && r->predictor->reset)
        r->predictor->reset(r->predictor_self);
    if (all_fit && !r->o->cold)
        preload(r);
}

/* Another process may have interrupted a pass: the median of many does not see it. */
static int timed_pass(struct replay *r, uint64_t pass, clb_error *err)
{
    const uint64_t before = r->cache->stats.policy_ns;
    const uint32_t first = r->visit;
    CLB_TRY(run_pass(r, pass, err));
    const uint64_t lookups = r->x->union_first[r->visit] - r->x->union_first[first];
    if (r->n_times < MAX_TIMES)
        r->times[r->n_times++] = (double)(r->cache->stats.policy_ns - before) / (double)lookups;
    return COLIBRI_OK;
}

static int run_all(struct replay *r, bool all_fit, clb_error *err)
{
    const clb_trace *const t = r->x->trace;
    const uint32_t one_in = r->o->timed_one_in;
    for (uint64_t unit = 0; unit < t->n_units; unit++) {
        begin_unit(r, unit, all_fit);
        for (uint64_t n = 0; n < t->units[unit].n_passes; n++) {
            const uint64_t pass = t->units[unit].first_pass + n;
            r->cache->options.timed = one_in && pass % one_in == 0;
            CLB_TRY(r->cache->options.timed ? timed_pass(r, pass, err) : run_pass(r, pass, err));
            if (r->o->cancelled && pass % 256 == 0 && r->o->cancelled(r->o->cancelled_ctx))
                return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
        }
    }
    return COLIBRI_OK;
}

/* ---- opening and closing ---- */

static int open_result(const struct replay *r, clb_replay_result *out, clb_error *err)
{
    const clb_trace *const t = r->x->trace;
    *out = (clb_replay_result){.n_units = (uint32_t)t->n_units, .n_layers = t->info.n_layers};
    out->units = calloc(t->n_units, sizeof *out->units);
    out->layer_lookups = calloc(t->info.n_layers, sizeof *out->layer_lookups);
    out->layer_hits = calloc(t->info.n_layers, sizeof *out->layer_hits);
    if (r->o->window) {
        out->series = malloc((t->n_passes / r->o->window + 1) * sizeof *out->series);
        out->series_unit = calloc(t->n_units, sizeof *out->series_unit);
    }
    return out->units && out->layer_lookups && out->layer_hits && (!r->o->window || (out->series && out->series_unit))
               ? COLIBRI_OK
               : CLB_NOMEM(err, "replaying");
}

void clb_replay_result_free(clb_replay_result *out)
{
    free(out->units);
    free(out->layer_lookups);
    free(out->layer_hits);
    free(out->series);
    free(out->series_unit);
    *out = (clb_replay_result){0};
}

static int open_scratch(struct replay *r, clb_error *err)
{
    const clb_trace *const t = r->x->trace;
    const size_t n = t->info.n_experts, all = n * t->info.n_layers;
    uint32_t most_rows = 1;
    for (uint64_t p = 0; p < t->n_passes; p++)
        most_rows = t->passes[p].n_rows > most_rows ? t->passes[p].n_rows : most_rows;
    r->pending = malloc(n * sizeof *r->pending);
    r->wave = malloc(n * sizeof *r->wave);
    r->accesses = malloc(n * sizeof *r->accesses);
    r->waits = calloc(n, sizeof *r->waits);
    r->times = malloc(MAX_TIMES * sizeof *r->times);
    if (!r->pending || !r->wave || !r->accesses || !r->waits || !r->times)
        return CLB_NOMEM(err, "replaying");
    if (!t->gates) {
        const size_t ones = (size_t)most_rows * t->info.top_k;
        r->ones = malloc(ones * sizeof *r->ones);
        if (!r->ones)
            return CLB_NOMEM(err, "replaying");
        for (size_t i = 0; i < ones; i++)
            r->ones[i] = 1.0f / (float)t->info.top_k;
    }
    const bool oracle = (r->o->policy->flags | (r->predictor ? r->predictor->flags : 0)) & COLIBRI_POLICY_ORACLE;
    if (oracle) {
        r->next_of = malloc(all * sizeof *r->next_of);
        if (!r->next_of)
            return CLB_NOMEM(err, "replaying");
        memcpy(r->next_of, r->x->first_use, all * sizeof *r->next_of);
    }
    if (r->predictor && COLIBRI_HAS(r->predictor, ahead) && r->predictor->ahead && t->ahead) {
        r->ahead_rows = most_rows < 4096 ? most_rows : 4096;
        r->ahead = malloc((size_t)t->info.ahead_layers * r->ahead_rows * n * sizeof *r->ahead);
        if (!r->ahead)
            return CLB_NOMEM(err, "replaying");
    }
    return COLIBRI_OK;
}

static int open_cache(struct replay *r, const struct clb_replay_pools *pools, clb_error *err)
{
    const clb_replay_options *const o = r->o;
    const clb_trace_info *const info = &r->x->trace->info;
    clb_cache_options co = {.n_layers = info->n_layers,
                            .n_experts = info->n_experts,
                            .top_k = info->top_k,
                            .pool_of = pools->of,
                            .n_pools = pools->n,
                            .pool_slots = pools->slots,
                            .expert_bytes = info->expert_bytes,
                            .policy = o->policy,
                            .params = o->params,
                            .seed = o->seed,
                            .host = o->host,
                            .misbehaved = misbehaved,
                            .misbehaved_ctx = r};
    if (o->policy->flags & COLIBRI_POLICY_ORACLE) {
        co.next_use = next_use;
        co.next_use_ctx = r;
    }
    return clb_cache_open(&co, &r->cache, err);
}

static int open_predictor(struct replay *r, clb_error *err)
{
    const clb_trace_info *const info = &r->x->trace->info;
    struct colibri_policy_config config = {.struct_size = sizeof config,
                                           .n_layers = info->n_layers,
                                           .n_experts = info->n_experts,
                                           .top_k = info->top_k,
                                           .n_slots = r->o->n_slots,
                                           .expert_bytes = info->expert_bytes,
                                           .seed = r->o->seed,
                                           .params = r->o->predictor_params,
                                           .host = r->o->host};
    if (r->predictor->flags & COLIBRI_POLICY_ORACLE) {
        config.next_use = next_use;
        config.next_use_ctx = r;
    }
    char why[256] = "no reason given";
    r->predictor_self = r->predictor->create(&config, why, sizeof why);
    if (!r->predictor_self)
        return clb_fail(err, COLIBRI_E_PLUGIN, "predictor %s refused to start: %.255s", r->predictor->name, why);
    return clb_prefetch_open(r, err);
}

static void close_replay(struct replay *r)
{
    if (r->predictor_self)
        r->predictor->destroy(r->predictor_self);
    clb_prefetch_close(r);
    clb_cache_close(r->cache);
    free(r->pending);
    free(r->wave);
    free(r->accesses);
    free(r->waits);
    free(r->times);
    free(r->ones);
    free(r->next_of);
    free(r->ahead);
}

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int clb_replay_run(const clb_replay_index *x, const clb_replay_options *o, clb_replay_result *out, clb_error *err)
{
    const clb_trace_info *const info = &x->trace->info;
    const uint64_t all = (uint64_t)info->n_layers * info->n_experts;
    struct replay r = {.x = x, .o = o, .out = out, .predictor = o->predictor, .horizon = UINT32_MAX};
    struct clb_replay_pools pools = {0};
    const uint64_t began = thread_ns();
    *out = (clb_replay_result){0};
    const uint32_t n_slots = o->n_slots < all ? o->n_slots : (uint32_t)all;
    const uint32_t least = clb_replay_least_slots(info, o->layer_pools);
    if (n_slots < least)
        return clb_fail(err, COLIBRI_E_USAGE, "%u slots: at least %u, one for each %s", n_slots, least,
                        o->layer_pools ? "layer" : "size of experts");
    int rc = clb_replay_pools_make(info, n_slots, o->layer_pools, &pools, err);
    if (!rc)
        rc = open_result(&r, out, err);
    if (!rc)
        rc = open_scratch(&r, err);
    if (!rc)
        rc = open_cache(&r, &pools, err);
    if (!rc && r.predictor)
        rc = open_predictor(&r, err);
    if (!rc) {
        const bool all_fit = n_slots == all;
        if (all_fit && !o->cold)
            preload(&r);
        rc = run_all(&r, all_fit, err);
        clb_prefetch_drop(&r);
        out->stats = r.cache->stats;
        out->used_slots = r.cache->n_slots;
        out->policy_ns = r.n_times ? clb_median(r.times, r.n_times) : (double)NAN;
        out->cpu_ns = thread_ns() - began;
    }
    close_replay(&r);
    free(pools.of);
    free(pools.slots);
    if (rc)
        clb_replay_result_free(out);
    return rc;
}
