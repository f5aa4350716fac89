#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
