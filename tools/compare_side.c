/* The two sides of a comparison: their settings and their engines. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "compare.h"
#include "paths.h"
#include "plan/memory.h"
#include "plugin/open.h"

/* ---- assignments ------------------------------------------------------------------------------------------------ */

/* The part before '=' at `text` as a setting; *param: as the parameter of a component. False: neither. */
static bool name_at(const char *text, char name[128], enum clb_setting *id, bool *param)
{
    const size_t n = strcspn(text, "=,");
    *param = false;
    *id = CLB_SET_COUNT;
    if (text[n] != '=' || n == 0 || n >= 128)
        return false;
    memcpy(name, text, n);
    name[n] = '\0';
    const char *component;
    if (!clb_setting_find(name, id, NULL))
        return true;
    *id = clb_setting_by_flag(name); /* aliases, too */
    *param = *id == CLB_SET_COUNT && clb_param_section(name, &component);
    return *id != CLB_SET_COUNT || *param;
}

/* End of the assignment that starts at `text`: the comma in front of the next one. */
static const char *assignment_end(const char *text)
{
    char name[128];
    enum clb_setting id;
    bool param;
    const char *p = text + strcspn(text, ",");
    while (*p && !name_at(p + 1, name, &id, &param)) {
        /* A comma belongs to lists and to parameters (NAME:key=value,key=value); anything else is a name nobody knows.
         */
        const char *const equals = memchr(text, '=', (size_t)(p - text));
        const bool in_params = equals && memchr(equals, ':', (size_t)(p - equals));
        const size_t next = strcspn(p + 1, ",");
        if (memchr(p + 1, '=', next) && !in_params)
            break;
        p += 1 + next;
    }
    return p;
}

static int add_assignment(const char *text, size_t n, const clb_command *command, const char *origin, char **out,
                          clb_error *err)
{
    char name[128];
    enum clb_setting id = CLB_SET_COUNT;
    bool param = false;
    clb_error why;
    *out = strndup(text, n);
    if (!*out)
        return CLB_NOMEM(err, "settings");
    if (!name_at(*out, name, &id, &param)) {
        const size_t len = strcspn(*out, "=");
        if (!(*out)[len])
            return clb_fail(err, COLIBRI_E_USAGE, "%s '%.80s': write key=value[,key=value]", origin, *out);
        snprintf(name, sizeof name, "%.*s", (int)(len < 127 ? len : 127), *out);
        CLB_TRY(clb_setting_find(name, &id, &why) ? clb_fail(err, COLIBRI_E_USAGE, "%s: %s", origin, why.msg) : 0);
        return clb_fail(err, COLIBRI_E_USAGE, "%s: '%.80s' is not a setting", origin, name);
    }
    if (param)
        return COLIBRI_OK;
    if (!clb_command_takes(command, id))
        return clb_fail(err, COLIBRI_E_USAGE, "%s %.80s does not apply to '%s'", origin, name, command->name);
    if (id == CLB_SET_run_raw || !strcmp(clb_setting_get(id).section, "sampling"))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "%s %.80s: both sides need the same prompts and sampling: give it as a flag", origin, name);
    const clb_setting_info info = clb_setting_get(id);
    clb_buf full = {0};
    if (clb_buf_printf(&full, err, "%s.%s%s", info.section, info.key, *out + strcspn(*out, "="))) {
        clb_buf_free(&full);
        return err->code;
    }
    free(*out);
    *out = full.data;
    return COLIBRI_OK;
}

int clb_split_assignments(const char *list, const clb_command *command, const char *origin, char **out, size_t *n,
                          size_t cap, clb_error *err)
{
    for (const char *p = list; *p;) {
        const char *const end = assignment_end(p);
        if (*n == cap)
            return clb_fail(err, COLIBRI_E_USAGE, "%s: more than %zu settings", origin, cap);
        out[*n] = NULL;
        CLB_TRY(add_assignment(p, (size_t)(end - p), command, origin, &out[(*n)++], err));
        p = *end ? end + 1 : end;
    }
    return COLIBRI_OK;
}

/* ---- differences ------------------------------------------------------------------------------------------------ */

static const char *param_value(const clb_config *config, const char *kind, const char *name, const char *key)
{
    const char *k, *n, *y, *value, *origin;
    for (size_t i = 0; i < clb_config_param_count(config); i++) {
        clb_config_param_at(config, i, &k, &n, &y, &value, &origin);
        if (!strcmp(k, kind) && !strcmp(n, name) && !strcmp(y, key))
            return value;
    }
    return NULL;
}

