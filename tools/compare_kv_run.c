/* Running the grid: item by item, every setting on it, the full cache first. */
#include "compare_kv_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_run.h"

#define RASTER_COLUMNS 80u
#define RASTER_ROWS    40u

/* ---- one result ---- */

struct watch {
    const struct clb_kvc_grid_run *g;
    clb_kvc_raster raster;
    uint32_t *positions;
    uint32_t every; /* tokens between two rows */
};

/* Share of (positions, layers, heads) of each column that is kept. */
static int look(void *ctx, const clb_kv_seq *kv, uint32_t n_seen, clb_error *err)
{
    struct watch *const w = ctx;
    clb_kvc_raster *const r = &w->raster;
    const clb_kv_layout *const l = &w->g->engine->kv_layout;
    (void)err;
    if (r->n_rows == RASTER_ROWS || n_seen < r->n_rows * w->every)
        return COLIBRI_OK;
    float *const row = &r->share[(size_t)r->n_rows * r->n_columns];
    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < l->n_kv_heads; head++) {
            const uint32_t n = clb_kv_seq_positions(kv, layer, head, w->positions, r->n_positions);
            for (uint32_t i = 0; i < n && i < r->n_positions; i++)
                if (w->positions[i] < r->n_positions)
                    row[(uint64_t)w->positions[i] * r->n_columns / r->n_positions] += 1;
        }
    for (uint32_t k = 0; k < r->n_columns; k++) {
        /* Positions p with p * columns / positions == k, of those already seen. */
        const uint32_t from = (uint32_t)(((uint64_t)k * r->n_positions + r->n_columns - 1) / r->n_columns);
        const uint32_t to = (uint32_t)(((uint64_t)(k + 1) * r->n_positions + r->n_columns - 1) / r->n_columns);
        const uint32_t end = to < n_seen ? to : n_seen;
        row[k] = end > from ? row[k] / (float)((end - from) * l->n_layers * l->n_kv_heads) : NAN;
    }
    r->seen[r->n_rows++] = n_seen;
    return COLIBRI_OK;
}

