/* colibri plugins list, info, why, cpu, paths. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "colibri/expert_policy.h"
#include "colibri/format.h"
#include "colibri/kv_strategy.h"
#include "colibri/predictor.h"
#include "cpu/cpu.h"
#include "cpu/topology.h"
#include "plugin/measure.h"
#include "plugin/note.h"
#include "plugins.h"

/* ---- output ----------------------------------------------------------------------------------------------- */

void clb_put(const char *text, int width)
{
    int n = 0;
    for (const char *p = text; *p; p++, n++)
        putchar((unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p);
    for (; n < width; n++)
        putchar(' ');
}

static void add_name(void *ctx, const char *name)
{
    json_array_append_new(ctx, json_string(name));
}

json_t *clb_json_cpu(struct colibri_cpu_bits bits)
{
    json_t *const a = json_array();
    clb_cpu_each(bits, add_name, a);
    return a;
}

json_t *clb_json_verdict(const clb_verdict *v)
{
    json_t *const a = json_array();
    for (size_t i = 0; i < v->n; i++)
        json_array_append_new(a, json_pack("{s:s, s:b, s:o}", "rule", v->checks[i].rule, "pass", v->checks[i].pass,
                                           "detail", clb_json_text(v->checks[i].detail)));
    return a;
}

static const char *base_name(const char *path)
{
    const char *const slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *label(const clb_plugin_view *p)
{
    return p->id ? p->id : p->path ? base_name(p->path) : "?";
}

static struct colibri_cpu_bits note_cpu(const struct colibri_note_desc *d)
{
    struct colibri_cpu_bits bits;
    for (size_t i = 0; i < COLIBRI_CPU_WORDS; i++)
        bits.w[i] = d->cpu[i];
    return bits;
}

static void set_optional(json_t *o, const char *key, const char *text)
{
    json_object_set_new(o, key, text ? clb_json_text(text) : json_null());
}

static json_t *plugin_json(const clb_plugin_view *p)
{
    json_t *const o = json_object();
    set_optional(o, "id", p->id);
    json_t *const kinds = json_array();
    for (uint32_t bit = 1; p->note && bit <= COLIBRI_KIND_ALL; bit <<= 1)
        if (p->note->kinds & bit)
            json_array_append_new(kinds, json_string(clb_kind_name(bit)));
    json_object_set_new(o, "kinds", kinds);
    if (p->note) {
        json_object_set_new(o, "version", clb_json_text(p->note->version));
        json_object_set_new(o, "rank", json_integer(p->note->rank));
        json_object_set_new(o, "abi", json_sprintf("%u.%u", p->note->abi_major, p->note->abi_minor));
        json_object_set_new(o, "cpu", clb_json_cpu(note_cpu(p->note)));
        json_object_set_new(o, "summary", clb_json_text(p->note->summary));
        json_object_set_new(o, "license", clb_json_text(p->note->license));
    }
    json_object_set_new(o, "state", json_string(clb_plugin_state_name(p->state)));
    set_optional(o, "reason", p->reason);
    set_optional(o, "path", p->path);
    json_object_set_new(o, "origin", json_string(p->origin));
    return o;
}

static json_t *paths_json(const clb_registry *reg)
{
    json_t *const a = json_array();
    for (size_t i = 0; i < clb_registry_n_dirs(reg); i++) {
        const clb_search_dir *const d = clb_registry_dir(reg, i);
        json_t *const o = json_object();
        json_object_set_new(o, "path", clb_json_text(d->path));
        json_object_set_new(o, "origin", json_string(d->origin));
        json_object_set_new(o, "searched", json_boolean(!d->refused));
        set_optional(o, "reason", d->refused);
        json_array_append_new(a, o);
    }
    return a;
}

/* ---- list ------------------------------------------------------------------------------------------------- */

static int list_json(const clb_registry *reg, clb_error *err)
{
    json_t *const plugins = json_array();
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view p;
        clb_registry_plugin(reg, i, &p);
        json_array_append_new(plugins, plugin_json(&p));
    }
    return clb_json_print(json_pack("{s:o, s:o, s:o}", "plugins", plugins, "cpu", clb_json_cpu(clb_registry_cpu(reg)),
                                    "paths", paths_json(reg)),
                          err);
}

/* Linked-in copies of what the folders offer are of no interest to anybody but a packager. */
static bool is_shown(const clb_plugin_view *p, bool all)
{
    return all || p->path || p->state != CLB_PLUGIN_SHADOWED;
}

int clb_plugins_list(const clb_registry *reg, bool all, bool json, clb_error *err)
{
    if (json)
        return list_json(reg, err);
    int kind_width = 4, id_width = 2;
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view p;
        char kinds[96];
        clb_registry_plugin(reg, i, &p);
        if (!is_shown(&p, all))
            continue;
        const int k = p.note ? (int)strlen(clb_kinds_format(p.note->kinds, kinds)) : 1, n = (int)strlen(label(&p));
        kind_width = k > kind_width ? k : kind_width;
        id_width = n > id_width ? n : id_width;
    }
    printf("%-*s  %-*s  %-8s  %6s  STATE\n", kind_width, "KIND", id_width, "ID", "VERSION", "RANK");
    size_t shown = 0, rejected = 0, refused = 0;
    for (size_t i = 0; i < clb_registry_n_plugins(reg); i++) {
        clb_plugin_view p;
        char kinds[96];
        clb_registry_plugin(reg, i, &p);
        if (!is_shown(&p, all))
            continue;
        shown++;
        rejected += p.state == CLB_PLUGIN_REJECTED;
        clb_put(p.note ? clb_kinds_format(p.note->kinds, kinds) : "-", kind_width + 2);
        clb_put(label(&p), id_width + 2);
        if (p.note)
            printf("%-8s  %6d  ", p.note->version, p.note->rank);
        else
            printf("%-8s  %6s  ", "-", "-");
        if (p.reason) {
            printf("%s: ", clb_plugin_state_name(p.state));
            clb_put(p.reason, 0);
        } else {
            fputs(clb_plugin_state_name(p.state), stdout);
        }
        puts(p.path ? "" : " (linked in)");
    }
    char cpu[CLB_CPU_TEXT_MAX];
    printf("cpu: %s\n", clb_cpu_format(clb_registry_cpu(reg), cpu));
    for (size_t i = 0; i < clb_registry_n_dirs(reg); i++) {
        const clb_search_dir *const d = clb_registry_dir(reg, i);
        refused += d->refused != NULL;
        if (d->refused)
            continue;
        fputs("path: ", stdout);
        clb_put(d->path, 0);
        putchar('\n');
    }
    printf("%zu plugin%s, %zu rejected", shown, shown == 1 ? "" : "s", rejected);
    if (refused)
        printf("; %zu folder%s not searched (colibri plugins paths)", refused, refused == 1 ? "" : "s");
    putchar('\n');
    return COLIBRI_OK;
}

