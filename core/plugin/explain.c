/* `colibri plugins why`: the decisions of filter.c and select.c, replayed with every comparison written down. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "plugin/registry_private.h"

static void conclude(clb_verdict *out, const char *what, const clb_component *c, const char *otherwise)
{
    clb_verdict_add(out, "choice", c != NULL, "%s: %s", what, c ? c->name : otherwise);
}

/* Every decision about plugins of this id. */
static bool explain_plugin(clb_registry *reg, const char *id, clb_verdict *out, const char **chosen)
{
    bool found = false;
    for (size_t i = 0; i < reg->n_candidates; i++) {
        if (!reg->candidates[i].has_id || strcmp(reg->candidates[i].note.desc.id, id) != 0)
            continue;
        found = true;
        clb_candidate_load(reg, i);
    }
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (!c->has_id || strcmp(c->note.desc.id, id) != 0)
            continue;
        const bool taken = c->state == CLB_PLUGIN_LOADED || c->state == CLB_PLUGIN_AVAILABLE;
        clb_verdict_add(out, "plugin", taken, "%s %s in %s (%s)", id, c->has_note ? c->note.desc.version : "?",
                        clb_candidate_place(c), c->origin);
        for (size_t k = 0; k < c->verdict.n; k++)
            clb_verdict_add(out, c->verdict.checks[k].rule, c->verdict.checks[k].pass, "%s",
                            c->verdict.checks[k].detail);
        clb_verdict_add(out, "state", taken, "%s%s%s", clb_plugin_state_name(c->state), c->reason ? ": " : "",
                        c->reason ? c->reason : "");
        if (taken && !*chosen)
            *chosen = clb_candidate_place(c);
    }
    return found;
}

/* What the filter made of the plugins that declare this kind. Of formats only the rejected ones are of interest:
 * which of the others offers the type, the candidates say. */
static void explain_filter(const clb_registry *reg, uint32_t kind, clb_verdict *out)
{
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (!c->has_note || !(c->note.desc.kinds & kind) || (clb_candidate_linked_in(c) && c->state == CLB_PLUGIN_SHADOWED))
            continue;
        const bool taken = c->state == CLB_PLUGIN_LOADED || c->state == CLB_PLUGIN_AVAILABLE;
        if (taken && kind == COLIBRI_KIND_FORMAT)
            continue;
        clb_verdict_add(out, "filter", taken, "plugin %s %s (%s)%s%s", c->note.desc.id, c->note.desc.version,
                        clb_candidate_place(c), c->reason ? ": " : "", c->reason ? c->reason : "");
    }
}

/* Whether a component's min_x lies in (below, upto]: then another one may serve more rows. */
static bool other_min_x(const clb_registry *reg, uint32_t type, uint32_t below, uint32_t upto)
{
    for (size_t i = 0; i < reg->n_components; i++) {
        const struct colibri_matmul *const m = reg->components[i]->table;
        if (reg->components[i]->iface == CLB_IFACE_MATMUL && m->gguf_type == type && m->min_x > below &&
            m->min_x <= upto)
            return true;
    }
    return false;
}

/* The format of a type, then the kernel for one row and for every class of more rows for which another one could be
 * better. */
static void explain_type(clb_registry *reg, uint32_t type, clb_verdict *out, const char **chosen)
{
    explain_filter(reg, COLIBRI_KIND_FORMAT, out);
    const clb_component *const f =
        clb_select(reg, &(clb_want){.iface = CLB_IFACE_FORMAT, .by_type = true, .gguf_type = type}, out);
    conclude(out, "format", f, "none");
    if (!f)
        return;
    explain_filter(reg, COLIBRI_KIND_KERNEL, out);
    if (reg->measure) {
        const clb_component *const c = clb_measure_explain(reg, f->table, out);
        *chosen = c ? c->name : f->name;
        return;
    }
    static const uint32_t from[CLB_X_CLASSES] = {1, 2, 8, 32};
    for (unsigned k = 0; k < CLB_X_CLASSES; k++) {
        const clb_want want = clb_want_matmul(f->table, clb_x_class_rows(k));
        if (k && !other_min_x(reg, type, clb_x_class_rows(k - 1), want.n_x))
            continue;
        clb_verdict_add(out, "rows", true, "kernel for %u or more rows at a time", from[k]);
        const clb_component *const c = clb_select(reg, &want, out);
        conclude(out, "kernel", c, "none fits: the format's own reference");
        if (!k)
            *chosen = c ? c->name : f->name;
    }
}

