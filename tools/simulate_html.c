/* The page: what papers on caches show, in one file that needs nothing else. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate_html.h"

#define COLOURS 6u

static double share_of(const clb_sim *s, uint32_t slots)
{
    const clb_trace_info *const i = &s->traces[0].trace->info;
    return 100.0 * clb_sim_slot_count(s, slots, i) / ((double)i->n_layers * i->n_experts);
}

const clb_sim_cell *clb_html_cell(const struct html *h, uint32_t policy, uint32_t predictor, uint32_t slots)
{
    const uint32_t c = clb_sim_find_cell(h->s, policy, predictor, slots);
    return c == CLB_SIM_NONE ? NULL : &h->s->cells[c];
}

/* ---- who gets which colour: the optima black, lru and the best of the others colours, the rest grey ---- */

static int choose_styles(struct html *h)
{
    const clb_sim *const s = h->s;
    uint32_t n_slots_max = s->n_slots > 2 ? s->n_slots : 2, longest = n_slots_max;
    for (uint32_t p = 0; s->series && p < s->n_policies; p++)
        longest = s->series[p].n_series > longest ? s->series[p].n_series : longest;
    h->css = calloc(s->n_policies, sizeof *h->css);
    h->order = calloc(s->n_policies, sizeof *h->order);
    h->share = calloc(s->n_slots, sizeof *h->share);
    h->x = calloc((size_t)longest + CLB_REUSE_BINS, sizeof *h->x);
    h->y = calloc((size_t)longest + CLB_REUSE_BINS, sizeof *h->y);
    if (!h->css || !h->order || !h->share || !h->x || !h->y)
        return COLIBRI_E_NOMEM;
    h->middle = s->n_slots / 2;
    for (uint32_t k = 0; k < s->n_slots; k++)
        h->share[k] = share_of(s, k);
    for (uint32_t p = 0; p < s->n_policies; p++) {
        uint32_t at = p;
        const double hit = clb_html_cell(h, p, 0, h->middle)->hit.value;
        while (at && clb_html_cell(h, h->order[at - 1], 0, h->middle)->hit.value < hit) {
            h->order[at] = h->order[at - 1];
            at--;
        }
        h->order[at] = p;
    }
    static const char *const colours[COLOURS] = {"s0", "s1", "s2", "s3", "s4", "s5"};
    const uint32_t lru = clb_sim_find_policy(s, "lru");
    uint32_t next = 1, optima = 0;
    for (uint32_t i = 0; i < s->n_policies; i++) {
        const uint32_t p = h->order[i];
        if (s->policies[p].oracle)
            h->css[p] = !strcmp(s->policies[p].label, "belady") || optima++ ? "opt" : "opt2";
        else if (p == lru)
            h->css[p] = colours[0];
        else
            h->css[p] = next < COLOURS ? colours[next++] : "grey";
    }
    return COLIBRI_OK;
}

bool clb_html_shown(const struct html *h, uint32_t policy)
{
    return !h->s->policies[policy].hidden || !strcmp(h->s->policies[policy].label, "lru");
}

void clb_html_legend(struct html *h, bool (*drawn)(const struct html *h, uint32_t policy))
{
    clb_page *const g = &h->page;
    clb_page_add(g, "<div class=\"legend\">");
    for (uint32_t i = 0; i < h->s->n_policies; i++) {
        const uint32_t p = h->order[i];
        if (!clb_html_shown(h, p) || !drawn(h, p))
            continue;
        clb_page_add(g, "<span class=\"%s\" data-series=\"p%u\"><i></i>", h->css[p], p);
        clb_page_text(g, h->s->policies[p].label);
        clb_page_add(g, "</span>");
    }
    clb_page_add(g, "</div>\n");
}

/* ---- reuse distances ---- */

