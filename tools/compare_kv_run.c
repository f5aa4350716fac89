/* Running the grid: item by item, every setting on it, the full cache first. */
#include "compare_kv_run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "compare_kv_tasks.h"
#include "engine/kv_trial.h"
#include "model_run.h"
#include "plugin/introspect.h"
#include "spec_list.h"

#define MOST_LISTED    512u
#define RASTER_COLUMNS 80u
#define RASTER_ROWS    40u
#define FULL           "full"

/* A strategy as it was asked for; its settings in the grid. */
struct listed {
    char *spec; /* without "@compact" */
    char positions[16];
    clb_kv_choice choice;
    bool budgeted; /* budgets mean something to it */
};

struct grid_run {
    clb_kvc *c;
    clb_args *args;
    clb_engine *engine;
    struct listed *list;
    uint32_t n_list;
    char *budgets[MOST_LISTED];
    uint32_t n_budgets;
    clb_kvc_cases cases;
    uint32_t *plan; /* settings to run, [n_plan]; the full cache first */
    uint32_t *of;   /* [n_plan] index into list */
    uint32_t n_plan;
    uint32_t chunk;
    bool see_question;
    int fd;               /* of --jsonl; -1: none */
    uint32_t raster_case; /* whose positions are watched; UINT32_MAX: none */
    uint32_t raster_size; /* at this budget */
    FILE *reference;
    clb_kv_future *future; /* of the item at hand; NULL: not recorded yet */
    uint64_t done, total;
};

/* ---- what is asked for ---- */

static int parse_number(clb_args *args, const char *flag, uint32_t initial, uint32_t *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    char *end = NULL;
    *out = initial;
    if (!text)
        return COLIBRI_OK;
    const unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    if (v < 1 || v > (1u << 24) || *end)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.40s: must be a whole number from 1 on", flag, text);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

static int add_budget(void *ctx, const char *item, clb_error *err)
{
    struct grid_run *const g = ctx;
    char *end;
    const double v = strtod(item, &end);
    const bool share = *end == '%' && !end[1];
    if (end == item || !(v > 0) || (share ? v > 100 : *end != '\0' || v > UINT32_MAX || v < 1 || v > floor(v)))
        return clb_fail(err, COLIBRI_E_USAGE, "--budgets %.40s: must be a share (25%%) or a number of positions", item);
    for (uint32_t i = 0; i < g->n_budgets; i++)
        if (!strcmp(g->budgets[i], item))
            return COLIBRI_OK;
    if (g->n_budgets == MOST_LISTED)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u budgets", MOST_LISTED);
    g->budgets[g->n_budgets] = strdup(item);
    return g->budgets[g->n_budgets++] ? COLIBRI_OK : CLB_NOMEM(err, "budgets");
}

static int set_positions(struct listed *l, const char *item, clb_error *err)
{
    char *const at = strchr(l->spec, '@');
    if (!at)
        return COLIBRI_OK;
    *at = '\0';
    snprintf(l->positions, sizeof l->positions, "%.15s", at + 1);
    if (strcmp(l->positions, "original") != 0 && strcmp(l->positions, "compact") != 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--strategies %.80s: behind @ stands original or compact", item);
    return COLIBRI_OK;
}

static int add_strategy(void *ctx, const char *item, clb_error *err)
{
    struct grid_run *const g = ctx;
    if (g->n_list == MOST_LISTED)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u strategies", MOST_LISTED);
    for (uint32_t i = 0; i < g->n_list; i++)
        if (!*g->list[i].positions && !strcmp(g->list[i].spec, item))
            return COLIBRI_OK;
    struct listed *const l = &g->list[g->n_list];
    l->spec = strdup(item);
    if (!l->spec)
        return CLB_NOMEM(err, "strategies");
    g->n_list++;
    CLB_TRY(set_positions(l, item, err));
    CLB_TRY(clb_kv_choice_parse(g->engine->registry, clb_args_config(g->args), l->spec, &l->choice, err));
    if (*l->positions) {
        l->choice.positions = *l->positions == 'c' ? CLB_KV_COMPACT : CLB_KV_ORIGINAL;
        l->choice.traits = clb_kv_traits_of(l->choice.strategy, l->choice.child, l->choice.positions);
    }
    l->budgeted = l->choice.traits.evicts || l->choice.picks_pages;
    return COLIBRI_OK;
}

static int each_list(struct grid_run *g, const char *flag, const char *initial, clb_spec_fn add, clb_error *err)
{
    const char *const *lists;
    const size_t n = clb_args_values(g->args, flag, &lists);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_each_spec(lists[i], add, g, err));
    return n || !initial ? COLIBRI_OK : clb_each_spec(initial, add, g, err);
}

/* ---- hashes of the code ---- */

/* "snapkv=xxh3:...": the plugin file of every strategy of a chain. */
static int code_of(const struct grid_run *g, const char *chain, char out[512], clb_error *err)
{
    char name[128], hash[40];
    size_t used = 0;
    out[0] = '\0';
    while (*chain) {
        const size_t n = strcspn(chain, "/");
        snprintf(name, sizeof name, "%.*s", (int)(strcspn(chain, "/:") < 120 ? strcspn(chain, "/:") : 120), chain);
        for (size_t i = 0; i < clb_registry_n_components(g->engine->registry); i++) {
            clb_component_view v;
            clb_plugin_view p;
            clb_registry_component(g->engine->registry, i, &v);
            if (v.iface != CLB_IFACE_KV_STRATEGY || strcmp(v.name, name) != 0)
                continue;
            clb_registry_plugin(g->engine->registry, v.plugin, &p);
            snprintf(hash, sizeof hash, "built-in");
            if (p.path)
                CLB_TRY(clb_kvc_hash_file(p.path, hash, err));
            used += (size_t)snprintf(out + used, 512 - used, "%s%.120s=%s", used ? " " : "", name, hash);
            if (used > 400)
                return COLIBRI_OK;
            break;
        }
        chain += n + (chain[n] == '/');
    }
    return COLIBRI_OK;
}

static int model_hash(const struct grid_run *g, char out[40], clb_error *err)
{
    char all[64][40];
    const uint32_t n = clb_gguf_n_shards(g->engine->gguf);
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < n && i < 64; i++)
        CLB_TRY(clb_kvc_hash_file(clb_gguf_shard_path(g->engine->gguf, i), all[i], err));
    if (n == 1)
        memcpy(out, all[0], 40);
    else
        clb_kvc_hash(all, sizeof all, out);
    return COLIBRI_OK;
}

