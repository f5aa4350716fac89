#include "cpu/topology.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/internal.h"

#define HWLOC_ROOM ((size_t)8 << 20) /* it takes less than 1 MiB here; more CPUs, more nodes */

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

uint32_t clb_fast_kinds(const clb_core_kind *kinds, uint32_t n, bool *fast)
{
    bool typed = false;
    uint32_t most = 0, cores = 0;
    for (uint32_t i = 0; i < n; i++) {
        typed = typed || (kinds[i].type && !strcmp(kinds[i].type, "IntelCore"));
        most = kinds[i].capacity > most ? kinds[i].capacity : most;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (typed)
            fast[i] = kinds[i].type && !strcmp(kinds[i].type, "IntelCore");
        else
            fast[i] = !kinds[i].capacity || kinds[i].capacity >= (most + 1) / 2;
        cores += fast[i] ? kinds[i].cores : 0;
    }
    return cores;
}

static uint32_t cores_in(hwloc_topology_t topology, hwloc_const_bitmap_t set)
{
    uint32_t n = 0;
    for (hwloc_obj_t c = NULL; (c = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, c)) != NULL;)
        n += hwloc_bitmap_intersects(c->cpuset, set) ? 1 : 0;
    return n;
}

#define MOST_KINDS 16

/* The hardware threads of the fast kinds, or of all cores if the system tells of none. */
static void fast_set(hwloc_topology_t topology, hwloc_bitmap_t out)
{
    hwloc_bitmap_copy(out, hwloc_topology_get_topology_cpuset(topology));
    const int n = hwloc_cpukinds_get_nr(topology, 0);
    hwloc_bitmap_t sets[MOST_KINDS];
    clb_core_kind kinds[MOST_KINDS] = {{0}};
    bool fast[MOST_KINDS];
    if (n < 2 || n > MOST_KINDS)
        return;
    for (int i = 0; i < n; i++) {
        unsigned n_infos = 0;
        struct hwloc_info_s *infos = NULL;
        sets[i] = hwloc_bitmap_alloc();
        if (!sets[i] || hwloc_cpukinds_get_info(topology, (unsigned)i, sets[i], NULL, &n_infos, &infos, 0))
            continue; /* no cores, no claims */
        kinds[i].cores = cores_in(topology, sets[i]);
        for (unsigned k = 0; k < n_infos; k++)
            if (!strcmp(infos[k].name, "CoreType"))
                kinds[i].type = infos[k].value;
            else if (!strcmp(infos[k].name, "LinuxCapacity"))
                kinds[i].capacity = (uint32_t)strtoul(infos[k].value, NULL, 10);
    }
    if (clb_fast_kinds(kinds, (uint32_t)n, fast))
        for (int i = 0; i < n; i++)
            if (sets[i] && !fast[i])
                hwloc_bitmap_andnot(out, out, sets[i]);
    for (int i = 0; i < n; i++)
        hwloc_bitmap_free(sets[i]);
}

/* hwloc does not look whether it got the memory that it asked for: the process would die of it. */
static bool has_room(void)
{
    void *volatile room = malloc(HWLOC_ROOM);
    free(room);
    return room != NULL;
}

bool clb_topology_open(hwloc_topology_t *out)
{
    if (access("/sys/devices/system/cpu", F_OK) || !has_room() || hwloc_topology_init(out))
        return false; /* without sysfs hwloc would only complain on standard error */
    if (!load(*out))
        return true;
    hwloc_topology_destroy(*out);
    return false;
}

