/* What a grid needs before it runs: the engine, what is asked for, the file of results and its header. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "compare_kv_run.h"
#include "model_run.h"
#include "paths.h"
#include "plugin/introspect.h"
#include "spec_list.h"

#define FULL "full"

/* ---- what is asked for ---- */

int clb_kvc_parse_number(clb_args *args, const char *flag, uint32_t initial, uint32_t *out, clb_error *err)
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
    struct clb_kvc_grid_run *const g = ctx;
    CLB_TRY(clb_kvc_check_budget("budgets", item, err));
    for (uint32_t i = 0; i < g->n_budgets; i++)
        if (!strcmp(g->budgets[i], item))
            return COLIBRI_OK;
    if (g->n_budgets == CLB_KVC_LISTED)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u budgets", CLB_KVC_LISTED);
    g->budgets[g->n_budgets] = strdup(item);
    return g->budgets[g->n_budgets++] ? COLIBRI_OK : CLB_NOMEM(err, "budgets");
}

static int set_positions(struct clb_kvc_listed *l, const char *item, clb_error *err)
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
    struct clb_kvc_grid_run *const g = ctx;
    if (g->n_list == CLB_KVC_LISTED)
        return clb_fail(err, COLIBRI_E_LIMIT, "more than %u strategies", CLB_KVC_LISTED);
    for (uint32_t i = 0; i < g->n_list; i++)
        if (!*g->list[i].positions && !strcmp(g->list[i].spec, item))
            return COLIBRI_OK;
    struct clb_kvc_listed *const l = &g->list[g->n_list];
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

static int each_list(struct clb_kvc_grid_run *g, const char *flag, const char *initial, clb_spec_fn add, clb_error *err)
{
    const char *const *lists;
    const size_t n = clb_args_values(g->args, flag, &lists);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_each_spec(lists[i], add, g, err));
    return n || !initial ? COLIBRI_OK : clb_each_spec(initial, add, g, err);
}

/* ---- hashes of the code ---- */

/* "snapkv=xxh3:...": the plugin file of every strategy of a chain. */
int clb_kvc_code_of(clb_registry *registry, const char *chain, char out[512], clb_error *err)
{
    char name[128], hash[40];
    size_t used = 0;
    out[0] = '\0';
    while (*chain) {
        const size_t n = strcspn(chain, "/");
        snprintf(name, sizeof name, "%.*s", (int)(strcspn(chain, "/:") < 120 ? strcspn(chain, "/:") : 120), chain);
        for (size_t i = 0; i < clb_registry_n_components(registry); i++) {
            clb_component_view v;
            clb_plugin_view p;
            clb_registry_component(registry, i, &v);
            if (v.iface != CLB_IFACE_KV_STRATEGY || strcmp(v.name, name) != 0)
                continue;
            clb_registry_plugin(registry, v.plugin, &p);
            snprintf(hash, sizeof hash, "built-in");
            if (p.path && *p.path == '/')
                CLB_TRY(clb_kvc_hash_file(p.path, hash, err));
            else if (p.path) /* a system library of [foreign.*], which only the dynamic linker finds */
                snprintf(hash, sizeof hash, "%.39s", p.path);
            used += (size_t)snprintf(out + used, 512 - used, "%s%.120s=%s", used ? " " : "", name, hash);
            if (used > 400)
                return COLIBRI_OK;
            break;
        }
        chain += n + (chain[n] == '/');
    }
    return COLIBRI_OK;
}

int clb_kvc_model_hash(const clb_gguf *gguf, char out[40], clb_error *err)
{
    char all[64][40];
    const uint32_t n = clb_gguf_n_shards(gguf);
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < n && i < 64; i++)
        CLB_TRY(clb_kvc_hash_file(clb_gguf_shard_path(gguf, i), all[i], err));
    if (n == 1)
        memcpy(out, all[0], 40);
    else
        clb_kvc_hash(all, sizeof all, out);
    return COLIBRI_OK;
}

/* ---- the plan ---- */

