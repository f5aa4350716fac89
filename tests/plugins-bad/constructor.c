/* It has a constructor: one that leaves a trace, or (TEST_FLUSH) one like that of -ffast-math. */
#include <stdlib.h>

#include "common_get.h"
#include "fpcontrol.h"

__attribute__((constructor)) static void on_load(void)
{
#ifdef TEST_FLUSH
    test_flush_to_zero();
#else
    setenv("COLIBRI_TEST_CONSTRUCTOR_RAN", "1", 1);
#endif
}

#ifdef TEST_FLUSH
TEST_PLUGIN(test_fp_load, NULL, test_get, "test.fp-load", "its constructor turns on flush-to-zero");
#else
TEST_PLUGIN(test_constructor, NULL, test_get, "test.constructor", "it has a constructor");
#endif
