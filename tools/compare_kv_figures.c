/* Figures of quality and cost: over what is kept, against the baseline, bytes and speeds. */
#include <math.h>
#include <string.h>

#include "compare_kv_html.h"

static const char *size_text(const clb_kvc *c, uint32_t size)
{
    return *c->sizes[size] ? c->sizes[size] : "all";
}

/* "perplexity", "of full"; "exact match, %". */
static void metric_title(const clb_kvc *c, enum clb_kvc_metric metric, char out[160])
{
    const clb_kvc_metric_info info = clb_kvc_metric_get(metric);
    if (metric == CLB_KVC_PERPLEXITY && c->baseline != CLB_KVC_NONE)
        snprintf(out, 160, "perplexity, times that of the baseline");
    else
        snprintf(out, 160, *info.unit ? "%s, %s" : "%s", info.text, info.unit);
}

/* ---- quality over what is kept ---- */

/* Points of one strategy in the order of budgets; x: what it really kept. */
static uint32_t curve(struct kvc_html *h, uint32_t name, uint32_t task, enum clb_kvc_metric metric)
{
    const clb_kvc *const c = h->c;
    uint32_t n = 0;
    for (uint32_t b = 0; b < c->n_sizes; b++) {
        const uint32_t s = clb_kvc_cell(c, name, b);
        const kvc_point p = clb_kvc_point(c, s, task, metric);
        if (!p.present)
            continue;
        const clb_interval *const kept = clb_kvc_mean_of(c, s, task, CLB_KVC_RETAINED);
        h->x[n] = kept->n ? kept->value : 100 * clb_kvc_budget_share(c->sizes[b]);
        h->y[n] = p.value;
        h->low[n] = p.low;
        h->high[n++] = p.high;
    }
    return n;
}

/* A few strategies may be so bad that nothing else could be told apart: the axis ends where nine of ten points do. */
static void axis_range(struct kvc_html *h, uint32_t task, enum clb_kvc_metric metric, double *y0, double *y1)
{
    const clb_kvc *const c = h->c;
    double low = INFINITY, high = -INFINITY, all[512];
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_names; k++) {
        const uint32_t m = curve(h, k, task, metric);
        for (uint32_t i = 0; i < m; i++) {
            low = fmin(low, h->low[i]);
            high = fmax(high, h->high[i]);
            if (n < 512)
                all[n++] = h->high[i];
        }
    }
    if (clb_kvc_metric_get(metric).better == CLB_KVC_LOWER && n) {
        clb_sort_doubles(all, n);
        high = fmin(high, 1.3 * clb_quantile_sorted(all, n, 0.9));
    }
    if (!(high > low))
        high = low + 1;
    const double step = clb_plot_step(high - low, 6);
    *y0 = floor(low / step) * step;
    *y1 = ceil(high / step) * step;
}

static void draw_curve(struct kvc_html *h, clb_plot *p, uint32_t name, uint32_t n, const char *title)
{
    clb_page *const g = &h->page;
    if (n == 1 && name == h->c->baseline) { /* keeps all: a line for the eye */
        h->x[1] = p->x0;
        h->y[1] = h->y[0];
        h->low[1] = h->low[0];
        h->high[1] = h->high[0];
        n = 2;
    }
    clb_page_add(g, "<g class=\"line %s\" data-series=\"k%u\"><title>", h->css[name], name);
    clb_page_text(g, h->c->names[name]);
    clb_page_add(g, " (%s)</title><path class=\"band\" d=\"", title);
    for (uint32_t i = 0; i < n; i++)
        clb_page_add(g, "%s%.1f %.1f", i ? "L" : "M", clb_plot_x(p, h->x[i]), clb_plot_y(p, fmin(h->high[i], p->y1)));
    for (uint32_t i = n; i-- > 0;)
        clb_page_add(g, "L%.1f %.1f", clb_plot_x(p, h->x[i]), clb_plot_y(p, fmin(h->low[i], p->y1)));
    clb_page_add(g, "Z\"/><path d=\"");
    for (uint32_t i = 0; i < n; i++)
        clb_page_add(g, "%s%.1f %.1f", i ? "L" : "M", clb_plot_x(p, h->x[i]), clb_plot_y(p, fmin(h->y[i], p->y1)));
    clb_page_add(g, "\"/>");
    for (uint32_t i = 0; i < n; i++)
        clb_page_add(g, "<circle r=\"2.5\" cx=\"%.1f\" cy=\"%.1f\"/>", clb_plot_x(p, h->x[i]),
                     clb_plot_y(p, fmin(h->y[i], p->y1)));
    clb_page_add(g, "</g>\n");
}

