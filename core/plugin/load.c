/* Loading: from an accepted note to checked components in the registry's list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "plugin/fpstate.h"
#include "plugin/loader.h"
#include "plugin/registry_private.h"

static size_t preference(const clb_registry *reg, const char *component, const char *id)
{
    for (size_t i = 0; i < reg->n_prefer; i++)
        if (clb_id_matches(reg->prefer[i], component) || clb_id_matches(reg->prefer[i], id))
            return i;
    return CLB_NO_PREFERENCE;
}

/* The reason why a sound component is no candidate here; NULL if it is one. */
static char *unfit_reason(const clb_registry *reg, const uint64_t cpu[COLIBRI_CPU_WORDS], uint32_t max_ulp)
{
    struct colibri_cpu_bits need;
    memcpy(need.w, cpu, sizeof need.w);
    const struct colibri_cpu_bits missing = clb_cpu_minus(need, reg->cpu);
    char *reason = NULL, text[CLB_CPU_TEXT_MAX];
    if (!clb_cpu_empty(missing)) {
        if (asprintf(&reason, "needs %s", clb_cpu_format(missing, text)) < 0)
            reason = NULL;
    } else if (max_ulp != COLIBRI_EXACT && !reg->allow_inexact) {
        const int n = max_ulp == UINT32_MAX
                          ? asprintf(&reason, "not exact (no bound) and allow-inexact is off")
                          : asprintf(&reason, "not exact (up to %u ULP) and allow-inexact is off", max_ulp);
        if (n < 0)
            reason = NULL;
    }
    return reason;
}

static bool add_component(clb_registry *reg, size_t candidate, enum clb_iface iface, const void *table, uint32_t index)
{
    clb_component *const c = calloc(1, sizeof *c);
    if (!c)
        return false;
    if (reg->n_components == reg->cap_components) {
        const size_t cap = reg->cap_components ? 2 * reg->cap_components : 64;
        clb_component **const grown = realloc(reg->components, cap * sizeof *grown);
        if (!grown) {
            free(c);
            return false;
        }
        reg->components = grown;
        reg->cap_components = cap;
    }
    const clb_candidate *const p = &reg->candidates[candidate];
    *c = (clb_component){.iface = iface,
                         .name = clb_component_name(iface, table),
                         .table = table,
                         .candidate = candidate,
                         .index = index,
                         .rank = p->note.desc.rank};
    if (iface == CLB_IFACE_MATMUL) {
        const struct colibri_matmul *const m = table;
        c->rank = m->rank;
        c->max_ulp = m->max_ulp;
        c->unfit = unfit_reason(reg, m->cpu, m->max_ulp);
    } else if (iface == CLB_IFACE_VECOPS) {
        const struct colibri_vecops *const v = table;
        c->rank = v->rank;
        c->max_ulp = v->max_ulp;
        c->unfit = unfit_reason(reg, v->cpu, v->max_ulp);
    }
    c->prefer = preference(reg, c->name, p->note.desc.id);
    reg->components[reg->n_components++] = c;
    return true;
}

static bool name_taken(const clb_registry *reg, size_t candidate, enum clb_iface iface, const char *name)
{
    for (size_t i = 0; i < reg->n_components; i++) {
        const clb_component *const c = reg->components[i];
        if (c->candidate == candidate && c->iface == iface && !strcmp(c->name, name))
            return true;
    }
    return false;
}

static void bad_component(clb_registry *reg, clb_candidate *c, const clb_iface_info *info, uint32_t index,
                          const char *why)
{
    c->bad_components++;
    clb_verdict_add(&c->verdict, "component", false, "%s %u skipped: %s", info->name, index, why);
    clb_logf(reg->log, COLIBRI_LOG_WARN, "plugin %s (%s): %s %u skipped: %s", c->note.desc.id, clb_candidate_place(c),
             info->name, index, why);
}

static void enumerate(clb_registry *reg, size_t i, enum clb_iface iface)
{
    clb_candidate *const c = &reg->candidates[i];
    const clb_iface_info *const info = clb_iface_get(iface);
    const size_t bad_before = c->bad_components;
    for (uint32_t index = 0;; index++) {
        const void *const table = c->plugin->get(info->id, index);
        if (!table)
            return;
        if (index == CLB_MAX_COMPONENTS || c->bad_components - bad_before == CLB_MAX_BAD_COMPONENTS) {
            bad_component(reg, c, info, index,
                          index == CLB_MAX_COMPONENTS ? "its list has no end"
                                                      : "too many bad ones, the rest is not looked at");
            return;
        }
        clb_error e = {0};
        if (clb_component_check(iface, table, &e))
            bad_component(reg, c, info, index, e.msg);
        else if (name_taken(reg, i, iface, clb_component_name(iface, table)))
            bad_component(reg, c, info, index, "a second one of the same name");
        else if (!add_component(reg, i, iface, table, index))
            bad_component(reg, c, info, index, "out of memory");
        else
            clb_verdict_add(&c->verdict, "component", true, "%s %s", info->name, clb_component_name(iface, table));
    }
}

