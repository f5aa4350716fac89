/* INI text to (section, key, value, line) calls. See docs/configuration.md for the syntax. */
#ifndef CLB_CONFIG_INI_H
#define CLB_CONFIG_INI_H

#include "base/error.h"

/* key and value are NULL for the section line itself. Messages of errors it returns get "name:line: " in front. */
typedef int (*clb_ini_fn)(void *ctx, const char *section, const char *key, const char *value, unsigned line,
                          clb_error *err);

/* `name` stands for the text in messages. Errors: FORMAT (not INI text), USAGE (from fn), with name and line. */
int clb_ini_parse(const char *text, size_t n, const char *name, clb_ini_fn fn, void *ctx, clb_error *err);

#endif