static void quality_pane(struct kvc_html *h, uint32_t task, enum clb_kvc_metric metric)
{
    char title[160];
    clb_plot p = {
        .page = &h->page, .width = 1200, .height = 460, .left = 64, .right = 16, .top = 14, .bottom = 46, .x1 = 100};
    axis_range(h, task, metric, &p.y0, &p.y1);
    metric_title(h->c, metric, title);
    clb_plot_begin(&p, title);
    clb_plot_y_axis(&p, 6, "", title);
    clb_plot_x_axis(&p, 10, "%", "positions kept at the end of an item");
    for (int layer = 0; layer < 2; layer++) /* grey ones below */
        for (uint32_t k = h->c->n_names; k-- > 0;) {
            const uint32_t name = h->order[k];
            if ((strcmp(h->css[name], "grey") == 0) != (layer == 0))
                continue;
            const uint32_t n = curve(h, name, task, metric);
            if (n)
                draw_curve(h, &p, name, n, title);
        }
    clb_plot_end(&p);
}

static const enum clb_kvc_metric quality_metrics[] = {CLB_KVC_EXACT, CLB_KVC_TOKENS, CLB_KVC_PERPLEXITY, CLB_KVC_KL,
                                                      CLB_KVC_SAME_TOP};

static bool any_value(const clb_kvc *c, uint32_t task, enum clb_kvc_metric metric)
{
    for (uint32_t s = 0; s < c->n_settings; s++)
        if (clb_kvc_mean_of(c, s, task, metric)->n)
            return true;
    return false;
}

void clb_kvc_figure_quality(struct kvc_html *h, uint32_t task)
{
    clb_page *const g = &h->page;
    const clb_kvc_task *const t = &h->c->tasks[task];
    const size_t n = sizeof quality_metrics / sizeof *quality_metrics;
    if (!any_value(h->c, task, clb_kvc_main_metric(t->kind)))
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, 0);
    for (size_t m = 0; m < n; m++)
        if (any_value(h->c, task, quality_metrics[m]))
            clb_page_tab(g, clb_kvc_metric_get(quality_metrics[m]).text);
    clb_page_add(g, "</div>");
    for (size_t m = 0; m < n; m++)
        if (any_value(h->c, task, quality_metrics[m])) {
            clb_page_add(g, "<div class=\"pane\">");
            quality_pane(h, task, quality_metrics[m]);
            clb_page_add(g, "</div>");
        }
    clb_kvc_html_legend(h, task);
    clb_page_add(g, "<figcaption><b>Quality over what is kept: %s ", clb_kvc_kind_name(t->kind));
    clb_page_text(g, t->name);
    clb_page_add(g,
                 "</b>, %u items. Bands (of some; of the others when pointed at): 95 %% by resampling items. What "
                 "leaves the figure at the top is worse than "
                 "shown.</figcaption></figure>\n",
                 t->n_items);
}

/* ---- bars: one row per strategy ---- */

struct bar {
    uint32_t name;
    double value, low, high;
    uint32_t n;
    bool claim;
};

