/* Byte strings with a length, a growing buffer, and the nearest-name search of error messages. */
#ifndef CLB_BASE_STR_H
#define CLB_BASE_STR_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A view: not owned, not NUL-terminated. */
typedef struct clb_str {
    const char *p;
    size_t n;
} clb_str;

/* A growing byte buffer; data is NUL-terminated after every call. Zero-initialise; free with clb_buf_free. */
typedef struct clb_buf {
    char *data;
    size_t n, cap;
} clb_buf;

int clb_buf_append(clb_buf *buf, const void *data, size_t n, clb_error *err);
/* The rest of an open file, as `path` in messages; IO, or LIMIT if the buffer would grow beyond `most` bytes. */
int clb_buf_read(clb_buf *buf, int fd, const char *path, size_t most, clb_error *err);
int clb_buf_printf(clb_buf *buf, clb_error *err, const char *fmt, ...) CLB_PRINTF(3, 4);
void clb_buf_free(clb_buf *buf);

/* Edit distance (insert, delete, replace, swap of neighbours), case-insensitive, capped at 64 bytes a side. */
size_t clb_edit_distance(const char *a, const char *b);
/* Index of the name nearest to `word`, or -1 if none is near enough to be worth naming. */
long clb_nearest(const char *word, const char *const *names, size_t n);

/* "1.5 GiB" into out; returns out. */
char *clb_human_bytes(uint64_t bytes, char out[24]);

#endif
