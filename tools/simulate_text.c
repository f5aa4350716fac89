/* Results as a table for people, CSV and JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "simulate.h"

static uint64_t total(const clb_sim_cell *c, size_t at)
{
    uint64_t sum = 0;
    for (int k = 0; k < CLB_COUNTS; k++)
        sum += *(const uint64_t *)(const void *)((const char *)&c->count[k] + at);
    return sum;
}
#define TOTAL(c, field) total((c), offsetof(clb_replay_count, field))

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : (double)NAN;
}

static double miss_bytes(const clb_sim_cell *c)
{
    const uint64_t bytes = TOTAL(c, bytes);
    /* Sizes are not always known; then every expert counts alike. */
    return bytes ? share(TOTAL(c, missed_bytes), bytes) : share(TOTAL(c, lookups) - TOTAL(c, hits), TOTAL(c, lookups));
}

/* More hits first; what was asked for and the oracles, without the hidden ones. */
static int better(const void *a, const void *b)
{
    const clb_sim_cell *const x = *(const clb_sim_cell *const *)a, *const y = *(const clb_sim_cell *const *)b;
    if (x->hit.value < y->hit.value || x->hit.value > y->hit.value)
        return x->hit.value < y->hit.value ? 1 : -1;
    return (x->policy > y->policy) - (x->policy < y->policy);
}

static const clb_sim_cell **sorted(const clb_sim *s, uint32_t slots, uint32_t *n)
{
    const clb_sim_cell **const out = calloc(s->n_cells + 1, sizeof *out);
    *n = 0;
    for (uint32_t c = 0; out && c < s->n_cells; c++)
        if (s->cells[c].slots == slots && !s->policies[s->cells[c].policy].hidden)
            out[(*n)++] = &s->cells[c];
    if (out && *n > 1)
        qsort(out, *n, sizeof *out, better);
    return out;
}

static void number(FILE *f, const char *format, double v, int width)
{
    if (isnan(v))
        fprintf(f, "%*s", width, "-");
    else
        fprintf(f, format, v);
}

static void print_row(const clb_sim *s, const clb_sim_cell *c, int w_policy, int w_predictor, FILE *f)
{
    fprintf(f, "  %-*s", w_policy, s->policies[c->policy].label);
    if (s->n_predictors > 1)
        fprintf(f, "  %-*s", w_predictor, s->predictors[c->predictor].label);
    fprintf(f, "  %6.2f", 100 * c->hit.value);
    if (c->hit.n > 1)
        fprintf(f, "  %6.2f %6.2f", 100 * c->hit.low, 100 * c->hit.high);
    else
        fprintf(f, "  %6s %6s", "-", "-");
    fprintf(f, "  %6.2f", 100 * miss_bytes(c));
    if (c->gap.n)
        fprintf(f, "  %7.1f  %7.1f %7.1f", 100 * c->gap.value, 100 * c->gap.low, 100 * c->gap.high);
    else
        fprintf(f, "  %7s  %7s %7s", "-", "-", "-");
    fprintf(f, "  %10" PRIu64, c->stats.evictions);
    fputs("  ", f);
    number(f, "%8.2f", c->tok_per_s, 8);
    fputs("  ", f);
    number(f, "%6.1f", c->policy_ns, 6);
    if (s->n_predictors > 1) {
        const uint64_t read = c->useful + c->late + c->wasted;
        fputs("  ", f);
        number(f, "%6.1f", 100 * share(c->useful + c->late, read), 6);
        fputs("  ", f);
        number(f, "%6.1f", 100 * share(c->useful + c->late, c->useful + c->late + c->stats.misses), 6);
        fputs("  ", f);
        number(f, "%6.1f", 100 * share(c->late, c->useful + c->late), 6);
    }
    fputc('\n', f);
}

