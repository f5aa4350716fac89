/* The page of colibri compare --strategies: what its files share. */
#ifndef CLB_TOOLS_COMPARE_KV_HTML_H
#define CLB_TOOLS_COMPARE_KV_HTML_H

#include "compare_kv_table.h"
#include "plot.h"

struct kvc_html {
    const clb_kvc *c;
    clb_page page;
    char (*css)[16];            /* [n_names] */
    uint32_t *order;            /* [n_names]: best first, by the main metric of the first task over all budgets */
    double *x, *y, *low, *high; /* scratch, [n_sizes + 2] */
};

/* A value with its interval, as figures show it: perplexity as a ratio to the baseline, all else as it is. */
typedef struct kvc_point {
    bool present;
    double value, low, high;
    uint32_t n;
} kvc_point;
kvc_point clb_kvc_point(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric);
/* The setting of the k-th best strategy at a budget, or its only one if it keeps all; CLB_KVC_NONE: not there. */
uint32_t clb_kvc_html_setting(const struct kvc_html *h, uint32_t k, uint32_t size);
void clb_kvc_html_legend(struct kvc_html *h, uint32_t task);

void clb_kvc_figure_quality(struct kvc_html *h, uint32_t task);
void clb_kvc_figure_against(struct kvc_html *h, uint32_t task);
void clb_kvc_figure_groups(struct kvc_html *h, uint32_t task);
void clb_kvc_figure_needle(struct kvc_html *h, uint32_t task);
void clb_kvc_figure_rasters(struct kvc_html *h);
void clb_kvc_figure_cost(struct kvc_html *h, uint32_t task);

#endif
