/* Results of colibri evaluate for programs: a header and one line per item (--jsonl), or one object (--json). */
#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/kv_settings.h"
#include "evaluate.h"
#include "json_out.h"
#include "model_run.h"

#define SCHEMA "colibri-evaluate/1"

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *clb_evaluate_header(const clb_evaluation *e, const char *model_hash, const char *code)
{
    char cpu[128], date[40] = "", layout[CLB_KV_LAYOUT_TEXT];
    const time_t now = time(NULL);
    struct tm tm;
    clb_kvc_cpu_name(cpu);
    if (gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *const tasks = json_array();
    for (uint32_t t = 0; t < e->grid.n_tasks; t++) {
        const clb_kvc_task *const k = &e->grid.tasks[t];
        json_array_append_new(tasks, json_pack("{ss, so, so, so, sI}", "kind", clb_kvc_kind_name(k->kind), "name",
                                               clb_json_text(k->name), "path", clb_json_text(k->path), "hash",
                                               clb_json_text(k->hash), "items", (json_int_t)k->n_items));
    }
    const char *const path = clb_gguf_shard_path(e->engine->gguf, 0), *const base = strrchr(path, '/');
    json_t *const kv = json_pack("{so, so, ss, sI, so, sI}", "strategy", clb_json_text(e->choice.text), "budget",
                                 clb_json_text(e->budget), "positions", clb_kv_choice_positions(&e->choice), "protect",
                                 (json_int_t)e->choice.n_protected, "types",
                                 clb_json_text(clb_kv_layout_text(&e->engine->kv_layout, layout)), "page_tokens",
                                 (json_int_t)e->engine->kv_layout.page_tokens);
    json_object_set_new(kv, "plugins", clb_json_text(code));
    return json_pack("{ss, ss, ss, so, so, ss, ss, sI, so, sI, so, sI, sb, sI, so}", "schema", SCHEMA, "record",
                     "header", "date", date, "model", clb_json_text(base ? base + 1 : path), "arch",
                     clb_json_text(e->engine->model->arch->name), "model_hash", model_hash, "version", COLIBRI_VERSION,
                     "seed", (json_int_t)e->engine->seed, "cpu", clb_json_text(cpu), "threads",
                     (json_int_t)clb_pool_workers(e->engine->pool), "kv", kv, "chunk", (json_int_t)e->chunk,
                     "see_question", e->see_question ? 1 : 0, "text_tokens", (json_int_t)e->text_tokens, "tasks",
                     tasks);
}

static json_t *values_json(const clb_eval_run *run)
{
    json_t *const out = json_object();
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        if (isfinite(run->values[m]))
            json_object_set_new(out, clb_kvc_metric_get((enum clb_kvc_metric)m).json_name, json_real(run->values[m]));
    if (run->trial.n_scored) {
        json_object_set_new(out, "scored_tokens", json_integer((json_int_t)run->trial.n_scored));
        json_object_set_new(out, "nll_sum", json_real(run->trial.nll_sum));
    }
    if (run->trial.n_compared)
        json_object_set_new(out, "delta_p_mean", json_real(100 * run->trial.delta_p_sum / run->trial.n_compared));
    if (run->said.n)
        json_object_set_new(out, "generated", clb_json_bytes(run->said.data, run->said.n));
    if (run->trial.bad_answers)
        json_object_set_new(out, "bad_answers", json_integer((json_int_t)run->trial.bad_answers));
    return out;
}

json_t *clb_evaluate_item_json(const clb_evaluation *e, uint32_t i)
{
    const clb_kvc_case *const v = &e->cases.v[i];
    const clb_kvc_item *const item = &e->grid.items[v->item];
    const clb_kvc_task *const task = &e->grid.tasks[item->task];
    const clb_kvc_group *const group = &task->groups[item->group];
    json_t *const out =
        json_pack("{ss, so, so, so, so, so, so, sI, so}", "record", "item", "task", clb_json_text(task->name), "item",
                  clb_json_text(e->grid.ids[v->item]), "group", clb_json_text(group->label), "kind",
                  clb_json_text(v->sort), "length", number(group->length), "depth", number(group->depth), "tokens",
                  (json_int_t)v->ids.n, "full", values_json(&e->items[i].run[CLB_EVAL_FULL]));
    if (!e->alone)
        json_object_set_new(out, "configured", values_json(&e->items[i].run[CLB_EVAL_OWN]));
    if (v->key)
        json_object_set_new(out, "key", clb_json_text(v->key));
    return out;
}

static json_t *mean_json(const clb_eval_mean *m)
{
    return json_pack("{so, so, so, so, sI}", "value", number(m->value), "se", number(m->se), "low", number(m->low),
                     "high", number(m->high), "n", (json_int_t)m->n);
}

/* exp of it and of its interval: perplexities and their ratio. */
static json_t *exp_json(const clb_eval_mean *m)
{
    const clb_eval_mean x = {exp(m->value), exp(m->value) * m->se, exp(m->low), exp(m->high), m->n};
    return mean_json(&x);
}

static int metrics(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort, json_t *out,
                   clb_error *err)
{
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++) {
        static const char *const sides[] = {"full", "configured"};
        const enum clb_kvc_metric metric = (enum clb_kvc_metric)m;
        const clb_kvc_metric_info info = clb_kvc_metric_get(metric);
        /* What texts say about tokens is pooled over pieces elsewhere. */
        if ((metric >= CLB_KVC_PERPLEXITY && metric <= CLB_KVC_DP_RMS) || (sort && metric > CLB_KVC_TOKENS))
            continue;
        json_t *const o = json_object();
        clb_eval_mean v;
        int rc = COLIBRI_OK;
        for (int side = 0; side < (e->alone ? 1 : 2) && !rc; side++) {
            rc = clb_eval_mean_of(e, task, group, sort, side, metric, &v, err);
            if (!rc && v.n)
                json_object_set_new(o, sides[side], mean_json(&v));
        }
        if (!rc && !e->alone && metric <= CLB_KVC_TOKENS) {
            rc = clb_eval_difference(e, task, group, sort, metric, &v, err);
            if (!rc && v.n)
                json_object_set_new(o, "difference", mean_json(&v));
        }
        if (!rc && json_object_size(o))
            json_object_set(out, info.json_name, o);
        json_decref(o);
        CLB_TRY(rc);
    }
    return COLIBRI_OK;
}

