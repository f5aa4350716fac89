/* The page: quality against what is kept, where needles are found, what stays over time, cost, and every number. */
#include "compare_kv_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- who gets which colour ---- */

/* Mean rank over budgets on the first task, so that no single budget decides; 0 is best. */
static double badness(const clb_kvc *c, uint32_t name)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t b = 0; b < c->n_sizes && c->n_tasks; b++) {
        const enum clb_kvc_metric m = clb_kvc_main_metric(c->tasks[0].kind);
        const bool higher = clb_kvc_metric_get(m).better == CLB_KVC_HIGHER;
        const uint32_t s = clb_kvc_cell(c, name, b);
        if (s == CLB_KVC_NONE || !clb_kvc_mean_of(c, s, 0, m)->n)
            continue;
        const double v = clb_kvc_mean_of(c, s, 0, m)->value;
        for (uint32_t k = 0; k < c->n_names; k++) {
            const uint32_t other = clb_kvc_cell(c, k, b);
            const double w = other == CLB_KVC_NONE ? (double)NAN : clb_kvc_mean_of(c, other, 0, m)->value;
            sum += higher ? w > v : w < v;
        }
        n++;
    }
    return n ? sum / n : (double)UINT32_MAX;
}

static int choose_styles(struct kvc_html *h)
{
    const clb_kvc *const c = h->c;
    const size_t n = c->n_names, points = c->n_sizes + 2u;
    h->css = calloc(n + 1, sizeof *h->css);
    h->order = calloc(n + 1, sizeof *h->order);
    h->x = calloc(points * 4, sizeof *h->x);
    double *const bad = calloc(n + 1, sizeof *bad);
    if (!h->css || !h->order || !h->x || !bad) {
        free(bad);
        return COLIBRI_E_NOMEM;
    }
    h->y = h->x + points;
    h->low = h->y + points;
    h->high = h->low + points;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t at = k;
        bad[k] = badness(c, k);
        for (; at && bad[h->order[at - 1]] > bad[k]; at--)
            h->order[at] = h->order[at - 1];
        h->order[at] = k;
    }
    free(bad);
    uint32_t next = 2;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = h->order[i];
        const char *const name = c->names[k];
        if (k == c->baseline)
            snprintf(h->css[k], sizeof h->css[k], "opt");
        else if (!strncmp(name, "oracle", 6))
            snprintf(h->css[k], sizeof h->css[k], "opt2");
        else if (!strcmp(name, "important-tokens") || !strcmp(name, "sliding-window"))
            snprintf(h->css[k], sizeof h->css[k], *name == 'i' ? "s0" : "s1");
        else if (next < 12 && strncmp(name, "random", 6) != 0) {
            snprintf(h->css[k], sizeof h->css[k], next < 6 ? "s%u" : "s%u dash", next % 6);
            next++;
        } else
            snprintf(h->css[k], sizeof h->css[k], "grey");
    }
    return COLIBRI_OK;
}

uint32_t clb_kvc_html_setting(const struct kvc_html *h, uint32_t k, uint32_t size)
{
    return clb_kvc_cell(h->c, h->order[k], size);
}

void clb_kvc_html_legend(struct kvc_html *h, uint32_t task)
{
    clb_page *const g = &h->page;
    const enum clb_kvc_metric m = clb_kvc_main_metric(h->c->tasks[task].kind);
    clb_page_add(g, "<div class=\"legend\">");
    for (uint32_t k = 0; k < h->c->n_names; k++) {
        bool any = false;
        for (uint32_t b = 0; b < h->c->n_sizes && !any; b++) {
            const uint32_t s = clb_kvc_html_setting(h, k, b);
            any = s != CLB_KVC_NONE && clb_kvc_mean_of(h->c, s, task, m)->n;
        }
        if (!any)
            continue;
        clb_page_add(g, "<span class=\"%s\" data-series=\"k%u\"><i></i>", h->css[h->order[k]], h->order[k]);
        clb_page_text(g, h->c->names[h->order[k]]);
        clb_page_add(g, "</span>");
    }
    clb_page_add(g, "</div>\n");
}

kvc_point clb_kvc_point(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric)
{
    if (setting == CLB_KVC_NONE)
        return (kvc_point){0};
    const clb_interval *const v = clb_kvc_mean_of(c, setting, task, metric);
    if (metric == CLB_KVC_PERPLEXITY && c->baseline != CLB_KVC_NONE) {
        const clb_kvc_pair *const p = clb_kvc_against(c, setting, task, metric);
        if (clb_kvc_baseline_of(c, setting) == setting && v->n)
            return (kvc_point){.present = true, .value = 1, .low = 1, .high = 1, .n = v->n};
        return (kvc_point){.present = p->n > 0, .value = p->change, .low = p->low, .high = p->high, .n = p->n};
    }
    return (kvc_point){.present = v->n > 0, .value = v->value, .low = v->low, .high = v->high, .n = v->n};
}

