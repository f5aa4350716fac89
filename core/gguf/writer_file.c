/* Where a new GGUF file goes: a path (atomically), a descriptor, a buffer. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/internal.h"
#include "gguf/writer_internal.h"

typedef struct fd_sink {
    int fd;
    const char *name;
} fd_sink;

static int put_fd(void *ctx, const void *data, size_t n, clb_error *err)
{
    const fd_sink *s = ctx;
    const char *p = data;
    char path[304];
    while (n) {
        const ssize_t done = write(s->fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return clb_fail_errno(err, COLIBRI_E_IO, done < 0 ? errno : ENOSPC, "cannot write %s",
                                  clb_gguf_short_path(s->name, path));
        p += done;
        n -= (size_t)done;
    }
    return COLIBRI_OK;
}

int clb_gguf_writer_write_fd(clb_gguf_writer *w, int fd, const char *name, clb_error *err)
{
    fd_sink s = {fd, name};
    return clb_gguf_writer_emit(w, &(clb_gguf_sink){put_fd, &s}, err);
}

static int put_buf(void *ctx, const void *data, size_t n, clb_error *err)
{
    return clb_buf_append(ctx, data, n, err);
}

int clb_gguf_writer_write_buf(clb_gguf_writer *w, clb_buf *out, clb_error *err)
{
    return clb_gguf_writer_emit(w, &(clb_gguf_sink){put_buf, out}, err);
}

/* Follows a link at path (so that the file behind it is replaced, not the link) and refuses what must not be
 * replaced. */
static int examine(const char *path, unsigned flags, clb_gguf_target *t, clb_error *err)
{
    struct stat st;
    char buf[304];
    const char *shown = clb_gguf_short_path(path, buf);
    if (lstat(path, &st)) {
        if (errno != ENOENT)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", shown);
        t->path = strdup(path);
        return t->path ? COLIBRI_OK : CLB_NOMEM(err, "a path");
    }
    const bool is_link = S_ISLNK(st.st_mode);
    t->path = is_link ? realpath(path, NULL) : strdup(path);
    if (!t->path && (!is_link || errno == ENOMEM))
        return CLB_NOMEM(err, "a path");
    if (!t->path)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot follow the link %s", shown);
    if (stat(t->path, &st))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot examine %s", shown);
    if (!S_ISREG(st.st_mode))
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists and is not a regular file: choose another name", shown);
    if (!(flags & CLB_GGUF_OVERWRITE))
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists already (--force replaces it)", shown);
    t->exists = true;
    t->mode = st.st_mode & 07777;
    return COLIBRI_OK;
}

