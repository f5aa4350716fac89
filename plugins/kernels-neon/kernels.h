/* Component tables of the NEON plugin. The kernel units are compiled for ARMv8.2 with the dot product (the _i8mm ones
 * for i8mm too), entry.c for the baseline. */
#ifndef KERNELS_NEON_KERNELS_H
#define KERNELS_NEON_KERNELS_H

#include "colibri/kernel.h"

#define N_MATMUL32    7
#define N_MATMUL256   6
#define N_MATMUL_ROWS 3

extern const struct colibri_matmul clb_neon_matmul32[N_MATMUL32], clb_neon_i8mm_matmul32[N_MATMUL32];
extern const struct colibri_matmul clb_neon_matmul256[N_MATMUL256], clb_neon_i8mm_matmul256[N_MATMUL256];
extern const struct colibri_matmul clb_neon_matmul_rows[N_MATMUL_ROWS];
extern const struct colibri_vecops clb_neon_vecops;

#define NEON_RANK      200
#define NEON_I8MM_RANK 250

#define GEMM_SCRATCH ((size_t)128 << 10) /* see gemm_impl.h */

/* A row of a matmul table; PREFIX, RANK, MIN_X and CPU_EXTRA (word 1) are those of the unit. */
#define MATMUL_COMPONENT(type, fmt, lay, activation, scratch)                                                          \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_matmul), .gguf_type = COLIBRI_TYPE_##type, .layout = (lay),               \
        .max_ulp = COLIBRI_EXACT, .rank = RANK, .min_x = MIN_X, .cpu = {0, CPU_EXTRA}, .name = PREFIX "." #fmt,        \
        .act = (activation), .scratch_bytes = (scratch), .run = run_##fmt                                              \
    }
#define X16_MATMUL(type, fmt, activation)  MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_X16, activation, GEMM_SCRATCH)
#define ROWS_MATMUL(type, fmt, activation) MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_ROWS, activation, 0)

#endif