static void print_head(const clb_sim *s, FILE *f)
{
    uint64_t lookups = 0, units = 0, passes = 0;
    for (uint32_t t = 0; t < s->n_traces; t++) {
        lookups += s->traces[t].index.n_lookups;
        units += s->traces[t].trace->n_units;
        passes += s->traces[t].trace->n_passes;
    }
    const clb_trace_info *const i = &s->traces[0].trace->info;
    fprintf(f,
            "%u trace%s: %" PRIu64 " prompts, %" PRIu64 " passes, %" PRIu64
            " look-ups; %u layers, %u experts, top %u; slots ",
            s->n_traces, s->n_traces == 1 ? "" : "s", units, passes, lookups, i->n_layers, i->n_experts, i->top_k);
    const uint32_t sizes = clb_replay_least_slots(i, false);
    if (s->layer_pools)
        fputs("of each layer\n", f);
    else if (sizes == 1)
        fputs("shared by all layers\n", f);
    else
        fprintf(f, "in %u pools, for %u sizes of experts\n", sizes, sizes);
    if (!isnan(s->cells[0].tok_per_s)) {
        const clb_trace_rates r = clb_sim_rates(s, s->traces[0].trace);
        fprintf(f, "drive %.2f GB/s%s after %.0f us%s; per token and layer %.1f us + %.1f us per expert\n",
                r.read_bytes_per_s / 1e9, s->assumed_drive ? " (assumed: see --read-rate)" : "",
                r.read_latency_ns / 1e3, s->assumed_latency ? " (assumed: see --read-latency)" : "",
                r.decode_layer_ns / 1e3, r.decode_expert_ns / 1e3);
    }
}

void clb_sim_print_table(const clb_sim *s, FILE *f)
{
    int w_policy = 6, w_predictor = 9;
    for (uint32_t p = 0; p < s->n_policies; p++)
        w_policy = (int)strlen(s->policies[p].label) > w_policy ? (int)strlen(s->policies[p].label) : w_policy;
    for (uint32_t p = 0; p < s->n_predictors; p++)
        w_predictor =
            (int)strlen(s->predictors[p].label) > w_predictor ? (int)strlen(s->predictors[p].label) : w_predictor;
    print_head(s, f);
    for (uint32_t k = 0; k < s->n_slots; k++) {
        const clb_trace_info *const i = &s->traces[0].trace->info;
        fprintf(f, "\n%s of the experts have slots (%u of %u)\n  %-*s", s->slots[k].label, clb_sim_slot_count(s, k, i),
                i->n_layers * i->n_experts, w_policy, "policy");
        if (s->n_predictors > 1)
            fprintf(f, "  %-*s", w_predictor, "predictor");
        fprintf(f, "  %6s  %13s  %6s  %7s  %15s  %10s  %8s  %6s", "hit %", "95 % interval", "miss B", "gap %",
                "95 % interval", "evictions", "tok/s", "ns");
        if (s->n_predictors > 1)
            fprintf(f, "  %6s  %6s  %6s", "prec %", "rec %", "late %");
        fputc('\n', f);
        uint32_t n;
        const clb_sim_cell **const cells = sorted(s, k, &n);
        for (uint32_t c = 0; cells && c < n; c++)
            print_row(s, cells[c], w_policy, w_predictor, f);
        free(cells);
    }
    fprintf(f,
            "\nmiss B: bytes not there in time, %% of those needed. gap: share of the way from lru to the optimum. "
            "Intervals: "
            "prompts resampled.\nns: the policy's own time per look-up. %" PRIu64
            " look-ups replayed in %.2f s on %u thread%s\n",
            s->replayed, (double)s->ns / 1e9, s->n_threads, s->n_threads == 1 ? "" : "s");
}

/* ---- CSV ---- */

static void csv_number(FILE *f, double v)
{
    if (isfinite(v))
        fprintf(f, ",%.9g", v);
    else
        fputc(',', f);
}

/* A label may hold a comma between parameters. */
static void csv_text(FILE *f, const char *text)
{
    fprintf(f, strchr(text, ',') ? "\"%s\"" : "%s", text);
}