static void param_differences(const clb_config *a, const clb_config *b, bool swapped,
                              void (*see)(void *ctx, const char *name, const char *a, const char *b), void *ctx)
{
    const char *kind, *name, *key, *value, *origin;
    for (size_t i = 0; i < clb_config_param_count(a); i++) {
        clb_config_param_at(a, i, &kind, &name, &key, &value, &origin);
        const char *const other = param_value(b, kind, name, key);
        if (other && (swapped || !strcmp(other, value))) /* with the sides swapped: only what one side lacks */
            continue;
        char full[256];
        snprintf(full, sizeof full, "%s.%s.%s", kind, name, key);
        const char *const missing = other ? other : "default";
        see(ctx, full, swapped ? missing : value, swapped ? value : missing);
    }
}

void clb_compare_differences(const clb_comparison *c,
                             void (*see)(void *ctx, const char *name, const char *a, const char *b), void *ctx)
{
    const clb_config *const a = c->side[0].config, *const b = c->side[1].config;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        const char *const x = clb_config_text(a, info.id), *const y = clb_config_text(b, info.id);
        char name[80];
        snprintf(name, sizeof name, "%s.%s", info.section, info.key);
        if (clb_command_takes(c->args->command, info.id) && strcmp(x, y) != 0)
            see(ctx, name, x, y);
    }
    param_differences(a, b, false, see, ctx);
    param_differences(b, a, true, see, ctx);
}

/* ---- engines ---------------------------------------------------------------------------------------------------- */

static bool stop(void *args)
{
    return clb_run_interrupted(args);
}

struct fit {
    clb_comparison *c;
    clb_side *side;
    bool beside; /* the other engine stays open */
    bool too_much;
};

static int planned(void *ctx, const clb_plan *plan, clb_error *err)
{
    struct fit *const f = ctx;
    f->side->plan = *plan;
    f->side->plan.class_slots = NULL;
    f->side->resident = plan->resident;
    f->side->known = true;
    if (!f->beside || f->c->together_asked)
        return COLIBRI_OK;
    const clb_plan *const other = &f->c->side[CLB_SIDE_A].plan;
    const uint64_t asked = clb_config_u64(f->side->config, CLB_SET_memory_max_memory);
    const uint64_t due = asked < other->budget ? asked : other->budget; /* what it would get if it were alone */
    if (plan->budget >= due && other->total_bytes + plan->total_bytes - plan->base_bytes <= f->c->room)
        return COLIBRI_OK;
    f->too_much = true;
    return clb_fail(err, COLIBRI_E_NOMEM, "both engines do not fit at once");
}

void clb_compare_close_side(clb_side *s)
{
    clb_session_destroy(s->session);
    clb_engine_close(s->engine);
    s->session = NULL;
    s->engine = NULL;
}

static int open_side(clb_comparison *c, clb_side *s, bool beside, bool *too_much, clb_error *err)
{
    char dir[PATH_MAX];
    struct fit fit = {.c = c, .side = s, .beside = beside};
    const clb_engine_options options = {
        .config = s->config,
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(c->args),
        .n_sequences = 1,
        .cancelled = stop,
        .cancelled_ctx = c->args,
        /* The calling thread is never bound: a second engine would count the cores of that binding, and runs in turn
         * are to be like those with both engines open. */
        .pin_caller = false,
        .resident = beside ? c->side[CLB_SIDE_A].resident : 0,
        .planned = planned,
        .planned_ctx = &fit,
    };
    int rc = clb_engine_open(&options, &s->engine, err);
    if (too_much)
        *too_much = fit.too_much;
    if (!rc)
        rc = clb_session_create(s->engine, &s->session, err);
    if (rc && !fit.too_much)
        return clb_context(err, "side %c", s->name);
    if (rc)
        return rc;
    snprintf(s->strategy, sizeof s->strategy, "%s", s->engine->kv_choice.text);
    snprintf(s->arch, sizeof s->arch, "%s", s->engine->model->arch->name);
    snprintf(s->policy, sizeof s->policy, "%s",
             s->engine->model->n_moe_layers ? clb_config_str(s->config, CLB_SET_store_expert_policy) : "");
    clb_store_stats stats;
    clb_store_get_stats(s->engine->model->store, &stats);
    snprintf(s->predictor, sizeof s->predictor, "%s", stats.predictor ? stats.predictor : "none");
    s->threads = clb_pool_workers(s->engine->pool);
    s->ctx = s->engine->ctx;
    s->load_seconds = (double)s->engine->load_ns / 1e9;
    return COLIBRI_OK;
}

