/* Opening, closing and views. Filtering: filter.c; loading: load.c; selection: select.c. */
#include "plugin/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "plugin/builtin.h"
#include "plugin/registry_private.h"

const char *clb_plugin_state_name(enum clb_plugin_state state)
{
    switch (state) {
    case CLB_PLUGIN_AVAILABLE:
        return "available";
    case CLB_PLUGIN_LOADED:
        return "loaded";
    case CLB_PLUGIN_SHADOWED:
        return "shadowed";
    case CLB_PLUGIN_REJECTED:
        return "rejected";
    case CLB_PLUGIN_MISBEHAVED:
        return "misbehaved";
    }
    return "unknown";
}

bool clb_id_matches(const char *pattern, const char *id)
{
    const size_t n = strlen(pattern);
    return n && pattern[n - 1] == '*' ? !strncmp(pattern, id, n - 1) : !strcmp(pattern, id);
}

const char *clb_candidate_label(const clb_candidate *c)
{
    return c->has_id ? c->note.desc.id : c->file ? c->file->path : "?";
}

static int copy_list(const char *const *items, size_t n, char ***out, size_t *n_out, clb_error *err)
{
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(err, "the plugin registry");
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = strdup(items[i]);
        if (!(*out)[i])
            return CLB_NOMEM(err, "the plugin registry");
        *n_out = i + 1;
    }
    return COLIBRI_OK;
}

static int search_all(clb_registry *reg, const clb_registry_options *o, clb_error *err)
{
    if (o->builtin_dir)
        CLB_TRY(clb_search_add(&reg->search, o->builtin_dir, "installed", err));
    for (size_t i = 0; i < o->n_dirs; i++) {
        if (o->dirs[i][0] != '/')
            return clb_fail(err, COLIBRI_E_USAGE, "[plugins] path: '%s' is not an absolute path", o->dirs[i]);
        CLB_TRY(clb_search_add(&reg->search, o->dirs[i], "config", err));
    }
    const char *const env = o->use_env ? secure_getenv("COLIBRI_PLUGIN_PATH") : NULL;
    if (env && *env)
        CLB_TRY(clb_search_add_list(&reg->search, env, "COLIBRI_PLUGIN_PATH", err));
    for (size_t i = 0; i < reg->search.n_dirs; i++) {
        const clb_search_dir *const d = &reg->search.dirs[i];
        if (d->refused) /* an installation without plugins is unusual, but not an error of the user */
            clb_logf(reg->log, d->absent && i == 0 && o->builtin_dir ? COLIBRI_LOG_INFO : COLIBRI_LOG_WARN,
                     "plugin folder \"%s\" (%s) ignored: %s", d->path, d->origin, d->refused);
    }
    return COLIBRI_OK;
}

/* A section has no note: what one would say is filled in, so that filter, lists and selection need not know. */
static int add_foreign(clb_registry *reg, const clb_foreign_spec *spec, clb_error *err)
{
    clb_candidate *const c = &reg->candidates[reg->n_candidates];
    *c = (clb_candidate){.origin = "config", .has_note = true, .has_id = true, .state = CLB_PLUGIN_REJECTED};
    CLB_TRY(clb_foreign_create(spec, reg->log, &c->foreign, err));
    const bool named = spec->kind != CLB_FOREIGN_MATMUL_F32; /* products serve by rank */
    const uint32_t kind = !named                                    ? COLIBRI_KIND_KERNEL
                          : spec->kind == CLB_FOREIGN_KV_STRATEGY ? COLIBRI_KIND_KV_STRATEGY
                                                                    : COLIBRI_KIND_EXPERT_POLICY;
    c->note.desc = (struct colibri_note_desc){.desc_size = sizeof c->note.desc,
                                              .abi_major = COLIBRI_ABI_MAJOR,
                                              .abi_minor = COLIBRI_ABI_MINOR,
                                              .kinds = kind,
                                              .rank = named ? 0 : spec->rank,
                                              .version = "0",
                                              .license = "unknown"};
    snprintf(c->note.desc.id, sizeof c->note.desc.id, "foreign.%s", spec->name);
    snprintf(c->note.desc.summary, sizeof c->note.desc.summary, "Foreign function %.60s", spec->symbol);
    clb_verdict_add(&c->verdict, "foreign", true, "%s(...) of %s, bound in %s", spec->symbol, spec->library,
                    spec->origin ? spec->origin : "the program");
    clb_candidate_filter(reg, c);
    reg->n_candidates++;
    for (size_t i = 0; named && i + 1 < reg->n_candidates; i++) {
        const clb_candidate *const other = &reg->candidates[i];
        if ((other->state == CLB_PLUGIN_AVAILABLE || other->state == CLB_PLUGIN_SHADOWED) &&
            other->note.desc.kinds & kind && !other->foreign &&
            clb_id_ends_with(other->note.desc.id, spec->name))
            return clb_fail(err, COLIBRI_E_USAGE,
                            "%s: [foreign.%s]: plugin %s (%s) offers %s of this name: choose another",
                            spec->origin ? spec->origin : "settings", spec->name, other->note.desc.id,
                            clb_candidate_place(other),
                            kind == COLIBRI_KIND_KV_STRATEGY ? "a KV strategy" : "an expert policy");
    }
    return COLIBRI_OK;
}

