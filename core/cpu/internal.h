/* Inside core/cpu: hwloc's view of the machine. */
#ifndef CLB_CPU_INTERNAL_H
#define CLB_CPU_INTERNAL_H

#include <hwloc.h>
#include <stdbool.h>

/* Cores, packages, NUMA nodes and hardware threads that this process may use. False: the system does not tell. */
bool clb_topology_open(hwloc_topology_t *out);

#endif
