/* It calls a function of its own whose name another object of the process may have too. */
#include "common_get.h"

int test_shared_name(void);
int test_shared_name(void)
{
    return 2;
}

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    (void)why;
    (void)why_size;
    int (*volatile mine)(void) = test_shared_name;
    return mine() == 2 ? COLIBRI_OK : COLIBRI_E_INTERNAL;
}

TEST_PLUGIN(test_same_name, init, test_get, "test.same-name", "a function that the host has too");
