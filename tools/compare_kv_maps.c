/* Maps: which distances survive, where needles are found, which positions stay over time. */
#include <math.h>
#include <string.h>

#include "compare_kv_html.h"

#define LEVELS 5 /* of a raster */

static const char *size_text(const clb_kvc *c, uint32_t size)
{
    return *c->sizes[size] ? c->sizes[size] : "all";
}

static void cell(clb_page *g, double x, double y, double w, double h, const clb_interval *v, const char *what,
                 bool number)
{
    if (!v->n) {
        clb_page_add(g, "<rect class=\"empty\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", x, y, w, h);
        return;
    }
    const double share = fmin(fmax(v->value / 100, 0), 1);
    clb_page_add(
        g,
        "<rect fill=\"var(--s0)\" fill-opacity=\"%.2f\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>",
        0.04 + 0.92 * share, x, y, w, h);
    clb_page_text(g, what);
    clb_page_add(g, ": %.1f %% (%.1f to %.1f), %u item%s</title></rect>", v->value, v->low, v->high, v->n,
                 v->n == 1 ? "" : "s");
    if (number)
        clb_page_add(g, "<text class=\"cell\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\"%s>%.0f</text>", x + w / 2,
                     y + h / 2 + 4, share > 0.55 ? " style=\"fill:var(--bg)\"" : "", v->value);
}

static bool has_depths(const clb_kvc_task *t)
{
    for (uint32_t g = 0; g < t->n_groups; g++)
        if (isfinite(t->groups[g].depth))
            return true;
    return false;
}

/* ---- exact match by distance: strategies x groups, a pane per budget ---- */

static bool has_groups(const struct kvc_html *h, uint32_t task, uint32_t k, uint32_t size)
{
    const clb_kvc *const c = h->c;
    const uint32_t s = clb_kvc_html_setting(h, k, size);
    for (uint32_t g = 0; s != CLB_KVC_NONE && g < c->tasks[task].n_groups; g++)
        if (clb_kvc_group_mean(c, s, task, g)->n)
            return true;
    return false;
}

static void groups_pane(struct kvc_html *h, uint32_t task, uint32_t size)
{
    const clb_kvc *const c = h->c;
    const clb_kvc_task *const t = &c->tasks[task];
    clb_page *const g = &h->page;
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_names; k++)
        n += has_groups(h, task, k, size);
    const double row = 22, left = 230, width = (1200 - left - 16) / t->n_groups;
    clb_page_add(g, "<svg viewBox=\"0 0 1200 %.0f\" role=\"img\" aria-label=\"by group\">\n", row * n + 40);
    for (uint32_t k = 0, at = 0; k < c->n_names; k++) {
        if (!has_groups(h, task, k, size))
            continue;
        const uint32_t s = clb_kvc_html_setting(h, k, size);
        clb_page_add(g, "<text text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">", left - 8, 4 + row * at + row / 2 + 4);
        clb_page_text(g, c->names[h->order[k]]);
        clb_page_add(g, "</text>");
        for (uint32_t i = 0; i < t->n_groups; i++)
            cell(g, left + width * i + 1, 4 + row * at + 1, width - 2, row - 2, clb_kvc_group_mean(c, s, task, i),
                 t->groups[i].label, true);
        clb_page_add(g, "\n");
        at++;
    }
    for (uint32_t i = 0; i < t->n_groups; i++) {
        clb_page_add(g, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">", left + width * (i + 0.5),
                     row * n + 24);
        clb_page_text(g, t->groups[i].label);
        clb_page_add(g, "</text>");
    }
    clb_page_add(g, "</svg>\n");
}

static bool any_groups(const struct kvc_html *h, uint32_t task, uint32_t size)
{
    for (uint32_t k = 0; k < h->c->n_names; k++)
        if (has_groups(h, task, k, size))
            return true;
    return false;
}

void clb_kvc_figure_groups(struct kvc_html *h, uint32_t task)
{
    const clb_kvc *const c = h->c;
    const clb_kvc_task *const t = &c->tasks[task];
    clb_page *const g = &h->page;
    uint32_t n = 0;
    if (t->kind == CLB_KVC_TEXT || t->n_groups < 2 || t->n_groups > 24 || has_depths(t))
        return;
    for (uint32_t b = 0; b < c->n_sizes; b++)
        n += any_groups(h, task, b);
    if (!n)
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, n / 2);
    for (uint32_t b = 0; b < c->n_sizes; b++)
        if (any_groups(h, task, b))
            clb_page_tab(g, size_text(c, b));
    clb_page_add(g, "</div>");
    for (uint32_t b = 0; b < c->n_sizes; b++)
        if (any_groups(h, task, b)) {
            clb_page_add(g, "<div class=\"pane\"><p class=\"sub\">budget %s</p>", size_text(c, b));
            groups_pane(h, task, b);
            clb_page_add(g, "</div>");
        }
    clb_page_add(g, "<figcaption><b>Exact match (%%) by distance: ");
    clb_page_text(g, t->name);
    clb_page_add(g, ".</b></figcaption></figure>\n");
}

