/* Text from a file, made safe for a terminal and for one-line messages. [any-thread] */
#ifndef CLB_BASE_ESCAPE_H
#define CLB_BASE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

#define CLB_ESCAPE_MAX 8 /* longest output of one step */

/* Takes the next character of p[0..n), n > 0: returns how many bytes it has and stores what to print in out
 * (*out_n bytes, not NUL-terminated). Printable ASCII and valid UTF-8 stay; a backslash is doubled; control characters,
 * bidirectional overrides and bytes that are not UTF-8 become \n, \t, \r, \xNN or \uNNNN. *valid (may be NULL) is
 * false for bytes that are not UTF-8. */
size_t clb_escape_step(const char *p, size_t n, char out[CLB_ESCAPE_MAX], size_t *out_n, bool *valid);

/* Escapes s into out[cap] (cap >= 4), NUL-terminated, cut with "..." if it does not fit. Returns out. */
char *clb_escape(clb_str s, char *out, size_t cap);

/* For a message that quotes foreign text: like clb_escape, except that backslashes stay as they are and that what does
 * not fit is cut at the end of a character, without dots. */
char *clb_escape_message(const char *text, char *out, size_t cap);

bool clb_is_utf8(clb_str s);

#endif
