/* CPU quota of this process's cgroup: a container with 1.5 CPUs on a 64-core machine must not start 64 threads, which
 * would be throttled together in the middle of a barrier. */
#include "cpu/topology.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool first_line(const char *path, char *line, size_t size)
{
    FILE *const f = fopen(path, "re");
    if (!f)
        return false;
    const bool ok = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* Version 2: "max 100000" or "150000 100000". */
static double quota_v2(const char *dir)
{
    char path[PATH_MAX + 32], line[128];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    long long quota, period;
    if (!first_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2)
        return 0;
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Version 1: quota -1 means none. */
static double quota_v1(const char *dir)
{
    char path[PATH_MAX + 32], line[128];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!first_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (!first_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
        return 0;
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* The smallest quota of `root`/`group` and its ancestors up to `root` itself. Inside a container the group's path is
 * often the host's, and does not exist here: then the walk finds the container's own limit at the root. */
static double walk(const char *root, const char *group, double (*read)(const char *dir))
{
    char dir[PATH_MAX];
    const int n = snprintf(dir, sizeof dir, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof dir)
        return 0;
    const size_t stop = strlen(root);
    double best = 0;
    for (;;) {
        const double q = read(dir);
        if (q > 0 && (best == 0 || q < best))
            best = q;
        if (strlen(dir) <= stop)
            return best;
        char *const slash = strrchr(dir + stop, '/');
        *(slash ? slash : dir + stop) = '\0';
    }
}

static bool has_controller(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

double clb_cgroup_cpu_quota(const char *sysfs, const char *proc_cgroup)
{
    FILE *const f = fopen(proc_cgroup, "re");
    if (!f)
        return 0;
    double best = 0;
    char line[PATH_MAX + 64];
    while (fgets(line, sizeof line, f)) { /* "ID:CONTROLLERS:/PATH" */
        line[strcspn(line, "\n")] = '\0';
        char *const controllers = strchr(line, ':');
        char *const group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/' || strstr(group, "/.."))
            continue;
        *group = '\0';
        const char *const path = group[2] ? group + 1 : ""; /* the root group is "/" */
        double q = 0;
        if (controllers[1] == '\0') {
            q = walk(sysfs, path, quota_v2);
        } else if (has_controller(controllers + 1, "cpu")) {
            char root[PATH_MAX];
            snprintf(root, sizeof root, "%s/%s", sysfs, controllers + 1);
            q = walk(root, path, quota_v1);
            if (q == 0) {
                snprintf(root, sizeof root, "%s/cpu", sysfs);
                q = walk(root, path, quota_v1);
            }
        }
        if (q > 0 && (best == 0 || q < best))
            best = q;
    }
    fclose(f);
    return best;
}
