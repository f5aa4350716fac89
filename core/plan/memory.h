/* What memory there is: the machine's, the cgroup's, this process's. */
#ifndef CLB_PLAN_MEMORY_H
#define CLB_PLAN_MEMORY_H

#include <stdint.h>

/* Bytes that this process may still take: MemAvailable, or less where a cgroup limit (v1 or v2) says so.
 * 0 if nothing can be found out. */
uint64_t clb_memory_available(void);
/* Resident bytes of this process now, its code counted in full: how much of that is mapped in at the moment depends on
 * the page cache, and would make a plan fit in one run and not in the next. 0 if unknown. */
uint64_t clb_memory_resident(void);
/* What the process's cgroups leave, by the files of `sysfs` ("/sys/fs/cgroup", at most 200 bytes) and `proc_cgroup`
 * ("/proc/self/cgroup"); UINT64_MAX if nothing limits it. For clb_memory_available and tests. */
uint64_t clb_memory_cgroup_room(const char *sysfs, const char *proc_cgroup);

#endif
