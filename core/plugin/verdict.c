#include "plugin/verdict.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void clb_verdict_add(clb_verdict *v, const char *rule, bool pass, const char *fmt, ...)
{
    if (!v)
        return;
    char *detail = NULL;
    va_list args;
    va_start(args, fmt);
    const int n = vasprintf(&detail, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    clb_check *const checks = realloc(v->checks, (v->n + 1) * sizeof *checks);
    if (!checks) {
        free(detail);
        return;
    }
    v->checks = checks;
    v->checks[v->n++] = (clb_check){rule, pass, detail};
}

void clb_verdict_free(clb_verdict *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->checks[i].detail);
    free(v->checks);
    *v = (clb_verdict){0};
}
