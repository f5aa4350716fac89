/* Its init fails with a reason (that has a line break in it). */
#include <stdio.h>

#include "common_get.h"

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    snprintf(why, why_size, "the licence server\ndoes not answer");
    return COLIBRI_E_UNSUPPORTED;
}

TEST_PLUGIN(test_init_fails, init, test_get, "test.init-fails", "its init fails");
