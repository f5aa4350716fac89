/* JSON for the commands' --json. */
#ifndef CLB_TOOLS_JSON_OUT_H
#define CLB_TOOLS_JSON_OUT_H

#include <jansson.h>

#include "base/error.h"

/* Text as a JSON string; bytes that are not UTF-8 become U+FFFD. NULL: out of memory. */
json_t *clb_json_bytes(const char *text, size_t n);
json_t *clb_json_text(const char *text); /* NUL-terminated */
/* Prints to stdout with a newline and releases it; NULL is an out-of-memory error. */
int clb_json_print(json_t *json, clb_error *err);

#endif
