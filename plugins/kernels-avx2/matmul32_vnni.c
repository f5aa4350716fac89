/* Instance of matmul32.h for AVX-VNNI. */
#ifdef CLB_EVEX_VNNI
#define PREFIX    "avxvnni-evex"
#define CPU_EXTRA 0
#else
#define PREFIX    "avxvnni"
#define CPU_EXTRA COLIBRI_CPU0(AVXVNNI)
#endif
#define TABLE clb_avxvnni_matmul32
#define RANK  AVXVNNI_RANK
#include "matmul32.h"
