/* What is to be simulated: traces, policies, predictors, capacities. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "config/value.h"
#include "plugin/introspect.h"
#include "simulate.h"
#include "spec_list.h"

/* ---- traces ---- */

static void name_of(const char *path, char out[64])
{
    const char *const slash = strrchr(path, '/');
    snprintf(out, 64, "%.63s", slash ? slash + 1 : path);
    char *const dot = strrchr(out, '.');
    if (dot && dot != out)
        *dot = '\0';
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
}

int clb_sim_add_traces(clb_sim *s, const char *const *paths, size_t n, int format,
                       const clb_trace_import_options *options, clb_error *err)
{
    s->traces = calloc(n ? n : 1, sizeof *s->traces);
    if (!s->traces)
        return CLB_NOMEM(err, "the traces");
    for (size_t i = 0; i < n; i++) {
        clb_sim_trace *const t = &s->traces[s->n_traces];
        t->path = paths[i];
        name_of(paths[i], t->name);
        clb_trace_import_options o = *options;
        if (!o.label)
            o.label = t->name;
        CLB_TRY(clb_trace_import_file(paths[i], format, &o, &t->trace, err));
        s->n_traces++;
        if (t->trace->ends_early)
            clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN, "%s ends early: its %llu complete passes are used",
                     paths[i], (unsigned long long)t->trace->n_passes);
        if (s->expert_bytes)
            for (uint32_t l = 0; l < t->trace->info.n_layers; l++)
                t->trace->info.expert_bytes[l] = s->expert_bytes;
        if (clb_replay_index_make(t->trace, &t->index, err))
            return clb_context(err, "%s", paths[i]);
    }
    return COLIBRI_OK;
}

/* ---- lists ---- */

/* Parameters from the settings, and on top of them those written behind the name. */
static int read_params(clb_sim *s, enum clb_setting setting, const char *kind, const char *name, const char *item,
                       const struct colibri_param *params, uint32_t n, double **out, clb_error *err)
{
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(err, "parameters");
    const clb_config *const config = clb_args_config(s->args);
    if (!strchr(item, ':'))
        return clb_config_params(config, kind, name, params, n, *out, err);
    clb_config *own = NULL;
    CLB_TRY(clb_config_create(&own, err));
    char assignment[512];
    int rc = COLIBRI_OK;
    const size_t count = clb_config_param_count(config);
    for (size_t i = 0; i < count && !rc; i++) {
        const char *k, *of, *key, *value, *origin;
        clb_config_param_at(config, i, &k, &of, &key, &value, &origin);
        if (strcmp(k, kind) != 0 || strcmp(of, name) != 0)
            continue;
        snprintf(assignment, sizeof assignment, "%s.%s.%s=%s", k, of, key, value);
        rc = clb_config_set(own, assignment, origin, err);
    }
    if (!rc)
        rc = clb_config_set_value(own, setting, item, setting == CLB_SET_store_predictor ? "--predictor" : "--policy",
                                  err);
    if (!rc)
        rc = clb_config_params(own, kind, name, params, n, *out, err);
    clb_config_destroy(own);
    return rc;
}

static int grow_parts(clb_sim_part **parts, uint32_t n, clb_error *err)
{
    clb_sim_part *const p = realloc(*parts, ((size_t)n + 1) * sizeof *p);
    if (!p)
        return CLB_NOMEM(err, "the list of policies");
    *parts = p;
    p[n] = (clb_sim_part){0};
    return COLIBRI_OK;
}

static void copy_name(const char *item, char out[96])
{
    snprintf(out, 96, "%.*s", (int)strcspn(item, ":"), item);
}

static int add_policy(clb_sim *s, const char *item, clb_error *err)
{
    char name[96];
    copy_name(item, name);
    for (uint32_t i = 0; i < s->n_policies; i++)
        if (!strcmp(s->policies[i].label, item)) {
            s->policies[i].hidden = s->policies[i].added = false;
            return COLIBRI_OK;
        }
    CLB_TRY(grow_parts(&s->policies, s->n_policies, err));
    clb_sim_part *const p = &s->policies[s->n_policies];
    p->policy = clb_registry_expert_policy(s->registry, name, err);
    if (!p->policy)
        return err ? err->code : COLIBRI_E_NOT_FOUND;
    snprintf(p->label, sizeof p->label, "%.95s", item);
    p->oracle = p->policy->flags & COLIBRI_POLICY_ORACLE;
    s->n_policies++;
    return read_params(s, CLB_SET_store_expert_policy, "expert-policy", p->policy->name, item, p->policy->params,
                       p->policy->n_params, &p->params, err);
}

