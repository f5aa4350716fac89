#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int reserve(clb_buf *buf, size_t extra, clb_error *err)
{
    if (extra > SIZE_MAX - buf->n - 1)
        return CLB_NOMEM(err, "buffer size overflows");
    const size_t need = buf->n + extra + 1;
    if (need <= buf->cap)
        return COLIBRI_OK;
    size_t cap = buf->cap ? buf->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(buf->data, cap);
    if (!data)
        return CLB_NOMEM(err, "growing a buffer");
    buf->data = data;
    buf->cap = cap;
    return COLIBRI_OK;
}

int clb_buf_append(clb_buf *buf, const void *data, size_t n, clb_error *err)
{
    CLB_TRY(reserve(buf, n, err));
    if (n)
        memcpy(buf->data + buf->n, data, n);
    buf->n += n;
    buf->data[buf->n] = '\0';
    return COLIBRI_OK;
}

int clb_buf_read(clb_buf *buf, int fd, const char *path, size_t most, clb_error *err)
{
    for (;;) {
        char piece[8192];
        const ssize_t got = read(fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read %s", path);
        if (!got)
            return COLIBRI_OK;
        if ((size_t)got > most || buf->n > most - (size_t)got)
            return clb_fail(err, COLIBRI_E_LIMIT, "%s is larger than %zu bytes", path, most);
        CLB_TRY(clb_buf_append(buf, piece, (size_t)got, err));
    }
}

int clb_buf_printf(clb_buf *buf, clb_error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0)
        return clb_fail(err, COLIBRI_E_INTERNAL, "cannot format \"%s\"", fmt);
    CLB_TRY(reserve(buf, (size_t)n, err));
    va_start(args, fmt);
    vsnprintf(buf->data + buf->n, (size_t)n + 1, fmt, args);
    va_end(args);
    buf->n += (size_t)n;
    return COLIBRI_OK;
}

void clb_buf_free(clb_buf *buf)
{
    free(buf->data);
    *buf = (clb_buf){0};
}

#define EDIT_MAX 64

size_t clb_edit_distance(const char *a, const char *b)
{
    size_t row[3][EDIT_MAX + 1];
    const size_t na = strnlen(a, EDIT_MAX), nb = strnlen(b, EDIT_MAX);
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *cur = row[i % 3];
        const size_t *prev = row[(i - 1) % 3], *prev2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            size_t best = prev[j - 1] + (ca != cb);
            if (prev[j] + 1 < best)
                best = prev[j] + 1;
            if (cur[j - 1] + 1 < best)
                best = cur[j - 1] + 1;
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) && cb == tolower((unsigned char)a[i - 2]) &&
                prev2[j - 2] + 1 < best)
                best = prev2[j - 2] + 1;
            cur[j] = best;
        }
    }
    return row[na % 3][nb];
}

long clb_nearest(const char *word, const char *const *names, size_t n)
{
    long best = -1;
    size_t best_distance = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t d = clb_edit_distance(word, names[i]);
        if (best < 0 || d < best_distance) {
            best = (long)i;
            best_distance = d;
        }
    }
    const size_t limit = strlen(word) / 2 > 2 ? strlen(word) / 2 : 2;
    return best >= 0 && best_distance <= limit ? best : -1;
}

char *clb_human_bytes(uint64_t bytes, char out[24])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    size_t u = 0;
    /* with one decimal, 1023.95 and above would print as 1024.0 */
    while (v >= (u ? 1023.95 : 1024.0) && u + 1 < sizeof unit / sizeof *unit) {
        v /= 1024.0;
        u++;
    }
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return out;
}
