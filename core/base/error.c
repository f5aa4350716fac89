#include "base/error.h"

#include "base/escape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Messages quote names from files, requests and plugins: what is stored is one line of printable UTF-8. */
void clb_error_set(clb_error *err, int code, const char *fmt, ...)
{
    char raw[sizeof err->msg];
    if (!err)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    err->code = code;
    clb_escape_message(raw, err->msg, sizeof err->msg);
}

void clb_error_set_errno(clb_error *err, int code, int errnum, const char *fmt, ...)
{
    char raw[sizeof err->msg], buf[128];
    if (!err)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    const size_t n = strlen(raw);
    snprintf(raw + n, sizeof raw - n, ": %s", strerror_r(errnum, buf, sizeof buf)); /* GNU variant: returns the text */
    err->code = code;
    clb_escape_message(raw, err->msg, sizeof err->msg);
}

int clb_context(clb_error *err, const char *fmt, ...)
{
    char raw[2 * sizeof err->msg];
    if (!err)
        return COLIBRI_E_INTERNAL;
    va_list args;
    va_start(args, fmt);
    vsnprintf(raw, sizeof err->msg - 8, fmt, args);
    va_end(args);
    const size_t n = strlen(raw);
    snprintf(raw + n, sizeof raw - n, ": %s", err->msg);
    clb_escape_message(raw, err->msg, sizeof err->msg);
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
