/* Which component serves a job: linked-in copies last, then prefer list, rank, larger min_x, exactness, id. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "ops/ops.h"
#include "plugin/registry_private.h"

bool clb_id_ends_with(const char *id, const char *name)
{
    const size_t n = strlen(id), m = strlen(name);
    return n > m && id[n - m - 1] == '.' && !strcasecmp(id + n - m, name);
}

/* Whether c is about what is wanted at all. */
static bool concerns(const clb_registry *reg, const clb_component *c, const clb_want *w)
{
    if (c->iface != w->iface)
        return false;
    if (w->name && strcasecmp(c->name, w->name) != 0 &&
        strcmp(reg->candidates[c->candidate].note.desc.id, w->name) != 0)
        return false;
    if (w->by_type) {
        const uint32_t type = c->iface == CLB_IFACE_FORMAT ? ((const struct colibri_format *)c->table)->gguf_type
                                                           : ((const struct colibri_matmul *)c->table)->gguf_type;
        if (type != w->gguf_type)
            return false;
    }
    return !w->member || clb_vecop_code(c->table, w->member) != NULL;
}

/* NULL if c can do the job, else why not. */
static const char *unfit(const clb_component *c, const clb_want *w, char why[160])
{
    if (c->unfit)
        return c->unfit;
    if (c->iface == CLB_IFACE_VECOPS) {
        const uint32_t lacks = w->attention_takes & ~((const struct colibri_vecops *)c->table)->attention_takes;
        if (!lacks)
            return NULL;
        char names[64];
        snprintf(why, 160, "its attention does not take %s", clb_attention_takes_text(lacks, names));
        return why;
    }
    if (c->iface != CLB_IFACE_MATMUL)
        return NULL;
    const struct colibri_matmul *const m = c->table;
    if (m->layout != w->layout || strcmp(m->act, w->act) != 0) {
        snprintf(why, 160, "it multiplies layout %u with %.40s, the format has layout %u with %.40s", m->layout, m->act,
                 w->layout, w->act);
        return why;
    }
    if (m->min_x > w->n_x) {
        snprintf(why, 160, "meant for at least %u rows at a time, asked for %u", m->min_x, w->n_x);
        return why;
    }
    return NULL;
}

static const char *prefer_text(const clb_component *c, char out[32])
{
    if (c->prefer == CLB_NO_PREFERENCE)
        return "not listed";
    snprintf(out, 32, "number %zu", c->prefer + 1);
    return out;
}

/* Whether b beats a; *rule and why say by what. */
static bool beats(const clb_registry *reg, const clb_component *a, const clb_component *b, const char **rule,
                  char why[160])
{
    const clb_candidate *const pa = &reg->candidates[a->candidate], *const pb = &reg->candidates[b->candidate];
    if (clb_candidate_linked_in(pa) != clb_candidate_linked_in(pb)) {
        *rule = "file";
        snprintf(why, 160, "a plugin file comes before a linked-in copy");
        return clb_candidate_linked_in(pa);
    }
    if (a->prefer != b->prefer) {
        char ta[32], tb[32];
        *rule = "prefer";
        snprintf(why, 160, "in the prefer list: %s against %s", prefer_text(a, ta), prefer_text(b, tb));
        return b->prefer < a->prefer;
    }
    if (a->rank != b->rank) {
        *rule = "rank";
        snprintf(why, 160, "rank %d against %d", a->rank, b->rank);
        return b->rank > a->rank;
    }
    if (a->iface == CLB_IFACE_MATMUL) {
        const uint32_t xa = ((const struct colibri_matmul *)a->table)->min_x;
        const uint32_t xb = ((const struct colibri_matmul *)b->table)->min_x;
        if (xa != xb) {
            *rule = "min-x";
            snprintf(why, 160, "same rank, made for at least %u rows against %u", xa, xb);
            return xb > xa;
        }
    }
    if (a->max_ulp != b->max_ulp) {
        *rule = "exact";
        snprintf(why, 160, "same rank, error up to %u ULP against %u", a->max_ulp, b->max_ulp);
        return b->max_ulp < a->max_ulp;
    }
    const int order = strcmp(pa->note.desc.id, pb->note.desc.id);
    *rule = "id";
    if (order) {
        snprintf(why, 160, "same rank and exactness: the plugin id that sorts first");
        return order > 0;
    }
    snprintf(why, 160, "same plugin, the one it lists first");
    return b->index < a->index;
}

