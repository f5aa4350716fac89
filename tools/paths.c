#include "paths.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool beside(const char *exe, const char *rel, char out[PATH_MAX])
{
    const char *const slash = strrchr(exe, '/');
    if (!slash || exe[0] != '/')
        return false;
    const size_t dir = (size_t)(slash - exe), tail = strlen("/" COLIBRI_BIN_REL);
    if (dir < tail || memcmp(exe + dir - tail, "/" COLIBRI_BIN_REL, tail) != 0)
        return false;
    const int n = snprintf(out, PATH_MAX, "%.*s/%s", (int)(dir - tail), exe, rel);
    return n > 0 && n < PATH_MAX;
}

bool clb_paths_plugin_dir_of(const char *exe, char out[PATH_MAX])
{
    return beside(exe, COLIBRI_PLUGIN_REL, out);
}

static bool own_path(char exe[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", exe, PATH_MAX - 1);
    if (n <= 0 || n == PATH_MAX - 1)
        return false;
    exe[n] = '\0';
    return true;
}

bool clb_paths_plugin_dir(char out[PATH_MAX])
{
    char exe[PATH_MAX];
    return own_path(exe) && beside(exe, COLIBRI_PLUGIN_REL, out);
}

bool clb_paths_data_dir(char out[PATH_MAX])
{
    char exe[PATH_MAX];
    return own_path(exe) && beside(exe, COLIBRI_DATA_REL, out);
}
