/* Pages that need nothing else: text with entities, head and foot with the common style, panes behind tabs. */
#ifndef CLB_TOOLS_HTML_PAGE_H
#define CLB_TOOLS_HTML_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* A page under construction; the first failure is kept and what follows does nothing. */
typedef struct clb_page {
    clb_buf buf;
    int failed;
} clb_page;

void clb_page_add(clb_page *page, const char *fmt, ...) CLB_PRINTF(2, 3);
/* Text of unknown origin: &, <, > and quotes become entities. */
void clb_page_text(clb_page *page, const char *text);
/* A cell of a table; what is not finite is a dash. */
void clb_page_number(clb_page *page, const char *format, double v);

/* Up to the heading; the caller adds paragraphs about what it shows, then figures between main and end. */
void clb_page_begin(clb_page *page, const char *title);
void clb_page_main(clb_page *page);
void clb_page_end(clb_page *page);

/* Buttons for the panes (class "pane") that follow inside the figure; the caller ends the list with "</div>". Without
 * scripts all panes show, one below the other. */
void clb_page_tabs(clb_page *page, uint32_t first);
void clb_page_tab(clb_page *page, const char *text);

/* Writes the finished page and releases it, or says why there is none. */
int clb_page_save(clb_page *page, const char *path, bool replace, clb_error *err);

#endif
