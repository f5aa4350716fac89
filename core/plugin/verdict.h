/* A decision written down: every comparison in order, for `colibri plugins why`. */
#ifndef CLB_PLUGIN_VERDICT_H
#define CLB_PLUGIN_VERDICT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct clb_check {
    const char *rule; /* static: "file", "note", "abi", "cpu", "deny", "version", "load", "component", "rank", ... */
    bool pass;        /* false: this is what decided against it */
    char *detail;     /* one line */
} clb_check;

/* Zero-initialise; free with clb_verdict_free. */
typedef struct clb_verdict {
    clb_check *checks;
    size_t n;
} clb_verdict;

/* Out of memory loses the line: a record must not make a decision fail. NULL verdict: nothing is recorded. */
void clb_verdict_add(clb_verdict *v, const char *rule, bool pass, const char *fmt, ...) CLB_PRINTF(4, 5);
void clb_verdict_free(clb_verdict *v);

#endif