/* ---- info ------------------------------------------------------------------------------------------------- */

/* The plugin of this id, or the only one whose id ends with ".word"; the taken one where several have the id. */
static int find_plugin(const clb_registry *reg, const char *word, size_t *out, clb_error *err)
{
    const size_t n = clb_registry_n_plugins(reg), m = strlen(word);
    const char **const ids = calloc(n + 1, sizeof *ids);
    if (!ids)
        return CLB_NOMEM(err, "the list of plugins");
    size_t n_ids = 0;
    int best = -1; /* how good the match is: exact id 2, end of the id 0; +1 if not shadowed */
    for (size_t i = 0; i < n; i++) {
        clb_plugin_view p;
        clb_registry_plugin(reg, i, &p);
        if (!p.id)
            continue;
        ids[n_ids++] = p.id;
        const size_t len = strlen(p.id);
        const bool exact = !strcmp(p.id, word),
                   ends = len > m && p.id[len - m - 1] == '.' && !strcmp(p.id + len - m, word);
        const int score = !exact && !ends ? -1 : (exact ? 2 : 0) + (p.state != CLB_PLUGIN_SHADOWED);
        if (score > best) {
            best = score;
            *out = i;
        }
    }
    const long near = best < 0 ? clb_nearest(word, ids, n_ids) : -1;
    int rc = COLIBRI_OK;
    if (best < 0)
        rc = clb_fail(err, COLIBRI_E_NOT_FOUND, "no plugin has the id '%.80s'%s%s%s", word,
                      near >= 0 ? "; did you mean '" : " ('colibri plugins list' shows them)",
                      near >= 0 ? ids[near] : "", near >= 0 ? "'?" : "");
    free(ids);
    return rc;
}

