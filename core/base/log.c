#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void clb_log_set_level(clb_log *log, int level)
{
    __atomic_store_n(&log->level, level, __ATOMIC_RELAXED);
}

void clb_logf(const clb_log *log, int level, const char *fmt, ...)
{
    if (!log || !log->write || level > __atomic_load_n(&log->level, __ATOMIC_RELAXED))
        return;
    char line[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    log->write(log->ctx, level, line);
}

void clb_progress(const clb_log *log, const char *job, uint64_t done, uint64_t total)
{
    if (log && log->progress)
        log->progress(log->ctx, job, done, total);
}
