/* Instance of gemm_impl.h for smmla. */
#include "gemm_impl.h"
