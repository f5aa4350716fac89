#include "paths.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool clb_paths_plugin_dir_of(const char *exe, char out[PATH_MAX])
{
    const char *const slash = strrchr(exe, '/');
    if (!slash || exe[0] != '/')
        return false;
    const size_t dir = (size_t)(slash - exe), tail = strlen("/" COLIBRI_BIN_REL);
    if (dir < tail || memcmp(exe + dir - tail, "/" COLIBRI_BIN_REL, tail) != 0)
        return false;
    const int n = snprintf(out, PATH_MAX, "%.*s/" COLIBRI_PLUGIN_REL, (int)(dir - tail), exe);
    return n > 0 && n < PATH_MAX;
}

bool clb_paths_plugin_dir(char out[PATH_MAX])
{
    char exe[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0 || (size_t)n == sizeof exe - 1)
        return false;
    exe[n] = '\0';
    return clb_paths_plugin_dir_of(exe, out);
}