clb_component *clb_select(clb_registry *reg, const clb_want *want, clb_verdict *trace)
{
    clb_component *best = NULL;
    for (size_t i = 0; i < reg->n_components; i++) {
        clb_component *const c = reg->components[i];
        if (!concerns(reg, c, want))
            continue;
        char why[160];
        const char *const reason = unfit(c, want, why), *rule;
        clb_verdict_add(trace, "candidate", !reason, "%s %s, rank %d, plugin %s (%s)%s%s",
                        clb_iface_get(c->iface)->name, c->name, c->rank, reg->candidates[c->candidate].note.desc.id,
                        clb_candidate_place(&reg->candidates[c->candidate]), reason ? ": " : "", reason ? reason : "");
        if (reason)
            continue;
        if (!best) {
            best = c;
            continue;
        }
        const bool second = beats(reg, best, c, &rule, why);
        clb_verdict_add(trace, rule, true, "%s or %s: %s: %s", best->name, c->name, why, second ? c->name : best->name);
        if (second)
            best = c;
    }
    return best;
}

clb_want clb_want_matmul(const struct colibri_format *format, uint32_t n_x)
{
    return (clb_want){.iface = CLB_IFACE_MATMUL,
                      .by_type = true,
                      .gguf_type = format->gguf_type,
                      .layout = format->layout,
                      .act = format->act,
                      .n_x = n_x};
}

uint32_t clb_x_class_rows(unsigned x_class)
{
    static const uint32_t rows[CLB_X_CLASSES] = {1, 2, 8,
                                                 UINT32_MAX}; /* the last one takes those meant for 1000, too */
    return rows[x_class];
}

uint32_t clb_select_rivals(clb_registry *reg, const clb_want *want, clb_component **out, uint32_t cap)
{
    clb_component *const first = clb_select(reg, want, NULL);
    if (!first)
        return 0;
    out[0] = first;
    uint32_t n = 1;
    for (size_t i = 0; first->max_ulp == COLIBRI_EXACT && i < reg->n_components; i++) {
        clb_component *const c = reg->components[i];
        char why[160];
        const char *rule;
        if (c == first || !concerns(reg, c, want) || unfit(c, want, why) || c->max_ulp != COLIBRI_EXACT ||
            c->prefer != first->prefer ||
            clb_candidate_linked_in(&reg->candidates[c->candidate]) !=
                clb_candidate_linked_in(&reg->candidates[first->candidate]))
            continue;
        uint32_t at = n;
        while (at > 1 && beats(reg, out[at - 1], c, &rule, why))
            at--;
        if (at == cap)
            continue;
        n = n < cap ? n + 1 : n;
        for (uint32_t k = n - 1; k > at; k--)
            out[k] = out[k - 1];
        out[at] = c;
    }
    return n;
}

/* ---- uses ------------------------------------------------------------------------------------------------- */

static size_t component_index(const clb_registry *reg, const clb_component *c)
{
    for (size_t i = 0; c && i < reg->n_components; i++)
        if (reg->components[i] == c)
            return i;
    return SIZE_MAX;
}

void clb_note_use(clb_registry *reg, const char *kind, const char *what, const clb_component *c)
{
    const size_t index = component_index(reg, c);
    for (size_t i = 0; i < reg->n_uses; i++)
        if (reg->uses[i].component == index && !strcmp(reg->uses[i].kind, kind) && !strcmp(reg->uses[i].what, what))
            return;
    for (size_t i = 0; i < reg->n_uses; i++)
        if (!strcmp(kind, "vecops") && !strcmp(reg->uses[i].kind, kind) && !strcmp(reg->uses[i].what, what)) {
            reg->uses[i].component = index;
            return;
        }
    clb_use *const uses = realloc(reg->uses, (reg->n_uses + 1) * sizeof *uses);
    if (!uses)
        return; /* a report loses a line */
    reg->uses = uses;
    const clb_use use = {strdup(kind), strdup(what), index};
    if (!use.kind || !use.what) {
        free(use.kind);
        free(use.what);
        return;
    }
    reg->uses[reg->n_uses++] = use;
    if (c && clb_candidate_linked_in(&reg->candidates[c->candidate]))
        clb_logf(reg->log, COLIBRI_LOG_WARN, "no plugin folder offers %s %s: using the built-in %sversion", kind, what,
                 c->iface == CLB_IFACE_FORMAT ? "scalar " : "");
}

