#include "serve/json_memory.h"

#include <jansson.h>
#include <stdlib.h>

static _Thread_local bool failed;

static void *allocate(size_t n)
{
    void *const p = malloc(n);
    failed = failed || !p;
    return p;
}

void clb_json_memory_watch(void)
{
    json_set_alloc_funcs(allocate, free);
}

void clb_json_memory_forget(void)
{
    failed = false;
}

bool clb_json_memory_out(void)
{
    return failed;
}
