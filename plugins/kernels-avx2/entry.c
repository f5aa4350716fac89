/* Entry of the AVX2 kernels: the only unit compiled for the baseline ISA, hence the only one that runs before the CPU
 * bits are checked. */
#include <string.h>

#include "kernels.h"

static const struct colibri_matmul *matmul_at(uint32_t index)
{
    static const struct {
        const struct colibri_matmul *first;
        uint32_t n;
    } tables[] = {
        {clb_avxvnni_matmul32, N_MATMUL32},
        {clb_avxvnni_matmul256, N_MATMUL256},
        {clb_avx2_matmul32, N_MATMUL32},
        {clb_avx2_matmul256, N_MATMUL256},
        {clb_avx2_matmul_rows, N_MATMUL_ROWS},
    };
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (index < tables[i].n)
            return &tables[i].first[index];
        index -= tables[i].n;
    }
    return NULL;
}

static const void *get(const char *iface, uint32_t index)
{
    if (strcmp(iface, COLIBRI_IFACE_MATMUL) == 0)
        return matmul_at(index);
    if (strcmp(iface, COLIBRI_IFACE_VECOPS) == 0 && index == 0)
        return &clb_avx2_vecops;
    return NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kernels_avx2, NULL, get, .kinds = COLIBRI_KIND_KERNEL, .rank = AVX2_RANK,
                      .cpu = {COLIBRI_CPU0(AVX2) | COLIBRI_CPU0(FMA) | COLIBRI_CPU0(F16C), 0},
                      .id = "colibri.kernels-avx2", .version = "1.0.0",
                      .summary = "matrix products for AVX2 and AVX-VNNI, vector operations for AVX2", .license = "MIT");
