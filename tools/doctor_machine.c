/* Cores, memory nodes and limits of the machine below --sysroot, from its files: what the engine asks hwloc and the
 * kernel for can only be asked on the machine itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

#define CPU_DIR  "/sys/devices/system/cpu/"
#define NODE_DIR "/sys/devices/system/node/"
#define MOST     1024u
#define KINDS    16u

/* "0-3,8" into set[MOST]; returns how many. */
static uint32_t parse_list(const char *at, bool set[MOST])
{
    uint32_t n = 0;
    memset(set, 0, MOST * sizeof *set);
    while (*at >= '0' && *at <= '9') {
        char *end;
        const unsigned long first = strtoul(at, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < MOST; i++) {
            n += !set[i];
            set[i] = true;
        }
        at = end + (*end == ',');
    }
    return n;
}

/* 0 if the file is not there. */
static uint32_t read_list(const clb_doctor *d, const char *path, bool set[MOST])
{
    char line[4096];
    memset(set, 0, MOST * sizeof *set);
    return clb_doctor_line(d, path, line, sizeof line) ? parse_list(line, set) : 0;
}

/* The text behind "key" in a file of lines. */
static bool text_of(const clb_doctor *d, const char *path, const char *key, char *out, size_t size)
{
    char full[1024], line[4096];
    const int n = snprintf(full, sizeof full, "%s%s", d->root, path);
    FILE *const f = n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        found = strncmp(line, key, strlen(key)) == 0;
        if (!found)
            continue;
        char *at = line + strlen(key);
        at += strspn(at, " \t:");
        at[strcspn(at, "\n")] = '\0';
        snprintf(out, size, "%s", at);
    }
    if (f)
        fclose(f);
    return found;
}

static long long number(const clb_doctor *d, const char *path, long long otherwise)
{
    long long n;
    return clb_doctor_number(d, path, &n) ? n : otherwise;
}

struct cores {
    long long package[MOST], core[MOST];
    uint32_t n;
};

/* Notes the core of a hardware thread; false: it was known. */
static bool add_core(struct cores *c, long long package, long long core)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->package[i] == package && c->core[i] == core)
            return false;
    c->package[c->n] = package;
    c->core[c->n++] = core;
    return true;
}

static void add_kind(clb_core_kind *kinds, uint32_t *n, const char *type, uint32_t capacity)
{
    uint32_t i = 0;
    while (i < *n && (kinds[i].type != type || kinds[i].capacity != capacity))
        i++;
    if (i == KINDS)
        return;
    if (i == *n)
        kinds[(*n)++] = (clb_core_kind){.type = type, .capacity = capacity};
    kinds[i].cores++;
}

static uint32_t count_packages(const struct cores *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t k = 0;
        while (k < i && c->package[k] != c->package[i])
            k++;
        n += k == i;
    }
    return n;
}

static void look_at_cores(const clb_doctor *d, const bool *usable, struct cores *cores, clb_topology *out)
{
    bool fast[MOST], slow[MOST], is_fast[KINDS];
    clb_core_kind kinds[KINDS];
    uint32_t n_kinds = 0;
    char path[128];
    const bool typed =
        read_list(d, "/sys/devices/cpu_core/cpus", fast) && read_list(d, "/sys/devices/cpu_atom/cpus", slow);
    for (uint32_t i = 0; i < MOST; i++) {
        if (!usable[i])
            continue;
        snprintf(path, sizeof path, CPU_DIR "cpu%u/topology/physical_package_id", i);
        const long long package = number(d, path, 0);
        snprintf(path, sizeof path, CPU_DIR "cpu%u/topology/core_id", i);
        if (!add_core(cores, package, number(d, path, i)))
            continue;
        snprintf(path, sizeof path, CPU_DIR "cpu%u/cpu_capacity", i);
        add_kind(kinds, &n_kinds,
                 typed ? fast[i]   ? "IntelCore"
                         : slow[i] ? "IntelAtom"
                                   : NULL
                       : NULL,
                 (uint32_t)number(d, path, 0));
    }
    out->cores = cores->n;
    out->packages = count_packages(cores);
    if (n_kinds > 1)
        out->fast_cores = clb_fast_kinds(kinds, n_kinds, is_fast);
}

static uint32_t count_nodes(const clb_doctor *d)
{
    bool set[MOST];
    const uint32_t n = read_list(d, NODE_DIR "has_memory", set);
    return n ? n : read_list(d, NODE_DIR "online", set);
}

