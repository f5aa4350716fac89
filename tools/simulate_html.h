/* The page of colibri simulate: what its two files share. */
#ifndef CLB_TOOLS_SIMULATE_HTML_H
#define CLB_TOOLS_SIMULATE_HTML_H

#include "plot.h"
#include "simulate.h"

struct html {
    const clb_sim *s;
    clb_page page;
    const char **css; /* [n_policies] */
    uint32_t *order;  /* policies by hits at the middle capacity, best first */
    uint32_t middle;  /* index into slots */
    double *share;    /* [n_slots], % */
    double *x, *y;    /* scratch for lines */
};

const clb_sim_cell *clb_html_cell(const struct html *h, uint32_t policy, uint32_t predictor, uint32_t slots);
/* Asked for, or lru: what everything is compared with. */
bool clb_html_shown(const struct html *h, uint32_t policy);
void clb_html_legend(struct html *h, bool (*drawn)(const struct html *h, uint32_t policy));
/* Calls draw for every policy that is shown, grey ones first. */
void clb_html_lines(const struct html *h, clb_plot *plot,
                    void (*draw)(const struct html *h, clb_plot *p, uint32_t policy));

void clb_html_figure_misses(struct html *h);
void clb_html_figure_gap(struct html *h);
void clb_html_figure_layers(struct html *h);

#endif