/* Parameters and texts of the kinds that have them. */
static void component_details(const clb_component_view *c, const struct colibri_param **params, uint32_t *n,
                              const char **summary, const char **source)
{
    *n = 0;
    *params = NULL;
    *summary = *source = NULL;
    if (c->iface == CLB_IFACE_EXPERT_POLICY) {
        const struct colibri_expert_policy *const t = c->table;
        *params = t->params, *n = t->n_params, *summary = t->summary, *source = t->source;
    } else if (c->iface == CLB_IFACE_PREDICTOR) {
        const struct colibri_predictor *const t = c->table;
        *params = t->params, *n = t->n_params, *summary = t->summary, *source = t->source;
    } else if (c->iface == CLB_IFACE_KV_STRATEGY) {
        const struct colibri_kv_strategy *const t = c->table;
        *params = t->params, *n = t->n_params, *summary = t->summary, *source = t->source;
    }
}

static json_t *component_json(const clb_component_view *c)
{
    json_t *const o = json_object();
    json_object_set_new(o, "interface", json_string(clb_iface_get(c->iface)->id));
    json_object_set_new(o, "name", clb_json_text(c->name));
    json_object_set_new(o, "usable", json_boolean(!c->unfit));
    set_optional(o, "reason", c->unfit);
    if (c->iface == CLB_IFACE_FORMAT) {
        const struct colibri_format *const f = c->table;
        json_object_set_new(o, "gguf_type", json_integer(f->gguf_type));
        json_object_set_new(o, "block_elems", json_integer(f->block_elems));
        json_object_set_new(o, "block_bytes", json_integer(f->block_bytes));
        json_object_set_new(o, "layout", json_string(f->layout == COLIBRI_LAYOUT_X16 ? "x16" : "rows"));
        json_object_set_new(o, "act", clb_json_text(f->act));
    } else if (c->iface == CLB_IFACE_MATMUL) {
        const struct colibri_matmul *const m = c->table;
        json_object_set_new(o, "gguf_type", json_integer(m->gguf_type));
        json_object_set_new(o, "rank", json_integer(m->rank));
        json_object_set_new(o, "max_ulp", json_integer(m->max_ulp));
        json_object_set_new(o, "min_x", json_integer(m->min_x));
        json_object_set_new(o, "layout", json_string(m->layout == COLIBRI_LAYOUT_X16 ? "x16" : "rows"));
        json_object_set_new(o, "act", clb_json_text(m->act));
    } else if (c->iface == CLB_IFACE_VECOPS) {
        const struct colibri_vecops *const v = c->table;
        json_t *const members = json_array();
        for (size_t i = 0; i < clb_n_vecop_members; i++) {
            const void *code;
            memcpy(&code, (const char *)v + clb_vecop_members[i].offset, sizeof code);
            if (code)
                json_array_append_new(members, json_string(clb_vecop_members[i].name));
        }
        json_object_set_new(o, "rank", json_integer(v->rank));
        json_object_set_new(o, "max_ulp", json_integer(v->max_ulp));
        json_object_set_new(o, "operations", members);
        json_object_set_new(o, "attention_takes", json_integer(v->attention_takes));
    }
    const struct colibri_param *params;
    uint32_t n;
    const char *summary, *source;
    component_details(c, &params, &n, &summary, &source);
    if (summary) {
        json_object_set_new(o, "summary", clb_json_text(summary));
        json_object_set_new(o, "source", clb_json_text(source));
        json_t *const a = json_array();
        for (uint32_t i = 0; i < n; i++)
            json_array_append_new(a,
                                  json_pack("{s:s, s:f, s:f, s:f, s:b, s:o}", "name", params[i].name, "min",
                                            params[i].min, "max", params[i].max, "default", params[i].value, "integer",
                                            params[i].integer != 0, "summary", clb_json_text(params[i].summary)));
        json_object_set_new(o, "params", a);
    }
    return o;
}

