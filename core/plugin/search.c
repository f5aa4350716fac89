#include "plugin/search.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ENTRIES 4096u /* *.so files of one folder */

const char *clb_search_distrust(const struct stat *st, const char *what, char why[192])
{
    if (st->st_uid != 0 && st->st_uid != geteuid()) {
        snprintf(why, 192, "the %s belongs to user %lu, neither root nor the user who runs Colibri", what,
                 (unsigned long)st->st_uid);
        return why;
    }
    if (st->st_mode & (S_IWGRP | S_IWOTH)) {
        snprintf(why, 192, "the %s is writable by %s (mode %04o): chmod go-w", what,
                 st->st_mode & S_IWOTH ? "everybody" : "its group", st->st_mode & 07777);
        return why;
    }
    return NULL;
}

/* An entry of search->files or ->dirs was refused: keeps a copy of the reason. */
static int refuse(char **slot, const char *reason, clb_error *err)
{
    *slot = strdup(reason);
    return *slot ? COLIBRI_OK : CLB_NOMEM(err, "a plugin folder's record");
}

void clb_search_file_free(clb_search_file *file)
{
    free(file->path);
    free(file->refused);
    *file = (clb_search_file){0};
}

static int open_checked(const char *path, clb_search_file *file, int *fd, clb_error *err)
{
    *fd = -1;
    char *const real = realpath(path, NULL);
    if (!real)
        return errno == ENOMEM ? CLB_NOMEM(err, path)
                               : clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno,
                                                "cannot resolve it");
    file->path = real;
    struct stat st;
    char why[192];
    /* O_NONBLOCK: opening a FIFO must not wait for its writer */
    const int f = open(real, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open it");
    if (fstat(f, &st)) {
        clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot examine it");
        close(f);
        return COLIBRI_E_IO;
    }
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    file->size = st.st_size;
    file->mtime = st.st_mtim;
    file->mode = st.st_mode & 07777;
    file->uid = st.st_uid;
    const char *reason = S_ISREG(st.st_mode) ? clb_search_distrust(&st, "file", why) : "not a regular file";
    if (reason) {
        close(f);
        return clb_fail(err, COLIBRI_E_PLUGIN, "%s", reason);
    }
    *fd = f;
    return COLIBRI_OK;
}

int clb_search_open_file(const char *path, clb_search_file *file, int *fd, clb_error *err)
{
    *file = (clb_search_file){0};
    const int rc = open_checked(path, file, fd, err);
    if (rc)
        clb_search_file_free(file);
    return rc;
}

/* ---- one folder ------------------------------------------------------------------------------------------- */

static bool is_so_name(const char *name)
{
    const size_t n = strlen(name);
    return name[0] != '.' && n > 3 && !strcmp(name + n - 3, ".so");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* Sorted names of the *.so in an open folder. Consumes fd. *too_many: the folder has more than MAX_ENTRIES. */
static int list_names(int fd, char ***out, size_t *n_out, bool *too_many, clb_error *err)
{
    DIR *const d = fdopendir(fd);
    if (!d) {
        close(fd);
        return CLB_NOMEM(err, "reading a plugin folder");
    }
    char **names = NULL;
    size_t n = 0, cap = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!is_so_name(e->d_name))
            continue;
        if (n == MAX_ENTRIES) {
            *too_many = true;
            break;
        }
        if (n == cap) {
            cap = cap ? 2 * cap : 32;
            char **const grown = realloc(names, cap * sizeof *names);
            if (!grown)
                goto nomem;
            names = grown;
        }
        names[n] = strdup(e->d_name);
        if (!names[n])
            goto nomem;
        n++;
    }
    closedir(d);
    if (n)
        qsort(names, n, sizeof *names, by_name);
    *out = names;
    *n_out = n;
    return COLIBRI_OK;
nomem:
    free_names(names, n);
    closedir(d);
    return CLB_NOMEM(err, "reading a plugin folder");
}

/* A symbolic link may lead out of the checked folder: then the folder it leads to must be as trustworthy. */
static const char *distrust_parent(const char *real, const clb_search_dir *dir, char why[192])
{
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", real);
    char *const slash = strrchr(parent, '/');
    if (!slash)
        return NULL;
    slash[slash == parent] = '\0';
    struct stat st;
    if (stat(parent, &st))
        return "its folder cannot be examined";
    if (st.st_dev == dir->dev && st.st_ino == dir->ino)
        return NULL;
    return clb_search_distrust(&st, "folder that its symbolic link leads to", why);
}

