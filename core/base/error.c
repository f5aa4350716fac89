#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void store(clb_error *err, int code, const char *fmt, va_list args)
{
    if (err) {
        err->code = code;
        vsnprintf(err->msg, sizeof err->msg, fmt, args);
    }
}

void clb_error_set(clb_error *err, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    store(err, code, fmt, args);
    va_end(args);
}

void clb_error_set_errno(clb_error *err, int code, int errnum, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    store(err, code, fmt, args);
    va_end(args);
    if (err) {
        char buf[128];
        const char *text = strerror_r(errnum, buf, sizeof buf); /* GNU variant: returns the text */
        const size_t n = strlen(err->msg);
        snprintf(err->msg + n, sizeof err->msg - n, ": %s", text);
    }
}

int clb_context(clb_error *err, const char *fmt, ...)
{
    if (!err)
        return COLIBRI_E_INTERNAL;
    char head[sizeof err->msg - 8];
    va_list args;
    va_start(args, fmt);
    vsnprintf(head, sizeof head, fmt, args);
    va_end(args);
    const size_t n = strlen(head);
    memmove(err->msg + n + 2, err->msg, sizeof err->msg - n - 2);
    memcpy(err->msg, head, n);
    memcpy(err->msg + n, ": ", 2);
    err->msg[sizeof err->msg - 1] = '\0';
    return err->code;
}

const char *clb_status_name(int code)
{
    switch (code) {
#define NAME(name, value, exit_code, text)                                                                             \
    case value:                                                                                                        \
        return #name;
        COLIBRI_STATUS_MAP(NAME)
#undef NAME
    default:
        return "UNKNOWN";
    }
}

const char *clb_status_text(int code)
{
    switch (code) {
#define TEXT(name, value, exit_code, text)                                                                             \
    case value:                                                                                                        \
        return text;
        COLIBRI_STATUS_MAP(TEXT)
#undef TEXT
    default:
        return "unknown status";
    }
}

int clb_status_exit_code(int code)
{
    switch (code) {
#define EXIT_CODE(name, value, exit_code, text)                                                                        \
    case value:                                                                                                        \
        return exit_code;
        COLIBRI_STATUS_MAP(EXIT_CODE)
#undef EXIT_CODE
    default:
        return 70;
    }
}
