/* What the machine offers this process: cores, NUMA nodes, CPU time.
 *
 * Everything is read once per call (a few milliseconds), within the process's CPU binding and cgroup. */
#ifndef CLB_CPU_TOPOLOGY_H
#define CLB_CPU_TOPOLOGY_H

#include <stdint.h>

#include "base/error.h"

typedef struct clb_topology {
    uint32_t cores;    /* physical cores with at least one hardware thread that this process may use, >= 1 */
    uint32_t threads;  /* hardware threads that it may use, >= 1 */
    uint32_t numa;     /* NUMA nodes with memory that it may use, >= 1 */
    uint32_t packages; /* >= 1 */
    double quota;      /* CPUs' worth of time that the cgroup grants; 0: no limit */
    char model[64];    /* "AMD EPYC 7763 64-Core Processor", or "unknown" */
} clb_topology;

/* Never fails: what cannot be found out gets the values of a machine with the threads of the CPU binding as cores. */
void clb_topology_read(clb_topology *out);

/* One thread per physical core, but never more than the cgroup's quota rounded up. */
uint32_t clb_topology_default_threads(const clb_topology *t);
uint32_t clb_cpu_default_threads(void);

/* The smallest CPU quota on the way from this process's cgroup to the root, in CPUs; 0: none. `sysfs` is
 * "/sys/fs/cgroup", `proc_cgroup` "/proc/self/cgroup"; tests pass their own. Knows versions 1 and 2. */
double clb_cgroup_cpu_quota(const char *sysfs, const char *proc_cgroup);

#endif
