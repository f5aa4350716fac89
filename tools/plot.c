#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double clb_plot_x(const clb_plot *p, double v)
{
    return p->left + (v - p->x0) / (p->x1 - p->x0) * (p->width - p->left - p->right);
}

double clb_plot_y(const clb_plot *p, double v)
{
    return p->height - p->bottom - (v - p->y0) / (p->y1 - p->y0) * (p->height - p->top - p->bottom);
}

void clb_plot_begin(clb_plot *p, const char *label)
{
    clb_page_add(p->page, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", p->width, p->height);
    clb_page_text(p->page, label);
    clb_page_add(p->page, "\">\n");
}

void clb_plot_end(clb_plot *p)
{
    clb_page_add(p->page, "</svg>\n");
}

double clb_plot_step(double range, int n)
{
    const double raw = range / (n > 0 ? n : 1), ten = pow(10, floor(log10(raw)));
    const double m = raw / ten;
    return ten * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

void clb_plot_y_axis(clb_plot *p, int n, const char *unit, const char *title)
{
    const double step = clb_plot_step(p->y1 - p->y0, n), right = p->width - p->right;
    for (double v = ceil(p->y0 / step - 1e-9) * step; v <= p->y1 + step * 1e-9; v += step) {
        const double y = clb_plot_y(p, v), shown = fabs(v) < step * 1e-9 ? 0 : v;
        clb_page_add(p->page, "<line class=\"grid%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                     shown == 0 ? " zero" : "", p->left, right, y, y);
        clb_page_add(p->page, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%g%s</text>\n",
                     p->left - 7, y + 4, shown, unit);
    }
    const double middle = (p->top + p->height - p->bottom) / 2;
    clb_page_add(p->page,
                 "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(14 %.1f) rotate(-90)\">%s</text>\n",
                 middle, title);
}

void clb_plot_x_title(clb_plot *p, const char *title)
{
    clb_page_add(p->page, "<text class=\"axis\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                 (p->left + p->width - p->right) / 2, p->height - 6, title);
}

void clb_plot_x_tick(clb_plot *p, double v, const char *text, bool line)
{
    const double x = clb_plot_x(p, v), y = p->height - p->bottom;
    if (line)
        clb_page_add(p->page, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x, p->top,
                     y);
    clb_page_add(p->page, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">", x, y + 17);
    clb_page_text(p->page, text);
    clb_page_add(p->page, "</text>\n");
}

void clb_plot_x_axis(clb_plot *p, int n, const char *unit, const char *title)
{
    const double step = clb_plot_step(p->x1 - p->x0, n);
    for (double v = ceil(p->x0 / step - 1e-9) * step; v <= p->x1 + step * 1e-9; v += step) {
        char text[32];
        snprintf(text, sizeof text, "%g%s", fabs(v) < step * 1e-9 ? 0 : v, unit);
        clb_plot_x_tick(p, v, text, false);
    }
    clb_plot_x_title(p, title);
}

void clb_plot_line(clb_plot *p, const double *x, const double *y, uint32_t n, const char *css, const char *series,
                   const char *name)
{
    clb_page_add(p->page, "<g class=\"line %s\" data-series=\"%s\"><title>", css, series);
    clb_page_text(p->page, name);
    clb_page_add(p->page, "</title><path d=\"");
    bool pen = false;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(y[i])) {
            pen = false;
            continue;
        }
        clb_page_add(p->page, "%s%.1f %.1f", pen ? "L" : "M", clb_plot_x(p, x[i]), clb_plot_y(p, y[i]));
        pen = true;
    }
    clb_page_add(p->page, "\"/></g>\n");
}

void clb_plot_area_below(clb_plot *p, const double *x, const double *y, uint32_t n, const char *css)
{
    if (n == 0)
        return;
    clb_page_add(p->page, "<path class=\"%s\" d=\"M%.1f %.1f", css, clb_plot_x(p, x[0]), clb_plot_y(p, p->y0));
    for (uint32_t i = 0; i < n; i++)
        clb_page_add(p->page, "L%.1f %.1f", clb_plot_x(p, x[i]), clb_plot_y(p, y[i]));
    clb_page_add(p->page, "L%.1f %.1fZ\"/>\n", clb_plot_x(p, x[n - 1]), clb_plot_y(p, p->y0));
}