void clb_topology_read(clb_topology *out)
{
    *out = (clb_topology){.threads = bound_threads(), .numa = 1, .packages = 1, .model = "unknown"};
    out->cores = out->threads;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->narrowed = online > 0 && out->threads < (uint32_t)online;
    out->quota = clb_cgroup_cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup");

    hwloc_topology_t topology;
    if (!clb_topology_open(&topology))
        return;
    out->threads = count(topology, HWLOC_OBJ_PU, out->threads);
    out->cores = count(topology, HWLOC_OBJ_CORE, out->threads);
    out->numa = count(topology, HWLOC_OBJ_NUMANODE, 1);
    out->packages = count(topology, HWLOC_OBJ_PACKAGE, 1);
    const hwloc_bitmap_t fast = hwloc_bitmap_alloc();
    if (fast) {
        fast_set(topology, fast);
        out->fast_cores = cores_in(topology, fast);
        hwloc_bitmap_free(fast);
    }
    const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (!name)
        name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "CPUModel");
    if (name && *name)
        copy_model(name, out->model, sizeof out->model);
    hwloc_topology_destroy(topology);
}

uint32_t clb_topology_default_threads(const clb_topology *t)
{
    const double quota = ceil(t->quota);
    const uint32_t cores = t->fast_cores ? t->fast_cores : t->cores;
    if (quota >= 1 && quota < (double)cores)
        return (uint32_t)quota;
    return cores ? cores : 1;
}

uint32_t clb_cpu_default_threads(void)
{
    clb_topology t;
    clb_topology_read(&t);
    return clb_topology_default_threads(&t);
}

/* ---- binding workers ---------------------------------------------------------------------------------- */

struct pin_job {
    hwloc_topology_t topology;
    hwloc_const_bitmap_t *cores; /* [n_workers] */
    bool caller;
};

static void pin_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    const struct pin_job *job = ctx;
    if (worker || job->caller)
        hwloc_set_cpubind(job->topology, job->cores[worker], HWLOC_CPUBIND_THREAD); /* refused: stays where it was */
}

/* The first n cores, those of `fast` before the others. */
static uint32_t choose_cores(hwloc_topology_t topology, hwloc_const_bitmap_t fast, hwloc_const_bitmap_t *cores,
                             uint32_t n)
{
    uint32_t found = 0;
    for (int pass = 0; pass < 2; pass++)
        for (hwloc_obj_t c = NULL; found < n && (c = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, c)) != NULL;)
            if ((hwloc_bitmap_intersects(c->cpuset, fast) ? 0 : 1) == pass)
                cores[found++] = c->cpuset;
    return found;
}

static const char *pin_all(clb_pins *pins, clb_pool *pool, bool caller)
{
    const uint32_t n = clb_pool_workers(pool);
    struct pin_job job = {.caller = caller};
    if (caller && sched_getaffinity(0, sizeof pins->before, &pins->before))
        return "this machine has more CPUs than could be restored";
    if (!clb_topology_open(&job.topology))
        return "the system does not tell its cores";
    const hwloc_bitmap_t fast = hwloc_bitmap_alloc();
    job.cores = calloc(n, sizeof *job.cores);
    const char *why = "out of memory";
    if (fast && job.cores) {
        fast_set(job.topology, fast);
        why = choose_cores(job.topology, fast, job.cores, n) == n ? NULL : "there are more threads than cores";
    }
    if (!why) {
        clb_pool_run(pool, pin_worker, &job);
        pins->caller = caller;
    }
    hwloc_bitmap_free(fast);
    free(job.cores);
    hwloc_topology_destroy(job.topology);
    return why;
}

const char *clb_pins_set(clb_pins *pins, clb_pool *pool, bool always, bool caller)
{
    pins->caller = false;
    clb_topology t;
    clb_topology_read(&t);
    const uint32_t n = clb_pool_workers(pool);
    if (n == 1 && !always)
        return "there is one thread";
    if (n > t.cores)
        return "there are more threads than cores";
    if (!always && t.narrowed)
        return "the process was bound to some CPUs by who started it";
    if (!always && t.quota > 0 && t.quota < (double)t.cores)
        return "a cgroup limits the CPU time";
    if (!always && n != t.cores && n != t.fast_cores)
        return "the threads leave cores free";
    return pin_all(pins, pool, caller);
}

void clb_pins_release(clb_pins *pins)
{
    if (pins->caller)
        sched_setaffinity(0, sizeof pins->before, &pins->before);
    pins->caller = false;
}