static int plan_settings(struct clb_kvc_grid_run *g, clb_error *err)
{
    const size_t most = (size_t)g->n_list * (g->n_budgets + 1) + 1;
    g->plan = calloc(most, sizeof *g->plan);
    g->of = calloc(most, sizeof *g->of);
    g->tried = calloc(most, sizeof *g->tried);
    if (!g->plan || !g->of || !g->tried)
        return CLB_NOMEM(err, "the grid");
    for (uint32_t i = 0; i < g->n_list; i++) {
        char code[512];
        CLB_TRY(clb_kvc_code_of(g->engine->registry, g->list[i].spec, code, err));
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
static void choose_raster(struct clb_kvc_grid_run *g)
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

void clb_kvc_cpu_name(char out[128])
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

static json_t *describe(const struct clb_kvc_grid_run *g, const char *hash, uint32_t text_tokens)
{
    const clb_engine *const e = g->engine;
    const clb_kv_layout *const l = &e->kv_layout;
    char cpu[128], date[40] = "";
    const time_t now = time(NULL);
    struct tm tm;
    clb_kvc_cpu_name(cpu);
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

int clb_kvc_write_json(int fd, const char *path, json_t *line, clb_error *err)
{
    char *const text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    const size_t n = text ? strlen(text) : 0;
    if (!text)
        return CLB_NOMEM(err, "a result");
    text[n] = '\n'; /* in the place of the NUL, so that a line is one write */
    const ssize_t wrote = write(fd, text, n + 1);
    const int why = errno;
    free(text);
    if (wrote == (ssize_t)(n + 1))
        return COLIBRI_OK;
    return clb_fail_errno(err, COLIBRI_E_IO, wrote < 0 ? why : ENOSPC, "cannot write to %s", path);
}

int clb_kvc_write_line(struct clb_kvc_grid_run *g, json_t *line, clb_error *err)
{
    if (g->fd >= 0)
        return clb_kvc_write_json(g->fd, clb_args_value(g->args, "jsonl"), line, err);
    json_decref(line);
    return COLIBRI_OK;
}

static int open_lines(struct clb_kvc_grid_run *g, const char *path, int how, clb_error *err)
{
    g->fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | how, 0666);
    if (g->fd < 0 && errno == EEXIST)
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists: --continue adds what it lacks, --force starts again", path);
    if (g->fd < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open %s", path);
    if (flock(g->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return clb_fail(err, COLIBRI_E_IO, "%s: another run is writing to it", path);
    return COLIBRI_OK;
}

/* Reads what is there, under the lock under which more will be written. */
static int read_lines(struct clb_kvc_grid_run *g, clb_error *err)
{
    const char *const path = clb_args_value(g->args, "jsonl");
    const bool there = path && access(path, F_OK) == 0;
    if (there && !clb_args_has(g->args, "continue"))
        return clb_args_has(g->args, "force") ? COLIBRI_OK : open_lines(g, path, O_CREAT | O_EXCL, err);
    if (!there)
        return COLIBRI_OK;
    CLB_TRY(open_lines(g, path, 0, err));
    return clb_kvc_read_file(g->c, path, clb_args_log(g->args), &g->complete, err);
}

/* When nothing else can go wrong: what was there before is not lost to a mistake in the other flags. */
static int begin_lines(struct clb_kvc_grid_run *g, clb_error *err)
{
    const char *const path = clb_args_value(g->args, "jsonl");
    struct stat st;
    if (!path)
        return COLIBRI_OK;
    if (g->fd < 0)
        CLB_TRY(open_lines(g, path, O_CREAT | (clb_args_has(g->args, "force") ? 0 : O_EXCL), err));
    if (fstat(g->fd, &st) || (S_ISREG(st.st_mode) && ftruncate(g->fd, (off_t)g->complete)))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to %s", path);
    return COLIBRI_OK;
}

/* ---- all of it ---- */

static int load_tasks(struct clb_kvc_grid_run *g, uint32_t text_tokens, clb_error *err)
{
    const char *const *tasks;
    const size_t n = clb_args_values(g->args, "task", &tasks);
    clb_kvc_task_options o = {.engine = g->engine,
                              .text_tokens = text_tokens,
                              .log = clb_args_log(g->args),
                              .cancelled = clb_run_interrupted,
                              .cancelled_ctx = g->args};
    if (clb_args_value(g->args, "items"))
        CLB_TRY(clb_kvc_parse_number(g->args, "items", 0, &o.most_items, err));
    CLB_TRY(clb_open_chat(g->args, g->engine, &o.chat, err));
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = clb_kvc_load_task(g->c, tasks[i], &o, &g->cases, err);
    clb_chat_free(o.chat);
    return rc;
}

/* With room for a second sequence where strategies go on from a pass that they have in common. */
static int open_engine(struct clb_kvc_grid_run *g, clb_error *err)
{
    const char *const *tasks;
    const size_t n = clb_args_values(g->args, "task", &tasks);
    g->share_passes = g->see_question;
    for (size_t i = 0; i < n; i++) {
        const char *const mode = strstr(tasks[i], "at-once"), *const is = strchr(tasks[i], '=');
        g->share_passes |= mode && is && mode < is;
    }
    char dir[PATH_MAX];
    const clb_engine_options options = {
        .config = clb_args_config(g->args),
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(g->args),
        .any_strategy = true,
        .n_sequences = g->share_passes ? 2 : 1,
        .cancelled = clb_run_interrupted,
        .cancelled_ctx = g->args,
        .pin_caller = true,
    };
    return clb_engine_open(&options, &g->engine, err);
}

static int check_engine(const struct clb_kvc_grid_run *g, clb_error *err)
{
    if (g->engine->kv_choice.traits.evicts)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--kv-strategy %.60s: a comparison of strategies needs room for the full cache (leave it out)",
                        g->engine->kv_choice.name);
    if (g->chunk > g->engine->batch)
        return clb_fail(err, COLIBRI_E_USAGE, "--chunk %u: passes have at most %u tokens (--batch)", g->chunk,
                        g->engine->batch);
    return clb_kvc_check_passes(g->c, &g->cases, g->engine, g->see_question, err);
}

int clb_kvc_try_budget(clb_engine *engine, const clb_kv_choice *choice, const char *budget, const clb_kvc *c,
                       const clb_kvc_cases *cases, clb_error *err)
{
    clb_kv_seq *kv;
    uint32_t least = UINT32_MAX, at = 0;
    if (!*budget || (choice->traits.needs & COLIBRI_KV_NEED_FUTURE))
        return COLIBRI_OK;
    for (uint32_t i = 0; i < cases->n; i++) {
        const clb_kv_trial_input in = clb_kvc_input_of(&cases->v[i], 1, false);
        const uint32_t n = clb_kvc_budget_of(budget, &in);
        at = n < least ? i : at;
        least = n < least ? n : least;
    }
    if (clb_engine_new_sequence_with(engine, choice, least, &kv, err))
        return clb_context(err, "%.100s at %s, item %.80s of %.80s", choice->text, budget, c->ids[cases->v[at].item],
                           c->tasks[c->items[cases->v[at].item].task].name);
    clb_kv_seq_destroy(kv);
    return COLIBRI_OK;
}

int clb_kvc_prepare(struct clb_kvc_grid_run *g, clb_error *err)
{
    char hash[40];
    CLB_TRY(clb_kvc_parse_number(g->args, "chunk", 64, &g->chunk, err));
    g->see_question = clb_args_has(g->args, "see-question");
    g->list = calloc(CLB_KVC_LISTED, sizeof *g->list);
    if (!g->list)
        return CLB_NOMEM(err, "strategies");
    CLB_TRY(open_engine(g, err));
    const uint32_t text_tokens = g->engine->ctx < 1024 ? g->engine->ctx : 1024;
    CLB_TRY(add_strategy(g, FULL, err));
    CLB_TRY(each_list(g, "strategies", NULL, add_strategy, err));
    CLB_TRY(each_list(g, "budgets", "50%,25%", add_budget, err));
    CLB_TRY(read_lines(g, err));
    CLB_TRY(load_tasks(g, text_tokens, err));
    CLB_TRY(check_engine(g, err));
    CLB_TRY(plan_settings(g, err));
    for (uint32_t i = 0; i < g->n_plan; i++)
        CLB_TRY(clb_kvc_try_budget(g->engine, &g->list[g->of[i]].choice, g->c->settings[g->plan[i]].budget, g->c,
                                   &g->cases, err));
    CLB_TRY(clb_kvc_model_hash(g->engine->gguf, hash, err));
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
    rc = begin_lines(g, err);
    if (rc) {
        json_decref(header);
        return rc;
    }
    return clb_kvc_write_line(g, header, err);
}

void clb_kvc_close(struct clb_kvc_grid_run *g)
{
    clb_kvc_cases_free(&g->cases);
    for (uint32_t i = 0; i < g->n_list; i++) {
        clb_kv_choice_free(&g->list[i].choice);
        free(g->list[i].spec);
    }
    free(g->list);
    for (uint32_t i = 0; i < g->n_budgets; i++)
        free(g->budgets[i]);
    free(g->plan);
    free(g->of);
    free(g->tried);
    clb_engine_close(g->engine);
}
