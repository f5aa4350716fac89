/* Float formats in row layout: F32, F16, BF16. */
#include "dot.h"
#include "kernels.h"

#define PREFIX    "neon"
#define RANK      NEON_RANK
#define MIN_X     1
#define CPU_EXTRA 0

/* Addresses of 4 rows of group g from r on; rows that do not exist repeat the last one. */
INLINE void find_rows(const struct colibri_matmul_args *a, uint32_t g, uint32_t r, uint32_t valid, const void **w)
{
    const char *const group = (const char *)a->w + (size_t)g * a->group_stride;
    for (uint32_t i = 0; i < 4; i++)
        w[i] = group + (r + (i < valid ? i : valid - 1)) * (a->group_stride / 16);
}

/* Four rows from r on (`valid` exist) times one activation row. */
INLINE void rows4(const struct colibri_matmul_args *a, uint32_t g, uint32_t r, uint32_t valid, uint32_t t,
                  const uint32_t type)
{
    const void *w[4], *x[1];
    struct lanes acc[4];
    find_rows(a, g, r, valid, w);
    gather_x(a, t, 1, x);
    dot_tile(w, (const float *const *)x, a->n_cols, 4, 1, type, acc);
    store_upto4(a->y + (size_t)t * a->y_stride + 16 * (size_t)g + r, valid,
                lanes_sum4(&acc[0], &acc[1], &acc[2], &acc[3]));
}

/* Four rows times two activation rows, as two tiles of 2 x 2: their accumulators are half of the registers. */
INLINE void rows4x2(const struct colibri_matmul_args *a, uint32_t g, uint32_t r, uint32_t valid, uint32_t t,
                    const uint32_t type)
{
    const void *w[4], *x[2];
    struct lanes p[4], q[4];
    find_rows(a, g, r, valid, w);
    gather_x(a, t, 2, x);
    dot_tile(w, (const float *const *)x, a->n_cols, 2, 2, type, p);
    dot_tile(w + 2, (const float *const *)x, a->n_cols, 2, 2, type, q);
    float *const y = a->y + (size_t)t * a->y_stride + 16 * (size_t)g + r;
    store_upto4(y, valid, lanes_sum4(&p[0], &p[2], &q[0], &q[2]));
    store_upto4(y + a->y_stride, valid, lanes_sum4(&p[1], &p[3], &q[1], &q[3]));
}

INLINE void run_rows(const struct colibri_matmul_args *a, const uint32_t type)
{
    const uint32_t step = token_block(a, 2);
    for (uint32_t t0 = 0; t0 < a->n_x; t0 += step) {
        const uint32_t t1 = a->n_x - t0 < step ? a->n_x : t0 + step;
        for (uint32_t g = a->group_begin; g < a->group_end; g++) {
            const uint32_t left_rows = a->n_rows - 16 * g;
            const uint32_t n_rows = left_rows < 16 ? left_rows : 16;
            for (uint32_t r = 0; r < n_rows; r += 4) {
                uint32_t t = t0;
                for (; t1 - t >= 2; t += 2)
                    rows4x2(a, g, r, n_rows - r, t, type);
                if (t < t1)
                    rows4(a, g, r, n_rows - r, t, type);
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

const struct colibri_matmul clb_neon_matmul_rows[N_MATMUL_ROWS] = {
    ROWS_MATMUL(F32, f32, COLIBRI_ACT_F32),
    ROWS_MATMUL(F16, f16, COLIBRI_ACT_F32),
    ROWS_MATMUL(BF16, bf16, COLIBRI_ACT_F32),
};
