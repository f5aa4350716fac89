#include "html_page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/file.h"
#include "html_style.h"

void clb_page_add(clb_page *page, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (page->failed)
        return;
    if (n < 0 || (size_t)n >= sizeof text)
        page->failed = COLIBRI_E_INTERNAL;
    else
        page->failed = clb_buf_append(&page->buf, text, (size_t)n, NULL);
}

void clb_page_text(clb_page *page, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            clb_page_add(page, "&amp;");
            break;
        case '<':
            clb_page_add(page, "&lt;");
            break;
        case '>':
            clb_page_add(page, "&gt;");
            break;
        case '"':
            clb_page_add(page, "&quot;");
            break;
        default:
            clb_page_add(page, "%c", (unsigned char)*text < 32 ? '?' : *text);
        }
}

void clb_page_number(clb_page *page, const char *format, double v)
{
    clb_page_add(page, "<td>");
    if (isfinite(v))
        clb_page_add(page, format, v);
    else
        clb_page_add(page, "&ndash;");
    clb_page_add(page, "</td>");
}

static void add_long(clb_page *page, const char *text, size_t n)
{
    if (!page->failed)
        page->failed = clb_buf_append(&page->buf, text, n, NULL);
}

void clb_page_begin(clb_page *page, const char *title)
{
    clb_page_add(page, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                       "content=\"width=device-width,initial-scale=1\"><title>");
    clb_page_text(page, title);
    clb_page_add(page, "</title>\n<style>");
    add_long(page, clb_page_style, sizeof clb_page_style - 1);
    clb_page_add(page, "</style></head><body>\n<header><div><h1>");
    clb_page_text(page, title);
    clb_page_add(page, "</h1>");
}

void clb_page_main(clb_page *page)
{
    clb_page_add(page,
                 "</div><div><button type=\"button\" id=\"theme\">light / dark</button></div></header>\n<main>\n");
}

void clb_page_end(clb_page *page)
{
    clb_page_add(page, "</main>\n<script>");
    add_long(page, clb_page_script, sizeof clb_page_script - 1);
    clb_page_add(page, "</script></body></html>\n");
}

void clb_page_tabs(clb_page *page, uint32_t first)
{
    clb_page_add(page, "<div class=\"tabs\" data-first=\"%u\">", first);
}

void clb_page_tab(clb_page *page, const char *text)
{
    clb_page_add(page, "<button type=\"button\">");
    clb_page_text(page, text);
    clb_page_add(page, "</button>");
}

static int save(const clb_page *page, const char *path, bool replace, clb_error *err)
{
    clb_new_file f;
    int rc = clb_file_begin(&f, path, replace, err);
    if (!rc)
        rc = clb_file_write(&f, page->buf.data, page->buf.n, err);
    if (!rc)
        rc = clb_file_finish(&f, err);
    clb_file_drop(&f);
    return rc;
}

int clb_page_save(clb_page *page, const char *path, bool replace, clb_error *err)
{
    int rc = page->failed;
    if (rc == COLIBRI_E_INTERNAL)
        clb_fail(err, rc, "the page has a line that is too long");
    else if (rc)
        rc = CLB_NOMEM(err, "the page");
    else
        rc = save(page, path, replace, err);
    clb_buf_free(&page->buf);
    return rc;
}
