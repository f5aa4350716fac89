/* Instance of matmul256.h for AVX-512 F, BW, DQ and VL. */
#define TABLE     clb_avx512_matmul256
#define PREFIX    "avx512"
#define RANK      AVX512_RANK
#define CPU_EXTRA 0
#include "matmul256.h"
