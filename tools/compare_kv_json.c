/* What all results say, as one JSON object: what a report can be drawn from without the results themselves. */
#include <math.h>

#include "compare_kv.h"
#include "json_out.h"

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *interval_json(const clb_interval *v)
{
    return json_pack("{so, so, so, si}", "value", number(v->value), "low", number(v->n > 1 ? v->low : (double)NAN),
                     "high", number(v->n > 1 ? v->high : (double)NAN), "n", (int)v->n);
}

static json_t *pair_json(const clb_kvc *c, const clb_kvc_pair *p, enum clb_kvc_metric metric)
{
    const bool ratio = clb_kvc_metric_get(metric).average == CLB_KVC_LOG;
    (void)c;
    return json_pack("{so, ss, so, so, so, so, so, ss, sb, si}", "change", number(p->change), "change_is",
                     ratio ? "ratio" : "difference", "low", number(p->n > 1 ? p->low : (double)NAN), "high",
                     number(p->n > 1 ? p->high : (double)NAN), "detectable", number(p->detectable), "p", number(p->p),
                     "p_holm", number(p->p_holm), "verdict", clb_verdict_name(p->verdict), "claim",
                     clb_kvc_claims(p) ? 1 : 0, "n", (int)p->n);
}

static json_t *metrics_json(const clb_kvc *c, uint32_t setting, uint32_t task)
{
    json_t *const out = json_object();
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++) {
        const enum clb_kvc_metric metric = (enum clb_kvc_metric)m;
        const clb_interval *const v = clb_kvc_mean_of(c, setting, task, metric);
        if (!v->n)
            continue;
        json_t *const o = interval_json(v);
        const clb_kvc_pair *const p = clb_kvc_against(c, setting, task, metric);
        if (p->n)
            json_object_set_new(o, "against_baseline", pair_json(c, p, metric));
        json_object_set_new(out, clb_kvc_metric_get(metric).json_name, o);
    }
    return out;
}

static json_t *groups_json(const clb_kvc *c, uint32_t setting, uint32_t task)
{
    json_t *const out = json_array();
    for (uint32_t g = 0; g < c->tasks[task].n_groups; g++) {
        const clb_kvc_group *const k = &c->tasks[task].groups[g];
        const clb_interval *const v = clb_kvc_group_mean(c, setting, task, g);
        if (v->n)
            json_array_append_new(out,
                                  json_pack("{so, so, so, so}", "group", clb_json_text(k->label), "length",
                                            number(k->length), "depth", number(k->depth), "result", interval_json(v)));
    }
    return out;
}

static json_t *cells_json(const clb_kvc *c)
{
    json_t *const cells = json_array();
    for (uint32_t s = 0; s < c->n_settings; s++)
        for (uint32_t t = 0; t < c->n_tasks; t++) {
            const clb_kvc_setting *const k = &c->settings[s];
            json_t *const metrics = metrics_json(c, s, t);
            if (json_object_size(metrics) == 0) {
                json_decref(metrics);
                continue;
            }
            json_array_append_new(cells, json_pack("{so, so, so, so, ss, so, so}", "strategy",
                                                   clb_json_text(k->strategy), "budget", clb_json_text(k->budget),
                                                   "positions", clb_json_text(k->positions), "task",
                                                   clb_json_text(c->tasks[t].name), "main_metric",
                                                   clb_kvc_metric_get(clb_kvc_main_metric(c->tasks[t].kind)).json_name,
                                                   "metrics", metrics, "groups", groups_json(c, s, t)));
        }
    return cells;
}

static json_t *pairs_json(const clb_kvc *c)
{
    json_t *const out = json_array();
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        const clb_kvc_judgement *const j = &c->pairs[i];
        json_t *const o = pair_json(c, &j->pair, j->metric);
        json_object_set_new(o, "task", clb_json_text(c->tasks[j->task].name));
        json_object_set_new(o, "budget", clb_json_text(c->sizes[j->size]));
        json_object_set_new(o, "metric", json_string(clb_kvc_metric_get(j->metric).json_name));
        json_object_set_new(o, "a", clb_json_text(c->names[c->settings[j->pair.a].name]));
        json_object_set_new(o, "b", clb_json_text(c->names[c->settings[j->pair.b].name]));
        json_array_append_new(out, o);
    }
    return out;
}

static json_t *replaced_json(const clb_kvc *c)
{
    json_t *const out = json_array();
    for (uint32_t s = 0; s < c->n_settings; s++) {
        const clb_kvc_setting *const k = &c->settings[s];
        uint32_t items, of;
        const uint64_t n = clb_kvc_bad_answers(c, s, &items, &of);
        if (n)
            json_array_append_new(out, json_pack("{so, so, so, sI, si, si}", "strategy", clb_json_text(k->strategy),
                                                 "budget", clb_json_text(k->budget), "positions",
                                                 clb_json_text(k->positions), "bad_answers", (json_int_t)n, "items",
                                                 (int)items, "of", (int)of));
    }
    return out;
}

int clb_kvc_print_json(const clb_kvc *c, clb_error *err)
{
    json_t *const out = json_pack("{ss, sO, si, sb, sb, si, si, so, so, so, so}", "schema", CLB_KVC_SCHEMA, "run",
                                  c->header, "parts", (int)c->n_headers, "other_machine", c->other_machine ? 1 : 0,
                                  "interrupted", c->interrupted ? 1 : 0, "results", (int)c->n_records, "resamples",
                                  (int)(c->resamples ? c->resamples : CLB_BOOTSTRAP_RESAMPLES), "baseline",
                                  c->baseline == CLB_KVC_NONE ? json_null() : clb_json_text(c->names[c->baseline]),
                                  "cells", cells_json(c), "pairs", pairs_json(c), "replaced", replaced_json(c));
    return clb_json_print(out, err);
}
