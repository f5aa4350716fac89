/* Where plugins are looked for, and which files are trusted enough to be read.
 *
 * A directory or file counts only if its owner is root or this process's effective user and neither its group nor
 * others may write to it; a directory's name must be absolute. What is refused is recorded with its reason.
 * [main-thread] */
#ifndef CLB_PLUGIN_SEARCH_H
#define CLB_PLUGIN_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/error.h"

/* A folder of the search path, or a component of it that was refused. */
typedef struct clb_search_dir {
    char *path;         /* as given */
    const char *origin; /* "installed", "config", "COLIBRI_PLUGIN_PATH" */
    char *refused;      /* the reason; NULL: it was read */
    bool absent;        /* refused because it does not exist */
    dev_t dev;
    ino_t ino;
} clb_search_dir;

/* A *.so in one of them. */
typedef struct clb_search_file {
    char *path;    /* absolute, symbolic links resolved; the given name if that failed */
    size_t dir;    /* index of its folder */
    char *refused; /* the reason; NULL: it may be read */
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec mtime;
    uint32_t mode; /* permission bits, for messages */
    uid_t uid;
} clb_search_file;

typedef struct clb_search {
    clb_search_dir *dirs;
    size_t n_dirs;
    clb_search_file *files; /* in order of folder, then name */
    size_t n_files;
} clb_search;

/* Appends one folder and the files in it. Only NOMEM fails: the rest is recorded. */
int clb_search_add(clb_search *search, const char *dir, const char *origin, clb_error *err);
/* The same for the components of a path list ("/a:/b"); empty ones are recorded as refused. */
int clb_search_add_list(clb_search *search, const char *list, const char *origin, clb_error *err);
void clb_search_free(clb_search *search);

/* NULL if what `st` describes may be trusted, else a reason in `why`. `what` is "file" or "folder". */
const char *clb_search_distrust(const struct stat *st, const char *what, char why[192]);
/* Opens a plugin file after the same checks (regular, trusted) and fills *file except for dir. The caller closes
 * *fd. */
int clb_search_open_file(const char *path, clb_search_file *file, int *fd, clb_error *err);
void clb_search_file_free(clb_search_file *file);

#endif
