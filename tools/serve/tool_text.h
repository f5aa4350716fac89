/* Text in which some marks do not occur, as rules of a grammar. */
#ifndef CLB_SERVE_TOOL_TEXT_H
#define CLB_SERVE_TOOL_TEXT_H

#include "base/error.h"
#include "base/str.h"

#define CLB_TEXT_MARKS 8 /* at most */

/* Appends rules to `rules`; the first one, NAME-0, is any text in which none of the marks occurs (NULL ones are
 * skipped). `name`: letters and digits, of no other rule. Marks are UTF-8 and may begin within themselves and within
 * each other. */
int clb_text_without(const char *name, const char *const *marks, size_t n, clb_buf *rules, clb_error *err);

#endif