void clb_registry_uses(const clb_registry *reg, clb_registry_use_fn fn, void *ctx)
{
    for (size_t i = 0; i < reg->n_uses; i++) {
        const clb_use *const u = &reg->uses[i];
        if (u->component == SIZE_MAX) {
            fn(ctx, u->kind, u->what, "reference", "core", "");
            continue;
        }
        const clb_component *const c = reg->components[u->component];
        const clb_candidate *const p = &reg->candidates[c->candidate];
        fn(ctx, u->kind, u->what, c->name, p->note.desc.id, clb_candidate_path(p) ? clb_candidate_path(p) : "");
    }
}

/* ---- formats and kernels ---------------------------------------------------------------------------------- */

void clb_check_prefer(clb_registry *reg)
{
    if (reg->prefer_checked)
        return;
    reg->prefer_checked = true;
    for (size_t p = 0; p < reg->n_prefer; p++) {
        bool hit = false;
        for (size_t i = 0; i < reg->n_candidates && !hit; i++)
            hit = reg->candidates[i].has_id && clb_id_matches(reg->prefer[p], reg->candidates[i].note.desc.id);
        for (size_t i = 0; i < reg->n_components && !hit; i++)
            hit = clb_id_matches(reg->prefer[p], reg->components[i]->name);
        if (!hit)
            clb_logf(reg->log, COLIBRI_LOG_WARN,
                     "[plugins] prefer: no plugin and no loaded component is called '%s' ('colibri plugins list' shows "
                     "what is there)",
                     reg->prefer[p]);
    }
}

static int format_missing(const clb_registry *reg, const char *label, clb_error *err)
{
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (c->state != CLB_PLUGIN_REJECTED || !c->has_note || !(c->note.desc.kinds & COLIBRI_KIND_FORMAT))
            continue;
        if (strcasestr(c->note.desc.id, label) || strcasestr(c->note.desc.summary, label))
            return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                            "no usable plugin offers quantization format %s: %s (%s) was rejected: %s", label,
                            c->note.desc.id, clb_candidate_place(c), c->reason ? c->reason : "no reason recorded");
    }
    return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                    "no plugin offers quantization format %s ('colibri plugins list' shows what is there)", label);
}

const struct colibri_format *clb_registry_format(clb_registry *reg, uint32_t gguf_type, clb_error *err)
{
    clb_registry_load_kinds(reg, COLIBRI_KIND_FORMAT);
    const clb_component *const c =
        clb_select(reg, &(clb_want){.iface = CLB_IFACE_FORMAT, .by_type = true, .gguf_type = gguf_type}, NULL);
    if (c) {
        clb_note_use(reg, "format", c->name, c);
        return c->table;
    }
    char number[32];
    snprintf(number, sizeof number, "%u (GGUF type)", gguf_type);
    format_missing(reg, clb_type_name(gguf_type) ? clb_type_name(gguf_type) : number, err);
    return NULL;
}

const struct colibri_format *clb_registry_format_named(clb_registry *reg, const char *name, clb_error *err)
{
    clb_registry_load_kinds(reg, COLIBRI_KIND_FORMAT);
    const clb_component *const c = clb_select(reg, &(clb_want){.iface = CLB_IFACE_FORMAT, .name = name}, NULL);
    if (c) {
        clb_note_use(reg, "format", c->name, c);
        return c->table;
    }
    format_missing(reg, name, err);
    return NULL;
}

const struct colibri_matmul *clb_registry_matmul(clb_registry *reg, const struct colibri_format *format, uint32_t n_x)
{
    clb_registry_load_kinds(reg, COLIBRI_KIND_KERNEL);
    clb_check_prefer(reg);
    const clb_want want = clb_want_matmul(format, n_x);
    const clb_component *const c = clb_select(reg, &want, NULL);
    clb_note_use(reg, "kernel", format->name, c);
    return c ? c->table : NULL;
}

