/* Its get turns on flush-to-zero. */
#include "common_get.h"
#include "fpcontrol.h"

static const void *get(const char *iface, uint32_t index)
{
    test_flush_to_zero();
    return test_get(iface, index);
}

TEST_PLUGIN(test_fp_get, NULL, get, "test.fp-get", "its get turns on flush-to-zero");
