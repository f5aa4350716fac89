/* Which bytes of this process belong to loaded objects: a table from a plugin may hold pointers to nowhere, and must be
 * reported instead of followed. [any-thread] */
#ifndef CLB_PLUGIN_MAPPED_H
#define CLB_PLUGIN_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes from p to the end of the readable segment it lies in, 0 if in none. `code`: of an executable segment. */
size_t clb_mapped_size(const void *p, bool code);
/* p points to a string of at most max - 1 bytes inside a readable segment. */
bool clb_mapped_string(const char *p, size_t max);
/* Load address of the object that p lies in, 0 if none. */
uintptr_t clb_mapped_object(const void *p);

#endif