static void component_text(const clb_component_view *c)
{
    printf("  %-13s %s", clb_iface_get(c->iface)->name, c->name);
    char type[16];
    if (c->iface == CLB_IFACE_FORMAT) {
        const struct colibri_format *const f = c->table;
        printf("  (GGUF type %u, %u weights in %u bytes, %s layout, activations %s)", f->gguf_type, f->block_elems,
               f->block_bytes, f->layout == COLIBRI_LAYOUT_X16 ? "x16" : "row", f->act);
    } else if (c->iface == CLB_IFACE_MATMUL) {
        const struct colibri_matmul *const m = c->table;
        snprintf(type, sizeof type, "type %u", m->gguf_type);
        printf("  (%s, rank %d, %s", clb_type_name(m->gguf_type) ? clb_type_name(m->gguf_type) : type, m->rank,
               m->max_ulp ? "lossy" : "exact");
        if (m->min_x > 1)
            printf(", from %u rows", m->min_x);
        putchar(')');
    } else if (c->iface == CLB_IFACE_VECOPS) {
        const struct colibri_vecops *const v = c->table;
        printf("  (rank %d, %s:", v->rank, v->max_ulp ? "lossy" : "exact");
        for (size_t i = 0; i < clb_n_vecop_members; i++) {
            const void *code;
            memcpy(&code, (const char *)v + clb_vecop_members[i].offset, sizeof code);
            if (code)
                printf(" %s", clb_vecop_members[i].name);
        }
        char takes[64];
        if (v->attention_takes)
            printf("; keys and values also in %s", clb_attention_takes_text(v->attention_takes, takes));
        putchar(')');
    }
    if (c->unfit)
        printf("  unused: %s", c->unfit);
    putchar('\n');
    const struct colibri_param *params;
    uint32_t n;
    const char *summary, *source;
    component_details(c, &params, &n, &summary, &source);
    if (summary)
        printf("                %s\n                source: %s\n", summary, source);
    for (uint32_t i = 0; i < n; i++)
        printf("                %s = %g (%g..%g%s)  %s\n", params[i].name, params[i].value, params[i].min,
               params[i].max, params[i].integer ? ", whole numbers" : "", params[i].summary);
}

int clb_plugins_info(clb_registry *reg, const char *id, bool json, clb_error *err)
{
    size_t at = 0;
    CLB_TRY(find_plugin(reg, id, &at, err));
    clb_registry_load(reg, at);
    clb_plugin_view p;
    clb_registry_plugin(reg, at, &p);
    json_t *const components = json ? json_array() : NULL;
    if (!json) {
        char kinds[96], cpu[CLB_CPU_TEXT_MAX];
        printf("id:      %s\n", p.id);
        if (p.note)
            printf("version: %s\nkinds:   %s\nabi:     %u.%u\nrank:    %d\ncpu:     %s\nsummary: %s\nlicense: %s\n",
                   p.note->version, clb_kinds_format(p.note->kinds, kinds), p.note->abi_major, p.note->abi_minor,
                   p.note->rank, clb_cpu_format(note_cpu(p.note), cpu), p.note->summary, p.note->license);
        fputs("path:    ", stdout);
        clb_put(p.path ? p.path : "(linked in)", 0);
        printf("\norigin:  %s\nstate:   %s%s", p.origin, clb_plugin_state_name(p.state), p.reason ? ": " : "");
        clb_put(p.reason ? p.reason : "", 0);
        puts("\ncomponents:");
    }
    for (size_t i = 0; i < clb_registry_n_components(reg); i++) {
        clb_component_view c;
        clb_registry_component(reg, i, &c);
        if (c.plugin != at)
            continue;
        if (json)
            json_array_append_new(components, component_json(&c));
        else
            component_text(&c);
    }
    if (json) {
        json_t *const o = plugin_json(&p);
        json_object_set_new(o, "components", components);
        json_object_set_new(o, "checks", clb_json_verdict(p.verdict));
        return clb_json_print(o, err);
    }
    for (size_t i = 0; i < p.verdict->n; i++)
        if (!p.verdict->checks[i].pass) {
            printf("  %-13s ", p.verdict->checks[i].rule);
            clb_put(p.verdict->checks[i].detail, 0);
            putchar('\n');
        }
    return COLIBRI_OK;
}

/* ---- why, cpu, paths -------------------------------------------------------------------------------------- */

/* Times that decided, with select = measure. */
static json_t *measured_json(const clb_registry *reg)
{
    json_t *const a = json_array();
    for (size_t i = 0; i < clb_registry_n_measurements(reg); i++) {
        clb_measurement_view v;
        clb_registry_measurement(reg, i, &v);
        const clb_measure_record *const r = v.record;
        json_t *const times = json_array();
        for (uint32_t t = 0; t < r->n; t++)
            json_array_append_new(times, json_pack("{s:s, s:s, s:s, s:f}", "component", r->time[t].component, "plugin",
                                                   r->time[t].plugin, "version", r->time[t].version, "ms",
                                                   (double)r->time[t].ps * 1e-9));
        const char *const type = clb_type_name(r->key.type);
        json_t *const o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:s, s:s, s:s, s:o}", "format", type ? type : "?",
                                    "rows", (int)r->key.n_rows, "cols", (int)r->key.n_cols, "n_x", (int)r->key.n_x,
                                    "threads", (int)r->key.n_threads, "when", (json_int_t)r->when, "times",
                                    r->fresh ? "measured" : "remembered", "chosen", v.chosen, "by_rank", v.by_rank,
                                    "candidates", times);
        json_array_append_new(a, o);
    }
    return a;
}

