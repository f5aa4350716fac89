/* Log lines to one sink, and progress on long jobs.
 *
 * The sink is a value (no global state): the engine, the registry and the tools hand a `const clb_log *` on.
 * NULL means silent. Levels are those of colibri/plugin.h. All functions are [any-thread]. */
#ifndef CLB_BASE_LOG_H
#define CLB_BASE_LOG_H

#include <stdint.h>

#include "base/error.h"
#include "colibri/plugin.h"

typedef struct clb_log {
    int level; /* lines above this level are dropped; clb_log_set_level while others write */
    void (*write)(void *ctx, int level, const char *line);
    /* Progress of a job that may take more than two seconds: done of total, unit of its own; NULL: none. */
    void (*progress)(void *ctx, const char *job, uint64_t done, uint64_t total);
    void *ctx;
} clb_log;

void clb_log_set_level(clb_log *log, int level);
void clb_logf(const clb_log *log, int level, const char *fmt, ...) CLB_PRINTF(3, 4);
void clb_progress(const clb_log *log, const char *job, uint64_t done, uint64_t total);

#endif