static void figure_reuse(struct html *h)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    uint32_t last = 0;
    double sum = (double)s->reuse_cold, most = 0;
    for (uint32_t b = 0; b < CLB_REUSE_BINS; b++) {
        sum += (double)s->reuse[b];
        last = s->reuse[b] ? b : last;
    }
    for (uint32_t b = 0; b <= last; b++)
        most = fmax(most, 100 * (double)s->reuse[b] / sum);
    const double step = clb_plot_step(most > 0 ? most : 1, 5);
    clb_plot p = {.page = g,
                  .width = 600,
                  .height = 380,
                  .left = 58,
                  .right = 46,
                  .top = 28,
                  .bottom = 46,
                  .x0 = 0,
                  .x1 = last + 1.0,
                  .y1 = ceil(most / step) * step};
    clb_page_add(g, "<figure>");
    if (!(p.y1 > 0))
        p.y1 = 1;
    clb_plot_begin(&p, "Reuse distances");
    clb_plot_y_axis(&p, 5, "", "share of look-ups (%)");
    double below = 0;
    for (uint32_t b = 0; b <= last; b++) {
        const double v = 100 * (double)s->reuse[b] / sum, x = clb_plot_x(&p, b), w = clb_plot_x(&p, b + 1) - x;
        char text[32];
        const unsigned long long from = b ? 1ull << (b - 1) : 0, to = b ? (1ull << b) - 1 : 0;
        clb_page_add(
            g,
            "<rect class=\"s0\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%llu to %llu: %.2f "
            "%%</title></rect>\n",
            x + 1.5, clb_plot_y(&p, v), w - 3, clb_plot_y(&p, 0) - clb_plot_y(&p, v), from, to, v);
        snprintf(text, sizeof text, "%llu", from);
        clb_plot_x_tick(&p, b + 0.0, text, false);
        below += v;
        h->x[b] = b + 1;
        h->y[b] = below / 100 * p.y1;
    }
    clb_plot_line(&p, h->x, h->y, last + 1, "s1", "cdf", "cumulative");
    for (int v = 0; v <= 100; v += 25)
        clb_page_add(g, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" style=\"fill:var(--s1)\">%d%%</text>",
                     p.width - p.right + 7, clb_plot_y(&p, p.y1 * v / 100) + 4, v);
    const double all = (double)s->traces[0].trace->info.n_layers * s->traces[0].trace->info.n_experts;
    double last_label = -100;
    for (uint32_t k = 0; k < s->n_slots; k++) { /* where the capacities lie on this axis */
        const double at = log2(h->share[k] / 100 * all) + 1;
        if (!(at > 0 && at < p.x1))
            continue;
        const double x = clb_plot_x(&p, at);
        clb_page_add(g, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", x, x, p.top - 4,
                     p.height - p.bottom);
        if (x - last_label < 30)
            continue;
        last_label = x;
        clb_page_add(g, "<text class=\"note\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, p.top - 9,
                     s->slots[k].label);
    }
    clb_plot_x_title(&p, "reuse distance: other experts used since (log2)");
    clb_plot_end(&p);
    clb_page_add(
        g,
        "<figcaption><b>Reuse distances</b> of all traces; %.2f %% of the look-ups are first uses. The line is their "
        "sum so far: what a global lru of that size would hit. Dashed: the capacities.</figcaption></figure>\n",
        100 * (double)s->reuse_cold / sum);
}

/* ---- read-ahead ---- */

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