/* Tokens of the prompts; both models must read them alike. */
static int tokenize(clb_comparison *c, const clb_side *s, clb_error *err)
{
    clb_prompts *const p = &c->prompts;
    clb_tokens *const before = calloc(p->n + 1, sizeof *before);
    if (!before)
        return CLB_NOMEM(err, "prompts");
    for (uint32_t i = 0; i < p->n; i++) {
        before[i] = p->v[i].ids;
        p->v[i].ids = (clb_tokens){0};
    }
    int rc = clb_prompts_tokenize(p, c->args, s->engine, err);
    for (uint32_t i = 0; i < p->n; i++) {
        const clb_tokens *const a = &before[i], *const b = &p->v[i].ids;
        if (!rc && a->n && (a->n != b->n || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) != 0))
            rc = clb_fail(err, COLIBRI_E_USAGE,
                          "prompt %.80s has other tokens on side B: the models do not share a vocabulary", p->v[i].id);
        clb_tokens_free(&before[i]);
    }
    free(before);
    for (uint32_t i = 0; i < p->n && !rc; i++)
        if (!s->engine->kv_choice.traits.evicts && p->v[i].ids.n + c->n_tokens > s->engine->ctx)
            rc = clb_fail(err, COLIBRI_E_LIMIT,
                          "prompt %.80s has %zu tokens, with %u more the context of %u is too small (--ctx, -n)",
                          p->v[i].id, p->v[i].ids.n, c->n_tokens, s->engine->ctx);
    return rc;
}

int clb_compare_open(clb_comparison *c, uint32_t which, clb_error *err)
{
    clb_side *const s = &c->side[which];
    if (s->engine)
        return COLIBRI_OK;
    CLB_TRY(open_side(c, s, false, NULL, err));
    return tokenize(c, s, err);
}

/* The default budget is a share of what is available: fixed once, so that the side that is opened second gets no less.
 * What a policy has learned elsewhere, or learns here, is no part of the comparison unless a file for it is named. */
static int fix_settings(clb_comparison *c, clb_error *err)
{
    const uint64_t available = clb_memory_available();
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < CLB_SIDES; i++) {
        clb_config *const config = c->side[i].config;
        if (clb_config_u64(config, CLB_SET_memory_max_memory) == 0 && available) {
            char text[32];
            snprintf(text, sizeof text, "%" PRIu64,
                     available / 100 * clb_config_u64(config, CLB_SET_memory_memory_share));
            CLB_TRY(clb_config_set_value(config, CLB_SET_memory_max_memory, text, "colibri compare", err));
        }
        if (!clb_config_is_set(config, CLB_SET_store_expert_profile))
            CLB_TRY(clb_config_set_value(config, CLB_SET_store_expert_profile, "none", "colibri compare", err));
        const uint64_t budget = clb_config_u64(config, CLB_SET_memory_max_memory);
        least = budget && budget < least ? budget : least;
    }
    c->room = least;
    return COLIBRI_OK;
}

static int find_lossy(clb_comparison *c, clb_error *err)
{
    char dir[PATH_MAX];
    for (int i = 0; i < CLB_SIDES; i++) {
        clb_side *const s = &c->side[i];
        clb_registry *registry = NULL;
        CLB_TRY(clb_registry_from_config(s->config, clb_paths_plugin_dir(dir) ? dir : NULL, NULL, &registry, err));
        if (!clb_compare_lossy(registry, s->config, s->lossy, sizeof s->lossy))
            *s->lossy = '\0';
        clb_registry_close(registry);
        if (*s->lossy && !*c->lossy)
            snprintf(c->lossy, sizeof c->lossy, "%c: %s", s->name, s->lossy);
    }
    static const enum clb_setting bytes[] = {CLB_SET_kv_kv_type, CLB_SET_kv_kv_type_k, CLB_SET_kv_kv_type_v,
                                             CLB_SET_kv_kv_turn, CLB_SET_kv_kv_recent};
    for (size_t i = 0; !*c->lossy && i < sizeof bytes / sizeof *bytes; i++)
        if (strcmp(clb_config_text(c->side[0].config, bytes[i]), clb_config_text(c->side[1].config, bytes[i])) != 0)
            snprintf(c->lossy, sizeof c->lossy, "the types of the KV cache differ");
    return COLIBRI_OK;
}

int clb_compare_open_sides(clb_comparison *c, clb_error *err)
{
    CLB_TRY(find_lossy(c, err));
    CLB_TRY(fix_settings(c, err));
    CLB_TRY(clb_compare_open(c, CLB_SIDE_A, err));
    c->together = false;
    if (c->in_turn_asked)
        return COLIBRI_OK;
    bool too_much = false;
    const int rc = open_side(c, &c->side[CLB_SIDE_B], true, &too_much, err);
    if (too_much) /* in turn */
        return COLIBRI_OK;
    CLB_TRY(rc);
    c->together = true;
    return tokenize(c, &c->side[CLB_SIDE_B], err);
}
