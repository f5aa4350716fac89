/* Bytes of a GGUF file. Headers are read with pread into one growing block, not mapped: a file that shrinks while it is
 * mapped kills the process, a short read is an error message. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/internal.h"

#define FIRST_READ ((size_t)64 << 10)

const char *clb_gguf_short_path(const char *path, char buf[304])
{
    const size_t n = strlen(path);
    if (n <= 300)
        return path;
    snprintf(buf, 304, "...%s", path + n - 300);
    return buf;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)                    ? "a directory"
           : S_ISFIFO(mode)                 ? "a pipe"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
           : S_ISSOCK(mode)                 ? "a socket"
                                            : "not a regular file";
}

int clb_gguf_source_open(clb_gguf_source *src, const char *path, clb_error *err)
{
    char buf[304];
    const char *shown = clb_gguf_short_path(path, buf);
    src->fd = -1;
    src->path = strdup(path);
    if (!src->path)
        return CLB_NOMEM(err, "the path of a GGUF file");
    /* O_NONBLOCK: a FIFO must not hang us before fstat can refuse it. */
    src->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (src->fd < 0) {
        const int code = errno == ENOENT || errno == ENOTDIR ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO;
        return clb_fail_errno(err, code, errno, "cannot open %s", shown);
    }
    struct stat st;
    if (fstat(src->fd, &st))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot examine %s", shown);
    if (!S_ISREG(st.st_mode))
        return clb_fail(err, COLIBRI_E_FORMAT, "%s is %s, expected a GGUF file", shown, kind_of(st.st_mode));
    /* Cleared again: with it, asynchronous reads of this descriptor could return EAGAIN. */
    const int flags = fcntl(src->fd, F_GETFL);
    if (flags < 0 || fcntl(src->fd, F_SETFL, flags & ~O_NONBLOCK))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot prepare %s for reading", shown);
    src->size = (uint64_t)st.st_size;
    return COLIBRI_OK;
}

int clb_gguf_source_borrow(clb_gguf_source *src, const void *data, size_t size, const char *name, clb_error *err)
{
    src->fd = -1;
    src->path = strdup(name);
    if (!src->path)
        return CLB_NOMEM(err, "the name of a GGUF image");
    src->borrowed = data;
    src->size = size;
    return COLIBRI_OK;
}

void clb_gguf_source_close(clb_gguf_source *src)
{
    if (src->path && src->fd >= 0)
        close(src->fd);
    free(src->path);
    free(src->block);
    *src = (clb_gguf_source){.fd = -1};
}

int clb_gguf_source_read(const clb_gguf_source *src, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    if (src->fd < 0) {
        if (size)
            memcpy(buf, src->borrowed + offset, size);
        return COLIBRI_OK;
    }
    char *to = buf;
    char short_buf[304];
    while (size) {
        /* Linux moves at most 0x7ffff000 bytes per call. */
        const size_t ask = size < ((size_t)1 << 30) ? size : (size_t)1 << 30;
        const ssize_t got = pread(src->fd, to, ask, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "%s: cannot read %zu bytes at byte %llu",
                                  clb_gguf_short_path(src->path, short_buf), ask, (unsigned long long)offset);
        if (got == 0)
            return clb_fail(err, COLIBRI_E_IO,
                            "%s: ends at byte %llu, but had %llu bytes when it was opened: it was truncated meanwhile",
                            clb_gguf_short_path(src->path, short_buf), (unsigned long long)offset,
                            (unsigned long long)src->size);
        to += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return COLIBRI_OK;
}

int clb_gguf_source_need(clb_gguf_source *src, size_t end, clb_error *err)
{
    if (src->borrowed || src->fd < 0 || end <= src->have)
        return COLIBRI_OK;
    size_t cap = src->cap ? 2 * src->cap : FIRST_READ;
    if (cap < end)
        cap = end;
    if (cap > src->size)
        cap = (size_t)src->size;
    unsigned char *block = realloc(src->block, cap);
    if (!block)
        return CLB_NOMEM(err, "the header of a GGUF file");
    src->block = block;
    src->cap = cap;
    CLB_TRY(clb_gguf_source_read(src, src->have, block + src->have, cap - src->have, err));
    src->have = cap;
    return COLIBRI_OK;
}

int clb_gguf_source_seal(clb_gguf_source *src, size_t end, clb_error *err)
{
    unsigned char *block = realloc(src->block, end);
    if (!block)
        return CLB_NOMEM(err, "the header of a GGUF file");
    if (src->borrowed)
        memcpy(block, src->borrowed, end);
    src->block = block;
    src->have = src->cap = end;
    return COLIBRI_OK;
}
