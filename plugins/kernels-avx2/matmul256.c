/* Instance of matmul256.h without VNNI. */
#define TABLE     clb_avx2_matmul256
#define PREFIX    "avx2"
#define RANK      AVX2_RANK
#define CPU_EXTRA 0
#include "matmul256.h"
