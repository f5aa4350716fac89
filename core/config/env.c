/* The environment layer: COLIBRI_<KEY> for every setting with a flag. */
#include "config/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static bool allowed_elsewhere(const char *name)
{
    /* Read by the plugin registry; by the project's tests; by the tiny example models' tests. */
    return !strcmp(name, "COLIBRI_PLUGIN_PATH") || !strncmp(name, "COLIBRI_TEST_", 13);
}

static int unknown_variable(const char *name, clb_error *err)
{
    char envs[CLB_SET_COUNT][sizeof((clb_setting_info *)0)->env];
    const char *names[CLB_SET_COUNT + 1];
    size_t n = 0;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (!info.flag)
            continue;
        memcpy(envs[n], info.env, sizeof info.env);
        names[n] = envs[n];
        n++;
    }
    names[n++] = "COLIBRI_PLUGIN_PATH";
    const long at = clb_nearest(name, names, n);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown environment variable %.80s; did you mean %s?", name, names[at]);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown environment variable %.80s (unset it)", name);
}

int clb_config_load_env(clb_config *config, clb_error *err)
{
    if (getauxval(AT_SECURE))
        return COLIBRI_OK;
    for (char *const *e = environ; e && *e; e++) {
        if (strncmp(*e, "COLIBRI_", 8) != 0)
            continue;
        const char *equals = strchr(*e, '=');
        char name[128];
        if (!equals || snprintf(name, sizeof name, "%.*s", (int)(equals - *e), *e) >= (int)sizeof name)
            return clb_fail(err, COLIBRI_E_USAGE, "unknown environment variable %.60s... (unset it)", *e);
        if (allowed_elsewhere(name))
            continue;
        const enum clb_setting id = clb_setting_by_env(name);
        if (id == CLB_SET_COUNT)
            return unknown_variable(name, err);
        CLB_TRY(clb_config_set_value(config, id, equals + 1, name, err));
    }
    return COLIBRI_OK;
}