int clb_plugins_why(clb_registry *reg, const char *name, bool json, clb_error *err)
{
    clb_verdict v = {0};
    const char *chosen;
    const int rc = clb_registry_explain(reg, name, &v, &chosen, err);
    if (rc) {
        clb_verdict_free(&v);
        return rc;
    }
    if (json) {
        json_t *const o = json_object();
        json_object_set_new(o, "name", clb_json_text(name));
        set_optional(o, "chosen", chosen);
        const clb_selection_stats s = clb_registry_selection(reg);
        json_object_set_new(o, "steps", clb_json_verdict(&v));
        json_object_set_new(o, "select", json_string(s.measure ? "measure" : "rank"));
        if (s.measure)
            json_object_set_new(o, "measured", measured_json(reg));
        clb_verdict_free(&v);
        return clb_json_print(o, err);
    }
    for (size_t i = 0; i < v.n; i++) {
        const bool heading = !strcmp(v.checks[i].rule, "plugin") || !strcmp(v.checks[i].rule, "rows");
        printf("%s%-10s %s ", heading ? "" : "  ", v.checks[i].rule, v.checks[i].pass ? "  " : "no");
        clb_put(v.checks[i].detail, 0);
        putchar('\n');
    }
    fputs("chosen: ", stdout);
    clb_put(chosen ? chosen : "nothing", 0);
    putchar('\n');
    clb_verdict_free(&v);
    return COLIBRI_OK;
}

int clb_plugins_cpu(struct colibri_cpu_bits usable, bool json, clb_error *err)
{
    struct colibri_cpu_bits detected;
    clb_topology t;
    clb_cpu_detect(&detected);
    clb_topology_read(&t);
    const struct colibri_cpu_bits masked = clb_cpu_minus(detected, usable);
    if (json)
        return clb_json_print(json_pack("{s:o, s:i, s:i, s:i, s:f, s:i, s:o, s:o, s:o}", "model",
                                        clb_json_text(t.model), "cores", (int)t.cores, "threads", (int)t.threads,
                                        "numa_nodes", (int)t.numa, "quota", t.quota, "default_threads",
                                        (int)clb_topology_default_threads(&t), "usable", clb_json_cpu(usable), "masked",
                                        clb_json_cpu(masked), "known", clb_json_cpu(clb_cpu_known())),
                              err);
    char text[CLB_CPU_TEXT_MAX];
    printf("model:   %s\ncores:   %u (%u hardware threads, %u NUMA node%s)\n", t.model, t.cores, t.threads, t.numa,
           t.numa == 1 ? "" : "s");
    if (t.quota > 0)
        printf("quota:   %.2f CPUs (cgroup)\n", t.quota);
    printf("default: %u threads\n", clb_topology_default_threads(&t));
    printf("usable:  %s\n", clb_cpu_format(usable, text));
    if (!clb_cpu_empty(masked))
        printf("masked:  %s\n", clb_cpu_format(masked, text));
    printf("lacking: %s\n", clb_cpu_format(clb_cpu_minus(clb_cpu_known(), detected), text));
    return COLIBRI_OK;
}

int clb_plugins_paths(const clb_registry *reg, bool json, clb_error *err)
{
    if (json)
        return clb_json_print(json_pack("{s:o}", "paths", paths_json(reg)), err);
    for (size_t i = 0; i < clb_registry_n_dirs(reg); i++) {
        const clb_search_dir *const d = clb_registry_dir(reg, i);
        size_t files = 0;
        for (size_t k = 0; k < clb_registry_n_plugins(reg); k++) {
            clb_plugin_view p;
            clb_registry_plugin(reg, k, &p);
            files += p.path && p.dir == i;
        }
        clb_put(*d->path ? d->path : "(empty)", 0);
        printf("  (%s)  ", d->origin);
        if (d->refused) {
            fputs("not searched: ", stdout);
            clb_put(d->refused, 0);
            putchar('\n');
        } else {
            printf("%zu file%s\n", files, files == 1 ? "" : "s");
        }
    }
    return COLIBRI_OK;
}
