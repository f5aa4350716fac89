/* What memory there is: the machine's, the cgroup's, this process's. */
#ifndef CLB_PLAN_MEMORY_H
#define CLB_PLAN_MEMORY_H

#include <stdint.h>

/* What bounds the memory of this process, and the bytes that it may still take; UINT64_MAX: no such limit. */
enum clb_memory_limit {
    CLB_LIMIT_MACHINE = 0, /* MemAvailable */
    CLB_LIMIT_CGROUP,
    CLB_LIMIT_ADDRESS_SPACE, /* RLIMIT_AS */
    CLB_LIMIT_DATA,          /* RLIMIT_DATA */
    CLB_LIMITS
};
typedef struct clb_memory_limits {
    uint64_t room[CLB_LIMITS];
} clb_memory_limits;
clb_memory_limits clb_memory_limits_read(void);
enum clb_memory_limit clb_memory_tightest(const clb_memory_limits *limits);
/* "the machine's free memory", "a cgroup's limit", ... */
const char *clb_memory_limit_text(enum clb_memory_limit limit);

/* Bytes that this process may still take: the smallest of these. 0 if nothing can be found out. */
uint64_t clb_memory_available(void);
/* Resident bytes of this process now, its code counted in full: how much of that is mapped in at the moment depends on
 * the page cache, and would make a plan fit in one run and not in the next. 0 if unknown. */
uint64_t clb_memory_resident(void);
/* What the process's cgroups leave, by the files of `sysfs` ("/sys/fs/cgroup", at most 200 bytes) and `proc_cgroup`
 * ("/proc/self/cgroup"); UINT64_MAX if nothing limits it. For clb_memory_available and tests. */
uint64_t clb_memory_cgroup_room(const char *sysfs, const char *proc_cgroup);

#endif