static void reject_loaded(clb_registry *reg, size_t i, const char *why)
{
    clb_candidate *const c = &reg->candidates[i];
    clb_verdict_add(&c->verdict, "load", false, "%s", why);
    clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "%s", why);
    /* Nothing takes the place of a foreign function: whoever asks for it gets the reason as an error. */
    clb_logf(reg->log, c->foreign ? COLIBRI_LOG_INFO : COLIBRI_LOG_WARN, "plugin %s (%s) rejected: %s", c->note.desc.id,
             clb_candidate_place(c), why);
    clb_registry_unshadow(reg, i);
}

/* The file may have been replaced since its note was read: what is mapped must be what was judged. */
static int same_file(const clb_candidate *c, clb_error *err)
{
    clb_note note;
    CLB_TRY(clb_candidate_read_note(c->file, &note, err));
    if (memcmp(&note.raw, &c->note, sizeof note.raw) != 0)
        return clb_fail(err, COLIBRI_E_PLUGIN, "the file has changed since it was examined");
    return COLIBRI_OK;
}

/* Its table is the core's own, so there is nothing to check about it; `run` and `create` are libffi's code. */
static void load_foreign(clb_registry *reg, size_t i)
{
    clb_candidate *const c = &reg->candidates[i];
    const enum clb_iface iface = c->note.desc.kinds == COLIBRI_KIND_KERNEL        ? CLB_IFACE_MATMUL
                                 : c->note.desc.kinds == COLIBRI_KIND_KV_STRATEGY ? CLB_IFACE_KV_STRATEGY
                                                                                  : CLB_IFACE_EXPERT_POLICY;
    clb_error e = {0};
    if (clb_foreign_load(c->foreign, &e)) {
        reject_loaded(reg, i, e.msg);
        return;
    }
    clb_verdict_add(&c->verdict, "load", true, "its functions are there");
    if (!add_component(reg, i, iface, clb_foreign_table(c->foreign), 0)) {
        reject_loaded(reg, i, "out of memory");
        return;
    }
    c->state = CLB_PLUGIN_LOADED;
    clb_verdict_add(&c->verdict, "component", true, "%s %s", clb_iface_get(iface)->name,
                    clb_component_name(iface, clb_foreign_table(c->foreign)));
}

void clb_candidate_load(clb_registry *reg, size_t i)
{
    clb_candidate *const c = &reg->candidates[i];
    if (c->state != CLB_PLUGIN_AVAILABLE || c->entered)
        return;
    c->entered = true;
    if (c->foreign) {
        load_foreign(reg, i);
        return;
    }
    clb_error e = {0};
    int rc;
    if (c->file) {
        rc = same_file(c, &e);
        if (!rc)
            rc = clb_loader_open(c->file->path, &c->note, reg->host, NULL, NULL, &c->plugin, &e);
    } else {
        rc = clb_loader_enter(c->plugin, NULL, reg->host, NULL, NULL, &e);
    }
    if (rc) {
        reject_loaded(reg, i, e.msg);
        return;
    }
    clb_verdict_add(&c->verdict, "load", true,
                    c->file ? "mapped, descriptor equals the note, init succeeded" : "linked in, init succeeded");
    c->state = CLB_PLUGIN_LOADED;
    const size_t first = reg->n_components;
    const clb_fpstate before = clb_fpstate_get();
    for (int iface = 0; iface < CLB_IFACE_COUNT; iface++)
        if (c->note.desc.kinds & clb_iface_get((enum clb_iface)iface)->kind)
            enumerate(reg, i, (enum clb_iface)iface);
    if (!clb_fpstate_same(before, clb_fpstate_get())) {
        clb_fpstate_set(before);
        while (reg->n_components > first) {
            clb_component *const last = reg->components[--reg->n_components];
            free(last->unfit);
            free(last);
        }
        reject_loaded(reg, i, "its get changed the floating-point control state");
        return;
    }
    clb_logf(reg->log, COLIBRI_LOG_DEBUG, "plugin %s %s loaded from %s: %zu components", c->note.desc.id,
             c->note.desc.version, clb_candidate_place(c), reg->n_components - first);
    if (c->bad_components || reg->n_components == first) {
        if (reg->n_components == first)
            clb_verdict_add(&c->verdict, "component", false, "it offers no usable component");
        clb_registry_unshadow(reg, i);
    }
}

void clb_registry_load_kinds(clb_registry *reg, uint32_t kinds)
{
    /* A failure may make an earlier entry available again. */
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < reg->n_candidates; i++) {
            const clb_candidate *const c = &reg->candidates[i];
            if (c->state == CLB_PLUGIN_AVAILABLE && !c->entered && c->note.desc.kinds & kinds) {
                clb_candidate_load(reg, i);
                again = true;
            }
        }
    }
}

int clb_registry_foreign_ready(clb_registry *reg, clb_error *err)
{
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (!c->foreign || c->note.desc.kinds != COLIBRI_KIND_KERNEL || !reg->allow_inexact)
            continue;
        clb_candidate_load(reg, i);
        if (c->entered && c->state == CLB_PLUGIN_REJECTED)
            return clb_fail(err, COLIBRI_E_PLUGIN, "%s: [%s]: %s: %s", clb_foreign_origin(c->foreign), c->note.desc.id,
                            clb_candidate_place(c), c->reason ? c->reason : "no reason recorded");
    }
    return COLIBRI_OK;
}