static void prefetch_bars(struct html *h, uint32_t policy, uint32_t slots)
{
    static const char *const names[] = {"precision", "recall", "late"};
    static const char *const css[] = {"s2", "s0", "s1"};
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    const uint32_t n = s->n_predictors - 1;
    clb_plot p = {.page = g,
                  .width = 600,
                  .height = 320,
                  .left = 58,
                  .right = 16,
                  .top = 14,
                  .bottom = 46,
                  .x0 = 0,
                  .x1 = n,
                  .y1 = 100};
    clb_plot_begin(&p, "Read-ahead");
    clb_plot_y_axis(&p, 5, "", "%");
    const double group = clb_plot_x(&p, 1) - clb_plot_x(&p, 0), bar = group * 0.24 > 46 ? 46 : group * 0.24;
    for (uint32_t q = 1; q <= n; q++) {
        const clb_sim_cell *const c = clb_html_cell(h, policy, q, slots);
        if (!c)
            continue;
        const uint64_t used = c->useful + c->late;
        const double v[] = {percent(used, used + c->wasted), percent(used, used + c->stats.misses),
                            percent(c->late, used)};
        for (int k = 0; k < 3; k++) {
            const double x = clb_plot_x(&p, q - 0.5) + (k - 1.5) * bar, y = clb_plot_y(&p, v[k]);
            clb_page_add(g,
                         "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s %.1f "
                         "%%</title></rect>"
                         "<text class=\"note\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.0f</text>",
                         css[k], x + 1, y, bar - 2, clb_plot_y(&p, 0) - y, names[k], v[k], x + bar / 2, y - 3, v[k]);
        }
        clb_plot_x_tick(&p, q - 0.5, s->predictors[q].label, false);
    }
    clb_plot_end(&p);
}

static void figure_prefetch(struct html *h)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    uint32_t policy = clb_sim_find_policy(s, "lru");
    if (policy != CLB_SIM_NONE && s->policies[policy].hidden) /* nobody asked for it: then the best of the others */
        policy = CLB_SIM_NONE;
    for (uint32_t i = 0; i < s->n_policies && policy == CLB_SIM_NONE; i++)
        if (!s->policies[h->order[i]].oracle && !s->policies[h->order[i]].hidden)
            policy = h->order[i];
    if (s->n_predictors < 2 || policy == CLB_SIM_NONE)
        return;
    clb_page_add(g, "<figure>");
    clb_page_tabs(g, h->middle);
    for (uint32_t k = 0; k < s->n_slots; k++)
        clb_page_tab(g, s->slots[k].label);
    clb_page_add(g, "</div>");
    for (uint32_t k = 0; k < s->n_slots; k++) {
        clb_page_add(g, "<div class=\"pane\">");
        prefetch_bars(h, policy, k);
        clb_page_add(g, "</div>");
    }
    clb_page_add(
        g, "<div class=\"legend\"><span class=\"s2\"><i></i>precision</span><span class=\"s0\"><i></i>recall</span>"
           "<span class=\"s1\"><i></i>late</span></div><figcaption><b>Read-ahead</b> with policy ");
    clb_page_text(g, s->policies[policy].label);
    clb_page_add(
        g, ". Precision: of what was read, used in its turn. Recall: of what would have missed, read ahead. Late: of "
           "what was used, still on its way.</figcaption></figure>\n");
}

/* ---- over time ---- */

/* Lines that cross each other all the time: belady, lru and the two best others. */
static bool in_time(const struct html *h, uint32_t policy)
{
    const clb_sim_part *const p = &h->s->policies[policy];
    if (p->oracle || !strcmp(p->label, "lru"))
        return !strcmp(h->css[policy], "opt") || !p->oracle;
    uint32_t before = 0;
    for (uint32_t i = 0; i < h->s->n_policies && h->order[i] != policy; i++)
        before += !h->s->policies[h->order[i]].oracle && strcmp(h->s->policies[h->order[i]].label, "lru") != 0;
    return before < 2;
}

static void draw_series(const struct html *h, clb_plot *p, uint32_t policy)
{
    const clb_replay_result *const r = &h->s->series[policy];
    char series[16];
    if (!in_time(h, policy))
        return;
    snprintf(series, sizeof series, "p%u", policy);
    for (uint32_t i = 0; i < r->n_series; i++) {
        h->x[i] = (i + 0.5) * h->s->window;
        h->y[i] = 100.0 * (double)r->series[i];
    }
    char css[32];
    snprintf(css, sizeof css, "thin %s", h->css[policy]);
    clb_plot_line(p, h->x, h->y, r->n_series, css, series, h->s->policies[policy].label);
}