/* ---- tables ---- */

static void table(struct kvc_html *h, uint32_t task, enum clb_kvc_table_kind kind)
{
    clb_page *const g = &h->page;
    clb_kvc_table t;
    clb_error err;
    if (clb_kvc_table_make(h->c, task, kind, &t, &err))
        g->failed = g->failed ? g->failed : COLIBRI_E_NOMEM;
    clb_page_add(g, "<div class=\"scroll\"><table>");
    for (uint32_t r = 0; !g->failed && r <= t.n_rows; r++) {
        const bool next = r > 1 && h->c->settings[t.settings[r]].size != h->c->settings[t.settings[r - 1]].size;
        clb_page_add(g, "<tr%s>", next ? " class=\"next\"" : "");
        for (uint32_t k = 0; k < t.used; k++) {
            clb_page_add(g, r ? "<td>" : "<th>");
            clb_page_text(g, clb_kvc_table_cell(&t, r, k));
            clb_page_add(g, r ? "</td>" : "</th>");
        }
        clb_page_add(g, "</tr>\n");
    }
    clb_page_add(g, "</table></div>\n");
    clb_kvc_table_free(&t);
}

static void figure_table(struct kvc_html *h, uint32_t task)
{
    clb_page *const g = &h->page;
    const clb_kvc_task *const t = &h->c->tasks[task];
    clb_page_add(g, "<figure class=\"wide\"><figcaption><b>All results: %s ", clb_kvc_kind_name(t->kind));
    clb_page_text(g, t->name);
    clb_page_add(g,
                 "</b>, %u items. \"?\": a verdict that does not survive Holm's correction over all settings. Would "
                 "have shown: the smallest true difference that four of five such comparisons see.</figcaption>\n",
                 t->n_items);
    table(h, task, CLB_KVC_QUALITY);
    clb_page_add(g, "<figcaption><b>Cost.</b> Kept: share of the item's own positions at its end.</figcaption>");
    table(h, task, CLB_KVC_COST);
    clb_page_add(g, "</figure>\n");
}

/* ---- all against all ---- */

static const clb_kvc_judgement *find_pair(const clb_kvc *c, uint32_t task, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        const clb_kvc_judgement *const j = &c->pairs[i];
        if (j->task == task && ((j->pair.a == a && j->pair.b == b) || (j->pair.a == b && j->pair.b == a)))
            return j;
    }
    return NULL;
}

/* The row's strategy against the column's. */
static void pair_cell(struct kvc_html *h, uint32_t task, uint32_t row, uint32_t column)
{
    clb_page *const g = &h->page;
    const clb_kvc_judgement *const j = row == column ? NULL : find_pair(h->c, task, row, column);
    if (!j || !j->pair.n) {
        clb_page_add(g, "<td></td>");
        return;
    }
    const bool ratio = clb_kvc_metric_get(j->metric).average == CLB_KVC_LOG, turned = j->pair.a == row;
    const bool claim = clb_kvc_claims(&j->pair), better = (j->pair.verdict == CLB_WIN) != turned;
    const double v = !turned ? j->pair.change : ratio ? 1 / j->pair.change : -j->pair.change;
    clb_page_add(g, "<td class=\"%s\" title=\"p (Holm) %.3g, %u items\">",
                 !claim   ? "tie"
                 : better ? "win"
                          : "loss",
                 j->pair.p_holm, j->pair.n);
    clb_page_add(g, ratio ? "%.3fx</td>" : "%+.1f</td>", v);
}

static void pairs_pane(struct kvc_html *h, uint32_t task, uint32_t size)
{
    clb_page *const g = &h->page;
    const clb_kvc *const c = h->c;
    clb_page_add(g, "<div class=\"pane scroll\"><table class=\"pairs\"><tr><th>at ");
    clb_page_text(g, *c->sizes[size] ? c->sizes[size] : "the whole cache");
    clb_page_add(g, "</th>");
    for (int head = 1; head >= 0; head--)
        for (uint32_t i = 0, at = 0; i < c->n_names; i++) {
            const uint32_t s = clb_kvc_html_setting(h, i, size);
            if (s == CLB_KVC_NONE || !clb_kvc_mean_of(c, s, task, clb_kvc_main_metric(c->tasks[task].kind))->n)
                continue;
            at++;
            if (head) {
                clb_page_add(g, "<th>%u</th>", at);
                continue;
            }
            clb_page_add(g, "</tr>\n<tr><td>%u ", at);
            clb_page_text(g, c->names[h->order[i]]);
            clb_page_add(g, "</td>");
            for (uint32_t k = 0; k < c->n_names; k++) {
                const uint32_t o = clb_kvc_html_setting(h, k, size);
                if (o != CLB_KVC_NONE && clb_kvc_mean_of(c, o, task, clb_kvc_main_metric(c->tasks[task].kind))->n)
                    pair_cell(h, task, s, o);
            }
        }
    clb_page_add(g, "</tr></table></div>\n");
}