/* ---- needles: depth x length, small maps side by side, a pane per strategy ---- */

static uint32_t distinct(const clb_kvc_task *t, bool depth, double *out, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        const double v = depth ? t->groups[g].depth : t->groups[g].length;
        uint32_t at = 0;
        while (at < n && out[at] < v)
            at++;
        if (isnan(v) || (at < n && !(out[at] > v)) || n == cap)
            continue;
        memmove(&out[at + 1], &out[at], (n - at) * sizeof *out);
        out[at] = v;
        n++;
    }
    return n;
}

#define MOST_AXIS 32u

static void needle_map(struct kvc_html *h, uint32_t task, uint32_t setting, double x0, double width)
{
    const clb_kvc *const c = h->c;
    const clb_kvc_task *const t = &c->tasks[task];
    clb_page *const g = &h->page;
    double lengths[MOST_AXIS + 1], depths[MOST_AXIS + 1];
    const uint32_t n_lengths = distinct(t, false, lengths, MOST_AXIS), n_depths = distinct(t, true, depths, MOST_AXIS);
    const double w = width / (n_lengths ? n_lengths : 1), row = 24;
    for (uint32_t i = 0; i < t->n_groups; i++) {
        const clb_kvc_group *const k = &t->groups[i];
        uint32_t x = 0, y = 0;
        while (x + 1 < n_lengths && lengths[x] < k->length)
            x++;
        while (y + 1 < n_depths && depths[y] < k->depth)
            y++;
        cell(g, x0 + w * x + 1, 24 + row * y + 1, w - 2, row - 2, clb_kvc_group_mean(c, setting, task, i), k->label,
             w >= 26);
    }
    for (uint32_t i = 0; i < n_lengths; i++)
        if (w >= 30 || i % 2 == 0)
            clb_page_add(g, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%g</text>",
                         x0 + w * (i + 0.5), 24 + row * n_depths + 16, lengths[i]);
    clb_page_add(g, "<text text-anchor=\"middle\" x=\"%.1f\" y=\"15\">%s</text>\n", x0 + width / 2,
                 size_text(c, c->settings[setting].size));
}

static void needle_pane(struct kvc_html *h, uint32_t task, uint32_t k)
{
    const clb_kvc *const c = h->c;
    clb_page *const g = &h->page;
    double depths[MOST_AXIS + 1];
    const uint32_t n_depths = distinct(&c->tasks[task], true, depths, MOST_AXIS);
    uint32_t n = 0;
    for (uint32_t b = 0; b < c->n_sizes; b++)
        n += has_groups(h, task, k, b);
    const double left = 56, width = fmin((1200 - left) / n, 400), row = 24;
    clb_page_add(g, "<svg viewBox=\"0 0 1200 %.0f\" role=\"img\" aria-label=\"needle map\">\n", row * n_depths + 64);
    for (uint32_t i = 0; i < n_depths; i++)
        clb_page_add(g, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%g%%</text>", left - 6,
                     24 + row * i + row / 2 + 4, depths[i]);
    for (uint32_t b = 0, at = 0; b < c->n_sizes; b++)
        if (has_groups(h, task, k, b))
            needle_map(h, task, clb_kvc_html_setting(h, k, b), left + width * at++, width - 14);
    clb_page_add(g,
                 "<text class=\"axis\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">length of the text in tokens, by "
                 "budget</text></svg>\n",
                 left + width * n / 2, row * n_depths + 58);
}

static bool any_needles(const struct kvc_html *h, uint32_t task, uint32_t k)
{
    for (uint32_t b = 0; b < h->c->n_sizes; b++)
        if (has_groups(h, task, k, b))
            return true;
    return false;
}

