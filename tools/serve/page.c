/* The chat page: static files that ask nobody else for anything, and may run nothing but their own scripts. */
#include "page.h"

#include <string.h>

#include "app.h"

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void clb_serve_page(void *app, clb_exchange *x)
{
    const char *path = clb_exchange_path(x);
    (void)app;
    if (strcmp(path, "/") == 0)
        path = "/index.html";
    for (const clb_page_file *f = clb_page_files; f->path; f++)
        if (strcmp(f->path, path) == 0) {
            clb_exchange_set_header(x, "Content-Security-Policy", policy);
            clb_exchange_set_header(x, "X-Content-Type-Options", "nosniff");
            clb_exchange_set_header(x, "Referrer-Policy", "no-referrer");
            clb_exchange_set_header(x, "Cache-Control", "no-cache");
            clb_reply(x, 200, f->type, f->data, f->n);
            return;
        }
    clb_reply_error(x, 404, "not_found_error", NULL, NULL, "there is no %s", path);
}