/* ---- the plan ---- */

static int plan_settings(struct grid_run *g, clb_error *err)
{
    const size_t most = (size_t)g->n_list * (g->n_budgets + 1) + 1;
    g->plan = calloc(most, sizeof *g->plan);
    g->of = calloc(most, sizeof *g->of);
    if (!g->plan || !g->of)
        return CLB_NOMEM(err, "the grid");
    for (uint32_t i = 0; i < g->n_list; i++) {
        char code[512];
        CLB_TRY(code_of(g, g->list[i].spec, code, err));
        for (uint32_t b = 0; b < (g->list[i].budgeted ? g->n_budgets : 1); b++) {
            const char *const budget = g->list[i].budgeted ? g->budgets[b] : "";
            CLB_TRY(clb_kvc_add_setting(g->c, g->list[i].spec, budget, g->list[i].positions, code, &g->plan[g->n_plan],
                                        err));
            g->of[g->n_plan++] = i;
        }
    }
    return COLIBRI_OK;
}

/* The longest item, at the budget that is nearest to a quarter. */
static void choose_raster(struct grid_run *g)
{
    double best = INFINITY;
    g->raster_case = UINT32_MAX;
    g->raster_size = CLB_KVC_NONE;
    for (uint32_t b = 0; b < g->c->n_sizes; b++) {
        const double share = clb_kvc_budget_share(g->c->sizes[b]);
        if (!*g->c->sizes[b] || isnan(share) || !(fabs(log(share / 0.25)) < best))
            continue;
        best = fabs(log(share / 0.25));
        g->raster_size = b;
    }
    for (uint32_t i = 0; i < g->cases.n; i++)
        if (g->raster_case == UINT32_MAX || g->cases.v[i].ids.n > g->cases.v[g->raster_case].ids.n)
            g->raster_case = i;
}

