/* It needs a function that nobody has. */
#include "common_get.h"

extern int nobody_has_this_function(void);

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)host;
    (void)why;
    (void)why_size;
    return nobody_has_this_function();
}

TEST_PLUGIN(test_undefined, init, test_get, "test.undefined", "it needs a function that nobody has");
