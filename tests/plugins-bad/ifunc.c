/* A hidden indirect function: its resolver would run inside dlopen. */
#include "common_get.h"

static int plain(void)
{
    return 1;
}

__attribute__((used)) static int (*resolve(void))(void)
{
    return plain;
}

__attribute__((visibility("hidden"))) int test_indirect(void);
__attribute__((ifunc("resolve"))) int test_indirect(void);

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    (void)why;
    (void)why_size;
    return test_indirect() == 1 ? COLIBRI_OK : COLIBRI_E_INTERNAL;
}

TEST_PLUGIN(test_ifunc, init, test_get, "test.ifunc", "it has an indirect function");
