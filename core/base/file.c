#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

void clb_file_make_folders(const char *path)
{
    char dir[PATH_MAX];
    if (strlen(path) >= sizeof dir)
        return;
    memcpy(dir, path, strlen(path) + 1);
    for (char *slash = strchr(dir + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(dir, 0700);
        *slash = '/';
    }
}

static int write_all(int fd, const char *name, const void *data, size_t n, clb_error *err)
{
    const char *from = data;
    while (n) {
        const ssize_t done = write(fd, from, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", name);
        from += done;
        n -= (size_t)done;
    }
    return COLIBRI_OK;
}

static int replace(const char *path, const void *data, size_t n, bool sync, clb_error *err)
{
    char *temp = NULL;
    if (asprintf(&temp, "%s.XXXXXX", path) < 0)
        return CLB_NOMEM(err, "a file name");
    const int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        const int rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", path);
        free(temp);
        return rc;
    }
    int rc = write_all(fd, temp, data, n, err);
    if (!rc && sync && fsync(fd))
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", temp);
    if (close(fd) && !rc)
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", temp);
    if (!rc && rename(temp, path))
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot replace %s", path);
    if (rc)
        (void)unlink(temp);
    free(temp);
    return rc;
}

int clb_file_replace(const char *path, const void *data, size_t n, bool sync, clb_error *err)
{
    char *const real = realpath(path, NULL);
    const int rc = replace(real ? real : path, data, n, sync, err);
    free(real);
    return rc;
}

/* ---- piece by piece ---- */

/* mkostemp's files are for their owner alone; these get the usual permissions, or the old file's. */
static int open_temp(clb_new_file *f, const struct stat *old, clb_error *err)
{
    for (uint32_t tries = 0; tries < 16; tries++) {
        uint32_t r = (uint32_t)getpid() + tries;
        if (getrandom(&r, sizeof r, GRND_NONBLOCK) < 0)
            r *= 2654435761u;
        free(f->temp);
        f->temp = NULL;
        if (asprintf(&f->temp, "%s.tmp-%08x", f->path, r) < 0) {
            f->temp = NULL;
            return CLB_NOMEM(err, "a file name");
        }
        f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd >= 0 && (!old || fchmod(f->fd, old->st_mode & 07777) == 0))
            return COLIBRI_OK;
        if (f->fd >= 0 || errno != EEXIST)
            break;
    }
    const int why = errno;
    if (f->fd < 0) { /* not ours to remove */
        free(f->temp);
        f->temp = NULL;
    }
    return clb_fail_errno(err, COLIBRI_E_IO, why, "cannot create %s", f->path);
}

int clb_file_begin(clb_new_file *f, const char *path, bool replace, clb_error *err)
{
    struct stat st;
    *f = (clb_new_file){.fd = -1, .replace = replace};
    f->path = realpath(path, NULL);
    if (!f->path)
        f->path = strdup(path);
    if (!f->path)
        return CLB_NOMEM(err, "a file name");
    const bool exists = stat(f->path, &st) == 0;
    if (exists && !replace)
        return clb_fail(err, COLIBRI_E_USAGE, "%s exists; --force replaces it", path);
    if (!exists || S_ISREG(st.st_mode))
        return open_temp(f, exists ? &st : NULL, err);
    f->fd = open(f->path, O_WRONLY | O_CLOEXEC);
    return f->fd < 0 ? clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write %s", path) : COLIBRI_OK;
}

int clb_file_write(clb_new_file *f, const void *data, size_t n, clb_error *err)
{
    return write_all(f->fd, f->path, data, n, err);
}

/* Without --force a file that appeared meanwhile stays. */
static int move(const clb_new_file *f)
{
    if (f->replace)
        return rename(f->temp, f->path);
    const int rc = renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_NOREPLACE);
    if (rc == 0 || (errno != EINVAL && errno != ENOSYS))
        return rc;
    return access(f->path, F_OK) == 0 ? (errno = EEXIST, -1) : rename(f->temp, f->path);
}

int clb_file_finish(clb_new_file *f, clb_error *err)
{
    const int fd = f->fd;
    f->fd = -1;
    int why = f->temp && fsync(fd) ? errno : 0;
    if (close(fd) && !why)
        why = errno;
    if (!why && f->temp && move(f))
        why = errno;
    if (why)
        return clb_fail_errno(err, COLIBRI_E_IO, why, "cannot write %s", f->path);
    free(f->temp);
    f->temp = NULL;
    return COLIBRI_OK;
}

void clb_file_drop(clb_new_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->temp)
        (void)unlink(f->temp);
    free(f->temp);
    free(f->path);
    *f = (clb_new_file){.fd = -1};
}
