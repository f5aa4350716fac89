/* A component straight from a built plugin file, without the registry: for tests of the component itself. */
#ifndef TEST_COMPONENT_H
#define TEST_COMPONENT_H

#include "support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "colibri/plugin.h"

/* file: "expert-policy-lru"; ident: "colibri_expert_policy_lru". Fails the test with the reason. */
static inline const void *test_component(const char *file, const char *ident, const char *iface)
{
    char path[PATH_MAX], symbol[128];
    snprintf(path, sizeof path, "%s/%s.so", COLIBRI_TEST_PLUGIN_DIR, file);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        fail_msg("%s (is the target colibri-plugin-%s built?)", dlerror(), file);
    snprintf(symbol, sizeof symbol, "colibri_plugin_%s", ident);
    const struct colibri_plugin *plugin = dlsym(object, symbol);
    if (!plugin)
        fail_msg("%s", dlerror());
    assert_string_equal(plugin->note->desc.symbol, symbol);
    assert_null(plugin->get(iface, 1));
    assert_null(plugin->get("no such interface", 0));
    const void *component = plugin->get(iface, 0);
    assert_non_null(component);
    return component;
}

#endif
