/* Instance of matmul32.h for AVX-512 with VNNI. */
#define TABLE     clb_avx512vnni_matmul32
#define PREFIX    "avx512-vnni"
#define RANK      AVX512VNNI_RANK
#define CPU_EXTRA COLIBRI_CPU0(AVX512VNNI)
#include "matmul32.h"