void clb_sim_print_csv(const clb_sim *s, FILE *f)
{
    fputs(
        "policy,predictor,slots,slot_count,trace,lookups,hits,late,misses,hit_rate,hit_low,hit_high,miss_byte_ratio,"
        "gap_closed,"
        "gap_low,gap_high,evictions,bypassed,decode_lookups,decode_hits,tokens_per_second,stall_ns_per_token,policy_ns,"
        "prefetches,useful,late_prefetches,wasted,cancelled\n",
        f);
    for (uint32_t i = 0; i < s->n_cells; i++) {
        const clb_sim_cell *const c = &s->cells[i];
        if (s->policies[c->policy].hidden)
            continue;
        const clb_replay_count *const d = &c->count[CLB_COUNT_DECODE];
        csv_text(f, s->policies[c->policy].label);
        fputc(',', f);
        csv_text(f, s->predictors[c->predictor].label);
        fprintf(f, ",%s,%u,all,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, s->slots[c->slots].label,
                clb_sim_slot_count(s, c->slots, &s->traces[0].trace->info), TOTAL(c, lookups), TOTAL(c, hits),
                TOTAL(c, late), c->stats.misses);
        csv_number(f, c->hit.value);
        csv_number(f, c->hit.n > 1 ? c->hit.low : (double)NAN);
        csv_number(f, c->hit.n > 1 ? c->hit.high : (double)NAN);
        csv_number(f, miss_bytes(c));
        csv_number(f, c->gap.n ? c->gap.value : (double)NAN);
        csv_number(f, c->gap.n ? c->gap.low : (double)NAN);
        csv_number(f, c->gap.n ? c->gap.high : (double)NAN);
        fprintf(f, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, c->stats.evictions, c->stats.bypassed, d->lookups,
                d->hits);
        csv_number(f, c->tok_per_s);
        csv_number(f, isnan(c->tok_per_s) || !d->rows ? (double)NAN : d->stall_ns / (double)d->rows);
        csv_number(f, c->policy_ns);
        fprintf(f, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", c->stats.prefetches, c->useful,
                c->late, c->wasted, c->cancelled);
        for (uint32_t t = 0; t < s->n_traces && s->n_traces > 1; t++) {
            const clb_replay_result *const r = &c->runs[t];
            const uint64_t lookups = r->stats.hits + r->stats.late + r->stats.misses;
            csv_text(f, s->policies[c->policy].label);
            fputc(',', f);
            csv_text(f, s->predictors[c->predictor].label);
            fprintf(f, ",%s,%u,", s->slots[c->slots].label, r->used_slots);
            csv_text(f, s->traces[t].name);
            fprintf(f, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, lookups, r->stats.hits, r->stats.late,
                    r->stats.misses);
            csv_number(f, share(r->stats.hits, lookups));
            fprintf(f,
                    ",,,,,,,%" PRIu64 ",%" PRIu64 ",,,,,,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                    r->stats.evictions, r->stats.bypassed, r->stats.prefetches, r->useful, r->late, r->wasted,
                    r->cancelled);
        }
    }
}

/* ---- JSON ---- */

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *interval(const clb_interval *v)
{
    if (!v->n)
        return json_null();
    return json_pack("{s:f, s:o, s:o, s:i}", "value", v->value, "low", v->n > 1 ? json_real(v->low) : json_null(),
                     "high", v->n > 1 ? json_real(v->high) : json_null(), "units", (int)v->n);
}

static json_t *count_json(const clb_replay_count *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "lookups", (json_int_t)c->lookups, "hits",
                     (json_int_t)c->hits, "late", (json_int_t)c->late, "bytes", (json_int_t)c->bytes, "missed_bytes",
                     (json_int_t)c->missed_bytes, "rows", (json_int_t)c->rows, "ns", c->ns, "stall_ns", c->stall_ns);
}

