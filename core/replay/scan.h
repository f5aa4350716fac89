/* Lines of CSV and flat JSON objects, one value after the other. */
#ifndef CLB_REPLAY_SCAN_H
#define CLB_REPLAY_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* A line; not NUL-terminated. */
typedef struct clb_scan {
    const char *at, *end;
} clb_scan;

typedef struct clb_numbers {
    double *v;
    size_t n, cap;
} clb_numbers;

void clb_numbers_free(clb_numbers *n);

/* Each reads one field and the comma behind it. A number may be empty: NAN. A list is numbers between spaces. LIMIT and
 * FORMAT errors say what, not where. */
int clb_scan_csv_text(clb_scan *c, char *out, size_t size, clb_error *err);
int clb_scan_csv_number(clb_scan *c, double *out, clb_error *err);
int clb_scan_csv_list(clb_scan *c, clb_numbers *out, clb_error *err);

/* open, then while *more: key, value, next; then end. A number may be null: NAN. */
int clb_scan_json_open(clb_scan *c, bool *more, clb_error *err);
int clb_scan_json_key(clb_scan *c, char *out, size_t size, clb_error *err);
int clb_scan_json_text(clb_scan *c, char *out, size_t size, clb_error *err);
int clb_scan_json_number(clb_scan *c, double *out, clb_error *err);
int clb_scan_json_list(clb_scan *c, clb_numbers *out, clb_error *err);
int clb_scan_json_skip(clb_scan *c, clb_error *err);
int clb_scan_json_next(clb_scan *c, bool *more, clb_error *err);
int clb_scan_json_end(clb_scan *c, clb_error *err);

#endif
