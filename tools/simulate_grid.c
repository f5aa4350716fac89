/* Runs the grid of policies, predictors and capacities over all traces, one thread per cell, and adds up. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "simulate.h"

#define TIMED_ONE_IN 16u /* passes: reading the clock around every call would cost more than the calls */

void clb_sim_free(clb_sim *s)
{
    for (uint32_t c = 0; c < s->n_cells; c++) {
        for (uint32_t t = 0; s->cells[c].runs && t < s->n_traces; t++)
            clb_replay_result_free(&s->cells[c].runs[t]);
        free(s->cells[c].runs);
    }
    for (uint32_t p = 0; s->series && p < s->n_policies; p++)
        clb_replay_result_free(&s->series[p]);
    for (uint32_t t = 0; t < s->n_traces; t++) {
        clb_replay_index_free(&s->traces[t].index);
        clb_trace_close(s->traces[t].trace);
    }
    for (uint32_t p = 0; p < s->n_policies; p++)
        free(s->policies[p].params);
    for (uint32_t p = 0; p < s->n_predictors; p++)
        free(s->predictors[p].params);
    free(s->traces);
    free(s->policies);
    free(s->predictors);
    free(s->slots);
    free(s->cells);
    free(s->series);
    clb_trace_close(s->joined);
    clb_registry_close(s->registry);
    *s = (clb_sim){0};
}

uint32_t clb_sim_find_cell(const clb_sim *s, uint32_t policy, uint32_t predictor, uint32_t slots)
{
    for (uint32_t c = 0; c < s->n_cells; c++)
        if (s->cells[c].policy == policy && s->cells[c].predictor == predictor && s->cells[c].slots == slots)
            return c;
    return CLB_SIM_NONE;
}

uint32_t clb_sim_find_policy(const clb_sim *s, const char *name)
{
    for (uint32_t p = 0; p < s->n_policies; p++)
        if (!strcmp(s->policies[p].label, name))
            return p;
    return CLB_SIM_NONE;
}

static uint64_t hits_of(const clb_sim_cell *c)
{
    return c->count[CLB_COUNT_PREFILL].hits + c->count[CLB_COUNT_DECODE].hits;
}

static uint64_t lookups_of(const clb_sim_cell *c)
{
    return c->count[CLB_COUNT_PREFILL].lookups + c->count[CLB_COUNT_DECODE].lookups;
}

uint32_t clb_sim_optimum(const clb_sim *s, uint32_t slots)
{
    uint32_t best = CLB_SIM_NONE;
    for (uint32_t c = 0; c < s->n_cells; c++) {
        const clb_sim_cell *const k = &s->cells[c];
        if (k->slots != slots || k->predictor != 0 || !s->policies[k->policy].oracle)
            continue;
        if (best == CLB_SIM_NONE || hits_of(k) > hits_of(&s->cells[best]))
            best = c;
    }
    return best;
}

/* What was given counts, then what the trace says, then an assumption about the drive (which the report names). */
#define ASSUMED_RATE    3e9
#define ASSUMED_LATENCY 1e5
clb_trace_rates clb_sim_rates(const clb_sim *s, const clb_trace *trace)
{
    const clb_trace_rates *const a = &s->rates, *const b = &trace->rates;
    return (clb_trace_rates){
        .decode_layer_ns = a->decode_layer_ns > 0 ? a->decode_layer_ns : b->decode_layer_ns,
        .decode_expert_ns = a->decode_expert_ns > 0 ? a->decode_expert_ns : b->decode_expert_ns,
        .prefill_layer_ns = a->prefill_layer_ns > 0 ? a->prefill_layer_ns : b->prefill_layer_ns,
        .prefill_expert_ns = a->prefill_expert_ns > 0 ? a->prefill_expert_ns : b->prefill_expert_ns,
        .read_bytes_per_s = a->read_bytes_per_s > 0   ? a->read_bytes_per_s
                            : b->read_bytes_per_s > 0 ? b->read_bytes_per_s
                                                      : ASSUMED_RATE,
        .read_latency_ns = a->read_latency_ns > 0   ? a->read_latency_ns
                           : b->read_latency_ns > 0 ? b->read_latency_ns
                                                    : ASSUMED_LATENCY,
    };
}

static bool cancelled(void *ctx)
{
    return clb_args_interrupted(ctx);
}

