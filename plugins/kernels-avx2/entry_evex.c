/* Entry of a plugin that only the tests build: the AVX-VNNI products in the encoding of AVX-512 VNNI. */
#include <string.h>

#include "kernels.h"

static const void *get(const char *iface, uint32_t index)
{
    if (strcmp(iface, COLIBRI_IFACE_MATMUL) != 0)
        return NULL;
    return index < N_MATMUL32                 ? &clb_avxvnni_matmul32[index]
           : index < N_MATMUL32 + N_MATMUL256 ? &clb_avxvnni_matmul256[index - N_MATMUL32]
                                              : NULL;
}

COLIBRI_PLUGIN_DEFINE(test_kernels_avxvnni_evex, NULL, get, .kinds = COLIBRI_KIND_KERNEL, .rank = 1,
                      .cpu = {COLIBRI_CPU0(AVX2) | COLIBRI_CPU0(FMA) | COLIBRI_CPU0(F16C) | COLIBRI_CPU0(AVX512F) |
                                  COLIBRI_CPU0(AVX512VL) | COLIBRI_CPU0(AVX512VNNI),
                              0},
                      .id = "test.kernels-avxvnni-evex", .version = "1.0.0",
                      .summary = "the AVX-VNNI products in the encoding of AVX-512, for tests", .license = "MIT");
