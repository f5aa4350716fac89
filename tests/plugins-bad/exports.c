/* It exports a second symbol and wants one of the core's. */
#include "common_get.h"

extern int clb_core_secret(void) __attribute__((weak));

COLIBRI_EXPORT int colibri_plugin_extra(void);
COLIBRI_EXPORT int colibri_plugin_extra(void)
{
    return clb_core_secret ? clb_core_secret() : 0;
}

TEST_PLUGIN(test_exports, NULL, test_get, "test.exports", "it exports too much");