static void figure_time(struct html *h)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    if (!s->series || !s->series[0].n_series)
        return;
    const clb_replay_result *const r = &s->series[0];
    clb_plot p = {.page = g,
                  .width = 1200,
                  .height = 360,
                  .left = 58,
                  .right = 16,
                  .top = 30,
                  .bottom = 46,
                  .x0 = 0,
                  .x1 = (double)r->n_series * s->window,
                  .y1 = 100};
    double low = 100;
    for (uint32_t q = 0; q < s->n_policies; q++)
        for (uint32_t i = 0; i < s->series[q].n_series && in_time(h, q); i++)
            low = fmin(low, 100.0 * (double)s->series[q].series[i]);
    p.y0 = floor(low / 10) * 10 < 90 ? floor(low / 10) * 10 : 90;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_plot_begin(&p, "Hit rate over time");
    clb_plot_y_axis(&p, 5, "", "hit rate (%)");
    clb_plot_x_axis(&p, 10, "", "decoded tokens");
    uint64_t unit = 0;
    for (uint32_t t = 0; t < s->n_traces; t++)
        for (uint64_t u = 0; u < s->traces[t].trace->n_units; u++, unit++) {
            const double x = clb_plot_x(&p, (double)r->series_unit[unit] * s->window);
            if (unit)
                clb_page_add(g, "<line class=\"mark%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                             u ? " unit" : "", x, x, u ? p.top : p.top - 16, p.height - p.bottom);
            if (u == 0) {
                clb_page_add(g, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\">", x + 4, p.top - 6);
                clb_page_text(g, s->traces[t].name);
                clb_page_add(g, "</text>\n");
            }
        }
    clb_html_lines(h, &p, draw_series);
    clb_plot_end(&p);
    clb_html_legend(h, in_time);
    clb_page_add(
        g,
        "<figcaption><b>Hit rate over time</b> at %s, the traces one after the other in one cache; means of %u tokens. "
        "Dashed: the next trace; thin lines: the next prompt.</figcaption></figure>\n",
        s->slots[s->series_slots].label, s->window);
}

/* ---- table, head, file ---- */

static void table_pane(struct html *h, uint32_t slots)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    clb_page_add(g,
                 "<div class=\"pane scroll\"><table><tr><th>policy</th>%s<th>hit %%</th><th>95 %%</th><th>gap closed "
                 "%%</th><th>95 "
                 "%%</th><th>evictions</th><th>tok/s</th><th>policy ns</th></tr>\n",
                 s->n_predictors > 1 ? "<th>predictor</th>" : "");
    for (uint32_t i = 0; i < s->n_policies; i++)
        for (uint32_t q = 0; q < s->n_predictors; q++) {
            const uint32_t policy = h->order[i];
            const clb_sim_cell *const c = clb_html_cell(h, policy, q, slots);
            if (!c || s->policies[policy].hidden)
                continue;
            clb_page_add(g, "<tr%s><td>", s->policies[policy].oracle ? " class=\"opt\"" : "");
            clb_page_text(g, s->policies[policy].label);
            clb_page_add(g, "</td>");
            if (s->n_predictors > 1) {
                clb_page_add(g, "<td>");
                clb_page_text(g, s->predictors[q].label);
                clb_page_add(g, "</td>");
            }
            clb_page_number(g, "%.2f", 100 * c->hit.value);
            if (c->hit.n > 1)
                clb_page_add(g, "<td>%.2f&ndash;%.2f</td>", 100 * c->hit.low, 100 * c->hit.high);
            else
                clb_page_add(g, "<td>&ndash;</td>");
            clb_page_number(g, "%.1f", c->gap.n ? 100 * c->gap.value : (double)NAN);
            if (c->gap.n > 1)
                clb_page_add(g, "<td>%.1f to %.1f</td>", 100 * c->gap.low, 100 * c->gap.high);
            else
                clb_page_add(g, "<td>&ndash;</td>");
            clb_page_add(g, "<td>%" PRIu64 "</td>", c->stats.evictions);
            clb_page_number(g, "%.2f", c->tok_per_s);
            clb_page_number(g, "%.1f", c->policy_ns);
            clb_page_add(g, "</tr>\n");
        }
    clb_page_add(g, "</table></div>");
}