clb_replay_options clb_sim_options(const clb_sim *s, const clb_sim_cell *cell, const clb_sim_trace *trace)
{
    const clb_sim_part *const policy = &s->policies[cell->policy], *const predictor = &s->predictors[cell->predictor];
    return (clb_replay_options){.policy = policy->policy,
                                .params = policy->params,
                                .predictor = predictor->predictor,
                                .predictor_params = predictor->params,
                                .host = clb_registry_host(s->registry),
                                .seed = s->seed,
                                .n_slots = clb_sim_slot_count(s, cell->slots, &trace->trace->info),
                                .layer_pools = s->layer_pools,
                                .cold = s->cold,
                                .reset_units = s->reset_units,
                                .rates = clb_sim_rates(s, trace->trace),
                                .prefetch_depth = s->prefetch_depth,
                                .timed_one_in = TIMED_ONE_IN,
                                .cancelled = cancelled,
                                .cancelled_ctx = s->args};
}

/* ---- jobs ---- */

struct job {
    const clb_replay_index *index;
    clb_replay_options options;
    clb_replay_result *out;
};

struct work {
    clb_sim *sim;
    struct job *jobs;
    uint32_t n_jobs;
    atomic_uint next, done;
    atomic_int failed; /* the first status */
    clb_error error;   /* of the worker that set `failed` */
};

static void worker(void *ctx, uint32_t index, uint32_t n)
{
    (void)n;
    struct work *const w = ctx;
    for (;;) {
        const uint32_t j = atomic_fetch_add(&w->next, 1);
        if (j >= w->n_jobs || atomic_load(&w->failed))
            return;
        clb_error err = {0};
        int expected = 0;
        const int rc = clb_replay_run(w->jobs[j].index, &w->jobs[j].options, w->jobs[j].out, &err);
        if (rc && atomic_compare_exchange_strong(&w->failed, &expected, rc))
            w->error = err;
        const uint32_t done = atomic_fetch_add(&w->done, 1) + 1;
        if (index == 0)
            clb_progress(clb_args_log(w->sim->args), "simulating", done, w->n_jobs);
    }
}

static int run_jobs(clb_sim *s, struct job *jobs, uint32_t n, clb_error *err)
{
    struct work w = {.sim = s, .jobs = jobs, .n_jobs = n};
    clb_pool *pool = NULL;
    CLB_TRY(clb_pool_create(s->n_threads, &pool, err));
    clb_pool_run(pool, worker, &w);
    clb_pool_destroy(pool);
    clb_progress(clb_args_log(s->args), "simulating", n, n);
    if (w.failed && err)
        *err = w.error;
    return w.failed;
}

static int make_cells(clb_sim *s, clb_error *err)
{
    s->cells = calloc((size_t)s->n_policies * s->n_predictors * s->n_slots, sizeof *s->cells);
    if (!s->cells)
        return CLB_NOMEM(err, "the grid");
    for (uint32_t k = 0; k < s->n_slots; k++)
        for (uint32_t p = 0; p < s->n_policies; p++)
            for (uint32_t q = 0; q < s->n_predictors; q++) {
                /* Yardsticks have no predictor: what they say is about replacement alone. */
                if (q && (s->policies[p].oracle || s->policies[p].hidden))
                    continue;
                clb_sim_cell *const c = &s->cells[s->n_cells];
                *c = (clb_sim_cell){.policy = p, .predictor = q, .slots = k};
                c->runs = calloc(s->n_traces, sizeof *c->runs);
                if (!c->runs)
                    return CLB_NOMEM(err, "the grid");
                s->n_cells++;
            }
    return COLIBRI_OK;
}

/* ---- sums ---- */

static void add_count(clb_replay_count *a, const clb_replay_count *b)
{
    a->lookups += b->lookups;
    a->hits += b->hits;
    a->late += b->late;
    a->bytes += b->bytes;
    a->missed_bytes += b->missed_bytes;
    a->rows += b->rows;
    a->ns += b->ns;
    a->stall_ns += b->stall_ns;
}

static void add_run(clb_sim_cell *c, const clb_replay_result *r)
{
    for (uint32_t u = 0; u < r->n_units; u++)
        for (int k = 0; k < CLB_COUNTS; k++)
            add_count(&c->count[k], &r->units[u][k]);
    c->stats.hits += r->stats.hits;
    c->stats.misses += r->stats.misses;
    c->stats.late += r->stats.late;
    c->stats.insertions += r->stats.insertions;
    c->stats.evictions += r->stats.evictions;
    c->stats.bypassed += r->stats.bypassed;
    c->stats.bad_answers += r->stats.bad_answers;
    c->stats.prefetches += r->stats.prefetches;
    c->predictions += r->predictions;
    c->useful += r->useful;
    c->late += r->late;
    c->wasted += r->wasted;
    c->cancelled += r->cancelled;
    c->prefetched_bytes += r->prefetched_bytes;
    c->late_ns += r->late_ns;
    if (!c->misbehaved)
        c->misbehaved = r->misbehaved;
}

