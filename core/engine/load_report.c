#include "engine/load_report.h"

#include <stdio.h>
#include <sys/resource.h>

/* Sums of /proc/self/smaps_rollup (Linux 4.14). */
static void read_rollup(clb_load_report *report)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    if (!f)
        return;
    char line[256];
    unsigned long long kib;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %llu", &kib) == 1)
            report->anon_bytes = kib * 1024;
        else if (sscanf(line, "AnonHugePages: %llu", &kib) == 1)
            report->huge_bytes = kib * 1024;
    fclose(f);
}

clb_load_report clb_load_report_make(const clb_store_stats *stats)
{
    clb_load_report r = {.bytes = stats->load_bytes, .ns = stats->load_ns};
    const uint64_t work = stats->load_read_ns + stats->load_pack_ns;
    r.bytes_per_second = r.ns ? (double)r.bytes * 1e9 / (double)r.ns : 0;
    r.read_share = work ? (double)stats->load_read_ns / (double)work : 0;
    read_rollup(&r);
    struct rusage usage;
    if (!getrusage(RUSAGE_SELF, &usage))
        r.peak_rss = (uint64_t)usage.ru_maxrss * 1024;
    return r;
}

double clb_load_report_huge_share(const clb_load_report *report)
{
    return report->anon_bytes ? (double)report->huge_bytes / (double)report->anon_bytes : 0;
}
