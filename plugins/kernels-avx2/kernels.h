/* Component tables of the AVX2 plugin. The kernel units are compiled for AVX2, FMA and F16C (the _vnni ones for
 * AVX-VNNI too), entry.c for the baseline. */
#ifndef KERNELS_AVX2_KERNELS_H
#define KERNELS_AVX2_KERNELS_H

#include "colibri/kernel.h"

#define N_MATMUL32    7
#define N_MATMUL256   6
#define N_MATMUL_ROWS 3

extern const struct colibri_matmul clb_avx2_matmul32[N_MATMUL32], clb_avxvnni_matmul32[N_MATMUL32];
extern const struct colibri_matmul clb_avx2_matmul256[N_MATMUL256], clb_avxvnni_matmul256[N_MATMUL256];
extern const struct colibri_matmul clb_avx2_matmul_rows[N_MATMUL_ROWS];
extern const struct colibri_vecops clb_avx2_vecops;

#define AVX2_RANK    200
#define AVXVNNI_RANK 225 /* below AVX-512 with 512-bit registers */

/* A row of a matmul table; RANK, CPU_EXTRA and PREFIX are those of the unit. */
#define MATMUL_COMPONENT(type, fmt, lay, activation, scratch)                                                          \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_matmul), .gguf_type = COLIBRI_TYPE_##type, .layout = (lay),               \
        .max_ulp = COLIBRI_EXACT, .rank = RANK, .min_x = 1, .cpu = {CPU_EXTRA, 0}, .name = PREFIX "." #fmt,            \
        .act = (activation), .scratch_bytes = (scratch), .run = run_##fmt                                              \
    }
#define X16_MATMUL(type, fmt, activation)                                                                              \
    MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_X16, activation, sizeof(struct panel_scratch))
#define ROWS_MATMUL(type, fmt, activation) MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_ROWS, activation, 0)

#endif
