/* Errors: a status from sdk/include/colibri/status.h plus one message.
 *
 * Idiom: a function that can fail returns an int status (COLIBRI_OK or COLIBRI_E_*) and takes `clb_error *err`
 * last. Where the failure is found, `return clb_fail(err, COLIBRI_E_..., "what, where, what to do")`; every
 * caller passes it on with CLB_TRY, or with CLB_GO where something must be released first. A caller may add
 * context in front with clb_context. Messages are one line, no final period, no newline; control characters and bytes
 * that are no UTF-8, which may come with a quoted name, are stored as \n, \xNN. */
#ifndef CLB_BASE_ERROR_H
#define CLB_BASE_ERROR_H

#include <stddef.h>

#include "colibri/status.h"

typedef struct clb_error {
    int code;
    char msg[1024];
} clb_error;

#if defined(__GNUC__)
#define CLB_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define CLB_PRINTF(a, b)
#endif

/* Stores code and message (err may be NULL); the value is the code. Macros around the storing functions, so that the
 * compiler sees that a failure is never OK. */
#define clb_fail(err, code, ...) (clb_error_set((err), (code), __VA_ARGS__), clb_error_code(code))
/* Same, appending ": " and the text of errno value `errnum`. */
#define clb_fail_errno(err, code, errnum, ...)                                                                         \
    (clb_error_set_errno((err), (code), (errnum), __VA_ARGS__), clb_error_code(code))
/* Puts "context: " in front of the message already in err. Returns err->code. */
int clb_context(clb_error *err, const char *fmt, ...) CLB_PRINTF(2, 3);

void clb_error_set(clb_error *err, int code, const char *fmt, ...) CLB_PRINTF(3, 4);
void clb_error_set_errno(clb_error *err, int code, int errnum, const char *fmt, ...) CLB_PRINTF(4, 5);
static inline int clb_error_code(int code)
{
    return code;
}

const char *clb_status_name(int code); /* "NOT_FOUND" */
const char *clb_status_text(int code); /* "a file, key or id does not exist" */
int clb_status_exit_code(int code);

#define CLB_TRY(expr)                                                                                                  \
    do {                                                                                                               \
        const int clb_try_ = (expr);                                                                                   \
        if (clb_try_)                                                                                                  \
            return clb_try_;                                                                                           \
    } while (0)

/* With `int rc = COLIBRI_OK;` and a label `done:` in scope. */
#define CLB_GO(expr)                                                                                                   \
    do {                                                                                                               \
        rc = (expr);                                                                                                   \
        if (rc)                                                                                                        \
            goto done;                                                                                                 \
    } while (0)

#define CLB_NOMEM(err, what) clb_fail((err), COLIBRI_E_NOMEM, "out of memory: %s", (what))

#endif