bool clb_doctor_topology(const clb_doctor *d, clb_topology *out)
{
    bool online[MOST], allowed[MOST];
    char list[4096], sysfs[512], group[512];
    if (!*d->root) {
        clb_topology_read(out);
        return true;
    }
    *out = (clb_topology){.numa = 1, .packages = 1, .model = "unknown"};
    const uint32_t n = read_list(d, CPU_DIR "online", online);
    struct cores *const cores = calloc(1, sizeof *cores);
    if (!n || !cores) {
        free(cores);
        return false;
    }
    out->threads = n;
    if (text_of(d, "/proc/self/status", "Cpus_allowed_list:", list, sizeof list) && *list) {
        uint32_t n_allowed = 0;
        (void)parse_list(list, allowed);
        for (uint32_t i = 0; i < MOST; i++) {
            online[i] = online[i] && allowed[i];
            n_allowed += online[i];
        }
        out->threads = n_allowed;
        out->narrowed = n_allowed < n;
    }
    look_at_cores(d, online, cores, out);
    free(cores);
    const uint32_t n_nodes = count_nodes(d);
    out->numa = n_nodes ? n_nodes : 1;
    snprintf(sysfs, sizeof sysfs, "%s/sys/fs/cgroup", d->root);
    snprintf(group, sizeof group, "%s/proc/self/cgroup", d->root);
    out->quota = clb_cgroup_cpu_quota(sysfs, group);
    (void)text_of(d, "/proc/cpuinfo", "model name", out->model, sizeof out->model);
    return out->cores > 0;
}

uint32_t clb_doctor_nodes(const clb_doctor *d, clb_numa_node *out, uint32_t most)
{
    bool memory[MOST], cpus[MOST];
    uint32_t n = 0;
    if (!*d->root)
        return clb_numa_nodes(out, most);
    if (!read_list(d, NODE_DIR "has_memory", memory) && !read_list(d, NODE_DIR "online", memory))
        return 1;
    for (uint32_t id = 0; id < MOST; id++) {
        char path[96], key[48];
        unsigned long long total = 0, unused = 0, idle = 0;
        if (!memory[id])
            continue;
        if (n < most) {
            snprintf(path, sizeof path, NODE_DIR "node%u/meminfo", id);
            snprintf(key, sizeof key, "Node %u MemTotal:", id);
            clb_doctor_key(d, path, key, &total);
            snprintf(key, sizeof key, "Node %u MemFree:", id);
            clb_doctor_key(d, path, key, &unused);
            snprintf(key, sizeof key, "Node %u Inactive(file):", id);
            clb_doctor_key(d, path, key, &idle);
            snprintf(path, sizeof path, NODE_DIR "node%u/cpulist", id);
            out[n] = (clb_numa_node){.id = id,
                                     .threads = read_list(d, path, cpus),
                                     .free_bytes = (unused + idle) << 10,
                                     .total_bytes = total << 10};
        }
        n++;
    }
    return n ? n : 1;
}

/* /proc/self/limits writes names of 26 columns, then the soft limit. */
bool clb_doctor_limit(const clb_doctor *d, const char *name, int resource, uint64_t *out)
{
    struct rlimit limit;
    char text[64];
    unsigned long long n;
    *out = UINT64_MAX;
    if (!*d->root) {
        if (getrlimit(resource, &limit))
            return false;
        *out = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
        return true;
    }
    if (!text_of(d, "/proc/self/limits", name, text, sizeof text))
        return false;
    if (strncmp(text, "unlimited", 9) != 0 && sscanf(text, "%llu", &n) == 1)
        *out = n;
    return true;
}

static uint64_t room_of(const clb_doctor *d, const char *limit_name, int resource, const char *key)
{
    uint64_t limit;
    unsigned long long used = 0;
    if (!clb_doctor_limit(d, limit_name, resource, &limit) || limit == UINT64_MAX)
        return UINT64_MAX;
    clb_doctor_key(d, "/proc/self/status", key, &used);
    return limit > used << 10 ? limit - (used << 10) : 0;
}

clb_memory_limits clb_doctor_memory_limits(const clb_doctor *d)
{
    char sysfs[512], group[512];
    unsigned long long available = 0;
    if (!*d->root)
        return clb_memory_limits_read();
    clb_memory_limits l;
    snprintf(sysfs, sizeof sysfs, "%s/sys/fs/cgroup", d->root);
    snprintf(group, sizeof group, "%s/proc/self/cgroup", d->root);
    clb_doctor_key(d, "/proc/meminfo", "MemAvailable:", &available);
    l.room[CLB_LIMIT_MACHINE] = available << 10;
    l.room[CLB_LIMIT_CGROUP] = clb_memory_cgroup_room(sysfs, group);
    l.room[CLB_LIMIT_ADDRESS_SPACE] = room_of(d, "Max address space", RLIMIT_AS, "VmSize:");
    l.room[CLB_LIMIT_DATA] = room_of(d, "Max data size", RLIMIT_DATA, "VmData:");
    return l;
}