static uint64_t unit_hits(const clb_replay_result *r, uint32_t u)
{
    return r->units[u][CLB_COUNT_PREFILL].hits + r->units[u][CLB_COUNT_DECODE].hits;
}

static double ratio(void *ctx, const double *sums)
{
    (void)ctx;
    return sums[0] / sums[1];
}

/* Columns: this policy's hits, lru's, the optimum's. A gap of less than one hit in a thousand units is none. */
static double gap_share(void *ctx, const double *sums)
{
    (void)ctx;
    return sums[2] > sums[1] ? (sums[0] - sums[1]) / (sums[2] - sums[1]) : NAN;
}

static int statistics(const clb_sim *s, clb_sim_cell *c, double *x, uint32_t n_units, clb_error *err)
{
    const clb_bootstrap_options o = {.resamples = s->resamples, .seed = 1 + s->seed};
    uint32_t n = 0;
    for (uint32_t t = 0; t < s->n_traces; t++)
        for (uint32_t u = 0; u < c->runs[t].n_units; u++, n++) {
            const clb_replay_count *const k = c->runs[t].units[u];
            x[2 * (size_t)n] = (double)unit_hits(&c->runs[t], u);
            x[2 * (size_t)n + 1] = (double)(k[CLB_COUNT_PREFILL].lookups + k[CLB_COUNT_DECODE].lookups);
        }
    CLB_TRY(clb_bootstrap(x, n_units, 2, ratio, NULL, &o, &c->hit, err));
    const uint32_t lru = clb_sim_find_policy(s, "lru"), best = clb_sim_optimum(s, c->slots);
    const uint32_t base = lru == CLB_SIM_NONE ? CLB_SIM_NONE : clb_sim_find_cell(s, lru, 0, c->slots);
    if (base == CLB_SIM_NONE || best == CLB_SIM_NONE || hits_of(&s->cells[best]) <= hits_of(&s->cells[base]))
        return COLIBRI_OK;
    n = 0;
    for (uint32_t t = 0; t < s->n_traces; t++)
        for (uint32_t u = 0; u < c->runs[t].n_units; u++, n++) {
            x[3 * (size_t)n] = (double)unit_hits(&c->runs[t], u);
            x[3 * (size_t)n + 1] = (double)unit_hits(&s->cells[base].runs[t], u);
            x[3 * (size_t)n + 2] = (double)unit_hits(&s->cells[best].runs[t], u);
        }
    return clb_bootstrap(x, n_units, 3, gap_share, NULL, &o, &c->gap, err);
}

struct stats_work {
    clb_sim *sim;
    uint32_t n_units;
    atomic_uint next;
    atomic_int failed;
};

static void stats_worker(void *ctx, uint32_t index, uint32_t n)
{
    (void)index;
    (void)n;
    struct stats_work *const w = ctx;
    double *const x = malloc((size_t)w->n_units * 3 * sizeof *x);
    if (!x)
        atomic_store(&w->failed, COLIBRI_E_NOMEM);
    for (uint32_t c; x && (c = atomic_fetch_add(&w->next, 1)) < w->sim->n_cells;)
        if (statistics(w->sim, &w->sim->cells[c], x, w->n_units, NULL))
            atomic_store(&w->failed, COLIBRI_E_NOMEM);
    free(x);
}

static void finish_cell(const clb_sim *s, clb_sim_cell *c)
{
    double timed = 0, weight = 0, cpu = 0;
    bool rated = true;
    for (uint32_t t = 0; t < s->n_traces; t++) {
        const clb_trace_rates r = clb_sim_rates(s, s->traces[t].trace);
        add_run(c, &c->runs[t]);
        cpu += (double)c->runs[t].cpu_ns;
        if (!isnan(c->runs[t].policy_ns)) {
            timed += c->runs[t].policy_ns * (double)s->traces[t].index.n_lookups;
            weight += (double)s->traces[t].index.n_lookups;
        }
        rated = rated && r.decode_layer_ns + r.decode_expert_ns > 0;
    }
    const clb_replay_count *const d = &c->count[CLB_COUNT_DECODE];
    c->policy_ns = weight > 0 ? timed / weight : (double)NAN;
    c->replay_ns = cpu / (double)lookups_of(c);
    c->tok_per_s = rated && d->ns > 0 ? (double)d->rows * 1e9 / d->ns : (double)NAN;
}

