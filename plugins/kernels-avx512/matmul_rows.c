/* Float formats in row layout: F32, F16, BF16. */
#include "dot.h"
#include "kernels.h"

/* Rows [r, r + rows) of group g times activation rows t, t+1, ..; `valid` rows exist and `count` activations count. */
INLINE void rows_tile(const struct colibri_matmul_args *a, uint32_t g, uint32_t r, uint32_t valid, uint32_t t,
                      uint32_t count, const int rows, const int tile, const uint32_t type)
{
    const size_t row_bytes = a->group_stride / 16;
    const void *w[8];
    const void *x[4];
    __m512 acc[16];
    for (uint32_t i = 0; i < (uint32_t)rows; i++)
        w[i] = (const char *)a->w + (size_t)g * a->group_stride + (r + (i < valid ? i : valid - 1)) * row_bytes;
    gather_x(a, t, count, tile, x);
    dot_tile(w, (const float *const *)x, a->n_cols, rows, tile, type, acc);
    UNROLL
    for (int i = 0; i < tile; i++) {
        if ((uint32_t)i >= count)
            continue;
        float *const y = a->y + (size_t)(t + (uint32_t)i) * a->y_stride + 16 * (size_t)g + r;
        UNROLL
        for (int k = 0; k < rows; k += 4)
            if ((uint32_t)k < valid)
                _mm_mask_storeu_ps(y + k, (__mmask8)(first16(valid - (uint32_t)k) & 15u), dot_sum4(acc, k, tile, i));
    }
}

/* Tiles of 4 x 4 and 4 x 2 (rows x activations), 8 x 1 for one activation row. */
INLINE void run_rows(const struct colibri_matmul_args *a, const uint32_t type)
{
    const uint32_t step = token_block(a, 4);
    for (uint32_t t0 = 0; t0 < a->n_x; t0 += step) {
        const uint32_t t1 = a->n_x - t0 < step ? a->n_x : t0 + step;
        for (uint32_t g = a->group_begin; g < a->group_end; g++) {
            const uint32_t left_rows = a->n_rows - 16 * g;
            const uint32_t n_rows = left_rows < 16 ? left_rows : 16;
            for (uint32_t t = t0; t < t1;) {
                const uint32_t left = t1 - t;
                const uint32_t count = left < 4 ? left : 4;
                if (left >= 3)
                    for (uint32_t r = 0; r < n_rows; r += 4)
                        rows_tile(a, g, r, n_rows - r, t, count, 4, 4, type);
                else if (left == 2)
                    for (uint32_t r = 0; r < n_rows; r += 4)
                        rows_tile(a, g, r, n_rows - r, t, 2, 4, 2, type);
                else
                    for (uint32_t r = 0; r < n_rows; r += 8)
                        rows_tile(a, g, r, n_rows - r, t, 1, 8, 1, type);
                t += count;
            }
        }
    }
}

static void run_f32(const struct colibri_matmul_args *a)
{
    run_rows(a, COLIBRI_TYPE_F32);
}

static void run_f16(const struct colibri_matmul_args *a)
{
    run_rows(a, COLIBRI_TYPE_F16);
}

static void run_bf16(const struct colibri_matmul_args *a)
{
    run_rows(a, COLIBRI_TYPE_BF16);
}

#define PREFIX    "avx512"
#define RANK      AVX512_RANK
#define CPU_EXTRA 0
#define SCRATCH   0

const struct colibri_matmul clb_avx512_matmul_rows[N_MATMUL_ROWS] = {
    ROWS_MATMUL(F32, f32, COLIBRI_ACT_F32),
    ROWS_MATMUL(F16, f16, COLIBRI_ACT_F32),
    ROWS_MATMUL(BF16, bf16, COLIBRI_ACT_F32),
};