/* Horizontal bars from `zero`, with whiskers. bars: best first. */
static void draw_bars(struct kvc_html *h, const struct bar *bars, uint32_t n, double width, double left, double zero,
                      const char *title, const char *format)
{
    clb_page *const g = &h->page;
    double low = zero, high = zero;
    for (uint32_t i = 0; i < n; i++) {
        low = fmin(low, fmin(bars[i].value, bars[i].low));
        high = fmax(high, fmax(bars[i].value, bars[i].high));
    }
    if (!(high > low))
        high = low + 1;
    const double step = clb_plot_step(high - low, width > 400 ? 8 : 4), row = 17;
    clb_plot p = {.page = g,
                  .width = width,
                  .height = 8 + row * n + 42,
                  .left = left,
                  .right = 54,
                  .top = 8,
                  .bottom = 42,
                  .x0 = floor(low / step + 1e-9) * step,
                  .x1 = ceil(high / step - 1e-9) * step,
                  .y1 = 1};
    clb_plot_begin(&p, title);
    for (double v = p.x0; v <= p.x1 + step * 1e-9; v += step) {
        char text[32];
        snprintf(text, sizeof text, "%g", fabs(v) < step * 1e-9 ? 0 : v);
        clb_plot_x_tick(&p, v, text, true);
    }
    clb_plot_x_title(&p, title);
    for (uint32_t i = 0; i < n; i++) {
        const struct bar *const b = &bars[i];
        const double y = p.top + row * i, x0 = clb_plot_x(&p, zero), x = clb_plot_x(&p, b->value);
        if (left > 20) {
            clb_page_add(g, "<text text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">", left - 8, y + 12.5);
            clb_page_text(g, h->c->names[b->name]);
            clb_page_add(g, "</text>");
        }
        clb_page_add(g, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"11\"><title>",
                     h->css[b->name], fmin(x, x0), y + 3, fabs(x - x0));
        clb_page_text(g, h->c->names[b->name]);
        clb_page_add(g, ": %.5g (%.5g to %.5g), %u items</title></rect>", b->value, b->low, b->high, b->n);
        if (b->n > 1)
            clb_page_add(g, "<path class=\"err\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6\"/>",
                         clb_plot_x(&p, b->low), y + 8.5, clb_plot_x(&p, b->high), clb_plot_x(&p, b->low), y + 5.5,
                         clb_plot_x(&p, b->high), y + 5.5);
        clb_page_add(g, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\">",
                     fmax(clb_plot_x(&p, fmax(b->high, b->value)), x0) + 6, y + 12.5);
        clb_page_add(g, format, b->value);
        clb_page_add(g, "%s</text>\n", b->claim ? "*" : "");
    }
    clb_page_add(g, "<line class=\"grid zero\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", clb_plot_x(&p, zero),
                 clb_plot_x(&p, zero), p.top, p.height - p.bottom);
    clb_plot_end(&p);
}

static void sort_bars(struct bar *bars, uint32_t n, bool higher)
{
    for (uint32_t i = 1; i < n; i++) {
        const struct bar b = bars[i];
        uint32_t at = i;
        for (; at && (higher ? bars[at - 1].value < b.value : bars[at - 1].value > b.value); at--)
            bars[at] = bars[at - 1];
        bars[at] = b;
    }
}

#define MOST_BARS 256u

static void against_pane(struct kvc_html *h, uint32_t task, uint32_t size)
{
    const clb_kvc *const c = h->c;
    const enum clb_kvc_metric m = clb_kvc_main_metric(c->tasks[task].kind);
    const clb_kvc_metric_info info = clb_kvc_metric_get(m);
    struct bar bars[MOST_BARS];
    uint32_t n = 0;
    char title[160];
    for (uint32_t k = 0; k < c->n_names && n < MOST_BARS; k++) {
        const uint32_t s = clb_kvc_cell(c, k, size);
        const clb_kvc_pair *const p = s == CLB_KVC_NONE ? NULL : clb_kvc_against(c, s, task, m);
        if (p && p->n)
            bars[n++] = (struct bar){
                .name = k, .value = p->change, .low = p->low, .high = p->high, .n = p->n, .claim = clb_kvc_claims(p)};
    }
    sort_bars(bars, n, info.better == CLB_KVC_HIGHER);
    const bool ratio = info.average == CLB_KVC_LOG;
    snprintf(title, sizeof title, ratio ? "%s: times that of %.60s" : "%s: points above %.60s", info.text,
             c->names[c->baseline]);
    draw_bars(h, bars, n, 1200, 230, ratio ? 1 : 0, title, ratio ? "%.3fx" : "%+.1f");
}

void clb_kvc_figure_against(struct kvc_html *h, uint32_t task)
{
    clb_page *const g = &h->page;
    const clb_kvc *const c = h->c;
    const enum clb_kvc_metric m = clb_kvc_main_metric(c->tasks[task].kind);
    uint32_t shown[64], n = 0;
    if (c->baseline == CLB_KVC_NONE)
        return;
    for (uint32_t b = 0; b < c->n_sizes && n < 64; b++)
        for (uint32_t k = 0; k < c->n_names; k++) {
            const uint32_t s = clb_kvc_cell(c, k, b);
            if (s != CLB_KVC_NONE && clb_kvc_against(c, s, task, m)->n) {
                shown[n++] = b;
                break;
            }
        }
    if (!n)
        return;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, n / 2);
    for (uint32_t i = 0; i < n; i++)
        clb_page_tab(g, size_text(c, shown[i]));
    clb_page_add(g, "</div>");
    for (uint32_t i = 0; i < n; i++) {
        clb_page_add(g, "<div class=\"pane\"><p class=\"sub\">budget %s</p>", size_text(c, shown[i]));
        against_pane(h, task, shown[i]);
        clb_page_add(g, "</div>");
    }
    clb_page_add(g, "<figcaption><b>Against ");
    clb_page_text(g, c->names[c->baseline]);
    clb_page_add(g, ": ");
    clb_page_text(g, c->tasks[task].name);
    clb_page_add(g, "</b>, paired over items. Whiskers: 95 %%. *: differs after Holm's correction over all "
                    "settings.</figcaption></figure>\n");
}