static void explain_member(clb_registry *reg, const clb_vecop_member *m, clb_verdict *out, const char **chosen)
{
    const clb_component *const c =
        clb_select(reg, &(clb_want){.iface = CLB_IFACE_VECOPS, .member = m}, out);
    conclude(out, m->name, c, "none fits: the scalar reference");
    *chosen = c ? c->name : "reference";
}

static void explain_component(clb_registry *reg, const clb_component *c, clb_verdict *out, const char **chosen)
{
    switch (c->iface) {
    case CLB_IFACE_FORMAT:
        explain_type(reg, ((const struct colibri_format *)c->table)->gguf_type, out, chosen);
        return;
    case CLB_IFACE_MATMUL:
        explain_type(reg, ((const struct colibri_matmul *)c->table)->gguf_type, out, chosen);
        return;
    case CLB_IFACE_VECOPS:
        explain_filter(reg, COLIBRI_KIND_KERNEL, out);
        for (size_t i = 0; i < clb_n_vecop_members; i++)
            if (clb_vecop_code(c->table, &clb_vecop_members[i]))
                explain_member(reg, &clb_vecop_members[i], out, chosen);
        return;
    default: {
        explain_filter(reg, clb_iface_get(c->iface)->kind, out);
        const clb_component *const best = clb_select_named(reg, c->iface, c->name, out);
        conclude(out, clb_iface_get(c->iface)->name, best, "none");
        *chosen = best ? best->name : NULL;
        return;
    }
    }
}

static int not_found(const clb_registry *reg, const char *name, clb_error *err)
{
    const char **const names = calloc(reg->n_candidates + reg->n_components + clb_n_vecop_members, sizeof *names);
    size_t n = 0;
    for (size_t i = 0; names && i < reg->n_candidates; i++)
        if (reg->candidates[i].has_id)
            names[n++] = reg->candidates[i].note.desc.id;
    for (size_t i = 0; names && i < reg->n_components; i++)
        names[n++] = reg->components[i]->name;
    for (size_t i = 0; names && i < clb_n_vecop_members; i++)
        names[n++] = clb_vecop_members[i].name;
    const long near = names ? clb_nearest(name, names, n) : -1;
    const int rc =
        clb_fail(err, COLIBRI_E_NOT_FOUND, "no plugin, format, vector operation or component is called '%s'%s%s%s",
                 name, near >= 0 ? "; did you mean '" : "", near >= 0 ? names[near] : "", near >= 0 ? "'?" : "");
    free(names);
    return rc;
}

int clb_registry_explain(clb_registry *reg, const char *name, clb_verdict *out, const char **chosen, clb_error *err)
{
    *chosen = NULL;
    if (explain_plugin(reg, name, out, chosen))
        return COLIBRI_OK;
    /* Component names are known only from loaded plugins. */
    clb_registry_load_kinds(reg, COLIBRI_KIND_FORMAT | COLIBRI_KIND_KERNEL);
    for (size_t i = 0; i < clb_n_vecop_members; i++)
        if (!strcasecmp(clb_vecop_members[i].name, name)) {
            explain_filter(reg, COLIBRI_KIND_KERNEL, out);
            explain_member(reg, &clb_vecop_members[i], out, chosen);
            return COLIBRI_OK;
        }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < reg->n_components; i++)
            if (!strcasecmp(reg->components[i]->name, name)) {
                explain_component(reg, reg->components[i], out, chosen);
                return COLIBRI_OK;
            }
        clb_registry_load_kinds(reg, COLIBRI_KIND_ALL);
    }
    return not_found(reg, name, err);
}
