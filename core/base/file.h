/* Small files that are replaced as a whole. [any-thread] */
#ifndef CLB_BASE_FILE_H
#define CLB_BASE_FILE_H

#include <stdbool.h>

#include "base/error.h"

/* The folders above path; a failure shows when the file is opened. */
void clb_file_make_folders(const char *path);
/* Writes n bytes to a temporary file beside path and renames it: readers see the old file or the new one. `sync`: it
 * survives a power cut. A symbolic link stays, what it leads to is replaced. IO; nothing is left behind then. */
int clb_file_replace(const char *path, const void *data, size_t n, bool sync, clb_error *err);

/* A longer one, written piece by piece: beside its path until it is complete. What is there and is no regular file (a
 * pipe, a device) is written as it is. drop in any case; without finish it leaves everything as it was. */
typedef struct clb_new_file {
    int fd;
    char *path, *temp; /* links resolved; temp NULL: written as it is */
    bool replace;
} clb_new_file;
/* USAGE: path exists, and `replace` is false. */
int clb_file_begin(clb_new_file *f, const char *path, bool replace, clb_error *err);
int clb_file_write(clb_new_file *f, const void *data, size_t n, clb_error *err);
int clb_file_finish(clb_new_file *f, clb_error *err);
void clb_file_drop(clb_new_file *f);

#endif
