/* The tables of all reports: one model of them, written as text, Markdown and HTML. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "compare_kv_table.h"

#define MOST_GROUPS 8u /* as columns; needle grids go into the heat map */

struct filler {
    const clb_kvc *c;
    clb_kvc_table *t;
    uint32_t column;
    int rc;
};

static void put(struct filler *f, uint32_t row, const char *fmt, ...) CLB_PRINTF(3, 4);
static void put(struct filler *f, uint32_t row, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    char **const cell = &f->t->cells[(size_t)row * f->t->n_columns + f->column];
    free(*cell); /* of a column that was written twice */
    *cell = strdup(text);
    if (!*cell)
        f->rc = COLIBRI_E_NOMEM;
}

/* A number with three to four digits that say something. */
static const char *show(double v, const char *unit, char out[32])
{
    if (!isfinite(v))
        snprintf(out, 32, "-");
    else if (!strcmp(unit, "%"))
        snprintf(out, 32, "%.1f", v);
    else if (fabs(v) >= 1000)
        snprintf(out, 32, "%.0f", v);
    else if (fabs(v) >= 100)
        snprintf(out, 32, "%.1f", v);
    else if (fabs(v) >= 0.1 || v == 0)
        snprintf(out, 32, fabs(v) >= 10 ? "%.1f" : "%.3f", v);
    else
        snprintf(out, 32, "%.2e", v);
    return out;
}

static void head(struct filler *f, const char *text)
{
    put(f, 0, "%s", text);
}

static void interval_cells(struct filler *f, const clb_interval *v, const char *name, const char *unit, bool with_range)
{
    char a[32], b[32];
    const uint32_t row = f->t->row;
    if (row == 0) {
        put(f, 0, *unit ? "%s, %s" : "%s", name, unit);
    } else if (v) {
        put(f, row, "%s", v->n ? show(v->value, unit, a) : "-");
    }
    f->column++;
    if (!with_range)
        return;
    if (row == 0)
        head(f, "95 %");
    else if (v && v->n > 1)
        put(f, row, "%s .. %s", show(v->low, unit, a), show(v->high, unit, b));
    else
        put(f, row, "-");
    f->column++;
}

static void metric_cells(struct filler *f, uint32_t setting, enum clb_kvc_metric metric, bool with_range)
{
    const clb_kvc_metric_info info = clb_kvc_metric_get(metric);
    const clb_interval *const v = setting == CLB_KVC_NONE ? NULL : clb_kvc_mean_of(f->c, setting, f->t->task, metric);
    interval_cells(f, v, info.text, info.unit, with_range);
}

/* Change against the baseline with its interval, what remains of p, and the word. */
static void against_cells(struct filler *f, uint32_t setting, enum clb_kvc_metric metric)
{
    char a[32], b[32];
    const uint32_t row = f->t->row;
    const clb_kvc_metric_info info = clb_kvc_metric_get(metric);
    const bool ratio = info.average == CLB_KVC_LOG;
    if (row == 0) {
        put(f, 0, ratio ? "to %.60s" : "minus %.60s", f->c->names[f->c->baseline]);
        f->column++;
        head(f, "95 %");
        f->column++;
        head(f, "p (Holm)");
        f->column++;
        head(f, "verdict");
        f->column++;
        head(f, "would have shown");
        f->column++;
        return;
    }
    const clb_kvc_pair *const p = clb_kvc_against(f->c, setting, f->t->task, metric);
    const bool any = p->n > 0;
    put(f, row, any ? ratio ? "%.4fx" : "%+.1f" : "-", p->change);
    f->column++;
    if (p->n > 1)
        put(f, row, ratio ? "%.4f .. %.4f" : "%+.1f .. %+.1f", p->low, p->high);
    else
        put(f, row, "-");
    f->column++;
    if (p->n > 1)
        put(f, row, p->p_holm < 0.001 ? "%.1e" : "%.3f", p->p_holm);
    else
        put(f, row, "-");
    f->column++;
    put(f, row, "%s%s", p->n > 1 ? clb_verdict_name(p->verdict) : "-",
        p->n > 1 && p->verdict != CLB_TIE && !clb_kvc_claims(p) ? "?" : "");
    f->column++;
    if (ratio && isfinite(p->detectable))
        put(f, row, "%s %%", show(100 * p->detectable, "", a));
    else
        put(f, row, "%s", show(p->detectable, info.unit, b));
    f->column++;
}

