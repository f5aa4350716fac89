/* Two kernels with a higher rank than good.c's, that are lossy or need features, and one that needs none. */
#include "common.h"

static const struct colibri_matmul matmuls[] = {
    TEST_MATMUL("inexact.q4_0", 900, 4, 1),
    {.struct_size = sizeof(struct colibri_matmul),
     .gguf_type = COLIBRI_TYPE_Q4_0,
     .layout = COLIBRI_LAYOUT_X16,
     .rank = 800,
     .min_x = 1,
     .cpu = {COLIBRI_CPU0(SSE3), 0},
     .name = "sse3.q4_0",
     .act = COLIBRI_ACT_Q8X32,
     .run = test_run},
    {.struct_size = sizeof(struct colibri_matmul),
     .gguf_type = COLIBRI_TYPE_Q4_0,
     .layout = COLIBRI_LAYOUT_ROWS,
     .rank = 990,
     .min_x = 1,
     .name = "rows.q4_0",
     .act = COLIBRI_ACT_Q8X32,
     .run = test_run},
    {.struct_size = sizeof(struct colibri_matmul),
     .gguf_type = COLIBRI_TYPE_Q4_0,
     .layout = COLIBRI_LAYOUT_X16,
     .rank = 990,
     .min_x = 1,
     .name = "act.q4_0",
     .act = COLIBRI_ACT_Q8X256,
     .run = test_run},
    TEST_MATMUL("twin.q4_0", 100, COLIBRI_EXACT, 1), /* the rank of good.q4_0: the id decides */
};

static const void *get(const char *iface, uint32_t index)
{
    return !strcmp(iface, COLIBRI_IFACE_MATMUL) && index < sizeof matmuls / sizeof *matmuls ? &matmuls[index] : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_inexact, NULL, get, .id = "test.inexact", .kinds = COLIBRI_KIND_KERNEL, .rank = 900,
                      .version = "1.0.0", .summary = "kernels with conditions", .license = "MIT");
