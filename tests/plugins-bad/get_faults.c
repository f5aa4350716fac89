/* Faults of get, one per build: TEST_ENDLESS, TEST_ANY_IFACE, TEST_UNSTABLE, TEST_EMPTY. */
#include "common_get.h"

static const void *get(const char *iface, uint32_t index)
{
#if defined(TEST_ENDLESS)
    (void)index;
    return test_get(iface, 0); /* the list has no end */
#elif defined(TEST_ANY_IFACE)
    return !strncmp(iface, "colibri.matmul", 14) ? test_get(COLIBRI_IFACE_MATMUL, index) : NULL;
#elif defined(TEST_UNSTABLE)
    static const struct colibri_matmul two[] = {TEST_MATMUL("test.q4_0", 50, COLIBRI_EXACT, 1),
                                                TEST_MATMUL("test.q4_0", 50, COLIBRI_EXACT, 1)};
    static unsigned calls; /* also a breach: global mutable state */
    return !strcmp(iface, COLIBRI_IFACE_MATMUL) && index == 0 ? &two[calls++ % 2] : NULL;
#else
    (void)iface;
    (void)index;
    return NULL;
#endif
}

#if defined(TEST_ENDLESS)
TEST_PLUGIN(test_endless, NULL, get, "test.endless", "its list has no end");
#elif defined(TEST_ANY_IFACE)
TEST_PLUGIN(test_any_iface, NULL, get, "test.any-iface", "it answers to the beginning of a name");
#elif defined(TEST_UNSTABLE)
TEST_PLUGIN(test_unstable, NULL, get, "test.unstable", "it returns another table each time");
#else
TEST_PLUGIN(test_empty, NULL, get, "test.empty", "it offers nothing");
#endif
