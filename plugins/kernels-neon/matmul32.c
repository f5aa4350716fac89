/* Instance of matmul32.h for sdot. */
#define TABLE     clb_neon_matmul32
#define PREFIX    "neon"
#define RANK      NEON_RANK
#define MIN_X     1
#define CPU_EXTRA 0
#include "matmul32.h"