static int add_file(clb_search *s, size_t dir, const char *name, clb_error *err)
{
    clb_search_file *const files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    if (!files)
        return CLB_NOMEM(err, "a plugin's record");
    s->files = files;
    char *given = NULL;
    if (asprintf(&given, "%s/%s", s->dirs[dir].path, name) < 0)
        return CLB_NOMEM(err, "a plugin's path");
    clb_search_file *const f = &s->files[s->n_files];
    *f = (clb_search_file){.dir = dir};
    s->n_files++;

    clb_error e = {0};
    int fd = -1;
    const int rc = open_checked(given, f, &fd, &e);
    if (fd >= 0)
        close(fd); /* the registry opens it again by the resolved name */
    if (!f->path)
        f->path = given;
    else
        free(given);
    if (rc == COLIBRI_E_NOMEM)
        return clb_fail(err, rc, "%s", e.msg);
    char why[192];
    const char *reason = rc ? e.msg : distrust_parent(f->path, &s->dirs[dir], why);
    if (reason)
        return refuse(&f->refused, reason, err);
    for (size_t i = 0; i + 1 < s->n_files; i++)
        if (!s->files[i].refused && s->files[i].dev == f->dev && s->files[i].ino == f->ino) {
            char same[sizeof e.msg];
            snprintf(same, sizeof same, "the same file as %s, found earlier", s->files[i].path);
            return refuse(&f->refused, same, err);
        }
    return COLIBRI_OK;
}

/* NULL with an open descriptor, or the reason why the folder is refused. */
static const char *open_dir(clb_search *s, clb_search_dir *d, int *fd, char why[192])
{
    if (!*d->path)
        return "an empty component of the path";
    if (d->path[0] != '/')
        return "not an absolute path";
    *fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) {
        d->absent = errno == ENOENT;
        char text[96];
        snprintf(why, 192, "cannot open the folder: %s", strerror_r(errno, text, sizeof text));
        return d->absent ? "does not exist" : why;
    }
    struct stat st;
    if (fstat(*fd, &st))
        return "cannot examine the folder";
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    const char *const reason = clb_search_distrust(&st, "folder", why);
    if (reason)
        return reason;
    for (clb_search_dir *o = s->dirs; o < d; o++)
        if (!o->refused && o->dev == d->dev && o->ino == d->ino) {
            snprintf(why, 192, "the same folder as %.150s, searched earlier", o->path);
            return why;
        }
    return NULL;
}

int clb_search_add(clb_search *s, const char *path, const char *origin, clb_error *err)
{
    clb_search_dir *const dirs = realloc(s->dirs, (s->n_dirs + 1) * sizeof *dirs);
    if (!dirs)
        return CLB_NOMEM(err, "a plugin folder's record");
    s->dirs = dirs;
    clb_search_dir *const d = &s->dirs[s->n_dirs];
    *d = (clb_search_dir){.path = strdup(path), .origin = origin};
    if (!d->path)
        return CLB_NOMEM(err, "a plugin folder's record");
    s->n_dirs++;

    int fd = -1;
    char why[192];
    const char *const reason = open_dir(s, d, &fd, why);
    if (reason) {
        if (fd >= 0)
            close(fd);
        return refuse(&d->refused, reason, err);
    }
    char **names = NULL;
    size_t n = 0;
    bool too_many = false;
    CLB_TRY(list_names(fd, &names, &n, &too_many, err));
    int rc = COLIBRI_OK;
    if (too_many) /* readdir's order is arbitrary: taking the first few would make the choice random */
        rc = refuse(&d->refused, "more than 4096 *.so files in one folder", err);
    else
        for (size_t i = 0; i < n && !rc; i++)
            rc = add_file(s, s->n_dirs - 1, names[i], err);
    free_names(names, n);
    return rc;
}

int clb_search_add_list(clb_search *s, const char *list, const char *origin, clb_error *err)
{
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ":");
        char *const one = strndup(p, n);
        if (!one)
            return CLB_NOMEM(err, "a plugin folder's record");
        const int rc = clb_search_add(s, one, origin, err);
        free(one);
        CLB_TRY(rc);
        p += n;
        if (!*p)
            return COLIBRI_OK;
    }
}

void clb_search_free(clb_search *s)
{
    for (size_t i = 0; i < s->n_dirs; i++) {
        free(s->dirs[i].path);
        free(s->dirs[i].refused);
    }
    for (size_t i = 0; i < s->n_files; i++)
        clb_search_file_free(&s->files[i]);
    free(s->dirs);
    free(s->files);
    *s = (clb_search){0};
}
