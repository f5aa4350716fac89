/* One grammar as a part of another one. */
#ifndef CLB_SERVE_GBNF_RENAME_H
#define CLB_SERVE_GBNF_RENAME_H

#include "base/error.h"
#include "base/str.h"

/* Appends the grammar with the prefix before the name of each rule, "root" included, so that they are none of another
 * grammar's. It must be a valid one (clb_grammar_parse). */
int clb_gbnf_rename(const char *gbnf, const char *prefix, clb_buf *out, clb_error *err);

#endif
