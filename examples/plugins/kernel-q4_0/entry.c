/* The plugin's entry: the note, the tables, get. Compiled for the baseline, because it runs before any CPU bit of a
 * component is compared. */
#include "kernels.h"

static const struct colibri_matmul components[] = {
#if defined(__x86_64__)
    {
        .struct_size = sizeof(struct colibri_matmul),
        .gguf_type = COLIBRI_TYPE_Q4_0,
        .layout = COLIBRI_LAYOUT_X16,
        .max_ulp = COLIBRI_EXACT,
        .rank = 100,
        .min_x = 1,
        .cpu = {COLIBRI_CPU0(AVX2) | COLIBRI_CPU0(FMA) | COLIBRI_CPU0(F16C), 0},
        .name = "example-simd.q4_0",
        .act = COLIBRI_ACT_Q8X32,
        .run = run_simd,
    },
#endif
    {
        .struct_size = sizeof(struct colibri_matmul),
        .gguf_type = COLIBRI_TYPE_Q4_0,
        .layout = COLIBRI_LAYOUT_X16,
        .max_ulp = COLIBRI_EXACT,
        .rank = 1,
        .min_x = 1,
        .name = "example-plain.q4_0",
        .act = COLIBRI_ACT_Q8X32,
        .run = run_plain,
    },
};

static const void *get(const char *iface, uint32_t index)
{
    if (strcmp(iface, COLIBRI_IFACE_MATMUL) == 0 && index < sizeof(components) / sizeof(components[0]))
        return &components[index];
    return NULL;
}

COLIBRI_PLUGIN_DEFINE(org_example_kernel_q4_0, NULL, get, .id = "org.example.kernel-q4_0",
                      .kinds = COLIBRI_KIND_KERNEL, .version = "1.0.0", .license = "MIT",
                      .summary = "Example kernels: Q4_0 in plain C and for AVX2");
