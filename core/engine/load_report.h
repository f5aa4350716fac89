/* What loading a model took: time, speed, memory. */
#ifndef CLB_ENGINE_LOAD_REPORT_H
#define CLB_ENGINE_LOAD_REPORT_H

#include <stdint.h>

#include "store/store.h"

typedef struct clb_load_report {
    uint64_t bytes; /* of the file, that were loaded */
    uint64_t ns;    /* of the loading alone, by the clock */
    double bytes_per_second;
    double read_share;   /* of the threads' working time; the rest is packing */
    uint64_t anon_bytes; /* the process's anonymous memory after loading; 0: unknown */
    uint64_t huge_bytes; /* of that in huge pages */
    uint64_t peak_rss;   /* of the process so far */
} clb_load_report;

clb_load_report clb_load_report_make(const clb_store_stats *stats);
/* huge_bytes / anon_bytes, 0 if unknown. */
double clb_load_report_huge_share(const clb_load_report *report);

#endif