static int text_json(const clb_evaluation *e, uint32_t task, json_t *out, clb_error *err)
{
    static const char *const levels[] = {"max", "99.9%", "99%", "95%", "90%", "median", "10%"};
    clb_eval_text t;
    CLB_TRY(clb_eval_text_of(e, task, &t, err));
    json_object_set_new(out, "pieces", json_integer((json_int_t)t.n_pieces));
    json_object_set_new(out, "scored_tokens", json_integer((json_int_t)t.n_scored));
    json_object_set_new(out, "perplexity_full", exp_json(&t.nll[CLB_EVAL_FULL]));
    if (e->alone)
        return COLIBRI_OK;
    json_t *const kl = mean_json(&t.kl);
    for (int i = 0; i < 7; i++)
        json_object_set_new(kl, levels[i], number(t.kl_at[i]));
    json_object_set_new(out, "perplexity_configured", exp_json(&t.nll[CLB_EVAL_OWN]));
    json_object_set_new(out, "perplexity_ratio", exp_json(&t.difference));
    json_object_set_new(out, "kl", kl);
    json_object_set_new(out, "same_top", mean_json(&t.same_top));
    json_object_set_new(out, "delta_p", mean_json(&t.delta_p));
    json_object_set_new(out, "delta_p_rms", mean_json(&t.delta_p_rms));
    return COLIBRI_OK;
}

static int groups_json(const clb_evaluation *e, uint32_t task, json_t *out, clb_error *err)
{
    const char *sorts[64];
    const uint32_t n_sorts = clb_eval_sorts(e, task, sorts, 64);
    for (uint32_t g = 0; g < e->grid.tasks[task].n_groups; g++)
        for (uint32_t s = 0; s <= (n_sorts > 1 ? n_sorts : 0); s++) {
            const clb_kvc_group *const group = &e->grid.tasks[task].groups[g];
            const char *const sort = s ? sorts[s - 1] : NULL;
            json_t *const o = json_pack("{so, so, so, so}", "group", clb_json_text(group->label), "kind",
                                        sort ? clb_json_text(sort) : json_null(), "length", number(group->length),
                                        "depth", number(group->depth));
            json_t *const m = json_object();
            const int rc = metrics(e, task, g, sort, m, err);
            json_object_set_new(o, "metrics", m);
            json_array_append_new(out, o);
            CLB_TRY(rc);
        }
    return COLIBRI_OK;
}

static int task_json(const clb_evaluation *e, uint32_t task, json_t *out, clb_error *err)
{
    const clb_kvc_task *const k = &e->grid.tasks[task];
    json_t *const m = json_object(), *const groups = json_array();
    json_object_set_new(out, "task", clb_json_text(k->name));
    json_object_set_new(out, "kind", json_string(clb_kvc_kind_name(k->kind)));
    int rc = k->kind == CLB_KVC_TEXT ? text_json(e, task, out, err) : groups_json(e, task, groups, err);
    if (!rc)
        rc = metrics(e, task, CLB_KVC_ALL, NULL, m, err);
    json_object_set_new(out, "metrics", m);
    json_object_set_new(out, "groups", groups);
    return rc;
}

int clb_evaluate_print_json(const clb_evaluation *e, clb_error *err)
{
    json_t *const results = json_array();
    for (uint32_t t = 0; t < e->grid.n_tasks; t++) {
        json_t *const o = json_object();
        const int rc = task_json(e, t, o, err);
        json_array_append_new(results, o);
        if (rc) {
            json_decref(results);
            return rc;
        }
    }
    return clb_json_print(json_pack("{ss, sO, sb, sb, sI, sI, so}", "schema", SCHEMA, "run", e->header, "interrupted",
                                    e->interrupted ? 1 : 0, "full_cache_only", e->alone ? 1 : 0, "items",
                                    (json_int_t)e->n_done, "of", (json_int_t)e->cases.n, "results", results),
                          err);
}