static int summarize(clb_sim *s, clb_error *err)
{
    uint32_t n_units = 0;
    for (uint32_t t = 0; t < s->n_traces; t++) {
        const clb_trace *const trace = s->traces[t].trace;
        n_units += (uint32_t)trace->n_units;
        s->assumed_drive =
            s->assumed_drive || (!(s->rates.read_bytes_per_s > 0) && !(trace->rates.read_bytes_per_s > 0));
        s->assumed_latency =
            s->assumed_latency || (!(s->rates.read_latency_ns > 0) && !(trace->rates.read_latency_ns > 0));
    }
    for (uint32_t c = 0; c < s->n_cells; c++) {
        finish_cell(s, &s->cells[c]);
        s->replayed += lookups_of(&s->cells[c]);
    }
    struct stats_work w = {.sim = s, .n_units = n_units};
    clb_pool *pool = NULL;
    CLB_TRY(clb_pool_create(s->n_threads, &pool, err));
    clb_pool_run(pool, stats_worker, &w);
    clb_pool_destroy(pool);
    return w.failed ? CLB_NOMEM(err, "statistics") : COLIBRI_OK;
}

/* ---- the page's extras ---- */

static int run_series(clb_sim *s, clb_error *err)
{
    const clb_trace **const all = calloc(s->n_traces, sizeof *all);
    if (!all)
        return CLB_NOMEM(err, "the traces");
    for (uint32_t t = 0; t < s->n_traces; t++)
        all[t] = s->traces[t].trace;
    clb_error why;
    const int joined = clb_trace_join(all, s->n_traces, &s->joined, &why);
    free(all);
    if (joined == COLIBRI_E_NOMEM)
        return CLB_NOMEM(err, "the traces");
    for (uint32_t t = 0; t < s->n_traces; t++) {
        uint64_t bins[CLB_REUSE_BINS], cold;
        CLB_TRY(clb_reuse_distances(&s->traces[t].index, bins, &cold, err));
        for (uint32_t b = 0; b < CLB_REUSE_BINS; b++)
            s->reuse[b] += bins[b];
        s->reuse_cold += cold;
    }
    if (joined) {
        clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN, "no plot over time: %s", why.msg);
        return COLIBRI_OK;
    }
    clb_sim_trace whole = {.trace = s->joined};
    struct job *const jobs = calloc(s->n_policies, sizeof *jobs);
    s->series = calloc(s->n_policies, sizeof *s->series);
    int rc = jobs && s->series ? COLIBRI_OK : CLB_NOMEM(err, "the series");
    if (!rc)
        rc = clb_replay_index_make(s->joined, &whole.index, err);
    s->series_slots = s->n_slots / 2;
    for (uint32_t p = 0; p < s->n_policies && !rc; p++) {
        const clb_sim_cell cell = {.policy = p, .slots = s->series_slots};
        jobs[p] = (struct job){&whole.index, clb_sim_options(s, &cell, &whole), &s->series[p]};
        jobs[p].options.window = s->window;
        jobs[p].options.timed_one_in = 0;
    }
    if (!rc)
        rc = run_jobs(s, jobs, s->n_policies, err);
    clb_replay_index_free(&whole.index);
    free(jobs);
    return rc;
}

int clb_sim_run(clb_sim *s, bool with_series, clb_error *err)
{
    const uint64_t began = clb_now_ns();
    CLB_TRY(make_cells(s, err));
    struct job *const jobs = calloc((size_t)s->n_cells * s->n_traces, sizeof *jobs);
    if (!jobs)
        return CLB_NOMEM(err, "the grid");
    uint32_t n = 0;
    for (uint32_t c = 0; c < s->n_cells; c++)
        for (uint32_t t = 0; t < s->n_traces; t++)
            jobs[n++] = (struct job){&s->traces[t].index, clb_sim_options(s, &s->cells[c], &s->traces[t]),
                                     &s->cells[c].runs[t]};
    int rc = run_jobs(s, jobs, n, err);
    free(jobs);
    if (!rc)
        rc = summarize(s, err);
    if (!rc && with_series)
        rc = run_series(s, err);
    s->ns = clb_now_ns() - began;
    return rc;
}
