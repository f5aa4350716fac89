/* JSON text straight into a buffer: what a stream writes for every token, without a tree of values.
 *
 * The calls never fail on their own: after one that could not allocate, the buffer counts as broken (`failed`), and the
 * caller looks once at the end. */
#ifndef CLB_SERVE_JSON_WRITE_H
#define CLB_SERVE_JSON_WRITE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

typedef struct clb_json_buf {
    clb_buf buf;
    bool failed;
} clb_json_buf;

void clb_jb_raw(clb_json_buf *b, const char *text); /* as it is: punctuation, names */
void clb_jb_bytes(clb_json_buf *b, const void *data, size_t n);
/* In quotes and escaped; bytes that are not UTF-8 become U+FFFD. */
void clb_jb_string(clb_json_buf *b, const char *text, size_t n);
void clb_jb_text(clb_json_buf *b, const char *text); /* NUL-terminated */
void clb_jb_uint(clb_json_buf *b, uint64_t value);
/* Nine significant digits; null for what is not a number, -9999.0 (as OpenAI has it) for an impossible logarithm. */
void clb_jb_real(clb_json_buf *b, double value);
void clb_jb_json(clb_json_buf *b, const json_t *value); /* compact */
void clb_jb_free(clb_json_buf *b);

#endif
