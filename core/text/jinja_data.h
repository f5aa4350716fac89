/* Data for a template, built from whatever a caller has: null, booleans, numbers, strings, lists, dicts.
 *
 * One clb_jdata owns all values made with it; they are given out as pointers that live as long. Errors stick: after a
 * failure every constructor gives NULL, NULL arguments are ignored, and clb_jdata_status says what went wrong, so that
 * only the end needs a check. Bounds: bytes (given at creation), nesting (CLB_JDATA_DEPTH), NUL bytes are fine.
 *
 * Strings are tainted, keys of dicts too: what looks like a special token in them is text. clb_jdata_clean is for words
 * of the program's own, like a role. One thread at a time while building; then immutable: a rendering works on a copy.
 */
#ifndef CLB_TEXT_JINJA_DATA_H
#define CLB_TEXT_JINJA_DATA_H

#include <stdbool.h>

#include "base/error.h"
#include "base/str.h"

#define CLB_JDATA_DEPTH 100

typedef struct clb_jdata clb_jdata;
typedef struct clb_jvalue clb_jvalue;

/* `limit`: bytes that all values together may take; a value takes about 100 bytes beside its text. */
int clb_jdata_create(size_t limit, clb_jdata **out, clb_error *err);
void clb_jdata_free(clb_jdata *d);

clb_jvalue *clb_jdata_null(clb_jdata *d);
clb_jvalue *clb_jdata_bool(clb_jdata *d, bool value);
clb_jvalue *clb_jdata_int(clb_jdata *d, int64_t value);
clb_jvalue *clb_jdata_float(clb_jdata *d, double value);
clb_jvalue *clb_jdata_str(clb_jdata *d, clb_str s);                         /* copied, tainted */
clb_jvalue *clb_jdata_clean(clb_jdata *d, const char *s);                   /* copied, trusted */
clb_jvalue *clb_jdata_mixed(clb_jdata *d, clb_str s, const uint8_t *taint); /* taint[s.n]: 1 where it is tainted */
clb_jvalue *clb_jdata_list(clb_jdata *d);
clb_jvalue *clb_jdata_dict(clb_jdata *d);

/* The item belongs to its list or dict from then on and must not be added to another. A key that is there already gets
 * the new value in its old place. Keys are copied. A dict of more than a few thousand keys is refused (LIMIT). */
void clb_jdata_push(clb_jdata *d, clb_jvalue *list, const clb_jvalue *item);
void clb_jdata_set(clb_jdata *d, clb_jvalue *dict, clb_str key, const clb_jvalue *value);

/* OK, or the first error: LIMIT, NOMEM; USAGE for a push into something that is no list. */
int clb_jdata_status(const clb_jdata *d, clb_error *err);

#endif
