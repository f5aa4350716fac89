/* Instance of matmul32.h for AVX-512 F, BW, DQ and VL. */
#define TABLE     clb_avx512_matmul32
#define PREFIX    "avx512"
#define RANK      AVX512_RANK
#define CPU_EXTRA 0
#include "matmul32.h"
