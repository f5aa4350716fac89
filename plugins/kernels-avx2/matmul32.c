/* Instance of matmul32.h without VNNI. */
#define TABLE     clb_avx2_matmul32
#define PREFIX    "avx2"
#define RANK      AVX2_RANK
#define CPU_EXTRA 0
#include "matmul32.h"