static json_t *traces_json(const clb_sim *s, const clb_sim_cell *c)
{
    json_t *const out = json_array();
    for (uint32_t t = 0; t < s->n_traces; t++) {
        const clb_replay_result *const r = &c->runs[t];
        json_t *const units = json_array(), *const layers = json_array();
        for (uint32_t u = 0; u < r->n_units; u++)
            json_array_append_new(units, json_pack("[I, I]", (json_int_t)(r->units[u][0].hits + r->units[u][1].hits),
                                                   (json_int_t)(r->units[u][0].lookups + r->units[u][1].lookups)));
        for (uint32_t l = 0; l < r->n_layers; l++)
            json_array_append_new(layers,
                                  json_pack("[I, I]", (json_int_t)r->layer_hits[l], (json_int_t)r->layer_lookups[l]));
        json_array_append_new(out,
                              json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:o, s:o}", "trace", s->traces[t].name, "slots",
                                        (int)r->used_slots, "hits", (json_int_t)r->stats.hits, "misses",
                                        (json_int_t)r->stats.misses, "late", (json_int_t)r->stats.late, "evictions",
                                        (json_int_t)r->stats.evictions, "units", units, "layers", layers));
    }
    return out;
}

static json_t *cell_json(const clb_sim *s, const clb_sim_cell *c)
{
    const clb_replay_count *const d = &c->count[CLB_COUNT_DECODE];
    json_t *const o = json_pack(
        "{s:s, s:s, s:s, s:i, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "policy", s->policies[c->policy].label,
        "predictor", s->predictors[c->predictor].label, "slots", s->slots[c->slots].label, "slot_count",
        (int)clb_sim_slot_count(s, c->slots, &s->traces[0].trace->info), "oracle", s->policies[c->policy].oracle,
        "lookups", (json_int_t)TOTAL(c, lookups), "hits", (json_int_t)TOTAL(c, hits), "late",
        (json_int_t)TOTAL(c, late), "misses", (json_int_t)c->stats.misses, "evictions", (json_int_t)c->stats.evictions,
        "bypassed", (json_int_t)c->stats.bypassed, "bad_answers", (json_int_t)c->stats.bad_answers);
    if (!o)
        return NULL;
    json_object_set_new(o, "hit_rate", interval(&c->hit));
    json_object_set_new(o, "gap_closed", interval(&c->gap));
    json_object_set_new(o, "miss_byte_ratio", real_or_null(miss_bytes(c)));
    json_object_set_new(o, "prefill", count_json(&c->count[CLB_COUNT_PREFILL]));
    json_object_set_new(o, "decode", count_json(d));
    json_object_set_new(o, "tokens_per_second", real_or_null(c->tok_per_s));
    json_object_set_new(o, "stall_ns_per_token",
                        real_or_null(isnan(c->tok_per_s) || !d->rows ? (double)NAN : d->stall_ns / (double)d->rows));
    json_object_set_new(o, "policy_ns", real_or_null(c->policy_ns));
    json_object_set_new(o, "prefetch",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "predictions", (json_int_t)c->predictions,
                                  "read", (json_int_t)c->stats.prefetches, "useful", (json_int_t)c->useful, "late",
                                  (json_int_t)c->late, "wasted", (json_int_t)c->wasted, "cancelled",
                                  (json_int_t)c->cancelled, "bytes", (json_int_t)c->prefetched_bytes, "late_ns",
                                  c->late_ns));
    json_object_set_new(o, "traces", traces_json(s, c));
    return o;
}