/* Names of all components of one kind, in the registry's order, each once. */
static int all_names(clb_registry *reg, enum clb_iface iface, uint32_t kind, const char ***out, size_t *n,
                     clb_error *err)
{
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view v;
        clb_registry_plugin(reg, i, &v);
        if (v.note && v.note->kinds & kind && v.state == CLB_PLUGIN_AVAILABLE)
            clb_registry_load(reg, i);
    }
    const size_t all = clb_registry_n_components(reg);
    const char **const names = calloc(all + 1, sizeof *names);
    if (!names)
        return CLB_NOMEM(err, "the list of policies");
    *n = 0;
    for (size_t i = 0; i < all; i++) {
        clb_component_view c;
        clb_registry_component(reg, i, &c);
        size_t k = 0;
        while (k < *n && strcmp(names[k], c.name) != 0)
            k++;
        if (c.iface == iface && !c.unfit && k == *n)
            names[(*n)++] = c.name;
    }
    *out = names;
    return COLIBRI_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int add_all(clb_sim *s, enum clb_iface iface, uint32_t kind, int (*add)(clb_sim *, const char *, clb_error *),
                   clb_error *err)
{
    const char **names = NULL;
    size_t n = 0;
    CLB_TRY(all_names(s->registry, iface, kind, &names, &n, err));
    qsort(names, n, sizeof *names, compare_names);
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = add(s, names[i], err);
    free(names);
    return rc;
}

static int add_policy_or_all(void *ctx, const char *item, clb_error *err)
{
    clb_sim *const s = ctx;
    return strcmp(item, "all") ? add_policy(s, item, err)
                               : add_all(s, CLB_IFACE_EXPERT_POLICY, COLIBRI_KIND_EXPERT_POLICY, add_policy, err);
}

int clb_sim_add_policies(clb_sim *s, const char *const *lists, size_t n, clb_error *err)
{
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_each_spec(lists[i], add_policy_or_all, s, err));
    if (n == 0)
        CLB_TRY(add_policy(s, clb_config_str(clb_args_config(s->args), CLB_SET_store_expert_policy), err));
    /* What the gap is measured between. */
    static const char *const yardsticks[] = {"lru", "belady", "belady-bypass"};
    for (size_t i = 0; i < sizeof yardsticks / sizeof *yardsticks; i++) {
        const uint32_t before = s->n_policies;
        bool asked = false;
        for (uint32_t k = 0; k < before; k++)
            asked |= !strcmp(s->policies[k].label, yardsticks[i]);
        clb_error missing;
        if (!asked && add_policy(s, yardsticks[i], &missing))
            clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN, "no comparison with %s: %s", yardsticks[i], missing.msg);
        else if (!asked) {
            s->policies[before].added = true;
            s->policies[before].hidden = !s->policies[before].oracle;
        }
    }
    return COLIBRI_OK;
}

static int add_predictor(clb_sim *s, const char *item, clb_error *err)
{
    char name[96];
    copy_name(item, name);
    for (uint32_t i = 0; i < s->n_predictors; i++)
        if (!strcmp(s->predictors[i].label, item))
            return COLIBRI_OK;
    CLB_TRY(grow_parts(&s->predictors, s->n_predictors, err));
    clb_sim_part *const p = &s->predictors[s->n_predictors];
    snprintf(p->label, sizeof p->label, "%.95s", item);
    if (!strcmp(item, "none")) {
        s->n_predictors++;
        return COLIBRI_OK;
    }
    p->predictor = clb_registry_predictor(s->registry, name, err);
    if (!p->predictor)
        return err ? err->code : COLIBRI_E_NOT_FOUND;
    p->oracle = p->predictor->flags & COLIBRI_POLICY_ORACLE;
    s->n_predictors++;
    const uint32_t ahead = COLIBRI_HAS(p->predictor, ahead) ? p->predictor->ahead : 0;
    for (uint32_t i = 0; ahead && i < s->n_traces; i++)
        if (!s->traces[i].trace->ahead)
            clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN,
                     "%s has no guesses of the next routers (colibri trace --ahead): predictor %s knows nothing there",
                     s->traces[i].path, item);
    return read_params(s, CLB_SET_store_predictor, "predictor", p->predictor->name, item, p->predictor->params,
                       p->predictor->n_params, &p->params, err);
}

