/* Component tables of the AVX-512 plugin. The kernel units are compiled for AVX-512 (the _vnni ones for VNNI too),
 * entry.c for the baseline. */
#ifndef KERNELS_AVX512_KERNELS_H
#define KERNELS_AVX512_KERNELS_H

#include "colibri/kernel.h"

#define N_MATMUL32    7
#define N_MATMUL256   6
#define N_MATMUL_ROWS 3

extern const struct colibri_matmul clb_avx512_matmul32[N_MATMUL32], clb_avx512vnni_matmul32[N_MATMUL32];
extern const struct colibri_matmul clb_avx512_matmul256[N_MATMUL256], clb_avx512vnni_matmul256[N_MATMUL256];
extern const struct colibri_matmul clb_avx512_matmul_rows[N_MATMUL_ROWS];
extern const struct colibri_vecops clb_avx512_vecops;

#define AVX512_RANK     250
#define AVX512VNNI_RANK 300

/* A row of a matmul table; RANK, CPU_EXTRA and PREFIX are those of the unit. */
#define MATMUL_COMPONENT(type, fmt, lay, activation)                                                                   \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_matmul), .gguf_type = COLIBRI_TYPE_##type, .layout = (lay),               \
        .max_ulp = COLIBRI_EXACT, .rank = RANK, .min_x = 1, .cpu = {CPU_EXTRA, 0}, .name = PREFIX "." #fmt,            \
        .act = (activation), .scratch_bytes = SCRATCH, .run = run_##fmt                                                \
    }
#define X16_MATMUL(type, fmt, activation)  MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_X16, activation)
#define ROWS_MATMUL(type, fmt, activation) MATMUL_COMPONENT(type, fmt, COLIBRI_LAYOUT_ROWS, activation)

#endif