static json_t *head_json(const clb_sim *s)
{
    const clb_trace_rates r = clb_sim_rates(s, s->traces[0].trace);
    json_t *const traces = json_array();
    for (uint32_t t = 0; t < s->n_traces; t++) {
        const clb_trace *const k = s->traces[t].trace;
        json_array_append_new(traces, json_pack("{s:s, s:o, s:I, s:I, s:I, s:i, s:i, s:i, s:b}", "name",
                                                s->traces[t].name, "model", clb_json_text(k->info.model), "units",
                                                (json_int_t)k->n_units, "passes", (json_int_t)k->n_passes, "lookups",
                                                (json_int_t)s->traces[t].index.n_lookups, "layers",
                                                (int)k->info.n_layers, "experts", (int)k->info.n_experts, "top_k",
                                                (int)k->info.top_k, "ends_early", k->ends_early));
    }
    return json_pack("{s:i, s:s, s:s, s:I, s:i, s:b, s:b, s:o, s:{s:f, s:f, s:b, s:b, s:f, s:f, s:f, s:f}, s:f, s:I}",
                     "schema", 1, "kind", "colibri.simulate", "pool", s->layer_pools ? "layer" : "global", "seed",
                     (json_int_t)s->seed, "resamples", (int)s->resamples, "reset_units", s->reset_units, "cold",
                     s->cold, "traces", traces, "rates", "read_bytes_per_s", r.read_bytes_per_s, "read_latency_ns",
                     r.read_latency_ns, "assumed_drive", s->assumed_drive, "assumed_latency", s->assumed_latency,
                     "decode_layer_ns", r.decode_layer_ns, "decode_expert_ns", r.decode_expert_ns, "prefill_layer_ns",
                     r.prefill_layer_ns, "prefill_expert_ns", r.prefill_expert_ns, "seconds", (double)s->ns / 1e9,
                     "replayed", (json_int_t)s->replayed);
}

static int dump(json_t *o, FILE *f, clb_error *err)
{
    if (!o)
        return CLB_NOMEM(err, "JSON");
    const int rc = json_dumpf(o, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    return rc || fputc('\n', f) == EOF ? clb_fail(err, COLIBRI_E_IO, "cannot write JSON") : COLIBRI_OK;
}

int clb_sim_print_json(const clb_sim *s, bool lines, FILE *f, clb_error *err)
{
    json_t *const head = head_json(s);
    if (!head)
        return CLB_NOMEM(err, "JSON");
    if (lines)
        CLB_TRY(dump(head, f, err));
    json_t *const cells = json_array();
    for (uint32_t c = 0; c < s->n_cells; c++) {
        if (s->policies[s->cells[c].policy].hidden)
            continue;
        if (lines)
            CLB_TRY(dump(cell_json(s, &s->cells[c]), f, err));
        else
            json_array_append_new(cells, cell_json(s, &s->cells[c]));
    }
    if (lines) {
        json_decref(cells);
        return COLIBRI_OK;
    }
    json_object_set_new(head, "cells", cells);
    return dump(head, f, err);
}

/* ---- speed ---- */

int clb_sim_bench(const clb_sim *s, FILE *f, clb_error *err)
{
    fprintf(f, "  %-24s  %8s  %14s  %12s\n", "policy", "slots", "look-ups / s", "ns / look-up");
    for (uint32_t k = 0; k < s->n_slots; k++)
        for (uint32_t p = 0; p < s->n_policies; p++) {
            if (s->policies[p].added)
                continue;
            const clb_sim_cell cell = {.policy = p, .slots = k};
            double best = 0;
            const uint64_t began = clb_now_ns();
            for (int round = 0; round < 3 || clb_now_ns() - began < 500000000u; round++) {
                uint64_t lookups = 0, ns = 0;
                for (uint32_t t = 0; t < s->n_traces; t++) {
                    clb_replay_options o = clb_sim_options(s, &cell, &s->traces[t]);
                    clb_replay_result r;
                    o.timed_one_in = 0;
                    CLB_TRY(clb_replay_run(&s->traces[t].index, &o, &r, err));
                    lookups += s->traces[t].index.n_lookups;
                    ns += r.cpu_ns;
                    clb_replay_result_free(&r);
                }
                best = (double)lookups * 1e9 / (double)ns > best ? (double)lookups * 1e9 / (double)ns : best;
            }
            fprintf(f, "  %-24s  %8s  %14.0f  %12.1f\n", s->policies[p].label, s->slots[k].label, best, 1e9 / best);
        }
    return COLIBRI_OK;
}