static int make_candidates(clb_registry *reg, const clb_registry_options *o, clb_error *err)
{
    size_t n_builtin = 0;
    while (clb_builtin_plugins[n_builtin])
        n_builtin++;
    const size_t n_files = reg->search.n_files;
    reg->candidates = calloc(n_files + n_builtin + o->n_foreign + 1, sizeof *reg->candidates);
    if (!reg->candidates)
        return CLB_NOMEM(err, "the plugin registry");
    for (size_t i = 0; i < n_files; i++) {
        const clb_search_file *const f = &reg->search.files[i];
        reg->candidates[i] =
            (clb_candidate){.file = f, .origin = reg->search.dirs[f->dir].origin, .state = CLB_PLUGIN_REJECTED};
        clb_candidate_filter(reg, &reg->candidates[i]);
        if (f->refused)
            clb_logf(reg->log, COLIBRI_LOG_WARN, "plugin file %s refused: %s", f->path, f->refused);
    }
    for (size_t i = 0; i < n_builtin; i++) {
        clb_candidate *const c = &reg->candidates[n_files + i];
        *c = (clb_candidate){.origin = "linked in",
                             .note = *clb_builtin_plugins[i]->note,
                             .has_note = true,
                             .has_id = true,
                             .plugin = clb_builtin_plugins[i]};
        clb_verdict_add(&c->verdict, "file", true, "linked in: used where no plugin file offers the same");
    }
    reg->n_candidates = n_files + n_builtin;
    for (size_t i = 0; i < o->n_foreign; i++)
        CLB_TRY(add_foreign(reg, &o->foreign[i], err));
    clb_registry_resolve_shadows(reg);
    return COLIBRI_OK;
}

/* A deny entry that matches nothing is likely misspelt: the plugin it was meant for would be loaded. */
static void check_deny(const clb_registry *reg)
{
    const char **const ids = calloc(reg->n_candidates + 1, sizeof *ids);
    if (!ids)
        return;
    size_t n = 0;
    for (size_t i = 0; i < reg->n_candidates; i++)
        if (reg->candidates[i].has_id)
            ids[n++] = reg->candidates[i].note.desc.id;
    for (size_t d = 0; d < reg->n_deny; d++) {
        bool hit = false;
        for (size_t i = 0; i < n && !hit; i++)
            hit = clb_id_matches(reg->deny[d], ids[i]);
        const long near = hit ? -1 : clb_nearest(reg->deny[d], ids, n);
        if (!hit)
            clb_logf(reg->log, COLIBRI_LOG_WARN, "[plugins] deny: no plugin is called '%s'%s%s%s", reg->deny[d],
                     near >= 0 ? "; did you mean '" : "", near >= 0 ? ids[near] : "", near >= 0 ? "'?" : "");
    }
    free(ids);
}

static int open_registry(clb_registry *reg, const clb_registry_options *o, clb_error *err)
{
    CLB_TRY(copy_list(o->prefer, o->n_prefer, &reg->prefer, &reg->n_prefer, err));
    CLB_TRY(copy_list(o->deny, o->n_deny, &reg->deny, &reg->n_deny, err));
    CLB_TRY(clb_host_create(reg->cpu, reg->log, &reg->host, err));
    if (o->measure.enabled)
        CLB_TRY(clb_measure_create(&o->measure, &reg->measure, err));
    CLB_TRY(search_all(reg, o, err));
    CLB_TRY(make_candidates(reg, o, err));
    check_deny(reg);
    return COLIBRI_OK;
}