void clb_registry_kernels(clb_registry *reg, const struct colibri_format *format, uint32_t n_rows, uint32_t n_cols,
                          const struct colibri_matmul *out[CLB_X_CLASSES])
{
    clb_component *chosen[CLB_X_CLASSES];
    clb_registry_load_kinds(reg, COLIBRI_KIND_KERNEL);
    clb_check_prefer(reg);
    if (reg->measure)
        clb_measure_decide(reg, format, n_rows, n_cols, chosen);
    for (unsigned c = 0; c < CLB_X_CLASSES; c++) {
        const clb_want want = clb_want_matmul(format, clb_x_class_rows(c));
        if (!reg->measure)
            chosen[c] = clb_select(reg, &want, NULL);
        clb_note_use(reg, "kernel", format->name, chosen[c]);
        out[c] = chosen[c] ? chosen[c]->table : NULL;
    }
}

/* ---- policies, predictors, strategies: by name ------------------------------------------------------------ */

clb_component *clb_select_named(clb_registry *reg, enum clb_iface iface, const char *name, clb_verdict *trace)
{
    const uint32_t kind = clb_iface_get(iface)->kind;
    const clb_want want = {.iface = iface, .name = name};
    /* A plugin's id usually ends with its component's name: then the others need not be loaded. What the user prefers
     * may offer the same name and must be heard. */
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (!(c->state == CLB_PLUGIN_AVAILABLE && c->note.desc.kinds & kind))
            continue;
        bool named = !strcmp(c->note.desc.id, name) || clb_id_ends_with(c->note.desc.id, name);
        for (size_t p = 0; p < reg->n_prefer && !named; p++)
            named = clb_id_matches(reg->prefer[p], c->note.desc.id);
        if (named)
            clb_candidate_load(reg, i);
    }
    if (!clb_select(reg, &want, NULL))
        clb_registry_load_kinds(reg, kind);
    return clb_select(reg, &want, trace);
}

static int named_missing(clb_registry *reg, enum clb_iface iface, const char *name, clb_error *err)
{
    const char *const kind = clb_iface_get(iface)->name;
    for (size_t i = 0; i < reg->n_candidates; i++) {
        const clb_candidate *const c = &reg->candidates[i];
        if (c->state == CLB_PLUGIN_REJECTED && c->has_id &&
            (!strcmp(c->note.desc.id, name) || clb_id_ends_with(c->note.desc.id, name)))
            return clb_fail(err, COLIBRI_E_NOT_FOUND, "%s '%s': plugin %s (%s) was rejected: %s", kind, name,
                            c->note.desc.id, clb_candidate_place(c), c->reason ? c->reason : "no reason recorded");
    }
    const char **const names = calloc(reg->n_components + 1, sizeof *names);
    clb_buf all = {0};
    size_t n = 0;
    for (size_t i = 0; names && i < reg->n_components; i++)
        if (reg->components[i]->iface == iface) {
            if (clb_buf_printf(&all, NULL, "%s%s", n ? ", " : "", reg->components[i]->name))
                break;
            names[n++] = reg->components[i]->name;
        }
    const long near = names ? clb_nearest(name, names, n) : -1;
    const int rc = clb_fail(err, COLIBRI_E_NOT_FOUND, "no %s is called '%s'%s%s%s (there are: %.700s)", kind, name,
                            near >= 0 ? "; did you mean '" : "", near >= 0 ? names[near] : "", near >= 0 ? "'?" : "",
                            n ? all.data : "none");
    clb_buf_free(&all);
    free(names);
    return rc;
}

static const void *named(clb_registry *reg, enum clb_iface iface, const char *name, clb_error *err)
{
    const clb_component *const c = clb_select_named(reg, iface, name, NULL);
    if (!c) {
        named_missing(reg, iface, name, err);
        return NULL;
    }
    clb_note_use(reg, clb_iface_get(iface)->name, c->name, c);
    return c->table;
}

const struct colibri_expert_policy *clb_registry_expert_policy(clb_registry *reg, const char *name, clb_error *err)
{
    return named(reg, CLB_IFACE_EXPERT_POLICY, name, err);
}

const struct colibri_predictor *clb_registry_predictor(clb_registry *reg, const char *name, clb_error *err)
{
    return named(reg, CLB_IFACE_PREDICTOR, name, err);
}

const struct colibri_kv_strategy *clb_registry_kv_strategy(clb_registry *reg, const char *name, clb_error *err)
{
    return named(reg, CLB_IFACE_KV_STRATEGY, name, err);
}
