/* Kernels for the tests of selection by measurement: they compute nothing and count their calls, from which the tests
 * make a clock. TEST_SPIN: some take real time instead. TEST_REBUILT: the same plugin, other bytes. TEST_MORE: another
 * plugin. */
#include <stdatomic.h>

#include "common.h"

#ifdef TEST_SPIN
#define COST(n) (n)
#else
#define COST(n) 0
#endif

#define COUNTED(name, spin)                                                                                            \
    static atomic_uint name##_runs;                                                                                    \
    static void name##_run(const struct colibri_matmul_args *args)                                                     \
    {                                                                                                                  \
        (void)args;                                                                                                    \
        for (volatile int i = 0; i < COST(spin); i++) {                                                                \
        }                                                                                                              \
        atomic_fetch_add(&name##_runs, 1);                                                                             \
    }

/* The tests know that the counter follows the table. */
struct counted {
    struct colibri_matmul table;
    atomic_uint *runs;
};

#define TABLE(fn, component_rank, ulp, smallest_x)                                                                     \
    {                                                                                                                  \
        .table = {.struct_size = sizeof(struct colibri_matmul),                                                        \
                  .gguf_type = COLIBRI_TYPE_Q4_0,                                                                      \
                  .layout = COLIBRI_LAYOUT_X16,                                                                        \
                  .max_ulp = (ulp),                                                                                    \
                  .rank = (component_rank),                                                                            \
                  .min_x = (smallest_x),                                                                               \
                  .name = #fn ".q4_0",                                                                                 \
                  .act = COLIBRI_ACT_Q8X32,                                                                            \
                  .run = fn##_run},                                                                                    \
        .runs = &fn##_runs                                                                                             \
    }

#ifdef TEST_MORE
COUNTED(more, 0)
static const struct counted kernels[] = {TABLE(more, 1150, COLIBRI_EXACT, 1)};
#else
COUNTED(lossy, 0)
COUNTED(slow, 40000)
COUNTED(middle, 20000)
COUNTED(fast, 0)
COUNTED(batch, 30000)
static const struct counted kernels[] = {
    TABLE(fast, 1100, COLIBRI_EXACT, 1),  TABLE(lossy, 1400, 4, 1),
    TABLE(slow, 1300, COLIBRI_EXACT, 1),  TABLE(middle, 1200, COLIBRI_EXACT, 1),
    TABLE(batch, 1000, COLIBRI_EXACT, 8),
};
#endif

#ifdef TEST_REBUILT
#define SUMMARY "kernels that count, built again"
#else
#define SUMMARY "kernels that count"
#endif

static const void *get(const char *iface, uint32_t index)
{
    return !strcmp(iface, COLIBRI_IFACE_MATMUL) && index < sizeof kernels / sizeof *kernels ? &kernels[index].table
                                                                                            : NULL;
}

#ifdef TEST_MORE
COLIBRI_PLUGIN_DEFINE(test_measure_more, NULL, get, .id = "test.measure-more", .kinds = COLIBRI_KIND_KERNEL,
                      .rank = 1000, .version = "1.0.0", .summary = SUMMARY, .license = "MIT");
#else
COLIBRI_PLUGIN_DEFINE(test_measure, NULL, get, .id = "test.measure", .kinds = COLIBRI_KIND_KERNEL, .rank = 1000,
                      .version = "1.0.0", .summary = SUMMARY, .license = "MIT");
#endif