static void cpu_name(char out[128])
{
    char line[512];
    FILE *const f = fopen("/proc/cpuinfo", "re");
    snprintf(out, 128, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        const char *const is = strchr(line, ':');
        if (is && !strncmp(line, "model name", 10)) {
            snprintf(out, 128, "%.127s", is + 1 + strspn(is + 1, " "));
            out[strcspn(out, "\n")] = '\0';
            break;
        }
    }
    if (f)
        fclose(f);
}

static json_t *describe(const struct grid_run *g, const char *hash, uint32_t text_tokens)
{
    const clb_engine *const e = g->engine;
    const clb_kv_layout *const l = &e->kv_layout;
    char cpu[128], date[40] = "";
    const time_t now = time(NULL);
    struct tm tm;
    cpu_name(cpu);
    if (gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm);
    const char *const path = clb_gguf_shard_path(e->gguf, 0), *const base = strrchr(path, '/');
    json_t *const decides = json_pack(
        "{so, ss, so, sI, sI, sb, sI, sI, ss, ss, sb, sb, sI, sb}", "model", clb_json_text(base ? base + 1 : path),
        "model_hash", hash, "arch", clb_json_text(e->model->arch->name), "seed", (json_int_t)e->seed, "chunk",
        (json_int_t)g->chunk, "see_question", g->see_question ? 1 : 0, "text_tokens", (json_int_t)text_tokens,
        "page_tokens", (json_int_t)l->page_tokens, "k_type", clb_kv_type_name(l->k_type), "v_type",
        clb_kv_type_name(l->v_type), "turn_k", l->turn_k ? 1 : 0, "turn_v", l->turn_v ? 1 : 0, "recent",
        (json_int_t)l->recent, "raw", clb_config_bool(clb_args_config(g->args), CLB_SET_run_raw) ? 1 : 0);
    return json_pack("{ss, so, s{so, sI, ss}}", "date", date, "decides", decides, "machine", "cpu", clb_json_text(cpu),
                     "threads", (json_int_t)clb_pool_workers(e->pool), "version", COLIBRI_VERSION);
}

/* ---- JSON lines ---- */

static int write_line(struct grid_run *g, json_t *line, clb_error *err)
{
    if (g->fd < 0) {
        json_decref(line);
        return COLIBRI_OK;
    }
    char *const text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    const size_t n = text ? strlen(text) : 0;
    if (!text)
        return CLB_NOMEM(err, "a result");
    text[n] = '\n'; /* in the place of the NUL, so that a line is one write */
    const ssize_t wrote = write(g->fd, text, n + 1);
    const int why = errno;
    free(text);
    if (wrote == (ssize_t)(n + 1))
        return COLIBRI_OK;
    return clb_fail_errno(err, COLIBRI_E_IO, wrote < 0 ? why : ENOSPC, "cannot write to %s",
                          clb_args_value(g->args, "jsonl"));
}

/* Reads what is there and opens for more. */
static int open_lines(struct grid_run *g, clb_error *err)
{
    const char *const path = clb_args_value(g->args, "jsonl");
    const bool go_on = clb_args_has(g->args, "continue") && access(path, F_OK) == 0;
    uint64_t complete = 0;
    if (!path)
        return COLIBRI_OK;
    if (go_on)
        CLB_TRY(clb_kvc_read_file(g->c, path, clb_args_log(g->args), &complete, err));
    const int how = go_on ? 0 : clb_args_has(g->args, "force") ? O_TRUNC : O_EXCL;
    g->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | how, 0666);
    if (g->fd < 0 && errno == EEXIST)
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists: --continue adds what it lacks, --force starts again", path);
    if (g->fd < 0 || (go_on && ftruncate(g->fd, (off_t)complete)))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open %s", path);
    return COLIBRI_OK;
}

/* ---- one result ---- */

