/* Its init turns on flush-to-zero. */
#include "common_get.h"
#include "fpcontrol.h"

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    (void)why;
    (void)why_size;
    test_flush_to_zero();
    return COLIBRI_OK;
}

TEST_PLUGIN(test_fp_init, init, test_get, "test.fp-init", "its init turns on flush-to-zero");
