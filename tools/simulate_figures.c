/* Figures that compare policies: miss-ratio curves, shares of the gap, layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate_html.h"

#define MAP_TABS 8u /* heat maps of so many policies */

/* ---- miss-ratio curve ---- */

void clb_html_lines(const struct html *h, clb_plot *p, void (*draw)(const struct html *h, clb_plot *p, uint32_t policy))
{
    for (int layer = 0; layer < 2; layer++) /* grey ones below */
        for (uint32_t i = h->s->n_policies; i-- > 0;)
            if (clb_html_shown(h, h->order[i]) && (strcmp(h->css[h->order[i]], "grey") == 0) == (layer == 0))
                draw(h, p, h->order[i]);
}

static void draw_misses(const struct html *h, clb_plot *p, uint32_t policy)
{
    char name[160], series[16];
    for (uint32_t k = 0; k < h->s->n_slots; k++) {
        h->x[k] = h->share[k];
        h->y[k] = 100 * (1 - clb_html_cell(h, policy, 0, k)->hit.value);
    }
    snprintf(name, sizeof name, "%s: %.1f %% to %.1f %% misses", h->s->policies[policy].label, h->y[0],
             h->y[h->s->n_slots - 1]);
    snprintf(series, sizeof series, "p%u", policy);
    clb_plot_line(p, h->x, h->y, h->s->n_slots, h->css[policy], series, name);
}

void clb_html_figure_misses(struct html *h)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    double most = 0;
    for (uint32_t c = 0; c < s->n_cells; c++)
        most = fmax(most, 100 * (1 - s->cells[c].hit.value));
    const double step = clb_plot_step(most > 0 ? most : 1, 6);
    clb_plot p = {.page = g,
                  .width = 600,
                  .height = 380,
                  .left = 58,
                  .right = 16,
                  .top = 14,
                  .bottom = 46,
                  .x0 = h->share[0],
                  .x1 = h->share[s->n_slots - 1],
                  .y1 = ceil(most / step) * step};
    if (s->n_slots < 2) {
        p.x0 -= 1;
        p.x1 += 1;
    }
    if (!(p.y1 > 0))
        p.y1 = 1;
    clb_page_add(g, "<figure>");
    clb_plot_begin(&p, "Miss ratio over capacity");
    clb_plot_y_axis(&p, 6, "", "miss ratio (% of look-ups)");
    for (uint32_t k = 0; k < s->n_slots; k++) {
        char text[32];
        snprintf(text, sizeof text, "%.3g%%", h->share[k]);
        clb_plot_x_tick(&p, h->share[k], text, true);
    }
    clb_plot_x_title(&p, "expert slots (% of all experts)");
    uint32_t n = 0;
    for (uint32_t k = 0; k < s->n_slots; k++) {
        const uint32_t best = clb_sim_optimum(s, k);
        if (best == CLB_SIM_NONE)
            break;
        h->x[n] = h->share[k];
        h->y[n++] = 100 * (1 - s->cells[best].hit.value);
    }
    if (n == s->n_slots)
        clb_plot_area_below(&p, h->x, h->y, n, "shade");
    clb_html_lines(h, &p, draw_misses);
    clb_plot_end(&p);
    clb_html_legend(h, clb_html_shown);
    clb_page_add(g,
                 "<figcaption><b>Miss-ratio curve.</b> Below the optimum%s no policy can go without reading "
                 "ahead.</figcaption></figure>\n",
                 n == s->n_slots ? " (shaded)" : "");
}

/* ---- share of the gap ---- */

static void gap_bars(struct html *h, uint32_t slots)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    uint32_t n = 0;
    double low = 0, high = 100;
    for (uint32_t i = 0; i < s->n_policies; i++) {
        const clb_sim_cell *const c = clb_html_cell(h, i, 0, slots);
        if (s->policies[i].hidden || !c->gap.n)
            continue;
        n++;
        low = fmin(low, 100 * fmin(c->gap.low, c->gap.value));
        high = fmax(high, 100 * c->gap.high);
    }
    low = low < -100 ? -100 : floor(low / 20) * 20;
    if (n == 0) {
        clb_page_add(
            g, "<p>There is no gap between lru and the optimum at this capacity, or no optimum to compare with.</p>");
        return;
    }
    const double row = 17;
    clb_plot p = {.page = g,
                  .width = 600,
                  .height = 14 + row * n + 46,
                  .left = 140,
                  .right = 46,
                  .top = 14,
                  .bottom = 46,
                  .x0 = low,
                  .x1 = high,
                  .y0 = 0,
                  .y1 = 1};
    clb_plot_begin(&p, "Share of the gap between lru and the optimum");
    const double step = clb_plot_step(high - low, 6);
    for (double v = ceil(low / step) * step; v <= high + 1e-9; v += step) {
        char text[32];
        snprintf(text, sizeof text, "%g%%", fabs(v) < 1e-9 ? 0 : v);
        clb_plot_x_tick(&p, v, text, true);
    }
    clb_plot_x_title(&p, "share of the lru-to-optimum gap that is closed");
    uint32_t at = 0;
    const clb_sim_cell **const cells = calloc(n, sizeof *cells);
    for (uint32_t i = 0; cells && i < s->n_policies; i++) {
        const clb_sim_cell *const c = clb_html_cell(h, i, 0, slots);
        if (s->policies[i].hidden || !c->gap.n)
            continue;
        uint32_t to = at++;
        for (; to && cells[to - 1]->gap.value < c->gap.value; to--)
            cells[to] = cells[to - 1];
        cells[to] = c;
    }
    for (uint32_t i = 0; cells && i < n; i++) {
        const clb_interval *const v = &cells[i]->gap;
        const double y = p.top + row * i, x0 = clb_plot_x(&p, 0), x = clb_plot_x(&p, 100 * fmax(v->value, low / 100));
        clb_page_add(g, "<text text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">", p.left - 8, y + 12.5);
        clb_page_text(g, s->policies[cells[i]->policy].label);
        clb_page_add(
            g,
            "</text><rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"11\"><title>%.1f %% (%.1f to "
            "%.1f)</title></rect>",
            h->css[cells[i]->policy], fmin(x, x0), y + 3, fabs(x - x0), 100 * v->value, 100 * v->low, 100 * v->high);
        if (v->n > 1) {
            const double a = clb_plot_x(&p, 100 * fmax(v->low, low / 100)),
                         b = clb_plot_x(&p, 100 * fmax(v->high, low / 100));
            clb_page_add(g, "<path class=\"err\" d=\"M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6\"/>", a, y + 8.5, b, a,
                         y + 5.5, b, y + 5.5);
        }
        clb_page_add(g, "\n");
    }
    free(cells);
    clb_page_add(g, "<line class=\"grid zero\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", clb_plot_x(&p, 0),
                 clb_plot_x(&p, 0), p.top, p.height - p.bottom);
    clb_plot_end(&p);
}