struct watch {
    const struct grid_run *g;
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

static int begin_watch(struct watch *w, const struct grid_run *g, uint32_t setting, const clb_kvc_case *item,
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

/* The key as a number of its own in what was generated. */
static bool has_key(const clb_buf *text, const char *key)
{
    const char *const at = text->data ? strstr(text->data, key) : NULL;
    const char *const end = at ? at + strlen(key) : NULL;
    return at && !(*end >= '0' && *end <= '9') && !(at > text->data && at[-1] >= '0' && at[-1] <= '9');
}

static double per_second(uint32_t n, uint64_t ns)
{
    return n && ns ? 1e9 * n / (double)ns : (double)NAN;
}

static void fill_record(const clb_kvc_case *item, const clb_kv_trial *t, const clb_buf *said, clb_kvc_record *r)
{
    const double mib = 1024.0 * 1024.0;
    double *const v = r->values;
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        v[m] = NAN;
    v[CLB_KVC_RETAINED] = 100 * t->retained;
    v[CLB_KVC_BYTES] = (double)t->bytes / mib;
    v[CLB_KVC_PEAK] = (double)t->peak_bytes / mib;
    if (t->attention_ns && t->attention_tokens)
        v[CLB_KVC_ATTENTION] = 1e-6 * (double)t->attention_ns / t->attention_tokens;
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
    v[CLB_KVC_DECODE] = per_second(t->n_decode, t->decode_ns);
    v[CLB_KVC_PREFILL] = per_second(t->n_prefill, t->prefill_ns);
    if (item->kind == CLB_KVC_RECALL) {
        v[CLB_KVC_EXACT] = t->n_right == item->answer.n ? 100 : 0;
        v[CLB_KVC_TOKENS] = 100.0 * t->n_right / (double)item->answer.n;
        return;
    }
    v[CLB_KVC_EXACT] = has_key(said, item->key) ? 100 : 0;
}

static clb_kv_trial_input input_of(const struct grid_run *g, const clb_kvc_case *item)
{
    clb_kv_trial_input in = {
        .ids = item->ids.ids,
        .n = (uint32_t)item->ids.n,
        .chunk = g->see_question ? (uint32_t)item->ids.n : g->chunk,
        .answer = item->answer.ids,
        .n_answer = (uint32_t)item->answer.n,
        .n_generate = item->n_generate,
        .text = item->kind == CLB_KVC_TEXT,
        .scored = (uint32_t)item->ids.n / 2,
    };
    if (in.text)
        in.chunk = g->chunk;
    return in;
}

/* Of all tokens of the item, rounded; at least one. */
static uint32_t budget_of(const char *budget, const clb_kv_trial_input *in)
{
    const double share = clb_kvc_budget_share(budget), all = (double)in->n + in->n_answer + in->n_generate;
    if (!*budget)
        return 0;
    const double n = isnan(share) ? strtod(budget, NULL) : round(share * all);
    return n < 1 ? 1 : n > all ? (uint32_t)all : (uint32_t)n;
}

/* What strategies that know the future must be told: a first run over the item with everything kept. */
static int record_future(struct grid_run *g, const clb_kvc_case *item, clb_error *err)
{
    clb_kv_trial t = {0};
    clb_kv_trial_input in = input_of(g, item);
    const clb_kv_choice recorder = clb_kv_trial_recorder();
    in.choice = &recorder;
    CLB_TRY(clb_kv_future_create(&g->engine->kv_layout, in.n + in.n_answer + in.n_generate, &g->future, err));
    in.record = g->future;
    const int rc = clb_kv_trial_run(g->engine, &in, &t, err);
    clb_kv_trial_free(&t);
    return rc;
}

static int run_one(struct grid_run *g, uint32_t at, uint32_t number, clb_error *err)
{
    const clb_kvc_case *const item = &g->cases.v[number];
    const struct listed *const l = &g->list[g->of[at]];
    const uint32_t setting = g->plan[at];
    struct watch w = {0};
    clb_kv_trial t = {0};
    clb_kvc_record record = {.setting = setting, .item = item->item};
    clb_kv_trial_input in = input_of(g, item);
    clb_kv_choice choice = l->choice; /* a copy that knows this item's future */
    if (choice.traits.needs & COLIBRI_KV_NEED_FUTURE) {
        if (!g->future)
            CLB_TRY(record_future(g, item, err));
        choice.future = g->future;
    }
    in.choice = &choice;
    in.budget = budget_of(g->c->settings[setting].budget, &in);
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
        in.look = look;
        in.ctx = &w;
    }
    if (!rc)
        rc = clb_kv_trial_run(g->engine, &in, &t, err);
    clb_buf said = {0};
    if (!rc)
        rc = clb_detokenize(g->engine->vocab, t.generated.ids, t.generated.n, false, &said, err);
    if (!rc)
        fill_record(item, &t, &said, &record);
    if (!rc && at == 0 && in.text) { /* the reference is no distance away from itself */
        record.values[CLB_KVC_KL] = record.values[CLB_KVC_KL_MEDIAN] = record.values[CLB_KVC_KL_P99] =
            record.values[CLB_KVC_KL_MAX] = record.values[CLB_KVC_DP_RMS] = 0;
        record.values[CLB_KVC_SAME_TOP] = 100;
    }
    if (!rc && !clb_kvc_has(g->c, setting, item->item)) { /* a reference may have been run again */
        json_t *const line = clb_kvc_record_json(g->c, &record);
        if (item->n_generate)
            json_object_set_new(line, "generated", clb_json_bytes(said.data ? said.data : "", said.n));
        if (t.bad_answers)
            json_object_set_new(line, "bad_answers", json_integer((json_int_t)t.bad_answers));
        rc = write_line(g, line, err);
        if (!rc)
            rc = clb_kvc_add_record(g->c, &record, err);
    }
    clb_buf_free(&said);
    clb_kv_trial_free(&t);
    if (!rc && watched) {
        rc = write_line(g, clb_kvc_raster_json(g->c, &w.raster), err);
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

/* Every setting on one item, one after the other, so that what slows the machine down slows all of them; the order
 * turns from item to item. A text's reference is run again if anything is missing. */
static int run_item(struct grid_run *g, uint32_t number, clb_error *err)
{
    const clb_kvc_case *const item = &g->cases.v[number];
    uint32_t missing = 0;
    for (uint32_t p = 0; p < g->n_plan; p++)
        missing += !clb_kvc_has(g->c, g->plan[p], item->item);
    if (!missing)
        return COLIBRI_OK;
    for (uint32_t k = 0; k < g->n_plan; k++) {
        const uint32_t at = k == 0 ? 0 : 1 + (k - 1 + number) % (g->n_plan - 1);
        const bool there = clb_kvc_has(g->c, g->plan[at], item->item);
        if (there && !(at == 0 && item->kind == CLB_KVC_TEXT))
            continue;
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
            return clb_context(err, "%.100s at %s, item %.80s", g->c->names[g->c->settings[g->plan[at]].name],
                               *g->c->settings[g->plan[at]].budget ? g->c->settings[g->plan[at]].budget : "all",
                               g->c->ids[item->item]);
        g->done += !there;
        clb_progress(g->engine->log, "comparing", g->done, g->total);
    }
    return COLIBRI_OK;
}

/* ---- all of it ---- */

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Files are sorted by distance or topic: items are visited in wide steps, so that a grid that is stopped early has some
 * of each kind. */
static uint32_t step_of(uint32_t n)
{
    uint32_t step = (uint32_t)(0.618 * n);
    while (step > 1 && common_divisor(step, n) != 1)
        step--;
    return step > 1 ? step : 1;
}

static int load_tasks(struct grid_run *g, uint32_t text_tokens, clb_error *err)
{
    const char *const *tasks;
    const size_t n = clb_args_values(g->args, "task", &tasks);
    clb_kvc_task_options o = {.engine = g->engine, .text_tokens = text_tokens, .log = clb_args_log(g->args)};
    if (clb_args_value(g->args, "items"))
        CLB_TRY(parse_number(g->args, "items", 0, &o.most_items, err));
    CLB_TRY(clb_open_chat(g->args, g->engine, &o.chat, err));
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = clb_kvc_load_task(g->c, tasks[i], &o, &g->cases, err);
    clb_chat_free(o.chat);
    return rc;
}

static int check_engine(const struct grid_run *g, clb_error *err)
{
    if (g->engine->kv_choice.traits.evicts)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--kv-strategy %.60s: a comparison of strategies needs room for the full cache (leave it out)",
                        g->engine->kv_choice.name);
    if (g->chunk > g->engine->batch)
        return clb_fail(err, COLIBRI_E_USAGE, "--chunk %u: passes have at most %u tokens (--batch)", g->chunk,
                        g->engine->batch);
    for (uint32_t i = 0; g->see_question && i < g->cases.n; i++)
        if (g->cases.v[i].kind != CLB_KVC_TEXT && g->cases.v[i].ids.n > g->engine->batch)
            return clb_fail(err, COLIBRI_E_USAGE,
                            "--see-question: item %.60s has %zu tokens, and passes have at most %u (--batch)",
                            g->c->ids[g->cases.v[i].item], g->cases.v[i].ids.n, g->engine->batch);
    return COLIBRI_OK;
}

static int prepare(struct grid_run *g, clb_error *err)
{
    char hash[40];
    CLB_TRY(parse_number(g->args, "chunk", 64, &g->chunk, err));
    g->see_question = clb_args_has(g->args, "see-question");
    g->list = calloc(MOST_LISTED, sizeof *g->list);
    if (!g->list)
        return CLB_NOMEM(err, "strategies");
    CLB_TRY(clb_open_engine(g->args, &g->engine, err));
    const uint32_t text_tokens = g->engine->ctx < 1024 ? g->engine->ctx : 1024;
    CLB_TRY(add_strategy(g, FULL, err));
    CLB_TRY(each_list(g, "strategies", NULL, add_strategy, err));
    CLB_TRY(each_list(g, "budgets", "50%,25%", add_budget, err));
    CLB_TRY(open_lines(g, err));
    CLB_TRY(load_tasks(g, text_tokens, err));
    CLB_TRY(check_engine(g, err));
    CLB_TRY(plan_settings(g, err));
    CLB_TRY(model_hash(g, hash, err));
    json_t *const run = describe(g, hash, text_tokens);
    json_t *const header = run ? clb_kvc_header_json(g->c, run) : NULL;
    json_decref(run);
    if (!header)
        return CLB_NOMEM(err, "the header");
    /* Through the reader, as any other line: what contradicts the file is found there. */
    int rc = clb_kvc_read_line(g->c, header, err);
    if (rc) {
        json_decref(header);
        return clb_context(err, "%s", clb_args_has(g->args, "continue") ? "--continue" : "the grid");
    }
    choose_raster(g);
    return write_line(g, header, err);
}

int clb_kvc_run(clb_kvc *c, clb_args *args, clb_error *err)
{
    if (!clb_args_has(args, "task"))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "nothing to try the strategies on: --task text=FILE, recall=FILE or passkey=FILE");
    struct grid_run g = {.c = c, .args = args, .fd = -1};
    int rc = prepare(&g, err);
    if (!rc) {
        g.reference = tmpfile();
        rc = g.reference ? COLIBRI_OK : clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot make a temporary file");
    }
    for (uint32_t i = 0; !rc && i < g.cases.n; i++)
        for (uint32_t p = 0; p < g.n_plan; p++)
            g.total += !clb_kvc_has(c, g.plan[p], g.cases.v[i].item);
    for (uint32_t i = 0; !rc && !c->interrupted && i < g.cases.n; i++) {
        rc = run_item(&g, (uint32_t)((uint64_t)i * step_of(g.cases.n) % g.cases.n), err);
        clb_kv_future_destroy(g.future);
        g.future = NULL;
    }
    if (g.reference)
        fclose(g.reference);
    if (g.fd >= 0 && close(g.fd) && !rc)
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to %s", clb_args_value(args, "jsonl"));
    clb_kvc_cases_free(&g.cases);
    for (uint32_t i = 0; i < g.n_list; i++) {
        clb_kv_choice_free(&g.list[i].choice);
        free(g.list[i].spec);
    }
    free(g.list);
    for (uint32_t i = 0; i < g.n_budgets; i++)
        free(g.budgets[i]);
    free(g.plan);
    free(g.of);
    clb_engine_close(g.engine);
    return rc;
}