int clb_registry_open(const clb_registry_options *options, clb_registry **out, clb_error *err)
{
    clb_registry *const reg = calloc(1, sizeof *reg);
    if (!reg)
        return CLB_NOMEM(err, "the plugin registry");
    reg->cpu = options->cpu;
    reg->allow_inexact = options->allow_inexact;
    reg->log = options->log;
    const int rc = open_registry(reg, options, err);
    if (rc) {
        clb_registry_close(reg);
        return rc;
    }
    *out = reg;
    return COLIBRI_OK;
}

static void free_list(char **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i]);
    free(list);
}

void clb_registry_close(clb_registry *reg)
{
    if (!reg)
        return;
    for (size_t i = 0; i < reg->n_candidates; i++) {
        free(reg->candidates[i].reason);
        clb_verdict_free(&reg->candidates[i].verdict);
        clb_foreign_retire(reg->candidates[i].foreign);
    }
    for (size_t i = 0; i < reg->n_components; i++) {
        free(reg->components[i]->unfit);
        free(reg->components[i]);
    }
    for (size_t i = 0; i < reg->n_uses; i++) {
        free(reg->uses[i].kind);
        free(reg->uses[i].what);
    }
    free_list(reg->prefer, reg->n_prefer);
    free_list(reg->deny, reg->n_deny);
    clb_host_retire(reg->host);
    clb_measure_destroy(reg->measure);
    clb_search_free(&reg->search);
    free(reg->candidates);
    free(reg->components);
    free(reg->uses);
    free(reg->vecops);
    free(reg);
}

/* ---- views ------------------------------------------------------------------------------------------------ */

const struct colibri_host *clb_registry_host(clb_registry *reg)
{
    clb_host_hand_out(reg->host); /* whoever asks may pass it on */
    return clb_host_table(reg->host);
}

size_t clb_registry_n_plugins(const clb_registry *reg)
{
    return reg->n_candidates;
}

void clb_registry_plugin(const clb_registry *reg, size_t i, clb_plugin_view *out)
{
    const clb_candidate *const c = &reg->candidates[i];
    *out = (clb_plugin_view){.path = clb_candidate_path(c),
                             .dir = c->file ? c->file->dir : SIZE_MAX,
                             .origin = c->origin,
                             .id = c->has_id ? c->note.desc.id : NULL,
                             .note = c->has_note ? &c->note.desc : NULL,
                             .state = c->state,
                             .reason = c->reason,
                             .verdict = &c->verdict,
                             .bad_components = c->bad_components};
}

size_t clb_registry_n_dirs(const clb_registry *reg)
{
    return reg->search.n_dirs;
}

const clb_search_dir *clb_registry_dir(const clb_registry *reg, size_t i)
{
    return &reg->search.dirs[i];
}

struct colibri_cpu_bits clb_registry_cpu(const clb_registry *reg)
{
    return reg->cpu;
}

void clb_registry_load(clb_registry *reg, size_t i)
{
    clb_candidate_load(reg, i);
}

size_t clb_registry_n_components(const clb_registry *reg)
{
    return reg->n_components;
}

void clb_registry_component(const clb_registry *reg, size_t i, clb_component_view *out)
{
    const clb_component *const c = reg->components[i];
    *out = (clb_component_view){
        .iface = c->iface, .name = c->name, .table = c->table, .plugin = c->candidate, .unfit = c->unfit};
}

void clb_registry_misbehaved(clb_registry *reg, const char *component, const char *what)
{
    for (size_t i = 0; i < reg->n_components; i++) {
        clb_component *const c = reg->components[i];
        if (strcmp(c->name, component) != 0)
            continue;
        bool used = false;
        for (size_t u = 0; u < reg->n_uses && !used; u++)
            used = reg->uses[u].component == i;
        if (!used)
            continue;
        if (c->misbehaved++)
            return; /* said once; the caller's statistics have the number */
        clb_candidate *const p = &reg->candidates[c->candidate];
        clb_logf(reg->log, COLIBRI_LOG_WARN, "plugin %s (%s): %s misbehaved: %s", p->note.desc.id,
                 clb_candidate_place(p), component, what);
        clb_verdict_add(&p->verdict, "run", false, "%s misbehaved: %s", component, what);
        clb_candidate_set_state(p, CLB_PLUGIN_MISBEHAVED, "%s: %s", component, what);
        return;
    }
    clb_logf(reg->log, COLIBRI_LOG_WARN, "component %s misbehaved: %s", component, what);
}