static void figure_table(struct html *h)
{
    clb_page *const g = &h->page;
    clb_page_add(g, "<figure class=\"wide\">");
    clb_page_tabs(g, h->middle);
    for (uint32_t k = 0; k < h->s->n_slots; k++)
        clb_page_tab(g, h->s->slots[k].label);
    clb_page_add(g, "</div>");
    for (uint32_t k = 0; k < h->s->n_slots; k++)
        table_pane(h, k);
    clb_page_add(g, "</figure>\n");
}

static void head(struct html *h)
{
    const clb_sim *const s = h->s;
    clb_page *const g = &h->page;
    const clb_trace_info *const i = &s->traces[0].trace->info;
    uint64_t lookups = 0, units = 0;
    for (uint32_t t = 0; t < s->n_traces; t++) {
        lookups += s->traces[t].index.n_lookups;
        units += s->traces[t].trace->n_units;
    }
    clb_page_begin(g, "Expert caches on recorded routing");
    clb_page_add(g, "<p>");
    for (uint32_t t = 0; t < s->n_traces; t++) {
        clb_page_add(g, t ? ", " : "");
        clb_page_text(g, s->traces[t].name);
    }
    if (*i->model && strcmp(i->model, s->traces[0].name) != 0) {
        clb_page_add(g, " &middot; ");
        clb_page_text(g, i->model);
    }
    clb_page_add(g,
                 " &middot; %u layers of %u experts, top %u &middot; %" PRIu64 " prompts, %" PRIu64
                 " look-ups &middot; slots ",
                 i->n_layers, i->n_experts, i->top_k, units, lookups);
    const uint32_t sizes = clb_replay_least_slots(i, false);
    if (s->layer_pools || sizes == 1)
        clb_page_add(g, s->layer_pools ? "of each layer" : "shared by all layers");
    else
        clb_page_add(g, "in %u pools, for %u sizes of experts", sizes, sizes);
    if (s->reset_units)
        clb_page_add(g, " &middot; every prompt starts with an empty cache");
    clb_page_add(g, "</p>");
    if (!isnan(s->cells[0].tok_per_s)) {
        const clb_trace_rates r = clb_sim_rates(s, s->traces[0].trace);
        clb_page_add(g,
                     "<p>Model of time: drive %.2f GB/s%s after %.0f &micro;s%s; %.1f &micro;s per token and layer and "
                     "%.1f &micro;s per "
                     "expert.</p>",
                     r.read_bytes_per_s / 1e9, s->assumed_drive ? " (assumed)" : "", r.read_latency_ns / 1e3,
                     s->assumed_latency ? " (assumed)" : "", r.decode_layer_ns / 1e3, r.decode_expert_ns / 1e3);
    }
    clb_page_main(g);
}

int clb_sim_write_html(const clb_sim *s, const char *path, clb_error *err)
{
    struct html h = {.s = s};
    h.page.failed = choose_styles(&h);
    if (!h.page.failed) {
        head(&h);
        clb_html_figure_misses(&h);
        clb_html_figure_gap(&h);
        figure_time(&h);
        clb_html_figure_layers(&h);
        figure_reuse(&h);
        figure_prefetch(&h);
        figure_table(&h);
        clb_page_end(&h.page);
    }
    const int rc = clb_page_save(&h.page, path, clb_args_has(s->args, "force"), err);
    free(h.css);
    free(h.order);
    free(h.share);
    free(h.x);
    free(h.y);
    return rc;
}
