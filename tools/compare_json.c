/* A comparison for programs: everything, down to each token's time. */
#include <math.h>
#include <time.h>

#include "compare.h"
#include "cpu/topology.h"

/* JSON has no infinity and no NaN. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static void add_difference(void *ctx, const char *name, const char *a, const char *b)
{
    json_array_append_new(ctx, json_pack("{s:o, s:o, s:o}", "setting", clb_json_text(name), "a", clb_json_text(a), "b",
                                         clb_json_text(b)));
}

static json_t *side_json(const clb_side *s)
{
    json_t *const given = json_array();
    for (size_t i = 0; i < s->n_assignments; i++)
        json_array_append_new(given, clb_json_text(s->assignments[i]));
    json_t *const o =
        json_pack("{s:o, s:o}", "given", given, "model", clb_json_text(clb_config_str(s->config, CLB_SET_model_model)));
    json_object_set_new(o, "lossy", *s->lossy ? clb_json_text(s->lossy) : json_null());
    if (!s->known)
        return o;
    json_object_set_new(o, "architecture", json_string(s->arch));
    json_object_set_new(o, "policy", *s->policy ? clb_json_text(s->policy) : json_null());
    json_object_set_new(o, "predictor", clb_json_text(s->predictor));
    json_object_set_new(o, "kv_strategy", clb_json_text(s->strategy));
    json_object_set_new(o, "threads", json_integer(s->threads));
    json_object_set_new(o, "ctx", json_integer(s->ctx));
    json_object_set_new(o, "slots", json_integer(s->plan.n_slots));
    json_object_set_new(o, "experts", json_integer(s->plan.n_experts));
    json_object_set_new(o, "budget_bytes", json_integer((json_int_t)s->plan.budget));
    json_object_set_new(o, "planned_bytes", json_integer((json_int_t)s->plan.total_bytes));
    json_object_set_new(o, "load_seconds", json_real(s->load_seconds));
    return o;
}

static json_t *counters_json(const clb_compare_counters *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "hits", (json_int_t)s->hits, "late",
                     (json_int_t)s->late, "misses", (json_int_t)s->misses, "bytes_read", (json_int_t)s->bytes_read,
                     "stall_ns", (json_int_t)s->stall_ns, "prefetches", (json_int_t)s->prefetches, "prefetch_useful",
                     (json_int_t)s->prefetch_useful, "prefetch_wasted", (json_int_t)s->prefetch_wasted);
}

static json_t *run_json(const clb_comparison *c, const clb_compare_run *r)
{
    json_t *const tokens = json_array(), *const times = json_array(), *const values = json_object();
    for (size_t i = 0; i < r->tokens.n; i++) {
        json_array_append_new(tokens, json_integer(r->tokens.ids[i]));
        json_array_append_new(times, json_integer((json_int_t)r->step_ns[i]));
    }
    for (int m = 0; m < CLB_COMPARE_METRIC_COUNT; m++) {
        const double v = clb_compare_value(r, (enum clb_compare_metric)m);
        if (isfinite(v))
            json_object_set_new(values, clb_compare_metric_get((enum clb_compare_metric)m).json_name, json_real(v));
    }
    char last[24];
    snprintf(last, sizeof last, "%016llx", (unsigned long long)r->hash[r->tokens.n]);
    json_t *const o =
        json_pack("{s:s, s:o, s:i, s:i, s:b, s:i, s:I, s:o, s:o, s:b, s:s, s:o, s:o, s:I, s:o}", "side",
                  r->side ? "b" : "a", "prompt", clb_json_text(c->prompts.v[r->prompt].id), "prompt_index",
                  (int)r->prompt, "round", (int)r->round, "second", (int)r->second, "prompt_tokens", (int)r->n_prompt,
                  "prompt_ns", (json_int_t)r->prompt_ns, "tokens", tokens, "token_ns", times, "ended", (int)r->ended,
                  "last_logits_hash", last, "in_prompt", counters_json(&r->in_prompt), "in_generation",
                  counters_json(&r->in_steps), "peak_rss_bytes", (json_int_t)r->peak_rss, "values", values);
    if (r->n_compared)
        json_object_set_new(o, "against_a",
                            json_pack("{s:i, s:i, s:f, s:f}", "steps", (int)r->n_compared, "same_top",
                                      (int)r->n_same_top, "kl_mean", r->kl_sum / r->n_compared, "kl_max", r->kl_max));
    return o;
}

static json_t *result_json(const clb_comparison *c, enum clb_compare_metric m)
{
    const clb_compare_metric_info info = clb_compare_metric_get(m);
    const clb_compare_result *const r = &c->summary.result[m];
    json_t *const o = json_pack("{s:s, s:s, s:s, s:b, s:i}", "metric", info.json_name, "unit", info.unit, "change_is",
                                info.ratio ? "ratio" : "difference", "larger_is_better", (int)info.larger_is_better,
                                "prompts", (int)r->n);
    json_object_set_new(o, "a", number(r->mean[CLB_SIDE_A]));
    json_object_set_new(o, "b", number(r->mean[CLB_SIDE_B]));
    json_object_set_new(o, "change", number(r->change));
    json_object_set_new(o, "low", number(r->low));
    json_object_set_new(o, "high", number(r->high));
    json_object_set_new(o, "detectable", number(r->detectable));
    json_object_set_new(o, "p", number(r->p));
    json_object_set_new(o, "p_holm", number(r->p_holm));
    json_object_set_new(o, "verdict", json_string(clb_verdict_name(r->verdict)));
    return o;
}

static json_t *equality_json(const clb_comparison *c)
{
    const clb_compare_summary *const s = &c->summary;
    json_t *const o = json_pack("{s:b, s:i, s:i}", "demanded", *c->lossy == '\0', "pairs", (int)s->n_pairs,
                                "equal_pairs", (int)s->n_equal_pairs);
    json_object_set_new(o, "lossy", *c->lossy ? clb_json_text(c->lossy) : json_null());
    if (s->differs)
        json_object_set_new(o, "first_difference",
                            json_pack("{s:o, s:i, s:i, s:s}", "prompt", clb_json_text(c->prompts.v[s->prompt].id),
                                      "round", (int)s->round, "step", (int)s->step, "what",
                                      s->tokens_differ ? "tokens" : "logits"));
    if (s->n_compared)
        json_object_set_new(o, "logits",
                            json_pack("{s:I, s:f, s:f, s:f}", "steps", (json_int_t)s->n_compared, "kl_mean", s->kl_mean,
                                      "kl_max", s->kl_max, "same_top", (double)s->n_same_top / (double)s->n_compared));
    return o;
}

static json_t *gate_json(const clb_comparison *c)
{
    const clb_compare_gate *const g = &c->summary.gate;
    json_t *const o = json_pack("{s:b, s:f, s:f, s:b}", "demanded", (int)c->gate, "gain_demanded", CLB_GATE_GAIN,
                                "slower_allowed", CLB_GATE_SLOW, "passed", (int)g->passed);
    json_object_set_new(o, "prompts", json_integer(g->n));
    json_object_set_new(o, "prompts_demanded", json_integer(CLB_COMPARE_ENOUGH));
    json_object_set_new(o, "gain", number(g->gain));
    json_object_set_new(o, "gain_a_first", number(g->gain_a_first));
    json_object_set_new(o, "gain_b_first", number(g->gain_b_first));
    json_object_set_new(o, "first_token", number(g->ttft));
    json_object_set_new(o, "latency_p99", number(g->p99));
    return o;
}

int clb_compare_print_json(const clb_comparison *c, clb_error *err)
{
    json_t *const differences = json_array(), *const prompts = json_array(), *const results = json_array(),
                  *const runs = json_array(), *const warnings = json_array();
    const char *texts[CLB_COMPARE_WARNINGS];
    const size_t n_warnings = clb_compare_warnings(c, texts);
    for (size_t i = 0; i < n_warnings; i++)
        json_array_append_new(warnings, json_string(texts[i]));
    clb_topology topo;
    clb_topology_read(&topo);
    char when[32];
    const time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    clb_compare_differences(c, add_difference, differences);
    for (uint32_t p = 0; p < c->prompts.n; p++)
        json_array_append_new(prompts,
                              json_pack("{s:o, s:o, s:i}", "id", clb_json_text(c->prompts.v[p].id), "topic",
                                        clb_json_text(c->prompts.v[p].topic), "tokens", (int)c->prompts.v[p].ids.n));
    for (int m = 0; m < CLB_COMPARE_METRIC_COUNT; m++)
        if (c->summary.result[m].present)
            json_array_append_new(results, result_json(c, (enum clb_compare_metric)m));
    for (size_t i = 0; i < c->n_runs; i++)
        json_array_append_new(runs, run_json(c, &c->runs[i]));
    json_t *const o =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:s, s:i, s:i, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o}",
                  "schema", "colibri-compare/1", "version", COLIBRI_VERSION, "time", when, "cpu",
                  clb_json_text(topo.model), "a", side_json(&c->side[0]), "b", side_json(&c->side[1]), "differences",
                  differences, "cache", c->warm ? "warm" : "cold", "order", c->together ? "together" : "in-turn",
                  "rounds", (int)c->rounds, "tokens_asked", (int)c->n_tokens, "seed", (json_int_t)c->seed,
                  "interrupted", (int)c->interrupted, "prompts", prompts, "warnings", warnings, "results", results,
                  "equality", equality_json(c), "gate", gate_json(c), "runs", runs);
    return clb_json_print(o, err);
}
