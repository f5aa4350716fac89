/* Right results, wrong manners: a kernel that counts its calls in its plugin's memory. The check has to refuse it. */
#include <string.h>

#include <colibri/kernel.h>
#include <colibri/numerics.h>

static unsigned calls;

static void run(const struct colibri_matmul_args *a)
{
    __atomic_fetch_add(&calls, 1u, __ATOMIC_RELAXED);
    for (uint32_t t = 0; t < a->n_x; t++)
        for (uint32_t row = 16 * a->group_begin; row < 16 * a->group_end && row < a->n_rows; row++) {
            const char *const w = (const char *)a->w + row * (a->group_stride / 16);
            const char *const x = (const char *)a->x + (a->x_index ? a->x_index[t] : t) * a->x_stride;
            a->y[t * a->y_stride + row] = colibri_dot_f32((const void *)w, (const void *)x, a->n_cols);
        }
}

static const struct colibri_matmul table = {
    .struct_size = sizeof(table),
    .gguf_type = COLIBRI_TYPE_F32,
    .layout = COLIBRI_LAYOUT_ROWS,
    .max_ulp = COLIBRI_EXACT,
    .min_x = 1,
    .name = "bad-state.f32",
    .act = COLIBRI_ACT_F32,
    .run = run,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && strcmp(iface, COLIBRI_IFACE_MATMUL) == 0 ? &table : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_kernels_bad_state, NULL, get, .id = "test.kernels-bad-state", .kinds = COLIBRI_KIND_KERNEL,
                      .version = "1.0.0", .summary = "counts its calls", .license = "MIT");
