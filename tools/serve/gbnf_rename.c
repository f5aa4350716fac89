#include "serve/gbnf_rename.h"

#include <stdbool.h>
#include <string.h>

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The length of what begins at `at` and has no names in it: a literal, a class, a token, a repetition, a comment; 1 for
 * any other character. */
static size_t opaque(const char *at)
{
    const char close = *at == '"'   ? '"'
                       : *at == '[' ? ']'
                       : *at == '<' ? '>'
                       : *at == '{' ? '}'
                       : *at == '#' ? '\n'
                                    : 0;
    size_t n = 1;
    if (!close)
        return 1;
    while (at[n] && at[n] != close)
        n += at[n] == '\\' && (close == '"' || close == ']') && at[n + 1] ? 2 : 1;
    return at[n] ? n + 1 : n;
}

int clb_gbnf_rename(const char *gbnf, const char *prefix, clb_buf *out, clb_error *err)
{
    while (*gbnf) {
        size_t n = 0;
        while (is_name(gbnf[n]))
            n++;
        if (n)
            CLB_TRY(clb_buf_append(out, prefix, strlen(prefix), err));
        else
            n = opaque(gbnf);
        CLB_TRY(clb_buf_append(out, gbnf, n, err));
        gbnf += n;
    }
    return COLIBRI_OK;
}
