/* Figures as inline SVG: axes, lines, bars, cells. Colours are CSS variables of the page (html_style.h). */
#ifndef CLB_TOOLS_PLOT_H
#define CLB_TOOLS_PLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "html_page.h"

/* A plot's frame in pixels and its axes' ranges. */
typedef struct clb_plot {
    clb_page *page;
    double width, height, left, right, top, bottom; /* margins */
    double x0, x1, y0, y1;
} clb_plot;

void clb_plot_begin(clb_plot *plot, const char *label);
void clb_plot_end(clb_plot *plot);
double clb_plot_x(const clb_plot *plot, double v);
double clb_plot_y(const clb_plot *plot, double v);
/* Grid lines and numbers; about n of them, at round values, `unit` behind the number. */
void clb_plot_y_axis(clb_plot *plot, int n, const char *unit, const char *title);
void clb_plot_x_axis(clb_plot *plot, int n, const char *unit, const char *title);
void clb_plot_x_title(clb_plot *plot, const char *title);
/* One label under the axis. */
void clb_plot_x_tick(clb_plot *plot, double v, const char *text, bool line);
/* Points whose y is NAN interrupt the line. class: of the page's style; name: tooltip. */
void clb_plot_line(clb_plot *plot, const double *x, const double *y, uint32_t n, const char *css, const char *series,
                   const char *name);
void clb_plot_area_below(clb_plot *plot, const double *x, const double *y, uint32_t n, const char *css);

/* Step between round ticks for a range. */
double clb_plot_step(double range, int n);

#endif
