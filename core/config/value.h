/* One setting's value: text checked against its type. */
#ifndef CLB_CONFIG_VALUE_H
#define CLB_CONFIG_VALUE_H

#include "config/settings.h"

typedef struct clb_value {
    char *text;         /* as given, without surrounding blanks */
    uint64_t u;         /* INT, SIZE, a SHARE that is a number; BOOL as 0 or 1 */
    double f;           /* REAL; a SHARE that is one, 0 < f <= 1, else 0 */
    const char **items; /* LIST, PATHS: pointers into `joined` */
    size_t n_items;
    char *joined;
} clb_value;

/* Fills *out (old content is not released). Messages have no location: the caller puts it in front with clb_context. */
int clb_value_parse(const clb_setting_info *info, const char *text, clb_value *out, clb_error *err);
void clb_value_free(clb_value *value);

int clb_parse_u64(const char *text, uint64_t *out, clb_error *err);
int clb_parse_size(const char *text, uint64_t *out, clb_error *err);
/* Decimal, independent of the locale; no hexadecimal, infinity or NaN. */
int clb_parse_f64(const char *text, double *out, clb_error *err);
/* A whole number, into out->n, or a share, "25%" or "12.5%", into out->part: 0 < part <= 1. */
int clb_parse_share(const char *text, clb_share *out, clb_error *err);
int clb_parse_bool(const char *text, bool *out, clb_error *err);

#endif