static int begin_watch(struct watch *w, const struct clb_kvc_grid_run *g, uint32_t setting, const clb_kvc_case *item,
                       clb_error *err)
{
    const uint32_t n = (uint32_t)(item->ids.n + item->answer.n + item->n_generate);
    *w = (struct watch){.g = g, .every = n / (RASTER_ROWS - 1) + 1};
    w->raster = (clb_kvc_raster){.setting = setting,
                                 .item = item->item,
                                 .n_columns = n < RASTER_COLUMNS ? n : RASTER_COLUMNS,
                                 .n_positions = n,
                                 .seen = calloc(RASTER_ROWS, sizeof(uint32_t)),
                                 .share = calloc((size_t)RASTER_ROWS * RASTER_COLUMNS, sizeof(float))};
    w->positions = malloc((size_t)n * sizeof *w->positions);
    return w->raster.seen && w->raster.share && w->positions ? COLIBRI_OK : CLB_NOMEM(err, "a raster");
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The key as a number of its own somewhere in what was generated. */
static bool has_key(const clb_buf *text, const char *key)
{
    for (const char *at = text->data ? strstr(text->data, key) : NULL; at; at = strstr(at + 1, key))
        if (!is_digit(at[strlen(key)]) && !(at > text->data && is_digit(at[-1])))
            return true;
    return false;
}

static double per_second(uint32_t n, uint64_t ns)
{
    return n && ns ? 1e9 * n / (double)ns : (double)NAN;
}

void clb_kvc_values(const clb_kvc_case *item, const clb_kv_trial *t, const clb_buf *said, double *v)
{
    const double mib = 1024.0 * 1024.0;
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        v[m] = NAN;
    v[CLB_KVC_RETAINED] = 100 * t->retained;
    v[CLB_KVC_BYTES] = (double)t->bytes / mib;
    v[CLB_KVC_PEAK] = (double)t->peak_bytes / mib;
    if (t->attention_ns && t->attention_tokens)
        v[CLB_KVC_ATTENTION] = 1e-6 * (double)t->attention_ns / t->attention_tokens;
    v[CLB_KVC_DECODE] = per_second(t->n_decode, t->decode_ns);
    if (item->kind == CLB_KVC_TEXT) {
        v[CLB_KVC_PERPLEXITY] = exp(t->nll_sum / t->n_scored);
        const uint32_t n = t->n_compared;
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += t->kl[i];
        if (n) {
            v[CLB_KVC_KL] = sum / n;
            v[CLB_KVC_KL_MEDIAN] = clb_quantile_sorted(t->kl, n, 0.5);
            v[CLB_KVC_KL_P99] = clb_quantile_sorted(t->kl, n, 0.99);
            v[CLB_KVC_KL_MAX] = t->kl[n - 1];
            v[CLB_KVC_SAME_TOP] = 100.0 * t->n_same_top / n;
            v[CLB_KVC_DP_RMS] = 100 * sqrt(t->delta_p_squares / n);
        }
        return;
    }
    v[CLB_KVC_PREFILL] = per_second(t->n_prefill, t->prefill_ns);
    if (item->kind == CLB_KVC_RECALL) {
        v[CLB_KVC_EXACT] = t->n_right == item->answer.n ? 100 : 0;
        v[CLB_KVC_TOKENS] = 100.0 * t->n_right / (double)item->answer.n;
        return;
    }
    v[CLB_KVC_EXACT] = has_key(said, item->key) ? 100 : 0;
}

clb_kv_trial_input clb_kvc_input_of(const clb_kvc_case *item, uint32_t chunk, bool see_question)
{
    return (clb_kv_trial_input){
        .ids = item->ids.ids,
        .n = (uint32_t)item->ids.n,
        .n_context = item->n_context,
        .chunk = item->kind != CLB_KVC_TEXT && (see_question || item->at_once) ? clb_kvc_pass_of(item) : chunk,
        .answer = item->answer.ids,
        .n_answer = (uint32_t)item->answer.n,
        .n_generate = item->n_generate,
        .text = item->kind == CLB_KVC_TEXT,
        .scored = (uint32_t)item->ids.n / 2,
    };
}

/* Of all tokens of the item, rounded; at least one. */
uint32_t clb_kvc_budget_of(const char *budget, const clb_kv_trial_input *in)
{
    const double share = clb_kvc_budget_share(budget), all = (double)in->n + in->n_answer + in->n_generate;
    if (!*budget)
        return 0;
    const double n = isnan(share) ? strtod(budget, NULL) : round(share * all);
    return n < 1 ? 1 : n > all ? (uint32_t)all : (uint32_t)n;
}

/* What strategies that know the future must be told: a first run over the item with everything kept. */
int clb_kvc_record_future(clb_engine *engine, const clb_kv_trial_input *of, clb_kv_future **out, clb_error *err)
{
    clb_kv_trial t = {0};
    clb_kv_trial_input in = *of;
    const clb_kv_choice recorder = clb_kv_trial_recorder();
    in.choice = &recorder;
    CLB_TRY(clb_kv_future_create(&engine->kv_layout, in.n + in.n_answer + in.n_generate, out, err));
    in.record = *out;
    const int rc = clb_kv_trial_run(engine, &in, &t, err);
    clb_kv_trial_free(&t);
    return rc;
}

static void drop_base(struct clb_kvc_grid_run *g)
{
    clb_kv_trial_base_destroy(g->base);
    g->base = NULL;
}

/* Where what strategies choose from is read in one pass, those that record the same have that pass in common, at all
 * budgets. The full cache is as it always is. */
static int find_base(struct clb_kvc_grid_run *g, uint32_t at, clb_kv_trial_input *in, clb_error *err)
{
    if (!g->share_passes || at == 0)
        return COLIBRI_OK;
    if (!g->base || !clb_kv_trial_base_fits(g->base, in->choice)) {
        drop_base(g);
        CLB_TRY(clb_kv_trial_base_create(g->engine, in, &g->base, err));
    }
    in->base = g->base;
    return COLIBRI_OK;
}

static int run_one(struct clb_kvc_grid_run *g, uint32_t at, uint32_t number, clb_error *err)
{
    const clb_kvc_case *const item = &g->cases.v[number];
    const struct clb_kvc_listed *const l = &g->list[g->of[at]];
    const uint32_t setting = g->plan[at];
    struct watch w = {0};
    clb_kv_trial t = {0};
    clb_kvc_record record = {.setting = setting, .item = item->item};
    clb_kv_trial_input in = clb_kvc_input_of(item, g->chunk, g->see_question);
    clb_kv_choice choice = l->choice; /* a copy that knows this item's future */
    if (choice.traits.needs & COLIBRI_KV_NEED_FUTURE) {
        if (!g->future)
            CLB_TRY(clb_kvc_record_future(g->engine, &in, &g->future, err));
        choice.future = g->future;
    }
    in.choice = &choice;
    in.budget = clb_kvc_budget_of(g->c->settings[setting].budget, &in);
    if (in.text) {
        rewind(g->reference);
        if (at == 0)
            in.reference_out = g->reference;
        in.reference_in = at ? g->reference : NULL;
    }
    const bool watched = number == g->raster_case && g->c->settings[setting].size == g->raster_size;
    int rc = COLIBRI_OK;
    if (watched) {
        rc = begin_watch(&w, g, setting, item, err);
        in.look = look; /* at every pass: it reads all of them */
        in.ctx = &w;
    }
    if (!rc && !watched)
        rc = find_base(g, at, &in, err);
    if (!rc)
        rc = clb_kv_trial_run(g->engine, &in, &t, err);
    record.bad_answers = t.bad_answers;
    clb_buf said = {0};
    if (!rc)
        rc = clb_detokenize(g->engine->vocab, t.generated.ids, t.generated.n, false, &said, err);
    if (!rc)
        clb_kvc_values(item, &t, &said, record.values);
    if (!rc && at == 0 && in.text) { /* the reference is no distance away from itself */
        record.values[CLB_KVC_KL] = record.values[CLB_KVC_KL_MEDIAN] = record.values[CLB_KVC_KL_P99] =
            record.values[CLB_KVC_KL_MAX] = record.values[CLB_KVC_DP_RMS] = 0;
        record.values[CLB_KVC_SAME_TOP] = 100;
    }
    if (!rc && !clb_kvc_has(g->c, setting, item->item)) { /* a reference may have been run again */
        json_t *const line = clb_kvc_record_json(g->c, &record);
        if (item->n_generate)
            json_object_set_new(line, "generated", clb_json_bytes(said.data ? said.data : "", said.n));
        rc = clb_kvc_write_line(g, line, err);
        if (!rc)
            rc = clb_kvc_add_record(g->c, &record, err);
        g->c->n_run += !rc;
    }
    clb_buf_free(&said);
    clb_kv_trial_free(&t);
    if (!rc && watched) {
        rc = clb_kvc_write_line(g, clb_kvc_raster_json(g->c, &w.raster), err);
        if (!rc)
            rc = clb_kvc_add_raster(g->c, &w.raster, err);
        w.raster.seen = NULL; /* the grid's now, or freed */
        w.raster.share = NULL;
    }
    free(w.raster.seen);
    free(w.raster.share);
    free(w.positions);
    return rc;
}

static int run_setting(struct clb_kvc_grid_run *g, uint32_t at, uint32_t number, clb_error *err)
{
    const clb_kvc_case *const item = &g->cases.v[number];
    const clb_kvc_setting *const setting = &g->c->settings[g->plan[at]];
    const bool there = clb_kvc_has(g->c, g->plan[at], item->item);
    if (there && !(at == 0 && item->kind == CLB_KVC_TEXT))
        return COLIBRI_OK;
    if (clb_args_interrupted(g->args)) {
        g->c->interrupted = true;
        return COLIBRI_OK;
    }
    const int rc = run_one(g, at, number, err);
    if (rc == COLIBRI_E_CANCELLED && clb_args_interrupted(g->args)) {
        g->c->interrupted = true;
        return COLIBRI_OK;
    }
    if (rc)
        return clb_context(err, "%.100s at %s, item %.80s of %.80s", g->c->names[setting->name],
                           *setting->budget ? setting->budget : "all", g->c->ids[item->item],
                           g->c->tasks[g->c->items[item->item].task].name);
    g->done += !there;
    clb_progress(g->engine->log, "comparing", g->done, g->total);
    return COLIBRI_OK;
}

/* Every setting on one item, one after the other, so that what slows the machine down slows all of them; the order
 * turns from item to item, but those that go on from a common pass follow each other. A text's reference is run again
 * if anything is missing. */
static int run_item(struct clb_kvc_grid_run *g, uint32_t number, clb_error *err)
{
    const clb_kvc_case *const item = &g->cases.v[number];
    uint32_t missing = 0;
    for (uint32_t p = 0; p < g->n_plan; p++) {
        missing += !clb_kvc_has(g->c, g->plan[p], item->item);
        g->tried[p] = false;
    }
    for (uint32_t k = 0; missing && k < g->n_plan; k++)
        for (uint32_t next = k; next < g->n_plan && !g->c->interrupted; next++) {
            const uint32_t at = next == 0 ? 0 : 1 + (next - 1 + number) % (g->n_plan - 1);
            if (g->tried[at])
                continue;
            if (next > k && !(g->base && clb_kv_trial_base_fits(g->base, &g->list[g->of[at]].choice)))
                continue;
            g->tried[at] = true;
            CLB_TRY(run_setting(g, at, number, err));
        }
    return COLIBRI_OK;
}

/* ---- all of it ---- */

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Files are sorted by distance or topic: items are visited in wide steps, so that a grid that is stopped early has some
 * of each kind, and task by task, so that an item is known under all modes that it is asked in. */
static uint32_t step_of(uint32_t n)
{
    uint32_t step = (uint32_t)(0.618 * n);
    while (step > 1 && common_divisor(step, n) != 1)
        step--;
    return step > 1 ? step : 1;
}

static uint32_t longest_task(const clb_kvc_cases *cases, const clb_kvc *c)
{
    uint32_t most = 0, n = 0;
    for (uint32_t i = 0; i < cases->n; i++) { /* cases of a task follow each other */
        n = i && c->items[cases->v[i].item].task == c->items[cases->v[i - 1].item].task ? n + 1 : 1;
        most = n > most ? n : most;
    }
    return most;
}

/* The case that is number k of its task, for each task. */
static int run_number(struct clb_kvc_grid_run *g, uint32_t k, clb_error *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->cases.n && !g->c->interrupted; i++, n++) {
        if (i && g->c->items[g->cases.v[i].item].task != g->c->items[g->cases.v[i - 1].item].task)
            n = 0;
        if (n != k)
            continue;
        const int rc = run_item(g, i, err);
        drop_base(g);
        clb_kv_future_destroy(g->future);
        g->future = NULL;
        CLB_TRY(rc);
    }
    return COLIBRI_OK;
}

int clb_kvc_run(clb_kvc *c, clb_args *args, clb_error *err)
{
    if (!clb_args_has(args, "task"))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "nothing to try the strategies on: --task text=FILE, recall=FILE or passkey=FILE");
    struct clb_kvc_grid_run g = {.c = c, .args = args, .fd = -1};
    int rc = clb_kvc_prepare(&g, err);
    if (!rc) {
        g.reference = tmpfile();
        rc = g.reference ? COLIBRI_OK : clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot make a temporary file");
    }
    for (uint32_t i = 0; !rc && i < g.cases.n; i++)
        for (uint32_t p = 0; p < g.n_plan; p++)
            g.total += !clb_kvc_has(c, g.plan[p], g.cases.v[i].item);
    const uint32_t most = longest_task(&g.cases, c);
    for (uint32_t i = 0; !rc && !c->interrupted && i < most; i++)
        rc = run_number(&g, (uint32_t)((uint64_t)i * step_of(most) % most), err);
    if (g.reference)
        fclose(g.reference);
    if (g.fd >= 0 && close(g.fd) && !rc)
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to %s", clb_args_value(args, "jsonl"));
    clb_kvc_close(&g);
    return rc;
}
