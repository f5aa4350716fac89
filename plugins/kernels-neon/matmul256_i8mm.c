/* Instance of matmul256.h for smmla. */
#define TABLE     clb_neon_i8mm_matmul256
#define PREFIX    "neon-i8mm"
#define RANK      NEON_I8MM_RANK
#define MIN_X     5
#define CPU_EXTRA COLIBRI_CPU1(I8MM)
#include "matmul256.h"