static void group_cells(struct filler *f, uint32_t setting)
{
    const clb_kvc_task *const k = &f->c->tasks[f->t->task];
    const char *const unit = clb_kvc_metric_get(clb_kvc_main_metric(k->kind)).unit;
    char a[32];
    if (k->n_groups < 2 || k->n_groups > MOST_GROUPS)
        return;
    for (uint32_t g = 0; g < k->n_groups; g++, f->column++) {
        const clb_interval *const v = setting == CLB_KVC_NONE ? NULL : clb_kvc_group_mean(f->c, setting, f->t->task, g);
        if (!v)
            head(f, k->groups[g].label);
        else
            put(f, f->t->row, "%s", v->n ? show(v->value, unit, a) : "-");
    }
}

static void quality_row(struct filler *f, uint32_t setting)
{
    const enum clb_kvc_kind kind = f->c->tasks[f->t->task].kind;
    const enum clb_kvc_metric main = clb_kvc_main_metric(kind);
    metric_cells(f, setting, CLB_KVC_RETAINED, false);
    metric_cells(f, setting, main, true);
    group_cells(f, setting);
    if (kind == CLB_KVC_TEXT) {
        metric_cells(f, setting, CLB_KVC_KL, true);
        metric_cells(f, setting, CLB_KVC_KL_P99, false);
        metric_cells(f, setting, CLB_KVC_SAME_TOP, false);
    } else {
        metric_cells(f, setting, CLB_KVC_TOKENS, false);
    }
    if (f->c->baseline != CLB_KVC_NONE)
        against_cells(f, setting, main);
    if (f->t->row == 0)
        head(f, "items");
    else
        put(f, f->t->row, "%u", clb_kvc_mean_of(f->c, setting, f->t->task, main)->n);
    f->column++;
}

static void cost_row(struct filler *f, uint32_t setting)
{
    metric_cells(f, setting, CLB_KVC_RETAINED, true);
    metric_cells(f, setting, CLB_KVC_BYTES, false);
    metric_cells(f, setting, CLB_KVC_PEAK, false);
    metric_cells(f, setting, CLB_KVC_DECODE, true);
    metric_cells(f, setting, CLB_KVC_PREFILL, true);
    metric_cells(f, setting, CLB_KVC_ATTENTION, true);
}

static void fill_row(struct filler *f, enum clb_kvc_table_kind kind, uint32_t setting)
{
    f->column = 0;
    if (setting == CLB_KVC_NONE) {
        head(f, "strategy");
        f->column++;
        head(f, "budget");
    } else {
        put(f, f->t->row, "%s", f->c->names[f->c->settings[setting].name]);
        f->column++;
        put(f, f->t->row, "%s", *f->c->settings[setting].budget ? f->c->settings[setting].budget : "all");
    }
    f->column++;
    if (kind == CLB_KVC_QUALITY)
        quality_row(f, setting);
    else
        cost_row(f, setting);
}

static bool measured(const clb_kvc *c, uint32_t setting, uint32_t task)
{
    for (int m = 0; m < CLB_KVC_METRIC_COUNT; m++)
        if (clb_kvc_mean_of(c, setting, task, (enum clb_kvc_metric)m)->n)
            return true;
    return false;
}

int clb_kvc_table_make(const clb_kvc *c, uint32_t task, enum clb_kvc_table_kind kind, clb_kvc_table *out,
                       clb_error *err)
{
    *out = (clb_kvc_table){.task = task, .n_columns = 24 + MOST_GROUPS};
    uint32_t *const order = malloc(((size_t)c->n_settings + 1) * sizeof *order);
    out->cells = calloc(((size_t)c->n_settings + 1) * out->n_columns, sizeof *out->cells);
    out->settings = calloc((size_t)c->n_settings + 1, sizeof *out->settings);
    struct filler f = {.c = c, .t = out, .rc = order && out->cells && out->settings ? COLIBRI_OK : COLIBRI_E_NOMEM};
    if (!f.rc) {
        clb_kvc_order(c, order);
        fill_row(&f, kind, CLB_KVC_NONE);
        out->used = f.column;
        for (uint32_t i = 0; i < c->n_settings; i++)
            if (measured(c, order[i], task)) {
                out->settings[++out->row] = order[i];
                fill_row(&f, kind, order[i]);
            }
        out->n_rows = out->row;
    }
    free(order);
    return f.rc ? CLB_NOMEM(err, "a table") : COLIBRI_OK;
}

const char *clb_kvc_table_cell(const clb_kvc_table *t, uint32_t row, uint32_t column)
{
    const char *const text = t->cells[(size_t)row * t->n_columns + column];
    return text ? text : "";
}

void clb_kvc_table_free(clb_kvc_table *t)
{
    for (size_t i = 0; t->cells && i < ((size_t)t->n_rows + 1) * t->n_columns; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->settings);
    *t = (clb_kvc_table){0};
}
