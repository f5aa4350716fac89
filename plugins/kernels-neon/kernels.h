/* Component tables of the NEON plugin. The kernel units are compiled for ARMv8.2 with the dot product, entry.c for the
 * baseline. */
#ifndef KERNELS_NEON_KERNELS_H
#define KERNELS_NEON_KERNELS_H

#include "colibri/kernel.h"

#define N_MATMUL32    7
#define N_MATMUL256   6
#define N_MATMUL_ROWS 3

extern const struct colibri_matmul clb_neon_matmul32[N_MATMUL32];
extern const struct colibri_matmul clb_neon_matmul256[N_MATMUL256];
extern const struct colibri_matmul clb_neon_matmul_rows[N_MATMUL_ROWS];
extern const struct colibri_vecops clb_neon_vecops;

#define NEON_RANK 200

#define MATMUL_COMPONENT(type, fmt, lay, activation)                                                                   \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_matmul), .gguf_type = COLIBRI_TYPE_##type, .layout = (lay),               \
        .max_ulp = COLIBRI_EXACT, .rank = NEON_RANK, .min_x = 1, .name = "neon." #fmt, .act = (activation),            \
        .run = run_##fmt                                                                                               \
    }
#define X16_MATMUL(type, fmt, activation)  MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_X16, activation)
#define ROWS_MATMUL(type, fmt, activation) MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_ROWS, activation)

#endif