static int add_predictor_or_all(void *ctx, const char *item, clb_error *err)
{
    clb_sim *const s = ctx;
    return strcmp(item, "all") ? add_predictor(s, item, err)
                               : add_all(s, CLB_IFACE_PREDICTOR, COLIBRI_KIND_PREDICTOR, add_predictor, err);
}

int clb_sim_add_predictors(clb_sim *s, const char *const *lists, size_t n, clb_error *err)
{
    CLB_TRY(add_predictor(s, "none", err)); /* what the others are compared with */
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_each_spec(lists[i], add_predictor_or_all, s, err));
    return COLIBRI_OK;
}

/* ---- capacities ---- */

static int add_slots(void *ctx, const char *item, clb_error *err)
{
    clb_sim *const s = ctx;
    clb_sim_slots k = {0};
    char *end = NULL;
    const double v = isdigit((unsigned char)*item) || *item == '.' ? strtod(item, &end) : -1;
    if (!(v > 0) || !end || (strcmp(end, "%") != 0 && *end))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--slots %.40s: a share of all experts (25%%) or a number of slots is expected", item);
    if (*end == '%' && v > 100)
        return clb_fail(err, COLIBRI_E_USAGE, "--slots %.40s: more than all experts", item);
    if (!*end && (v > 268435456 || v != floor(v)))
        return clb_fail(err, COLIBRI_E_USAGE, "--slots %.40s: must be a whole number", item);
    k.share = *end == '%' ? v / 100 : 0;
    k.count = *end ? 0 : (uint32_t)v;
    snprintf(k.label, sizeof k.label, "%.23s", item);
    clb_sim_slots *const p = realloc(s->slots, ((size_t)s->n_slots + 1) * sizeof *p);
    if (!p)
        return CLB_NOMEM(err, "the capacities");
    s->slots = p;
    p[s->n_slots++] = k;
    for (uint32_t i = 0; i < s->n_traces; i++) {
        const clb_trace_info *const info = &s->traces[i].trace->info;
        const uint32_t have = clb_sim_slot_count(s, s->n_slots - 1, info),
                       least = clb_replay_least_slots(info, s->layer_pools);
        if (have < least)
            return clb_fail(err, COLIBRI_E_USAGE, "--slots %s: %u slots for %s; at least %u are needed", k.label, have,
                            s->traces[i].path, least);
        if (!*end && have > info->n_layers * info->n_experts)
            return clb_fail(err, COLIBRI_E_USAGE, "--slots %s: %s has %u experts", k.label, s->traces[i].path,
                            info->n_layers * info->n_experts);
    }
    return COLIBRI_OK;
}

uint32_t clb_sim_slot_count(const clb_sim *s, uint32_t slots, const clb_trace_info *info)
{
    const clb_sim_slots *const k = &s->slots[slots];
    const double all = (double)info->n_layers * info->n_experts;
    return k->count ? k->count : (uint32_t)lround(k->share * all);
}

static double share_of(const clb_sim *s, const clb_sim_slots *k)
{
    const clb_trace_info *const info = &s->traces[0].trace->info;
    return k->count ? (double)k->count / ((double)info->n_layers * info->n_experts) : k->share;
}

int clb_sim_add_slots(clb_sim *s, const char *const *lists, size_t n, clb_error *err)
{
    static const char *const usual = "10%,25%,40%,50%,75%";
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_each_spec(lists[i], add_slots, s, err));
    if (n == 0)
        CLB_TRY(clb_each_spec(usual, add_slots, s, err));
    for (uint32_t i = 1; i < s->n_slots; i++) /* ascending: they are an axis */
        for (uint32_t k = i; k && share_of(s, &s->slots[k]) < share_of(s, &s->slots[k - 1]); k--) {
            const clb_sim_slots t = s->slots[k];
            s->slots[k] = s->slots[k - 1];
            s->slots[k - 1] = t;
        }
    return COLIBRI_OK;
}
