/* What the machine offers this process: cores, NUMA nodes, CPU time.
 *
 * Everything is read once per call (a few milliseconds), within the process's CPU binding and cgroup. */
#ifndef CLB_CPU_TOPOLOGY_H
#define CLB_CPU_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"

typedef struct clb_topology {
    uint32_t cores;      /* physical cores with at least one hardware thread that this process may use, >= 1 */
    uint32_t threads;    /* hardware threads that it may use, >= 1 */
    uint32_t numa;       /* NUMA nodes with memory that it may use, >= 1 */
    uint32_t packages;   /* >= 1 */
    double quota;        /* CPUs' worth of time that the cgroup grants; 0: no limit */
    char model[64];      /* "AMD EPYC 7763 64-Core Processor", or "unknown" */
    uint32_t fast_cores; /* of `cores`, those worth a thread (clb_fast_kinds); 0: not known, all */
    bool narrowed;       /* the process may use fewer hardware threads than are online: somebody has placed it */
} clb_topology;

/* Never fails: what cannot be found out gets the values of a machine with the threads of the CPU binding as cores. */
void clb_topology_read(clb_topology *out);

/* One thread per fast physical core, but never more than the cgroup's quota rounded up. */
uint32_t clb_topology_default_threads(const clb_topology *t);
uint32_t clb_cpu_default_threads(void);

/* A kind of cores, as the system describes it. */
typedef struct clb_core_kind {
    uint32_t cores;
    const char *type;  /* "IntelCore", "IntelAtom"; NULL: not told */
    uint32_t capacity; /* of Linux, 1024 for the fastest; 0: not told */
} clb_core_kind;

/* Which kinds are worth a thread: rows are split evenly, so a core of half the speed doubles the time of every step. Of
 * types "IntelCore" and "IntelAtom" the former; else those with at least half of the largest capacity; else all (kinds
 * that differ in their clock only, as favoured cores do). Sets fast[n], returns the cores of these kinds. */
uint32_t clb_fast_kinds(const clb_core_kind *kinds, uint32_t n, bool *fast);

/* Binding of a pool's workers, one to a core (all hardware threads of it that the process may use), fast cores first.
 * The calling thread is worker 0: it is bound with `caller` only, and threads that it starts later inherit that;
 * otherwise the first core is left to it. Without `always` nothing is bound where that could do harm: if the process's
 * binding is narrower than the machine, if a quota limits it, or if the threads leave cores free, which a second engine
 * would not find. Returns NULL if the workers are bound, else why not. */
typedef struct clb_pins {
    bool caller; /* bound: clb_pins_release has something to do */
    cpu_set_t before;
} clb_pins;
const char *clb_pins_set(clb_pins *pins, clb_pool *pool, bool always, bool caller);
/* The caller's binding as it was. Same thread. */
void clb_pins_release(clb_pins *pins);

/* The smallest CPU quota on the way from this process's cgroup to the root, in CPUs; 0: none. `sysfs` is
 * "/sys/fs/cgroup", `proc_cgroup` "/proc/self/cgroup"; tests pass their own. Knows versions 1 and 2. */
double clb_cgroup_cpu_quota(const char *sysfs, const char *proc_cgroup);

#endif
