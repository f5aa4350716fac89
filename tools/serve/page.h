/* Files of the chat page, built into the program. */
#ifndef CLB_SERVE_PAGE_H
#define CLB_SERVE_PAGE_H

#include <stddef.h>

typedef struct clb_page_file {
    const char *path, *type; /* "/page.js", "text/javascript; charset=utf-8" */
    const unsigned char *data;
    size_t n;
} clb_page_file;

extern const clb_page_file clb_page_files[]; /* ends with path NULL; made by the build from serve/page */

#endif