static bool has_pairs(const clb_kvc *c, uint32_t task, uint32_t size)
{
    for (uint32_t i = 0; i < c->n_pairs; i++)
        if (c->pairs[i].task == task && c->pairs[i].size == size)
            return true;
    return false;
}

static void figure_pairs(struct kvc_html *h, uint32_t task)
{
    clb_page *const g = &h->page;
    const clb_kvc *const c = h->c;
    uint32_t n = 0;
    for (uint32_t b = 0; b < c->n_sizes; b++)
        n += has_pairs(c, task, b);
    if (!n)
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, n / 2);
    for (uint32_t b = 0; b < c->n_sizes; b++)
        if (has_pairs(c, task, b))
            clb_page_tab(g, *c->sizes[b] ? c->sizes[b] : "all");
    clb_page_add(g, "</div>");
    for (uint32_t b = 0; b < c->n_sizes; b++)
        if (has_pairs(c, task, b))
            pairs_pane(h, task, b);
    clb_page_add(g, "<figcaption><b>Each against each: ");
    clb_page_text(g, c->tasks[task].name);
    clb_page_add(g,
                 "</b>, %s, the row against the column. Coloured: better or worse after Holm's correction over all "
                 "pairs of this budget.</figcaption></figure>\n",
                 clb_kvc_metric_get(clb_kvc_main_metric(c->tasks[task].kind)).text);
}

/* ---- head, file ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *const text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void head(struct kvc_html *h)
{
    clb_page *const g = &h->page;
    const clb_kvc *const c = h->c;
    const json_t *const d = json_object_get(c->header, "decides"), *const m = json_object_get(c->header, "machine");
    clb_page_begin(g, "KV strategies compared");
    clb_page_add(g, "<p>");
    clb_page_text(g, text_of(d, "model"));
    clb_page_add(g, " &middot; ");
    clb_page_text(g, text_of(d, "arch"));
    clb_page_add(g, " &middot; ");
    clb_page_text(g, text_of(d, "model_hash"));
    clb_page_add(g, " &middot; ");
    clb_page_text(g, text_of(m, "cpu"));
    clb_page_add(g, ", %lld thread(s) &middot; colibri ", (long long)json_integer_value(json_object_get(m, "threads")));
    clb_page_text(g, text_of(m, "version"));
    clb_page_add(g, " &middot; ");
    clb_page_text(g, text_of(c->header, "date"));
    clb_page_add(g, " &middot; seed %lld</p><p>%u strategies, %u settings, %u tasks with %u items; %u of %u results. ",
                 (long long)json_integer_value(json_object_get(d, "seed")), c->n_names, c->n_settings, c->n_tasks,
                 c->n_items, c->n_records, c->n_settings * c->n_items);
    clb_page_add(g,
                 "Prompts are read in pieces of %lld tokens%s. Intervals: 95 %%, items resampled %u times; differences "
                 "are paired.</p>",
                 (long long)json_integer_value(json_object_get(d, "chunk")),
                 json_is_true(json_object_get(d, "see_question"))
                     ? " and compressed when the question is known"
                     : ", so that dropping happens before the question is known",
                 c->resamples ? c->resamples : CLB_BOOTSTRAP_RESAMPLES);
    char bad[320];
    for (uint32_t s = 0; s < c->n_settings; s++)
        if (clb_kvc_bad_text(c, s, bad, sizeof bad)) {
            clb_page_add(g, "<p><b>Warning: ");
            clb_page_text(g, bad);
            clb_page_add(g, "</b></p>");
        }
    if (c->other_machine)
        clb_page_add(g, "<p><b>Parts ran on different machines or versions: do not compare their speeds.</b></p>");
    if (c->interrupted)
        clb_page_add(g, "<p><b>Stopped on request: what is complete is shown.</b></p>");
    clb_page_main(g);
}

int clb_kvc_write_html(const clb_kvc *c, const char *path, bool replace, clb_error *err)
{
    struct kvc_html h = {.c = c};
    h.page.failed = choose_styles(&h);
    if (!h.page.failed) {
        head(&h);
        for (uint32_t t = 0; t < c->n_tasks; t++) {
            clb_kvc_figure_quality(&h, t);
            clb_kvc_figure_against(&h, t);
            clb_kvc_figure_groups(&h, t);
            clb_kvc_figure_needle(&h, t);
        }
        clb_kvc_figure_rasters(&h);
        for (uint32_t t = 0; t < c->n_tasks; t++)
            clb_kvc_figure_cost(&h, t);
        for (uint32_t t = 0; t < c->n_tasks; t++) {
            figure_pairs(&h, t);
            figure_table(&h, t);
        }
        clb_page_end(&h.page);
    }
    const int rc = clb_page_save(&h.page, path, replace, err);
    free(h.css);
    free(h.order);
    free(h.x);
    return rc;
}