void clb_html_figure_gap(struct html *h)
{
    clb_page *const g = &h->page;
    clb_page_add(g, "<figure>");
    clb_page_tabs(g, h->middle);
    for (uint32_t k = 0; k < h->s->n_slots; k++)
        clb_page_tab(g, h->s->slots[k].label);
    clb_page_add(g, "</div>");
    for (uint32_t k = 0; k < h->s->n_slots; k++) {
        clb_page_add(g, "<div class=\"pane\">");
        gap_bars(h, k);
        clb_page_add(g, "</div>");
    }
    clb_page_add(g,
                 "<figcaption><b>Gap closed.</b> 0 %% is lru, 100 %% the better of Belady's algorithm with and without "
                 "bypass. Whiskers: 95 %% percentile bootstrap over prompts.</figcaption></figure>\n");
}

/* ---- hit rate by layer and capacity ---- */

static void heat_map(struct html *h, uint32_t policy)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    const uint32_t n_layers = s->traces[0].trace->info.n_layers;
    const double row = n_layers > 24 ? 9 : n_layers > 12 ? 16 : n_layers > 6 ? 26 : 44, left = 58, right = 12;
    clb_plot p = {.page = g,
                  .width = 600,
                  .height = 10 + row * n_layers + 46,
                  .left = left,
                  .right = right,
                  .top = 10,
                  .bottom = 46,
                  .x0 = 0,
                  .x1 = s->n_slots,
                  .y0 = 0,
                  .y1 = 1};
    clb_plot_begin(&p, "Hit rate by layer and capacity");
    const double width = (p.width - left - right) / s->n_slots;
    for (uint32_t l = 0; l < n_layers; l++) {
        if (row >= 16 || l % 4 == 0)
            clb_page_add(g, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%u</text>", left - 7,
                         p.top + row * l + row / 2 + 4, l);
        for (uint32_t k = 0; k < s->n_slots; k++) {
            const clb_sim_cell *const c = clb_html_cell(h, policy, 0, k);
            double hits = 0, lookups = 0;
            for (uint32_t t = 0; t < s->n_traces; t++)
                if (l < c->runs[t].n_layers) {
                    hits += (double)c->runs[t].layer_hits[l];
                    lookups += (double)c->runs[t].layer_lookups[l];
                }
            const double v = lookups > 0 ? hits / lookups : 0;
            clb_page_add(
                g,
                "<rect fill=\"var(--s0)\" fill-opacity=\"%.3f\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
                "<title>layer %u, %s: %.1f %%</title></rect>",
                0.04 + 0.92 * v, left + width * k + 1, p.top + row * l + 1, width - 2, row - 2, l, s->slots[k].label,
                100 * v);
            if (row >= 16)
                clb_page_add(g, "<text class=\"cell\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\"%s>%.0f</text>",
                             left + width * (k + 0.5), p.top + row * l + row / 2 + 4,
                             v > 0.55 ? " style=\"fill:var(--bg)\"" : "", 100 * v);
        }
        clb_page_add(g, "\n");
    }
    for (uint32_t k = 0; k < s->n_slots; k++)
        clb_plot_x_tick(&p, k + 0.5, s->slots[k].label, false);
    clb_plot_x_title(&p, "expert slots (% of all experts)");
    clb_page_add(
        g, "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(14 %.1f) rotate(-90)\">MoE layer</text>",
        p.top + row * n_layers / 2);
    clb_plot_end(&p);
}

void clb_html_figure_layers(struct html *h)
{
    clb_page *const g = &h->page;
    clb_page_add(g, "<figure>");
    clb_page_tabs(g, 0);
    uint32_t picked[MAP_TABS], n = 0;
    for (uint32_t i = 0; i < h->s->n_policies && n < MAP_TABS; i++)
        if (clb_html_shown(h, h->order[i]) && strcmp(h->css[h->order[i]], "grey") != 0)
            picked[n++] = h->order[i];
    for (uint32_t i = 0; i < n; i++)
        clb_page_tab(g, h->s->policies[picked[i]].label);
    clb_page_add(g, "</div>");
    for (uint32_t i = 0; i < n; i++) {
        clb_page_add(g, "<div class=\"pane\">");
        heat_map(h, picked[i]);
        clb_page_add(g, "</div>");
    }
    clb_page_add(g, "<figcaption><b>Hit rate (%%) by layer and capacity.</b></figcaption></figure>\n");
}
