/* Entry of the NEON kernels: the only unit compiled for the baseline ISA, hence the only one that runs before the CPU
 * bits are checked. */
#include <string.h>

#include "kernels.h"

static const struct colibri_matmul *matmul_at(uint32_t index)
{
    static const struct {
        const struct colibri_matmul *first;
        uint32_t n;
    } tables[] = {
        {clb_neon_i8mm_matmul32, N_MATMUL32}, {clb_neon_i8mm_matmul256, N_MATMUL256}, {clb_neon_matmul32, N_MATMUL32},
        {clb_neon_matmul256, N_MATMUL256},    {clb_neon_matmul_rows, N_MATMUL_ROWS},
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
        return &clb_neon_vecops;
    return NULL;
}

COLIBRI_PLUGIN_DEFINE(
    colibri_kernels_neon, NULL, get, .kinds = COLIBRI_KIND_KERNEL, .rank = NEON_RANK,
    .cpu = {0, COLIBRI_CPU1(NEON) | COLIBRI_CPU1(ASIMDDP)}, .id = "colibri.kernels-neon", .version = "1.0.0",
    .summary = "matrix products and vector operations for NEON with the dot product, with and without i8mm",
    .license = "MIT");