/* ---- memory and speed ---- */

static void cost_bars(struct kvc_html *h, uint32_t task, uint32_t size, enum clb_kvc_metric m)
{
    const clb_kvc *const c = h->c;
    const clb_kvc_metric_info info = clb_kvc_metric_get(m);
    struct bar bars[MOST_BARS];
    char title[160];
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_names && n < MOST_BARS; k++) {
        uint32_t s = clb_kvc_cell(c, k, size);
        if (k == c->baseline && s == CLB_KVC_NONE)
            s = clb_kvc_cell(c, k, 0);
        const clb_interval *const v = s == CLB_KVC_NONE ? NULL : clb_kvc_mean_of(c, s, task, m);
        if (v && v->n)
            bars[n++] = (struct bar){.name = k, .value = v->value, .low = v->low, .high = v->high, .n = v->n};
    }
    if (!n)
        return;
    sort_bars(bars, n, info.better == CLB_KVC_HIGHER);
    snprintf(title, sizeof title, "%s, %s", info.text, info.unit);
    draw_bars(h, bars, n, 600, 190, 0, title, "%.4g");
}

void clb_kvc_figure_cost(struct kvc_html *h, uint32_t task)
{
    static const enum clb_kvc_metric metrics[] = {CLB_KVC_PEAK, CLB_KVC_BYTES, CLB_KVC_DECODE, CLB_KVC_PREFILL,
                                                  CLB_KVC_ATTENTION};
    clb_page *const g = &h->page;
    const clb_kvc *const c = h->c;
    uint32_t first = 0;
    while (first < c->n_sizes && !*c->sizes[first])
        first++;
    if (first == c->n_sizes)
        first = 0;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, (c->n_sizes - first) / 2);
    for (uint32_t b = first; b < c->n_sizes; b++)
        clb_page_tab(g, size_text(c, b));
    clb_page_add(g, "</div>");
    for (uint32_t b = first; b < c->n_sizes; b++) {
        clb_page_add(g, "<div class=\"pane\"><p class=\"sub\">budget %s</p><div class=\"two\">", size_text(c, b));
        for (size_t m = 0; m < sizeof metrics / sizeof *metrics; m++) {
            clb_page_add(g, "<div>");
            cost_bars(h, task, b, metrics[m]);
            clb_page_add(g, "</div>");
        }
        clb_page_add(g, "</div></div>");
    }
    clb_page_add(g, "<figcaption><b>Memory and speed: ");
    clb_page_text(g, c->tasks[task].name);
    clb_page_add(g,
                 "</b>. KV bytes are pages taken from the pool. Whiskers: 95 %% over items.</figcaption></figure>\n");
}
