#include "profile.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "config/config.h"
#include "paths.h"

#define MOST_PROFILES 64u
#define NAME_ROOM     64u

/* Folder 0 is the user's, 1 the installation's; "" where there is none. */
static void folder(int which, char out[PATH_MAX])
{
    char base[PATH_MAX];
    *out = '\0';
    if (which == 0) {
        clb_config_default_path(1, NULL, base, sizeof base);
        char *slash = strrchr(base, '/');
        if (!slash)
            return;
        *slash = '\0';
    } else if (!clb_paths_data_dir(base)) {
        return;
    }
    if (snprintf(out, PATH_MAX, "%s/profiles", base) >= PATH_MAX)
        *out = '\0';
}

static uint32_t list(char names[MOST_PROFILES][NAME_ROOM], const char **pointers)
{
    uint32_t n = 0;
    for (int which = 0; which < 2; which++) {
        char dir[PATH_MAX];
        folder(which, dir);
        DIR *d = *dir ? opendir(dir) : NULL;
        for (struct dirent *e; d && n < MOST_PROFILES && (e = readdir(d)) != NULL;) {
            const size_t len = strlen(e->d_name);
            if (len <= 4 || len - 4 >= NAME_ROOM || strcmp(e->d_name + len - 4, ".ini") != 0)
                continue;
            snprintf(names[n], NAME_ROOM, "%.*s", (int)(len - 4), e->d_name);
            bool known = false;
            for (uint32_t i = 0; i < n; i++)
                known = known || !strcmp(names[i], names[n]);
            if (!known)
                pointers[n] = names[n];
            n += known ? 0 : 1;
        }
        if (d)
            closedir(d);
    }
    for (uint32_t i = 1; i < n; i++) /* readdir has no order */
        for (uint32_t k = i; k && strcmp(pointers[k], pointers[k - 1]) < 0; k--) {
            const char *t = pointers[k];
            pointers[k] = pointers[k - 1];
            pointers[k - 1] = t;
        }
    return n;
}

int clb_profile_path(const char *name, char out[PATH_MAX], clb_error *err)
{
    if (!*name || strchr(name, '/') || name[0] == '.')
        return clb_fail(err, COLIBRI_E_USAGE, "--profile %.80s: a profile is named, not a path (--config reads files)",
                        name);
    for (int which = 0; which < 2; which++) {
        char dir[PATH_MAX];
        folder(which, dir);
        if (*dir && snprintf(out, PATH_MAX, "%s/%.200s.ini", dir, name) < PATH_MAX && access(out, F_OK) == 0)
            return COLIBRI_OK;
    }
    char names[MOST_PROFILES][NAME_ROOM], all[600] = "";
    const char *pointers[MOST_PROFILES];
    const uint32_t n = list(names, pointers);
    for (uint32_t i = 0; i < n && strlen(all) + NAME_ROOM + 4 < sizeof all; i++)
        strcat(strcat(all, i ? ", " : ""), pointers[i]);
    const long near = clb_nearest(name, pointers, n);
    if (n == 0)
        return clb_fail(err, COLIBRI_E_NOT_FOUND, "--profile %.80s: there are no profiles in this installation", name);
    return clb_fail(err, COLIBRI_E_NOT_FOUND, "--profile %.80s: no such profile%s%s%s (there are %s)", name,
                    near >= 0 ? "; did you mean '" : "", near >= 0 ? pointers[near] : "", near >= 0 ? "'?" : "", all);
}
