#include "plan/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static bool read_u64(const char *path, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    unsigned long long v;
    const bool ok = fscanf(f, "%llu", &v) == 1; /* "max" does not parse: no limit */
    fclose(f);
    *out = v;
    return ok;
}

/* The value of "key <number>" in a file of such lines. */
static uint64_t read_key(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[256];
    unsigned long long v = 0;
    const size_t n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, "%llu", &v) == 1)
            break;
    fclose(f);
    return v;
}

/* What one cgroup folder leaves: limit - (usage - reclaimable file cache). UINT64_MAX: no limit here. */
static uint64_t group_room(const char *dir, bool v2)
{
    char path[1400];
    uint64_t limit = 0, used;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    bool limited = read_u64(path, &limit);
    if (v2) { /* beyond memory.high nobody is killed, but the kernel slows the process down to reclaim */
        uint64_t high;
        snprintf(path, sizeof path, "%s/memory.high", dir);
        if (read_u64(path, &high) && (!limited || high < limit)) {
            limit = high;
            limited = true;
        }
    }
    if (!limited || limit > (UINT64_C(1) << 60))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!read_u64(path, &used))
        return limit;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    /* Both lists of file pages can be given back, the active one after the other: the model that was just copied here,
     * or read for its header, must not count as used. */
    const uint64_t cache = read_key(path, v2 ? "inactive_file " : "total_inactive_file ") +
                           read_key(path, v2 ? "active_file " : "total_active_file ");
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

/* The smallest room from this process's group up to the root. In a container the path in /proc/self/cgroup is often
 * the host's; the walk then ends at the mount's root, which is the container's own limit. */
uint64_t clb_memory_cgroup_room(const char *sysfs, const char *proc_cgroup)
{
    FILE *f = fopen(proc_cgroup, "re");
    if (!f)
        return UINT64_MAX;
    char line[1024];
    uint64_t room = UINT64_MAX;
    while (fgets(line, sizeof line, f)) { /* "ID:CONTROLLERS:/PATH"; the path may have colons too */
        line[strcspn(line, "\n")] = '\0';
        const bool v2 = strncmp(line, "0::", 3) == 0;
        char *path = strchr(line, ':');
        path = path ? strchr(path + 1, ':') : NULL;
        if (!path || (!v2 && !strstr(line, ":memory:")))
            continue;
        path++;
        for (;;) {
            char dir[1300];
            snprintf(dir, sizeof dir, "%.200s%s%s", sysfs, v2 ? "" : "/memory", path);
            const uint64_t r = group_room(dir, v2);
            room = r < room ? r : room;
            char *slash = strrchr(path, '/');
            if (!slash || !*path)
                break;
            *slash = '\0';
        }
    }
    fclose(f);
    return room;
}

/* What a resource limit leaves beside what `key` of /proc/self/status says is in use. */
static uint64_t rlimit_room(int failed, const struct rlimit *limit, const char *key)
{
    if (failed || limit->rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    const uint64_t used = read_key("/proc/self/status", key) * 1024;
    return limit->rlim_cur > used ? limit->rlim_cur - used : 0;
}

clb_memory_limits clb_memory_limits_read(void)
{
    clb_memory_limits l;
    struct sysinfo info;
    struct rlimit limit;
    uint64_t machine = read_key("/proc/meminfo", "MemAvailable:") * 1024;
    if (!machine && sysinfo(&info) == 0) /* no /proc (a chroot, a sandbox): without the reclaimable file cache */
        machine = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    l.room[CLB_LIMIT_MACHINE] = machine;
    l.room[CLB_LIMIT_CGROUP] = clb_memory_cgroup_room("/sys/fs/cgroup", "/proc/self/cgroup");
    l.room[CLB_LIMIT_ADDRESS_SPACE] = rlimit_room(getrlimit(RLIMIT_AS, &limit), &limit, "VmSize:");
    l.room[CLB_LIMIT_DATA] = rlimit_room(getrlimit(RLIMIT_DATA, &limit), &limit, "VmData:");
    return l;
}

enum clb_memory_limit clb_memory_tightest(const clb_memory_limits *limits)
{
    int least = 0;
    for (int i = 1; i < CLB_LIMITS; i++)
        least = limits->room[i] < limits->room[least] ? i : least;
    return (enum clb_memory_limit)least;
}

const char *clb_memory_limit_text(enum clb_memory_limit limit)
{
    static const char *const texts[CLB_LIMITS] = {"the machine's free memory", "a cgroup's memory limit",
                                                  "the limit of address space (ulimit -v)",
                                                  "the limit of data memory (ulimit -d)"};
    return texts[limit];
}

uint64_t clb_memory_available(void)
{
    const clb_memory_limits limits = clb_memory_limits_read();
    return limits.room[clb_memory_tightest(&limits)];
}

uint64_t clb_memory_resident(void)
{
    static const char status[] = "/proc/self/status";
    const uint64_t anon = read_key(status, "RssAnon:"), file = read_key(status, "RssFile:");
    struct rusage usage;
    if (!anon) /* no /proc: the peak instead of the present; before loading they are the same */
        return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
    const uint64_t code = read_key(status, "VmExe:") + read_key(status, "VmLib:");
    return (anon + (file > code ? file : code)) * 1024;
}