static int open_temp(clb_gguf_target *t, clb_error *err)
{
    char buf[304];
    for (int tries = 0; tries < 16; tries++) {
        uint32_t r = (uint32_t)getpid() + (uint32_t)tries;
        if (getrandom(&r, sizeof r, GRND_NONBLOCK) < 0)
            r *= 2654435761u;
        free(t->temp);
        t->temp = NULL;
        if (asprintf(&t->temp, "%s.tmp-%08x", t->path, r) < 0) {
            t->temp = NULL;
            return CLB_NOMEM(err, "a path");
        }
        t->fd = open(t->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (t->fd >= 0 || errno != EEXIST)
            break;
    }
    if (t->fd >= 0)
        return COLIBRI_OK;
    const int why = errno;
    free(t->temp); /* not ours to remove */
    t->temp = NULL;
    return clb_fail_errno(err, why == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, why,
                          "cannot create a file beside %s", clb_gguf_short_path(t->path, buf));
}

/* So that the new name survives a power failure. Not every file system can sync a directory: errors do not matter. */
static void sync_directory(const char *path)
{
    char *dir = strdup(path);
    if (!dir)
        return;
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    const int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

static int rename_to_nothing(const char *from, const char *to)
{
    const int rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (rc == 0 || (errno != EINVAL && errno != ENOSYS))
        return rc;
    /* This file system cannot: the check is not atomic then. */
    return access(to, F_OK) == 0 ? (errno = EEXIST, -1) : rename(from, to);
}

/* Moves the finished file to its name. Without an old file to replace, one that appeared meanwhile is kept. */
int clb_gguf_target_publish(clb_gguf_target *t, clb_error *err)
{
    char buf[304];
    if (t->exists && !t->old ? rename(t->temp, t->path) : rename_to_nothing(t->temp, t->path))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot rename the finished file to %s",
                              clb_gguf_short_path(t->path, buf));
    free(t->temp);
    t->temp = NULL;
    t->published = true;
    sync_directory(t->path);
    return COLIBRI_OK;
}

int clb_gguf_target_set_aside(clb_gguf_target *t, clb_error *err)
{
    char buf[304];
    if (!t->exists)
        return COLIBRI_OK;
    if (asprintf(&t->old, "%s.old-%s", t->path, strrchr(t->temp, '-') + 1) < 0) {
        t->old = NULL;
        return CLB_NOMEM(err, "a path");
    }
    if (rename_to_nothing(t->path, t->old) == 0)
        return COLIBRI_OK;
    const int why = errno;
    free(t->old);
    t->old = NULL;
    if (why != ENOENT)
        return clb_fail_errno(err, COLIBRI_E_IO, why, "cannot set the old file aside: %s",
                              clb_gguf_short_path(t->path, buf));
    t->exists = false; /* somebody has removed it */
    return COLIBRI_OK;
}

int clb_gguf_target_put_back(clb_gguf_target *t, clb_error *err)
{
    char path[304], old[304];
    if (t->published)
        unlink(t->path);
    t->published = false;
    if (!t->old)
        return COLIBRI_OK;
    const int rc = rename_to_nothing(t->old, t->path);
    if (rc)
        (void)clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot put the old %s back: it is now %s",
                             clb_gguf_short_path(t->path, path), clb_gguf_short_path(t->old, old));
    free(t->old);
    t->old = NULL;
    sync_directory(t->path);
    return rc ? COLIBRI_E_IO : COLIBRI_OK;
}

void clb_gguf_target_let_go(clb_gguf_target *t)
{
    if (t->old)
        unlink(t->old);
    free(t->old);
    t->old = NULL;
}

int clb_gguf_target_open(clb_gguf_target *t, const char *path, unsigned flags, clb_error *err)
{
    char buf[304];
    CLB_TRY(examine(path, flags, t, err));
    CLB_TRY(open_temp(t, err));
    if (t->exists && fchmod(t->fd, t->mode))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot keep the permissions of %s",
                              clb_gguf_short_path(path, buf));
    return COLIBRI_OK;
}

int clb_gguf_target_finish(clb_gguf_target *t, clb_error *err)
{
    char buf[304];
    const int fd = t->fd;
    int why = fsync(fd) ? errno : 0;
    t->fd = -1;
    if (close(fd) && !why)
        why = errno;
    return why ? clb_fail_errno(err, COLIBRI_E_IO, why, "cannot write %s", clb_gguf_short_path(t->path, buf))
               : COLIBRI_OK;
}

void clb_gguf_target_drop(clb_gguf_target *t)
{
    if (t->fd >= 0)
        close(t->fd);
    if (t->temp)
        unlink(t->temp);
    free(t->temp);
    free(t->path);
    free(t->old);
    *t = (clb_gguf_target){.fd = -1};
}

int clb_gguf_writer_write(clb_gguf_writer *w, const char *path, unsigned flags, clb_error *err)
{
    clb_gguf_target t = {.fd = -1};
    int rc = COLIBRI_OK;
    CLB_GO(clb_gguf_target_open(&t, path, flags, err));
    CLB_GO(clb_gguf_writer_write_fd(w, t.fd, path, err));
    CLB_GO(clb_gguf_target_finish(&t, err));
    CLB_GO(clb_gguf_target_publish(&t, err));
done:
    clb_gguf_target_drop(&t);
    return rc;
}
