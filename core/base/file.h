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

#endif
