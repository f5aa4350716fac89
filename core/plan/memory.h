/* What memory there is: the machine's, the cgroup's, this process's. */
#ifndef CLB_PLAN_MEMORY_H
#define CLB_PLAN_MEMORY_H

#include <stdint.h>

/* Bytes that this process may still take: MemAvailable, or less where a cgroup limit (v1 or v2) says so.
 * 0 if nothing can be found out. */
uint64_t clb_memory_available(void);
/* Resident bytes of this process now; 0 if unknown. */
uint64_t clb_memory_resident(void);

#endif
