#include "cpu/topology.h"

#include <hwloc.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint32_t bound_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 CPUs: the set above is too small */
    return n > 0 ? (uint32_t)n : 1;
}

static uint32_t count(hwloc_topology_t topology, hwloc_obj_type_t type, uint32_t fallback)
{
    const int n = hwloc_get_nbobjs_by_type(topology, type);
    return n > 0 ? (uint32_t)n : fallback;
}

static void copy_model(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (; *name && n + 1 < size; name++) {
        const unsigned char c = (unsigned char)*name;
        const int space = c <= ' ' || c >= 0x7f;
        if (space && (n == 0 || out[n - 1] == ' '))
            continue; /* brand strings are padded with blanks */
        out[n++] = space ? ' ' : (char)c;
    }
    while (n && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
}

/* Caches, I/O devices and misc objects are not asked for, and the x86 component (which runs on every hardware thread in
 * turn to execute CPUID) stays out: Linux has told all of this in sysfs. */
static int load(hwloc_topology_t topology)
{
    return hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE) ||
           hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL) ||
           hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) ||
           hwloc_topology_set_flags(topology,
                                    HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING) ||
           hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86") ||
           hwloc_topology_load(topology);
}

void clb_topology_read(clb_topology *out)
{
    *out = (clb_topology){.threads = bound_threads(), .numa = 1, .packages = 1, .model = "unknown"};
    out->cores = out->threads;
    out->quota = clb_cgroup_cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup");

    hwloc_topology_t topology;
    if (access("/sys/devices/system/cpu", F_OK) || hwloc_topology_init(&topology))
        return; /* without sysfs hwloc would only complain on standard error */
    if (!load(topology)) {
        out->threads = count(topology, HWLOC_OBJ_PU, out->threads);
        out->cores = count(topology, HWLOC_OBJ_CORE, out->threads);
        out->numa = count(topology, HWLOC_OBJ_NUMANODE, 1);
        out->packages = count(topology, HWLOC_OBJ_PACKAGE, 1);
        const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
        const char *name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
        if (!name)
            name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "CPUModel");
        if (name && *name)
            copy_model(name, out->model, sizeof out->model);
    }
    hwloc_topology_destroy(topology);
}

uint32_t clb_topology_default_threads(const clb_topology *t)
{
    const double quota = ceil(t->quota);
    if (quota >= 1 && quota < (double)t->cores)
        return (uint32_t)quota;
    return t->cores ? t->cores : 1;
}

uint32_t clb_cpu_default_threads(void)
{
    clb_topology t;
    clb_topology_read(&t);
    return clb_topology_default_threads(&t);
}