void clb_kvc_figure_needle(struct kvc_html *h, uint32_t task)
{
    const clb_kvc *const c = h->c;
    clb_page *const g = &h->page;
    bool any = false;
    for (uint32_t k = 0; k < c->n_names && !any; k++)
        any = any_needles(h, task, k);
    if (!has_depths(&c->tasks[task]) || !any)
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, 0);
    for (uint32_t k = 0; k < c->n_names; k++)
        if (any_needles(h, task, k))
            clb_page_tab(g, c->names[h->order[k]]);
    clb_page_add(g, "</div>");
    for (uint32_t k = 0; k < c->n_names; k++) {
        if (!any_needles(h, task, k))
            continue;
        clb_page_add(g, "<div class=\"pane\"><p class=\"sub\">");
        clb_page_text(g, c->names[h->order[k]]);
        clb_page_add(g, "</p>");
        needle_pane(h, task, k);
        clb_page_add(g, "</div>");
    }
    clb_page_add(g, "<figcaption><b>Where the needle is found (%%): ");
    clb_page_text(g, c->tasks[task].name);
    clb_page_add(g, ".</b> Rows: how deep in the text it lies.</figcaption></figure>\n");
}

/* ---- rasters ---- */

static int level_of(float share)
{
    return isnan(share) || share <= 0.02F ? 0 : share >= 0.98F ? LEVELS : 1 + (int)(share * (LEVELS - 1));
}

/* One path per level, whose pieces are runs of columns. */
static void raster_level(clb_page *g, const clb_kvc_raster *r, int level, double x0, double y0, double w, double row)
{
    bool any = false;
    for (uint32_t y = 0; y < r->n_rows; y++)
        for (uint32_t x = 0; x < r->n_columns;) {
            uint32_t end = x;
            while (end < r->n_columns && level_of(r->share[(size_t)y * r->n_columns + end]) == level)
                end++;
            if (end == x) {
                x++;
                continue;
            }
            if (!any)
                clb_page_add(g, "<path fill=\"var(--s0)\" fill-opacity=\"%.2f\" d=\"", (double)level / LEVELS * 0.9);
            any = true;
            clb_page_add(g, "M%.1f %.1fh%.1fv%.1fh-%.1fz", x0 + w * x, y0 + row * y, w * (end - x), row, w * (end - x));
            x = end;
        }
    if (any)
        clb_page_add(g, "\"/>\n");
}

static void raster_pane(struct kvc_html *h, const clb_kvc_raster *r)
{
    clb_page *const g = &h->page;
    const double left = 64, top = 8, width = 1120, row = r->n_rows > 40 ? 8 : 10, height = row * r->n_rows;
    clb_page_add(g, "<svg viewBox=\"0 0 1200 %.0f\" role=\"img\" aria-label=\"kept positions\">\n", top + height + 44);
    for (int level = 1; level <= LEVELS; level++)
        raster_level(g, r, level, left, top, width / r->n_columns, row);
    for (uint32_t y = 0; y<r->n_rows; y += r->n_rows> 12 ? r->n_rows / 10 : 1) {
        clb_page_add(g, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%u</text>", left - 6,
                     top + row * (y + 0.5) + 4, r->seen[y]);
    }
    const double step = clb_plot_step(r->n_positions, 10);
    for (double v = 0; v <= r->n_positions; v += step)
        clb_page_add(g, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%g</text>",
                     left + width * v / r->n_positions, top + height + 16, v);
    clb_page_add(g,
                 "<text class=\"axis\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">position in the text</text>"
                 "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(14 %.1f) rotate(-90)\">tokens "
                 "read</text></svg>\n",
                 left + width / 2, top + height + 38, top + height / 2);
}

void clb_kvc_figure_rasters(struct kvc_html *h)
{
    const clb_kvc *const c = h->c;
    clb_page *const g = &h->page;
    if (!c->n_rasters)
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, 0);
    for (int pane = 0; pane < 2; pane++) {
        for (uint32_t k = 0; k < c->n_names; k++) /* in the order of the other figures */
            for (uint32_t i = 0; i < c->n_rasters; i++) {
                const clb_kvc_raster *const r = &c->rasters[i];
                const clb_kvc_setting *const s = &c->settings[r->setting];
                char text[400];
                if (s->name != h->order[k])
                    continue;
                snprintf(text, sizeof text, "%.300s %.40s", c->names[s->name], s->budget);
                if (!pane) {
                    clb_page_tab(g, text);
                    continue;
                }
                clb_page_add(g, "<div class=\"pane\"><p class=\"sub\">");
                clb_page_text(g, text);
                clb_page_add(g, ": ");
                clb_page_text(g, c->ids[r->item]);
                clb_page_add(g, " of ");
                clb_page_text(g, c->tasks[c->items[r->item].task].name);
                clb_page_add(g, "</p>");
                raster_pane(h, r);
                clb_page_add(g, "</div>");
            }
        if (!pane)
            clb_page_add(g, "</div>");
    }
    clb_page_add(g,
                 "<figcaption><b>Which positions stay.</b> One row per look while the item is read and continued; the "
                 "darker, the more layers and heads keep a position.</figcaption></figure>\n");
}
